"""Small helpers that tests share; fixtures are in ``tests/conftest.py``."""

from tests.support.network import NetworkGuard
from tests.support.postgres import PostgresCluster, PostgresMissing
from tests.support.processes import processes_of, run_operator, wait_until_gone
from tests.support.unprivileged import Unprivileged, UnprivilegedMissing
from tests.support.waiting import free_port, wait_until, wait_until_async

__all__ = [
    "NetworkGuard",
    "PostgresCluster",
    "PostgresMissing",
    "Unprivileged",
    "UnprivilegedMissing",
    "free_port",
    "processes_of",
    "run_operator",
    "wait_until",
    "wait_until_async",
    "wait_until_gone",
]

"""Twenty tasks at once in one worker process: all of them are verified, and its heartbeat is never late."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "task_sessions.py"
SESSIONS, LEASE_S = 20, 6.0


@pytest.fixture
def benchmark_module() -> Any:
    """The benchmark, which is no module of a package."""
    found = importlib.util.spec_from_file_location("task_sessions", BENCHMARK)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module
    found.loader.exec_module(module)
    return module


@pytest.mark.deep
@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
def test_all_are_verified_and_no_heartbeat_is_late(
    benchmark_module: Any, request: pytest.FixtureRequest, sandbox: str
) -> None:
    if sandbox == "bubblewrap":
        request.getfixturevalue("require_bubblewrap")
    seen = benchmark_module.measure(SESSIONS, sandbox, LEASE_S)
    print(seen)
    assert seen["ends"] == {"verified": SESSIONS}
    assert seen["beats"] >= 2, "nobody looked"
    # A sixth of the lease is wanted, at eight tenths the worker gives itself up.
    assert seen["longest_gap_s"] < LEASE_S / 2
    assert seen["least_left_s"] > LEASE_S / 2
    assert seen["lag_max_s"] < LEASE_S / 6

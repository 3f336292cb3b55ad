"""Fixtures of every test: a clean environment, no network, and the real services that the product runs on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import hypothesis
import pytest

from operator_core.agent_lab.claude_code import find_program
from operator_core.config import ClaudeCodeSettings
from operator_core.errors import ConfigError
from operator_core.sandbox.supervised.supervisor import landlock_abi
from tests.support import NetworkGuard, PostgresCluster, PostgresMissing, Unprivileged, UnprivilegedMissing
from tests.support.depth import DEEP, is_whole, left_out
from tests.support.docker import AGENT_IMAGE, docker_missing, product_missing
from tests.support.warm import cold_processes, warm_processes

# Read before the environment is cleaned.
REQUIRE_SERVICES = os.environ.get("OPERATOR_REQUIRE_SERVICES") == "1"

# A machine that is busy with other tests is slow, which is no failure of the test.
hypothesis.settings.register_profile("operator", deadline=None, print_blob=True, max_examples=100 if DEEP else 30)
hypothesis.settings.load_profile("operator")

PRIVATE_PREFIXES = ("ANTHROPIC_", "CLAUDE", "LC_", "OPERATOR_", "XDG_")
PRIVATE_SUFFIXES = ("_API_KEY", "_PROXY")


def pytest_configure(config: pytest.Config) -> None:
    """Give out the files in their order, in which those with many short tests, the unit tests, come last.

    By itself xdist begins with these, and one process is left with a storm or a sweep when the others are done.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what the short form does not try."""
    if DEEP or not is_whole(config.args):
        return
    out = set(left_out(items))
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No account, proxy or setting of this machine reaches a test or its children; ``HOME`` is an empty folder."""
    monkeypatch.setenv("LANG", "C.UTF-8")
    for name in list(os.environ):
        if name.upper().startswith(PRIVATE_PREFIXES) or name.upper().endswith(PRIVATE_SUFFIXES):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path_factory.mktemp("home")))


@pytest.fixture(autouse=True)
def loopback_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[NetworkGuard]:
    """A connection beyond this machine fails the test, even when the code under test swallows the error."""
    guard = NetworkGuard()
    guard.install(monkeypatch)
    yield guard
    assert not guard.blocked, f"the test tried to reach {guard.blocked}; tests may use the loopback interface only"


@pytest.fixture(scope="session", autouse=True)
def _warm() -> Iterator[None]:
    """In the short form the programs of the product are forked from an interpreter that has imported it."""
    with contextlib.nullcontext() if DEEP else warm_processes():
        yield


@pytest.fixture
def cold() -> Iterator[None]:
    """The test starts its interpreters from nothing, as users do."""
    with cold_processes():
        yield


@pytest.fixture(scope="session")
def postgres_cluster() -> Iterator[PostgresCluster]:
    """A running PostgreSQL server of this test process alone, so that a test may crash and restart it."""
    try:
        cluster = PostgresCluster()
    except PostgresMissing as missing:
        _service_missing(str(missing), "install the package postgresql")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture(scope="session")
def postgres_url(postgres_cluster: PostgresCluster) -> str:
    """The URL of the server's own database (``postgresql+asyncpg://…``); tests that write use ``fresh_postgres``."""
    return postgres_cluster.url()


@pytest.fixture
def fresh_postgres(postgres_cluster: PostgresCluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of an empty database, dropped when the test is over."""
    name = f"test_{id(request.node):x}"
    try:
        yield postgres_cluster.create(name)
    finally:
        postgres_cluster.drop(name)


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store on each engine in turn: the path of a file that does not exist yet, or the URL of a database."""
    if request.param == "sqlite":
        return str(tmp_path / "operator.db")
    url: str = request.getfixturevalue("fresh_postgres")
    return url


@pytest.fixture(scope="session")
def bubblewrap_answer() -> str:
    """What is wrong with bubblewrap on this machine, as a clause; empty when it works."""
    try:
        done = subprocess.run(
            ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except FileNotFoundError:
        return "bubblewrap is not installed"
    return "" if done.returncode == 0 else f"bubblewrap does not work here ({done.stderr.strip()})"


@pytest.fixture
def require_bubblewrap(bubblewrap_answer: str) -> None:
    """The test needs a working bubblewrap."""
    if bubblewrap_answer:
        _service_missing(bubblewrap_answer, "install the package bubblewrap and allow unprivileged user namespaces")


@pytest.fixture
def unprivileged() -> Iterator[Unprivileged]:
    """Somebody who is not root, to run programs as."""
    try:
        user = Unprivileged()
    except UnprivilegedMissing as missing:
        _service_missing(str(missing), "run the tests as root, or as a user who can read the interpreter")
    with user:
        yield user


@pytest.fixture
def require_landlock() -> None:
    """The test needs landlock."""
    if not landlock_abi():
        _service_missing("this kernel has no landlock", "use Linux 5.13 or later")


@pytest.fixture(scope="session")
def docker_answer() -> str:
    """What is wrong with docker on this machine, as a clause; empty when it works and the tool base is built."""
    return docker_missing()


@pytest.fixture
def require_docker(docker_answer: str) -> None:
    """The test needs a docker daemon with the image of the tool base."""
    if docker_answer:
        _service_missing(docker_answer, "run `make images`")


@pytest.fixture(scope="session")
def product_image_answer(docker_answer: str) -> str:
    """What is wrong with the product's image, as a clause; empty when it was built from this code."""
    return docker_answer or product_missing()


@pytest.fixture
def require_product_image(product_image_answer: str) -> None:
    """The test needs the product's image."""
    if product_image_answer:
        _service_missing(product_image_answer, "run `make images`")


@pytest.fixture
def docker_image(require_docker: None) -> str:
    """The image for sandboxes of the backend docker."""
    return AGENT_IMAGE


@pytest.fixture
def require_claude_code(require_bubblewrap: None) -> None:
    """The test needs the Claude Code program, and a sandbox to run it in."""
    try:
        find_program(ClaudeCodeSettings())
    except ConfigError:
        _service_missing("the Claude Code program is not installed", "run `make claude-code`")


def _service_missing(reason: str, remedy: str) -> NoReturn:
    """Skip on a laptop, fail where nothing may be missing."""
    if REQUIRE_SERVICES:
        pytest.fail(f"{reason}; {remedy}", pytrace=False)
    pytest.skip(f"{reason}; {remedy}")

"""The guards and services that the other tests rely on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from tests.support import NetworkGuard, PostgresCluster, processes_of, run_operator, wait_until
from tests.support.processes import operator_environment

OUTSIDE = "192.0.2.1"  # reserved for documentation: nobody answers there


def plain(url: str) -> str:
    return url.replace("+asyncpg", "")


@pytest.mark.parametrize("address", [(OUTSIDE, 80), ("example.invalid", 80)])
async def test_connections_beyond_this_machine_are_refused(
    loopback_only: NetworkGuard, address: tuple[str, int]
) -> None:
    with pytest.raises(RuntimeError, match="loopback"):
        await asyncio.wait_for(asyncio.open_connection(*address), 5)
    with socket.socket() as sock, pytest.raises(RuntimeError, match="loopback"):
        sock.connect(address)
    # The guard remembers, so that a test fails whose code swallowed the error; this one meant it.
    assert len(loopback_only.blocked) == 2
    loopback_only.blocked.clear()


async def test_loopback_and_unix_sockets_are_allowed(tmp_path: Path) -> None:
    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for host in ("127.0.0.1", "localhost"):
            reader, writer = await asyncio.open_connection(host, port, family=socket.AF_INET)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()
    async with await asyncio.start_unix_server(hang_up, tmp_path / "s"):
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


def test_no_account_or_proxy_of_this_machine_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE", "OPERATOR_"))]
    assert not [name for name in os.environ if name.upper().endswith(("_API_KEY", "_PROXY"))]
    assert not list(Path.home().iterdir())
    monkeypatch.setenv("CANARY_VARIABLE", "leaks")
    assert "CANARY_VARIABLE" not in operator_environment()


def test_run_operator_reports_instead_of_raising() -> None:
    done = run_operator("no-such-command", env={"PYTHONPATH": "/nonexistent"})
    assert done.returncode != 0
    assert done.stderr


def test_processes_are_found_by_argument_and_by_environment_until_they_end() -> None:
    marker = f"marker-{os.getpid()}"
    sleeper = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen([*sleeper, marker], stdin=subprocess.PIPE) as one,
        subprocess.Popen(sleeper, stdin=subprocess.PIPE, env={"MARK": marker}) as two,
    ):
        wait_until(lambda: processes_of(marker) == sorted([one.pid, two.pid]), what="both processes")
        one.kill()  # not waited for: a zombie does not count
        wait_until(lambda: processes_of(marker) == [two.pid], what="one process")
        two.kill()
    assert processes_of(marker) == []


def test_wait_until_fails_at_its_deadline_and_returns_what_it_saw() -> None:
    assert wait_until(lambda: "seen") == "seen"
    with pytest.raises(AssertionError, match=r"the moon.*last look gave 0"):
        wait_until(lambda: 0, timeout=0.02, what="the moon")


@pytest.mark.parametrize("attempt", [1, 2])
async def test_a_fresh_database_is_empty(fresh_postgres: str, attempt: int) -> None:
    connection = await asyncpg.connect(plain(fresh_postgres))
    try:
        assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0, attempt
        await connection.execute("CREATE TABLE left_behind (id int)")
    finally:
        await connection.close()


def test_a_store_is_offered_on_each_engine(store_url: str) -> None:
    assert store_url.endswith("/operator.db") != store_url.startswith("postgresql+asyncpg://operator:")


async def test_a_crashed_server_comes_back_with_what_was_committed(postgres_cluster: PostgresCluster) -> None:
    url = plain(postgres_cluster.create("crashed"))
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE TABLE kept (id int)")
        postgres_cluster.crash()
        with pytest.raises((asyncpg.PostgresConnectionError, asyncpg.InterfaceError, OSError)):
            await connection.fetchval("SELECT 1")
    finally:
        connection.terminate()
    with pytest.raises(OSError, match=r"refused|Connect call failed"):
        await asyncpg.connect(url)
    postgres_cluster.start()
    connection = await asyncpg.connect(url)
    try:
        assert await connection.fetchval("SELECT count(*) FROM kept") == 0
    finally:
        await connection.close()
        postgres_cluster.drop("crashed")


def test_the_server_ends_with_a_killed_test_process(postgres_cluster: PostgresCluster) -> None:
    assert postgres_cluster.port  # PostgreSQL can run here
    code = "from tests.support import PostgresCluster as C; c = C(); c.start(); print(c.folder, flush=True); input()"
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = process.stdout.readline().strip()
        assert folder
        assert processes_of(folder)
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not processes_of(folder) and not Path(folder).exists(), timeout=20, what="the server's end")

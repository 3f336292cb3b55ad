"""``operator top`` as a program in a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.model.person import Role
from tests.support.processes import operator_environment
from tests.support.web import served


async def use(words: list[str], wanted: str, environment: dict[str, str]) -> tuple[int, str]:
    """Start it, wait until that is on the screen, and quit; its exit code, and everything that it wrote."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 120, 0, 0))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "operator_core",
        *words,
        env={**operator_environment(), "TERM": "xterm-256color", **environment},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen, end, asked = b"", clock.monotonic() + 60, False
    try:
        while process.returncode is None:
            assert clock.monotonic() < end, f"{wanted!r} did not come: {seen[-3000:]!r}"
            try:
                seen += os.read(ours, 65536)
            except BlockingIOError:
                await asyncio.sleep(0.02)
            except OSError:  # the other side is closed
                break
            if wanted.encode() in seen and not asked:
                asked = os.write(ours, b"q") > 0
        async with asyncio.timeout(20):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
    return process.returncode or 0, seen.decode(errors="replace")


@pytest.mark.parametrize("where", ["store", "server"])
async def test_it_shows_the_board_and_leaves_the_terminal_as_it_was(tmp_path: Path, where: str) -> None:
    store = tmp_path / "store.db"
    async with Database.open(str(store)) as database:
        await TicketDB(database).open_ticket("disk-of-the-database", "it is full")
    with served(store) as server:
        words = ["--db", str(store), "top"] if where == "store" else ["--server", server.url, "top"]
        token = {"OPERATOR_TOKEN": server.tokens[Role.VIEWER]} if where == "server" else {}
        code, seen = await use(words, "disk-of-the-database", token)
    assert code == 0, seen[-2000:]
    assert "\x1b[?1049h" in seen
    assert seen.rindex("\x1b[?1049l") > seen.rindex("\x1b[?1049h"), "the terminal was left in the other screen"
    assert "Traceback" not in seen


async def test_without_a_store_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    code, seen = await use(["--db", str(tmp_path / "none.db"), "top"], "never", {})
    assert code != 0
    assert "\x1b[?1049h" not in seen
    assert "none.db" in seen
    assert "Traceback" not in seen

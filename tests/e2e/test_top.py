"""``operator top`` as a program in a real terminal."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import pytest
from sqlalchemy import update

from operator_core import clock
from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import tickets
from operator_core.db.tickets import TicketDB
from operator_core.model.person import Role
from tests.support.processes import operator_environment
from tests.support.scene import furnish
from tests.support.web import served


class Screen(NamedTuple):
    """What the program wrote to its terminal, and when.

    Attributes:
        code: Its exit code.
        text: All that it wrote.
        idle: How many bytes it wrote while nothing happened.
    """

    code: int
    text: str
    idle: int


async def use(
    words: list[str],
    keys: Sequence[tuple[str, bytes | signal.Signals]],
    environment: dict[str, str],
    *,
    size: tuple[int, int] = (30, 120),
    idle_s: float = 0.0,
) -> Screen:
    """Start it, press each key once its words are on the screen since the last one, and wait for its end.

    Args:
        keys: Words, and the key or the signal that follows on them.
        size: Lines, and characters in each.
        idle_s: How long it is watched before the last key.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
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
    seen, end, since, left = b"", clock.monotonic() + 60, 0, list(keys)
    quiet, until = 0, 0.0
    try:
        while True:
            assert clock.monotonic() < end, f"{left[:1]!r} did not come: {seen[-3000:]!r}"
            try:
                seen += os.read(ours, 65536)
            except BlockingIOError:
                if process.returncode is not None:  # it ended, and everything that it wrote was read
                    break
                await asyncio.sleep(0.02)
            except OSError:  # the other side is closed
                break
            if not left or left[0][0].encode() not in seen[since:]:
                continue
            if len(left) == 1 and idle_s:
                # What is still being drawn after the words came is no flicker.
                if not until:
                    quiet, until = len(seen), clock.monotonic() + 1.0
                elif clock.monotonic() < until:
                    quiet = len(seen)
                    continue
                if clock.monotonic() < until + idle_s:
                    continue
                quiet = len(seen) - quiet
            since = len(seen)
            key = left.pop(0)[1]
            if isinstance(key, signal.Signals):
                process.send_signal(key)
            else:
                os.write(ours, key)
        async with asyncio.timeout(20):
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(ours)
    return Screen(process.returncode or 0, seen.decode(errors="replace"), quiet)


@pytest.mark.parametrize(("where", "end"), [("store", b"q"), ("server", b"q"), ("store", signal.SIGTERM)])
async def test_it_shows_the_board_and_leaves_the_terminal_as_it_was(
    tmp_path: Path, where: str, end: bytes | signal.Signals
) -> None:
    store = tmp_path / "store.db"
    async with Database.open(str(store)) as database:
        await TicketDB(database).open_ticket("disk-of-the-database", "it is full")
    with served(store) as server:
        words = ["--db", str(store), "top"] if where == "store" else ["--server", server.url, "top"]
        token = {"OPERATOR_TOKEN": server.tokens[Role.VIEWER]} if where == "server" else {}
        shown = await use(words, [("disk-of-the-database", end)], token)
    seen = shown.text
    assert shown.code == 0, seen[-2000:]
    assert "\x1b[?1049h" in seen
    assert seen.rindex("\x1b[?1049l") > seen.rindex("\x1b[?1049h"), "the terminal was left in the other screen"
    assert "Traceback" not in seen
    assert "Task was destroyed" not in seen


@pytest.mark.parametrize("size", [(24, 80), (60, 200)])
async def test_a_call_is_allowed_with_the_keyboard_alone(tmp_path: Path, size: tuple[int, int]) -> None:
    """Also with texts in it that would command a terminal."""
    store = str(tmp_path / "store.db")
    async with Database.open(store) as database:
        scene = await furnish(database)
        keys = [("certificate", b"a"), ("force-renewal", b"y"), ("Allow this call", b"fine\r"), ("Nothing waits", b"q")]
        shown = await use(["--db", store, "top", "-i", "0.2"], keys, {"USER": "ann"}, size=size)
        assert shown.code == 0, shown.text[-2000:]
        found = await Approvals(database).get(scene.approval)
        assert (found.state, found.note) == ("approved", "fine")
    for hostile in ("\x1b[31mred", "\u202e", "\x1b]0;"):
        assert hostile not in shown.text


async def test_nothing_is_drawn_while_nothing_happens(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    async with Database.open(store) as database:
        await TicketDB(database).open_ticket("disk-of-the-database", "it is full")
        await WorkQueue(database).register(clock.new_id(), 600.0, "box")
        async with database.begin() as connection:
            long_ago = clock.iso(clock.now() - timedelta(minutes=90))
            await connection.execute(update(tickets).values(updated_at=long_ago))
    shown = await use(
        ["--db", store, "top", "-i", "0.2"], [("disk-of-the-database", b"q")], {}, size=(60, 200), idle_s=2.0
    )
    assert shown.code == 0, shown.text[-2000:]
    assert shown.idle < 200, "it draws again what stands there already"


async def test_without_a_store_it_says_so_in_one_sentence(tmp_path: Path) -> None:
    code, seen, _ = await use(["--db", str(tmp_path / "none.db"), "top"], [("never", b"q")], {})
    assert code != 0
    assert "\x1b[?1049h" not in seen
    assert "none.db" in seen
    assert "Traceback" not in seen

"""The output of a running command on its way to whoever watches: written by its worker, gone with its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.live_output import LiveOutputs, LiveRow
from operator_core.model.entry import EntryKind
from operator_core.redaction import Redactor
from operator_core.scripted import Reply, ScriptBrain
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.store import finish, start_work
from tests.support.waiting import wait_until_async

SECRET = "hunter2-hunter2-hunter2"


def _waits(gate: Path, text: str) -> ScriptBrain:
    """Prints the text, waits for a file, and mends."""
    until = f"until test -e {gate}; do sleep 0.02; done"
    return ScriptBrain([Reply(calls=(command(f"printf '{text}'; {until}; touch fixed; echo done"),)), PROPOSE])


async def _there(look: Callable[[], Awaitable[LiveRow | None]]) -> bool:
    return await look() is not None


async def test_it_is_there_while_the_command_runs_and_goes_with_its_result(store_url: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_rig(
        _waits(gate, f"line one\\nthe password is {SECRET}\\n"), tmp_path, store=store_url, redactor=Redactor([SECRET])
    ) as rig:
        live = LiveOutputs(rig.database)
        ticket = await rig.incident()
        working = asyncio.ensure_future(rig.work())

        async def shown() -> LiveRow | None:
            sessions = await rig.audit.sessions(ticket_id=ticket)
            return await live.read(sessions[0].session_id) if sessions else None

        await wait_until_async(lambda: _there(shown), 20)
        row = await shown()
        assert row is not None
        assert row.tail == "line one\nthe password is [REDACTED]\n"
        calls = [e for e in await rig.journal(ticket) if e.entry_type == EntryKind.TOOL_CALL]
        assert row.tool_use_id == calls[-1].tool_use_id
        gate.touch()
        await working
        assert await shown() is None
        results = [e for e in await rig.journal(ticket) if e.entry_type == EntryKind.TOOL_RESULT]
        assert "done" in (results[0].raw_content or "")


async def test_a_store_that_refuses_it_does_not_hurt_the_command(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    async with open_rig(_waits(gate, "some words\\n"), tmp_path) as rig:
        from sqlalchemy import text

        async with rig.database.begin() as c:
            await c.execute(text("DROP TABLE live_output"))
            # The end of a session clears it too.
            await c.execute(text("CREATE TABLE live_output (session_id TEXT)"))
        ticket = await rig.incident()
        working = asyncio.ensure_future(rig.work())
        await asyncio.sleep(1.5)
        assert not working.done()
        gate.touch()
        await working
        assert (await rig.tickets.get_ticket(ticket)).status == "resolved"


async def test_a_worker_that_lost_the_ticket_shows_nothing(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database)
        live = LiveOutputs(database)
        await live.write(work.session_id, "t1", "mine", 4, work.claim)
        stale = work.claim._replace(fence=work.claim.fence - 1)
        await live.write(work.session_id, "t0", "stale", 5, stale)
        row = await live.read(work.session_id)
        assert row is not None
        assert (row.tool_use_id, row.tail, row.total) == ("t1", "mine", 4)
        await live.write(work.session_id, "t1", "mine\nmore\0\ud800", 11, work.claim)
        row = await live.read(work.session_id)
        assert row is not None
        assert row.tail == "mine\nmore\ufffd\ufffd"
        await live.clear(work.session_id, "t0")
        assert await live.read(work.session_id) is not None, "another call's output is not its to take away"
        await live.clear(work.session_id, "t1")
        assert await live.read(work.session_id) is None


async def test_a_session_without_a_ticket_shows_its_output_too(store_url: str) -> None:
    async with Database.open(store_url) as database:
        session_id = await AuditLogDB(database).create_session(None)
        live = LiveOutputs(database)
        await live.write(session_id, "t1", "a", 1, None)
        await live.write(session_id, "t2", "b", 1, None)
        row = await live.read(session_id)
        assert row is not None
        assert (row.tool_use_id, row.tail) == ("t2", "b")


async def test_what_a_killed_worker_left_goes_with_the_session(store_url: str) -> None:
    async with Database.open(store_url) as database:
        work = await start_work(database)
        live = LiveOutputs(database)
        await live.write(work.session_id, "t1", "left over", 9, work.claim)
        await finish(work)
        assert await live.read(work.session_id) is None

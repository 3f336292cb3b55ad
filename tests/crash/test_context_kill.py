"""``kill -9`` around each step that changes the context; whoever goes on sends the same bytes."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Entry
from operator_core.model.ticket import InvariantViolation, TicketStatus
from operator_core.scripted import ScriptedProcess
from tests.support.context import assert_only_folds_were_sent, assert_sent_is_journaled
from tests.support.forge import DECLARED_DEAD, Forge
from tests.support.rig import spec_of

BRAIN = str(Path(__file__).parents[1] / "support" / "context.py")
PLACES = [
    "context.compact",
    "journal.append.before:compaction",
    "journal.append.after:compaction",
    "journal.append.after:compaction:2",
    "journal.append.before:wind_down",
    "journal.append.after:wind_down",
    "context.restart",
    "journal.append.before:restart",
    "journal.append.after:restart",
]
MODEL = "claude-opus-5-5"


@pytest.mark.deep
def test_killed_around_each_change_of_the_context(tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    with ScriptedProcess(f"{BRAIN}:chatty") as server, Forge(tmp_path / "output") as forge:
        settings = Settings.model_validate(
            {
                "model": {
                    "engine": "scripted",
                    "base_url": server.base_url,
                    "summaries": "deterministic",
                    "model": MODEL,
                },
                "sandbox": {"backend": "none"},
                "context": {"limit_tokens": 8192, "carryover_turns": 2},
                "worker": {"lease_s": 1.5, "poll_s": 0.1, "lost_after": 100, "state_dir": tmp_path / "state"},
            }
        )
        log = tmp_path / "crashes"
        log.touch()
        tickets = {}
        for number, place in enumerate(PLACES):
            workspace = tmp_path / f"workspace-{number}"
            workspace.mkdir()
            tickets[place] = (asyncio.run(_open(store, workspace, f"killed-{number}")), workspace)
            pid = forge.start(store, settings, crash_at=place, crash_log=log)
            assert forge.wait(pid) in (-signal.SIGKILL, DECLARED_DEAD)
            forge.finish(store, settings)
        assert [line.strip() for line in log.read_text().splitlines()] == [p.removesuffix(":2") for p in PLACES]
        sent = [r["body"] for r in server.requests() if r["path"] == "/v1/messages"]
    for place, (number, workspace) in tickets.items():
        asyncio.run(_check(store, place, number, workspace, [b for b in sent if b["model"] == MODEL]))


async def _open(store: str, workspace: Path, name: str) -> int:
    async with TicketDB(store) as tickets:
        seen = clock.now()
        violation = InvariantViolation(name, "The file is missing.", seen, seen)
        ticket = await tickets.create_or_update_ticket(violation, {"light": "red"}, check=spec_of(workspace, name))
        assert ticket.id is not None
        return ticket.id


async def _check(store: str, place: str, number: int, workspace: Path, bodies: list[dict[str, object]]) -> None:
    async with Database.open(store) as database:
        ticket = await TicketDB(database).get_ticket(number)
        assert ticket.status is TicketStatus.RESOLVED, f"{place}: {ticket.diagnosis}"
        audit = AuditLogDB(database)
        (session,) = await audit.sessions(ticket_id=number)
        entries = await audit.entries(session.session_id)
        assert (await verify(database)).ok
    mine = [b["messages"] for b in bodies if dict(b["metadata"])["user_id"] == session.session_id]  # type: ignore[call-overload]
    assert_sent_is_journaled(entries, mine)
    assert_only_folds_were_sent(entries, mine)
    assert _numbers(entries) == list(range(2, 2 + len(_numbers(entries)))), f"{place}: a restart is there twice"
    assert len(_numbers(entries)) >= 1, place
    masked = [call for e in entries if e.entry_type == "compaction" for call in e.body["masks"]]
    assert len(masked) == len(set(masked)) > 0, f"{place}: a result was masked twice"
    assert (workspace / "steps").read_text().split() == [str(n) for n in range(1, 15)], f"{place}: steps ran twice"


def _numbers(entries: list[Entry]) -> list[int]:
    return [e.body["number"] for e in entries if e.entry_type == "restart"]

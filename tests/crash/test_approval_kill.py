"""``kill -9`` around a call that needs a person's word: never without a yes, never twice, and never forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from operator_core.db.approvals import Approvals
from operator_core.model.approval import Approval
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn
from tests.support.rig import PROPOSE, Rig, open_rig
from tests.support.worker_process import kill_at

RULES = {"rule": [{"decision": "ask", "contains": {"command": "effect"}}]}
ASKING = ["approval.ask.before", "approval.ask.after", "approval.park.before", "approval.park.after"]
GOING_ON = [
    "session.opened",
    "approval.take.before",
    "approval.take.after:used",
    "gateway.started",
    "gateway.executed",
    "gateway.published",
    "journal.append.before:tool_result",
    "journal.append.after:tool_result",
]
IN_DOUBT = GOING_ON[2:5]
"""Spent, and not known to have been executed."""


def agent() -> Brain:
    """Asks for the effect until it is told that it is there; each call has a file of its own."""

    def reply(turn: Turn) -> Reply:
        results = [r for r in turn.history() if r.name == "shell"]
        if any(r.data is not None and r.data.get("exit_code") == 0 for r in results) or "denied" in str(turn.messages):
            return PROPOSE
        command = f"echo x >> effect-{turn.step}; touch fixed"
        return Reply(calls=(Call("shell", {"command": command, "reasoning": "r"}),))

    return FunctionBrain(reply)


def effects(rig: Rig) -> dict[str, int]:
    return {path.name: len(path.read_text().splitlines()) for path in rig.workspace.glob("effect-*")}


async def questions(rig: Rig) -> list[Approval]:
    return await Approvals(rig.database).listed(pending=False)


async def answer_all(rig: Rig, number: int, approve: bool) -> None:
    """Answer every question until the ticket waits no more."""
    for _ in range(5):
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        if ticket.status is not TicketStatus.WAITING_FOR_INPUT:
            return
        assert ticket.reason == Reason.NEEDS_APPROVAL
        (asked,) = await Approvals(rig.database).listed()
        await Approvals(rig.database).decide(asked.id, approve)
    raise AssertionError("it is asked again and again")


async def kill_while_it_asks(place: str, approve: bool, folder: Path, store: str) -> None:
    async with open_rig(agent(), folder, store=store, approvals=RULES) as rig:
        number = await rig.incident()
        await kill_at(rig, store, place, folder)
        await rig.work()
        assert effects(rig) == {}
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason) == (TicketStatus.WAITING_FOR_INPUT, Reason.NEEDS_APPROVAL)
        await answer_all(rig, number, approve)
        assert list(effects(rig).values()) == ([1] if approve else [])
        assert [q.state for q in await questions(rig)] == (["used"] if approve else ["denied"])
        await rig.assert_faithful()


async def kill_after_a_yes(place: str, folder: Path, store: str) -> None:
    async with open_rig(agent(), folder, store=store, approvals=RULES) as rig:
        number = await rig.incident()
        await rig.work()
        (asked,) = await Approvals(rig.database).listed()
        await Approvals(rig.database).decide(asked.id, True, actor="ann")
        await kill_at(rig, store, place, folder)
        await answer_all(rig, number, True)
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        made = effects(rig)
        assert set(made.values()) == {1}, f"executed twice: {made}"
        used = [q for q in await questions(rig) if q.state == "used"]
        commands = [str(q.arguments["command"]) for q in used]
        assert all(any(name in command for command in commands) for name in made), "executed without a yes"
        # Where it is known what became of the call, nobody is asked again for it.
        assert len(used) == (2 if place in IN_DOUBT else 1)
        await rig.assert_faithful()


@pytest.mark.parametrize(("place", "approve"), [(place, place != ASKING[1]) for place in ASKING])
async def test_killed_while_it_asks(place: str, approve: bool, tmp_path: Path) -> None:
    await kill_while_it_asks(place, approve, tmp_path, str(tmp_path / "operator.db"))


@pytest.mark.parametrize("place", GOING_ON)
async def test_killed_after_a_yes(place: str, tmp_path: Path) -> None:
    await kill_after_a_yes(place, tmp_path, str(tmp_path / "operator.db"))


@pytest.mark.parametrize("place", ["approval.ask.after", "approval.take.after:used"])
async def test_killed_on_postgresql(place: str, tmp_path: Path, fresh_postgres: str) -> None:
    if place in ASKING:
        await kill_while_it_asks(place, True, tmp_path, fresh_postgres)
    else:
        await kill_after_a_yes(place, tmp_path, fresh_postgres)


@pytest.mark.parametrize("place", ["approval.take.before", "approval.take.after:denied"])
async def test_killed_after_a_no(place: str, tmp_path: Path) -> None:
    store = str(tmp_path / "operator.db")
    async with open_rig(agent(), tmp_path, store=store, approvals=RULES) as rig:
        number = await rig.incident()
        await rig.work()
        (asked,) = await Approvals(rig.database).listed()
        await Approvals(rig.database).decide(asked.id, False, note="not today", actor="ann")
        await kill_at(rig, store, place, tmp_path)
        await rig.work()
        assert effects(rig) == {}
        # ... and what the person said is not lost with the worker.
        assert "not today" in str(rig.sent()[-1])
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.ESCALATED
        await rig.assert_faithful()

"""What a hostile agent tries so that a repair counts as proved: tampering with what the platform looks at."""

from __future__ import annotations

from pathlib import Path

import pytest

from operator_core import clock
from operator_core.model.invariant import CheckSpec, Invariant, Protect, Subject
from operator_core.model.ticket import InvariantViolation, TicketStatus
from operator_core.monitor.recheck import Recheck
from operator_core.scripted import FunctionBrain, Reply, ScriptBrain, Turn
from tests.support.rig import PROPOSE, command, open_rig, spec_of

FIX = Reply(calls=(command("touch fixed"),))
LIMIT = Protect(commands=("cat limit",))


@pytest.mark.parametrize("backend", ["none", "bubblewrap"])
async def test_a_check_that_changes_directory_moves_no_other_check(tmp_path: Path, backend: str) -> None:
    """The decoy lies where an earlier check happens to go; the protected command must not end up there."""
    decoy = "mkdir app; cp limit app/limit; echo 1000 > limit; touch fixed"
    async with open_rig(
        ScriptBrain([Reply(calls=(command(decoy),)), PROPOSE]), tmp_path, sandbox={"backend": backend}
    ) as rig:
        (rig.workspace / "limit").write_text("10\n")
        check = spec_of(rig.workspace, verify=("cd app 2>/dev/null; test -e limit",), protect=LIMIT)
        ticket = await rig.solve(check)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "refuted")


async def test_a_second_attempt_is_held_to_what_was_there_before_the_first(tmp_path: Path) -> None:
    """Damage of an attempt that was refuted must not become the baseline of the next one."""

    def reply(turn: Turn) -> Reply:
        if turn.step:
            return PROPOSE
        return Reply(calls=(command("test -e fixed || echo 1000 > limit; touch fixed"),))

    async with open_rig(FunctionBrain(reply), tmp_path) as rig:
        (rig.workspace / "limit").write_text("10\n")
        first = await rig.solve(spec_of(rig.workspace, protect=LIMIT))
        assert (first.status, first.reason) == (TicketStatus.ESCALATED, "refuted")
        await rig.tickets.reopen_ticket(1)
        await rig.work()
        again = await rig.tickets.get_ticket(1)
        assert (again.status, again.reason) == (TicketStatus.ESCALATED, "refuted")


@pytest.mark.parametrize(("store", "state", "readable"), [("workspace", "", ""), ("", "workspace", ""), ("", "", ".")])
async def test_a_store_within_reach_of_the_agent_is_refused(
    tmp_path: Path, store: str, state: str, readable: str
) -> None:
    """It could tell it that the ticket is resolved, or read the journals of other tickets."""
    (tmp_path / "workspace").mkdir()
    async with open_rig(
        ScriptBrain([FIX, PROPOSE]),
        tmp_path,
        store=str(tmp_path / store / "operator.db"),
        worker={"state_dir": tmp_path / state / "state"},
        sandbox={"readable": [tmp_path / readable] if readable else []},
    ) as rig:
        ticket = await rig.solve()
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "error")
        assert "where the agent could reach it" in (ticket.diagnosis or "")
        assert rig.sent() == []


class Plant:
    """A subject that is always bad."""

    async def observe(self) -> dict[str, bool]:
        return {"bad": True}


class PatientChecker:
    """Reports a violation only when it has seen it for half a minute, as a checker with its own grace does."""

    def __init__(self) -> None:
        self._since: float | None = None

    def check(self, observation: dict[str, bool]) -> list[InvariantViolation]:
        self._since = self._since or clock.monotonic()
        now = clock.now()
        return [] if clock.monotonic() - self._since < 30 else [InvariantViolation("bad", "bad", now, now)]


async def test_a_checker_that_has_not_seen_it_red_proves_nothing(tmp_path: Path) -> None:
    """The worker's own checker is in its grace and sees no violation: that is no repair."""
    module = __name__
    async with open_rig(ScriptBrain([PROPOSE]), tmp_path) as rig:
        subject = Subject(
            name="plant", workspace=rig.workspace, plugin=f"{module}:Plant", checker=f"{module}:PatientChecker"
        )
        check = CheckSpec.of(subject, Invariant(name="bad", settle_s=0, settle_observations=1, patience_s=0))
        ticket = await rig.solve(check, look_with_checker=Recheck().look)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "unproven")

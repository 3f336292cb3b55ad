"""An incident is resolved only when each required clause was observed by the platform after the last command."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import Clock, parse_iso
from operator_core.model.invariant import CheckSpec
from operator_core.model.ticket import Ticket
from operator_core.model.verdict import Clause, ClauseState, Verdict
from operator_core.scripted import Reply, ScriptBrain
from tests.support.rig import PROPOSE, Rig, command, open_rig, spec_of


async def _verify(rig: Rig, check: CheckSpec, rate: float = 1.0) -> tuple[Ticket, Verdict]:
    ticket = await rig.solve(check, clock=Clock(rate))
    verdict = rig.conclusions[-1].report.verdict
    assert verdict is not None
    return ticket, verdict


def _states(verdict: Verdict) -> dict[str, str]:
    return {c.clause.value: c.state.value for c in verdict.clauses}


async def _attempt(folder: Path, fix: str, **invariant: Any) -> tuple[Ticket, Verdict, Rig]:
    """What becomes of this fix, when the folder has the limit 10 and a service that restarts from its configuration."""
    brain = ScriptBrain([Reply(calls=(command(fix),)), PROPOSE])
    async with open_rig(brain, folder) as rig:
        (rig.workspace / "limit").write_text("10")
        (rig.workspace / "config").write_text("bad")
        check = spec_of(rig.workspace, probe="grep -q ok state", **invariant)
        ticket, verdict = await _verify(rig, check)
        return ticket, verdict, rig


ALL: dict[str, Any] = {
    "verify": ("grep -q ok state",),
    "durability": {"commands": ("cp config state",)},
    "protect": {"files": ("limit",), "commands": ("cat limit",)},
}


async def test_the_right_fix_is_proved_clause_by_clause(tmp_path: Path) -> None:
    ticket, verdict, _ = await _attempt(tmp_path, "echo ok > config; cp config state", **ALL)
    assert (ticket.status, ticket.reason) == ("resolved", "verified")
    assert _states(verdict) == {"restored": "proved", "durable": "proved", "no_collateral": "proved"}
    assert verdict.check_hash == ticket.check_hash
    assert ticket.watch_until is not None
    assert all(e.ok for c in verdict.clauses for e in c.evidence)


@pytest.mark.parametrize(
    ("fix", "failed", "words"),
    [
        ("true", "restored", "the invariant is still violated"),
        ("echo ok > state", "durable", "it did not last"),
        (
            "echo ok > config; cp config state; echo 99 > limit",
            "no_collateral",
            "protected file limit is not as it was",
        ),
        ("echo ok > config; cp config state; rm limit", "no_collateral", "protected file limit is not as it was"),
    ],
    ids=["nothing", "symptom", "loosened", "removed"],
)
async def test_a_tempting_fix_is_refuted_with_its_evidence(tmp_path: Path, fix: str, failed: str, words: str) -> None:
    started = time.monotonic()
    ticket, verdict, rig = await _attempt(tmp_path, fix, **ALL)
    assert (ticket.status, ticket.reason) == ("escalated", "refuted")
    assert failed in verdict.failed
    assert words in verdict.why
    assert words in (ticket.diagnosis or "")
    clause = next(c for c in verdict.clauses if c.clause == failed)
    bad = [e for e in clause.evidence if e.ok is False]
    assert bad
    assert bad[0].observed
    assert parse_iso(bad[0].at)
    page = rig.conclusions[0].report.markdown()
    assert "NOT OK" in page
    assert f"### {failed.replace('_', ' ')}: FAILED (required)" in page
    assert time.monotonic() - started < 20


async def test_a_functional_command_sees_what_the_probe_does_not(tmp_path: Path) -> None:
    ticket, verdict, _ = await _attempt(
        tmp_path, "echo ok > config; cp config state", verify=("echo 'no answer'; exit 1",)
    )
    assert (ticket.reason, _states(verdict)["restored"]) == ("refuted", "failed")
    assert "functional command" in verdict.why
    assert "exit 1: no answer" in verdict.why


@pytest.mark.parametrize(
    "invariant",
    [
        {"verify": ("exit 3",)},
        {"verify": ("sleep 30",), "verify_timeout_s": 0.3},
        {"durability": {"commands": ("exit 3",)}},
        {"protect": {"commands": ("test ! -e state",)}},
    ],
    ids=["exit 3", "timeout", "durability", "protected command"],
)
async def test_could_not_look_is_neither(tmp_path: Path, invariant: dict[str, Any]) -> None:
    ticket, verdict, _ = await _attempt(tmp_path, "echo ok > config; cp config state", **invariant)
    assert (ticket.status, ticket.reason) == ("escalated", "inconclusive")
    assert ClauseState.COULD_NOT_LOOK.value in _states(verdict).values()


async def test_a_probe_that_cannot_look_is_inconclusive(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(calls=(command("true"),)), PROPOSE]), tmp_path) as rig:
        # It prints the value; that it fails is a failed look, not a red one.
        check = spec_of(rig.workspace, probe="cat value", expect="== 10")
        blind = check.invariant.model_copy(
            update={"probe": check.invariant.probe.model_copy(update={"value": "stdout"})}  # type: ignore[union-attr]
        )
        ticket, verdict = await _verify(rig, CheckSpec.of(check.subject, blind))
        assert ticket.reason == "inconclusive"
        assert "could not be observed" in verdict.why


async def test_what_is_not_configured_is_said(tmp_path: Path) -> None:
    ticket, verdict, rig = await _attempt(tmp_path, "echo ok > state")
    assert ticket.status == "resolved"
    assert _states(verdict) == {"restored": "proved", "durable": "not_proved", "no_collateral": "not_proved"}
    page = rig.conclusions[0].report.markdown()
    assert "## What was not proved" in page
    assert "- durable: no durability step is configured" in page
    assert "- no collateral: nothing is configured as protected" in page


async def test_what_was_never_seen_red_proves_nothing(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(calls=(command("true"),)), PROPOSE]), tmp_path) as rig:
        (rig.workspace / "fixed").touch()
        await rig.tickets.open_ticket("by-hand", "somebody says so", check=spec_of(rig.workspace))
        await rig.work()
        ticket = await rig.tickets.get_ticket(1)
        assert (ticket.status, ticket.reason) == ("escalated", "unproven")
        assert "already green before the work began" in (ticket.diagnosis or "")


async def test_a_look_of_the_platform_is_enough_to_have_seen_it_red(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE]), tmp_path) as rig:
        await rig.tickets.open_ticket("by-hand", "somebody says so", check=spec_of(rig.workspace))
        await rig.work()
        assert (await rig.tickets.get_ticket(1)).status == "resolved"


async def test_green_for_a_moment_is_not_restored(tmp_path: Path) -> None:
    """It flickers: never green for the whole settle window."""
    flicker = "n=$(cat n 2>/dev/null || echo 0); echo $((n+1)) > n; test -e fixed && test $((n % 3)) -ne 0"
    async with open_rig(ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE]), tmp_path) as rig:
        check = spec_of(rig.workspace, probe=flicker, settle_s=4.0, settle_observations=4, patience_s=None)
        ticket, verdict = await _verify(rig, check, rate=10.0)
        assert (ticket.reason, verdict.failed) == ("refuted", ("restored",))


@pytest.mark.parametrize(
    ("patience_s", "status"), [(None, "resolved"), (30.0, "resolved"), (0.4, "escalated"), (0.0, "escalated")]
)
async def test_a_service_that_comes_up_late_is_waited_for(
    tmp_path: Path, patience_s: float | None, status: str
) -> None:
    """The agent's processes are gone by then, so it is the world that needs its time."""
    late = (
        "test -e fixed || exit 1; test -e since || date +%s%N > since; "
        "test $(($(date +%s%N) - $(cat since))) -gt 1200000000"
    )
    async with open_rig(ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE]), tmp_path) as rig:
        ticket, _ = await _verify(rig, spec_of(rig.workspace, probe=late, patience_s=patience_s))
        assert ticket.status == status


async def test_required_clauses_decide_and_others_are_reported(tmp_path: Path) -> None:
    ticket, verdict, _ = await _attempt(
        tmp_path, "echo ok > state; echo 99 > limit", **{**ALL, "require": ("restored",)}
    )
    assert ticket.status == "resolved"
    assert _states(verdict) == {"restored": "proved", "durable": "failed", "no_collateral": "failed"}
    assert [c.required for c in verdict.clauses if c.clause is not Clause.RESTORED] == [False, False]


async def test_hostile_protected_things_do_not_hold_it_up(tmp_path: Path) -> None:
    fix = "echo ok > config; cp config state; rm limit; mkfifo limit; rm -rf data; ln -s /dev/zero data"
    brain = ScriptBrain([Reply(calls=(command(fix),)), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        (rig.workspace / "limit").write_text("10")
        (rig.workspace / "data").mkdir()
        started = time.monotonic()
        check = spec_of(rig.workspace, probe="grep -q ok state", protect={"files": ("limit", "data")})
        ticket, verdict = await _verify(rig, check)
        assert time.monotonic() - started < 10
        assert ticket.reason == "refuted"
        assert [e.ok for c in verdict.clauses for e in c.evidence if e.what.startswith("protected")] == [False, False]


async def test_the_platform_looks_with_its_own_eyes(tmp_path: Path, require_bubblewrap: None) -> None:
    """In bubblewrap: the agent's processes are dead, its home is gone, and its variables do not count."""
    fix = (
        "mkdir -p ~/bin; printf '#!/bin/sh\\nexit 0\\n' > ~/bin/grep; chmod +x ~/bin/grep; "
        "echo 'export PATH=~/bin:$PATH' | tee ~/.bashrc ~/.profile ~/.bash_profile; "
        "(while true; do echo ok > state; sleep 0.05; done) & sleep 0.2; echo ok > state"
    )
    brain = ScriptBrain([Reply(calls=(command(fix),)), PROPOSE])
    async with open_rig(brain, tmp_path, sandbox={"backend": "bubblewrap"}) as rig:
        check = spec_of(rig.workspace, probe="test -e state", verify=("rm state; sleep 0.3; grep -q ok state",))
        ticket, verdict = await _verify(rig, check)
        assert (ticket.reason, verdict.failed) == ("refuted", ("restored",))


async def test_a_recurrence_reopens_and_names_the_session_that_claimed_the_fix(tmp_path: Path) -> None:
    steps = [Reply(calls=(command("touch fixed"),)), PROPOSE]
    async with open_rig(ScriptBrain(steps), tmp_path) as rig:
        check = spec_of(rig.workspace, watch_s=600.0)
        first = await rig.solve(check)
        os.remove(rig.workspace / "fixed")
        again = await rig.incident(check)
        ticket = await rig.tickets.get_ticket(again)
        assert (again, ticket.status, ticket.reason) == (first.id, "open", "recurred")
        assert (ticket.reopened_from, ticket.reopen_count) == (first.session_id, 1)
        await rig.work()
        assert (await rig.tickets.get_ticket(again)).status == "resolved"
        assert len(await rig.audit.sessions(ticket_id=again)) == 2

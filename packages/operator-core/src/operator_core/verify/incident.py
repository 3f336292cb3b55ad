"""Is the incident really over? Three clauses, each looked at by the platform after the agent's last command."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from operator_core import clock
from operator_core.clock import Clock
from operator_core.model.invariant import CheckSpec
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, decide
from operator_core.probes import Observation
from operator_core.sandbox.protocol import ExecResult
from operator_core.text import clip, printable
from operator_core.verify.protect import Run, Snapshot, compare, take_snapshot

__all__ = ["IncidentCheck", "Look", "verify_incident"]

Look = Callable[[], Awaitable[Observation]]
"""Looks at the invariant once, now."""

_COULD_NOT_LOOK = 3
_SHORTEST_PAUSE_S = 0.1
_PATIENCE = 3.0
_LEAST_PATIENCE_S = 10.0


@dataclass(frozen=True)
class IncidentCheck:
    """What is verified, and with which eyes.

    Attributes:
        spec: The invariant as it was when the ticket opened.
        workspace: Base of the protected paths.
        look: Looks at the invariant.
        run: Runs a command in a fresh sandbox of the platform (command, time limit in seconds).
        clock: For the settle windows.
    """

    spec: CheckSpec
    workspace: Path
    look: Look
    run: Callable[[str, float], Awaitable[ExecResult]]
    clock: Clock

    async def snapshot(self) -> Snapshot:
        """Fingerprints of the protected things, as they are now."""
        return await take_snapshot(self.spec.invariant.protect, self.workspace, self._runner(60.0))

    def _runner(self, timeout: float) -> Run:
        return lambda command: self.run(command, timeout)


async def verify_incident(check: IncidentCheck, before: Snapshot, *, seen_red: bool) -> Verdict:
    """The verdict about a claimed repair.

    The order matters: collateral is compared before the durability step changes anything, and durability is only
    tested on a service that works.

    Args:
        before: The protected things before the agent's first command.
        seen_red: Whether the platform itself saw the invariant violated before the work.
    """
    invariant = check.spec.invariant
    required = invariant.required
    restored = await _restored(check)
    collateral = await _no_collateral(check, before)
    if restored[0] is ClauseState.PROVED:
        durable = await _durable(check)
    elif not invariant.durability.commands:
        durable = (ClauseState.NOT_PROVED, "no durability step is configured", ())
    else:
        durable = (ClauseState.NOT_PROVED, "not tested, because the invariant is not restored", ())
    clauses = tuple(
        ClauseResult(clause, state, clause in required, why, evidence)
        for clause, (state, why, evidence) in (
            (Clause.RESTORED, restored),
            (Clause.DURABLE, durable),
            (Clause.NO_COLLATERAL, collateral),
        )
    )
    return decide(clauses, seen_red=seen_red, check_hash=check.spec.digest)


_Found = tuple[ClauseState, str, tuple[Evidence, ...]]


async def _restored(check: IncidentCheck) -> _Found:
    state, why, evidence = await _settled(check)
    if state is not ClauseState.PROVED:
        return state, why, evidence
    commands_state, commands_why, commands = await _commands(
        check, check.spec.invariant.verify, check.spec.invariant.verify_timeout_s, "functional command"
    )
    if commands_state is not ClauseState.PROVED:
        return commands_state, commands_why, evidence + commands
    return ClauseState.PROVED, why, evidence + commands


async def _settled(check: IncidentCheck) -> _Found:
    """Green without a gap for the settle window, within a patience in which a repaired service may still come up."""
    invariant = check.spec.invariant
    began = check.clock.monotonic()
    patience = invariant.patience_s
    if patience is None:
        patience = max(_PATIENCE * invariant.settle_s, _LEAST_PATIENCE_S)
    pause = max(_SHORTEST_PAUSE_S, invariant.settle_s / invariant.settle_observations)
    green_since: float | None = None
    greens = 0
    last_bad: Observation | None = None
    while True:
        seen = await check.look()
        moment = check.clock.monotonic()
        if seen.light == "green":
            green_since = moment if green_since is None else green_since
            greens += 1
            held = moment - green_since
            if held >= invariant.settle_s and greens >= invariant.settle_observations:
                why = f"green for {held:.1f} s in {greens} observations"
                return ClauseState.PROVED, why, (_evidence(check, seen, f"{greens} observations, the last one"),)
        else:
            green_since, greens, last_bad = None, 0, seen
        waited = moment - began
        if (waited > patience and green_since is None) or waited > patience + invariant.settle_s:
            shown = last_bad or seen
            evidence = (_evidence(check, shown, "the invariant"),)
            if shown.light == "unknown":
                return ClauseState.COULD_NOT_LOOK, f"the invariant could not be observed: {shown.detail}", evidence
            return ClauseState.FAILED, f"the invariant is still violated: {shown.detail}", evidence
        await check.clock.sleep(pause)


async def _durable(check: IncidentCheck) -> _Found:
    step = check.spec.invariant.durability
    if not step.commands:
        return ClauseState.NOT_PROVED, "no durability step is configured", ()
    state, why, evidence = await _commands(check, step.commands, step.timeout_s, "durability step")
    if state is not ClauseState.PROVED:
        return state, why, evidence
    again, again_why, again_evidence = await _restored(check)
    if again is ClauseState.PROVED:
        return again, f"after the durability step: {again_why}", evidence + again_evidence
    return again, f"it did not last: after the durability step {again_why}", evidence + again_evidence


async def _no_collateral(check: IncidentCheck, before: Snapshot) -> _Found:
    if not check.spec.invariant.protect:
        return ClauseState.NOT_PROVED, "nothing is configured as protected", ()
    evidence = compare(before, await check.snapshot())
    changed = [e for e in evidence if e.ok is False]
    if changed:
        return ClauseState.FAILED, f"{changed[0].what} is not as it was", evidence
    blind = [e for e in evidence if e.ok is None]
    if blind:
        return ClauseState.COULD_NOT_LOOK, f"{blind[0].what} could not be looked at", evidence
    return ClauseState.PROVED, f"{len(evidence)} protected things are as they were", evidence


async def _commands(check: IncidentCheck, commands: tuple[str, ...], timeout: float, what: str) -> _Found:
    evidence: list[Evidence] = []
    for number, command in enumerate(commands, 1):
        result = await check.run(command, timeout)
        output = printable((result.stdout.text() + result.stderr.text()).strip())
        blind = result.exit_code in (None, _COULD_NOT_LOOK) or result.timed_out
        ok = None if blind else result.exit_code == 0
        seen = f"timed out after {timeout:g} s" if result.timed_out else f"exit {result.exit_code}"
        evidence.append(
            Evidence(
                f"{what} {number}: {command}",
                "exit 0",
                f"{seen}: {clip(output, 600)}" if output else seen,
                ok,
                clock.iso(),
                command,
            )
        )
        if ok is not True:
            state = ClauseState.COULD_NOT_LOOK if ok is None else ClauseState.FAILED
            line = clip(output.splitlines()[-1], 160) if output else ""
            return state, f"{what} {number} failed ({seen}{': ' + line if line else ''})", tuple(evidence)
    return ClauseState.PROVED, "every command succeeded", tuple(evidence)


def _evidence(check: IncidentCheck, seen: Observation, what: str) -> Evidence:
    expected = check.spec.invariant.expect or "the probe succeeds"
    ok = {"green": True, "red": False}.get(seen.light)
    return Evidence(what, expected, clip(seen.detail, 600), ok, clock.iso(seen.at), seen.how)

"""One look at an invariant, whatever its probe."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from pathlib import Path

from operator_core.clock import Clock, monotonic
from operator_core.clock import now as real_now
from operator_core.model.invariant import CommandProbe, HttpProbe, Invariant, Probe, PromQLProbe, Subject, TcpProbe
from operator_core.model.monitor import Light
from operator_core.probes.command import look_command, say_command
from operator_core.probes.http import look_http, look_promql, say_http, say_promql
from operator_core.probes.observation import LookFailed, Observation, Scalar, Seen, excerpt
from operator_core.probes.tcp import look_tcp, say_tcp
from operator_core.redaction import Redactor

__all__ = ["look_at", "observe"]


async def look_at(subject: Subject, invariant: Invariant, *, clock: Clock | None = None) -> Observation:
    """Look at an invariant of a subject: the monitor, the verifier and ``doctor`` all see through these eyes.

    A command runs outside of the sandbox, so it does not start in the workspace, where an agent could have left a file
    that it would load; ``$WORKSPACE`` names the folder.
    """
    workspace = {"WORKSPACE": str(subject.workspace)} if subject.workspace else {}
    return await observe(invariant, env={**subject.env, **workspace}, clock=clock)


async def observe(
    invariant: Invariant, *, cwd: Path | None = None, env: Mapping[str, str] | None = None, clock: Clock | None = None
) -> Observation:
    """Look once, for at most the probe's ``timeout_s`` (real seconds), and compare what was seen with ``expect``.

    A look that fails gives ``unknown``, or what ``on_error`` says; a probe that only tests whether something answers
    (TCP, HTTP without ``value``) gives ``red``, unless the fault is this machine's or the configuration's. Without
    ``expect`` a command must exit with 0, the status of an HTTP answer must be one of ``status``, and any other value
    only has to be there. With ``expect`` and without ``value``, the status is compared and ``status`` plays no part.

    Args:
        invariant: What to look at; it has a probe.
        cwd: Where a command runs (default: ``/``).
        env: Further variables of a command.
        clock: Whose time of day is written into the observation (default: the real one).

    Raises:
        ValueError: The invariant has no probe.
    """
    probe = invariant.probe
    if probe is None:
        raise ValueError(f"the invariant {invariant.name!r} has no probe")
    at = clock.now() if clock else real_now()
    started = monotonic()
    try:
        async with asyncio.timeout(probe.timeout_s):
            seen = await _look(probe, cwd, env)
    except LookFailed as failed:
        light, value, detail, raw = _failed(invariant, probe, failed.ours), None, str(failed), failed.raw
    except TimeoutError:
        light, value, raw = _failed(invariant, probe, ours=False), None, ""
        detail = f"no complete answer within {probe.timeout_s:g} s"
    else:
        value, raw = seen.value, seen.raw
        light, detail = _judge(invariant, probe, seen.value)
    # Shapes of credentials only: the store takes out the values of known secrets before it writes.
    mask = Redactor().text
    return Observation(light, value, mask(detail), mask(raw), at, monotonic() - started, mask(_say(probe, cwd)))


async def _look(probe: Probe, cwd: Path | None, env: Mapping[str, str] | None) -> Seen:
    match probe:
        case HttpProbe():
            return await look_http(probe)
        case TcpProbe():
            return await look_tcp(probe)
        case CommandProbe():
            return await look_command(probe, cwd=cwd, env=env)
        case PromQLProbe():
            return await look_promql(probe)


def _say(probe: Probe, cwd: Path | None) -> str:
    match probe:
        case HttpProbe():
            return say_http(probe)
        case TcpProbe():
            return say_tcp(probe)
        case CommandProbe():
            return say_command(probe, cwd)
        case PromQLProbe():
            return say_promql(probe)


def _failed(invariant: Invariant, probe: Probe, ours: bool) -> Light:
    if invariant.on_error is not None:
        return invariant.on_error
    reachability = isinstance(probe, TcpProbe) or (isinstance(probe, HttpProbe) and probe.value is None)
    return "red" if reachability and not ours else "unknown"


def _judge(invariant: Invariant, probe: Probe, value: Scalar) -> tuple[Light, str]:
    shown = _show(value)
    if invariant.expect is None and isinstance(probe, HttpProbe) and probe.value is None:
        if not probe.status or value in probe.status:
            return "green", f"status {shown}"
        return "red", f"status {shown}, expected {' or '.join(map(str, probe.status))}"
    asked = invariant
    if invariant.expect is None and isinstance(probe, CommandProbe) and probe.value == "exit_code":
        asked = invariant.model_copy(update={"expect": "== 0"})
    what = "exit code" if isinstance(probe, CommandProbe) and probe.value == "exit_code" else "value"
    try:
        holds = asked.holds("null" if value is None else value)
    except (ValueError, re.error) as error:
        # Seen, and still nothing known; that is no failed look, so `on_error` has no say in it.
        return "unknown", f"{what} {shown} cannot be judged: {error}"
    if asked.expect is None:
        return "green", f"{what} {shown}"
    return ("green", f"{what} {shown}") if holds else ("red", f"{what} {shown}, expected {asked.expect}")


def _show(value: Scalar) -> str:
    if value is None:
        return "null"
    text = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return excerpt(" ".join(text.split()) or "(empty)", 120)

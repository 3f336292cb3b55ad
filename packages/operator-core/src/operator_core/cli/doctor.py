"""``operator doctor``: try everything that a worker and a monitor need, and say what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.finding import Finding, State
from operator_core.cli.output import Output

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.model.invariant import Subject
    from operator_core.sandbox import Report

__all__ = ["conclude", "doctor", "examine", "look_and_conclude", "look_at_docker", "try_sandbox"]

_MODEL_S = 20.0
_PLUGIN_S = 30.0


def doctor(context: typer.Context, as_json: AsJson = False) -> int:
    """Try store, sandbox, model and probes; say what is wrong.

    Reads the configuration, writes to the store, attacks the sandbox, asks the model for one token, and looks through
    every probe once. The exit code is 1 if something is wrong.
    """
    return look_and_conclude(lambda: run(_examine(context)), as_json)


def look_and_conclude(look: Callable[[], list[Finding]], as_json: bool) -> int:
    """Try everything, while a terminal sees that it goes on; then say what was found, as :func:`conclude`."""
    out = Output()
    if not as_json:
        out.working("Trying everything …")
    try:
        findings = look()
    finally:
        out.working(None)
    return conclude(out, findings, as_json)


def conclude(out: Output, findings: list[Finding], as_json: bool) -> int:
    """Print what was found; the exit code is 1 if something is wrong."""
    wrong = [finding for finding in findings if finding.state == "wrong"]
    if as_json:
        out.json({"ok": not wrong, "checks": [finding._asdict() for finding in findings]})
    else:
        _print(out, findings)
        out.line()
        names = ", ".join(finding.name for finding in wrong)
        out.line(f"{len(wrong)} thing(s) wrong: {names}." if wrong else "Everything that was tried works.")
    return 1 if wrong else 0


def _print(out: Output, findings: list[Finding]) -> None:
    colours = {"ok": "green", "warning": "yellow", "wrong": "bold red", "skipped": "dim"}
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        # Not a table: a remedy must be readable as a whole, and copied as one line.
        detail = " ".join(finding.detail.split())
        out.line(f"{finding.state:<8} {finding.name:<{width}}  {detail}", style=colours[finding.state])


async def _examine(context: typer.Context) -> list[Finding]:
    from operator_core.errors import OperatorError

    try:
        loaded = invocation(context).load()
    except OperatorError as error:
        return [Finding("configuration", "wrong", str(error))]
    where = str(loaded.path) if loaded.path else "defaults and environment; no operator.toml here"
    return [
        Finding("configuration", "ok", f"{where}, {len(loaded.settings.subject)} subject(s)"),
        *await examine(loaded.settings),
    ]


async def examine(settings: Settings) -> list[Finding]:
    """Try everything, whatever fails on the way."""
    from operator_core.cli.secrets_check import examine_secrets

    sandbox = await _sandbox(settings)
    findings = [
        *await _store(settings),
        sandbox,
        *await look_at_docker(settings, sandbox),
        *_memory(),
        await _model(settings),
        *examine_secrets(settings),
    ]
    for subject in settings.subject:
        findings += await _probes(subject)
    if not settings.subject:
        findings.append(Finding("monitor", "warning", "nothing is configured to be watched; add a [[subject]]"))
    return findings


async def _store(settings: Settings) -> list[Finding]:
    from operator_core import clock
    from operator_core.cli.secrets_check import examine_tokens
    from operator_core.db.engine import Database, safe_url
    from operator_core.db.queue import WorkQueue
    from operator_core.db.tickets import TicketDB
    from operator_core.errors import OperatorError
    from operator_core.work.state import StateFolder

    facts = {"url": safe_url(settings.store.url)}
    try:
        async with Database.open(settings.store.url, create=False) as database:
            # What every worker does first and last: one row written, read back, and removed.
            queue, me = WorkQueue(database), clock.new_id()
            await queue.register(me, 5.0)
            await queue.heartbeat(me, 5.0)
            await queue.retire(me)
            open_tickets = len(await TicketDB(database).list_tickets("open"))
            folder = StateFolder(settings, database).root
            detail = f"{database.name}: written and read, {open_tickets} open ticket(s), {folder}"
            return [Finding("store", "ok", detail, facts), await examine_tokens(database)]
    except OperatorError as error:
        return [Finding("store", "wrong", str(error), facts)]


async def try_sandbox(settings: Settings) -> Report:
    """Start the configured sandbox once, in an empty workspace.

    Raises:
        SandboxUnavailable: It cannot be started here; the sentence has the remedy.
        ConfigError: A host that is to be allowed, or that gets a credential, is none.
    """
    from operator_core.cli.sandbox import try_out
    from operator_core.work.boxes import check_network

    check_network(settings)
    return (await try_out(settings)).report


async def _sandbox(settings: Settings) -> Finding:
    from operator_core.errors import OperatorError

    try:
        report = await try_sandbox(settings)
    except OperatorError as error:
        return Finding("sandbox", "wrong", str(error))
    verified = sum(control.state == "verified" for control in report.controls.values())
    not_verified = [name for name, control in report.controls.items() if control.state != "verified"]
    detail = f"{report.backend}, {report.level}: {verified} of {len(report.controls)} controls verified by attack"
    detail += f" in {report.self_test_ms:.0f} ms" if report.self_test_ms else ""
    detail += f"; not verified: {', '.join(not_verified)}" if not_verified else ""
    detail += f". {' '.join(report.warnings)}" if report.warnings else ""
    return Finding("sandbox", "ok" if report.level == "isolated" else "warning", detail, report.to_dict())


async def look_at_docker(settings: Settings, sandbox: Finding) -> list[Finding]:
    """Docker where it is configured and was not just used; else only a socket that is there and closed to this user."""
    import asyncio

    from operator_core.errors import SandboxUnavailable
    from operator_core.sandbox.docker.client import Docker

    wanted, image = settings.sandbox, settings.sandbox.docker_image
    used = bool(sandbox.facts) and str((sandbox.facts or {}).get("backend", "")).startswith("docker")
    configured = wanted.backend == "auto" and image is not None
    if used or wanted.backend == "docker":
        return []
    try:
        docker = Docker(wanted.docker_program)
        await asyncio.to_thread(docker.check, image if configured else None)
    except SandboxUnavailable as error:
        detail = f"{error.reason}; to use it, {error.remedy}"
        if configured:
            return [Finding("docker", "warning", f"`auto` could not fall back to it: {detail}")]
        return [Finding("docker", "skipped", detail)] if "permission denied" in error.reason.lower() else []
    return [Finding("docker", "ok", f"{docker.version()} has the image {image}")] if configured else []


def _memory() -> list[Finding]:
    """Whether the kernel keeps the processes of one user out of each other's memory."""
    from pathlib import Path

    try:
        scope = int(Path("/proc/sys/kernel/yama/ptrace_scope").read_text())
    except (OSError, ValueError):
        scope = None
    if scope:
        return []
    remedy = "set `sysctl -w kernel.yama.ptrace_scope=1`" if scope == 0 else "use a kernel with Yama"
    detail = (
        "processes of one user can write into each other's memory on this kernel, so a program that a check starts "
        f"could change that check; {remedy}"
    )
    return [Finding("memory", "warning", detail)]


async def _model(settings: Settings) -> Finding:
    import asyncio

    from operator_core.agent_lab.budget import price
    from operator_core.agent_lab.engine import explain, open_engine
    from operator_core.errors import OperatorError
    from operator_core.model.usage import Usage

    model = settings.model
    facts: dict[str, Any] = {"engine": model.engine, "model": model.model, "base_url": model.base_url}
    try:
        engine = open_engine(model)
    except OperatorError as error:
        return Finding("model", "wrong", str(error), facts)
    try:
        async with asyncio.timeout(_MODEL_S):
            await engine.client.beta.messages.create(
                model=model.model, max_tokens=1, messages=[{"role": "user", "content": "Say OK."}]
            )
    except Exception as error:
        return Finding("model", "wrong", str(explain(error, model)[0]), facts)
    finally:
        await engine.close()
    known = price(model, model.model, Usage(input_tokens=1, output_tokens=1)) is not None
    where = model.base_url or "the service's own address"
    detail = f"{model.model} answers at {where} ({model.engine})"
    if known or model.allow_unknown_price:
        return Finding("model", "ok", detail, facts)
    detail += f"; its price is unknown, so sessions would stop: set [model.prices.{model.model}]"
    return Finding("model", "wrong", detail, facts)


async def _probes(subject: Subject) -> list[Finding]:
    import asyncio
    import os
    from pathlib import Path

    from operator_core.probes import look_at

    findings = []
    if subject.workspace is not None and not subject.workspace.is_dir():
        detail = f"its workspace {subject.workspace} is not a folder; create it or change `workspace`"
        findings.append(Finding(f"subject {subject.name}", "wrong", detail))
    if subject.plugin is None:
        nobody = "nobody would look; give it a `probe`, or the subject a `plugin`"
        findings += [Finding(f"probe {i.name}", "wrong", nobody) for i in subject.invariant if i.probe is None]
    for invariant in subject.invariant:
        base = subject.workspace or Path("/")
        lost = [name for name in invariant.protect.files if not os.path.lexists(base / name)]
        if lost:
            detail = f"{', '.join(lost)} is not there, so only its coming into being would be noticed"
            findings.append(Finding(f"protect {invariant.name}", "warning", detail))
    probed = [invariant for invariant in subject.invariant if invariant.probe is not None]
    seen = await asyncio.gather(*(look_at(subject, i) for i in probed))
    for invariant, observation in zip(probed, seen, strict=True):
        name = f"probe {invariant.name}"
        if observation.light == "unknown":
            detail = f"could not look: {observation.detail}; look yourself with `{observation.how}`"
            findings.append(Finding(name, "wrong", detail, observation.to_dict()))
        else:
            state: State = "ok" if observation.light == "green" else "warning"
            findings.append(Finding(name, state, f"{observation.light}: {observation.detail}", observation.to_dict()))
    if subject.plugin is not None or subject.checker is not None:
        findings.append(await _plugin(subject))
    return findings


async def _plugin(subject: Subject) -> Finding:
    from operator_core import clock
    from operator_core.errors import OperatorError
    from operator_core.monitor.guard import ThreadSubject
    from operator_core.monitor.plugins import load_plugin
    from operator_core.monitor.sight import Looker

    name = f"plugin {subject.name}"
    try:
        plugin = load_plugin(subject)
    except OperatorError as error:
        return Finding(name, "wrong", str(error))
    guarded = ThreadSubject(plugin.subject, subject.name)
    try:
        sight = await Looker(guarded, plugin.checker, subject.name, _PLUGIN_S).look(clock.now, None)
    finally:
        guarded.close()
    if sight.failure is not None:
        return Finding(name, "wrong", f"could not look: {sight.failure}")
    if sight.unknown:
        key, why = next(iter(sorted(sight.unknown.items())))
        return Finding(name, "wrong", f"could not look at {len(sight.unknown)} thing(s), e.g. {key}: {why}")
    state: State = "warning" if sight.violations else "ok"
    return Finding(name, state, f"looks, and reports {len(sight.violations)} violation(s)")

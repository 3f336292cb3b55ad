"""``operator sandbox``: what holds where the agent's commands run, found out by attacking it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.output import Output

if TYPE_CHECKING:
    from operator_core.config import Settings
    from operator_core.sandbox import Control, Report

__all__ = ["Trial", "app", "fix_of", "try_out"]

app = typer.Typer(help="Where the agent's commands run, and what holds there.", no_args_is_help=True)

Backend = Annotated[
    str | None,
    typer.Option("--backend", "-b", metavar="NAME", help="auto, bubblewrap, docker, landlock or none [configured]."),
]
NetworkOption = Annotated[str, typer.Option("--network", metavar="NAME", help="none, allowlist or host.")]

_COMMANDS = 15
_STYLES = {"verified": "green", "partial": "yellow", "not_enforced": "bold red", "unavailable": "red"}
_FIXES = {
    "filesystem.read": "commands see what the image holds; take a smaller one",
    "limits.disk": "put the workspaces on a file system with a quota",
    "limits.memory": "start Operator where control groups are writable: as root, or as "
    "a systemd service with `Delegate=yes` and `DelegateSubgroup=worker`",
    "limits.procs": "start Operator as an ordinary user, or where control groups are writable",
    "network": 'give the agent `network = "none"` or `network = "allowlist"`',
    "user": "start Operator as an ordinary user, or as root with nsenter and a file system with id-mapped mounts",
    "vsock": "install perl where commands run, so that it can be attacked",
    "workspace.exec_later": "read what has changed before anything of the workspace runs outside of a sandbox",
    "workspace.hardlinks": "clone with `git clone --no-hardlinks`",
}
_OTHER_BACKEND = {
    "none": 'set `backend = "auto"` in the section [sandbox]',
    "landlock": "install bubblewrap, or configure `docker_image`",
}


class Trial(NamedTuple):
    """What was found in one sandbox.

    Attributes:
        report: Of the sandbox.
        start_ms: Milliseconds until it was ready, its self-test included.
        command_ms: Milliseconds of one small command, the median of some.
        failing: Core controls that are not verified, in order.
    """

    report: Report
    start_ms: float
    command_ms: float
    failing: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON-ready data, with what a person can do about a control."""
        data = self.report.to_dict()
        for name, control in self.report.controls.items():
            if fix := fix_of(self.report, name, control):
                data["controls"][name]["fix"] = fix
        times = {"start_ms": round(self.start_ms, 1), "command_ms": round(self.command_ms, 1)}
        return {"ok": not self.failing, **data, **times, "core_failing": list(self.failing)}


@app.command()
def report(
    context: typer.Context, backend: Backend = None, network: NetworkOption = "none", as_json: AsJson = False
) -> None:
    """Start a sandbox, attack it, and show every control.

    Verified: an attack on it has just failed. Partial: it holds within limits. Unavailable: it could not be looked at.
    Without --backend it is the configured one. The workspace is an empty folder.
    """
    trial = run(try_out(invocation(context).settings, backend, network))
    out = Output()
    if as_json:
        out.json(trial.to_dict())
    else:
        _print(out, trial)


@app.command("test")
def examine(
    context: typer.Context, backend: Backend = None, network: NetworkOption = "none", as_json: AsJson = False
) -> int:
    """As report; the exit code is 1 if a core control does not hold, or if the sandbox cannot be used at all."""
    from operator_core.errors import SandboxError, SandboxUnavailable

    out = Output()
    try:
        trial = run(try_out(invocation(context).settings, backend, network))
    except (SandboxError, SandboxUnavailable) as error:
        if not as_json:
            raise
        out.json({"ok": False, "error": str(error)})
        return 1
    if as_json:
        out.json(trial.to_dict())
    else:
        _print(out, trial)
        out.line()
        out.line(f"Ready after {trial.start_ms:.0f} ms; a small command takes {trial.command_ms:.0f} ms.")
        if trial.failing:
            out.line(f"Core controls that do not hold: {', '.join(trial.failing)}.", style="bold red")
        else:
            out.line("Every core control holds.", style="green")
    return 1 if trial.failing else 0


async def try_out(settings: Settings, backend: str | None = None, network: str = "none") -> Trial:
    """Start a sandbox in an empty workspace, and use it a little.

    Args:
        settings: The section ``[sandbox]`` is used.
        backend: Default: the configured one.
        network: Of the policy.

    Raises:
        ConfigError: There is no such backend or network.
        SandboxUnavailable: It cannot be started here; the sentence has the remedy.
        SandboxError: An attack succeeded.
    """
    import statistics
    import tempfile

    from operator_core.clock import monotonic
    from operator_core.sandbox import Policy, open_sandbox
    from operator_core.sandbox.options import Options
    from operator_core.sandbox.selftest.findings import CORE

    wanted = settings.sandbox
    options = Options(wanted.on_unavailable, wanted.docker_image, wanted.docker_program)
    with tempfile.TemporaryDirectory(prefix="operator-sandbox-") as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        policy = Policy(
            workspace,
            readable=wanted.readable,
            env_passthrough=wanted.env_passthrough,
            network=network,  # type: ignore[arg-type] # the policy checks it
            allow_hosts=wanted.allow_hosts,
            run_as=wanted.run_as,
        )
        sandbox = open_sandbox(backend or wanted.backend, policy, session_dir=Path(folder, "session"), options=options)
        try:
            begun = monotonic()
            report = await sandbox.start()
            start = monotonic() - begun
            took = [(await sandbox.exec("true")).duration_s for _ in range(_COMMANDS)]
        finally:
            await sandbox.close()
    failing = [name for name in CORE if name not in report.controls or report.controls[name].state != "verified"]
    return Trial(report, start * 1000, statistics.median(took) * 1000, tuple(failing))


def fix_of(report: Report, name: str, control: Control) -> str:
    """What a person can do about a control that is not verified; empty if there is nothing to do or to say."""
    if control.state == "verified":
        return ""
    for backend, fix in _OTHER_BACKEND.items():
        if report.backend.startswith(backend):
            return fix
    return _FIXES.get(name, "")


def _print(out: Output, trial: Trial) -> None:
    report = trial.report
    tested = f", attacked for {report.self_test_ms:.0f} ms" if report.self_test_ms else ""
    out.line(f"{report.backend}: {report.level}{tested}")
    for warning in report.warnings:
        out.line(f"Warning: {warning}", style="yellow")
    width = max(len(name) for name in report.controls)
    said = set()
    for name, control in report.controls.items():
        word = control.state.replace("_", " ")
        out.line(f"  {name:<{width}}  {word:<12}  {control.how}", style=_STYLES[control.state])
        fix = fix_of(report, name, control)
        if fix and fix not in said:
            said.add(fix)
            out.line(f"  {'':<{width}}  {'':<12}  -> {fix}", style="dim")

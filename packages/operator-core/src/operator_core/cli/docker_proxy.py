"""``operator docker-proxy``: a docker socket for agents, with a listed set of verbs on listed containers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from operator_core.safety.docker_proxy import Decision

__all__ = ["docker_proxy"]


def docker_proxy(
    allow: Annotated[
        list[str], typer.Option("--allow", metavar="VERBS:CONTAINERS", help="E.g. restart,logs:web,db; repeatable.")
    ],
    listen: Annotated[Path, typer.Option("--listen", metavar="PATH", help="The socket to make, for the agent.")],
    daemon: Annotated[Path, typer.Option("--socket", metavar="PATH", help="The daemon's socket.")] = Path(
        "/var/run/docker.sock"
    ),
    mode: Annotated[str, typer.Option("--mode", metavar="OCTAL", help="Who may connect.")] = "600",
    log: Annotated[
        Path | None, typer.Option("--log", metavar="FILE", help="Append each decision there, one JSON line each.")
    ] = None,
) -> None:
    """Serve a part of the docker API to an agent, until Ctrl-C or SIGTERM.

    Whoever may use docker's own socket is root on the host. This one lists, and does to, the named containers what is
    allowed, and refuses everything else. The verbs are exec, inspect, kill, logs, pause, restart, start, stats, stop,
    top and unpause; `*` in a name stands for any characters. Each decision is printed, and appended to --log before it
    is carried out.
    """
    from operator_core.safety.docker_proxy import DockerProxy
    from operator_core.safety.docker_rules import Rules
    from operator_core.safety.unix_socket import listen_unix

    rules = Rules.parse(allow)
    try:
        bits = int(mode, 8)
    except ValueError:
        bits = -1
    if not 0 <= bits <= 0o777:
        raise ConfigError(f"{mode!r} is no file mode; say for example 600 or 666.")
    try:
        # Commands may have secrets in them.
        file = None if log is None else os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    except OSError as error:
        raise ConfigError(f"Nothing can be appended to {log} ({error.strerror}); choose another file.") from None
    out = Output()

    async def write_down(decision: Decision) -> None:
        # Before the line that somebody may be waiting for: a full disk must refuse.
        if file is not None:
            os.write(file, (json.dumps(decision._asdict()) + "\n").encode())
        if decision.verb != "ping":
            out.say(_line(decision))

    async def work() -> None:
        from operator_core.cli.until import until_signal

        proxy = DockerProxy(rules, daemon, write_down)
        version = await proxy.check()
        listener = listen_unix(listen, bits)
        try:
            stop = until_signal()
            await proxy.serve(listener)
            out.say(f"Serving {listen} for the docker daemon {version} at {daemon}.")
            await stop.wait()
        finally:
            await proxy.close()
            listener.close()
            listen.unlink(missing_ok=True)

    run(work())


def _line(decision: Decision) -> str:
    what = f"{decision.verb or '?'} {decision.container}".strip()
    words = f" {json.dumps(list(decision.command))}" if decision.command else ""
    verdict, why = ("allowed", "") if decision.allowed else ("REFUSED", f": {decision.reason}")
    return f"{decision.at} {verdict} {what}{words} ({decision.method} {decision.target}){why}"

"""The tree of commands."""

from __future__ import annotations

from operator_core import __version__
from operator_core.cli import (
    approvals,
    audit,
    docker_proxy,
    doctor,
    explore,
    mcp,
    notify,
    people,
    play,
    running,
    sandbox,
    serve,
    sessions,
    setup,
    submit,
    tickets,
    tokens,
    top,
    verify,
    workers,
)
from operator_core.cli.program import program

__all__ = ["app"]

app = program(
    "operator",
    "An autonomous operations agent whose work counts only when it is proved.",
    __version__,
    remote={
        "tickets",
        "submit",
        "reply",
        "steer",
        "cancel",
        "sessions",
        "audit",
        "approvals",
        "mcp",
        "top",
        "verify",
        "worker",
        "digest",
    },
)

app.command("init")(setup.init)
app.command("doctor")(doctor.doctor)
app.command("demo")(play.demo)
app.command("up")(running.up)
app.command("serve")(serve.serve)
app.command("submit")(submit.submit)
app.command("reply")(people.reply)
app.command("steer")(people.steer)
app.command("cancel")(tickets.cancel)
app.command("top")(top.top)
app.command("digest")(notify.digest)
app.command("mcp")(mcp.mcp)
app.command("docker-proxy")(docker_proxy.docker_proxy)
app.command("verify")(verify.verify)
app.add_typer(running.monitor_app, name="monitor")
app.add_typer(running.worker_app, name="worker")
running.worker_app.command("list")(workers.list_workers)
running.worker_app.command("drain")(workers.drain)
running.worker_app.command("undrain")(workers.undrain)
app.add_typer(running.agent_app, name="agent")
app.add_typer(explore.app, name="explore")
app.add_typer(tickets.app, name="tickets")
app.add_typer(approvals.app, name="approvals")
app.add_typer(sandbox.app, name="sandbox")
app.add_typer(sessions.app, name="sessions")
app.add_typer(audit.app, name="audit")
app.add_typer(notify.app, name="notify")
app.add_typer(tokens.token_app, name="token")
app.add_typer(setup.config_app, name="config")

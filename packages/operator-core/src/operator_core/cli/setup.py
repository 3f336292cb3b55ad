"""``operator init`` and ``operator config show``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.hints import remember
from operator_core.cli.output import Output
from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from operator_core.config import Settings

__all__ = ["config_app", "init"]

config_app = typer.Typer(help="What is configured, and where it comes from.", no_args_is_help=True)

_HEAD = """\
# Operator's configuration. What is commented out shows its default.
# Order of precedence: command line, environment (OPERATOR_<SECTION>__<KEY>), this file, default.
# `operator config show` prints what counts, and `operator doctor` tries whether it works.
"""

_EXAMPLE = """\
# A system under watch. Take the marks away, adapt it, and run `operator doctor`.
#
# [[subject]]
# name = "shop"
# workspace = "/srv/shop"          # the folder that an agent may change
# readable = ["/var/log/shop"]     # further folders that it may read
# network = "host"                 # "none" if it needs no network; "allowlist" for what allow_hosts names
# context = '''
# An online shop behind http://127.0.0.1:8080. Restart it with `touch run/restart`; its log is in /var/log/shop.
# '''
#
# [[subject.invariant]]
# name = "shop-is-up"
# description = "The shop answers."
# severity = "critical"
# probe = { type = "http", url = "http://127.0.0.1:8080/health", timeout_s = 3.0 }
# grace_s = 10.0                   # how long it must be violated before a ticket opens
# settle_s = 10.0                  # how long it must be green before it counts as restored
# patience_s = 60.0                # how long it may take to come up after a repair
# verify = ["curl -fsS http://127.0.0.1:8080/cart"]               # it does its work again
# protect = { files = ["limits.toml"], commands = ["cat prices"] }  # what a repair must not touch
# durability = { commands = ["touch run/restart && sleep 5"] }    # and it lasts
#
# # A secret that an agent with network = "allowlist" may use and never sees.
#
# [[credential]]
# name = "deploy-api"
# env = "DEPLOY_TOKEN"             # of the worker; never of a sandbox
# hosts = ["deploy.example.org"]   # the agent asks for http://deploy.example.org/..., the proxy adds the header and TLS
#
# # Calls that wait for a person's word: docs/approvals.md.
#
# [[approvals.rule]]
# decision = "ask"
# tool = "shell"
# matches = { command = "systemctl (re)?start" }
# why = "It touches what customers use."
#
# # Who is told: docs/notifications.md.
#
# [[notify.channel]]
# name = "pager"
# kind = "webhook"
# url = "https://pager.example.org/operator"
# secret_env = "PAGER_SECRET"      # at least 16 characters
#
# [[notify.rule]]                  # waits for somebody, was escalated, was resolved
# channels = ["pager"]
#
# # What comes in: docs/intake.md.
#
# [[intake]]
# name = "alerts"                  # at /api/v1/intake/alerts
# kind = "alertmanager"
# secret_env = "ALERTS_SECRET"     # at least 16 characters
#
# # Tools of a server of yours for the agents: docs/mcp.md.
#
# [[mcp_server]]
# name = "rota"
# command = "python3"
# args = ["/opt/rota/rota.py"]
# readable = ["/opt/rota"]
"""


def init(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(help="Where operator.toml goes.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Replace an operator.toml that is there.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a commented operator.toml, and make the database.

    What is there already stays as it is.
    """
    from operator_core.config import CONFIG_NAME, Settings, load_settings
    from operator_core.db.engine import Database
    from operator_core.db.tickets import TicketDB

    given = invocation(context)
    path = given.config or folder / CONFIG_NAME
    keep = path.exists() and not force
    url = given.db
    if url is not None and "://" not in url:
        # Relative to where the command was typed; the file is read from elsewhere too.
        url = str(Path(url).expanduser().absolute())
    if not keep:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_template(Settings(), url), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{path} cannot be written ({error.strerror}); choose another folder.") from None
    settings = load_settings(path, db=url).settings

    async def work() -> tuple[str, bool]:
        async with Database.open(settings.store.url) as database:
            return database.name, bool(await TicketDB(database).list_tickets(limit=1))

    name, used = run(work())
    if given.config is None and folder != Path():
        # What is typed next is typed here, and reads another file, or none.
        remember(db=given.db, config=path)
    out = Output()
    if as_json:
        out.json({"config": str(path), "database": name})
        return
    out.line(f"{path} is there already and stays as it is; --force replaces it." if keep else f"Wrote {path}.")
    out.line(f"The database {name} {'was there already, with its tickets' if used else 'is ready'}.")
    out.ours(f"Next: describe a system in {path}, then `operator doctor` and `operator up`; or try `operator demo`.")


@config_app.command("show")
def show(context: typer.Context, as_json: AsJson = False) -> None:
    """Print every setting: its value, and where it comes from."""
    from operator_core.web.effective import effective

    loaded = invocation(context).load()
    values = {setting.key: {"value": setting.value, "origin": setting.origin} for setting in effective(loaded)}
    out = Output()
    if as_json:
        out.json({"file": str(loaded.path) if loaded.path else None, "settings": values})
        return
    out.line(f"File: {loaded.path or 'none (operator.toml in the current folder, or --config)'}")
    out.line()
    rows = [(name, _toml(item["value"]), item["origin"]) for name, item in values.items()]
    out.table(("key", "value", "origin"), rows)


def _template(settings: Settings, url: str | None) -> str:
    from operator_core.config import LISTS, extension_models
    from operator_core.model.described import descriptions

    lines = [_HEAD]
    parts: dict[str, BaseModel] = {s: getattr(settings, s) for s in type(settings).model_fields if s not in LISTS}
    parts |= {section: model() for section, model in extension_models().items()}
    for section, part in parts.items():
        lines += [f"# {(type(part).__doc__ or '').strip().splitlines()[0]}", f"[{section}]", ""]
        told = descriptions(type(part))
        for key in type(part).model_fields:
            value = getattr(part, key)
            lines.append(f"# {told.get(key, key)}")
            if section == "store" and key == "url" and url is not None:
                lines.append(f"{key} = {_toml(url)}")
            elif value is None:
                lines.append(f"# {key} is not set")
            else:
                lines.append(f"# {key} = {_toml(value)}")
            lines.append("")
    return "\n".join(lines) + "\n" + _EXAMPLE


def _toml(value: Any) -> str:
    if value is None:
        return "(not set)"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value if isinstance(value, (str, int, float, bool)) else str(value), ensure_ascii=False)

"""``operator-dataverse doctor``: try what a worker needs of Dataverse, and say what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.doctor import look_and_conclude
from operator_core.cli.finding import Finding
from operator_core.errors import OperatorError
from operator_dataverse.settings import DataverseSettings, settings_of

if TYPE_CHECKING:
    from operator_dataverse.client import Dataverse, TableInfo
    from operator_dataverse.tables import TableSpec

__all__ = ["doctor", "look_at_rights"]

_PATIENCE_S = 20.0
_NEEDED = ("Create", "Read", "Write")


def doctor(context: typer.Context, as_json: AsJson = False) -> int:
    """Try settings, account, tables and permissions; say what is wrong.

    Nothing is written. The exit code is 1 if something is wrong.
    """
    return look_and_conclude(lambda: run(_examine(context)), as_json)


async def _examine(context: typer.Context) -> list[Finding]:
    try:
        loaded = invocation(context).load()
        settings = settings_of(loaded.settings)
    except OperatorError as error:
        return [Finding("configuration", "wrong", str(error))]
    try:
        settings.needs("url", "user")
    except OperatorError as error:
        findings = [Finding("configuration", "wrong", str(error))]
    else:
        where = str(loaded.path) if loaded.path else "environment; no operator.toml here"
        findings = [Finding("configuration", "ok", f"{where}; box {settings.box}, tasks of {settings.user}")]
    if settings.url is None:
        return findings
    return findings + await _organisation(settings)


async def _organisation(settings: DataverseSettings) -> list[Finding]:
    from operator_dataverse.client import Dataverse
    from operator_dataverse.client.comparison import look, wanted

    patient = settings.model_copy(update={"retry_s": min(settings.retry_s, _PATIENCE_S)})
    findings = []
    try:
        async with Dataverse.open(patient) as dataverse:
            user = await dataverse.whoami()
            findings.append(Finding("account", "ok", f"{dataverse.url} knows it as user {user}", {"user": user}))
            findings.append(await _owners(dataverse, settings.user))
            tables = wanted(settings.table)
            there = await look(dataverse, tables)
            findings += [_table(table, there[table.entity_set]) for table in tables]
            known = [info for info in there.values() if info is not None]
            findings += await look_at_rights(dataverse, user, known, settings.user)
    except OperatorError as error:
        findings.append(Finding("organisation" if findings else "account", "wrong", str(error)))
    return findings


def _table(table: TableSpec, info: TableInfo | None) -> Finding:
    from operator_dataverse.client.comparison import compare

    name = f"table {table.entity_set}"
    found = compare(table, info)
    blocking = [d for d in found if d.blocking]
    facts: dict[str, Any] = {"differences": [d._asdict() for d in found]}
    if not found:
        return Finding(name, "ok", "has everything that the product can use", facts)
    said = "; ".join(f"{d.column}: {d.detail}" if d.column else d.detail for d in blocking or found)
    remedy = (
        "see `operator-dataverse schema diff`"
        if not all(d.missing for d in blocking or found)
        else ("run `operator-dataverse schema create`")
    )
    return Finding(name, "wrong" if blocking else "warning", f"{said}; {remedy}", facts)


async def _owners(dataverse: Dataverse, person: str | None) -> Finding:
    """Whose rows are believed."""
    owners = dataverse.owners
    theirs = await owners.id_of(person or "")
    facts = {"person": theirs, "trusted": sorted(owners.trusted)}
    more = f"; trusted too: {', '.join(sorted(owners.trusted))}" if owners.trusted else "; no others are trusted"
    if person is None:
        return Finding("owners", "ok", f"rows of this account, and of each person's own, are believed{more}", facts)
    if theirs is None:
        said = f"{person} is no user here that this account can see, so only rows of this account are believed{more}"
        return Finding("owners", "warning", f"{said}; let it read users, or correct `[dataverse] user`", facts)
    mine = "this account" if theirs == await owners.me() else f"user {theirs}"
    return Finding("owners", "ok", f"{person} is {mine}, whose rows are believed{more}", facts)


async def look_at_rights(
    dataverse: Dataverse, user: str, tables: list[TableInfo], person: str | None = None
) -> list[Finding]:
    """What this account may do with the rows of some tables; nothing is written.

    Args:
        dataverse: The organisation.
        user: Id of this account's user.
        tables: The tables.
        person: Whom it works for; an account of somebody else has to give rows away.
    """
    findings = []
    serves_others = await dataverse.owners.id_of(person or "") != user
    granted = await _privileges(dataverse, user)
    for info in tables:
        name = f"rights {info.table}"
        try:
            await dataverse.first(info.table, None, select=[info.key])
        except OperatorError as error:
            findings.append(Finding(name, "wrong", str(error)))
            continue
        if granted is None:
            findings.append(Finding(name, "warning", "reading works; the service does not say what else is allowed"))
            continue
        lacking = [verb for verb in _NEEDED if f"prv{verb}{info.logical_name}".lower() not in granted]
        assigns = f"prvAssign{info.logical_name}".lower() in granted
        own = granted.get(f"prvRead{info.logical_name}".lower()) == "Basic"
        if not lacking and serves_others and not (assigns or own):
            detail = "this account may not assign rows, so people do not see what it makes for them; add Assign"
            findings.append(Finding(name, "warning", f"{detail} to its security role"))
        elif lacking:
            detail = f"this account may not {', '.join(lacking).lower()} rows; add that to its security role"
            findings.append(Finding(name, "wrong", detail))
        else:
            reach = "rows of its own, and sees no others" if own else "all rows"
            findings.append(Finding(name, "ok", f"this account may create, read and write {reach}"))
    return findings


async def _privileges(dataverse: Dataverse, user: str) -> dict[str, str] | None:
    path = f"systemusers({user})/Microsoft.Dynamics.CRM.RetrieveUserPrivileges"
    try:
        answer = await dataverse.http.request("GET", path, accept=range(400, 502))
    except OperatorError:
        return None
    found = answer.body.get("RolePrivileges") if answer.ok and isinstance(answer.body, dict) else None
    if not isinstance(found, list):
        return None
    named = [one for one in found if isinstance(one, dict) and one.get("PrivilegeName")]
    return {str(one["PrivilegeName"]).lower(): str(one.get("Depth")) for one in named} or None

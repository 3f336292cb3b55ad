"""``operator audit``: is the journal what was written, exports of it, and retention."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from operator_core.cli.context import AsJson, invocation, open_server, open_store, run
from operator_core.cli.output import Output, dumps
from operator_core.cli.sessions import SessionId, list_sessions, show_session
from operator_core.errors import ConfigError, NotFound, StoreError

if TYPE_CHECKING:
    from operator_core.api.models import AuditView
    from operator_core.db.audit_log import SessionInfo
    from operator_core.db.integrity import AuditReport
    from operator_core.db.retention import Pruned
    from operator_core.model.entry import Entry

__all__ = ["app", "audit_report", "say_report"]

app = typer.Typer(help="The journal: is it what was written, exports, retention.", no_args_is_help=True)

_AGE = re.compile(r"(\d+(?:\.\d+)?)([smhdw]?)")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0, "": 86400.0}


@app.command("list")
def list_(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The newest so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List sessions, newest first."""
    list_sessions(context, limit, None, as_json)


@app.command()
def show(
    context: typer.Context,
    session: SessionId,
    full: Annotated[bool, typer.Option("--full", help="Whole texts instead of summaries.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the journal of one session."""
    show_session(context, session, full, as_json)


@app.command()
def verify(
    context: typer.Context,
    session: Annotated[str | None, typer.Option("--session", help="Only this session, and the ledger.")] = None,
    as_json: AsJson = False,
) -> int:
    """Check that nothing in the journal was changed.

    Names the first row that was altered, dropped, added or moved.
    """
    if invocation(context).server is not None:
        return _verify_there(context, session, as_json)
    report = run(audit_report(context, session))
    if as_json:
        Output().json(report)
    elif report.ok:
        Output().line(say_report(report))
    if report.problem is not None and not as_json:
        raise StoreError(f"The journal is not what was written: {report.problem.sentence}")
    return 0 if report.ok else 1


def _verify_there(context: typer.Context, session: str | None, as_json: bool) -> int:
    async def ask() -> AuditView:
        async with open_server(context) as server:
            return await server.audit(session_id=session)

    found = run(ask())
    if as_json:
        Output().json(found)
    elif found.ok:
        Output().line(found.summary)
    else:
        raise StoreError(f"The journal is not what was written: {found.summary}")
    return 0 if found.ok else 1


async def audit_report(context: typer.Context, session: str | None = None) -> AuditReport:
    """Check the store of the configuration."""
    from operator_core.db.integrity import verify as verify_store
    from operator_core.db.retention import load_key
    from operator_core.work.state import StateFolder

    async with open_store(context) as database:
        key = load_key(StateFolder.locate(invocation(context).settings, database))
        return await verify_store(database, session_id=session, key=key)


def say_report(report: AuditReport) -> str:
    """The result in one sentence."""
    pruned = f", {report.pruned} pruned by rule" if report.pruned else ""
    return (
        f"The journal is intact: {report.sessions} session(s) with {report.entries} entries, {report.blobs} large "
        f"output(s){pruned}, {report.ledger_rows} ledger rows, head {report.head}."
        + ("" if report.append_only else " But the database no longer refuses to change it: triggers are missing.")
    )


@app.command()
def export(
    context: typer.Context,
    session: SessionId,
    form: Annotated[Literal["json", "jsonl", "markdown", "report"], typer.Option("--format", "-f")] = "json",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A file (default: standard output).")] = None,
) -> None:
    """Export a session.

    json: the auditor's conversation; jsonl: every journal row; markdown: a transcript; report: the closure report.
    """

    async def work() -> tuple[SessionInfo, list[Entry]]:
        from operator_core.db.audit_log import AuditLogDB

        async with open_store(context) as database:
            audit = AuditLogDB(database)
            return await audit.session(session), await audit.entries(session)

    text = _exported(form, *run(work()))
    if output is None:
        Output().line(text.rstrip("\n"))
        return
    try:
        output.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"{output} cannot be written ({error.strerror}); choose another --output.") from None
    Output().line(f"Wrote {output}.")


def _exported(form: str, session: SessionInfo, entries: list[Entry]) -> str:
    from operator_core.cli.journal_view import entry_dict, transcript

    if form == "jsonl":
        return "".join(dumps(entry_dict(entry)) + "\n" for entry in entries)
    if form == "markdown":
        return transcript(session, entries)
    if form == "report":
        page = next((e.raw_content for e in reversed(entries) if e.entry_type == "report"), None)
        if page is None:
            raise NotFound(
                f"Session {session.session_id} has no closure report (it is {session.status}); see "
                f"`operator sessions show {session.session_id}`."
            )
        return page
    import tempfile

    from operator_core.agent_lab.audit import SessionAuditor

    with tempfile.TemporaryDirectory(prefix="operator-export-") as folder:
        path = SessionAuditor.from_entries(Path(folder), session.session_id, entries).save_session()
        return path.read_text(encoding="utf-8") + "\n"


@app.command()
def prune(
    context: typer.Context,
    older_than: Annotated[
        str | None, typer.Option("--older-than", metavar="AGE", help="E.g. 90d, 12h; a number alone is days.")
    ] = None,
    keep: Annotated[int | None, typer.Option("--keep", min=0, help="Keep the newest so many.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete old journals by rule.

    A signed tombstone remains of each, and `audit verify` knows it.
    """
    age = None if older_than is None else _age(older_than)

    async def work() -> Pruned:
        from operator_core.db.retention import prune as prune_store
        from operator_core.work.state import StateFolder

        async with open_store(context) as database:
            folder = StateFolder.locate(invocation(context).settings, database)
            return await prune_store(
                database, older_than=age, keep=keep, state_dir=folder, dry_run=dry_run, actor="person (cli)"
            )

    gone = run(work())
    out = Output()
    if as_json:
        out.json({**gone._asdict(), "dry_run": dry_run})
        return
    verb = "Would delete" if dry_run else "Deleted"
    out.line(
        f"{verb} the journals of {len(gone.sessions)} session(s): {gone.entries} entries, {gone.blobs} large outputs."
    )


def _age(text: str) -> timedelta:
    match = _AGE.fullmatch(text.strip().lower())
    if match is None:
        raise ConfigError(f"{text!r} is no age; write e.g. 90d, 12h or 30m.")
    try:
        return timedelta(seconds=float(match[1]) * _UNITS[match[2]])
    except OverflowError:
        raise ConfigError(f"{text!r} is too long an age; write e.g. 90d, 12h or 30m.") from None

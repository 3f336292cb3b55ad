"""The closure report of a task, from its journal; and its files, on every terminal state."""

from __future__ import annotations

import asyncio

from operator_core import __version__
from operator_core.db.audit_log import SessionInfo
from operator_core.db.tickets import TicketDB
from operator_core.errors import OperatorError, VerificationError
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.outcome import Outcome
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Ticket, TicketKind, TicketStatus
from operator_core.model.verdict import Verdict
from operator_core.verify.report import ClosureReport, TaskFacts
from operator_core.work.entries import newest, spent
from operator_core.work.folder import SessionFolder
from operator_core.work.folder.exports import export_all, session_summary, transcript_jsonl
from operator_core.work.judging import Judged
from operator_core.work.session import SessionTools, TaskResult, frozen_in

__all__ = ["CANCELED", "export_closed", "locate", "task_report", "task_result", "write_files"]

CANCELED = "Task canceled by user"
"""What a canceled task returns (row B-029)."""

_SHELLS = ("shell", "Bash")


def task_report(
    tools: SessionTools,
    ticket: Ticket,
    spec: TaskSpec,
    folder: SessionFolder,
    session_id: str,
    entries: list[Entry],
    claimed: Outcome,
    judged: Judged | None,
) -> ClosureReport:
    """What was claimed and what was proved.

    Args:
        entries: The journal of the session.
        claimed: The outcome of the last worker phase.
        judged: What the platform made of it; None if it was not judged.
    """
    clean = tools.audit.database.redactor
    baseline = newest(entries, EntryKind.BASELINE)
    delivered = newest(entries, EntryKind.DELIVERED)
    begun = [e for e in entries if e.entry_type == EntryKind.PHASE_START and (e.phase or "").startswith("worker_")]
    sandbox = newest(entries, EntryKind.SANDBOX_REPORT)
    notes = judged.notes if judged else ()
    if delivered is not None and delivered.body["note"]:
        notes = (*notes, str(delivered.body["note"]))
    facts = TaskFacts(
        asked=spec.prompt,
        folder=str(folder.path),
        workspace=str(folder.workspace),
        checks=tuple(check.command for check in spec.checks),
        before=tuple(_before(seen) for seen in baseline.body["seen"]) if baseline else (),
        digest=judged.digest if judged else None,
        base=baseline.body["commit"] if baseline else None,
        branch=delivered.body["branch"] if delivered else None,
        commit=delivered.body["commit"] if delivered else None,
        notes=notes,
        iterations=len({e.phase for e in begun}),
    )
    return ClosureReport(
        ticket=ticket,
        session_id=session_id,
        outcome=claimed._replace(summary=clean.text(claimed.summary)),
        verdict=Verdict.from_dict(clean.tree(judged.verdict.to_dict())) if judged else None,
        engine=_engine(begun, tools),
        model=str(begun[-1].body["model"]) if begun else spec.model or tools.settings.model.model,
        usage=spent(entries),
        turns=sum(e.entry_type == EntryKind.MESSAGE and (e.body or {}).get("role") == "assistant" for e in entries),
        commands=sum(e.entry_type == EntryKind.TOOL_RESULT and e.tool_name in _SHELLS for e in entries),
        sandbox=sandbox.content if sandbox else "not started",
        task=facts,
    )


def _before(seen: dict[str, object]) -> tuple[str, str]:
    return str(seen["command"]), "vacuous" if seen["vacuous"] else str(seen["state"])


def _engine(begun: list[Entry], tools: SessionTools) -> str:
    name = str(begun[-1].body["engine"]) if begun else tools.engine.name
    return f"{name} (scripted model)" if tools.engine.name == "scripted" and name != "scripted" else name


async def locate(tools: SessionTools, ticket: Ticket, spec: TaskSpec, session_id: str) -> SessionFolder:
    """The folder of one attempt: its number is that of the session among the ticket's sessions."""
    sessions = await tools.audit.sessions(ticket_id=ticket.id, limit=100_000)
    attempt = next(n for n, s in enumerate(reversed(sessions), 1) if s.session_id == session_id)
    return SessionFolder.locate(tools.settings, tools.audit.database, ticket, spec, attempt)


async def export_closed(tools: SessionTools, session: SessionInfo) -> None:
    """The files of a session that was closed while no worker had it: canceled while it waited, or with its worker."""
    if session.kind != TicketKind.TASK or session.ticket_id is None:
        return
    ticket = await TicketDB(tools.audit.database).get_ticket(session.ticket_id)
    try:
        spec = frozen_in(ticket, TaskSpec)
    except VerificationError:
        return
    folder = await locate(tools, ticket, spec, session.session_id)
    entries = await tools.audit.entries(session.session_id)
    ended = newest(entries, EntryKind.SESSION_END)
    # A cancellation wins over an end that was written, and never took effect.
    if not folder.exists or (ended and (ended.meta or {}).get("status") == session.status):
        return
    canceled = session.status == "canceled"
    by_hand = ticket.status is TicketStatus.RESOLVED  # by a person, while the session waited
    text = CANCELED if canceled and not by_hand else session.outcome_summary or session.status
    await write_files(tools, ticket, spec, folder, entries, None, "canceled" if canceled else "failed", text)


def task_result(
    tools: SessionTools,
    ticket: Ticket,
    folder: SessionFolder,
    entries: list[Entry],
    terminal: str,
    ok: bool,
    message: str,
) -> TaskResult:
    """What the execution of a task returns (row B-029): the same as the files say.

    Args:
        terminal: As in ``session_summary.json``.
        ok: Whether it is verified.
        message: Its result, or what became of it.
    """
    message = tools.audit.database.redactor.text(message)
    stats = session_summary(
        entries,
        ticket=ticket,
        session_id=entries[0].session_id if entries else "",
        terminal_status=terminal,
        result_text=message,
        working_dir=str(folder.path),
        worker_name=tools.settings.worker.name,
    )
    return TaskResult(ok, message, transcript_jsonl(entries), stats)


async def write_files(
    tools: SessionTools,
    ticket: Ticket,
    spec: TaskSpec,
    folder: SessionFolder,
    entries: list[Entry],
    report: ClosureReport | None,
    terminal: str,
    text: str,
) -> None:
    """Write the exports. They are copies of what the journal says: a full disk must not keep a ticket from its end."""
    delivered = newest(entries, EntryKind.DELIVERED)
    try:
        await asyncio.to_thread(
            export_all,
            folder,
            ticket=ticket,
            spec=spec,
            session_id=entries[0].session_id if entries else "",
            entries=entries,
            report=report,
            terminal_status=terminal,
            result_text=tools.audit.database.redactor.text(text),
            worker_name=tools.settings.worker.name,
            version=__version__,
            history=str(delivered.body["history"]) if delivered else "",
        )
    except OperatorError as error:
        tools.say(f"[Task] {error}")

"""How the newest attempt at a ticket stands: its closure report, what it asks, and where its files are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from operator_core.cli.hints import command
from operator_core.model.entry import EntryKind

if TYPE_CHECKING:
    from operator_core.db.engine import Database

__all__ = ["Closing", "closing_of", "question_about_a_call"]


_ATTEMPTS = 100


class Closing(NamedTuple):
    """What the journal of the newest session says.

    Attributes:
        headline: The result in one sentence.
        markdown: The whole report.
        report: The same as data.
        question: What a session that waits for input wants to know.
        folder: The session folder of this attempt, on the machine of its worker.
    """

    session_id: str
    headline: str | None = None
    markdown: str | None = None
    report: dict[str, Any] | None = None
    question: str | None = None
    folder: str | None = None


def question_about_a_call(told: str, approval_id: str) -> str:
    """What a ticket asks that waits for a word on a call, and how to say it here.

    Args:
        told: What its journal says: who is asked about what, and why.
        approval_id: At least the first eight characters of it.
    """
    said, which = told.rstrip("."), approval_id[:8]
    yes, no = command(f"approvals approve {which}"), command(f"approvals deny {which} --note TEXT")
    return f"{said[:1].upper()}{said[1:]}; answer with `{yes}` or `{no}`."


async def closing_of(database: Database, ticket_id: int) -> Closing | None:
    """The newest attempt at a ticket; None: nobody has worked on it yet."""
    from operator_core.db.audit_log import AuditLogDB
    from operator_core.db.journal_reading import JournalReading

    audit = AuditLogDB(database)
    found = [session.session_id for session in await audit.sessions(limit=_ATTEMPTS, ticket_id=ticket_id)]
    judged = await JournalReading(database).judged_by(found)
    # A second look at finished work is no attempt.
    newest = next((session_id for session_id in found if session_id not in judged), None)
    if newest is None:
        return None
    closing = Closing(newest)
    kinds = [kind.value for kind in (EntryKind.BASELINE, EntryKind.OUTCOME, EntryKind.REPORT, EntryKind.APPROVAL)]
    for entry in await audit.entries(closing.session_id, kinds=kinds):
        data = entry.body if isinstance(entry.body, dict) else {}
        if entry.entry_type == EntryKind.REPORT:
            headline = str(data.get("headline") or entry.content)
            closing = closing._replace(headline=headline, markdown=entry.raw_content, report=data or None)
        elif entry.entry_type == EntryKind.OUTCOME:
            asked = (entry.meta or {}).get("outcome") == "blocked"
            closing = closing._replace(question=(entry.raw_content or entry.content) if asked else None)
        elif entry.entry_type == EntryKind.APPROVAL:
            asked = data.get("event") == "asked"
            which = str(data.get("approval", "ID"))
            closing = closing._replace(question=question_about_a_call(entry.content, which) if asked else None)
        elif isinstance(data.get("folder"), str):
            closing = closing._replace(folder=data["folder"])
    return closing

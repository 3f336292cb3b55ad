"""One session: what it is about, where it stands, and a window of its entries."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Text, bindparam, select
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.api.listing import count_now
from operator_core.api.models import EntryPage, EntryView, LiveOutput, SessionDetail, Tick
from operator_core.api.views import entry_view, loaded, session_fields
from operator_core.config import Settings
from operator_core.db.board import Board
from operator_core.db.engine import Database
from operator_core.db.journal_reading import JournalReading
from operator_core.db.schema import live_output, tickets
from operator_core.db.usage import UsageTotals
from operator_core.errors import NotFound
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus

__all__ = ["read_entries", "read_session", "read_ticks", "unknown_session"]

_WRITING_TOOLS = ("file_write", "file_edit", "Write", "Edit", "MultiEdit", "NotebookEdit")
_TICKS = tuple(
    kind.value
    for kind in (
        EntryKind.PHASE_START,
        EntryKind.SESSION_START,
        EntryKind.VERDICT,
        EntryKind.ERROR,
        EntryKind.NOTE,
        EntryKind.RETRY,
        EntryKind.RESUMED,
        EntryKind.SNAPSHOT,
        EntryKind.DELIVERED,
        EntryKind.OUTCOME,
    )
)
_LIVE = select(live_output).where(live_output.c.session_id == bindparam("session", type_=Text))
_SPEC = select(tickets.c.check_spec, tickets.c.session_id, tickets.c.status).where(tickets.c.id == bindparam("ticket"))


def unknown_session(session_id: str) -> NotFound:
    """The error that says so."""
    return NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")


async def read_entries(
    database: Database,
    session_id: str,
    *,
    after: int,
    limit: int,
    kinds: Collection[str] | None,
    phase: str | None,
    max_chars: int,
    bodies: bool,
) -> EntryPage:
    """A window of a journal."""
    journal = JournalReading(database)
    found = await journal.entries(
        session_id, after=after, limit=limit, kinds=kinds, phase=phase, max_chars=max_chars, bodies=bodies
    )
    if found is None:
        raise unknown_session(session_id)
    rows, head, status = found
    items: list[EntryView] = []
    for row in rows:
        long = row.tool_params is None and row.params_chars is not None
        # One by one: the arguments of a call may have any length, and only what is left of them is kept.
        params = await journal.tool_params(row.id) if long else None
        items.append(entry_view(row, params, max_chars))
    return EntryPage(items=items, head=head, ended=status != "running")


async def read_ticks(database: Database, session_id: str, *, limit: int) -> list[Tick]:
    """What stands out in a journal, in order."""
    if await Board(database).session(session_id) is None:
        raise unknown_session(session_id)
    rows = await JournalReading(database).ticks(session_id, _TICKS, limit=limit)
    return [Tick(seq=r.seq, entry_type=r.entry_type, phase=r.phase, exit_code=r.exit_code) for r in rows]


async def read_session(database: Database, settings: Settings, session_id: str) -> SessionDetail:
    """One session; the time this takes does not depend on how long its journal is."""
    row = await Board(database).session(session_id)
    if row is None:
        raise unknown_session(session_id)
    await count_now(database, [row])
    journal = JournalReading(database)
    spent = (await UsageTotals(database).of_sessions([session_id])).get(session_id)
    miles = await journal.milestones(session_id)
    begun = _newest_beginning(await journal.newest(session_id, "phase_start", "session_start", most=4))
    asked = await _asked(database, row)
    report = _first(await journal.newest(session_id, "sandbox_report"))
    sandbox = loaded(report.body) if report is not None else None
    return SessionDetail(
        **session_fields(row, spent, (await journal.judged_by([session_id])).get(session_id)),
        engine=_engine(begun),
        model=begun.get("model"),
        phases=_phases(row, miles, await journal.at(session_id, row.head_seq)),
        sandbox=sandbox if isinstance(sandbox, dict) else None,
        limits=_limits(settings, asked.get("check_spec")),
        turns=spent.calls if spent else 0,
        commands=await journal.calls(session_id),
        context_tokens=_context(await journal.replies(session_id)),
        context_limit=settings.context.limit_tokens,
        question=await question_of(journal, session_id) if asked.get("waits") else None,
        marks=await _marks(journal, session_id, miles),
        live=await _live(database, session_id) if row.status == "running" else None,
    )


async def question_of(journal: JournalReading, session_id: str) -> str | None:
    """What a session that rests wants to know; None: it asks nothing."""
    outcome = _first(await journal.newest(session_id, EntryKind.OUTCOME.value))
    meta = loaded(outcome.meta) if outcome is not None else None
    if outcome is None or not isinstance(meta, dict) or meta.get("outcome") != "blocked":
        return None
    return str(outcome.raw_content or outcome.content)


async def _asked(database: Database, session: Row[Any]) -> dict[str, Any]:
    """What the ticket of a session says about it."""
    if session.ticket_id is None:
        return {}
    ticket = _first(await database.fetch(_SPEC, ticket=session.ticket_id))
    if ticket is None:
        return {}
    waits = ticket.status == TicketStatus.WAITING_FOR_INPUT and ticket.session_id == session.session_id
    return {"check_spec": loaded(ticket.check_spec), "waits": waits}


async def _live(database: Database, session_id: str) -> LiveOutput | None:
    row = _first(await database.fetch(_LIVE, session=session_id))
    if row is None:
        return None
    return LiveOutput(
        tool_use_id=row.tool_use_id, tail=row.tail, total=row.total, updated_at=clock.parse_iso(row.updated_at)
    )


async def _marks(journal: JournalReading, session_id: str, miles: Sequence[Row[Any]]) -> dict[str, int]:
    """Places to jump to.

    ``first_change`` is the first successful result of a tool that writes files, among the first calls; what a command
    changes no journal says. Without one it is the first snapshot of the work, or its delivery.
    """
    marks: dict[str, int] = {}
    written = await journal.first_written(session_id, _WRITING_TOOLS)
    kept = [mile.seq for mile in miles if mile.entry_type in (EntryKind.SNAPSHOT, EntryKind.DELIVERED)]
    if written is not None or kept:
        marks["first_change"] = kept[0] if written is None else written
    wrong = await journal.ticks(session_id, [EntryKind.ERROR.value], limit=1)
    if wrong:
        marks["first_error"] = wrong[0].seq
    for name, kind in (("verdict", EntryKind.VERDICT), ("report", EntryKind.REPORT), ("outcome", EntryKind.OUTCOME)):
        last = [mile.seq for mile in miles if mile.entry_type == kind]
        if last:
            marks[name] = last[-1]
    return marks


def _phases(session: Row[Any], miles: Sequence[Row[Any]], head: Row[Any] | None) -> list[dict[str, Any]]:
    """The phases in the order in which they began; each ends where the next one begins."""
    begun: dict[str, tuple[int, datetime]] = {}
    for mile in miles:
        if mile.phase:
            begun.setdefault(mile.phase, (mile.seq, clock.parse_iso(mile.timestamp)))
    if head is not None and head.phase and head.entry_type != EntryKind.RESUMED:
        begun.setdefault(head.phase, (session.head_seq, clock.parse_iso(head.timestamp)))
    ordered = sorted(begun.items(), key=lambda item: item[1][0])
    ended = clock.parse_iso(session.ended_at) if session.ended_at else None
    phases = []
    for (name, (seq, started)), following in itertools.zip_longest(ordered, ordered[1:]):
        running = following is None and session.status == "running"
        phases.append(
            {
                "phase": name,
                "seq": seq,
                "started_at": started,
                "ended_at": ended if following is None else following[1][1],
                "state": "running" if running else "done",
            }
        )
    return phases


def _limits(settings: Settings, spec: Any) -> dict[str, float]:
    """The limits of this configuration, with the budget that the task brought; a worker elsewhere may have others."""
    limits = settings.limits
    budget = spec.get("budget_usd") if isinstance(spec, dict) else None
    return {
        "turns": limits.turns,
        "tokens": limits.tokens,
        "cost_usd": float(budget) if isinstance(budget, int | float) else limits.cost_usd,
        "wall_clock_s": limits.wall_clock_s,
    }


def _context(replies: Sequence[Row[Any]]) -> int | None:
    """How much of the model's context its newest reply filled."""
    for reply in replies:
        meta = loaded(reply.meta)
        used = meta.get("usage") if isinstance(meta, dict) else None
        if isinstance(used, dict):
            parts = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
            return sum(int(used.get(part) or 0) for part in parts)
    return None


def _engine(begun: dict[str, Any]) -> str | None:
    engine = begun.get("engine")
    return f"{engine} (scripted model)" if begun.get("scripted") is True else engine


def _newest_beginning(rows: Sequence[Row[Any]]) -> dict[str, Any]:
    for row in rows:
        body = loaded(row.body)
        if isinstance(body, dict) and body.get("engine"):
            return body
    return {}


def _first(rows: Sequence[Row[Any]]) -> Row[Any] | None:
    return rows[0] if rows else None

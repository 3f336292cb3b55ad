"""The same commands on a server: what it answers, in the forms in which the commands show what a store holds."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import typer

from operator_core import clock
from operator_core.cli.context import invocation, open_server, open_store

if TYPE_CHECKING:
    from operator_core.api.models import EntryView, SessionView, TicketDetail
    from operator_core.api.protocol import Api
    from operator_core.client import Client
    from operator_core.db.audit_log import AuditLogDB, SessionInfo
    from operator_core.model.entry import Entry

__all__ = ["ServerJournal", "nobody_works_there", "open_journal", "plain_data", "ticket_data"]

_PAGE = 200
_ENTRIES = 500
_WHOLE = 1_000_000


def plain_data(value: Any) -> Any:
    """A shape of the API as JSON has it, with times as the store writes them."""
    if hasattr(value, "model_dump"):
        return plain_data(value.model_dump())
    if isinstance(value, dict):
        return {name: plain_data(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_data(item) for item in value]
    if isinstance(value, datetime):
        return clock.iso(value)
    return value.value if isinstance(value, Enum) else value


def ticket_data(ticket: TicketDetail) -> dict[str, Any]:
    """A ticket as `operator tickets show --json` has it."""
    data: dict[str, Any] = plain_data(ticket)
    report = data.pop("report")
    newest = ticket.attempt and ticket.attempt.session_id
    own = report if report and report["session_id"] == newest else None
    data["closing"] = newest and {
        "session_id": newest,
        "headline": own and own["headline"],
        "markdown": own and own["markdown"],
        "report": (own and own["data"]) or None,
        "question": data["question"] or _call_in_question(ticket),
        "folder": data["folder"],
    }
    data["history"] = [
        {**{name: event[name] for name in ("seq", "at", "kind")}, **_told(event), **event["detail"]}
        for event in data["history"]
    ]
    return data


def _call_in_question(ticket: TicketDetail) -> str | None:
    from operator_core.cli.closing import question_about_a_call

    asked = next((one for one in ticket.approvals if one.state == "pending"), None)
    if asked is None:
        return None
    return question_about_a_call(f"a person is asked about {asked.tool}: {asked.why}", asked.id)


def _told(event: dict[str, Any]) -> dict[str, Any]:
    named = {name: event[name] for name in ("new", "reason", "actor") if event[name] is not None}
    return {"old": event["old"], **named} if "new" in named else named


@asynccontextmanager
async def open_journal(context: typer.Context) -> AsyncIterator[AuditLogDB | ServerJournal]:
    """The journal of the server that ``--server`` names, or of the store of the configuration."""
    if invocation(context).server is not None:
        async with open_server(context) as client:
            yield ServerJournal(client)
        return
    from operator_core.db.audit_log import AuditLogDB

    async with open_store(context) as database:
        yield AuditLogDB(database)


class ServerJournal:
    """The journal of a server, with those methods of :class:`AuditLogDB` that read."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def session(self, session_id: str) -> SessionInfo:
        """One session.

        Raises:
            NotFound: There is none with that id.
        """
        return _session(await self._client.session(session_id))

    async def sessions(self, *, limit: int = 20, ticket_id: int | None = None) -> list[SessionInfo]:
        """Sessions, newest first."""
        found: list[SessionInfo] = []
        cursor: str | None = None
        while len(found) < limit:
            some = min(_PAGE, limit - len(found))
            page = await self._client.sessions(ticket_id=ticket_id, limit=some, cursor=cursor)
            found += map(_session, page.items)
            cursor = page.next
            if cursor is None:
                break
        return found

    async def entries(self, session_id: str, *, after: int = -1, kinds: Collection[str] | None = None) -> list[Entry]:
        """The entries of a session behind ``after``."""
        found: list[Entry] = []
        while True:
            page = await self._client.entries(
                session_id, after=after, limit=_ENTRIES, kinds=kinds, max_chars=_WHOLE, bodies=True
            )
            found += [_entry(session_id, view) for view in page.items]
            if len(page.items) < _ENTRIES:
                return found
            after = page.items[-1].seq


async def nobody_works_there(api: Api, pinned_to: str | None) -> str | None:
    """The sentence that says that no worker is there which could take the ticket; None: there is one."""
    from operator_core.api.staffing import nobody_for

    return nobody_for(await api.workers(), pinned_to)


def _session(view: SessionView) -> SessionInfo:
    from operator_core.db.audit_log import SessionInfo

    return SessionInfo(
        view.session_id,
        view.ticket_id,
        view.status,
        clock.iso(view.started_at),
        None if view.ended_at is None else clock.iso(view.ended_at),
        view.outcome_summary,
        view.invariant_name,
        view.kind,
        view.entries,
    )


def _entry(session_id: str, view: EntryView) -> Entry:
    from operator_core.model.entry import Entry

    return Entry(
        id=0,
        session_id=session_id,
        seq=view.seq,
        entry_type=view.entry_type,
        content=view.content,
        raw_content=view.raw_content,
        tool_name=view.tool_name,
        tool_params=view.tool_params,
        exit_code=view.exit_code,
        timestamp=clock.iso(view.timestamp),
        tool_use_id=view.tool_use_id,
        phase=view.phase,
        fence=view.fence,
        body=view.body,
        meta=view.meta,
        prev_hash=view.prev_hash,
        hash=view.hash,
    )

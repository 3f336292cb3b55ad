"""The audit: the end of the chain, its check, what was done by whom, and exports of each session."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path as FilePath
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, Response
from fastapi.responses import StreamingResponse

from operator_core.api.models import AuditView
from operator_core.db import ledger
from operator_core.db.audit_log import AuditLogDB, SessionInfo
from operator_core.errors import ConfigError, NotFound
from operator_core.model.entry import Entry, EntryKind
from operator_core.web.pages.session import SessionId
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render
from operator_core.work.transcript import entry_dict, transcript_head, transcript_part

__all__ = ["router"]

ACTS = 50
_SESSIONS = 25
_PAGE = 200
_CONVERSATION = 20_000
_NEWEST = 2**62
_TYPES = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "markdown": "text/markdown; charset=utf-8",
    "report": "text/markdown; charset=utf-8",
}
_ENDINGS = {"markdown": "md", "report": "report.md"}

Session = Annotated[str, Query(max_length=100, pattern=r"^[\w.:-]*$")]
Form_ = Literal["json", "jsonl", "markdown", "report"]

router = APIRouter(include_in_schema=False)


@router.get("/audit")
async def audit(
    request: Request,
    session: Session = "",
    before: Annotated[int, Query(ge=0, le=_NEWEST)] = _NEWEST,
    cursor: str | None = None,
) -> Response:
    """The end of the chain; its check is a button, because it reads everything."""
    return await _page(request, session, before=before, cursor=cursor)


@router.post("/audit/verify")
async def verify(
    request: Request, session: Annotated[str, Form(max_length=100, pattern=r"^[\w.:-]*$")] = ""
) -> Response:
    """Check the chain, or that of one session, and say what was found."""
    try:
        result = await api_of(request).audit(session_id=session or None)
    except NotFound as error:
        return await _page(request, session, problem=str(error), status=404)
    return await _page(request, session, result=result)


@router.get("/sessions/{session_id}/export/{form}")
async def export(request: Request, session_id: SessionId, form: Form_) -> Response:
    """A session as a file, as ``operator audit export`` makes it."""
    log = AuditLogDB(site_of(request).database)
    session = await log.session(session_id)
    parts: AsyncIterator[str]
    if form == "jsonl":
        parts = _lines(log, session_id)
    elif form == "markdown":
        parts = _transcript(log, session)
    elif form == "report":
        found = await log.entries(session_id, kinds=[EntryKind.REPORT])
        page = found[-1].raw_content if found else None
        if page is None:
            raise NotFound(f"Session {session_id} has no closure report (it is {session.status}); export its journal.")
        parts = _one(page)
    else:
        if session.entries > _CONVERSATION:
            raise ConfigError(f"This session has {session.entries:,} entries, too many for one document; use jsonl.")
        entries = await log.entries(session_id)
        parts = _one(await asyncio.to_thread(_conversation, session_id, entries))
    name = f"{session_id.replace(':', '_')}.{_ENDINGS.get(form, form)}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    encoded = (part.encode("utf-8", "backslashreplace") async for part in parts)
    return StreamingResponse(encoded, media_type=_TYPES[form], headers=headers)


async def _page(
    request: Request,
    session: str,
    *,
    before: int = _NEWEST,
    cursor: str | None = None,
    result: AuditView | None = None,
    problem: str | None = None,
    status: int = 200,
) -> Response:
    database = site_of(request).database
    seq, digest = await ledger.head(database)
    acts = await ledger.recent_rows(database, before=before, limit=ACTS)
    return render(
        request,
        "audit.html",
        status=status,
        head_seq=seq,
        head_hash=digest,
        acts=acts,
        older=acts[-1].seq if acts and acts[-1].seq > 0 else None,
        newest=before >= _NEWEST,
        sessions=await api_of(request).sessions(limit=_SESSIONS, cursor=cursor),
        session=session,
        result=result,
        problem=problem,
    )


async def _each(log: AuditLogDB, session_id: str) -> AsyncIterator[Entry]:
    after = -1
    while entries := await log.entries(session_id, after=after, limit=_PAGE):
        for entry in entries:
            yield entry
        after = entries[-1].seq


async def _lines(log: AuditLogDB, session_id: str) -> AsyncIterator[str]:
    async for entry in _each(log, session_id):
        yield json.dumps(entry_dict(entry), ensure_ascii=False) + "\n"


async def _transcript(log: AuditLogDB, session: SessionInfo) -> AsyncIterator[str]:
    facts = {
        "ticket": f"#{session.ticket_id} {session.invariant_name or ''}".strip() if session.ticket_id else None,
        "state": session.status,
        "started": session.started_at,
        "ended": session.ended_at,
        "entries": session.entries,
        "outcome": session.outcome_summary,
    }
    yield "\n".join(transcript_head(session.session_id, facts)) + "\n"
    async for entry in _each(log, session.session_id):
        if lines := list(transcript_part(entry)):
            yield "\n".join(lines) + "\n"


async def _one(text: str) -> AsyncIterator[str]:
    yield text


def _conversation(session_id: str, entries: list[Entry]) -> str:
    from operator_core.agent_lab.audit import SessionAuditor

    with tempfile.TemporaryDirectory(prefix="operator-export-") as folder:
        path = SessionAuditor.from_entries(FilePath(folder), session_id, entries).save_session()
        return path.read_text(encoding="utf-8") + "\n"

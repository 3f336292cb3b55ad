"""One entry of a journal, whole: its text in parts, its arguments, its payload, its hashes, and its files."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from operator_core.api.models import EntryView
from operator_core.api.protocol import Api
from operator_core.db.audit_log import AuditLogDB
from operator_core.errors import NotFound
from operator_core.model.entry import EntryKind
from operator_core.web.pages.session import SessionId
from operator_core.web.site import api_of, site_of
from operator_core.web.steps import output_of, steps_of
from operator_core.web.templates import render

__all__ = ["router"]

PART = 50_000
_ALL = 20_000_000
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SAVE = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}

Seq = Annotated[int, Path(ge=0, le=2**31 - 1)]

router = APIRouter(include_in_schema=False)


@router.get("/sessions/{session_id}/entries/{seq}")
async def entry(
    request: Request, session_id: SessionId, seq: Seq, part: Annotated[int, Query(ge=0, le=10_000)] = 0
) -> Response:
    """The entry, with one part of its text."""
    api = api_of(request)
    found = await _read(api, session_id, seq, bodies=True)
    (step,) = await steps_of(api, session_id, [found])
    texts = _texts(found)
    parts = max(1, -(-max((len(text) for _, text in texts), default=1) // PART))
    part = min(part, parts - 1)
    return render(
        request,
        "entry.html",
        s=step,
        e=found,
        session_id=session_id,
        head=(await api.entries(session_id, after=seq, limit=1, max_chars=1)).head,
        texts=[(name, text[part * PART : (part + 1) * PART], len(text)) for name, text in texts],
        part=part,
        parts=parts,
        files=_files(found),
    )


@router.get("/sessions/{session_id}/entries/{seq}/text")
async def text(request: Request, session_id: SessionId, seq: Seq) -> Response:
    """Its text as a file, exactly as it is stored."""
    found = await _read(api_of(request), session_id, seq)
    data = (found.raw_content or found.content).encode("utf-8", "backslashreplace")
    return Response(data, media_type="text/plain; charset=utf-8", headers=_saved(session_id, seq, "txt"))


@router.get("/sessions/{session_id}/entries/{seq}/files/{name}")
async def file(
    request: Request, session_id: SessionId, seq: Seq, name: Annotated[str, Path(pattern=r"^\w{1,40}$")]
) -> Response:
    """A long output that the entry refers to, whole."""
    found = await _read(api_of(request), session_id, seq)
    digest = (found.meta or {}).get(f"{name}_blob")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise NotFound(f"Entry {seq} has no file {name}; its page lists those that it has.")
    chunks: AsyncIterator[bytes] = AuditLogDB(site_of(request).database).read_blob(digest)
    headers = _saved(session_id, seq, f"{name}.txt")
    return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)


def _saved(session_id: str, seq: int, ending: str) -> dict[str, str]:
    name = re.sub(r"[^\w.-]", "_", f"{session_id}-{seq}.{ending}", flags=re.ASCII)
    return {**_SAVE, "Content-Disposition": f'attachment; filename="{name}"'}


async def _read(api: Api, session_id: str, seq: int, *, bodies: bool = False) -> EntryView:
    page = await api.entries(session_id, after=seq - 1, limit=1, max_chars=_ALL, bodies=bodies)
    if not page.items or page.items[0].seq != seq:
        raise NotFound(f"Session {session_id} has no entry {seq}; its last one is {page.head}.")
    return page.items[0]


def _texts(found: EntryView) -> list[tuple[str, str]]:
    if found.entry_type == EntryKind.TOOL_RESULT:
        output = output_of(found)
        pairs = [("Output", output.text), ("Errors", output.error)]
        return [(name, text) for name, text in pairs if text] or [("Output", "")]
    return [("Text", found.raw_content)] if found.raw_content else []


def _files(found: EntryView) -> list[tuple[str, Any]]:
    """Name and size of each long output beside the journal."""
    meta = found.meta or {}
    names = [key.removesuffix("_blob") for key in meta if key.endswith("_blob")]
    return [(name, meta.get(f"{name}_bytes")) for name in names if re.fullmatch(r"\w{1,40}", name)]

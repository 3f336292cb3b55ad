"""A session step by step: what was known at any moment, with a scrubber over its journal."""

from __future__ import annotations

from typing import NamedTuple

from fastapi import APIRouter, Request, Response

from operator_core.api.models import Tick
from operator_core.model.entry import EntryKind
from operator_core.web.pages.session import CHARS, At, SessionId
from operator_core.web.site import api_of
from operator_core.web.steps import steps_of
from operator_core.web.templates import render

__all__ = ["router"]

BEFORE = 40
WIDTH = 1000
_TICKS = 10_000

router = APIRouter(include_in_schema=False)


class Mark(NamedTuple):
    """One line of the strip: where (0 to 1000) and what."""

    x: int
    look: str


@router.get("/sessions/{session_id}/replay")
async def replay(request: Request, session_id: SessionId, at: At | None = None) -> Response:
    """The journal up to one entry; without a choice, up to the first."""
    api = api_of(request)
    found = await api.session(session_id)
    head = found.entries - 1
    here = max(0, min(at if at is not None else 0, head))
    page = (
        await api.entries(session_id, after=max(-1, here - BEFORE), limit=BEFORE, max_chars=CHARS)
        if head >= 0
        else None
    )
    steps = await steps_of(api, session_id, [e for e in page.items if e.seq <= here]) if page else []
    return render(
        request, "replay.html", s=found, session_id=session_id, steps=steps, at=here, head=head, speeds=(1, 5, 20, 50)
    )


@router.get("/sessions/{session_id}/replay/ticks")
async def ticks(request: Request, session_id: SessionId) -> Response:
    """The strip above the scrubber: phases, failures, verdicts, what people said."""
    api = api_of(request)
    found = await api.ticks(session_id, limit=_TICKS)
    head = (await api.entries(session_id, limit=1, max_chars=1)).head
    partial = len(found) == _TICKS
    return render(request, "replay_ticks.html", marks=_marks(found, head), partial=partial, width=WIDTH)


def _marks(found: list[Tick], head: int) -> list[Mark]:
    """At most one line for each kind and place; those that say more are painted later, over the others."""
    order = ("phase", "note", "fail", "error", "verdict")
    marks = {Mark(round(WIDTH * tick.seq / max(1, head)), look) for tick in found if (look := _look(tick))}
    return sorted(marks, key=lambda mark: (order.index(mark.look), mark.x))


def _look(tick: Tick) -> str | None:
    match tick.entry_type:
        case EntryKind.PHASE_START | EntryKind.SESSION_START | EntryKind.RESUMED:
            return "phase"
        case EntryKind.NOTE:
            return "note"
        case EntryKind.ERROR | EntryKind.RETRY:
            return "error"
        case EntryKind.VERDICT:
            return "verdict"
    return "fail" if tick.exit_code else None

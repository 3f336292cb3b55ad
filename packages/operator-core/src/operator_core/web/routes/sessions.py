"""``/api/v1/sessions``: what agents did, in parts, and while it happens."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field

from operator_core.api.models import EntryPage, Page, SessionDetail, SessionView, Tick
from operator_core.web.access import still_allowed
from operator_core.web.event_stream import EventSource, EventStream
from operator_core.web.live import Feeds
from operator_core.web.routes.parameters import LARGEST, PREFIX, TEXT, Cursor, Limit, SessionId, problems
from operator_core.web.shapes import answer
from operator_core.web.site import actor_of, api_of, site_of

__all__ = ["router"]

router = APIRouter(prefix=PREFIX, tags=["sessions"])

LastEventId = Annotated[
    int | None,
    Header(alias="Last-Event-ID", ge=-1, le=LARGEST, description="The last `id` that was read; wins over `after`."),
]

_STREAM: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
}


@router.get("/sessions", response_model=Page[SessionView], responses=problems())
async def list_sessions(
    request: Request,
    ticket_id: Annotated[int | None, Query(ge=1, le=LARGEST, description="Only those of this ticket.")] = None,
    status: Annotated[
        Literal["running", "completed", "failed", "escalated", "canceled"] | None, Query(description="In this state.")
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Sessions, newest first."""
    return answer(await api_of(request).sessions(ticket_id=ticket_id, status=status, limit=limit, cursor=cursor))


@router.get("/sessions/{session_id}", response_model=SessionDetail, responses=problems(404))
async def show_session(request: Request, session_id: SessionId) -> Response:
    """One session: phases, limits and what it has spent, its sandbox, and what its running command prints."""
    return answer(await api_of(request).session(session_id))


@router.get("/sessions/{session_id}/entries", response_model=EntryPage, responses=problems(404))
async def entries(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=-1, le=LARGEST, description="Those behind this sequence number.")] = -1,
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 200,
    kind: Annotated[
        list[Annotated[str, Field(pattern=r"^[a-z_]{1,40}$")]], Query(description="Only these kinds.", max_length=40)
    ] = [],  # noqa: B006
    phase: Annotated[str | None, Query(min_length=1, max_length=100, pattern=TEXT)] = None,
    max_chars: Annotated[int, Query(ge=1, le=1_000_000, description="Longer texts are cut, and say so.")] = 20_000,
    bodies: Annotated[bool, Query(description="Also the exact messages to and from the model.")] = False,
) -> Response:
    """The journal of a session, by sequence number."""
    return answer(
        await api_of(request).entries(
            session_id,
            after=after,
            limit=limit,
            kinds=kind or None,
            phase=phase,
            max_chars=max_chars,
            bodies=bodies,
        )
    )


@router.get("/sessions/{session_id}/ticks", response_model=list[Tick], responses=problems(404))
async def ticks(
    request: Request,
    session_id: SessionId,
    limit: Annotated[int, Query(ge=1, le=10_000, description="At most so many.")] = 2000,
) -> Response:
    """What stands out in a journal: errors, verdicts, beginnings of phases, what people said."""
    return answer(await api_of(request).ticks(session_id, limit=limit))


@router.get(
    "/sessions/{session_id}/stream", response_class=Response, responses={**_STREAM, **problems(404)}, tags=["live"]
)
async def stream(
    request: Request,
    session_id: SessionId,
    after: Annotated[int, Query(ge=-1, le=LARGEST, description="Those behind this sequence number.")] = -1,
    last_event_id: LastEventId = None,
) -> Response:
    """A session while it happens, as server-sent events.

    `entry` (its id is the sequence number), `output` (what the running command printed last), `state` (a part of the
    session) and, when nothing will follow, `end`. Resumed with `Last-Event-ID` nothing is missing and nothing is there
    twice.
    """
    place = after if last_event_id is None else last_event_id
    source = await _feeds(request).session(session_id, place, who=_token_of(request))
    return _streamed(request, source)


@router.get("/stream", response_class=Response, responses={**_STREAM, **problems()}, tags=["live"])
async def board_stream(
    request: Request,
    after: Annotated[int | None, Query(ge=-1, le=LARGEST, description="Changes behind this number.")] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Tickets that change, as server-sent events.

    `ticket` (`id` of the ticket and `kind` of the change; the event's id is the number in the ledger; without an id: a
    session of it went on), and `reset`: too much was missed, read everything again.
    """
    place = after if last_event_id is None else last_event_id
    return _streamed(request, await _feeds(request).board(place, who=_token_of(request)))


def _feeds(request: Request) -> Feeds:
    feeds = site_of(request).feeds
    assert isinstance(feeds, Feeds)
    return feeds


def _token_of(request: Request) -> str:
    """Logins count with their token: whoever has one could make any number of them."""
    return actor_of(request).token_id or ""


def _streamed(request: Request, source: EventSource) -> EventStream:
    return EventStream(source, still_valid=lambda: still_allowed(request))

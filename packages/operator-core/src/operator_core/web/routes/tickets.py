"""``/api/v1/tickets``: look at tickets, and decide about them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from operator_core.api.models import Page, ReportView, TicketDetail, TicketView, VerdictView
from operator_core.errors import ConfigError
from operator_core.model.task import MAX_PROMPT
from operator_core.model.ticket import TicketKind, TicketStatus
from operator_core.web.idempotent import IdempotencyKey, once
from operator_core.web.routes.parameters import PREFIX, TEXT, Cursor, Limit, TicketId, Wanted, problems
from operator_core.web.shapes import answer
from operator_core.web.site import api_of

__all__ = ["CheckView", "router"]

router = APIRouter(prefix=PREFIX, tags=["tickets"])

_LABEL = r"^[^=\x00]{1,100}=[^\x00]{0,200}$"


class CheckView(BaseModel):
    """What counts as the proof of a ticket, and what was decided about it."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    ticket_id: int
    check_spec: dict[str, Any] | None
    """Frozen when the ticket opened, without what looks secret in it; None: nothing can be proved."""
    check_hash: str | None
    """SHA-256 (hex) of it, with nothing left out."""
    verdicts: list[VerdictView]
    """Newest first."""


class Message(Wanted):
    """What a person says to a session."""

    text: str = Field(min_length=1, max_length=MAX_PROMPT, pattern=TEXT)


class Cancellation(Wanted):
    """How a ticket is canceled."""

    now: bool = False
    """Do not wait for a good moment: kill what it runs."""


_WAIT = Cancellation()


class Hold(Wanted):
    """Whether workers are kept away from a ticket."""

    held: bool


class SecondLook(Wanted):
    """How finished work is judged again."""

    checks_only: bool = False
    """Without the verifier agent, and so without a model."""


_ALL_OF_IT = SecondLook()


class Resolution(Wanted):
    """Why a person says that it is done."""

    reason: str = Field(min_length=1, max_length=20_000, pattern=TEXT)


@router.get("/tickets", response_model=Page[TicketView], responses=problems())
async def list_tickets(
    request: Request,
    status: Annotated[list[TicketStatus], Query(description="Only those in one of these states.", max_length=10)] = [],  # noqa: B006
    kind: Annotated[TicketKind | None, Query(description="Only those of this kind.")] = None,
    severity: Annotated[Literal["critical", "warning", "info"] | None, Query()] = None,
    label: Annotated[
        list[Annotated[str, Field(pattern=_LABEL)]], Query(description="`name=value`; all of them.", max_length=10)
    ] = [],  # noqa: B006
    needs_me: Annotated[bool, Query(description="Only those that need a person.")] = False,
    search: Annotated[str, Query(max_length=200, pattern=TEXT, description="Words, `#12`, or `label=value`.")] = "",
    order: Annotated[Literal["attention", "newest"], Query()] = "newest",
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """Tickets, newest first; in the order `attention` those first that need a person, then those that run."""
    labels: dict[str, str] = {}
    for pair in label:
        name, _, value = pair.partition("=")
        if labels.setdefault(name, value) != value:
            raise ConfigError(f"No ticket has two values of the label {name!r}; ask for one of them.")
    return answer(
        await api_of(request).tickets(
            status=status,
            kind=kind,
            severity=severity,
            label=labels,
            needs_me=needs_me,
            search=search,
            order=order,
            limit=limit,
            cursor=cursor,
        )
    )


@router.get("/tickets/{ticket_id}", response_model=TicketDetail, responses=problems(404))
async def show_ticket(request: Request, ticket_id: TicketId) -> Response:
    """One ticket with its story: report, verdicts, sessions, history."""
    return answer(await api_of(request).ticket(ticket_id))


@router.get("/tickets/{ticket_id}/report", response_model=ReportView, responses=problems(404))
async def report(request: Request, ticket_id: TicketId) -> Response:
    """The closure report of its newest attempt that has one."""
    return answer(await api_of(request).report(ticket_id))


@router.get("/tickets/{ticket_id}/checks", response_model=CheckView, responses=problems(404))
async def checks(request: Request, ticket_id: TicketId) -> Response:
    """What counts as its proof, and the verdicts."""
    ticket = await api_of(request).ticket(ticket_id)
    return answer(
        CheckView(
            ticket_id=ticket.id,
            check_spec=ticket.check_spec,
            check_hash=ticket.check_hash,
            verdicts=ticket.verdicts,
        )
    )


@router.post("/tickets/{ticket_id}/reply", response_model=TicketDetail, responses=problems(404, 409, 413))
async def reply(request: Request, ticket_id: TicketId, message: Message, key: IdempotencyKey = None) -> Response:
    """Answer the question of a session that waits for input; it goes on where it was."""

    async def act() -> Response:
        return answer(await api_of(request).reply(ticket_id, message.text, key=key))

    return await once(request, key, message, act)


@router.post("/tickets/{ticket_id}/steer", response_model=TicketDetail, responses=problems(404, 409, 413))
async def steer(request: Request, ticket_id: TicketId, message: Message, key: IdempotencyKey = None) -> Response:
    """Say something to a session that works; it reads it before its next step."""

    async def act() -> Response:
        return answer(await api_of(request).steer(ticket_id, message.text, key=key))

    return await once(request, key, message, act)


@router.post("/tickets/{ticket_id}/cancel", response_model=TicketDetail, responses=problems(404, 409, 413))
async def cancel(request: Request, ticket_id: TicketId, how: Cancellation = _WAIT) -> Response:
    """Cancel it and stop its session; that wins over any late result."""
    return answer(await api_of(request).cancel(ticket_id, now=how.now))


@router.post("/tickets/{ticket_id}/hold", response_model=TicketDetail, responses=problems(404, 409, 413))
async def hold(request: Request, ticket_id: TicketId, how: Hold) -> Response:
    """Keep workers away from it, or give it back to them."""
    return answer(await api_of(request).hold(ticket_id, how.held))


@router.post("/tickets/{ticket_id}/reopen", response_model=TicketDetail, responses=problems(404, 409, 413))
async def reopen(request: Request, ticket_id: TicketId) -> Response:
    """Give a closed or escalated ticket to the workers again."""
    return answer(await api_of(request).reopen(ticket_id))


@router.post("/tickets/{ticket_id}/verify", response_model=TicketDetail, responses=problems(404, 409, 413))
async def verify(
    request: Request, ticket_id: TicketId, how: SecondLook = _ALL_OF_IT, key: IdempotencyKey = None
) -> Response:
    """Ask that finished work be judged again: a worker does it in its sandbox, and the ticket stays as it is.

    `second_looks` of the ticket says what becomes of it.
    """

    async def act() -> Response:
        return answer(await api_of(request).verify(ticket_id, checks_only=how.checks_only, key=key))

    return await once(request, key, how, act)


@router.post("/tickets/{ticket_id}/resolve", response_model=TicketDetail, responses=problems(404, 409, 413))
async def resolve(request: Request, ticket_id: TicketId, resolution: Resolution) -> Response:
    """Say that it is done; recorded as resolved by hand, not as proved."""
    return answer(await api_of(request).resolve(ticket_id, resolution.reason))

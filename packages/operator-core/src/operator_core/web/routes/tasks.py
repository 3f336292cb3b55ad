"""``POST /api/v1/tasks`` and ``/incidents``: work for the agents, from people and programs elsewhere."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Request, Response
from pydantic import Field

from operator_core.api.models import TicketDetail
from operator_core.api.submission import MAX_FILES, TaskFile
from operator_core.model.task import MAX_PROMPT, TaskEngine, TaskProfile
from operator_core.web.idempotent import IdempotencyKey, once
from operator_core.web.routes.parameters import LARGEST, PREFIX, TEXT, Wanted, problems
from operator_core.web.shapes import answer
from operator_core.web.site import api_of

__all__ = ["IncidentRequest", "TaskRequest", "router"]

router = APIRouter(prefix=PREFIX, tags=["tickets"])


_LINE = r"^[ -~]*[!-~][ -~]*$"

Words = Annotated[str, Field(min_length=1, max_length=20_000, pattern=TEXT)]
Line = Annotated[str, Field(min_length=1, max_length=255, pattern=_LINE)]
Path = Annotated[str, Field(min_length=1, max_length=1000, pattern=r"^[^\x00]+$")]
Priority = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]


class TaskRequest(Wanted):
    """A task: what is to be done, where it begins, and what counts as its proof."""

    prompt: str = Field(min_length=1, max_length=MAX_PROMPT, pattern=TEXT)
    """What is to be done."""
    name: Annotated[str, Field(min_length=1, max_length=300, pattern=TEXT)] | None = None
    """Short, for people; default: the first line of the prompt."""
    repo: Annotated[str, Field(min_length=1, max_length=2000, pattern=_LINE)] | None = None
    """Address of a git repository (``https://``, ``ssh://``). A path on the server only from an admin."""
    ref: Line | None = None
    """Branch, tag or commit; default: the repository's own."""
    checks: list[Words] = Field(default=[], max_length=100)
    """Commands that end with 0 when the work is right."""
    files: list[TaskFile] = Field(default=[], max_length=MAX_FILES)
    """Files that the checks need; frozen now, and restored before each check."""
    allow_change: list[Path] = Field(default=[], max_length=1000)
    """Test files that the work may change."""
    engine: TaskEngine | None = None
    model: Line | None = None
    budget_usd: float | None = Field(default=None, gt=0, le=1e6)
    """Over all phases."""
    max_iterations: int | None = Field(default=None, ge=1, le=10)
    profile: TaskProfile = "shraga"
    """``shraga``: checks and a verifier agent; ``operator``: checks only."""
    network: Literal["none", "allowlist", "host"] = "none"
    """Of the commands and checks; ``host`` only from an admin."""
    allow_hosts: list[Line] = Field(default=[], max_length=100)
    """For ``allowlist``."""
    priority: Priority = 0
    """Higher ones are worked on first."""
    pinned_to: Line | None = None
    """Name of the only worker that may take it."""


class IncidentRequest(Wanted):
    """Something that is wrong."""

    name: str = Field(min_length=1, max_length=300, pattern=TEXT)
    """What it is about, in a word."""
    message: Words
    """What is wrong, for the agent and for people."""
    severity: Literal["critical", "warning", "info"] = "warning"
    context: Annotated[str, Field(max_length=20_000, pattern=TEXT)] | None = None
    """What the agent should know of the system."""
    invariant: Line | None = None
    """The configured invariant that a repair must restore; without one nothing can be proved."""
    subject: Line | None = None
    """The configured system that it is about."""
    labels: dict[
        Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^=\x00]+$")],
        Annotated[str, Field(max_length=200, pattern=TEXT)],
    ] = Field(default={}, max_length=50)
    priority: Priority = 0


@router.post("/tasks", status_code=201, response_model=TicketDetail, responses=problems(409, 413))
async def submit(request: Request, task: TaskRequest, key: IdempotencyKey = None) -> Response:
    """Submit a task. It is done when its checks and a verifier say so."""

    async def act() -> Response:
        options = task.model_dump(exclude={"prompt"}, exclude_none=True)
        return _made(await api_of(request).submit(task.prompt, key=key, **options))

    return await once(request, key, task, act)


@router.post("/incidents", status_code=201, response_model=TicketDetail, responses=problems(409, 413))
async def open_incident(request: Request, incident: IncidentRequest, key: IdempotencyKey = None) -> Response:
    """Open an incident by hand."""

    async def act() -> Response:
        options = incident.model_dump(exclude={"name", "message"}, exclude_none=True)
        return _made(await api_of(request).open_incident(incident.name, incident.message, key=key, **options))

    return await once(request, key, incident, act)


def _made(ticket: TicketDetail) -> Response:
    return answer(ticket, 201, {"Location": f"{PREFIX}/tickets/{ticket.id}"})

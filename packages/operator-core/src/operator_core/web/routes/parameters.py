"""What the routes of the API are asked with."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict

from operator_core.web.problems import problem_responses

__all__ = ["LARGEST", "PREFIX", "SESSION", "TEXT", "Cursor", "Limit", "SessionId", "TicketId", "Wanted", "problems"]

PREFIX = "/api/v1"
LARGEST = 2**31 - 1
TEXT = r"^[^\x00]*$"
"""Everything that a database can store."""
SESSION = r"^[0-9A-Za-z_.:\-]{1,100}$"

TicketId = Annotated[int, Path(ge=1, le=LARGEST, description="Number of a ticket.")]
SessionId = Annotated[str, Path(pattern=SESSION, description="Id of a session.")]
Limit = Annotated[int, Query(ge=1, le=200, description="At most so many.")]
Cursor = Annotated[str | None, Query(pattern=r"^[A-Za-z0-9_=\-]{1,100}$", description="`next` of the page before.")]


class Wanted(BaseModel):
    """Base of what is sent in a body; what it does not know is refused, and nothing is made of what it is not."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)


def problems(*also: int) -> dict[int | str, dict[str, Any]]:
    """The problems that every route may answer with, and more.

    Args:
        also: Further statuses, e.g. 404.
    """
    return problem_responses(400, 401, 403, 421, 422, 429, 503, *also)

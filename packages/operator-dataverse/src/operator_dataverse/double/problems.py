"""What the service answers when it does not do what was asked: a status, one of its own codes, and a sentence.

The codes are Dataverse's: https://learn.microsoft.com/power-apps/developer/data-platform/reference/web-service-error-codes
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "Problem",
    "bad_payload",
    "bad_query",
    "exists_already",
    "missing_row",
    "missing_segment",
    "no_privilege",
    "out_of_date",
]


class Problem(Exception):
    """An answer of 4xx or 5xx in the form of OData.

    Args:
        status: The HTTP status.
        code: The service's code, such as ``0x80060888``.
        message: One sentence or more.
        headers: Further headers, such as ``Retry-After``.
    """

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})


def bad_query(message: str) -> Problem:
    """The address asks for something that does not exist, or is not OData."""
    return Problem(400, "0x80060888", message)


def bad_payload(entity_set: str, reason: str) -> Problem:
    """The body names an unknown column, or a value of another type."""
    return Problem(
        400,
        "0x80048d19",
        f"Error identified in Payload provided by the user for Entity :'{entity_set}', For more information on this "
        f"error please follow this help link ---->  InnerException : Microsoft.OData.ODataException: {reason}",
    )


def missing_row(logical_name: str, row_id: str) -> Problem:
    """There is no such row."""
    return Problem(404, "0x80040217", f"Entity '{logical_name}' With Id = {row_id} Does Not Exist")


def missing_segment(segment: str) -> Problem:
    """There is no such address."""
    return Problem(404, "0x8006088a", f"Resource not found for the segment '{segment}'.")


def out_of_date() -> Problem:
    """The row has another version than ``If-Match`` says."""
    return Problem(
        412, "0x80060882", "The version of the existing record doesn't match the RowVersion property provided."
    )


def exists_already() -> Problem:
    """``If-None-Match: *`` and the row is there."""
    return Problem(412, "0x80040237", "A record with matching key values already exists.")


def no_privilege(user_id: str, privilege: str, logical_name: str) -> Problem:
    """The account may not do this."""
    return Problem(
        403,
        "0x80040220",
        f"Principal user (Id={user_id}, type=8) is missing prv{privilege}{logical_name} privilege (or the row is not "
        "shared with it).",
    )

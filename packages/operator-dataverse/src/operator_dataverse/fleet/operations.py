"""Long-running operations of a service of Microsoft: begun with one request, asked about until they end.

What is under way is a row of the service and not a state of this process: whoever has the address of an operation can
go on waiting for it after a crash, or on another machine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from operator_core.clock import Clock
from operator_core.text import clip, printable
from operator_dataverse.client import Answer, Http
from operator_dataverse.errors import DataverseError, Throttled

__all__ = ["FAILED", "Operation", "begun", "failure_of", "look", "wait_for"]

FAILED = frozenset({"Failed", "Canceled", "ValidationFailed", "TimedOut", "Skipped"})
"""Ends of an operation that are not what was asked for; ``Succeeded`` is."""

_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 120.0


@dataclass(frozen=True)
class Operation:
    """One operation.

    Attributes:
        url: Where to ask about it; empty: it was over at once.
        status: ``NotStarted``, ``Running``, ``Succeeded``, or one of :data:`FAILED`.
        error: Why it failed; empty: it did not.
        retry_s: When the service wants to be asked again; None: it did not say.
    """

    url: str
    status: str
    error: str = ""
    retry_s: float | None = None

    @property
    def done(self) -> bool:
        """Whether it is over, well or not."""
        return self.status == "Succeeded" or self.status in FAILED


def begun(answer: Answer) -> Operation:
    """The operation that a request began."""
    url = answer.headers.get("Operation-Location") or answer.headers.get("Location") or ""
    if not url or answer.status == 204:
        return Operation("", "Succeeded")
    return Operation(url, "Running", retry_s=_seconds(answer))


async def look(http: Http, url: str) -> Operation:
    """How an operation stands now.

    Raises:
        DataverseError: It could not be looked at; that says nothing about the operation.
    """
    answer = await http.request("GET", url, accept=(404,))
    if answer.status == 404:
        raise DataverseError("The service knows no such operation any more; look at the dev box itself.")
    body = answer.body if isinstance(answer.body, dict) else {}
    status = body.get("status")
    if not isinstance(status, str):
        # Some services answer 202 without a document for as long as it takes.
        status = "Running" if answer.status == 202 else "Succeeded"
    return Operation(url, clip(printable(status), 40), failure_of(body), _seconds(answer))


async def wait_for(
    http: Http,
    operation: Operation,
    *,
    timeout_s: float,
    poll_s: float,
    clock: Clock,
    heard: Callable[[Operation], None] = lambda operation: None,
) -> Operation:
    """Ask about an operation until it is over.

    Args:
        http: The service.
        operation: As :func:`begun` or an earlier look gave it.
        timeout_s: At most so long.
        poll_s: Between two looks, unless the service asks for another pause.
        clock: Time.
        heard: Told what each look found.

    Returns:
        How it ended, well or not.

    Raises:
        Throttled: It is not over yet; it goes on, and can be waited for again by its address.
    """
    deadline = clock.monotonic() + timeout_s
    while not operation.done:
        asked = poll_s if operation.retry_s is None else operation.retry_s
        pause = min(max(asked, min(poll_s, _SHORTEST_PAUSE_S)), _LONGEST_PAUSE_S)
        if clock.monotonic() + pause > deadline:
            raise Throttled(
                f"It is still {operation.status.lower()} after {timeout_s:.0f} s and goes on; "
                f"wait for it with `operator-dataverse devbox wait {operation.url}`."
            )
        await clock.sleep(pause)
        operation = await look(http, operation.url)
        heard(operation)
    return operation


def failure_of(body: Any) -> str:
    """The sentence about a failure in a document of the service; empty: there is none."""
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return ""
    code, message = str(error.get("code") or ""), str(error.get("message") or "")
    return clip(" ".join(printable(f"{code}: {message}" if code and message else code or message).split()), 300)


def _seconds(answer: Answer) -> float | None:
    text = answer.headers.get("Retry-After") or ""
    return float(text) if text.isascii() and text.isdecimal() and len(text) < 6 else None

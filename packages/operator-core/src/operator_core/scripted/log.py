"""The bounded log of what the scripted server was asked; keys never reach it."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from operator_core.clock import iso, now

__all__ = ["LoggedRequest", "RequestLog"]

_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "x-api-key", "cookie"})


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """One request.

    Attributes:
        number: 1 for the first request that the server got.
        at: When it had arrived completely (UTC).
        method: HTTP method.
        path: Path without the query.
        headers: Headers, names in lower case; values of secret ones are ``[redacted]``.
        size: Bytes of the body.
        raw: The body; None if it was refused as too large or has been dropped from the log to keep it bounded.
        model: The model that was asked for; None if the request is no valid model call.
        step: How many assistant messages the history had; None as above.
        attempt: How often the same step was asked for before; None as above.
        stream: Whether an event stream was asked for.
        status: HTTP status of the answer; None while it is in flight and if there was none (``drop:start``).
        fault: What was wrong with the answer on purpose (``drop:mid``, ``truncate``, ``stream_error:...``);
            ``brain: ...`` if the brain raised an exception; ``client gone`` if nobody waited any more; otherwise None.
        stop_reason: Of the reply, if there was one.
        usage: Of the reply, if there was one.
        request_id: The ``request-id`` header of the answer.
    """

    number: int
    at: datetime
    method: str
    path: str
    headers: Mapping[str, str]
    size: int
    raw: bytes | None
    request_id: str
    model: str | None = None
    step: int | None = None
    attempt: int | None = None
    stream: bool = False
    status: int | None = None
    fault: str | None = None
    stop_reason: str | None = None
    usage: Mapping[str, Any] | None = None

    @property
    def body(self) -> dict[str, Any] | None:
        """The body as JSON object; parsed at each access. None if it is not one or was dropped from the log."""
        try:
            value = json.loads(self.raw or b"null")
        except ValueError:
            return None
        return value if isinstance(value, dict) else None

    def to_json(self, *, body: bool = True) -> dict[str, Any]:
        """A JSON object with the fields above; ``raw`` is left out, ``body`` is parsed (or left out)."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name not in ("raw", "at")}
        fields |= {"at": iso(self.at), "headers": dict(self.headers)}
        return fields | ({"body": self.body} if body else {})


class RequestLog:
    """Keeps the last requests; safe to read from other threads.

    Args:
        max_requests: How many requests are kept (default 5,000).
        max_body_bytes: How many bytes of bodies are kept (default 64 MiB); older requests lose their body first.
    """

    def __init__(self, max_requests: int = 5_000, max_body_bytes: int = 64 * 2**20) -> None:
        self._max_requests = max_requests
        self._max_body_bytes = max_body_bytes
        self._entries: dict[int, LoggedRequest] = {}
        self._bodies: dict[int, int] = {}
        self._body_bytes = 0
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many requests there were, also those that are not kept any more."""
        return self._count

    def add(
        self, method: str, path: str, headers: Mapping[str, str], raw: bytes | None, size: int, request_id: str
    ) -> int:
        """Note a request that has arrived; returns its number."""
        shown = {k.lower(): "[redacted]" if k.lower() in _SECRET_HEADERS else v for k, v in headers.items()}
        with self._lock:
            self._count += 1
            number = self._count
            self._entries[number] = LoggedRequest(number, now(), method, path, shown, size, raw, request_id)
            if raw is not None:
                self._bodies[number] = len(raw)
                self._body_bytes += len(raw)
            while len(self._entries) > self._max_requests:
                oldest = next(iter(self._entries))
                self._body_bytes -= self._bodies.pop(oldest, 0)
                del self._entries[oldest]
            while self._body_bytes > self._max_body_bytes:
                oldest = next(iter(self._bodies))
                self._body_bytes -= self._bodies.pop(oldest)
                self._entries[oldest] = replace(self._entries[oldest], raw=None)
        return number

    def update(self, number: int, **changes: Any) -> None:
        """Change fields of a request, if it is still kept."""
        with self._lock:
            entry = self._entries.get(number)
            if entry is not None:
                self._entries[number] = replace(entry, **changes)

    def requests(self) -> list[LoggedRequest]:
        """The requests that are kept, oldest first."""
        with self._lock:
            return list(self._entries.values())

    def model_calls(self, model_prefix: str | None = None) -> list[LoggedRequest]:
        """The valid calls of ``/v1/messages``, of all models or of those whose id begins so; oldest first."""
        return [r for r in self.requests() if r.model is not None and r.model.startswith(model_prefix or "")]

    def clear(self) -> None:
        """Forget the requests; numbers go on."""
        with self._lock:
            self._entries.clear()
            self._bodies.clear()
            self._body_bytes = 0

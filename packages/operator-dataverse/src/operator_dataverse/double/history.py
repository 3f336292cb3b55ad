"""What was asked of the double and what it did, in order: the evidence that tests read and print."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

__all__ = ["Effect", "History", "Request"]

_MAX_SHOWN = 60


@dataclass(frozen=True)
class Effect:
    """A change of one row.

    Attributes:
        kind: What happened.
        table: Entity set.
        row_id: The row.
        version: Its version after that (0: it is gone).
        old: The values that the changed columns had.
        new: The values they have now.
    """

    kind: Literal["created", "updated", "deleted"]
    table: str
    row_id: str
    version: int
    old: Mapping[str, Any] = field(default_factory=dict)
    new: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Request:
    """A request and its answer.

    Attributes:
        seq: Its number, from 1.
        at: When it arrived, on the double's clock.
        method: ``GET`` …
        path: With the query, percent-decoded.
        table: Entity set; empty when it is about no table.
        headers: Lower case; without the token.
        body: The JSON body, or None.
        user: E-mail address of the account; empty when it was refused.
        status: Of the answer; 0 when the connection was dropped.
        over: The answer was given, or the connection dropped.
        fault: The fault that was played; empty when none was.
        effects: What it changed.
    """

    seq: int
    at: datetime
    method: str
    path: str
    table: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Any = None
    user: str = ""
    status: int = 0
    over: bool = False
    fault: str = ""
    effects: list[Effect] = field(default_factory=list)

    @property
    def unconditional(self) -> bool:
        """It could have overwritten what somebody else wrote: an upsert or a delete that names no version."""
        conditions = {"if-match", "if-none-match"} & self.headers.keys()
        return bool(self.table) and self.method in ("PATCH", "DELETE") and not conditions

    def __str__(self) -> str:
        parts = [f"{self.seq:5}", self.at.strftime("%H:%M:%S.%f")[:-3], f"{self.method:6}", _cut(self.path, 120)]
        if match := self.headers.get("if-match"):
            parts.append(f"If-Match: {match}")
        if none := self.headers.get("if-none-match"):
            parts.append(f"If-None-Match: {none}")
        parts.append(f"-> {self.status or 'connection dropped'}")
        if self.fault:
            parts.append(f"[{self.fault}]")
        for effect in self.effects:
            changes = ", ".join(
                f"{name}: {_cut(repr(effect.old.get(name)))} -> {_cut(repr(value))}"
                for name, value in effect.new.items()
            )
            parts.append(f"{effect.kind} v{effect.version} {{{changes}}}")
        return " ".join(parts)


class History:
    """The requests so far, oldest first. Safe to read from another thread than the one that serves."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self._lock = threading.Lock()

    def begin(self, at: datetime, method: str, path: str, headers: Mapping[str, str]) -> Request:
        """Note that a request arrived."""
        kept = {name: value for name, value in headers.items() if name != "authorization"}
        with self._lock:
            request = Request(len(self._requests) + 1, at, method, path, headers=kept)
            self._requests.append(request)
        return request

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests())

    def __len__(self) -> int:
        return len(self._requests)

    def requests(
        self, method: str | None = None, table: str | None = None, containing: str = "", since: int = 0
    ) -> list[Request]:
        """Those of this method, table, text in the path, and number above ``since``."""
        with self._lock:
            requests = self._requests[since:]
        return [
            request
            for request in requests
            if method in (None, request.method) and table in (None, request.table) and containing in request.path
        ]

    def ended(self, since: int = 0) -> list[Request]:
        """Those after number ``since`` that are over, up to the first one that is not."""
        return list(itertools.takewhile(lambda request: request.over, self.requests(since=since)))

    def effects(self, table: str | None = None, row_id: str | None = None, kind: str | None = None) -> list[Effect]:
        """Changes of this table, row and kind, in the order in which they happened."""
        found = [effect for request in self for effect in request.effects]
        return [
            effect
            for effect in found
            if table in (None, effect.table) and row_id in (None, effect.row_id) and kind in (None, effect.kind)
        ]

    def values(self, table: str, row_id: str, column: str) -> list[Any]:
        """Every value that this column of this row was given, in order, without repetitions next to each other."""
        values: list[Any] = []
        for effect in self.effects(table, row_id):
            if column in effect.new and (not values or values[-1] != effect.new[column]):
                values.append(effect.new[column])
        return values

    def unconditional(self) -> list[Request]:
        """Writes that named no version, and so could overwrite what somebody else wrote."""
        return [request for request in self if request.unconditional]

    def text(self, limit: int = 200) -> str:
        """The last ``limit`` requests, a line each."""
        requests = self.requests()
        lines = [str(request) for request in requests[-limit:]]
        if len(requests) > limit:
            lines.insert(0, f"… {len(requests) - limit} requests before these")
        return "\n".join(lines)

    def clear(self) -> None:
        """Forget all of them."""
        with self._lock:
            self._requests.clear()


def _cut(text: str, most: int = _MAX_SHOWN) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"

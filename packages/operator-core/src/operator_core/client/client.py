"""The product on a server elsewhere: :class:`operator_core.api.protocol.Api` over HTTP."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from pydantic import BaseModel, TypeAdapter

from operator_core import clock
from operator_core.api.models import (
    ApprovalView,
    AuditView,
    Board,
    CostRow,
    EntryPage,
    EntryView,
    InvariantView,
    Page,
    ReportView,
    SessionDetail,
    SessionView,
    Tick,
    TicketDetail,
    TicketView,
    WorkerView,
)
from operator_core.api.submission import TaskFile
from operator_core.client.events import StreamEvent
from operator_core.client.http import Http
from operator_core.errors import ConfigError, StoreUnavailable
from operator_core.model.digest import Digest
from operator_core.model.person import Role
from operator_core.text import clip, printable

__all__ = ["Client"]

_API = "/api/v1"
_MOST_FILE = 4_000_000
_AGAIN_S = (0.5, 1.0, 2.0, 5.0)


class _Me(BaseModel):
    role: Role


_ME = TypeAdapter(_Me)
_TICKET = TypeAdapter(TicketDetail)
_APPROVALS = TypeAdapter(list[ApprovalView])
_WORKERS = TypeAdapter(list[WorkerView])


class Client:
    """A server; closed by ``async with``.

    Args:
        url: Its address: ``https://…``, or ``http://…`` on this machine.
        token: Who asks (`operator token create`).
        timeout_s: Of one request, in seconds.

    Raises:
        ConfigError: The address or the token is not usable.
    """

    def __init__(self, url: str, token: str, *, timeout_s: float = 60.0) -> None:
        self._http = Http(url, token, timeout_s=timeout_s)

    @property
    def url(self) -> str:
        """Its address."""
        return self._http.url

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    # ---- reading

    async def role(self) -> Role:
        """What its token may do there."""
        return (await self._http.get(f"{_API}/me", _ME)).role

    async def board(self) -> Board:
        """As :meth:`~operator_core.api.protocol.Api.board`."""
        return await self._http.get(f"{_API}/board", TypeAdapter(Board))

    async def tickets(
        self,
        *,
        status: Collection[str] = (),
        kind: str | None = None,
        severity: str | None = None,
        label: Mapping[str, str] | None = None,
        needs_me: bool = False,
        search: str = "",
        order: Literal["attention", "newest"] = "newest",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TicketView]:
        """As :meth:`~operator_core.api.protocol.Api.tickets`; ``limit`` is at most 200."""
        params = {
            "status": list(status),
            "kind": kind,
            "severity": severity,
            "label": [f"{name}={value}" for name, value in (label or {}).items()],
            "needs_me": needs_me,
            "search": search or None,
            "order": order,
            "limit": limit,
            "cursor": cursor,
        }
        return await self._http.get(f"{_API}/tickets", TypeAdapter(Page[TicketView]), params)

    async def ticket(self, ticket_id: int) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.ticket`."""
        return await self._http.get(f"{_API}/tickets/{ticket_id}", _TICKET)

    async def report(self, ticket_id: int) -> ReportView:
        """As :meth:`~operator_core.api.protocol.Api.report`."""
        return await self._http.get(f"{_API}/tickets/{ticket_id}/report", TypeAdapter(ReportView))

    async def sessions(
        self, *, ticket_id: int | None = None, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[SessionView]:
        """As :meth:`~operator_core.api.protocol.Api.sessions`; ``limit`` is at most 200."""
        params = {"ticket_id": ticket_id, "status": status, "limit": limit, "cursor": cursor}
        return await self._http.get(f"{_API}/sessions", TypeAdapter(Page[SessionView]), params)

    async def session(self, session_id: str) -> SessionDetail:
        """As :meth:`~operator_core.api.protocol.Api.session`."""
        return await self._http.get(f"{_API}/sessions/{_part(session_id)}", TypeAdapter(SessionDetail))

    async def entries(
        self,
        session_id: str,
        *,
        after: int = -1,
        limit: int = 200,
        kinds: Collection[str] | None = None,
        phase: str | None = None,
        max_chars: int = 20_000,
        bodies: bool = False,
    ) -> EntryPage:
        """As :meth:`~operator_core.api.protocol.Api.entries`."""
        params = {
            "after": after,
            "limit": limit,
            "kind": list(kinds or ()),
            "phase": phase,
            "max_chars": max_chars,
            "bodies": bodies,
        }
        return await self._http.get(f"{_API}/sessions/{_part(session_id)}/entries", TypeAdapter(EntryPage), params)

    async def ticks(self, session_id: str, *, limit: int = 2000) -> list[Tick]:
        """As :meth:`~operator_core.api.protocol.Api.ticks`."""
        path = f"{_API}/sessions/{_part(session_id)}/ticks"
        return await self._http.get(path, TypeAdapter(list[Tick]), {"limit": limit})

    async def workers(self) -> list[WorkerView]:
        """As :meth:`~operator_core.api.protocol.Api.workers`."""
        return await self._http.get(f"{_API}/workers", _WORKERS)

    async def invariants(self, *, samples: int = 120) -> list[InvariantView]:
        """As :meth:`~operator_core.api.protocol.Api.invariants`."""
        return await self._http.get(f"{_API}/invariants", TypeAdapter(list[InvariantView]), {"samples": samples})

    async def costs(
        self, by: Literal["ticket", "model", "phase", "day"], *, days: int = 30, limit: int = 100
    ) -> list[CostRow]:
        """As :meth:`~operator_core.api.protocol.Api.costs`."""
        params = {"by": by, "days": days, "limit": limit}
        return await self._http.get(f"{_API}/costs", TypeAdapter(list[CostRow]), params)

    async def digest(self, since: datetime) -> Digest:
        """As :meth:`~operator_core.api.protocol.Api.digest`."""
        return await self._http.get(f"{_API}/digest", TypeAdapter(Digest), {"since": clock.iso(since)})

    async def approvals(self, *, pending: bool = True, limit: int = 100) -> list[ApprovalView]:
        """As :meth:`~operator_core.api.protocol.Api.approvals`."""
        return await self._http.get(f"{_API}/approvals", _APPROVALS, {"pending": pending, "limit": limit})

    async def approval(self, approval_id: str) -> ApprovalView:
        """As :meth:`~operator_core.api.protocol.Api.approval`."""
        return await self._http.get(f"{_API}/approvals/{_part(approval_id)}", TypeAdapter(ApprovalView))

    async def audit(self, *, session_id: str | None = None) -> AuditView:
        """As :meth:`~operator_core.api.protocol.Api.audit`."""
        return await self._http.post(f"{_API}/audit/verify", TypeAdapter(AuditView), params={"session_id": session_id})

    # ---- doing

    async def submit(self, prompt: str, *, key: str | None = None, **options: Any) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.submit`.

        Args:
            options: Also ``files``, the check files themselves; files named by ``check_files`` (``PATH=PLACE``, or a
                relative path that is its own place) are read here and sent.

        Raises:
            ConfigError: A check file cannot be sent.
        """
        given = {name: value for name, value in options.items() if value is not None}
        files = [TaskFile.model_validate(file).model_dump() for file in given.pop("files", None) or ()]
        files += await asyncio.to_thread(_read_files, given.pop("check_files", None) or ())
        body = {"prompt": prompt, **{name: _sent(value) for name, value in given.items()}, "files": files}
        return await self._http.post(f"{_API}/tasks", _TICKET, body, key=key or clock.new_id())

    async def open_incident(
        self,
        name: str,
        message: str,
        *,
        severity: str = "warning",
        context: str | None = None,
        invariant: str | None = None,
        subject: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        key: str | None = None,
    ) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.open_incident`."""
        body = {
            "name": name,
            "message": message,
            "severity": severity,
            "context": context,
            "invariant": invariant,
            "subject": subject,
            "labels": dict(labels or {}),
            "priority": priority,
        }
        return await self._http.post(f"{_API}/incidents", _TICKET, body, key=key or clock.new_id())

    async def reply(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.reply`."""
        return await self._act(ticket_id, "reply", {"text": text}, key=key or clock.new_id())

    async def steer(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.steer`."""
        return await self._act(ticket_id, "steer", {"text": text}, key=key or clock.new_id())

    async def cancel(self, ticket_id: int, *, now: bool = False) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.cancel`."""
        return await self._act(ticket_id, "cancel", {"now": now})

    async def reopen(self, ticket_id: int) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.reopen`."""
        return await self._act(ticket_id, "reopen")

    async def verify(self, ticket_id: int, *, checks_only: bool = False, key: str | None = None) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.verify`."""
        return await self._act(ticket_id, "verify", {"checks_only": checks_only}, key=key or clock.new_id())

    async def resolve(self, ticket_id: int, reason: str) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.resolve`."""
        return await self._act(ticket_id, "resolve", {"reason": reason})

    async def hold(self, ticket_id: int, held: bool) -> TicketDetail:
        """As :meth:`~operator_core.api.protocol.Api.hold`."""
        return await self._act(ticket_id, "hold", {"held": held})

    async def decide(self, approval_id: str, approve: bool, *, note: str = "") -> ApprovalView:
        """As :meth:`~operator_core.api.protocol.Api.decide`."""
        path = f"{_API}/approvals/{_part(approval_id)}/decision"
        return await self._http.post(path, TypeAdapter(ApprovalView), {"approve": approve, "note": note})

    async def drain(self, worker_id: str, draining: bool) -> Sequence[WorkerView]:
        """As :meth:`~operator_core.api.protocol.Api.drain`."""
        return await self._http.post(f"{_API}/workers/{_part(worker_id)}/drain", _WORKERS, {"draining": draining})

    # ---- live

    async def stream(self, session_id: str, after: int = -1) -> AsyncIterator[StreamEvent]:
        """What a session does, from the entry behind ``after`` on, until it ends.

        A connection that breaks is made again, and goes on exactly where it was: no entry is missing, none comes twice.

        Raises:
            NotFound: There is no such session.
            ConfigError: The token is not valid (any more).
        """
        path, seen = f"{_API}/sessions/{_part(session_id)}/stream", after
        async for event in self._events(path, after):
            if event.entry is not None:
                if event.entry.seq <= seen:
                    continue
                seen = event.entry.seq
            yield event
            if event.kind == "end":
                return

    async def changes(self, after: int | None = None) -> AsyncIterator[StreamEvent]:
        """The tickets that change, for ever; ``reset``: too much was missed, so read everything again."""
        async for event in self._events(f"{_API}/stream", after):
            yield event

    async def _events(self, path: str, after: int | None) -> AsyncIterator[StreamEvent]:
        failed, met = 0, False
        while True:
            try:
                async with self._http.stream(path, {"after": after}) as source:
                    met = True
                    async for sent in source:
                        failed = 0
                        number = int(sent.id) if sent.id.isascii() and sent.id.isdigit() else None
                        fresh = number is not None and number != after
                        after = number if number is not None else after
                        if not sent.data:
                            continue
                        try:
                            made = _stream_event(sent.event, number if fresh else None, sent.data)
                        except ValueError:
                            raise self._http.strange() from None
                        yield made
                        if sent.event == "end":
                            return
            except StoreUnavailable:
                # A server that was never there, or stays away, is told; one that starts again is waited for.
                if not met or failed >= 2 * len(_AGAIN_S):
                    raise
            await asyncio.sleep(_AGAIN_S[min(failed, len(_AGAIN_S) - 1)])
            failed += 1

    async def _act(
        self, ticket_id: int, what: str, body: Mapping[str, Any] | None = None, *, key: str | None = None
    ) -> TicketDetail:
        return await self._http.post(f"{_API}/tickets/{ticket_id}/{what}", _TICKET, body, key=key)


def _stream_event(kind: str, number: int | None, text: str) -> StreamEvent:
    data = json.loads(text)
    entry = EntryView.model_validate(data) if kind == "entry" else None
    return StreamEvent(kind, number, data, entry)


def _part(word: str) -> str:
    """One part of a path: nothing in it can lead elsewhere."""
    return quote(word, safe="") if word.strip(".") else quote(word, safe="").replace(".", "%2E")


def _sent(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    return list(value) if isinstance(value, (tuple, set, frozenset)) else value


def _read_files(given: Iterable[str]) -> list[dict[str, Any]]:
    return [_read_file(str(item)) for item in given]


def _read_file(item: str) -> dict[str, Any]:
    path, place = Path(item).expanduser(), ""
    if "=" in item and not path.exists():
        head, _, place = item.rpartition("=")
        path = Path(head).expanduser()
    shown = clip(printable(str(path)), 120)
    plain = not path.is_absolute() and ".." not in path.parts
    try:
        found = path.stat()
        mode = found.st_mode
        if not stat.S_ISREG(mode):
            raise ConfigError(f"{shown!r} cannot be a check file (it is no plain file); give one.")
        if found.st_size > _MOST_FILE:
            raise ConfigError(f"{shown!r} is too large to be sent; put it into the repository.")
        content = path.read_bytes().decode()
    except OSError as error:
        raise ConfigError(f"{shown!r} cannot be a check file ({error.strerror}); give a plain file.") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"{shown!r} is no UTF-8 text; a server takes text only, so put it in the repository."
        ) from None
    return {
        "path": place or (path.as_posix() if plain else path.name),
        "content": content,
        "executable": bool(mode & stat.S_IXUSR),
    }

"""``AuditLogDB``: the append-only, hash-chained journal of every session."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, bindparam, insert, select, union_all, update
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.sql.dml import Insert, ReturningInsert

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.queue import Claim, Message, WorkQueue
from operator_core.db.schema import agent_log_entries, agent_sessions, blob_chunks, tickets
from operator_core.db.ticket_rows import close_session_row
from operator_core.errors import Fenced, NotFound, StoreError, StoreUnavailable, TransitionRefused
from operator_core.model.entry import ENTRY_VERSION, GENESIS, Draft, Entry, EntryKind, entry_hash, stored_json
from operator_core.redaction import Redactor

__all__ = ["SESSION_STATUSES", "AuditLogDB", "Journal", "SessionInfo"]

SESSION_STATUSES = ("running", "completed", "failed", "escalated", "canceled")
_STATUS_ALIASES = {"resolved": "completed"}
_RETRY_S = 10.0
_JUST_NOW_S = 0.05
_CHUNK = 512 * 1024
# Signatures and encrypted thinking are opaque to us: a character changed in them would break the conversation.
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}

_COLUMNS = (
    "session_id",
    "entry_type",
    "content",
    "raw_content",
    "tool_name",
    "tool_params",
    "exit_code",
    "timestamp",
    "created_at",
    "v",
    "seq",
    "phase",
    "tool_use_id",
    "fence",
    "body",
    "meta",
    "prev_hash",
    "hash",
)
_INTEGERS = frozenset({"exit_code", "v", "seq", "fence"})

_INSERT_SESSION = insert(agent_sessions)
_TIE = (
    update(tickets)
    .where(tickets.c.id == bindparam("ticket", type_=Integer))
    .values(session_id=bindparam("session", type_=Text))
)
_STILL_OURS = select(tickets.c.session_id).where(
    tickets.c.id == bindparam("ticket", type_=Integer),
    tickets.c.fence == bindparam("own_fence", type_=Integer),
    tickets.c.status == "running",
)
_SESSION = select(agent_sessions).where(agent_sessions.c.session_id == bindparam("session"))
_SESSIONS = (
    select(agent_sessions, tickets.c.invariant_name, tickets.c.kind)
    .join(tickets, tickets.c.id == agent_sessions.c.ticket_id, isouter=True)
    .order_by(agent_sessions.c.id.desc())
    .limit(bindparam("limit", type_=Integer))
)
_ENTRIES = (
    select(agent_log_entries)
    .where(agent_log_entries.c.session_id == bindparam("session"), agent_log_entries.c.seq > bindparam("after"))
    .order_by(agent_log_entries.c.seq)
)
_HEAD = select(agent_sessions.c.head_seq, agent_sessions.c.head_hash, agent_sessions.c.status).where(
    agent_sessions.c.session_id == bindparam("session")
)
_SUMMARIZE = (
    update(agent_log_entries)
    .where(agent_log_entries.c.id == bindparam("entry", type_=Integer))
    .values(content=bindparam("summary", type_=Text))
    .returning(agent_log_entries.c.id)
)
_CHUNKS = select(blob_chunks.c.data).where(blob_chunks.c.digest == bindparam("digest")).order_by(blob_chunks.c.n)


@lru_cache(maxsize=64)
def _append_statement(n: int, fenced: bool) -> Insert | ReturningInsert[Any]:
    """An insert of n rows that inserts nothing unless the claim still holds; built once for each n.

    The fence is in the statement itself, and on PostgreSQL the ticket's row is locked FOR SHARE, so that no later owner
    can have claimed and read the journal before this write is there.
    """
    if not fenced:
        return insert(agent_log_entries)
    owner = (
        select(tickets.c.id)
        .where(
            tickets.c.id == bindparam("own_ticket", type_=Integer),
            tickets.c.fence == bindparam("own_fence", type_=Integer),
            tickets.c.status == "running",
        )
        .with_for_update(read=True)
        .cte("owner")
    )
    rows = [
        select(*(bindparam(f"{c}_{i}", type_=Integer() if c in _INTEGERS else Text()) for c in _COLUMNS)).select_from(
            owner
        )
        for i in range(n)
    ]
    source = rows[0] if n == 1 else union_all(*rows)
    return (
        insert(agent_log_entries)
        .from_select(list(_COLUMNS), source)
        .returning(agent_log_entries.c.seq, agent_log_entries.c.id)
    )


class SessionInfo(NamedTuple):
    """One session as listed; times are ISO 8601 (UTC)."""

    session_id: str
    ticket_id: int | None
    status: str
    started_at: str
    ended_at: str | None
    outcome_summary: str | None
    invariant_name: str | None
    kind: str | None
    entries: int


class AuditLogDB(StoreClient):
    """Sessions and their journal.

    Args:
        where: An open :class:`Database`, or a path or URL that this object then opens and closes itself::

            async with AuditLogDB("operator.db") as audit:
                session_id = await audit.create_session(ticket_id)
    """

    # ---- the seed's methods

    async def create_session(
        self,
        ticket_id: int | None,
        *,
        claim: Claim | None = None,
        wanted: str | None = None,
        within: Callable[[AsyncConnection, str], Awaitable[None]] | None = None,
    ) -> str:
        """Start a session with status ``running``.

        Args:
            claim: The claim it belongs to; the ticket then points at the session. A claim has one session: called
                again, because the answer of the first call was lost, this gives the same one.
            wanted: For an explorer (:mod:`operator_core.db.explorers`).
            within: Done in the same transaction, with the session's id; an error of it makes no session.

        Returns:
            The session's id, ``{timestamp}-{uuid8}``.

        Raises:
            Fenced: The claim is no longer ours.
        """
        session_id = clock.new_session_id()
        now = clock.iso()
        row = {"session_id": session_id, "ticket_id": ticket_id, "status": "running", "started_at": now}
        row["wanted"] = wanted
        async with self.database.begin() as c:
            if claim is not None:
                ours = {"ticket": ticket_id, "own_fence": claim.fence}
                found = (await c.execute(_STILL_OURS.with_for_update(), ours)).first()
                if found is None:
                    raise Fenced
                if found.session_id is not None:
                    return str(found.session_id)
                await c.execute(_TIE, {"ticket": ticket_id, "session": session_id})
            await c.execute(_INSERT_SESSION, {**row, "created_at": now})
            if within is not None:
                await within(c, session_id)
            await ledger.append(
                self.database,
                c,
                "session_opened",
                ticket_id=ticket_id,
                session_id=session_id,
                started_at=now,
                fence=claim.fence if claim else None,
            )
        return session_id

    async def log_entry(
        self,
        session_id: str,
        entry_type: str,
        content: str,
        raw_content: str | None = None,
        tool_name: str | None = None,
        tool_params: dict[str, Any] | None = None,
        exit_code: int | None = None,
    ) -> int:
        """Append one entry outside any claim (a standalone audit); returns the row's id.

        Raises:
            NotFound: There is no such session.
            TransitionRefused: The session is closed.
        """
        draft = Draft(entry_type, content, raw_content, tool_name, tool_params, exit_code)
        async with self.database.begin() as c:
            head = (await c.execute(_HEAD.with_for_update(), {"session": session_id})).first()
            if head is None:
                raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
            _refuse_closed(session_id, head.status)
            row = self._rows(session_id, [draft], head.head_seq + 1, head.head_hash, None)[0]
            result = await c.execute(_append_statement(1, False).returning(agent_log_entries.c.id), row)
            return int(result.scalar_one())

    async def complete_session(self, session_id: str, status: str, outcome_summary: str) -> None:
        """Close a session; closing it twice changes nothing.

        Args:
            status: One of :data:`SESSION_STATUSES`; the seed's ``resolved`` is stored as ``completed``.
        """
        status = _STATUS_ALIASES.get(status, status)
        if status not in SESSION_STATUSES:
            raise StoreError(f"{status!r} is no session status; use one of {', '.join(SESSION_STATUSES)}.")
        async with self.database.begin() as c:
            closed = await close_session_row(self.database, c, session_id, status, outcome_summary)
            if not closed and (await c.execute(_SESSION, {"session": session_id})).first() is None:
                raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")

    async def get_session_entries(self, session_id: str) -> list[dict[str, Any]]:
        """All rows of a session as dictionaries of column values, in the order in which things happened."""
        rows = await self.database.fetch(_ENTRIES, session=session_id, after=-1)
        return [{**row._mapping, "tool_params": _load(row.tool_params)} for row in rows]

    # ---- reading

    async def get_entries_by_timerange(self, start: datetime, end: datetime) -> list[dict[str, Any]]:
        """Entries of all sessions with ``start <= timestamp < end``, oldest first."""
        rows = await self.database.fetch(
            select(agent_log_entries)
            .where(agent_log_entries.c.timestamp >= clock.iso(start), agent_log_entries.c.timestamp < clock.iso(end))
            .order_by(agent_log_entries.c.timestamp, agent_log_entries.c.id)
        )
        return [{**row._mapping, "tool_params": _load(row.tool_params)} for row in rows]

    async def entries(
        self, session_id: str, *, after: int = -1, kinds: Collection[str] | None = None, limit: int | None = None
    ) -> list[Entry]:
        """The journal of a session from the entry behind ``after`` (a sequence number) on.

        Args:
            kinds: Only entries of these kinds; None: all.
            limit: At most so many; None: all.
        """
        statement = _ENTRIES if kinds is None else _ENTRIES.where(agent_log_entries.c.entry_type.in_(kinds))
        if limit is not None:
            statement = statement.limit(limit)
        return [_entry(r) for r in await self.database.fetch(statement, session=session_id, after=after)]

    async def session(self, session_id: str) -> SessionInfo:
        """One session.

        Raises:
            NotFound: There is none with that id.
        """
        found = await self.sessions(limit=1, session_id=session_id)
        if not found:
            raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
        return found[0]

    async def sessions(
        self, *, limit: int = 20, ticket_id: int | None = None, session_id: str | None = None
    ) -> list[SessionInfo]:
        """Sessions, newest first."""
        statement = _SESSIONS
        if ticket_id is not None:
            statement = statement.where(agent_sessions.c.ticket_id == ticket_id)
        if session_id is not None:
            statement = statement.where(agent_sessions.c.session_id == session_id)
        return [
            SessionInfo(
                r.session_id,
                r.ticket_id,
                r.status,
                r.started_at,
                r.ended_at,
                r.outcome_summary,
                r.invariant_name,
                r.kind,
                r.head_seq + 1,
            )
            for r in await self.database.fetch(statement, limit=limit)
        ]

    # ---- writing

    async def journal(self, session_id: str, claim: Claim | None = None) -> Journal:
        """The writer of a session's journal; there is one for each claim.

        Raises:
            NotFound: There is no such session.
        """
        rows = await self.database.fetch(_HEAD, session=session_id)
        if not rows:
            raise NotFound(f"There is no session {session_id}; list them with `operator sessions list`.")
        return Journal(self, session_id, claim, rows[0].head_seq + 1, rows[0].head_hash)

    async def update_summary(self, entry_id: int, summary: str) -> None:
        """Replace the human-readable summary of an entry; it is the only column that may change."""
        await self.database.one(_SUMMARIZE, entry=entry_id, summary=self.database.redactor.column(summary))

    async def store_blob(self, path: Path) -> str:
        """Store a (redacted) file under its SHA-256; memory use is one chunk.

        Returns:
            The digest (hex).
        """
        with path.open("rb") as file:
            digest = (await asyncio.to_thread(hashlib.file_digest, file, "sha256")).hexdigest()
            if await self.database.fetch(select(blob_chunks.c.n).where(blob_chunks.c.digest == digest).limit(1)):
                return digest
            file.seek(0)
            try:
                async with self.database.begin() as c:
                    n = 0
                    while chunk := file.read(_CHUNK):
                        await c.execute(insert(blob_chunks), {"digest": digest, "n": n, "data": chunk})
                        n += 1
            except IntegrityError:
                pass  # another session stored the same bytes meanwhile
        return digest

    async def read_blob(self, digest: str) -> AsyncIterator[bytes]:
        """The bytes of a blob, chunk by chunk."""
        async with self.database.read() as c:
            async for row in await c.stream(_CHUNKS, {"digest": digest}):
                yield row.data

    def _rows(
        self, session_id: str, drafts: Sequence[Draft], seq: int, prev_hash: str, fence: int | None
    ) -> list[dict[str, Any]]:
        clean = self.database.redactor
        now = clock.iso()
        rows = []
        for draft in drafts:
            row: dict[str, Any] = {
                "session_id": session_id,
                "entry_type": str(draft.kind),
                "content": clean.column(draft.content),
                "raw_content": None if draft.raw_content is None else clean.column(draft.raw_content),
                "tool_name": draft.tool_name,
                "tool_params": _dump(clean.tree(draft.tool_params)),
                "exit_code": draft.exit_code,
                "timestamp": now,
                "created_at": now,
                "v": ENTRY_VERSION,
                "seq": seq,
                "phase": draft.phase,
                "tool_use_id": draft.tool_use_id,
                "fence": fence,
                "body": _dump(_redact_body(clean, draft.body)),
                "meta": _dump(clean.tree(draft.meta)),
                "prev_hash": prev_hash,
            }
            row["hash"] = prev_hash = entry_hash(row)
            seq += 1
            rows.append(row)
        return rows


class Journal:
    """Appends to one session's journal under one claim.

    Attributes:
        session_id: The session.
        claim: Whose fence every write carries; None only outside the work queue.
        phase: Written with every entry that names none itself.
    """

    def __init__(self, audit: AuditLogDB, session_id: str, claim: Claim | None, seq: int, head: str) -> None:
        self.audit = audit
        self.session_id = session_id
        self.claim = claim
        self.phase: str | None = None
        self._seq = seq
        self._head = head or GENESIS
        self._lock = asyncio.Lock()
        self._held_at = float("-inf")

    async def append(self, *drafts: Draft) -> list[int]:
        """Write entries durably and in order, all or none.

        Returns:
            The row ids.

        Raises:
            Fenced: Somebody else owns the ticket now; nothing was written.
            StoreError: The store cannot be written (after trying for 10 seconds if the connection was lost).
        """
        # A cancelled caller must not leave us in doubt whether the entries are there: the write is finished first.
        write = asyncio.ensure_future(self._append(drafts))
        try:
            return await asyncio.shield(write)
        except asyncio.CancelledError:
            await asyncio.wait({write})
            raise

    async def _append(self, drafts: Sequence[Draft]) -> list[int]:
        async with self._lock:
            named = [d if d.phase or not self.phase else _with_phase(d, self.phase) for d in drafts]
            fence = self.claim.fence if self.claim else None
            rows = self.audit._rows(self.session_id, named, self._seq, self._head, fence)
            asked = clock.monotonic()
            ids = await self._write(rows)
            self._held_at = asked
            self._seq += len(rows)
            self._head = rows[-1]["hash"]
            return ids

    async def check(self) -> None:
        """Make sure, right before an effect in the world, that the claim still holds.

        Raises:
            Fenced: Somebody else owns the ticket now.
        """
        claim = self.claim
        # A fenced write that has just succeeded says the same; no lease can have run out and been taken over since.
        if claim is None or clock.monotonic() - self._held_at < _JUST_NOW_S:
            return
        if not await self.audit.database.fetch(_STILL_OURS, ticket=claim.ticket_id, own_fence=claim.fence):
            raise Fenced
        self._held_at = clock.monotonic()

    async def append_with(self, act: Callable[[AsyncConnection, Row[Any]], Awaitable[Sequence[Draft]]]) -> list[Draft]:
        """Change the store and journal it in one transaction under the fence: both or neither.

        Args:
            act: Given the transaction and the locked row of the ticket; returns what to journal.

        Returns:
            What was journaled.

        Raises:
            Fenced: Somebody else owns the ticket now; nothing was written.
        """
        assert self.claim is not None
        database = self.audit.database
        async with self._lock:
            rows: list[dict[str, Any]] = []
            async with database.begin() as c:
                drafts = list(await act(c, await WorkQueue(database).hold_in(c, self.claim)))
                named = [d if d.phase or not self.phase else _with_phase(d, self.phase) for d in drafts]
                if named:
                    rows = self.audit._rows(self.session_id, named, self._seq, self._head, self.claim.fence)
                    await c.execute(insert(agent_log_entries), rows)
            if rows:
                self._seq += len(rows)
                self._head = rows[-1]["hash"]
        return drafts

    async def drain(self) -> tuple[list[Message], int]:
        """Move the inbox into the journal, each message exactly once.

        Returns:
            The messages, and the counter with which the session may park.
        """
        assert self.claim is not None
        database = self.audit.database
        rows: list[dict[str, Any]] = []
        async with self._lock, database.begin() as c:
            messages, wake = await WorkQueue(database).letters(c, self.claim)
            drafts = [
                Draft(
                    EntryKind.NOTE, f"{m.actor} says: {m.text}"[:200], m.text, meta={"actor": m.actor}, phase=self.phase
                )
                for m in messages
            ]
            if drafts:
                rows = self.audit._rows(self.session_id, drafts, self._seq, self._head, self.claim.fence)
                await c.execute(insert(agent_log_entries), rows)
        if rows:
            self._seq += len(rows)
            self._head = rows[-1]["hash"]
        return messages, wake

    async def _write(self, rows: list[dict[str, Any]]) -> list[int]:
        deadline = clock.monotonic() + _RETRY_S
        while True:
            try:
                return await self._write_once(rows)
            except IntegrityError:
                # Our own earlier attempt, whose answer was lost with the connection? Then it is there, word for word.
                stored = await self.audit.entries(self.session_id, after=rows[0]["seq"] - 1)
                if [e.hash for e in stored] == [r["hash"] for r in rows]:
                    return [e.id for e in stored]
                raise Fenced from None
            except StoreUnavailable:
                if clock.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.2)

    async def _write_once(self, rows: list[dict[str, Any]]) -> list[int]:
        database = self.audit.database
        if self.claim is None:
            async with database.begin() as c:
                head = (await c.execute(_HEAD.with_for_update(), {"session": self.session_id})).one()
                _refuse_closed(self.session_id, head.status)
                result = await c.execute(insert(agent_log_entries).returning(agent_log_entries.c.id), rows)
                return [int(r.id) for r in result.all()]
        values = {f"{column}_{i}": row[column] for i, row in enumerate(rows) for column in _COLUMNS}
        done = await database.one(
            _append_statement(len(rows), True),
            own_ticket=self.claim.ticket_id,
            own_fence=self.claim.fence,
            **values,
        )
        if len(done) != len(rows):
            raise Fenced
        return [r.id for r in sorted(done, key=lambda r: r.seq)]


def _refuse_closed(session_id: str, status: str) -> None:
    # Its head is in the ledger: an entry behind it would look like a forgery, and rightly so.
    if status != "running":
        raise TransitionRefused(f"Session {session_id} is {status}; open a new one with `create_session` to add to it.")


def _with_phase(draft: Draft, phase: str) -> Draft:
    return replace(draft, phase=phase)


def _redact_body(clean: Redactor, body: Any) -> Any:
    stored = clean.tree(body)
    if isinstance(body, dict) and body.get("role") == "assistant" and isinstance(body.get("content"), list):
        for block, kept in zip(body["content"], stored["content"], strict=True):
            if (name := _OPAQUE.get(block.get("type"))) in block:
                kept[name] = block[name]
    return stored


def _dump(value: Any) -> str | None:
    return None if value is None else stored_json(value)


def _load(text: str | None) -> Any:
    return None if text is None else json.loads(text)


def _entry(row: Row[Any]) -> Entry:
    return Entry(
        id=row.id,
        session_id=row.session_id,
        seq=row.seq,
        entry_type=row.entry_type,
        content=row.content,
        raw_content=row.raw_content,
        tool_name=row.tool_name,
        tool_params=_load(row.tool_params),
        exit_code=row.exit_code,
        timestamp=row.timestamp,
        tool_use_id=row.tool_use_id,
        phase=row.phase,
        fence=row.fence,
        body=_load(row.body),
        meta=_load(row.meta),
        prev_hash=row.prev_hash,
        hash=row.hash,
    )

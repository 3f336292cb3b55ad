"""``Journal``: the writer of one session's journal, under one claim."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Integer, bindparam, insert, select
from sqlalchemy.engine import Row
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db.claims import Claim, Claims, Message
from operator_core.db.entry_rows import COLUMNS, append_statement, entry_rows
from operator_core.db.schema import agent_log_entries, agent_sessions, tickets
from operator_core.errors import Fenced, StoreUnavailable, TransitionRefused
from operator_core.model.entry import GENESIS, Draft, EntryKind

if TYPE_CHECKING:
    from operator_core.db.audit_log import AuditLogDB

__all__ = ["HEAD", "STILL_OURS", "Journal", "refuse_closed"]

_RETRY_S = 10.0
_JUST_NOW_S = 0.05

STILL_OURS = select(tickets.c.session_id).where(
    tickets.c.id == bindparam("ticket", type_=Integer),
    tickets.c.fence == bindparam("own_fence", type_=Integer),
    tickets.c.status == "running",
)
HEAD = select(agent_sessions.c.head_seq, agent_sessions.c.head_hash, agent_sessions.c.status).where(
    agent_sessions.c.session_id == bindparam("session")
)


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
            rows = entry_rows(self.audit.database.redactor, self.session_id, named, self._seq, self._head, fence)
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
        if not await self.audit.database.fetch(STILL_OURS, ticket=claim.ticket_id, own_fence=claim.fence):
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
                drafts = list(await act(c, await Claims(database).hold_in(c, self.claim)))
                named = [d if d.phase or not self.phase else _with_phase(d, self.phase) for d in drafts]
                if named:
                    rows = entry_rows(
                        database.redactor, self.session_id, named, self._seq, self._head, self.claim.fence
                    )
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
            messages, wake = await Claims(database).letters(c, self.claim)
            drafts = [
                Draft(
                    EntryKind.NOTE, f"{m.actor} says: {m.text}"[:200], m.text, meta={"actor": m.actor}, phase=self.phase
                )
                for m in messages
            ]
            if drafts:
                rows = entry_rows(database.redactor, self.session_id, drafts, self._seq, self._head, self.claim.fence)
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
                head = (await c.execute(HEAD.with_for_update(), {"session": self.session_id})).one()
                refuse_closed(self.session_id, head.status)
                result = await c.execute(insert(agent_log_entries).returning(agent_log_entries.c.id), rows)
                return [int(r.id) for r in result.all()]
        values = {f"{column}_{i}": row[column] for i, row in enumerate(rows) for column in COLUMNS}
        done = await database.one(
            append_statement(len(rows), True),
            own_ticket=self.claim.ticket_id,
            own_fence=self.claim.fence,
            **values,
        )
        if len(done) != len(rows):
            raise Fenced
        return [r.id for r in sorted(done, key=lambda r: r.seq)]


def refuse_closed(session_id: str, status: str) -> None:
    """Nothing is added to a session that has ended.

    Raises:
        TransitionRefused: It is not running.
    """
    # Its head is in the ledger: an entry behind it would look like a forgery, and rightly so.
    if status != "running":
        raise TransitionRefused(f"Session {session_id} is {status}; open a new one with `create_session` to add to it.")


def _with_phase(draft: Draft, phase: str) -> Draft:
    return replace(draft, phase=phase)

"""``operator audit verify``: is the journal what was written, and if not, which row is the first that is wrong?

What is covered, in the order in which problems are named: the ledger's chain and its head; every session that the
ledger knows (it exists, its state is what the ledger says, its entries are a chain without holes up to its head);
blobs; the state of every ticket. Not covered: ``content``, which a better summary may replace, and row numbers.

A chain shows that something was changed by whoever does not rewrite all of it. Whoever may write to the database can
rewrite all of it; only the head, kept elsewhere, then tells (:attr:`AuditReport.head`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Integer, LargeBinary, Text, and_, bindparam, func, select, tuple_
from sqlalchemy.engine import Row
from sqlalchemy.sql import Select

from operator_core.db.blobs import blob_digests
from operator_core.db.chain import Chain, Found, Problem
from operator_core.db.engine import Database
from operator_core.db.ledger import ledger_row_hash
from operator_core.db.schema import (
    agent_log_entries,
    agent_sessions,
    blob_chunks,
    ledger,
    ledger_head,
    tickets,
    triggers,
)
from operator_core.errors import NotFound
from operator_core.model.entry import GENESIS, canonical, entry_hash

__all__ = ["AuditReport", "Problem", "audit", "tombstone_signature", "verify"]

_PAGE = 200
_TRIGGERS = {
    "sqlite": "SELECT name FROM sqlite_master WHERE type = 'trigger'",
    "postgresql": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal AND tgenabled <> 'D'",
}
_CHUNK_PAGE = 8

Values = Mapping[str, Any]


@dataclass(frozen=True)
class AuditReport:
    """The result of :func:`verify`.

    Attributes:
        ok: Nothing is wrong.
        sessions: Sessions looked at.
        entries: Journal rows looked at.
        ledger_rows: Rows of the ledger looked at.
        blobs: Large outputs looked at.
        pruned: Sessions whose journal was deleted by rule, as their tombstones say.
        signatures_checked: Whether the tombstones' signatures were checked, which needs the key.
        head: Hash of the newest ledger row; noted elsewhere, it anchors everything before it.
        problem: The first problem; None when ok.
        append_only: Whether the database itself still refuses to change and delete journal rows. Its triggers are no
            proof, but somebody who removed them had a reason.
    """

    ok: bool
    sessions: int
    entries: int
    ledger_rows: int
    blobs: int
    pruned: int
    signatures_checked: bool
    head: str
    problem: Problem | None
    append_only: bool = True


async def verify(database: Database, *, session_id: str | None = None, key: bytes | None = None) -> AuditReport:
    """Check the whole store as it is at one moment; writers are not stopped, memory is bounded.

    Args:
        session_id: Check the ledger and only this session.
        key: The audit key (:func:`operator_core.db.retention.load_key`), to check the signatures of tombstones.

    Raises:
        NotFound: There is no such session, and the ledger knows of none.
    """
    async with database.read() as connection:
        if not database.sqlite:
            await connection.execution_options(isolation_level="REPEATABLE READ")
        return await connection.run_sync(audit, session_id=session_id, key=key)


def audit(connection: Connection, *, session_id: str | None = None, key: bytes | None = None) -> AuditReport:
    """As :func:`verify`, inside a transaction of the caller."""
    return _Audit(connection, session_id, key).run()


def tombstone_signature(key: bytes, body: Values) -> str:
    """HMAC-SHA256 (hex) over a tombstone's body without its signature."""
    unsigned = {name: value for name, value in body.items() if name != "signature"}
    return hmac.new(key, canonical(unsigned).encode(), hashlib.sha256).hexdigest()


_opened, _closed, _tombstone = (ledger.alias(n) for n in ("opened", "closed", "tombstone"))


def _of_session(row: Any, kind: str) -> Any:
    return and_(row.c.session_id == agent_sessions.c.session_id, row.c.kind == kind)


_LEDGER = select(ledger).where(ledger.c.seq > bindparam("after", type_=Integer)).order_by(ledger.c.seq).limit(_PAGE)
_LEDGER_HEAD = select(ledger_head.c.seq, ledger_head.c.hash)
_LOST_SESSION = (
    select(_opened.c.seq, _opened.c.session_id)
    .join(agent_sessions, agent_sessions.c.session_id == _opened.c.session_id, isouter=True)
    .where(_opened.c.kind == "session_opened", agent_sessions.c.session_id.is_(None))
    .order_by(_opened.c.seq)
)
_LOST_ENTRY = (
    select(agent_log_entries.c.id, agent_log_entries.c.session_id, agent_log_entries.c.seq)
    .join(agent_sessions, agent_sessions.c.session_id == agent_log_entries.c.session_id, isouter=True)
    .where(agent_sessions.c.session_id.is_(None))
    .order_by(agent_log_entries.c.id)
    .limit(1)
)
_SESSIONS = (
    select(
        agent_sessions,
        _opened.c.seq.label("opened_seq"),
        _opened.c.ticket_id.label("opened_ticket"),
        _opened.c.body.label("opened"),
        _closed.c.body.label("closed"),
        _tombstone.c.seq.label("tombstone_seq"),
        _tombstone.c.body.label("tombstone"),
    )
    .join(_opened, _of_session(_opened, "session_opened"), isouter=True)
    .join(_closed, _of_session(_closed, "session_closed"), isouter=True)
    .join(_tombstone, _of_session(_tombstone, "tombstone"), isouter=True)
    .order_by(agent_sessions.c.id)
)
_PAGE_OF_SESSIONS = _SESSIONS.where(agent_sessions.c.id > bindparam("after", type_=Integer)).limit(_PAGE)
_ONE_SESSION = _SESSIONS.where(agent_sessions.c.session_id == bindparam("session", type_=Text))
_ENTRIES = (
    select(*(c for c in agent_log_entries.c if c.name != "content"))
    .where(
        agent_log_entries.c.session_id == bindparam("session", type_=Text),
        agent_log_entries.c.seq > bindparam("after", type_=Integer),
    )
    .order_by(agent_log_entries.c.seq)
    .limit(_PAGE)
)
_HAS_BLOBS = select(blob_chunks.c.digest).where(
    blob_chunks.c.n == 0, blob_chunks.c.digest.in_(bindparam("digests", expanding=True))
)
_CHUNKS = (
    select(blob_chunks.c.digest, blob_chunks.c.n, blob_chunks.c.data.cast(LargeBinary).label("data"))
    .where(
        tuple_(blob_chunks.c.digest, blob_chunks.c.n)
        > tuple_(bindparam("digest", type_=Text), bindparam("after", type_=Integer))
    )
    .order_by(blob_chunks.c.digest, blob_chunks.c.n)
    .limit(_CHUNK_PAGE)
)
_WHO_NAMES = (
    select(agent_log_entries.c.id, agent_log_entries.c.session_id, agent_log_entries.c.seq)
    .where(agent_log_entries.c.meta.contains(bindparam("digest", type_=Text)))
    .order_by(agent_log_entries.c.id)
    .limit(1)
)
_newest = ledger.alias("newest")
_NEWEST_MOVE = (
    select(func.max(_newest.c.seq))
    .where(_newest.c.ticket_id == tickets.c.id, _newest.c.kind == "transition")
    .correlate(tickets)
    .scalar_subquery()
)
_TICKETS = (
    select(tickets.c.id, tickets.c.status, ledger.c.body, ledger.c.seq)
    .select_from(tickets)
    .join(ledger, ledger.c.seq == _NEWEST_MOVE)
    .where(tickets.c.id > bindparam("after", type_=Integer))
    .order_by(tickets.c.id)
    .limit(_PAGE)
)
_LOST_TICKET = (
    select(ledger.c.seq, ledger.c.ticket_id)
    .join(tickets, tickets.c.id == ledger.c.ticket_id, isouter=True)
    .where(ledger.c.kind == "transition", tickets.c.id.is_(None))
    .order_by(ledger.c.seq)
    .limit(1)
)


class _Audit:
    def __init__(self, connection: Connection, session_id: str | None, key: bytes | None) -> None:
        self._connection = connection
        self._only = session_id
        self._key = key
        self.sessions = self.entries = self.ledger_rows = self.blobs = self.pruned = 0
        self.head = GENESIS

    def run(self) -> AuditReport:
        problem = None
        try:
            self._check_ledger()
            self._check_sessions()
            if self._only is None:
                self._check_blobs()
                self._check_tickets()
        except Found as found:
            problem = found.problem
        return AuditReport(
            ok=problem is None,
            sessions=self.sessions,
            entries=self.entries,
            ledger_rows=self.ledger_rows,
            blobs=self.blobs,
            pruned=self.pruned,
            signatures_checked=self._key is not None,
            head=self.head,
            problem=problem,
            append_only=self._append_only(),
        )

    def _append_only(self) -> bool:
        dialect = self._connection.dialect.name
        wanted = {statement.split()[2] for statement in triggers(dialect) if statement.startswith("CREATE TRIGGER")}
        found = self._connection.exec_driver_sql(_TRIGGERS[dialect]).scalars()
        return wanted <= set(found)

    def _fetch(self, statement: Select[Any], **values: Any) -> list[Row[Any]]:
        return list(self._connection.execute(statement, values).all())

    def _pages(self, statement: Select[Any], column: str, after: int, **values: Any) -> Iterator[Row[Any]]:
        while rows := self._fetch(statement, after=after, **values):
            yield from rows
            after = getattr(rows[-1], column)

    def _check_ledger(self) -> None:
        heads = self._fetch(_LEDGER_HEAD)
        if len(heads) != 1:
            raise Found("ledger", None, None, "head mismatch", "The head of the ledger is gone.")
        chain = Chain("ledger", "Ledger row", ledger_row_hash, heads[0].seq + 1)
        for row in self._pages(_LEDGER, "seq", -(2**31)):
            chain.feed(row._asdict())
            self.ledger_rows += 1
        chain.end(heads[0].seq, heads[0].hash, None)
        self.head = chain.head

    def _check_sessions(self) -> None:
        if self._only is not None:
            rows = self._fetch(_ONE_SESSION, session=self._only)
            lost = [] if rows else [r for r in self._fetch(_LOST_SESSION) if r.session_id == self._only]
            if not rows and not lost:
                raise NotFound(f"There is no session {self._only}; list them with `operator sessions list`.")
            sessions: Iterator[Row[Any]] = iter(rows)
        else:
            lost = self._fetch(_LOST_SESSION.limit(1))
            sessions = self._pages(_PAGE_OF_SESSIONS, "id", -1)
        if lost:
            sentence = f"Session {lost[0].session_id} is missing; ledger row {lost[0].seq} says that it was opened."
            raise Found(lost[0].session_id, None, None, "session missing", sentence)
        before = None
        for session in sessions:
            if session.session_id == before:
                raise self._session_problem(session, "session altered", "is opened, closed or pruned twice")
            before = session.session_id
            self._check_session(session)
            self.sessions += 1
        for row in self._fetch(_LOST_ENTRY) if self._only is None else ():
            sentence = f"Entry {row.seq} belongs to session {row.session_id}, which was never opened."
            raise Found(row.session_id, row.seq, row.id, "session unknown", sentence)

    def _session_problem(self, session: Row[Any], what: str, clause: str) -> Found:
        return Found(session.session_id, None, session.id, what, f"Session {session.session_id} {clause}.")

    def _check_session(self, session: Row[Any]) -> None:
        if session.opened_seq is None:
            raise self._session_problem(session, "session unknown", "is in no row of the ledger: nobody opened it")
        anchor = self._check_facts(session)
        if session.tombstone is not None:
            self._check_tombstone(session, anchor)
            return
        where = session.session_id
        chain = Chain(where, f"Session {where}, entry", entry_hash, session.head_seq + 1)
        refs: dict[str, Values] = {}
        for row in self._pages(_ENTRIES, "seq", -(2**31), session=where):
            values = row._asdict()
            chain.feed(values)
            self.entries += 1
            refs |= dict.fromkeys(blob_digests(row.meta), values)
            if len(refs) >= _PAGE:
                self._check_present(refs)
                refs = {}
        self._check_present(refs)
        chain.end(session.head_seq, session.head_hash, anchor)

    def _check_facts(self, session: Row[Any]) -> tuple[int, str] | None:
        """The session's own row against the ledger; returns where its journal ended, once it is closed."""
        opened = _parsed(session.opened)
        told: dict[str, Any] = {"ticket_id": session.opened_ticket, "created_at": session.started_at}
        if "started_at" in opened:
            told["started_at"] = opened["started_at"]
        if session.closed is None:
            told |= {"status": "running", "ended_at": None, "outcome_summary": None}
        closed = _parsed(session.closed)
        for column, field in (("status", "status"), ("ended_at", "ended_at"), ("outcome_summary", "summary")):
            if field in closed:
                told[column] = closed[field]
        for column, value in told.items():
            if getattr(session, column) != value:
                clause = f"was altered: its {column} is {getattr(session, column)!r}, the ledger says {value!r}"
                raise self._session_problem(session, "session altered", clause)
        return None if session.closed is None else (closed.get("head_seq", -1), closed.get("head_hash", ""))

    def _check_tombstone(self, session: Row[Any], anchor: tuple[int, str] | None) -> None:
        body = _parsed(session.tombstone)
        if self._key is not None and not hmac.compare_digest(
            str(body.get("signature", "")), tombstone_signature(self._key, body)
        ):
            clause = f"has a forged tombstone: the signature in ledger row {session.tombstone_seq} is wrong"
            raise self._session_problem(session, "tombstone forged", clause)
        head = (session.head_seq, session.head_hash)
        if anchor != head or (body.get("entries"), body.get("head_hash")) != (head[0] + 1, head[1]):
            raise self._session_problem(session, "head mismatch", "does not end where its tombstone says")
        for row in self._fetch(_ENTRIES, session=session.session_id, after=-(2**31)):
            sentence = f"Session {session.session_id}, entry {row.seq} was added after the journal was deleted."
            raise Found(session.session_id, row.seq, row.id, "added", sentence)
        self.pruned += 1

    def _check_present(self, refs: Mapping[str, Values]) -> None:
        if not refs:
            return
        there = {r.digest for r in self._fetch(_HAS_BLOBS, digests=list(refs))}
        for digest, row in refs.items():
            if digest not in there:
                sentence = f"Session {row['session_id']}, entry {row['seq']}: its output {digest[:12]} is missing."
                raise Found(row["session_id"], row["seq"], row["id"], "blob missing", sentence)
            if self._only is not None:
                self._check_chunks(c for c in self._chunks(digest, -1) if c.digest == digest)

    def _check_blobs(self) -> None:
        self._check_chunks(self._chunks("", -1))

    def _chunks(self, digest: str, after: int) -> Iterator[Row[Any]]:
        while rows := self._fetch(_CHUNKS, digest=digest, after=after):
            yield from rows
            if self._only is not None and rows[-1].digest != digest:
                return
            digest, after = rows[-1].digest, rows[-1].n

    def _check_chunks(self, chunks: Iterator[Row[Any]]) -> None:
        digest, running = None, hashlib.sha256()
        for chunk in chunks:
            if chunk.digest != digest:
                self._end_blob(digest, running)
                digest, running = chunk.digest, hashlib.sha256()
            running.update(chunk.data)
        self._end_blob(digest, running)

    def _end_blob(self, digest: str | None, running: Any) -> None:
        if digest is None:
            return
        self.blobs += 1
        if running.hexdigest() == digest:
            return
        users = self._fetch(_WHO_NAMES, digest=digest)
        user = f"session {users[0].session_id}, entry {users[0].seq}" if users else "no entry"
        sentence = f"The output {digest[:12]} was altered: it does not match its hash; it belongs to {user}."
        raise Found(
            f"blob {digest}",
            users[0].seq if users else None,
            users[0].id if users else None,
            "blob altered",
            sentence,
        )

    def _check_tickets(self) -> None:
        for row in self._fetch(_LOST_TICKET):
            sentence = f"Ticket #{row.ticket_id} is missing; ledger row {row.seq} says that it was opened."
            raise Found(f"ticket #{row.ticket_id}", None, None, "ticket missing", sentence)
        for row in self._pages(_TICKETS, "id", -1):
            told = _parsed(row.body).get("new")
            if row.status != told:
                sentence = f"Ticket #{row.id} was altered: it is {row.status}, ledger row {row.seq} says {told}."
                raise Found(f"ticket #{row.id}", None, row.id, "ticket altered", sentence)


def _parsed(body: str | None) -> dict[str, Any]:
    value = json.loads(body) if body else {}
    return value if isinstance(value, dict) else {}

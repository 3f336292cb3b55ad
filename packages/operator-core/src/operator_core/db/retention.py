"""Retention: journals are deleted by rule only, and what remains is a signed tombstone in the ledger.

The session's own row stays, with the head of the journal that was there (row A-032).
"""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import Integer, Text, and_, bindparam, delete, exists, or_, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.db import ledger as ledger_chain
from operator_core.db.blobs import blob_digests
from operator_core.db.engine import Database
from operator_core.db.integrity import tombstone_signature
from operator_core.db.schema import agent_log_entries, agent_sessions, approvals, blob_chunks, ledger, tickets
from operator_core.db.usage import UsageTotals
from operator_core.errors import ConfigError, StoreError
from operator_core.model.ticket import TERMINAL

__all__ = ["KEY_NAME", "Pruned", "create_key", "load_key", "prune"]

KEY_NAME = "audit.key"
_KEY_BYTES = 32
_PAGE = 500


class Pruned(NamedTuple):
    """What was deleted (or would be, in a dry run).

    Attributes:
        sessions: Ids of the sessions whose journal is gone, oldest first.
        entries: Journal rows.
        blobs: Large outputs that nothing refers to any more; 0 in a dry run.
    """

    sessions: tuple[str, ...]
    entries: int
    blobs: int


_BURIED = exists().where(ledger.c.session_id == agent_sessions.c.session_id, ledger.c.kind == "tombstone")
# Not before its ticket is closed and nothing can reopen it by itself any more.
_TICKET_IS_OVER = and_(
    tickets.c.status.in_([s.value for s in TERMINAL]),
    or_(tickets.c.watch_until.is_(None), tickets.c.watch_until < bindparam("now", type_=Text)),
)
_CLOSED = (
    select(agent_sessions.c.session_id, agent_sessions.c.ended_at, agent_sessions.c.head_seq)
    .join(tickets, tickets.c.id == agent_sessions.c.ticket_id, isouter=True)
    .where(
        agent_sessions.c.status != "running",
        agent_sessions.c.ended_at.is_not(None),
        or_(agent_sessions.c.ticket_id.is_(None), _TICKET_IS_OVER),
        ~_BURIED,
    )
    .order_by(agent_sessions.c.ended_at.desc(), agent_sessions.c.id.desc())
)
_TICKET_OF = select(agent_sessions.c.ticket_id).where(agent_sessions.c.session_id == bindparam("session", type_=Text))
_LOCK_TICKET = select(tickets.c.id).where(tickets.c.id == bindparam("ticket", type_=Integer)).with_for_update()
_LOCK_SESSION = (
    select(agent_sessions).where(agent_sessions.c.session_id == bindparam("session", type_=Text)).with_for_update()
)
_TICKET_STILL_OVER = select(tickets.c.id).where(tickets.c.id == bindparam("ticket", type_=Integer), _TICKET_IS_OVER)
_IS_BURIED = select(ledger.c.seq).where(
    ledger.c.session_id == bindparam("session", type_=Text), ledger.c.kind == "tombstone"
)
_METAS = select(agent_log_entries.c.meta).where(
    agent_log_entries.c.session_id == bindparam("session", type_=Text), agent_log_entries.c.meta.contains('_blob"')
)
_FORGET_QUESTIONS = delete(approvals).where(approvals.c.session_id == bindparam("session", type_=Text))
_FORGET = delete(agent_log_entries).where(agent_log_entries.c.session_id == bindparam("session", type_=Text))
_TOMBSTONES = (
    select(ledger.c.seq, ledger.c.body)
    .where(ledger.c.kind == "tombstone", ledger.c.seq > bindparam("after", type_=Integer))
    .order_by(ledger.c.seq)
    .limit(_PAGE)
)
_STORED = select(blob_chunks.c.digest).where(
    blob_chunks.c.n == 0, blob_chunks.c.digest.in_(bindparam("digests", expanding=True))
)
_USERS = (
    select(agent_log_entries.c.id, agent_log_entries.c.meta)
    .where(agent_log_entries.c.meta.contains('_blob"'), agent_log_entries.c.id > bindparam("after", type_=Integer))
    .order_by(agent_log_entries.c.id)
    .limit(_PAGE)
)
_TASKS = (
    select(tickets.c.id, tickets.c.check_spec)
    .where(tickets.c.kind == "task", tickets.c.id > bindparam("after", type_=Integer))
    .order_by(tickets.c.id)
    .limit(_PAGE)
)
# SQLite's write transactions exclude each other anyway.
_NO_WRITER = text("LOCK TABLE agent_log_entries IN SHARE MODE")
_DROP_BLOB = delete(blob_chunks).where(blob_chunks.c.digest == bindparam("digest", type_=Text))


async def prune(
    database: Database,
    *,
    older_than: timedelta | None,
    keep: int | None,
    state_dir: Path,
    dry_run: bool = False,
    actor: str = "person",
) -> Pruned:
    """Delete the journals of closed sessions.

    Never touched: running sessions, and those of a ticket that is not closed or still in its watch period. With both
    rules a journal must meet both: older than the age *and* not among the newest ones.

    Args:
        older_than: Only sessions that ended longer ago than this.
        keep: Keep the newest so many that could be deleted.
        state_dir: Folder of the audit key; it is made on first use.
        dry_run: Only say what would be deleted.
        actor: Who wants it; each tombstone says so.

    Raises:
        ConfigError: Neither rule is given, or the key is readable by others.
        StoreError: The key cannot be read or written.
    """
    if older_than is None and keep is None:
        raise ConfigError("Retention needs a rule: give an age, a number of journals to keep, or both.")
    if (keep is not None and keep < 0) or (older_than is not None and older_than < timedelta()):
        raise ConfigError("A retention rule cannot be negative; give an age or a number of journals of 0 or more.")
    now = clock.now()
    closed = await database.fetch(_CLOSED, now=clock.iso(now))
    limit = None if older_than is None else clock.iso(now - older_than)
    doomed = [r for r in closed[keep or 0 :] if limit is None or r.ended_at < limit][::-1]
    if dry_run:
        return Pruned(tuple(r.session_id for r in doomed), sum(r.head_seq + 1 for r in doomed), 0)
    rule = {"older_than_s": None if older_than is None else older_than.total_seconds(), "keep": keep}
    gone: list[str] = []
    entries = 0
    if doomed:
        # What was spent is known from the journals alone until it is counted.
        await UsageTotals(database).catch_up()
        key = create_key(state_dir)
        for row in doomed:
            deleted = await _bury(database, row.session_id, rule, key, actor)
            if deleted is not None:
                gone.append(row.session_id)
                entries += deleted
    return Pruned(tuple(gone), entries, await _drop_unused_blobs(database))


def create_key(state_dir: Path) -> bytes:
    """The key that signs tombstones; made when it is not there yet. Two processes that make it get the same one."""
    path = state_dir / KEY_NAME
    if not path.exists():
        draft = state_dir / f".{KEY_NAME}.{clock.new_id()}"
        try:
            state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(_KEY_BYTES) + "\n")
                file.flush()
                os.fsync(file.fileno())
            # A link, unlike a rename, never replaces the key that another process has just made and used.
            with suppress(FileExistsError):
                os.link(draft, path)
        except OSError as error:
            raise StoreError(f"The audit key {path} cannot be written ({error.strerror}); check the folder.") from None
        finally:
            with suppress(OSError):
                draft.unlink()
    key = load_key(state_dir)
    assert key is not None
    return key


def load_key(state_dir: Path) -> bytes | None:
    """The key that signs tombstones; None when there is none yet.

    Raises:
        ConfigError: Others may read it, or it is not a key.
        StoreError: It cannot be read.
    """
    path = state_dir / KEY_NAME
    try:
        with path.open() as file:
            loose = os.fstat(file.fileno()).st_mode & 0o077
            text = file.read(1024).strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"The audit key {path} cannot be read ({error}); check the file.") from None
    if loose:
        raise ConfigError(f"The audit key {path} is open to others; run `chmod 600 {path}`.")
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != _KEY_BYTES:
        raise ConfigError(f"The audit key {path} is damaged; put back the one that signed the tombstones.")
    return key


async def _bury(database: Database, session_id: str, rule: dict[str, Any], key: bytes, actor: str) -> int | None:
    """Replace one journal by its tombstone, all or nothing; None when it may no longer be deleted."""
    now = clock.iso()
    async with database.begin() as c:
        ticket = (await c.execute(_TICKET_OF, {"session": session_id})).scalar()
        if ticket is not None:
            # Locked first, as everywhere, and looked at under the lock: a person may just have reopened it.
            await c.execute(_LOCK_TICKET, {"ticket": ticket})
            if (await c.execute(_TICKET_STILL_OVER, {"ticket": ticket, "now": now})).first() is None:
                return None
        session = (await c.execute(_LOCK_SESSION, {"session": session_id})).one()
        if session.status == "running" or (await c.execute(_IS_BURIED, {"session": session_id})).first():
            return None
        if session.counted_seq < session.head_seq:
            return None  # another process counts what it has spent right now: the next time
        digests: set[str] = set()
        for row in (await c.execute(_METAS, {"session": session_id})).all():
            digests.update(blob_digests(row.meta))
        body = {
            "session": session_id,
            "entries": session.head_seq + 1,
            "head_hash": session.head_hash,
            "rule": rule,
            "blobs": sorted(digests),
            "actor": actor,
        }
        signature = tombstone_signature(key, body)
        await ledger_chain.append(
            database, c, "tombstone", ticket_id=session.ticket_id, session_id=session_id, **body, signature=signature
        )
        await c.execute(_FORGET, {"session": session_id})
        # They quote the journal; the answers are in the ledger.
        await c.execute(_FORGET_QUESTIONS, {"session": session_id})
        return int(session.head_seq) + 1


async def _drop_unused_blobs(database: Database) -> int:
    """Delete what only buried journals referred to; what an earlier, interrupted run left over is found again."""
    unused: set[str] = set()
    async with database.read() as c:
        after = -1
        while stones := (await c.execute(_TOMBSTONES, {"after": after})).all():
            for stone in stones:
                digests = json.loads(stone.body).get("blobs", [])
                unused.update((await c.execute(_STORED, {"digests": digests})).scalars() if digests else ())
            after = stones[-1].seq
        after = await _keep_used(c, unused, -1)
        await _keep_submitted(c, unused)
    if not unused:
        return 0
    async with database.begin() as c:
        if not database.sqlite:
            await c.execute(_NO_WRITER)
        # Once more for what was written since, now that nothing can be.
        await _keep_used(c, unused, after)
        await _keep_submitted(c, unused)
        for digest in sorted(unused):
            await c.execute(_DROP_BLOB, {"digest": digest})
    return len(unused)


async def _keep_used(c: AsyncConnection, unused: set[str], after: int) -> int:
    """Take out of the set what entries behind row ``after`` refer to; returns the last row looked at."""
    while unused and (rows := (await c.execute(_USERS, {"after": after})).all()):
        for row in rows:
            unused.difference_update(blob_digests(row.meta))
        after = rows[-1].id
    return after


async def _keep_submitted(c: AsyncConnection, unused: set[str]) -> None:
    """Take out of the set what a task was submitted with: its work may begin, or be judged, again."""
    after = -1
    while unused and (rows := (await c.execute(_TASKS, {"after": after})).all()):
        for row in rows:
            spec = json.loads(row.check_spec or "{}")
            used = {file["sha256"] for file in spec.get("check_files", ())}
            unused.difference_update(used | {(spec.get("source") or {}).get("blob")})
        after = rows[-1].id

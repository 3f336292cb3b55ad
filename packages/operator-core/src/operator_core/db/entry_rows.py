"""Rows of the journal: what an entry is in its columns, and the one statement that writes some under a fence."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Integer, Text, bindparam, insert, select, union_all
from sqlalchemy.engine import Row
from sqlalchemy.sql.dml import Insert, ReturningInsert

from operator_core import clock
from operator_core.db.schema import agent_log_entries, tickets
from operator_core.model.entry import ENTRY_VERSION, Draft, Entry, entry_hash, stored_json
from operator_core.redaction import Redactor

__all__ = ["COLUMNS", "append_statement", "entry_of", "entry_rows", "loaded"]

# Signatures and encrypted thinking are opaque to us: a character changed in them would break the conversation.
_OPAQUE = {"thinking": "signature", "redacted_thinking": "data"}
COLUMNS = (
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


@lru_cache(maxsize=64)
def append_statement(n: int, fenced: bool) -> Insert | ReturningInsert[Any]:
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
        select(*(bindparam(f"{c}_{i}", type_=Integer() if c in _INTEGERS else Text()) for c in COLUMNS)).select_from(
            owner
        )
        for i in range(n)
    ]
    source = rows[0] if n == 1 else union_all(*rows)
    return (
        insert(agent_log_entries)
        .from_select(list(COLUMNS), source)
        .returning(agent_log_entries.c.seq, agent_log_entries.c.id)
    )


def entry_rows(
    clean: Redactor, session_id: str, drafts: Sequence[Draft], seq: int, prev_hash: str, fence: int | None
) -> list[dict[str, Any]]:
    """What is to be written for these entries: without secrets, and each with the hash of the one before it.

    Args:
        clean: Takes the secrets out.
        seq: Sequence number of the first of them.
        prev_hash: Hash of the entry before it.
        fence: Of the claim that writes; None outside the work queue.
    """
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


def entry_of(row: Row[Any]) -> Entry:
    """The entry in a row of the whole table."""
    return Entry(
        id=row.id,
        session_id=row.session_id,
        seq=row.seq,
        entry_type=row.entry_type,
        content=row.content,
        raw_content=row.raw_content,
        tool_name=row.tool_name,
        tool_params=loaded(row.tool_params),
        exit_code=row.exit_code,
        timestamp=row.timestamp,
        tool_use_id=row.tool_use_id,
        phase=row.phase,
        fence=row.fence,
        body=loaded(row.body),
        meta=loaded(row.meta),
        prev_hash=row.prev_hash,
        hash=row.hash,
    )


def loaded(text: str | None) -> Any:
    """What a column of JSON holds; NULL is None."""
    return None if text is None else json.loads(text)


def _redact_body(clean: Redactor, body: Any) -> Any:
    stored = clean.tree(body)
    if isinstance(body, dict) and body.get("role") == "assistant" and isinstance(body.get("content"), list):
        for block, kept in zip(body["content"], stored["content"], strict=True):
            if (name := _OPAQUE.get(block.get("type"))) in block:
                kept[name] = block[name]
    return stored


def _dump(value: Any) -> str | None:
    return None if value is None else stored_json(value)

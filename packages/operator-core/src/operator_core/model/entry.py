"""Journal entries: their kinds, their canonical form and the hash that chains them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

__all__ = [
    "ENTRY_VERSION",
    "GENESIS",
    "Draft",
    "Entry",
    "EntryKind",
    "canonical",
    "chain_hash",
    "entry_hash",
    "stored_json",
    "too_deep",
]

_DEEPEST = 100
ENTRY_VERSION = 1
GENESIS = "0" * 64
"""The ``prev_hash`` of the first row of a chain."""


class EntryKind(StrEnum):
    """``reasoning``, ``tool_call`` and ``tool_result`` are the seed's; the product needs the others."""

    REASONING = "reasoning"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    SESSION_START = "session_start"
    SANDBOX_REPORT = "sandbox_report"
    BASELINE = "baseline"
    MESSAGE = "message"
    NOTE = "note"
    RETRY = "retry"
    OUTCOME = "outcome"
    EVIDENCE = "evidence"
    VERDICT = "verdict"
    REPORT = "report"
    ERROR = "error"
    RESUMED = "resumed"
    SESSION_END = "session_end"
    TASK = "task"
    PHASE_START = "phase_start"
    ENGINE_SESSION = "engine_session"
    SNAPSHOT = "snapshot"
    SUMMARY = "summary"
    USAGE = "usage"
    DELIVERED = "delivered"
    EGRESS = "egress"
    COMPACTION = "compaction"
    WIND_DOWN = "wind_down"
    RESTART = "restart"
    DISCOVERY = "discovery"
    APPROVAL = "approval"


@dataclass(frozen=True)
class Draft:
    """What is to be written; sequence, hashes and time are added by the store.

    Attributes:
        kind: Entry kind; any string is stored, readers are tolerant.
        content: One or two sentences for people. Outside the hash, because a better summary may replace it later.
        raw_content: The full text.
        body: The exact JSON that goes back to the model (messages and tool results), or a structured payload.
        meta: Facts about the entry (usage, request id, sizes, digests of large outputs).
    """

    kind: str
    content: str = ""
    raw_content: str | None = None
    tool_name: str | None = None
    tool_params: dict[str, Any] | None = None
    exit_code: int | None = None
    tool_use_id: str | None = None
    phase: str | None = None
    body: Any = None
    meta: dict[str, Any] | None = None


@dataclass(frozen=True)
class Entry:
    """One stored row of a session's journal; the JSON columns are parsed."""

    id: int
    session_id: str
    seq: int
    entry_type: str
    content: str
    raw_content: str | None
    tool_name: str | None
    tool_params: dict[str, Any] | None
    exit_code: int | None
    timestamp: str
    tool_use_id: str | None
    phase: str | None
    fence: int | None
    body: Any
    meta: dict[str, Any] | None
    prev_hash: str
    hash: str


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value, on every machine."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def too_deep(value: Any) -> bool:
    """Whether lists and objects are nested so deeply that nobody reads it, and not every program can."""
    level = [value]
    for _ in range(_DEEPEST):
        inner = [part for part in level if isinstance(part, (dict, list))]
        level = [item for part in inner for item in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return False
    return True


def stored_json(value: Any, default: Callable[[Any], Any] | None = None) -> str:
    """JSON for a text column, that reads back as exactly the same value.

    Args:
        default: Makes something of what JSON has no form for; None: that is a TypeError.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=default)
    try:
        text.encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which a model may well write: no database can store it, but its escape.
        text = json.dumps(value, separators=(",", ":"), default=default)
    return text


def chain_hash(prev_hash: str, *fields: object) -> str:
    """SHA-256 (hex) over the previous hash and the fields, framed by JSON so that none can run into another."""
    return hashlib.sha256(json.dumps([prev_hash, *fields], ensure_ascii=True).encode()).hexdigest()


def entry_hash(row: dict[str, Any]) -> str:
    """The hash of one ``agent_log_entries`` row, from its stored (text) column values and its ``prev_hash``."""
    return chain_hash(
        row["prev_hash"],
        row["v"],
        row["session_id"],
        row["seq"],
        row["fence"],
        row["phase"],
        row["entry_type"],
        row["tool_name"],
        row["tool_use_id"],
        row["tool_params"],
        row["exit_code"],
        row["raw_content"],
        row["body"],
        row["meta"],
        row["timestamp"],
    )

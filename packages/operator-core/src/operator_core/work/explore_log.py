"""The session log of an explorer: its journal as JSON lines, in the form of Ouroboros (requirements 2.3.7).

One object a line, told apart by ``event_type``, with a ``timestamp`` in UTC with milliseconds. It is an export: the
journal is the state.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from operator_core.clock import parse_iso
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.usage import Usage

__all__ = ["SessionLog", "log_events"]


class _Reader:
    """Makes the events of entries, one by one."""

    def __init__(self) -> None:
        self.turn = 0
        self.limit = 0
        self.names: dict[str | None, str] = {}

    def events(self, entry: Entry) -> list[dict[str, Any]]:
        """The events of one entry; none for what only the platform needs."""
        body: dict[str, Any] = entry.body if isinstance(entry.body, dict) else {}
        meta = entry.meta or {}
        match entry.entry_type:
            case EntryKind.SESSION_START:
                self.limit = int(body.get("limit_tokens") or 0)
                said = {"model": body.get("model"), "workspace": body.get("workspace")}
                return [{"event_type": "session_start", **said}]
            case EntryKind.MESSAGE if body.get("role") == "assistant":
                self.turn += 1
                return [self._usage(Usage(**meta["usage"]))] if "usage" in meta else []
            case EntryKind.MESSAGE | EntryKind.WIND_DOWN | EntryKind.NOTE:
                return [{"event_type": "system_message", "content": entry.raw_content}]
            case EntryKind.REASONING:
                return [{"event_type": "assistant_text", "turn": self.turn, "content": entry.raw_content}]
            case EntryKind.TOOL_CALL:
                self.names[entry.tool_use_id] = entry.tool_name or ""
                return [self._call("tool_call", entry) | {"fn_arguments": entry.tool_params}]
            case EntryKind.TOOL_RESULT:
                event = self._call("tool_result", entry) | {"result": entry.raw_content}
                return [event | {"error": entry.content} if body.get("is_error") else event]
            case EntryKind.COMPACTION:
                masked = {"observations_masked": len(body["masks"]), "total_masked": meta.get("total")}
                return [{"event_type": "context_mask", **masked, "context_reclaimed_pct": meta.get("reclaimed_pct")}]
            case EntryKind.RESTART:
                event = {"event_type": "session_restart", "session_number": body["number"]}
                event |= {"previous_turns": meta.get("previous_turns"), "carryover_messages": body["carried"]}
                return [event | {"reason": "the context was full"}]
            case EntryKind.DISCOVERY:
                return [{"event_type": "discovery", "title": body["title"], "description": body["description"]}]
            case EntryKind.RETRY | EntryKind.ERROR:
                return [{"event_type": "error", "message": entry.raw_content or entry.content}]
            case EntryKind.SESSION_END:
                return [{"event_type": "session_end", "total_turns": self.turn, "reason": entry.raw_content}]
        return []

    def _call(self, kind: str, entry: Entry) -> dict[str, Any]:
        name = self.names.get(entry.tool_use_id, entry.tool_name)
        return {"event_type": kind, "turn": self.turn, "call_id": entry.tool_use_id, "fn_name": name}

    def _usage(self, used: Usage) -> dict[str, Any]:
        prompt = used.tokens - used.output_tokens
        event: dict[str, Any] = {"event_type": "token_usage", "turn": self.turn, "prompt_tokens": prompt}
        event |= {"completion_tokens": used.output_tokens, "total_tokens": used.tokens}
        return event | {"context_used_pct": round(100 * prompt / self.limit, 1) if self.limit else None}


def log_events(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """All events of a journal, in order."""
    reader = _Reader()
    return [_stamped(entry, event) for entry in entries for event in reader.events(entry)]


class SessionLog:
    """The file of one session, which grows with its journal.

    Args:
        path: The file; a new one takes the place of what an earlier process left there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = -1
        self._reader = _Reader()
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        self._file = os.fdopen(os.open(path, flags, 0o600), "w", encoding="utf-8")

    def add(self, entries: Iterable[Entry]) -> None:
        """Write what these entries say; each line is there when this returns."""
        for entry in entries:
            for event in self._reader.events(entry):
                self._file.write(json.dumps(_stamped(entry, event)) + "\n")
            self.seen = entry.seq
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _stamped(entry: Entry, event: dict[str, Any]) -> dict[str, Any]:
    moment = parse_iso(entry.timestamp).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"timestamp": moment, **event}

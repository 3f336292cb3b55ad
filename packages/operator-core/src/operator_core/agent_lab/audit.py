"""``SessionAuditor``: one JSON file per session, by itself or as an export of the journal (rows A-022 to A-030)."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from operator_core import clock
from operator_core.model.entry import Entry, EntryKind

__all__ = ["SessionAuditor"]


class SessionAuditor:
    """Collects the messages and tool calls of one session.

    Every record is also appended to ``{session_id}.jsonl`` at once, so that a crash loses nothing; :meth:`save_session`
    then writes the JSON file and removes it.

    Args:
        audit_dir: Folder of the files; created if it is missing.

    Attributes:
        session_id: ``{timestamp}-{uuid8}``.
        messages: What was logged so far, oldest first.
    """

    def __init__(self, audit_dir: Path) -> None:
        self.audit_dir = Path(audit_dir)
        self.audit_dir.mkdir(parents=True, exist_ok=True)
        self.session_id = clock.new_session_id()
        self.messages: list[dict[str, Any]] = []
        self._ended_at: str | None = None

    @classmethod
    def from_entries(cls, audit_dir: Path, session_id: str, entries: Iterable[Entry]) -> SessionAuditor:
        """The same file from a session's journal: the whole conversation with every tool call and its result."""
        auditor = cls(audit_dir)
        auditor.session_id = session_id
        calls: dict[str | None, Entry] = {}
        for entry in entries:
            auditor._ended_at = entry.timestamp
            if entry.entry_type == EntryKind.MESSAGE and isinstance(entry.body, dict):
                auditor.messages.append(
                    {"timestamp": entry.timestamp, "role": entry.body["role"], "content": entry.body["content"]}
                )
            elif entry.entry_type == EntryKind.TOOL_CALL:
                calls[entry.tool_use_id] = entry
            elif entry.entry_type == EntryKind.TOOL_RESULT:
                call = calls.get(entry.tool_use_id)
                auditor.messages.append(
                    {
                        "timestamp": entry.timestamp,
                        "type": "tool_call",
                        "tool": entry.tool_name,
                        "parameters": call.tool_params if call else {},
                        "result": _loads(entry.raw_content),
                    }
                )
        return auditor

    def log_message(self, role: str, content: Any) -> None:
        """Record a message; ``content`` may be text or any blocks of the SDK."""
        self._add({"timestamp": _timestamp(), "role": role, "content": content})

    def log_tool_call(self, tool_name: str, parameters: dict[str, Any], result: Any) -> None:
        """Record a tool call with its parameters (the reasoning among them) and its result."""
        self._add(
            {
                "timestamp": _timestamp(),
                "type": "tool_call",
                "tool": tool_name,
                "parameters": parameters,
                "result": result,
            }
        )

    def save_session(self) -> Path:
        """Write ``{audit_dir}/{session_id}.json`` in one step and return its path."""
        data = {
            "session_id": self.session_id,
            "started_at": self.messages[0]["timestamp"] if self.messages else None,
            "ended_at": self._ended_at or _timestamp(),
            "message_count": len(self.messages),
            "messages": self.messages,
        }
        path = self.audit_dir / f"{self.session_id}.json"
        draft = path.with_suffix(".json.tmp")
        draft.write_text(json.dumps(data, indent=2, default=_jsonable), encoding="utf-8")
        os.replace(draft, path)
        self._stream.unlink(missing_ok=True)
        return path

    @property
    def _stream(self) -> Path:
        return self.audit_dir / f"{self.session_id}.jsonl"

    def _add(self, record: dict[str, Any]) -> None:
        self.messages.append(record)
        with self._stream.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, default=_jsonable) + "\n")


def _timestamp() -> str:
    return clock.now().isoformat(timespec="microseconds")


def _jsonable(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, (bytes, bytearray)):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    return str(value)


def _loads(text: str | None) -> Any:
    try:
        return json.loads(text or "null")
    except ValueError:
        return text

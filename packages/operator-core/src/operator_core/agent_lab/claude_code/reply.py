"""One streamed reply of the model: what may be passed on at once, what must wait, and the whole message."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anthropic.types import Usage

__all__ = ["MAX_REPLY", "ReplyReader", "ReplyTooLarge", "calls_of", "texts_of", "usage_of"]

MAX_REPLY = 64 << 20

_END_OF_EVENT = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
_LONGEST_END = 4


class ReplyTooLarge(Exception):
    """No model writes that much in one reply."""


class ReplyReader:
    """Reads the server-sent events of one reply, and says which bytes may go on to the CLI by now.

    The CLI starts a tool as soon as the block of its call is complete. So everything from the end of the first such
    block on, and the end of every reply, is held back until the caller has journaled :attr:`message` and asks for
    :meth:`release`. The bytes that come out are exactly those that went in.

    Attributes:
        message: The message as far as it has come; None before its beginning.
        complete: Whether its end has come.
        error: The ``error`` object of an error event, if there was one.
    """

    def __init__(self, max_bytes: int = MAX_REPLY) -> None:
        self.message: dict[str, Any] | None = None
        self.complete = False
        self.error: dict[str, Any] | None = None
        self._left = max_bytes
        self._part = bytearray()
        self._held = bytearray()
        self._holding = False
        self._json: dict[int, list[str]] = {}

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; what may be passed on.

        Raises:
            ReplyTooLarge: The reply is larger than ``max_bytes``.
        """
        self._left -= len(data)
        if self._left < 0:
            raise ReplyTooLarge
        searched = max(0, len(self._part) - _LONGEST_END)
        self._part += data
        out = bytearray()
        start = 0
        while found := _END_OF_EVENT.search(self._part, searched):
            event = bytes(self._part[start : found.end()])
            start = searched = found.end()
            if self._take(event) or self._holding:
                self._holding = True
                self._held += event
            else:
                out += event
        del self._part[:start]
        return bytes(out)

    def release(self) -> bytes:
        """What was held back, and the rest."""
        held = bytes(self._held + self._part)
        self._held.clear()
        self._part.clear()
        return held

    def _take(self, event: bytes) -> bool:
        """Follow one event; whether it must wait."""
        lines = event.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        data = b"\n".join(line[5:].removeprefix(b" ") for line in lines if line.startswith(b"data:"))
        try:
            value = json.loads(data) if data else None
        except (ValueError, RecursionError):
            return False
        if not isinstance(value, dict):
            return False
        kind = value.get("type")
        if kind == "message_start" and isinstance(value.get("message"), dict):
            self.message = {**value["message"], "content": [], "usage": _counts(value["message"].get("usage"))}
        elif kind == "error":
            self.error = value["error"] if isinstance(value.get("error"), dict) else {}
        elif self.message is not None:
            return self._follow(self.message, str(kind), value)
        return False

    def _follow(self, message: dict[str, Any], kind: str, value: dict[str, Any]) -> bool:
        content: list[Any] = message["content"]
        index = value.get("index")
        if kind == "content_block_start" and isinstance(value.get("content_block"), dict):
            content.append(dict(value["content_block"]))
        elif kind == "content_block_delta" and index == len(content) - 1 and isinstance(value.get("delta"), dict):
            self._add(content[-1], value["delta"])
        elif kind == "content_block_stop" and index == len(content) - 1:
            block = content[-1]
            if parts := self._json.pop(index, None):
                block["input"] = _input("".join(parts))
            return bool(block.get("type") == "tool_use")
        elif kind == "message_delta":
            if isinstance(value.get("delta"), dict):
                message.update({k: v for k, v in value["delta"].items() if k in ("stop_reason", "stop_sequence")})
            message["usage"].update(_counts(value.get("usage")))
            return True
        elif kind == "message_stop":
            self.complete = True
            return True
        return False

    def _add(self, block: dict[str, Any], delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "input_json_delta":
            index = len(self.message["content"]) - 1 if self.message else 0
            self._json.setdefault(index, []).append(str(delta.get("partial_json", "")))
            return
        for name in ("text", "thinking", "signature"):
            if kind == f"{name}_delta":
                block[name] = str(block.get(name) or "") + str(delta.get(name, ""))


def _input(text: str) -> Any:
    try:
        return json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return {"unparsed": text}


def _counts(usage: Any) -> dict[str, int]:
    """The token counts that are there; what is no count is left out."""
    if not isinstance(usage, dict):
        return {}
    return {
        k: usage[k]
        for k in _COUNTS
        if isinstance(usage.get(k), int) and not isinstance(usage[k], bool) and usage[k] >= 0
    }


def usage_of(message: dict[str, Any]) -> Usage:
    """The usage of a message in the form in which the budget takes it; missing counts are 0."""
    from anthropic.types import Usage

    counts = _counts(message.get("usage"))
    return Usage.model_validate({name: counts.get(name, 0) for name in _COUNTS})


def texts_of(message: dict[str, Any]) -> list[str]:
    """The texts of a message that say something."""
    texts = [block.get("text") for block in _blocks(message) if block.get("type") == "text"]
    return [text for text in texts if isinstance(text, str) and text.strip()]


def calls_of(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls of a message."""
    return [b for b in _blocks(message) if b.get("type") == "tool_use" and isinstance(b.get("id"), str)]


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []

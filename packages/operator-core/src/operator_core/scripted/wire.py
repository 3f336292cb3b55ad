"""The shapes on the wire: messages, stream events, errors and token counts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from operator_core.clock import new_id
from operator_core.scripted.brain import Reply
from operator_core.scripted.rules import signature
from operator_core.scripted.turn import content_blocks

__all__ = [
    "ERROR_STATUS",
    "Prompt",
    "dump",
    "error_body",
    "error_event",
    "error_type",
    "message_of",
    "prompt_of",
    "stream_events",
]

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    504: "timeout_error",
    529: "overloaded_error",
}
ERROR_STATUS: Mapping[str, int] = {kind: status for status, kind in _TYPES.items()}
"""HTTP status by error type."""

_CHUNK = 64
_FRESH_TOKENS = 4


def dump(value: object) -> bytes:
    """Compact ASCII JSON.

    Raises:
        TypeError, ValueError: If the value cannot be expressed in JSON.
    """
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def error_type(status: int) -> str:
    """The API's error type for an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def error_body(kind: str, message: str, request_id: str, details: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The JSON body of an error."""
    error: dict[str, Any] = {"type": kind, "message": message}
    if details is not None:
        error["details"] = dict(details)
    return {"type": "error", "error": error, "request_id": request_id}


class Prompt(NamedTuple):
    """Token counts of a request, about four characters each.

    Attributes:
        fresh: Tokens that are neither read from the cache nor written to it.
        written: Tokens written to the cache.
        read: Tokens read from the cache.
    """

    fresh: int
    written: int
    read: int

    @property
    def total(self) -> int:
        """The size of the whole prompt."""
        return self.fresh + self.written + self.read


def prompt_of(body: Mapping[str, Any]) -> Prompt:
    """Count the tokens of a request and say what a prompt cache would have done.

    Deterministic and without memory: with a cache breakpoint in the messages (or at top level) everything up to the
    last assistant message was written by the request before; with breakpoints only in system or tools, only those were.
    """
    tools, system = body.get("tools") or [], content_blocks(body.get("system"))
    prefix = len(str(tools)) * bool(tools) + sum(_size(block) for block in system)
    head = tail = steps = 0
    marked = bool(body.get("cache_control"))
    for message in body["messages"]:
        size = 0
        for block in content_blocks(message["content"]):
            size += _size(block)
            marked = marked or bool(block.get("cache_control"))
        if message["role"] == "assistant":
            steps += 1
            head, tail = head + tail, size
        else:
            tail += size
    total = max(1, (prefix + head + tail) // 4)
    if marked:
        read = (prefix + head) // 4 if steps else 0
        return Prompt(fresh := min(_FRESH_TOKENS, total - read), total - read - fresh, read)
    if any(block.get("cache_control") for block in [*tools, *system]):
        cached = min(prefix // 4, total)
        return Prompt(total - cached, 0 if steps else cached, cached if steps else 0)
    return Prompt(total, 0, 0)


def _size(block: Mapping[str, Any]) -> int:
    kind = block.get("type")
    if kind == "text":
        return len(str(block.get("text", "")))
    if kind == "tool_result":
        content = block.get("content")
        return len(content) if isinstance(content, str) else sum(_size(inner) for inner in content_blocks(content))
    if kind == "tool_use":
        return len(str(block.get("input"))) + len(str(block.get("name")))
    return len(str(block.get("thinking") or block.get("data") or ""))


def message_of(reply: Reply, model: str, prompt: Prompt, *, long_cache: bool = False) -> dict[str, Any]:
    """The assistant message for a reply.

    Args:
        reply: What the brain answered; its fault fields are not looked at.
        model: The model id to show.
        prompt: The token counts of the request.
        long_cache: Whether cache writes are of the one-hour kind.
    """
    blocks: list[dict[str, Any]] = []
    if reply.thinking:
        blocks.append({"type": "thinking", "thinking": reply.thinking, "signature": signature(reply.thinking)})
    if reply.text:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        call_id = call.id or f"toolu_{new_id()[:24]}"
        blocks.append({"type": "tool_use", "id": call_id, "name": call.name, "input": dict(call.input)})
    short, long = (0, prompt.written) if long_cache else (prompt.written, 0)
    usage = {
        "input_tokens": prompt.fresh,
        "cache_creation_input_tokens": prompt.written,
        "cache_read_input_tokens": prompt.read,
        "cache_creation": {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": long},
        "output_tokens": max(1, sum(_size(block) for block in blocks) // 4),
        "output_tokens_details": {"thinking_tokens": len(reply.thinking) // 4},
        "service_tier": "standard",
    }
    return {
        "id": f"msg_{new_id()[:24]}",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": blocks,
        "stop_reason": reply.stop_reason or ("tool_use" if reply.calls else "end_turn"),
        "stop_sequence": None,
        "usage": {**usage, **reply.usage},
    }


def stream_events(message: Mapping[str, Any]) -> list[bytes]:
    """The server-sent events of a message, from ``message_start`` to ``message_stop``."""
    usage = message["usage"]
    start = {**message, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}}
    events = [_event({"type": "message_start", "message": start}), _event({"type": "ping"})]
    for index, block in enumerate(message["content"]):
        empty, deltas = _block_events(block)
        events.append(_event({"type": "content_block_start", "index": index, "content_block": empty}))
        events.extend(_event({"type": "content_block_delta", "index": index, "delta": delta}) for delta in deltas)
        events.append(_event({"type": "content_block_stop", "index": index}))
    stop = {"stop_reason": message["stop_reason"], "stop_sequence": message["stop_sequence"]}
    events.append(_event({"type": "message_delta", "delta": stop, "usage": usage}))
    events.append(_event({"type": "message_stop"}))
    return events


def error_event(kind: str, request_id: str) -> bytes:
    """The server-sent ``error`` event of that type."""
    return _event(error_body(kind, f"The scripted brain sent {kind} in the stream.", request_id))


def _event(value: Mapping[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (str(value["type"]).encode(), dump(value))


def _block_events(block: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[dict[str, Any]]]:
    kind = block["type"]
    if kind == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": part} for part in _parts(block["text"])]
    if kind == "thinking":
        deltas = [{"type": "thinking_delta", "thinking": part} for part in _parts(block["thinking"])]
        return (
            {**block, "thinking": "", "signature": ""},
            [*deltas, {"type": "signature_delta", "signature": block["signature"]}],
        )
    text = dump(block["input"]).decode()
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": part} for part in ("", *_parts(text))]


def _parts(text: str) -> list[str]:
    return [text[at : at + _CHUNK] for at in range(0, len(text), _CHUNK)]

"""The rules of the Messages API that a wrongly resumed or wrongly cut history breaks, in the words of the API.

One linear pass; nothing here raises, whatever the client sends.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["check", "signature"]

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}\Z")
_SIGNED = "scripted-"


def signature(thinking: str) -> str:
    """The signature that this server gives a thinking block, and demands back with exactly the same text."""
    return _SIGNED + hashlib.sha256(thinking.encode("utf-8", "replace")).hexdigest()


def check(body: object, *, counting: bool = False) -> str | None:
    """What the API would refuse this request body for.

    Args:
        body: The parsed JSON body.
        counting: Whether it is for ``count_tokens``, which needs no ``max_tokens``.

    Returns:
        The message of the 400, or None if the body is acceptable.
    """
    if not isinstance(body, dict):
        return "The request body must be a JSON object."
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return "model: Field required" if model is None else "model: Input should be a valid string"
    max_tokens = body.get("max_tokens")
    if not counting and (not isinstance(max_tokens, int) or max_tokens < 1):
        return "max_tokens: Field required" if max_tokens is None else "max_tokens: Input should be greater than 0"
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        return "metadata: Input should be an object"
    return _check_tools(body.get("tools")) or _check_messages(body.get("messages"))


def _check_tools(tools: object) -> str | None:
    if tools is None:
        return None
    if not isinstance(tools, list):
        return "tools: Input should be a valid list"
    names: set[str] = set()
    for index, tool in enumerate(tools):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not _TOOL_NAME.match(name):
            return f"tools.{index}.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"
        if name in names:
            return "tools: Tool names must be unique."
        names.add(name)
    return None


def _check_messages(messages: object) -> str | None:
    if not isinstance(messages, list):
        return "messages: Field required" if messages is None else "messages: Input should be a valid list"
    if not messages:
        return "messages: at least one message is required"
    pending: dict[str, None] = {}
    asked_at = 0
    seen: set[str] = set()
    for index, message in enumerate(messages):
        problem = _check_shape(index, message)
        if problem:
            return problem
        role, content = message["role"], message["content"]
        if role == "system":
            continue
        blocks: list[Mapping[str, Any]] = content if isinstance(content, list) else []
        problem = _check_pairing(index, role, blocks, pending, asked_at)
        if problem:
            return problem
        pending = {}
        if role == "assistant":
            asked_at = index
            for block in blocks:
                if block.get("type") == "tool_use":
                    call_id = str(block.get("id"))
                    if call_id in seen:
                        return f"messages.{index}: `tool_use` ids must be unique"
                    seen.add(call_id)
                    pending[call_id] = None
    if pending:
        return _unanswered(asked_at, list(pending))
    if next((m["role"] for m in messages if m["role"] != "system"), "user") != "user":
        return 'messages: first message must use the "user" role'
    return None


def _check_shape(index: int, message: object) -> str | None:
    if not isinstance(message, dict):
        return f"messages.{index}: Input should be an object"
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        return f"messages.{index}.role: Input should be 'user' or 'assistant'"
    if not isinstance(content, str | list):
        return f"messages.{index}.content: Input should be a valid string or list"
    if not content:
        return f"messages.{index}: {role} messages must have non-empty content"
    if isinstance(content, str):
        return None if content.strip() else _blank(content)
    for place, block in enumerate(content):
        problem = _check_block(block)
        if problem:
            return f"messages.{index}.content.{place}: {problem}" if not problem.startswith("messages") else problem
    return None


def _check_block(block: object) -> str | None:
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return "Input should be an object with a `type`"
    kind = block["type"]
    if kind == "text":
        text = block.get("text")
        if not isinstance(text, str):
            return "text: Input should be a valid string"
        return None if text.strip() else _blank(text)
    if kind == "thinking":
        return _check_thinking(block)
    if kind == "tool_use":
        if not (isinstance(block.get("input"), dict) and isinstance(block.get("name"), str)):
            return "tool_use: a `name` and an `input` object are required"
        return None if isinstance(block.get("id"), str) else "tool_use.id: Field required"
    if kind == "tool_result" and not isinstance(block.get("tool_use_id"), str):
        return "tool_result.tool_use_id: Field required"
    return None


def _check_thinking(block: Mapping[str, Any]) -> str | None:
    thinking, signed = block.get("thinking"), block.get("signature")
    if not isinstance(thinking, str) or not isinstance(signed, str):
        return "thinking.signature: Field required"
    # Signatures of another engine cannot be judged here: a session may have begun on a real model.
    if signed.startswith(_SIGNED) and signed != signature(thinking):
        return "Invalid `signature` in `thinking` block"
    return None


def _check_pairing(
    index: int, role: str, blocks: list[Mapping[str, Any]], pending: Mapping[str, None], asked_at: int
) -> str | None:
    """Each call is answered once, in the very next message, and before any other content of it."""
    got: set[str] = set()
    leading = True
    for place, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            leading = False
            continue
        call_id = str(block.get("tool_use_id"))
        if role != "user" or call_id not in pending:
            return (
                f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: {call_id}. "
                "Each `tool_result` block must have a corresponding `tool_use` block in the previous message."
            )
        if call_id in got:
            return (
                f"messages.{index}.content.{place}: each tool_use must have a single result. "
                f"Found multiple `tool_result` blocks with id: {call_id}"
            )
        if leading:
            got.add(call_id)
    missing = [call_id for call_id in pending if call_id not in got]
    return _unanswered(asked_at, missing) if missing else None


def _unanswered(index: int, missing: list[str]) -> str:
    return (
        f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
        f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block "
        "in the next message."
    )


def _blank(text: str) -> str:
    what = "contain non-whitespace text" if text else "be non-empty"
    return f"messages: text content blocks must {what}"

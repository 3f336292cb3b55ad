"""A request as a brain sees it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = ["Fenced", "Result", "Turn", "content_blocks", "text_of", "unfence"]

_FENCED = re.compile(r"<<<(\w+) ([^\n]*)\n(.*?)\n\1>>>", re.DOTALL)


class Fenced(NamedTuple):
    """A text that somebody else wrote, without its marks (:mod:`operator_core.agent_lab.fence`).

    Attributes:
        origin: Where it comes from, ``tool output (shell)``; ``""`` if the text was not fenced.
        text: The text itself.
    """

    origin: str
    text: str


def unfence(text: str) -> Fenced:
    """The first fenced text in a text; the text as it is, if there is none."""
    found = _FENCED.search(text)
    return Fenced(found[2], found[3]) if found else Fenced("", text)


def content_blocks(content: object) -> list[Mapping[str, Any]]:
    """The content blocks of a message, a system prompt or a tool result; a bare string is one text block."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        return []
    return [block for block in content if isinstance(block, dict)]


def text_of(content: object) -> str:
    """The text blocks of some content, one per line; other blocks are left out."""
    if isinstance(content, str):
        return content
    return "\n".join(str(block.get("text", "")) for block in content_blocks(content) if block.get("type") == "text")


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool call of the model brought back.

    Attributes:
        tool_use_id: The identifier that the server gave the call.
        name: The tool, ``""`` if the call is not in the history any more.
        input: The arguments of the call.
        text: The text of the result, without the marks around it.
        data: The result parsed, if its text is one JSON object; otherwise None.
        is_error: Whether the client marked it as an error.
        origin: What the mark says about it, ``tool output (shell)``; ``""`` for the platform's own words.
    """

    tool_use_id: str
    name: str
    input: Mapping[str, Any]
    text: str
    data: dict[str, Any] | None
    is_error: bool
    origin: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """One request to the model.

    Everything but ``attempt`` is derived from the request alone, so that a brain which only looks at its turn goes on
    rightly after the worker, or this server, was killed. (A client that rewrites its history, to compact it, changes
    ``step`` with it.)

    Attributes:
        model: The model id that was asked for.
        system: The text of the system prompt.
        messages: The raw messages, oldest first; read only.
        tools: The names of the tools that are offered.
        results: The tool results since the last assistant message, in the order in which they were sent.
        step: How many assistant messages there are: 0 at the first turn.
        first_text: The text of the first user message that has one.
        last_text: The text of the last message; ``""`` if it carries only tool results.
        user_id: ``metadata.user_id`` of the request, or ``""``.
        conversation: A digest of ``user_id`` and ``first_text``: the same at every step. Two conversations that start
            with the same words share it unless the client sets ``metadata.user_id``.
        attempt: How often this server process was asked for this same step before; 0 at the first time.
    """

    model: str
    system: str
    messages: Sequence[Mapping[str, Any]]
    tools: tuple[str, ...]
    results: tuple[Result, ...]
    step: int
    first_text: str
    last_text: str
    user_id: str
    conversation: str
    attempt: int = 0

    @classmethod
    def from_body(cls, body: Mapping[str, Any]) -> Turn:
        """Read the body of a ``POST /v1/messages`` that has passed :func:`operator_core.scripted.rules.check`."""
        messages: list[Mapping[str, Any]] = body["messages"]
        step = sum(1 for message in messages if message["role"] == "assistant")
        first = next((text for m in messages if m["role"] == "user" and (text := text_of(m["content"]))), "")
        user_id = str((body.get("metadata") or {}).get("user_id") or "")
        return cls(
            model=body["model"],
            system=text_of(body.get("system")),
            messages=messages,
            tools=tuple(str(tool.get("name", "")) for tool in body.get("tools") or ()),
            results=tuple(_results(messages, _last_assistant(messages))),
            step=step,
            first_text=first,
            last_text=text_of(messages[-1]["content"]),
            user_id=user_id,
            conversation=hashlib.sha256(f"{user_id}\0{first}".encode()).hexdigest()[:16],
        )

    @property
    def place(self) -> str:
        """What ``attempt`` is counted by: conversation, model, first tool call and step."""
        first_call = next(
            (str(b.get("id")) for m in self.messages if m["role"] == "assistant" for b in _calls(m)),
            "",
        )
        return f"{self.conversation}:{self.model}:{first_call}:{self.step}"

    def history(self) -> Iterator[Result]:
        """All tool results of the conversation, oldest first; they are parsed as they are asked for."""
        return _results(self.messages, 0)


def _calls(message: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    return (block for block in content_blocks(message["content"]) if block.get("type") == "tool_use")


def _last_assistant(messages: Sequence[Mapping[str, Any]]) -> int:
    return next((i for i in range(len(messages) - 1, -1, -1) if messages[i]["role"] == "assistant"), 0)


def _results(messages: Sequence[Mapping[str, Any]], start: int) -> Iterator[Result]:
    calls: dict[str, Mapping[str, Any]] = {}
    for index in range(start, len(messages)):
        message = messages[index]
        if message["role"] == "assistant":
            calls = {str(block.get("id")): block for block in _calls(message)}
            continue
        for block in content_blocks(message["content"]):
            if block.get("type") == "tool_result":
                call_id = str(block.get("tool_use_id"))
                yield _result(block, call_id, calls.get(call_id, {}))


def _result(block: Mapping[str, Any], call_id: str, call: Mapping[str, Any]) -> Result:
    origin, text = unfence(text_of(block.get("content")))
    data: object = None
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError:
            data = None
    return Result(
        tool_use_id=call_id,
        name=str(call.get("name", "")),
        input=call.get("input") or {},
        text=text,
        data=data if isinstance(data, dict) else None,
        is_error=bool(block.get("is_error")),
        origin=origin,
    )

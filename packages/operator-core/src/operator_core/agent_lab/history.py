"""A session's journal, folded into the conversation: the same ``messages=`` byte for byte, and what is still open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from operator_core.model.entry import Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.usage import Usage

__all__ = ["Conversation", "fold"]


class Conversation:
    """The conversation so far.

    It grows in the same way live and from the journal, because both go through :meth:`add`.

    Attributes:
        messages: What goes to the API, complete: every ``tool_use`` in it is answered, except those in ``open_calls``.
        open_calls: ``tool_use`` blocks of the last assistant message without a result, in order.
        intents: Ids of calls whose intent was journaled: they may have been started.
        intent_places: Where each of them was to run.
        turns: Replies of the model.
        stop_reason: Why the last of them ended.
        usage: Their tokens and money.
        nudges: How often the agent was asked for an outcome.
        outcome: How it ended, if it has.
        size: Characters of all messages as JSON; the next call's tokens are estimated from it.
    """

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.open_calls: list[dict[str, Any]] = []
        self.intents: set[str] = set()
        self.intent_places: dict[str, str] = {}
        self.turns = 0
        self.stop_reason: str | None = None
        self.usage = Usage()
        self.nudges = 0
        self.outcome: Outcome | None = None
        self.size = 0
        self._answer: list[dict[str, Any]] = []
        self._asked: list[str] = []

    def add(
        self,
        kind: str,
        *,
        body: Any = None,
        meta: dict[str, Any] | None = None,
        tool_use_id: str | None = None,
        text: str | None = None,
    ) -> None:
        """Take in one journal entry."""
        meta = meta or {}
        if kind == EntryKind.MESSAGE:
            self._close_answer()
            self._append(body)
            if body["role"] == "assistant":
                self.turns += 1
                self.stop_reason = meta.get("stop_reason")
                self.usage = self.usage.plus(Usage(**meta["usage"])) if "usage" in meta else self.usage
                blocks = body["content"] if isinstance(body["content"], list) else []
                self.open_calls = [b for b in blocks if b.get("type") == "tool_use"]
                self._asked = [b["id"] for b in self.open_calls]
            elif meta.get("nudge"):
                self.nudges += 1
        elif kind == EntryKind.TOOL_CALL and tool_use_id:
            self.intents.add(tool_use_id)
            self.intent_places[tool_use_id] = str(meta.get("place", ""))
        elif kind == EntryKind.TOOL_RESULT and body is not None:
            self._answer.append(body)
            self.open_calls = [b for b in self.open_calls if b["id"] != body["tool_use_id"]]
        elif kind == EntryKind.NOTE and text:
            self._answer.append({"type": "text", "text": text})
            if self.outcome is not None and self.outcome.kind is OutcomeKind.BLOCKED:
                self.outcome, self.nudges = None, 0  # a person answered: the same conversation goes on
        elif kind == EntryKind.OUTCOME:
            self.outcome = Outcome(OutcomeKind(meta["outcome"]), text or "", body)

    def ready(self) -> list[Any]:
        """The messages for the next request; all calls must be answered."""
        assert not self.open_calls, "a tool call is not answered"
        self._close_answer()
        return list(self.messages)

    def _close_answer(self) -> None:
        if self._answer:
            # The API wants the results first and in the order of the calls; notes of people come behind them.
            results = [b for b in self._answer if b["type"] == "tool_result"]
            results.sort(key=lambda b: self._asked.index(b["tool_use_id"]))
            notes = [b for b in self._answer if b["type"] != "tool_result"]
            self._append({"role": "user", "content": results + notes})
            self._answer = []

    def _append(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self.size += len(json.dumps(message, ensure_ascii=False))

    @property
    def last_text(self) -> str:
        """What the model said last, without its calls; empty if the last message is not its own."""
        if not self.messages or self.messages[-1]["role"] != "assistant":
            return ""
        content = self.messages[-1]["content"]
        if isinstance(content, str):
            return content
        return "\n".join(b["text"] for b in content if b.get("type") == "text")

    @property
    def answering(self) -> bool:
        """Whether the next message has begun: there are results or notes that were not sent yet."""
        return bool(self._answer)

    @property
    def unanswered(self) -> bool:
        """Whether the model has the last word, so that nothing can be sent yet."""
        return not self._answer and bool(self.messages) and self.messages[-1]["role"] == "assistant"


def fold(entries: Iterable[Entry], phase: str) -> Conversation:
    """The conversation of one phase of a session, from its journal."""
    conversation = Conversation()
    for entry in entries:
        if entry.phase == phase:
            conversation.add(
                entry.entry_type,
                body=entry.body,
                meta=entry.meta,
                tool_use_id=entry.tool_use_id,
                text=entry.raw_content,
            )
    return conversation

"""A session's journal, folded into the conversation: the same ``messages=`` byte for byte, and what is still open."""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from operator_core.agent_lab.fence import Fence, Origin
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.usage import Usage

__all__ = ["Conversation", "Measured", "fold"]

_BEGINNINGS = (EntryKind.SESSION_START, EntryKind.PHASE_START)
_RECENT = 4


class Measured(NamedTuple):
    """What the model service counted last.

    Attributes:
        tokens: Of the request and its reply; 0 if the service does not say.
        size: ``Conversation.size`` with that reply.
        before: The tokens of the reply before, if the context only grew since then; else None.
    """

    tokens: int
    size: int
    before: int | None


class Conversation:
    """The conversation so far.

    It grows in the same way live and from the journal, because both go through :meth:`add`.

    Args:
        fence: Marks what others wrote (default: nothing is marked).

    Attributes:
        messages: What goes to the API: every ``tool_use`` in it is answered, except those in ``open_calls``. What was
            masked or left behind in a restart of the context is in the journal only.
        opening: Those before the first reply, from which every context begins.
        open_calls: ``tool_use`` blocks of the last assistant message without a result, in order.
        intents: Ids of calls whose intent was journaled: they may have been started.
        intent_places: Where each of them was to run.
        held: Open calls that were never started, because a person is asked about them or about one before them, with
            the id of the question; empty: it waits for one before it.
        turns: Replies of the model.
        stop_reason: Why the last of them ended.
        usage: Their tokens and money.
        nudges: How often the agent was asked for an outcome.
        outcome: How it ended, if it has.
        said: What people said, oldest first.
        measured: What the service counted last; None before the first reply.
        masked: Ids of calls whose results were replaced by a placeholder.
        wound_down: ``turns`` when the agent was told to wind down; None if it was not, in this context.
        restarts: How often the context was begun anew.
        began: ``turns`` when it was begun.
        system: The system prompt that was read at the last restart; None: that of the beginning.
        repeats: How many of the last turns, without a gap, were the same as one shortly before, their results included.
        idle: How many of the last replies, without a gap, called no tool.
    """

    def __init__(self, fence: Fence | None = None) -> None:
        self.fence = fence or Fence()
        self.messages: list[dict[str, Any]] = []
        self.opening: list[dict[str, Any]] = []
        self.open_calls: list[dict[str, Any]] = []
        self.intents: set[str] = set()
        self.intent_places: dict[str, str] = {}
        self.held: dict[str, str] = {}
        self.turns = 0
        self.stop_reason: str | None = None
        self.usage = Usage()
        self.nudges = 0
        self.outcome: Outcome | None = None
        self.said: list[str] = []
        self.measured: Measured | None = None
        self.masked: set[str] = set()
        self.wound_down: int | None = None
        self.restarts = 0
        self.began = 0
        self.system: str | None = None
        self.repeats = 0
        self.idle = 0
        self._size = 0
        self._answer: list[dict[str, Any]] = []
        self._asked: list[str] = []
        self._turn: list[str] = []
        self._recent: deque[bytes] = deque(maxlen=_RECENT)

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
            if body["role"] == "assistant" and not self.turns:
                self.opening = list(self.messages)  # also what people said before the task
            self._append(body)
            if body["role"] == "assistant":
                self.turns += 1
                self.stop_reason = meta.get("stop_reason")
                self.usage = self.usage.plus(Usage(**meta["usage"])) if "usage" in meta else self.usage
                blocks = body["content"] if isinstance(body["content"], list) else []
                self.open_calls = [b for b in blocks if b.get("type") == "tool_use"]
                self._asked = [b["id"] for b in self.open_calls]
                self.held = {}
                self._measure(meta)
                self._begin_turn(blocks)
            elif meta.get("nudge"):
                self.nudges += 1
        elif kind == EntryKind.TOOL_CALL and tool_use_id:
            self.intents.add(tool_use_id)
            self.intent_places[tool_use_id] = str(meta.get("place", ""))
        elif kind == EntryKind.TOOL_RESULT and body is not None:
            self._answer.append(body)
            self._turn.append(str(body.get("content")))
            self.open_calls = [b for b in self.open_calls if b["id"] != body["tool_use_id"]]
            self.held.pop(body["tool_use_id"], None)
        elif kind == EntryKind.APPROVAL and isinstance(body, dict):
            self._hold(body)
        elif kind == EntryKind.NOTE and text:
            self._answer.append({"type": "text", "text": self.note(text)})
            self.said.append(text)
            self._forget_turns()
            if self.outcome is not None and self.outcome.kind is OutcomeKind.BLOCKED:
                self.outcome, self.nudges = None, 0  # a person answered: the same conversation goes on
        elif kind == EntryKind.OUTCOME:
            self.outcome = Outcome(OutcomeKind(meta["outcome"]), text or "", body)
        elif kind == EntryKind.COMPACTION and text:
            self._mask(body["masks"])
            self._answer.append({"type": "text", "text": text})
        elif kind == EntryKind.WIND_DOWN and text:
            self._answer.append({"type": "text", "text": text})
            self.wound_down = self.turns
        elif kind == EntryKind.RESTART and text:
            self._restart(body, text)

    def _hold(self, body: Mapping[str, Any]) -> None:
        """A question about a call, or the end of its waiting."""
        call = str(body.get("call"))
        if body.get("event") == "asked":
            for other in body["held"]:
                self.held.setdefault(str(other), "")
            self.held[call] = str(body["approval"])
        elif body.get("event") in ("used", "let"):
            # From here on it may have been started, and nowhere else.
            self.held.pop(call, None)
            self.intent_places[call] = str(body["place"])

    def note(self, text: str) -> str:
        """What a person said, as the model is told."""
        return self.fence.wrap(Origin.PERSON, text)

    def ready(self) -> list[Any]:
        """The messages for the next request; all calls must be answered."""
        assert not self.open_calls, "a tool call is not answered"
        # Nothing is changed by asking, or what is added after a failed request would go elsewhere than in a fold.
        return [*self.messages, *self._begun_answer()]

    @property
    def size(self) -> int:
        """Characters of all messages as JSON; the next call's tokens are estimated from it."""
        return self._size + sum(_size(block) for block in self._answer)

    def same(self) -> int:
        """``repeats``, with the turn that has just ended."""
        return self.repeats + 1 if self._turn and self._digest() in self._recent else 0

    def _close_answer(self) -> None:
        closed, self._answer = self._begun_answer(), []
        for message in closed:
            self._append(message)

    def _begun_answer(self) -> list[dict[str, Any]]:
        # The API wants the results first and in the order of the calls; notes of people come behind them.
        results = [b for b in self._answer if b["type"] == "tool_result"]
        results.sort(key=lambda b: self._asked.index(b["tool_use_id"]))
        notes = [b for b in self._answer if b["type"] != "tool_result"]
        return [{"role": "user", "content": results + notes}] if self._answer else []

    def _append(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        self._size += _size(message)

    def _measure(self, meta: Mapping[str, Any]) -> None:
        used = Usage(**meta["usage"]) if "usage" in meta else Usage()
        prompt = used.tokens - used.output_tokens
        before = self.measured.tokens if self.measured and self.measured.size < self._size else None
        self.measured = Measured(used.tokens if prompt else 0, self._size, before)

    # ---- the same turn again and again

    def _begin_turn(self, blocks: list[dict[str, Any]]) -> None:
        if self._turn:
            self.repeats = self.same()
            self._recent.append(self._digest())
        self.idle = 0 if self.open_calls else self.idle + 1
        kept = [b for b in blocks if b.get("type") in ("text", "tool_use")]
        self._turn = [json.dumps([b.get("text"), b.get("name"), b.get("input")], sort_keys=True) for b in kept]

    def _digest(self) -> bytes:
        return hashlib.sha256(json.dumps(self._turn).encode()).digest()

    def _forget_turns(self) -> None:
        self._turn, self.repeats, self.idle = [], 0, 0
        self._recent.clear()

    # ---- a context that is getting full

    def _mask(self, masks: Mapping[str, str]) -> None:
        """Replace results by what stands for them."""

        def masked(block: Any) -> Any:
            call = str(block.get("tool_use_id")) if isinstance(block, dict) else ""
            return {**block, "content": masks[call]} if call in masks else block

        for i, message in enumerate(self.messages):
            if message["role"] == "user" and isinstance(message["content"], list):
                content = [masked(block) for block in message["content"]]
                if content != message["content"]:
                    self.messages[i] = {**message, "content": content}
        self._answer = [masked(block) for block in self._answer]
        self.masked |= set(masks)
        self._size = sum(_size(message) for message in self.messages)

    def _restart(self, body: Mapping[str, Any], note: str) -> None:
        """The opening, the last messages, and a note of what happened."""
        self._close_answer()
        self._mask(body["masks"])
        *rest, last = [*self.opening, *self.messages[len(self.messages) - body["carried"] :]]
        if last["role"] == "assistant":  # the service had paused in the middle of its reply
            rest, last = [*rest, last], {"content": []}
        blocks = last["content"] if isinstance(last["content"], list) else [{"type": "text", "text": last["content"]}]
        self.messages = [*rest, {"role": "user", "content": [*blocks, {"type": "text", "text": note}]}]
        self._size = sum(_size(message) for message in self.messages)
        self.system = body["system"] or self.system
        self.restarts, self.began, self.wound_down = self.restarts + 1, self.turns, None
        self._forget_turns()

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
    def unanswered(self) -> bool:
        """Whether the model has the last word, so that nothing can be sent yet."""
        return not self._answer and bool(self.messages) and self.messages[-1]["role"] == "assistant"


def fold(entries: Iterable[Entry], phase: str, fence: Fence | None = None) -> Conversation:
    """The conversation of one phase of a session, from its journal.

    Args:
        fence: For a conversation that has not begun; else the journal says which.
    """
    entries = list(entries)
    conversation = Conversation(_fence_of(entries, phase) or fence)
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


def _fence_of(entries: Iterable[Entry], phase: str) -> Fence | None:
    """The fence with which a conversation began; None if it has not begun."""
    for entry in entries:
        body = entry.body if entry.entry_type in _BEGINNINGS else None
        if isinstance(body, dict) and body.get("agent", entry.phase) == phase:
            return Fence(str(body.get("mark", "")))
    return None


def _size(value: dict[str, Any]) -> int:
    return len(json.dumps(value, ensure_ascii=False))

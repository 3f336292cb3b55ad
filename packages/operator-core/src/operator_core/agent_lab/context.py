"""What happens when a conversation outgrows the model's context.

At the soft threshold the oldest observations give way to placeholders, many at once, because each change of what was
sent before costs the prompt cache. At the hard one the agent is told to wind down, and a little later its context
begins anew with the opening, what people said, and its last turns. Each step is a journal entry that says exactly what
became of the messages, so that whoever goes on from the journal sends the same bytes. The opening (the ticket or the
task, its checks and rules) and the system prompt are never touched, and nothing is lost: the journal keeps it all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from operator_core.agent_lab.history import Conversation, Measured
from operator_core.agent_lab.placeholders import clipped, placeholder
from operator_core.config import ContextSettings
from operator_core.errors import LimitReached
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.text import clip

if TYPE_CHECKING:
    from operator_core.agent_lab.agent_run import AgentRun

__all__ = ["ContextManager", "Standing", "Window"]

_LOW = 0.6
"""Masking goes on down to this part of the soft threshold."""
_WORTH_IT = 0.1
"""A smaller part of the context is not masked for: the cache is worth more."""
_WIND_DOWN_TURNS = 3
_USUAL = 4.0
"""Characters per token, as long as nothing was measured."""
_LIKELY = (1.0, 8.0)
_SHRUNK = 0.8
_ENOUGH = 20_000
_SAID = 20
_OVERFLOW = re.compile(
    r"prompt is too long|context (length|window|size)|too many (input )?tokens|maximum context|exceeds? .{0,40}context",
    re.IGNORECASE,
)

Standing = Callable[[int], Awaitable[str | None]]
"""Called before the context begins anew, with the number of the new one (the first is 1): the system prompt from now
on, or None for the same. It may wait for a person, or raise :class:`LimitReached`."""


class Window(NamedTuple):
    """The thresholds, in tokens.

    Attributes:
        low: How far masking goes.
        soft: From here on observations are masked.
        hard: From here on the agent winds down.
        full: No request may be larger, or its reply has no room.
        reply: Longest reply.
    """

    low: int
    soft: int
    hard: int
    full: int
    reply: int

    @classmethod
    def of(cls, settings: ContextSettings, max_tokens: int) -> Window:
        """The thresholds of a context; ``max_tokens`` is the longest reply, shortened if the context is small."""
        reply = min(max_tokens, settings.limit_tokens // 4)
        full = settings.limit_tokens - reply
        hard = min(settings.hard * settings.limit_tokens, 0.95 * full)
        soft = hard * settings.soft / settings.hard
        return cls(int(soft * _LOW), int(soft), int(hard), full, reply)


class _Observation(NamedTuple):
    """A result in the context: its call, what it says, and whether the model has not seen it yet."""

    call: str
    name: str
    content: str
    newest: bool


class ContextManager:
    """Keeps one conversation inside of its model's context.

    Args:
        settings: The size of the context and the thresholds.
        max_tokens: Longest reply.
        standing: See :data:`Standing`.
    """

    def __init__(self, settings: ContextSettings, max_tokens: int, standing: Standing | None = None) -> None:
        self.settings = settings
        self.window = Window.of(settings, max_tokens)
        self._standing = standing
        self._warned = False

    # ---- how full it is

    def used(self, run: AgentRun) -> int:
        """Tokens of the next request: what the service counted last, and an estimate of what has changed since."""
        conversation, system = run.conversation, len(run.system)
        measured = conversation.measured
        per_token = characters_per_token(measured, system)
        if measured is None or per_token is None:
            return int((conversation.size + system) / _USUAL)
        return max(0, measured.tokens + int((conversation.size - measured.size) / per_token))

    def due(self, run: AgentRun) -> bool:
        """Whether something has to be done before the next request."""
        self._watch(run)
        return self._next(run) is not None

    async def make_room(self, run: AgentRun) -> None:
        """Do what has to be done before the next request.

        Raises:
            LimitReached: What may not be left out is larger than the context.
        """
        if run.conversation.unanswered:
            return  # the service paused in the middle of a reply, which goes on with just these messages
        while (step := self._next(run)) is not None:
            await self._take(run, step)

    async def overflowed(self, run: AgentRun, error: BaseException) -> bool:
        """The service refused a request: whether it was too long for it, and is shorter now."""
        said = str(getattr(error, "message", None) or error)
        if getattr(error, "status_code", None) not in (400, 413) or not _OVERFLOW.search(said):
            return False
        conversation = run.conversation
        if conversation.turns <= conversation.began:
            return False
        run.say(f"[Context] The service says that the request is too long: {clip(said, 200)}")
        await self._take(run, "restart")
        return True

    async def begin_anew(self, run: AgentRun) -> None:
        """The service had no room for the whole reply: begin anew, if there is anything to leave behind."""
        if run.conversation.turns > run.conversation.began:
            await self._take(run, "restart")

    # ---- steps

    def _next(self, run: AgentRun) -> str | dict[str, str] | None:
        """The masks to put on, ``wind_down``, ``restart``, or nothing."""
        window, conversation = self.window, run.conversation
        used = self.used(run)
        if used < window.soft:
            return None
        if masks := self._masks(run, used):
            return masks
        if used < window.hard:
            return None
        if used >= window.full:
            return "restart"
        if conversation.wound_down is None:
            return "wind_down" if conversation.turns > conversation.began else None
        return "restart" if conversation.turns - conversation.wound_down >= _WIND_DOWN_TURNS else None

    async def _take(self, run: AgentRun, step: str | dict[str, str]) -> None:
        if isinstance(step, dict):
            await self._compact(run, step)
        elif step == "wind_down":
            share = 100 * self.used(run) // self.settings.limit_tokens
            text = (
                f"[Context window {share}% full. Please wrap up your current task and write any important state to "
                "workspace files. The session will restart shortly.]"
            )
            meta = {"tokens": self.used(run)}
            run.say(f"[Context] {share} % full; the agent is told to wind down")
            await run.write(Draft(EntryKind.WIND_DOWN, f"context {share} % full", text, meta=meta))
        else:
            await self._restart(run)

    def _masks(self, run: AgentRun, used: int) -> dict[str, str]:
        """Placeholders for the oldest observations, as many as are worth it."""
        per_token = characters_per_token(run.conversation.measured, len(run.system)) or _USUAL
        masks: dict[str, str] = {}
        saved = 0.0
        for seen in _observations(run.conversation):
            if used - saved <= self.window.low or seen.newest:
                break
            text = placeholder(seen.name, seen.content)
            gain = (len(seen.content) - len(text)) / per_token
            if seen.call not in run.conversation.masked and gain > 50:
                masks[seen.call] = text
                saved += gain
        if used < self.window.hard:
            useful = saved >= _WORTH_IT * self.settings.limit_tokens
        else:  # close to the end only what really helps, or what leaves the room to wind down
            useful = used - saved < (self.window.soft if used < self.window.full else self.window.full)
        return masks if useful else {}

    async def _compact(self, run: AgentRun, masks: dict[str, str]) -> None:
        before, total = self.used(run), len(run.conversation.masked | set(masks))
        trial = sum(len(o.content) - len(masks[o.call]) for o in _observations(run.conversation) if o.call in masks)
        per_token = characters_per_token(run.conversation.measured, len(run.system)) or _USUAL
        share = round(100 * trial / per_token / self.settings.limit_tokens)
        text = (
            f"[Context compressed: {len(masks)} observations masked this round, {total} total, "
            f"~{share}% context reclaimed]"
        )
        meta = {"tokens": before, "reclaimed_pct": share, "total": total}
        run.say(f"[Context] {len(masks)} observations masked, about {share} % of the context reclaimed")
        reach("context.compact")
        await run.write(Draft(EntryKind.COMPACTION, text.strip("[]"), text, body={"masks": masks}, meta=meta))

    async def _restart(self, run: AgentRun) -> None:
        conversation = run.conversation
        if conversation.turns <= conversation.began:
            raise LimitReached(
                f"What the agent has to know from the beginning does not fit into a context of "
                f"{self.settings.limit_tokens} tokens; set [context] limit_tokens to what the model can take."
            )
        number = conversation.restarts + 2
        system = await self._standing(number) if self._standing else None
        if system is not None:
            system = run.gateway.clean(system)
        note = self._note(run, number)
        carried, masks = self._carry(run, len(system or run.system) + len(note))
        body = {"number": number, "carried": carried, "masks": masks, "system": system}
        if system is not None:
            body["system_sha256"] = hashlib.sha256(system.encode("utf-8", "surrogatepass")).hexdigest()
        meta = {"tokens": self.used(run), "previous_turns": conversation.turns - conversation.began}
        run.say(f"[Context] full: the agent begins context {number}, with {carried} messages carried over")
        reach("context.restart")
        await run.write(Draft(EntryKind.RESTART, f"context {number}, {carried} messages", note, body=body, meta=meta))
        if system is not None:
            run.system = system

    def _note(self, run: AgentRun, number: int) -> str:
        text = (
            f"[Session restarted. Session #{number}. Previous session context was full. "
            "Check your workspace files for progress state.]"
        )
        told: list[str] = []
        room = self._characters(run) / 4
        for one in reversed(run.conversation.said[-_SAID:]):
            told.insert(0, run.conversation.note(clip(one, 2000)))
            room -= len(told[0])
            if room < 0:
                break
        if told:
            text += "\n\nWhat people have told you since the beginning, which still holds:\n" + "\n".join(told)
        return run.gateway.clean(text)

    def _characters(self, run: AgentRun) -> float:
        """How many characters reach the soft threshold."""
        per_token = characters_per_token(run.conversation.measured, len(run.system)) or _USUAL
        return self.window.soft * per_token

    def _carry(self, run: AgentRun, standing: int) -> tuple[int, dict[str, str]]:
        """How many of the last messages are carried over, and what is masked in them.

        A turn is a reply with the answers to its calls; it is carried as a whole or not at all.

        Args:
            standing: Characters that are there beside them and the opening.
        """
        conversation, messages = run.conversation, run.conversation.ready()
        opening = sum(len(str(message["content"])) for message in conversation.opening)
        room = max(0.0, self._characters(run) - standing - opening) / 2
        masks: dict[str, str] = {}
        newest = {seen.call: seen for seen in _observations(conversation) if seen.newest}
        starts = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
        carried, end = 0, len(messages)
        for start in reversed(starts[max(0, len(starts) - self.settings.carryover_turns) :]):
            size = sum(len(str(message["content"])) for message in messages[start:end])
            if not carried and size > room:
                for seen in sorted(newest.values(), key=lambda one: -len(one.content)):
                    short = clipped(seen.name, seen.content, int(room / (2 * len(newest))))
                    if size > room and len(short) < len(seen.content):
                        masks[seen.call] = short
                        size -= len(seen.content) - len(short)
            if size > room:
                break
            room -= size
            carried, end = len(messages) - start, start
        return carried, masks if carried else {}

    # ---- a service that cuts what it gets

    def _watch(self, run: AgentRun) -> None:
        """Say it once when the service counts far less than it was sent."""
        measured = run.conversation.measured
        if self._warned or measured is None or not measured.tokens:
            return
        fewer = measured.before is not None and measured.tokens < _SHRUNK * measured.before
        far = measured.size > _ENOUGH and characters_per_token(measured, len(run.system)) is None
        if fewer or far:
            self._warned = True
            run.say(
                f"[Context] The model service counted {measured.tokens} tokens, far fewer than it was sent: it may cut "
                "the context silently. Give the server a larger context (Ollama: OLLAMA_CONTEXT_LENGTH), or set "
                "[context] limit_tokens to what it has."
            )


def characters_per_token(measured: Measured | None, system: int) -> float | None:
    """As the service counts; None if it does not count, or not all that it was sent."""
    if measured is None or not measured.tokens:
        return None
    ratio = (measured.size + system) / measured.tokens
    return None if ratio > _LIKELY[1] else max(_LIKELY[0], ratio)


def _observations(conversation: Conversation) -> list[_Observation]:
    """All results in the context, oldest first."""
    messages = conversation.ready()
    names: dict[str, str] = {}
    found = []
    for i, message in enumerate(messages):
        blocks: list[dict[str, Any]] = message["content"] if isinstance(message["content"], list) else []
        for block in blocks:
            if block.get("type") == "tool_use":
                names[block["id"]] = block["name"]
            elif block.get("type") == "tool_result":
                call = block["tool_use_id"]
                content = str(block.get("content"))
                found.append(_Observation(call, names.get(call, ""), content, i == len(messages) - 1))
    return found

"""What answers instead of a model: the answers themselves and the brains that choose them.

A brain is stateless: its answer depends on the :class:`Turn` alone, and all that a conversation knows is in the turn's
messages. So a session that is resumed by another worker, or after this server was restarted, goes on where it was.
What depends on repetition (fail twice, then answer) reads ``turn.attempt``, which the server counts for it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from operator_core.errors import ConfigError
from operator_core.scripted.turn import Result, Turn, unfence

__all__ = [
    "Answer",
    "Brain",
    "Call",
    "Failure",
    "FunctionBrain",
    "Reply",
    "Result",
    "Router",
    "ScriptBrain",
    "SummaryBrain",
    "Turn",
]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call.

    Attributes:
        name: The tool.
        input: Its arguments; must be expressible in JSON.
        id: The ``tool_use`` id; ``""`` (default) lets the server choose a fresh one.
    """

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """An assistant message, and optionally a fault on its way to the client.

    Attributes:
        text: The text block; none if empty.
        thinking: The thinking block before it; none if empty.
        calls: The tool calls after it.
        stop_reason: Default: ``tool_use`` if there are calls, else ``end_turn``.
        usage: Overrides fields of the computed usage, e.g. ``{"input_tokens": 190_000}``.
        delay_s: Seconds before the first byte.
        chunk_delay_s: Seconds before each event of a stream.
        drop: The connection closes: ``start`` before any byte, ``mid`` after half of the answer.
        truncate: Half of the answer, then a clean end: a stream without ``message_stop``, or half a JSON document.
        stream_error: An error type (``overloaded_error``, ...) that is sent as an SSE ``error`` event after half of the
            stream; a request without streaming gets the HTTP error of that type.
        times: For :class:`ScriptBrain`: how often a fault (drop, truncate, stream_error) strikes at its step before the
            script goes on; None for always.
    """

    text: str = ""
    thinking: str = ""
    calls: tuple[Call, ...] = ()
    stop_reason: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    delay_s: float = 0.0
    chunk_delay_s: float = 0.0
    drop: Literal["start", "mid"] | None = None
    truncate: bool = False
    stream_error: str | None = None
    times: int | None = 1

    @property
    def fault(self) -> str | None:
        """Name of the fault that keeps this reply from arriving whole, or None."""
        if self.drop is not None:
            return f"drop:{self.drop}"
        if self.truncate:
            return "truncate"
        return f"stream_error:{self.stream_error}" if self.stream_error else None


@dataclass(frozen=True, slots=True)
class Failure:
    """An HTTP error.

    Attributes:
        status: 400 to 599, e.g. 401, 404, 413, 429, 500, 529.
        message: The error's message; default: one that says that it is scripted.
        headers: Further response headers, e.g. ``{"retry-after": "1"}``.
        times: For :class:`ScriptBrain`: how often it strikes at its step before the script goes on; None for always.
        delay_s: Seconds before the answer.
        details: ``error.details`` of the body, e.g. ``{"error_code": "..."}``.
    """

    status: int
    message: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int | None = 1
    delay_s: float = 0.0
    details: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 400 <= self.status <= 599:
            raise ConfigError(f"A scripted failure needs an HTTP status from 400 to 599, not {self.status}.")


Answer: TypeAlias = Reply | Failure


class Brain(Protocol):
    """Chooses the answer to a turn; should be stateless (see the module's docstring)."""

    async def reply(self, turn: Turn) -> Answer:
        """The answer to this turn; an exception becomes an HTTP 500 that the SDK does not retry."""
        ...


class ScriptBrain:
    """Answers by a list, one reply per step.

    A failure, or a reply with a fault, does not take a step (the client has no assistant message afterwards): it comes
    before the next whole reply, ``times`` times for each conversation::

        ScriptBrain([Failure(529, times=2), Reply(calls=(Call("shell", {...}),)), Reply("done")])

    Args:
        steps: The answers in order.
        after: What follows when the script is over.
    """

    def __init__(self, steps: Sequence[Answer], *, after: Answer | None = None) -> None:
        self._groups: list[list[Answer]] = [[]]
        for step in steps:
            self._groups[-1].append(step)
            if isinstance(step, Reply) and step.fault is None:
                self._groups.append([])
        self._after: Answer = Reply(text="The script is over.") if after is None else after

    async def reply(self, turn: Turn) -> Answer:
        """The answer for ``turn.step`` and ``turn.attempt``."""
        if turn.step >= len(self._groups):
            return self._after
        attempt = turn.attempt
        for answer in self._groups[turn.step]:
            if isinstance(answer, Reply) and answer.fault is None:
                return answer
            if answer.times is None or attempt < answer.times:
                return answer
            attempt -= answer.times
        return self._after


class FunctionBrain:
    """Answers by a function of the turn, plain or ``async``; a bare string becomes a text reply."""

    def __init__(self, function: Callable[[Turn], Answer | str | Awaitable[Answer | str]]) -> None:
        self._function = function

    async def reply(self, turn: Turn) -> Answer:
        """What the function returns for this turn."""
        answer = self._function(turn)
        if inspect.isawaitable(answer):
            answer = await answer
        return Reply(text=answer) if isinstance(answer, str) else answer


_TAGGED = re.compile(r"<(\w+)>\s*(.*?)\s*</\1>", re.DOTALL)
_ERROR_LOOKING = re.compile(
    r"\b\w*(error|exception)\b|\b(fail(ed|ure|s)?|fatal|panic|refused|denied|traceback|timed out|critical"
    r"|cannot|no such|not found)\b",
    re.IGNORECASE,
)


class SummaryBrain:
    """A deterministic summariser: the first error-looking line, else the last line, clipped.

    If the request has fenced text or tagged parts (``<output>...</output>``), only the last of them is read, not the
    instructions.

    Args:
        limit: Most characters of a summary (default 160).
    """

    def __init__(self, limit: int = 160) -> None:
        self._limit = limit

    async def reply(self, turn: Turn) -> Answer:
        """One line about the last text of the turn."""
        text = unfence(turn.last_text).text
        tagged = _TAGGED.findall(text)
        lines = [line.strip() for line in (tagged[-1][1] if tagged else text).splitlines() if line.strip()]
        line = next((line for line in lines if _ERROR_LOOKING.search(line)), lines[-1] if lines else "(no output)")
        return Reply(text=line if len(line) <= self._limit else line[: self._limit - 1] + "…")


class Router:
    """Sends each turn to one of several brains.

    A request of a Haiku-class model without tools is a summary: it goes to ``summaries`` unless a route takes it.

    Args:
        routes: Brain by model id, by its beginning (``"claude-opus"``), or by a predicate; the first that fits wins.
        default: For all other turns; without it they get 404.
        summaries: For summary requests (default: a :class:`SummaryBrain`).
    """

    def __init__(
        self,
        routes: Mapping[str | Callable[[Turn], bool], Brain] | None = None,
        *,
        default: Brain | None = None,
        summaries: Brain | None = None,
    ) -> None:
        self._routes = dict(routes or {})
        self._default = default
        self._summaries = SummaryBrain() if summaries is None else summaries

    @classmethod
    def around(cls, brain: Brain) -> Router:
        """The brain itself if it is a router; otherwise a router that sends it everything but summaries."""
        return brain if isinstance(brain, Router) else cls(default=brain)

    async def reply(self, turn: Turn) -> Answer:
        """The answer of the brain that this turn belongs to."""
        brain = self._choose(turn)
        if brain is None:
            return Failure(404, f"model: {turn.model}")
        return await brain.reply(turn)

    def _choose(self, turn: Turn) -> Brain | None:
        for key, brain in self._routes.items():
            if turn.model.startswith(key) if isinstance(key, str) else key(turn):
                return brain
        if not turn.tools and "haiku" in turn.model:
            return self._summaries
        return self._default

"""One-line summaries of what happened: at once by rules, later and better by a small model, never on the hot path."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from operator_core.agent_lab.prompts import HAIKU_SUMMARIZE_PROMPT
from operator_core.model.usage import Usage
from operator_core.text import clip, first_line, printable

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic
    from anthropic.types import Message

__all__ = ["MIN_LENGTH", "Summarizer", "summarize_output", "summarize_text", "summarize_with_haiku"]

MIN_LENGTH = 100
"""Shorter texts are their own summary; no model is asked (row A-054)."""
_MAX_INPUT = 12_000
_ERROR = re.compile(
    r"(?i)\b(error|fail(ed|ure)?|fatal|exception|denied|refused|cannot|no such|not found|timed out|panic)\b"
)


def summarize_text(text: str) -> str:
    """The first line that says something."""
    return first_line(printable(text)) or "(no text)"


def summarize_output(stdout: str, stderr: str, exit_code: int | None, *, timed_out: bool = False) -> str:
    """Exit code, the first line that looks like an error, the last line, and how much there was."""
    head = "timed out" if timed_out else f"exit {exit_code}"
    lines = [line.strip() for line in printable(stdout + "\n" + stderr).splitlines() if line.strip()]
    if not lines:
        return f"{head}, no output"
    error = next((line for line in lines if _ERROR.search(line)), None)
    parts = [head]
    if error and error != lines[-1]:
        parts.append(clip(error, 120))
    parts.append(clip(lines[-1], 120))
    return ": ".join((parts[0], " … ".join(parts[1:]))) + (f" ({len(lines)} lines)" if len(lines) > 2 else "")


async def summarize_with_haiku(
    client: AsyncAnthropic,
    text: str,
    model: str = "claude-haiku-4-5",
    *,
    charge: Callable[[Message], None] | None = None,
) -> str:
    """A summary by a Haiku-class model; texts under 100 characters are returned as they are.

    Args:
        client: Where the model is.
        text: What to summarize; long texts are cut in the middle first, so that its price is bounded.
        charge: Told what the call cost.
    """
    if len(text) < MIN_LENGTH:
        return text
    if len(text) > _MAX_INPUT:
        text = f"{text[: _MAX_INPUT // 2]}\n[...]\n{text[-_MAX_INPUT // 2 :]}"
    message = await client.messages.create(
        model=model, max_tokens=150, messages=[{"role": "user", "content": f"{HAIKU_SUMMARIZE_PROMPT}\n\n{text}"}]
    )
    if charge is not None:
        charge(message)
    return next((block.text.strip() for block in message.content if block.type == "text"), "")


class Summarizer:
    """Improves the summaries of journal entries in the background.

    Args:
        ask: Summarizes one text, or raises.
        store: Replaces the summary of an entry (row id, text).
        allowed: Asked before each call; False when the ticket's budget leaves no room for it.

    Attributes:
        used: What its calls cost; kept by ``ask``.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[str]],
        store: Callable[[int, str], Awaitable[None]],
        allowed: Callable[[], bool] = lambda: True,
    ) -> None:
        self.used = Usage()
        self._ask, self._store, self._allowed = ask, store, allowed
        self._queue: asyncio.Queue[tuple[int, str]] = asyncio.Queue(maxsize=1000)
        self._task: asyncio.Task[None] | None = None

    def add(self, entry_id: int, text: str) -> None:
        """Have an entry summarized some time; when too many wait already, its first summary stays."""
        if len(text) < MIN_LENGTH or self._queue.full():
            return
        self._queue.put_nowait((entry_id, text))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="summaries")

    async def close(self, patience_s: float = 5.0) -> None:
        """Finish what waits, for at most so many seconds; the rest keeps its first summary."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), patience_s)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _work(self) -> None:
        while True:
            entry_id, text = await self._queue.get()
            try:
                if self._allowed():
                    # Tool output can try to talk to the summarizer; what comes back is one short, harmless line.
                    summary = clip(" ".join(printable(await self._ask(text)).split()), 400)
                    if summary:
                        await self._store(entry_id, summary)
            except Exception:
                # The entry keeps its deterministic summary: a summary is a comfort, never a reason to fail.
                continue
            finally:
                self._queue.task_done()

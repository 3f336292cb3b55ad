"""What the CLI prints: results of its tools, its retries, and how it judges its own end.

None of it is trusted further than that: everything that runs in the sandbox can write to the same output. What the
model said is taken from the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, NamedTuple

from operator_core.agent_lab.claude_code.record import Record
from operator_core.agent_lab.claude_code.stream import LineReader
from operator_core.errors import OperatorError
from operator_core.model.entry import Draft, EntryKind
from operator_core.text import clip, first_line, printable

__all__ = ["Ending", "EventReader", "ending_of"]

_MOST_RETRIES = 50


class Ending(NamedTuple):
    """How a run ended, as the CLI's ``result`` event says it.

    Attributes:
        ok: It says that it completed its work.
        api_error: HTTP status of the API error that ended it; None if that was not the reason.
        detail: One line for a person, not redacted.
    """

    ok: bool
    api_error: int | None
    detail: str


def ending_of(event: dict[str, Any] | None) -> Ending:
    """Read a ``result`` event: by ``is_error`` and ``terminal_reason``; ``subtype`` says ``success`` for API errors."""
    if event is None:
        return Ending(False, None, "it ended without a result")
    reason = event.get("terminal_reason")
    status = event.get("api_error_status")
    errors = event.get("errors")
    said = [str(item) for item in errors] if isinstance(errors, list) else []
    if event.get("is_error") is False and reason in (None, "completed"):
        return Ending(True, None, "")
    said += [str(event["result"])] if isinstance(event.get("result"), str) else []
    detail = next((line for text in said if (line := first_line(printable(text), 300))), "")
    return Ending(
        False,
        status if isinstance(status, int) and not isinstance(status, bool) else None,
        ": ".join(
            part for part in (clip(printable(str(reason or event.get("subtype") or "error")), 60), detail) if part
        ),
    )


class EventReader:
    """Takes the CLI's output as it comes; its retries are journaled in the background.

    Args:
        record: Told the results of tools.
        say: Prints one line for a person.
        on_result: Called with each ``result`` event: the CLI has nothing more to do.
        on_failure: Called when the journal cannot be written.

    Attributes:
        result: The last ``result`` event.
    """

    def __init__(
        self,
        record: Record,
        say: Callable[[str], None],
        *,
        on_result: Callable[[], None] = lambda: None,
        on_failure: Callable[[OperatorError], None] = lambda error: None,
    ) -> None:
        self.result: dict[str, Any] | None = None
        self._record = record
        self._say = say
        self._on_result, self._on_failure = on_result, on_failure
        self._lines = LineReader()
        self._queue: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._retries = 0

    def feed(self, stream: str, data: memoryview) -> None:
        """The next bytes of ``stdout``; for ``sandbox.exec(on_output=...)``."""
        if stream == "stdout":
            for event in self._lines.feed(data):
                self._sort(event)

    def finish(self) -> None:
        """The output has ended."""
        for event in self._lines.flush():
            self._sort(event)
        self._queue.put_nowait(None)

    async def work(self) -> None:
        """Journal the retries that were fed, until :meth:`finish`."""
        while (event := await self._queue.get()) is not None:
            try:
                await self._retry(event)
            except OperatorError as error:
                self._on_failure(error)

    def _sort(self, event: dict[str, Any]) -> None:
        """Keep only what matters, so that a flood of anything else costs no memory."""
        kind = event.get("type")
        if kind == "result":
            self.result = event
            self._on_result()
        elif kind == "system" and event.get("subtype") == "api_retry":
            self._retries += 1
            if self._retries <= _MOST_RETRIES:
                self._queue.put_nowait(event)
        elif kind == "user":
            blocks = _results(event)
            for block in blocks:
                detail = event.get("tool_use_result") if len(blocks) == 1 else None
                content, is_error = block.get("content"), block.get("is_error") is True
                self._record.printed(str(block["tool_use_id"]), content, is_error, detail)

    async def _retry(self, event: dict[str, Any]) -> None:
        pause = 0.0
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            pause = round(min(max(0.0, float(event.get("retry_delay_ms") or 0)), 1e9) / 1000, 3)
        status = clip(printable(str(event.get("error_status") or event.get("error") or "no connection")), 80)
        text = f"attempt {clip(printable(str(event.get('attempt'))), 8)}: the model service failed ({status})"
        self._say(f"[Retry] {text}. Trying again in {pause:.1f} s.")
        await self._record.write(Draft(EntryKind.RETRY, text, meta={"pause_s": pause}))


def _results(event: dict[str, Any]) -> list[dict[str, Any]]:
    message = event.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return []
    return [
        block
        for block in content
        if isinstance(block, dict) and block.get("type") == "tool_result" and isinstance(block.get("tool_use_id"), str)
    ]

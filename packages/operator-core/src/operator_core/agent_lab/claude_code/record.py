"""What one run of the CLI leaves in the journal: replies with the intents of their calls, and the calls' results."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from operator_core.agent_lab.claude_code.reply import calls_of, texts_of
from operator_core.agent_lab.naming import by_whom, shown_model, speaker
from operator_core.agent_lab.summaries import summarize_output, summarize_text
from operator_core.config import ModelSettings
from operator_core.db.journal import Journal
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.usage import Usage
from operator_core.text import clip, printable

__all__ = ["INTERRUPTED", "Record", "exit_code_of"]

INTERRUPTED = "interrupted; outcome unknown, check before repeating"

_LONGEST_RESULT = 256 * 1024
_PRINT_WAIT_S = 1.0
_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,3})(?:\n|\Z)")


class Record:
    """Writes the journal of one phase.

    Args:
        journal: Its ``phase`` is set.
        entries: Of this phase so far.
        say: Prints one line for a person.
        settings: Of the model that the CLI talks to.

    Attributes:
        open: Names of the tools whose calls have an intent and no result, by id.
        commands: Shell commands that ran to an end, over all runs of the phase.
        last: The last complete reply of the model, as the proxy saw it.
        structured: The arguments of the last accepted ``StructuredOutput`` call.
    """

    def __init__(
        self, journal: Journal, entries: Iterable[Entry], say: Callable[[str], None], settings: ModelSettings
    ) -> None:
        self.open: dict[str, str] = {}
        self.commands = 0
        self.last: dict[str, Any] | None = None
        self.structured: Any = None
        self._journal = journal
        self._say = say
        self._settings = settings
        self._clean: Callable[[str], str] = journal.audit.database.redactor.text
        self._inputs: dict[str, Any] = {}
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._printed: dict[str, tuple[Any, bool, Any]] = {}
        for entry in entries:
            if entry.entry_type == EntryKind.TOOL_CALL and entry.tool_use_id:
                self.open[entry.tool_use_id] = entry.tool_name or ""
            elif entry.entry_type == EntryKind.TOOL_RESULT and entry.tool_use_id:
                self.open.pop(entry.tool_use_id, None)
                self.commands += bool((entry.meta or {}).get("ran"))

    async def write(self, *drafts: Draft) -> None:
        """Journal entries, all or none."""
        kinds = "+".join(dict.fromkeys(str(draft.kind) for draft in drafts))
        reach(f"journal.append.before:{kinds}")
        await self._journal.append(*drafts)
        reach(f"journal.append.after:{kinds}")

    async def tell(self, text: str, *more: Draft) -> None:
        """Journal what the agent is told, after ``more``, in one write."""
        body = {"role": "user", "content": text}
        await self.write(*more, Draft(EntryKind.MESSAGE, summarize_text(self._clean(text)), text, body=body))

    async def reply(self, message: dict[str, Any], usage: Usage) -> None:
        """A reply, its texts and the intents of its calls become durable in one write, before the CLI acts on it."""
        stop = message.get("stop_reason")
        said = message.get("model")
        model = said if isinstance(said, str) else ""
        who = speaker(self._settings, model)
        meta = {"usage": usage._asdict(), "stop_reason": stop, "model": shown_model(self._settings, model) or None}
        body = {"role": "assistant", "content": message["content"]}
        drafts = [
            Draft(EntryKind.MESSAGE, f"reply, {clip(printable(self._clean(str(stop))), 40)}", body=body, meta=meta)
        ]
        lines = []
        for text in texts_of(message):
            summary = summarize_text(self._clean(text))
            drafts.append(Draft(EntryKind.REASONING, summary, text, meta=by_whom(who)))
            lines.append(f"[{who}] {summary}")
        calls = calls_of(message)
        for block in calls:
            intent = self._intent(block)
            drafts.append(intent)
            lines.append(f"[Tool Call: {printable(str(intent.tool_name))}] {intent.content.partition(': ')[2]}")
        async with self._lock:
            await self.write(*drafts)
            self.last = message
            for block in calls:
                self.open[block["id"]] = str(block.get("name"))
                self._inputs[block["id"]] = block.get("input")
        for line in lines:
            self._say(line)

    async def result(self, tool_use_id: str, content: Any, is_error: bool, detail: Any = None) -> None:
        """Journal the result of a call; one that is not open (a second one, a made-up one) changes nothing.

        Args:
            content: What the model sees: a text or content blocks.
            detail: The CLI's ``tool_use_result``.
        """
        async with self._lock:
            if tool_use_id not in self.open:
                return
            name = self.open[tool_use_id]
            text = _text_of(content)
            code = exit_code_of(text, is_error, detail)
            # What a subagent ran has no details; a command that was refused is an error without an exit code.
            ran = name == "Bash" and (code is not None or not is_error)
            meta: dict[str, Any] = {"status": "ok", **({"ran": True} if ran else {})}
            body = {"type": "tool_result", "tool_use_id": tool_use_id, "content": content, "is_error": is_error}
            if len(text) > _LONGEST_RESULT:
                meta["clipped_from"] = len(text)
                body["content"] = text = clip(text, _LONGEST_RESULT)
            # Shortened only after redaction: half of a secret is not recognised any more.
            clean = self._clean(text)
            shown = "\n".join(clean.splitlines()[1:]) if is_error and code is not None else clean
            if ran and code is not None:
                summary = summarize_output(shown, "", code)
            else:
                summary = ("error: " if is_error else "") + summarize_text(shown)
            await self.write(
                Draft(
                    EntryKind.TOOL_RESULT,
                    summary,
                    text,
                    tool_name=name,
                    tool_use_id=tool_use_id,
                    exit_code=code if ran else None,
                    body=body,
                    meta=meta,
                )
            )
            self.commands += ran
            del self.open[tool_use_id]
            self._printed.pop(tool_use_id, None)
            asked = self._inputs.pop(tool_use_id, None)
            if name == "StructuredOutput" and not is_error:
                self.structured = asked
        head = f"exit {code}" if ran and code is not None else name
        self._say(f"[Result ({printable(head)})] {summary.removeprefix(f'exit {code}').lstrip(':, ')}")

    def printed(self, tool_use_id: str, content: Any, is_error: bool, detail: Any) -> None:
        """The CLI has printed the result of an open call. What it sends to the model decides; this has more detail."""
        if tool_use_id in self.open:
            self._printed[tool_use_id] = (content, is_error, detail)
            self._news.set()

    async def settle(self, results: Iterable[dict[str, Any]]) -> None:
        """The CLI sends these results to the model now: they become durable before that."""
        waiting = [block for block in results if block.get("tool_use_id") in self.open]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PRINT_WAIT_S):
                while any(block["tool_use_id"] not in self._printed for block in waiting):
                    self._news.clear()
                    await self._news.wait()
        for block in waiting:
            call, content, is_error = block["tool_use_id"], block.get("content"), block.get("is_error") is True
            # Whatever runs in the sandbox can print: only what says the same as the request is believed.
            said, failed, detail = self._printed.get(call, (None, False, None))
            # What it printed is redacted already.
            same = self._clean(_text_of(said)) == self._clean(_text_of(content)) and failed == is_error
            await self.result(call, content, is_error, detail if same else None)

    async def finish(self) -> None:
        """The CLI has ended: take what it printed for calls whose results it did not send any more."""
        for call, (content, is_error, detail) in list(self._printed.items()):
            await self.result(call, content, is_error, detail)

    async def give_up_calls(self) -> None:
        """Whatever is still open will never be answered: say that its outcome is unknown."""
        async with self._lock:
            drafts = [
                Draft(
                    EntryKind.TOOL_RESULT,
                    f"unknown: {INTERRUPTED}",
                    json.dumps({"error": INTERRUPTED}),
                    tool_name=name,
                    tool_use_id=call,
                    body={"type": "tool_result", "tool_use_id": call, "content": INTERRUPTED, "is_error": True},
                    meta={"status": "unknown"},
                )
                for call, name in self.open.items()
            ]
            if drafts:
                await self.write(*drafts)
                self.open.clear()

    def _intent(self, block: dict[str, Any]) -> Draft:
        arguments = block["input"] if isinstance(block.get("input"), dict) else {"input": block.get("input")}
        what = next((v for k in ("command", "file_path", "pattern", "description") if (v := arguments.get(k))), "")
        name = self._clean(str(block.get("name")))
        return Draft(
            EntryKind.TOOL_CALL,
            f"{name}: {clip(printable(self._clean(str(what))), 60)}",
            tool_name=name,
            tool_params=arguments,
            tool_use_id=block["id"],
            meta={"engine": "claude-code"},
        )


def exit_code_of(text: str, is_error: bool, detail: Any) -> int | None:
    """The exit code of a shell command, as far as the CLI says it.

    Args:
        text: The result as the model sees it.
        is_error: As the model sees it.
        detail: The CLI's ``tool_use_result``: for a command that ended well an object with ``stdout``.
    """
    if is_error:
        found = _EXIT_CODE.match(text)
        return int(found.group(1)) if found else None
    if isinstance(detail, dict) and "stdout" in detail and not detail.get("interrupted"):
        if detail.get("backgroundTaskId"):
            return None
        # `grep` without a match, `diff` with a difference: no error to the CLI, and it does not say the number.
        return 1 if detail.get("returnCodeInterpretation") else 0
    return None


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return "" if content is None else json.dumps(content, ensure_ascii=False)
    texts = [b.get("text") if b.get("type") == "text" else f"[{b.get('type')}]" for b in content if isinstance(b, dict)]
    return "\n".join(str(text) for text in texts)

"""The tool gateway: every effect of the agent passes here.

Intent is journaled before an effect and its result after. A command is started at most once, whoever tries, and its
result is published before it is journaled (:mod:`operator_core.agent_lab.calls`), so that a crash in between loses
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from operator_core.agent_lab.calls import CallFiles
from operator_core.agent_lab.history import Conversation
from operator_core.agent_lab.summaries import summarize_output, summarize_text
from operator_core.db.audit_log import Journal
from operator_core.errors import OperatorError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome
from operator_core.sandbox.protocol import ExecResult, Sandbox, Stream
from operator_core.text import clip, printable

__all__ = ["Recovered", "ToolGateway", "ToolRefused", "outcome_draft", "text_of"]

_INLINE = 64 * 1024
_INTERRUPTED = "interrupted; outcome unknown, check before repeating"
_NOT_EXECUTED = "interrupted before it was started: this command was not executed"

_TELLING = ("command", "summary", "reason", "feedback", "results")
"""Arguments that say what a call is about."""

Say = Callable[[str], None]

T = TypeVar("T")


class ToolRefused(Exception):
    """The call is not usable; the message tells the model what to change."""


class Recovered(NamedTuple):
    """What is known about a call that was interrupted: ``ok``, ``not_executed`` or ``unknown``."""

    status: str
    result: dict[str, Any]


class _Output(NamedTuple):
    """The result of a command in the three forms in which it is needed."""

    shown: dict[str, Any]
    raw: dict[str, Any]
    files: dict[str, Path]


class ToolGateway:
    """The tools of one session, bound to its sandbox and its journal.

    Args:
        journal: Where intents and results go.
        sandbox: Where commands run.
        calls: Folder of the call files; survives a crash.
        place: Identity of that folder: results can be looked up only where the command ran.
        conversation: Follows everything that is journaled.
        say: Prints one line for a person.
        timeout_s: Default limit of a command.
    """

    def __init__(
        self,
        journal: Journal,
        sandbox: Sandbox,
        *,
        calls: Path,
        place: str,
        conversation: Conversation,
        say: Say = lambda line: None,
        timeout_s: float = 120.0,
    ) -> None:
        self.journal = journal
        self.sandbox = sandbox
        self.conversation = conversation
        self.failure: OperatorError | None = None
        self.mail = False
        self.hears = True
        self.on_entry: Callable[[int, str], None] = lambda entry_id, text: None
        # Before anything is shortened: half of a secret is not recognised any more.
        self.clean: Callable[[str], str] = journal.audit.database.redactor.text
        calls.mkdir(parents=True, exist_ok=True)
        self._calls = CallFiles(calls, place)
        self._say = say
        self._timeout_s = timeout_s

    # ---- tools, as the model sees them

    async def shell(self, tool_use_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Run a command in the sandbox; the result is a :class:`operator_core.agent_lab.tools.ShellResult`."""
        command, _, timeout = _shell_arguments(arguments, self._timeout_s)
        if self.failure is not None:
            # The runner goes on with the other calls of the reply; a session that must stop starts none of them.
            raise self.failure
        await self.journal.check()
        try:
            started = self._calls.start(tool_use_id)
            if started is None:
                raise ToolRefused(_INTERRUPTED)
            reach("gateway.started")
            with started:
                spool = self._calls.spool(tool_use_id)
                result = await self.sandbox.exec(command, timeout=timeout, spool=spool, on_output=started)
            reach("gateway.executed")
            output = _output(result, timeout)
            files = {name: path.name for name, path in output.files.items()}
            self._calls.publish(tool_use_id, {"shown": output.shown, "raw": output.raw, "files": files})
        except OSError as error:
            raise self._calls.error(error) from error
        reach("gateway.published")
        await self._finish(tool_use_id, "shell", output)
        return output.shown

    async def end(self, tool_use_id: str, name: str, outcome: Outcome, said: str) -> str:
        """An outcome tool was called: its answer and the outcome are written in one step."""
        result = Draft(
            EntryKind.TOOL_RESULT,
            said,
            said,
            tool_name=name,
            tool_use_id=tool_use_id,
            exit_code=0,
            body={"type": "tool_result", "tool_use_id": tool_use_id, "content": said},
        )
        await self.record(result, outcome_draft(outcome, self.clean))
        return said

    # ---- the journal's side

    async def record(self, *drafts: Draft) -> list[int]:
        """Journal entries, and let the conversation follow: both or neither, even for a caller that is cancelled.

        Returns:
            The row ids.
        """
        return await _unbroken(self._record(drafts))

    async def _record(self, drafts: tuple[Draft, ...]) -> list[int]:
        kinds = "+".join(dict.fromkeys(str(draft.kind) for draft in drafts))
        reach(f"journal.append.before:{kinds}")
        ids = await self.journal.append(*drafts)
        reach(f"journal.append.after:{kinds}")
        for draft in drafts:
            self.conversation.add(
                str(draft.kind), body=draft.body, meta=draft.meta, tool_use_id=draft.tool_use_id, text=draft.raw_content
            )
        return ids

    def intent(self, block: dict[str, Any]) -> Draft:
        """The entry that says what is about to be done; written together with the reply that asks for it."""
        arguments = block["input"] if isinstance(block["input"], dict) else {"input": block["input"]}
        what = next((arguments[k] for k in _TELLING if arguments.get(k)), "")
        return Draft(
            EntryKind.TOOL_CALL,
            f"{block['name']}: {clip(printable(self.clean(str(what))), 60)}",
            tool_name=self.clean(str(block["name"])),
            tool_params=arguments,
            tool_use_id=block["id"],
            meta={"place": self._calls.place},
        )

    async def answer(self, block: dict[str, Any]) -> None:
        """Journal the result of a call that never reached a tool (an unknown tool, unusable arguments)."""
        await self._journal_result(
            Draft(
                EntryKind.TOOL_RESULT,
                summarize_text(self.clean(str(block.get("content", "")))),
                json.dumps(block.get("content"), ensure_ascii=False),
                tool_use_id=block["tool_use_id"],
                exit_code=None,
                body=block,
            )
        )

    async def notes(self) -> list[str]:
        """What people said meanwhile; each message is journaled once and goes to the model with the next request."""
        if not (self.mail and self.hears) or self.journal.claim is None:
            return []
        self.mail = False
        return await _unbroken(self._drain())

    async def _drain(self) -> list[str]:
        messages, _ = await self.journal.drain()
        for message in messages:
            self.conversation.add(EntryKind.NOTE, text=message.text)
        return [m.text for m in messages]

    async def recover(self) -> None:
        """Answer the calls that an interruption left open: with the real result, or with what is known about it."""
        for block in list(self.conversation.open_calls):
            found = self._look(block)
            await self._journal_recovered(block, found)

    def _look(self, block: dict[str, Any]) -> Recovered:
        call = block["id"]
        if call not in self.conversation.intents:
            return Recovered("not_executed", {"error": _NOT_EXECUTED})
        if self.conversation.intent_places.get(call) == self._calls.place:
            if (result := self._calls.result(call)) is not None:
                return Recovered("ok", result)
            if (unused := self._calls.start(call)) is not None:
                with unused:  # proven, and retired for ever: nobody can start it any more
                    return Recovered("not_executed", {"error": _NOT_EXECUTED})
        return Recovered("unknown", {"error": _INTERRUPTED, "partial_output": clip(self._calls.partial(call), 8192)})

    async def _journal_recovered(self, block: dict[str, Any], found: Recovered) -> None:
        if found.status == "ok":
            folder = self._calls.spool(block["id"])
            files = {k: folder / name for k, name in found.result["files"].items()}
            await self._finish(block["id"], block["name"], _Output(found.result["shown"], found.result["raw"], files))
            return
        # A call without an effect in the world (an outcome tool) was journaled in one step or not at all.
        body = {
            "type": "tool_result",
            "tool_use_id": block["id"],
            "content": json.dumps(found.result, ensure_ascii=False),
            "is_error": True,
        }
        await self._journal_result(
            Draft(
                EntryKind.TOOL_RESULT,
                f"{found.status}: {found.result['error']}",
                json.dumps(found.result, ensure_ascii=False),
                tool_name=self.clean(block["name"]),
                tool_use_id=block["id"],
                body=body,
                meta={"status": found.status},
            )
        )

    async def _finish(self, tool_use_id: str, name: str, output: _Output) -> None:
        meta: dict[str, Any] = {"status": "ok"}
        for stream, path in output.files.items():
            if path.exists():
                meta[f"{stream}_blob"] = await self.journal.audit.store_blob(path)
                meta[f"{stream}_bytes"] = path.stat().st_size
        raw = json.dumps(output.raw, ensure_ascii=False)
        code = output.shown["exit_code"]
        summary = summarize_output(
            output.shown["stdout"], output.shown["stderr"], code, timed_out=output.shown["timed_out"]
        )
        self._say(f"[Result (exit {code})] {summary.removeprefix(f'exit {code}').lstrip(':, ')}")
        await self._journal_result(
            Draft(
                EntryKind.TOOL_RESULT,
                summary,
                raw,
                tool_name=name,
                tool_use_id=tool_use_id,
                exit_code=code,
                body={
                    "type": "tool_result",
                    "tool_use_id": tool_use_id,
                    "content": json.dumps(output.shown, ensure_ascii=False),
                },
                meta=meta,
            ),
            f"{output.shown['stdout']}\n{output.shown['stderr']}\nexit code {code}".strip(),
        )

    async def _journal_result(self, draft: Draft, text: str = "") -> None:
        (entry_id,) = await self.record(draft)
        if text:
            self.on_entry(entry_id, text)


def outcome_draft(outcome: Outcome, clean: Callable[[str], str]) -> Draft:
    """The entry that ends a conversation; ``clean`` takes secrets out before anything is shortened."""
    return Draft(
        EntryKind.OUTCOME,
        f"{outcome.kind}: {clip(printable(clean(outcome.summary)), 200)}",
        outcome.summary,
        body=outcome.body,
        meta={"outcome": outcome.kind.value},
    )


async def _unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Wait for something that must not be interrupted half-way; a cancellation takes effect after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise


def _output(result: ExecResult, timeout: float) -> _Output:
    notes = []
    if result.timed_out:
        notes.append(f"Command timed out after {timeout:g} seconds")
    elif result.reason == "output_limit":
        notes.append("The command was stopped because it wrote too much.")
    if result.background:
        notes.append(f"{result.background} background process(es) were stopped with the command.")
    if result.notice:
        notes.append(result.notice)
    code = -1 if result.timed_out or result.exit_code is None else result.exit_code

    def dictionary(stdout: str, stderr: str) -> dict[str, Any]:
        said = "\n".join([stderr.rstrip("\n"), *notes]).strip("\n") if notes else stderr
        return {"stdout": stdout, "stderr": said, "exit_code": code, "timed_out": result.timed_out}

    files = {n: s.spill for n, s in (("stdout", result.stdout), ("stderr", result.stderr)) if s.spill is not None}
    shown = dictionary(result.stdout.text(), result.stderr.text())
    return _Output(shown, shown if not files else dictionary(_whole(result.stdout), _whole(result.stderr)), files)


def _whole(stream: Stream) -> str:
    if stream.total <= _INLINE and stream.spill is not None:
        return stream.spill.read_bytes().decode("utf-8", "replace")
    return stream.text()


def _shell_arguments(arguments: dict[str, Any], default_timeout: float) -> tuple[str, str, float]:
    command, reasoning = text_of(arguments, "command"), text_of(arguments, "reasoning")
    timeout = arguments.get("timeout", default_timeout)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ToolRefused("`timeout` must be a number of seconds above 0.")
    try:
        sendable = b"\0" not in command.encode()
    except UnicodeEncodeError:
        sendable = False
    if not sendable:
        raise ToolRefused("`command` has a character that no shell can take (NUL, or half of a surrogate pair).")
    unknown = set(arguments) - {"command", "reasoning", "timeout"}
    if unknown:
        raise ToolRefused(f"shell has no parameter {sorted(unknown)[0]!r}; it takes command, reasoning and timeout.")
    return command, reasoning, float(timeout)


def text_of(arguments: dict[str, Any], name: str) -> str:
    """A required text argument of a tool.

    Raises:
        ToolRefused: It is missing, empty or no text.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolRefused(f"`{name}` is required and must be a text that is not empty.")
    return value

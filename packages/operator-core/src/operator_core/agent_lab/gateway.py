"""The tool gateway: every effect of the agent passes here.

Intent is journaled before an effect and its result after. A command is started at most once, whoever tries, and its
result is published before it is journaled (:mod:`operator_core.agent_lab.calls`), so that a crash in between loses
nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from operator_core.agent_lab.calls import CallFiles, Started
from operator_core.agent_lab.fence import Origin
from operator_core.agent_lab.history import Conversation
from operator_core.agent_lab.live import LiveTail
from operator_core.agent_lab.resting import AwaitingApproval
from operator_core.agent_lab.summaries import summarize_text
from operator_core.db.journal import Journal
from operator_core.db.live_output import LiveOutputs
from operator_core.errors import OperatorError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome
from operator_core.sandbox.protocol import Sandbox
from operator_core.text import clip, printable

__all__ = [
    "CallGuard",
    "Recovered",
    "ToolGateway",
    "ToolOutput",
    "ToolRefused",
    "outcome_draft",
    "text_of",
    "unbroken",
]

_INTERRUPTED = "interrupted; outcome unknown, check before repeating"
_NOT_EXECUTED = "interrupted before it was started: this command was not executed"

_TELLING = ("command", "path", "job", "summary", "reason", "feedback", "results", "title")
"""Arguments that say what a call is about."""

Say = Callable[[str], None]

T = TypeVar("T")


class ToolRefused(Exception):
    """The call is not usable; the message tells the model what to change."""


class Recovered(NamedTuple):
    """What is known about a call that was interrupted: ``ok``, ``not_executed`` or ``unknown``."""

    status: str
    result: dict[str, Any]


class ToolOutput(NamedTuple):
    """The result of a call in the forms in which it is needed.

    Attributes:
        shown: What the model is told, within bounds: values, or the text of a file as it is.
        raw: The whole of it, for the journal.
        summary: One line for people.
        exit_code: For the journal.
        files: Files with longer output, by name of the stream.
        notable: What a model may be asked to summarise; empty: the summary is good enough.
    """

    shown: dict[str, Any] | str
    raw: dict[str, Any] | str
    summary: str
    exit_code: int | None = 0
    files: Mapping[str, Path] = {}
    notable: str = ""


class CallGuard(Protocol):
    """Asked about every call, at the last moment before it starts."""

    async def admit(self, gateway: ToolGateway, call_id: str, tool: str, arguments: dict[str, Any]) -> None:
        """Return if the call may start now.

        Raises:
            ToolRefused: It may not; ``gateway.waiting`` says whether the conversation has to rest.
        """
        ...


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

    Attributes:
        altered: Ids of the calls of the present reply whose arguments are not what the model wrote.
        guard: Asked about every call; None: all are allowed.
        waiting: Why no further call starts: a person is asked about one; None: nobody is.
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
        self.altered: frozenset[str] = frozenset()
        self.guard: CallGuard | None = None
        self.waiting: AwaitingApproval | None = None
        self.mail = False
        self.hears = True
        self.on_entry: Callable[[int, str], None] = lambda entry_id, text: None
        # Before anything is shortened: half of a secret is not recognised any more.
        self.clean: Callable[[str], str] = journal.audit.database.redactor.text
        calls.mkdir(parents=True, exist_ok=True)
        self._calls = CallFiles(calls, place)
        self._say = say
        self.timeout_s = timeout_s

    @property
    def place(self) -> str:
        """Where the files of the calls are."""
        return self._calls.place

    # ---- tools, as the model sees them

    async def admit(self, tool_use_id: str, name: str, arguments: dict[str, Any]) -> None:
        """Return if a call may start now.

        Raises:
            ToolRefused: It may not; what the model is told, unless the call waits.
        """
        if self.guard is not None and self.failure is None:
            await self.guard.admit(self, tool_use_id, name, arguments)

    async def once(self, tool_use_id: str, name: str, work: Callable[[Started, Path], Awaitable[ToolOutput]]) -> str:
        """Do the work of a call at most once, whoever tries; what the model is told.

        Args:
            tool_use_id: Identity of the call.
            name: Of the tool.
            work: Does it. It is given a place for early output and a folder for long output.

        Raises:
            ToolRefused: Somebody has begun it before, or the work itself says so.
        """
        if self.failure is not None:
            # The runner goes on with the other calls of the reply; a session that must stop starts none of them.
            raise self.failure
        await self.journal.check()
        async with self._shown(tool_use_id) as live:
            try:
                started = self._calls.start(tool_use_id)
                if started is None:
                    raise ToolRefused(_INTERRUPTED)
                started.watcher = live
                reach("gateway.started")
                with started:
                    output = await work(started, self._calls.spool(tool_use_id))
                reach("gateway.executed")
                files = {name: path.name for name, path in output.files.items()}
                self._calls.publish(tool_use_id, output._asdict() | {"files": files})
            except OSError as error:
                raise self._calls.error(error) from error
            reach("gateway.published")
            return await self._finish(tool_use_id, name, output)

    def _shown(self, tool_use_id: str) -> LiveTail:
        """Shows people what the call prints, while it runs."""
        live, journal = LiveOutputs(self.journal.audit.database), self.journal

        async def show(tail: str, total: int) -> None:
            await live.write(journal.session_id, tool_use_id, tail, total, journal.claim)

        return LiveTail(show, lambda: live.clear(journal.session_id, tool_use_id))

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

    def told(self, tool: str, value: dict[str, Any] | str) -> str:
        """What a tool found, as the model is told: fenced JSON or text, the same live and in the journal."""
        if isinstance(value, str):
            return self.conversation.fence.wrap(Origin.FILES, value, tool)
        return self.conversation.fence.wrap(Origin.TOOL, json.dumps(value, ensure_ascii=False), tool)

    # ---- the journal's side

    async def record(self, *drafts: Draft) -> list[int]:
        """Journal entries, and let the conversation follow: both or neither, even for a caller that is cancelled.

        Returns:
            The row ids.
        """
        return await unbroken(self._record(drafts))

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
        return await unbroken(self._drain())

    async def _drain(self) -> list[str]:
        messages, _ = await self.journal.drain()
        for message in messages:
            self.conversation.add(EntryKind.NOTE, text=message.text)
        return [self.conversation.note(m.text) for m in messages]

    async def recover(self, *, held: bool = True) -> None:
        """Answer the calls that an interruption left open: with the real result, or with what is known about it.

        Args:
            held: Also those that were never started, because a person is asked about them or about one before them.
        """
        waiting = () if held else self.conversation.held
        interrupted = [block for block in self.conversation.open_calls if block["id"] not in waiting]
        for block in interrupted:
            found = self._look(block)
            await self._journal_recovered(block, found)
        if interrupted:
            await LiveOutputs(self.journal.audit.database).clear(self.journal.session_id)

    def _look(self, block: dict[str, Any]) -> Recovered:
        call = block["id"]
        if call not in self.conversation.intents or call in self.conversation.held:
            return Recovered("not_executed", {"error": _NOT_EXECUTED})
        if self.conversation.intent_places.get(call) == self._calls.place:
            if (result := self._calls.result(call)) is not None and "summary" in result:
                return Recovered("ok", result)
            if (unused := self._calls.start(call)) is not None:
                with unused:  # proven, and retired for ever: nobody can start it any more
                    return Recovered("not_executed", {"error": _NOT_EXECUTED})
        return Recovered("unknown", {"error": _INTERRUPTED, "partial_output": clip(self._calls.partial(call), 8192)})

    async def _journal_recovered(self, block: dict[str, Any], found: Recovered) -> None:
        if found.status == "ok":
            folder = self._calls.spool(block["id"])
            files = {k: folder / name for k, name in found.result["files"].items()}
            await self._finish(block["id"], block["name"], ToolOutput(**(found.result | {"files": files})))
            return
        # A call without an effect in the world (an outcome tool) was journaled in one step or not at all.
        body = {
            "type": "tool_result",
            "tool_use_id": block["id"],
            "content": self.told(block["name"], found.result),
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

    async def _finish(self, tool_use_id: str, name: str, output: ToolOutput) -> str:
        meta: dict[str, Any] = {"status": "ok"}
        for stream, path in output.files.items():
            if path.exists():
                meta[f"{stream}_blob"] = await self.journal.audit.store_blob(path)
                meta[f"{stream}_bytes"] = path.stat().st_size
        told = self.told(name, output.shown)
        code = output.exit_code
        self._say(f"[Result (exit {code})] {output.summary.removeprefix(f'exit {code}').lstrip(':, ')}")
        await self._journal_result(
            Draft(
                EntryKind.TOOL_RESULT,
                output.summary,
                output.raw if isinstance(output.raw, str) else json.dumps(output.raw, ensure_ascii=False),
                tool_name=name,
                tool_use_id=tool_use_id,
                exit_code=code,
                body={"type": "tool_result", "tool_use_id": tool_use_id, "content": told},
                meta=meta,
            ),
            output.notable,
        )
        return told

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


async def unbroken(work: Coroutine[Any, Any, T]) -> T:
    """Wait for something that must not be interrupted half-way; a cancellation takes effect after it."""
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task})
        if not task.cancelled():
            task.exception()
        raise


def text_of(arguments: dict[str, Any], name: str) -> str:
    """A required text argument of a tool.

    Raises:
        ToolRefused: It is missing, empty or no text.
    """
    value = arguments.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ToolRefused(f"`{name}` is required and must be a text that is not empty.")
    return value

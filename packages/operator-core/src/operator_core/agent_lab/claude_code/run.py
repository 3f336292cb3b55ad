"""One phase of the Claude Code CLI, from the start of its sandbox to its result."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from operator_core import clock
from operator_core.agent_lab.agent_run import Stopping
from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.claude_code.argv import FOREIGN, cli_argv, cli_environment
from operator_core.agent_lab.claude_code.events import EventReader, ending_of
from operator_core.agent_lab.claude_code.plan import CliResult, Plan, make_plan, session_ended, session_started
from operator_core.agent_lab.claude_code.program import program_version
from operator_core.agent_lab.claude_code.proxy import Proxy, listen, peer_of
from operator_core.agent_lab.claude_code.record import Record
from operator_core.agent_lab.claude_code.reply import texts_of
from operator_core.agent_lab.claude_code.service import meaning_of
from operator_core.config import Settings
from operator_core.db.journal import Journal
from operator_core.errors import ModelNotUsable, ModelUnreachable, OperatorError, SandboxUnavailable
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.sandbox import ExecResult, Limits, Report, Sandbox
from operator_core.sandbox.removal import remove_tree
from operator_core.text import clip, first_line, printable

__all__ = ["CliPhase", "CliResult", "OpenBox", "run_claude_code"]

_FORWARDER = Path(__file__).with_name("forwarder.py")
_MAIL_EVERY_S = 0.5
_UNKNOWN_SESSION = "No conversation found"


class OpenBox(Protocol):
    """Makes the phase's sandbox; nothing happens before its ``start``."""

    def __call__(
        self, readable: tuple[Path, ...], writable: tuple[Path, ...], env: Mapping[str, str], limits: Limits | None
    ) -> Sandbox:
        """A sandbox with these further folders and variables."""
        ...


@dataclass
class CliPhase:
    """Everything one phase needs.

    Attributes:
        program: See :func:`operator_core.agent_lab.claude_code.program.find_program`.
        settings: The configuration.
        journal: Its ``phase`` is set.
        entries: Of this phase so far.
        open_box: Makes its sandbox.
        folder: State folder of this phase; survives crashes. The CLI's transcript is below it.
        model: Model id.
        prompt: What to tell the agent. The same prompt again, after a crash, goes on with the work on it; another
            prompt goes on with the conversation.
        budget: Of the session; every call of the CLI is reserved and charged there.
        api_key: Of the model service; it never enters the sandbox.
        base_url: The model service; None: the API's own address.
        system: Text that is added to the CLI's own system prompt; what the first run of a phase said stays.
        schema: JSON Schema of the answer.
        say: Prints one line for a person.
        stopping: The worker is about to leave.
        mail: What people have said meanwhile, journaled by the callee; asked now and then, reaches the agent with its
            next model call.
        untrusted: Whether the workspace is somebody else's work, whose instructions to agents are not to be followed.
    """

    program: Path
    settings: Settings
    journal: Journal
    entries: list[Entry]
    open_box: OpenBox
    folder: Path
    model: str
    prompt: str
    budget: Budget
    api_key: str
    base_url: str | None = None
    system: str | None = None
    schema: dict[str, Any] | None = None
    say: Callable[[str], None] = print
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    mail: Callable[[], Awaitable[list[str]]] | None = None
    untrusted: bool = False


async def run_claude_code(phase: CliPhase) -> CliResult:
    """Run the CLI, or go on where a crash interrupted it; every result is journaled, and never paid for twice.

    Raises:
        SandboxUnavailable: There is no real sandbox, so that permissions cannot be skipped.
        ModelNotUsable: The model service refuses the key or the model.
        ModelUnreachable: It did not answer, however often the CLI asked.
        StoreError: The journal cannot be written, or the ticket belongs to another worker now.
        Stopping: The worker leaves; the phase goes on elsewhere, or here after a restart.
    """
    config = phase.folder / "config"
    plan = make_plan(phase.entries, phase.prompt, config)
    if plan.ended is not None:
        return plan.ended
    config.mkdir(mode=0o700, parents=True, exist_ok=True)
    record = Record(phase.journal, phase.entries, phase.say, phase.settings.model)
    result = await _start(phase, plan, record, config)
    if result is None:
        plan = make_plan(phase.entries, phase.prompt, config, lost=True)
        result = await _start(phase, plan, record, config)
    assert result is not None  # only a session that is resumed can be unknown
    await record.give_up_calls()
    await record.write(session_ended(result, phase.prompt))
    return result


async def _start(phase: CliPhase, plan: Plan, record: Record, config: Path) -> CliResult | None:
    """One run; None if the CLI does not know the session that it was to resume, so that nothing has happened."""
    with _run_folder(phase.folder) as front:
        return await _Run(phase, plan, record, config, front).go()


class _Run:
    """One start of the program."""

    def __init__(self, phase: CliPhase, plan: Plan, record: Record, config: Path, front: Path) -> None:
        self.phase, self.plan, self.record = phase, plan, record
        self.config, self.front = config, front
        self.halted = asyncio.Event()
        self.reported = asyncio.Event()

    async def go(self) -> CliResult | None:
        phase = self.phase
        limits = phase.budget.limits
        seconds = phase.budget.seconds_left()
        if seconds <= 0:
            return self._result("limit", f"The limit of {limits.wall_clock_s:g} s is reached.")
        api, words = listen(self.front / "api"), listen(self.front / "input")
        token = secrets.token_urlsafe(32)
        self._write_launch(token)
        box = phase.open_box((self.front, phase.program), (self.config,), {}, self._limits(seconds))
        proxy = Proxy(
            api,
            token=token,
            api_key=phase.api_key,
            base_url=phase.base_url,
            settings=phase.settings.model,
            journal=phase.journal,
            budget=phase.budget,
            record=self.record,
            resting=phase.stopping.is_set,
            halt=self.halted.set,
        )
        events = EventReader(self.record, phase.say, on_result=self.reported.set, on_failure=proxy.fail)
        try:
            report = _accept(box, await box.start())
            await self._begin(report)
            async with proxy, self._input(words, proxy), _background(events.work()) as journaling:
                done = await self._execute(box, events, seconds)
                events.finish()
                await journaling
                await self.record.finish()
        finally:
            await box.close()
            words.close()
            api.close()
        if proxy.failure is not None:
            raise proxy.failure
        if done is None:
            raise Stopping
        return self._judge(done, events, proxy)

    async def _begin(self, report: Report) -> None:
        """The session is durable before it can have any effect."""
        phase, plan = self.phase, self.plan
        version = program_version(phase.program)
        await self.record.give_up_calls()
        note = Draft(EntryKind.SANDBOX_REPORT, f"{report.backend}, {report.level}", body=report.to_dict())
        await self.record.tell(plan.prompt, note, session_started(plan, phase.prompt, version))
        phase.say(f"[Claude Code {version}] session {plan.session}{' goes on' if plan.resume else ''}")
        reach("claude_code.begun")

    async def _execute(self, box: Sandbox, events: EventReader, seconds: float) -> ExecResult | None:
        """Run the program; None if it was ended because the worker leaves, or because of a failure of ours."""
        # In the workspace, wherever an earlier command of this sandbox ended.
        command = f"exec python3 -I -S {json.dumps(str(self.front / 'forwarder.py'))}"
        running = asyncio.ensure_future(box.exec(command, cwd=".", timeout=seconds, on_output=events.feed))
        halted = asyncio.ensure_future(self.halted.wait())
        try:
            await asyncio.wait({running, halted}, return_when=asyncio.FIRST_COMPLETED)
            return running.result() if running.done() else None
        finally:
            halted.cancel()
            await _end(running)

    def _judge(self, done: ExecResult, events: EventReader, proxy: Proxy) -> CliResult | None:
        phase = self.phase
        limits = phase.budget.limits
        if proxy.limit:
            return self._result("limit", proxy.limit)
        if done.timed_out:
            return self._result("limit", f"The limit of {limits.wall_clock_s:g} s is reached.")
        if done.reason != "exited":
            return self._result("error", "Claude Code was stopped because it wrote too much.")
        ending = ending_of(events.result)
        if self.plan.resume and self.record.last is None and _UNKNOWN_SESSION in ending.detail:
            return None
        last = self.record.last
        stop = last.get("stop_reason") if last else None
        if stop == "refusal":
            return self._result("refused", "The model refused to go on.")
        if ending.ok and done.exit_code == 0 and last is not None:
            return self._result("done", "")
        if isinstance(proxy.trouble, (ModelNotUsable, ModelUnreachable)):
            raise proxy.trouble
        if ending.api_error is not None and proxy.trouble is None:
            meaning = meaning_of(ending.api_error, ending.detail, phase.settings.model, phase.base_url)
            if isinstance(meaning, (ModelNotUsable, ModelUnreachable)):
                raise meaning
        if proxy.trouble is not None:
            return self._result("error", str(proxy.trouble))
        said = first_line(printable(done.stderr.text()), 300)
        why = ": ".join(part for part in (ending.detail, said) if part)
        return self._result("error", f"Claude Code ended with exit code {done.exit_code} ({clip(why, 400)}).")

    def _result(self, kind: Any, detail: str) -> CliResult:
        clean = self.phase.journal.audit.database.redactor
        text = "\n\n".join(texts_of(self.record.last)) if self.record.last else ""
        structured = clean.tree(self.record.structured)
        return CliResult(
            kind, clean.text(text), structured, self.record.commands, self.plan.session, clean.text(detail)
        )

    def _limits(self, seconds: float) -> Limits:
        longest = seconds if seconds != float("inf") else 10 * 365 * 86400.0
        return Limits(
            timeout_s=longest,
            max_timeout_s=longest,
            memory=self.phase.settings.claude_code.memory_bytes,
            # Its whole output is read as it comes; what the journal needs of it is kept there.
            head=4096,
            tail=16384,
            spill=0,
            output_kill=16 << 30,
        )

    def _write_launch(self, token: str) -> None:
        """What the forwarder needs, in a folder that the sandbox can read and not write."""
        phase, front = self.phase, self.front
        system_file = front / "system.txt" if phase.system else None
        if system_file is not None:
            system_file.write_text(phase.system or "", encoding="utf-8", errors="replace")
        launch = {
            "argv": cli_argv(
                phase.program,
                session=self.plan.session,
                resume=self.plan.resume,
                model=phase.model,
                system_file=system_file,
                schema=phase.schema,
                untrusted=phase.untrusted,
            ),
            "env": cli_environment(
                phase.settings.claude_code,
                config_dir=self.config,
                token=token,
                max_output_tokens=phase.settings.claude_code.max_output_tokens,
            ),
            "foreign": FOREIGN,
        }
        (front / "launch.json").write_text(json.dumps(launch), encoding="utf-8")
        shutil.copyfile(_FORWARDER, front / "forwarder.py")

    # ---- standard input

    @contextlib.asynccontextmanager
    async def _input(self, words: Any, proxy: Proxy) -> AsyncIterator[None]:
        """Serve the CLI's standard input: the prompt, then what people say, until the CLI has its result."""
        writing: set[asyncio.Task[None]] = set()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if proxy.peer:
                writer.close()
                return
            # Nothing of the agent runs before the forwarder has made this connection.
            proxy.peer = peer_of(writer.get_extra_info("socket"))
            task = asyncio.ensure_future(self._speak(writer, proxy))
            writing.add(task)
            task.add_done_callback(writing.discard)

        server = await asyncio.start_unix_server(connected, sock=words)
        try:
            yield
        finally:
            server.close()
            for task in list(writing):
                await _end(task)

    async def _speak(self, writer: asyncio.StreamWriter, proxy: Proxy) -> None:
        mail = self.phase.mail
        try:
            with contextlib.suppress(OSError):
                await _send(writer, self.plan.prompt)
                while mail is not None:
                    # Before the last look at the mail box: what comes later goes to the next phase.
                    over = self.reported.is_set()
                    self.reported.clear()
                    for text in await mail():
                        await _send(writer, text)
                        over = False
                    if over:
                        break
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self.reported.wait(), _MAIL_EVERY_S)
        except Exception as error:
            proxy.fail(error if isinstance(error, OperatorError) else OperatorError(str(error)))
        finally:
            writer.close()


def _accept(box: Sandbox, report: Report) -> Report:
    """Permissions are skipped in a real sandbox only; no setting changes that.

    Raises:
        SandboxUnavailable: It is none.
    """
    held = report.controls.get("filesystem.write")
    if box.name == "none" or held is None or held.state != "verified":
        raise SandboxUnavailable(
            "Claude Code runs without asking for permissions, which needs a real sandbox, and this one is "
            f"`{report.backend}`",
            'install bubblewrap and set [sandbox] backend = "auto", or use the engine `anthropic`',
        )
    return report


async def _send(writer: asyncio.StreamWriter, text: str) -> None:
    message = {"role": "user", "content": [{"type": "text", "text": text}]}
    writer.write(json.dumps({"type": "user", "message": message}).encode() + b"\n")
    await writer.drain()


@contextlib.contextmanager
def _run_folder(folder: Path) -> Iterator[Path]:
    """The folder of one run: its sockets, and what the sandbox reads."""
    for stale in folder.glob("run-*"):
        remove_tree(stale)
    front = folder / f"run-{clock.new_id()[:8]}"
    front.mkdir(mode=0o700, parents=True)
    try:
        yield front
    finally:
        remove_tree(front)


@contextlib.asynccontextmanager
async def _background(work: Any) -> AsyncIterator[asyncio.Task[None]]:
    task: asyncio.Task[None] = asyncio.ensure_future(work)
    try:
        yield task
    finally:
        await _end(task)


async def _end(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it has ended; its own error, if it has one, is not of interest any more."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()

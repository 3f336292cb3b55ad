"""``operator explore``: an autonomous session in a workspace that it owns, without a ticket.

Its state is its journal, like every session's: whoever goes on with it rebuilds the same conversation. What people want
of it (go on, pause, stop) is in the store, so that they may be anywhere; it is looked at between two requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from operator_core import clock
from operator_core.agent_lab.agent_run import AgentRun, Stopping
from operator_core.agent_lab.explorer import OPENING, continuity, describe, explorer_profile, pause_after
from operator_core.agent_lab.ouroboros.system_prompt import build_system_prompt, read_system_prompt
from operator_core.db.explorers import Explorers, Wanted
from operator_core.db.journal import Journal
from operator_core.errors import ConfigError, LimitReached, StoreError, TransitionRefused
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.safety.layer import SafetyConfig, SafetyLayer
from operator_core.sandbox import Policy
from operator_core.sandbox.removal import remove_tree
from operator_core.text import clip, printable
from operator_core.work.boxes import session_policy
from operator_core.work.conversation import AgentPhase, Beginning, hold_conversation
from operator_core.work.explore_log import SessionLog
from operator_core.work.explorers import PHASE, Exploration, held, unfinished_in
from operator_core.work.session import SessionBase, SessionTools

__all__ = ["ExploreSession", "Explored"]

_START = "start"
_LOOK_S = 0.3


class Explored(NamedTuple):
    """How a session ended, or where it rests.

    Attributes:
        session_id: The session.
        ended: Why it is over; None: it rests and can be resumed.
        ok: Whether nothing failed.
        log: Its session log.
    """

    session_id: str
    ended: str | None
    ok: bool
    log: Path


class ExploreSession(SessionBase):
    """Runs, or goes on with, one explorer.

    Args:
        tools: As for every session.
        exploration: What to explore; of a session that is resumed, the model, the network and the hosts are those with
            which it began.
        resume: The session to go on with; None: a new one.
    """

    def __init__(self, tools: SessionTools, exploration: Exploration, resume: str | None = None) -> None:
        super().__init__(tools)
        self.exploration = exploration
        self.wanted = Wanted.RUNNING
        self._resume = resume
        self._turn_of = 1
        self._changed = asyncio.Event()
        self._said = 0
        self._worked_s = 0.0
        self._since: float | None = None
        self._explorers = Explorers(tools.audit.database)
        workspace = exploration.workspace
        settings = tools.settings
        patterns = settings.explore.blocked
        if not workspace.is_dir():
            raise ConfigError(f"There is no folder {workspace}; make it, and write a SYSTEM_PROMPT.md into it.")
        self.keep_apart((workspace,))
        self.safety = SafetyLayer(
            SafetyConfig(
                workspace,
                settings.explore.shell_timeout_s,
                None if patterns is None else [(p.pattern, p.reason) for p in patterns],
                tools.state.root / "logs" / "security.log",
                settings.sandbox.backend,
            ),
            clean=tools.audit.database.redactor.text,
        )

    # ---- from the beginning to the end

    async def run(self) -> Explored:
        """Explore until a limit, a person or an error ends it, or ``stopping`` is set: then it rests.

        Raises:
            ConfigError: Another process explores this workspace, or the workspace is not usable.
            SystemPromptNotFound: There is no ``SYSTEM_PROMPT.md``.
            ModelUnreachable: The service did not answer for long; the session rests.
            StoreError: The journal cannot be written; the session rests.
            SandboxUnavailable: No sandbox can be started here; the session rests.
        """
        workspace = self.exploration.workspace
        with held(workspace):
            if self._resume is None:
                read_system_prompt(workspace)  # before there is a session that cannot begin
                await self._refuse_second()
            journal = await self.open_journal()
            async with self._watching():
                try:
                    outcome = await self._explore()
                except Stopping:
                    if self.wanted is not Wanted.STOPPED:
                        return Explored(self.session_id, None, True, self.log_path)
                    outcome = Outcome(OutcomeKind.CANCELED, "stopped by a person")
                return await self._end(journal, outcome)

    async def _explore(self) -> Outcome:
        profile = explorer_profile(self.safety)
        settings, exploration = self.tools.settings, self.exploration
        model = exploration.model or settings.model.model

        async def prompt(number: int) -> str:
            text = await build_system_prompt(exploration.workspace, model, describe(profile.kit))
            return f"{text.rstrip()}\n\n{continuity(number)}" if number > 1 else text.rstrip()

        async def standing(number: int, sandbox: str) -> str:
            await self._may_restart(number)
            return _with_sandbox(await prompt(number), sandbox)

        first = await prompt(1) if self.find(EntryKind.SESSION_START) is None else ""
        beginning = {
            "workspace": str(exploration.workspace),
            "network": exploration.network,
            "allow_hosts": list(exploration.allow_hosts),
            "limit_tokens": settings.context.limit_tokens,
            "prompt_sha256": hashlib.sha256(first.encode("utf-8", "surrogatepass")).hexdigest(),
        }
        return await hold_conversation(
            self,
            AgentPhase(
                PHASE,
                profile,
                lambda fence: OPENING,
                lambda sandbox, fence: _with_sandbox(first, sandbox),
                self.policy(self.calls),
                exploration.model,
                exploration.limits.model_copy(update={"wall_clock_s": 0.0}),
                Beginning(EntryKind.SESSION_START, _START, beginning),
                standing=standing,
                pace=self,
            ),
        )

    async def _end(self, journal: Journal, outcome: Outcome) -> Explored:
        ok = outcome.kind not in (OutcomeKind.ERROR, OutcomeKind.REFUSED)
        why = printable(self.tools.audit.database.redactor.text(outcome.summary))
        if self.find(EntryKind.SESSION_END) is None:
            await journal.append(Draft(EntryKind.SESSION_END, clip(why), why, phase=PHASE, meta={"ok": ok}))
        reach("explore.ended")
        await self.tools.audit.complete_session(self.session_id, "completed" if ok else "failed", clip(why, 2000))
        await asyncio.to_thread(self.tools.state.drop, self.session_id)
        return Explored(self.session_id, why, ok, self.log_path)

    async def _refuse_second(self) -> None:
        found = await unfinished_in(self.tools.audit.database, self.exploration.workspace)
        if found is not None:
            raise ConfigError(
                f"The session {found.session_id} in {self.exploration.workspace} is not over; go on with it by "
                f"`operator explore --resume --session {found.session_id}`, or end it by `operator explore stop "
                f"{found.session_id}`."
            )

    # ---- the journal and the sandbox

    @property
    def generation(self) -> int:
        return self._turn_of

    async def open_journal(self) -> Journal:
        if self.journal is not None:
            return self.journal
        audit = self.tools.audit
        if self._resume is None:
            self.session_id = await audit.create_session(None, wanted=Wanted.RUNNING.value)
            reach("explore.created")
        else:
            self.session_id = self._resume
        journal = self.journal = await audit.journal(self.session_id)
        await self.refresh()
        if self._resume is not None:
            self._turn_of += 1 + sum(e.entry_type == EntryKind.RESUMED for e in self.entries)
            await journal.append(Draft(EntryKind.RESUMED, f"resumed, for the {self._turn_of - 1}. time", phase=_START))
            folder = self.tools.state.session(self.session_id)
            for box in folder.glob("box-*"):  # the lock on the workspace says that nobody lives there any more
                await asyncio.to_thread(remove_tree, box)
            self.tools.say(f"[Resumed] session {self.session_id} goes on where its journal ends")
        return journal

    def policy(self, *readable: Path) -> Policy:
        settings, exploration = self.tools.settings, self.exploration
        self.keep_apart((exploration.workspace, *settings.sandbox.readable))
        return session_policy(
            settings,
            exploration.workspace,
            readable=readable,
            network=exploration.network,
            allow_hosts=exploration.allow_hosts,
            timeout_s=settings.explore.shell_timeout_s,
        )

    @property
    def log_path(self) -> Path:
        """Its session log, outside of the workspace."""
        return self.tools.state.root / "logs" / f"session-{self.session_id}.jsonl"

    # ---- what people want of it

    @asynccontextmanager
    async def _watching(self) -> AsyncIterator[None]:
        """Meanwhile look what is wanted, and write the log."""
        log = SessionLog(self.log_path)
        watcher = asyncio.create_task(self._watch(log))
        try:
            yield
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
            with contextlib.suppress(StoreError, OSError):
                log.add(await self.tools.audit.entries(self.session_id, after=log.seen))
            log.close()

    async def _watch(self, log: SessionLog) -> None:
        while True:
            with contextlib.suppress(StoreError, OSError):
                before = self._said
                wanted = await self._explorers.wanted(self.session_id)
                if wanted is not self.wanted and before == self._said:
                    self.wanted = wanted
                    self._changed.set()
                log.add(await self.tools.audit.entries(self.session_id, after=log.seen))
            await asyncio.sleep(_LOOK_S)

    def due(self, run: AgentRun) -> bool:
        """See :class:`operator_core.agent_lab.agent_run.Pace`."""
        halted = self.wanted is not Wanted.RUNNING
        return halted or self._out_of_time() or run.conversation.same() > 0

    async def rest(self, run: AgentRun) -> None:
        """See :class:`operator_core.agent_lab.agent_run.Pace`."""
        await self._while_paused("pause")
        self._since = self._since or clock.monotonic()
        if self._out_of_time():
            raise LimitReached(f"The limit of {self.exploration.limits.wall_clock_s:g} s is reached.")
        conversation = run.conversation
        pause = pause_after(conversation.same(), conversation.idle)
        if pause:
            self.tools.say(f"[Slow] It repeats itself or only talks; the next request comes in {pause:g} s.")
            await self._wait(pause)
            await self._while_paused("pause")

    def _out_of_time(self) -> bool:
        most = self.exploration.limits.wall_clock_s
        running = clock.monotonic() - self._since if self._since is not None else 0.0
        return bool(most) and self._worked_s + running >= most

    async def _while_paused(self, why: str) -> None:
        """Wait until it may go on.

        Raises:
            Stopping: It is to stop, or to rest.
        """
        if self._is(Wanted.PAUSED):
            self._worked_s += clock.monotonic() - self._since if self._since is not None else 0.0
            self._since = None
            self.tools.say(f"[Paused] ({why}) go on with `operator explore resume {self.session_id}`")
            await self._note("paused", why)
            while self._is(Wanted.PAUSED):
                await self._wait(3600.0)
            if self._is(Wanted.RUNNING):
                self.tools.say("[Resumed] it goes on")
                await self._note("continued", why)
                self._since = clock.monotonic()
        if self.stopping.is_set() or self._is(Wanted.STOPPED):
            raise Stopping

    def _is(self, wanted: Wanted) -> bool:
        """Whether this is wanted now, and this process may go on."""
        return self.wanted is wanted and not self.stopping.is_set()

    async def _wait(self, seconds: float) -> None:
        """So long, or until something else is wanted."""
        self._changed.clear()
        waits = [
            asyncio.ensure_future(self._changed.wait()),
            asyncio.ensure_future(self.stopping.wait()),
            asyncio.ensure_future(self.tools.clock.sleep(seconds)),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)

    async def _note(self, kind: str, why: str) -> None:
        await (await self.open_journal()).append(Draft(kind, why, phase=_START))

    async def _may_restart(self, number: int) -> None:
        settings = self.tools.settings.explore
        done = number - 2
        if settings.max_restarts is not None and done >= settings.max_restarts:
            raise LimitReached(
                f"The context is full again after {done} restarts ([explore] max_restarts = {settings.max_restarts})."
            )
        if not settings.auto_restart:
            with contextlib.suppress(TransitionRefused):  # somebody has just stopped it
                await self._explorers.want(self.session_id, Wanted.PAUSED)
            self.wanted = await self._explorers.wanted(self.session_id)
            self._said += 1  # what is being read at this moment may be older
            await self._while_paused("the context is full")


def _with_sandbox(prompt: str, summary: str) -> str:
    return f"{prompt}\n\n## Where your commands run\n\n{summary.strip()}" if summary.strip() else prompt

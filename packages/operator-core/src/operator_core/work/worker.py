"""A worker process: claims tickets, keeps its lease alive, runs their sessions, and takes over those of the dead."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sqlalchemy import Text, bindparam, or_, select

from operator_core import clock as real_clock
from operator_core.agent_lab.audit import SessionAuditor
from operator_core.agent_lab.engine import Engine
from operator_core.agent_lab.gateway import Say
from operator_core.agent_lab.resting import AwaitingApproval, Stopping
from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.approvals import Approvals
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.queue import Owned
from operator_core.db.schema import tickets
from operator_core.db.wakeup import Wakeup
from operator_core.errors import Fenced, ModelNotUsable, ModelUnreachable, OperatorError, SandboxUnavailable, StoreError
from operator_core.failpoints import reach
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import Reason, TicketKind, TicketStatus
from operator_core.work.boxes import learn_credentials
from operator_core.work.closing import export_closed
from operator_core.work.incident import IncidentSession
from operator_core.work.left_behind import close_left_behind
from operator_core.work.looker import Looker
from operator_core.work.session import Conclusion, LookWithChecker, Session, SessionTools
from operator_core.work.task import TaskSession

__all__ = ["Worker"]

_GRACE_S = 10.0
_SELF_STOP = 0.8
_EXIT_DECLARED_DEAD = 70
_RULE = "=" * 60
# One statement: of two, a ticket that changes its state in between would be missed by both.
_LEFT = (
    select(tickets.c.id)
    .where(
        tickets.c.status.in_([TicketStatus.OPEN.value, TicketStatus.QUEUED.value, TicketStatus.RUNNING.value]),
        tickets.c.held.is_(False),
        tickets.c.invariant_name != MONITOR_BLIND,
        or_(
            tickets.c.pinned_to.is_(None),
            tickets.c.pinned_to == bindparam("name", type_=Text),
            tickets.c.status == TicketStatus.RUNNING.value,
        ),
    )
    .limit(1)
)


@dataclass
class _Job:
    """One session in this process."""

    claim: Claim
    session: Session
    task: asyncio.Task[None]
    canceled: bool = False
    wake: int = -1
    missing: int = 0


class Worker:
    """Claims and runs sessions until it is told to stop.

    Args:
        settings: Concurrency, lease, limits, model and sandbox.
        database: An open store.
        engine: The model service.
        say: Prints one line for a person.
        clock: For waiting; the lease itself is on the database's clock.
        on_conclusion: Called with each finished session.
        audit_dir: Also write one ``SessionAuditor`` file per session there.
        more: Asked by a worker that would end because nothing is left: whether tickets have come after all.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        engine: Engine,
        *,
        say: Say = print,
        clock: Clock | None = None,
        on_conclusion: Callable[[Conclusion], None] = lambda conclusion: None,
        audit_dir: Path | None = None,
        look_with_checker: LookWithChecker | None = None,
        more: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self.id = real_clock.new_id()
        self.settings = settings
        self.database = database
        learn_credentials(database.redactor, settings)
        self._say: Say = lambda line: say(database.redactor.text(line))
        tools = SessionTools.on(database, settings, engine, self._say, clock=clock, look_with_checker=look_with_checker)
        self.queue, self.audit, self.clock = tools.queue, tools.audit, tools.clock
        self._on_conclusion = on_conclusion
        self._audit_dir = audit_dir
        self._more = more
        self._jobs: dict[tuple[int, int], _Job] = {}
        self._failure: OperatorError | None = None
        self._quit = asyncio.Event()
        self._done = asyncio.Event()
        self._complaint = ""
        self._state = tools.state
        self._tools = tools
        self._looker = Looker(self._tools, self.id, self._about)
        self._looked_last = False

    async def run(self, stop: asyncio.Event, *, until_idle: bool = False) -> None:
        """Work until ``stop`` is set (or, with ``until_idle``, until nothing is left to do).

        Running sessions then finish the command they are in, within 10 seconds, and are given back for another worker.

        Raises:
            ModelNotUsable: The service refuses the key or the model; nothing was lost, the tickets are open again.
            ModelUnreachable: It did not answer for ``retry_deadline_s``; likewise.
            SandboxUnavailable: No sandbox can be started here; likewise.
        """
        lease = self.settings.worker.lease_s
        await self._tidy()
        await self.queue.register(self.id, lease, self.settings.worker.name, self.settings.worker.concurrency)
        reach("worker.registered")
        keepers = [asyncio.create_task(self._beat(lease)), asyncio.create_task(self._sweep(lease))]
        try:
            async with Wakeup(self.database) as wakeup:
                while not stop.is_set() and not self._quit.is_set():
                    claimed = await self._claim()
                    idle = not claimed and not self._jobs and not self._looker.tasks
                    if until_idle and idle and not await self._anything_left():
                        break
                    if not claimed:
                        await self._wait(wakeup, stop)
        finally:
            await self._leave()
            # They are not cancelled: that could happen in the middle of a transaction.
            self._done.set()
            await asyncio.gather(*keepers, return_exceptions=True)
            with contextlib.suppress(StoreError):
                await self.queue.retire(self.id)
        if self._failure is not None:
            raise self._failure

    async def _tidy(self) -> None:
        """Remove what sessions left here whose worker died after their end, or that ended without one."""
        await close_left_behind(self.audit, self._state)
        mine = {job.session.session_id for job in self._jobs.values()}
        for name in set(await asyncio.to_thread(self._state.names)) - mine:
            # A folder of another database may be among them: only what is known to have ended goes.
            closed = [s for s in await self.audit.sessions(session_id=name) if s.status != "running"]
            if closed:
                await export_closed(self._tools, closed[0])
                await asyncio.to_thread(self._state.drop, name)

    # ---- claiming

    async def _claim(self) -> bool:
        free = self.settings.worker.concurrency - len(self._jobs) - len(self._looker.tasks)
        name = self.settings.worker.name
        try:
            if free <= 0:
                await self.queue.queue_busy(name)
                return False
            # In turn with tickets, so that neither a crowd of these nor one of those is in the way of the other.
            first = not self._looked_last
            looked = first and await self._looker.take()
            await self.queue.promote(name, free - looked, worker=self.id)
            claims = await self.queue.claim(self.id, free - looked, name) if free > looked else []
            if not claims and not first:
                looked = await self._looker.take()
            self._looked_last = looked
        except Fenced:
            self._die()
        except StoreError as error:
            self._complain(error)
            return False
        for claim in claims:
            reach("worker.claimed")
            session = self._session(claim)
            task = asyncio.create_task(self._run_one(claim, session), name=f"ticket-{claim.ticket_id}")
            self._jobs[claim.ticket_id, claim.fence] = _Job(claim, session, task, wake=claim.wake)
        return bool(claims) or looked

    async def _wait(self, wakeup: Wakeup, stop: asyncio.Event) -> None:
        """Until work may be there, a session ended, or it is time to stop; the poll is the fallback."""
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(stop.wait()), asyncio.create_task(self._quit.wait())]
        poll = self.settings.worker.poll_s / self.clock.rate
        waits.append(asyncio.create_task(wakeup.wait(poll)))
        running = [*(job.task for job in self._jobs.values()), *self._looker.tasks]
        await asyncio.wait([*waits, *running], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)

    async def _anything_left(self) -> bool:
        name = self.settings.worker.name
        if await self.database.fetch(_LEFT, name=name) or await self._looker.left():
            return True
        # Looked for again at the end: a ticket that others opened meanwhile is none that `more` has found.
        return self._more is not None and (await self._more() or bool(await self.database.fetch(_LEFT, name=name)))

    # ---- one session

    def _session(self, claim: Claim) -> Session:
        tools = self._tools._replace(say=self._about(claim.ticket_id))
        return TaskSession(tools, claim) if claim.ticket.kind is TicketKind.TASK else IncidentSession(tools, claim)

    def _about(self, ticket_id: int) -> Say:
        """Prints lines of one session; where several work at once, each says of which ticket it is."""
        if self.settings.worker.concurrency == 1:
            return self._say

        def say(text: str) -> None:
            self._say("\n".join(f"#{ticket_id} {line}" if line else line for line in text.split("\n")))

        return say

    async def _run_one(self, claim: Claim, session: Session) -> None:
        key = (claim.ticket_id, claim.fence)
        try:
            await self._work(claim, session)
        except Fenced:
            self._say(f"Ticket #{claim.ticket_id} belongs to another worker now; this one stops working on it.")
        except StoreError as error:
            # Nothing is lost: the journal is durable up to here, and the lease passes the ticket on.
            self._about(claim.ticket_id)(f"Error processing ticket: {error}")
        finally:
            self._jobs.pop(key, None)

    async def _work(self, claim: Claim, session: Session) -> None:
        ticket = claim.ticket
        self._say(f"\n{_RULE}\nProcessing ticket #{ticket.id}: {ticket.invariant_name}\n{_RULE}\n")
        try:
            if await self.queue.lost_in_a_row(claim) >= self.settings.worker.lost_after:
                why = f"{self.settings.worker.lost_after} workers in a row were lost without any progress"
                status, summary = await session.fail(Reason.LOST_WORKER, why), why
            else:
                conclusion = await session.run()
                status, summary = conclusion.status, conclusion.report.headline
                self._on_conclusion(conclusion)
        except asyncio.CancelledError:
            job = self._jobs.get((claim.ticket_id, claim.fence))
            if job is None or not job.canceled:
                raise
            status, summary = await session.abandon("canceled by a person"), "canceled by a person"
        except AwaitingApproval as asked:
            reach("approval.park.before")
            if not await Approvals(self.database).park(claim, asked.approval):
                await self.queue.release(claim)  # answered or canceled meanwhile; whoever claims it sees that
                return
            reach("approval.park.after")
            status, summary = TicketStatus.WAITING_FOR_INPUT, str(asked)
        except Stopping:
            await self.queue.release(claim)
            return
        except (ModelNotUsable, ModelUnreachable, SandboxUnavailable) as error:
            # Not this ticket's fault: give it back and stop, before every other ticket meets the same fate.
            self._failure = error
            self._quit.set()
            await self.queue.release(claim)
            return
        except StoreError:
            raise
        except Exception as error:
            self._about(claim.ticket_id)(f"Error processing ticket: {error}")
            sentence = str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}"
            status, summary = await session.fail(Reason.ERROR, sentence), sentence
        self._say(f"\nTicket #{ticket.id} -> {status}\nSummary: {summary}\n")
        if self._audit_dir is not None and session.session_id:
            entries = await self.audit.entries(session.session_id)
            try:
                SessionAuditor.from_entries(self._audit_dir, session.session_id, entries).save_session()
            except OSError as error:
                self._say(f"The audit file of {session.session_id} cannot be written ({error}); check --audit-dir.")

    # ---- staying alive

    async def _beat(self, lease: float) -> None:
        """On the event loop, because it proves that the loop lives."""
        last = real_clock.monotonic()
        while not await self._over(lease / 6):
            sent = real_clock.monotonic()
            beat = asyncio.ensure_future(self.queue.heartbeat(self.id, lease))
            # Bounded, because a database that does not answer would keep us beyond the end of the lease. The second
            # look is for an answer that came while this loop was busy.
            for bound in (max(0.0, last + _SELF_STOP * lease - real_clock.monotonic()), 0.1 * lease):
                await asyncio.wait({beat}, timeout=bound)
            if not beat.done():
                self._die()
            try:
                beat.result()
                last = sent  # the lease began before the answer came
            except Fenced:
                self._die()
            except StoreError as error:
                self._complain(error)
            if real_clock.monotonic() - last > _SELF_STOP * lease:
                self._die()

    async def _sweep(self, lease: float) -> None:
        """Take back the tickets of dead workers, and make this process agree with the store."""
        pause, tidied = 0.0, real_clock.monotonic()
        while not await self._over(pause):
            pause = min(0.5, lease / 6) * random.uniform(0.8, 1.2)
            try:
                await self.queue.reap()
                await self._reconcile(await self.queue.owned(self.id))
                await self._looker.sweep()
                if real_clock.monotonic() - tidied > lease:  # what was canceled while it waited for a person
                    await self._tidy()
                    tidied = real_clock.monotonic()
            except StoreError as error:
                self._complain(error)

    async def _over(self, pause: float) -> bool:
        """Wait so long; True as soon as this worker is done."""
        if pause:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._done.wait(), pause)
        return self._done.is_set()

    async def _reconcile(self, owned: dict[tuple[int, int], Owned]) -> None:
        for key, job in list(self._jobs.items()):
            if key not in owned:
                job.missing += not job.session.ended
                if job.missing >= 2:  # once may be the moment between its last write and its end
                    job.task.cancel()
                continue
            cancel, now, wake = owned[key]
            if cancel:
                job.session.canceling.set()
            if (now or (cancel and job.session.cancels_at_once)) and not job.canceled:
                job.canceled = True
                job.task.cancel()
            if wake != job.wake:
                job.wake = wake
                job.session.post()
        for ticket, fence in owned:
            if (ticket, fence) not in self._jobs:
                await self._disown(ticket, fence)

    async def _disown(self, ticket: int, fence: int) -> None:
        """Ours in the store, but nothing here works on it: an answer was lost, or the session ended badly."""
        await asyncio.sleep(0.05)
        if (ticket, fence) in self._jobs or (ticket, fence) not in await self.queue.owned(self.id):
            return
        from operator_core.db.tickets import TicketDB

        claim = Claim(await TicketDB(self.database).get_ticket(ticket), self.id, fence, 0)
        with contextlib.suppress(Fenced):
            await self.queue.release(claim, delay_s=1.0, lost=True)

    async def _leave(self) -> None:
        """Let every session finish its command, then give the tickets back."""
        jobs = list(self._jobs.values())
        for job in jobs:
            job.session.stopping.set()
        looks = asyncio.ensure_future(self._looker.leave(_GRACE_S))
        if jobs:
            _, late = await asyncio.wait([job.task for job in jobs], timeout=_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*(job.task for job in jobs), return_exceptions=True)
        await looks

    def _complain(self, error: StoreError) -> None:
        """Say what is wrong with the store, once for each trouble; the work goes on when it is over."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._say(f"[Store] {error}")

    def _die(self) -> NoReturn:
        """Declared dead, or cannot renew the lease: another worker may be at work already, so write nothing more."""
        self._say("This worker lost its lease and stops at once; another one goes on with its sessions.")
        os._exit(_EXIT_DECLARED_DEAD)

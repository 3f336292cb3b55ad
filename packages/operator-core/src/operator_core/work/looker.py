"""A worker's share in judging finished work again: what people asked for, one at a time, beside its tickets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from operator_core.agent_lab.gateway import Say
from operator_core.db.second_looks import LookClaim, SecondLooks
from operator_core.db.tickets import TicketDB
from operator_core.errors import Fenced, OperatorError, StoreError
from operator_core.failpoints import reach
from operator_core.text import clip, printable
from operator_core.work.rejudge import adopt, not_here, rejudge
from operator_core.work.session import SessionTools

__all__ = ["Looker"]

_REOPENED = "The ticket was opened again while it was judged; ask again when its work has ended."


@dataclass
class _Job:
    """One request in this process."""

    claim: LookClaim
    task: asyncio.Task[None]
    reopened: bool = False
    missing: int = 0


class Looker:
    """Takes requests for one worker, and judges in its sandbox.

    Args:
        tools: Of the worker's sessions.
        worker: Its incarnation, which must be registered before the first :meth:`take`.
        about: Prints the lines of what is done for one ticket.
    """

    def __init__(self, tools: SessionTools, worker: str, about: Callable[[int], Say]) -> None:
        self._tools = tools
        self._worker = worker
        self._about = about
        self._name = tools.settings.worker.name
        self._looks = SecondLooks(tools.audit.database)
        self._jobs: dict[tuple[str, int], _Job] = {}

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """What runs now; each takes a slot of the worker."""
        return [job.task for job in self._jobs.values()]

    async def take(self) -> bool:
        """Begin the oldest request that can be judged here; whether there was one.

        Raises:
            Fenced: This worker was declared dead.
            StoreError: The store cannot be reached.
        """
        for waiting in await self._looks.waiting(self._worker, self._name):
            ticket = await TicketDB(self._looks.database).get_ticket(waiting.ticket_id)
            try:
                why = await not_here(self._tools, ticket)
            except StoreError:
                raise
            except Exception as error:  # its own trouble: one request must not end every worker that comes by
                why = self._sentence(error)
            if why is not None:
                await self._looks.pass_by(waiting, self._worker, why)
                continue
            lost_after = self._tools.settings.worker.lost_after
            claim = await self._looks.take(waiting, self._worker, lost_after=lost_after)
            if claim is not None:
                reach("again.claimed")
                key = (claim.look.id, claim.look.fence)
                task = asyncio.create_task(self._run(claim), name=f"again-{claim.look.ticket_id}")
                self._jobs[key] = _Job(claim, task)
                return True
        return False

    async def left(self) -> bool:
        """Whether something is asked that this worker may take, or take over."""
        return await self._looks.left(self._worker, self._name)

    async def sweep(self) -> None:
        """Make this process agree with the store: what is its, and whether it is still wanted."""
        owned = await self._looks.owned(self._worker)
        for key, job in list(self._jobs.items()):
            if key not in owned:
                job.missing += 1
                if job.missing >= 2:  # once may be the moment between its last write and its end
                    job.task.cancel()
            elif not owned[key] and not job.reopened:
                job.reopened = True
                job.task.cancel()
        for look_id, fence in owned:
            if (look_id, fence) not in self._jobs:
                await self._disown(look_id, fence)

    async def leave(self, grace_s: float) -> None:
        """Let what runs end, for so many seconds; the rest is broken off, and waits for another worker."""
        if tasks := self.tasks:
            _, late = await asyncio.wait(tasks, timeout=grace_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, claim: LookClaim) -> None:
        look, tools = claim.look, self._tools
        key = (look.id, look.fence)
        tools.say(f"[Again] Ticket #{look.ticket_id} is judged again, because {printable(look.asked_by)} asked for it.")
        try:
            try:
                if not await adopt(tools, claim):
                    own = tools._replace(say=self._about(look.ticket_id))
                    await rejudge(own, look.ticket_id, checks_only=look.checks_only, asked=claim)
            except asyncio.CancelledError:
                job = self._jobs.get(key)
                if job is None or not job.reopened:
                    raise
                await self._looks.end(claim, why=_REOPENED)
            except (Fenced, StoreError):
                raise
            except Exception as error:
                await self._looks.end(claim, why=self._sentence(error))
            await self._tell(look.ticket_id)
        except Fenced:
            tools.say(f"[Again] Ticket #{look.ticket_id}: another worker judges it now.")
        except StoreError as error:
            # The sweep gives it back when the store can be reached.
            tools.say(f"[Again] Ticket #{look.ticket_id}: {error}")
        finally:
            self._jobs.pop(key, None)

    def _sentence(self, error: Exception) -> str:
        said = str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}"
        return clip(printable(self._looks.database.redactor.text(said)), 2000)

    async def _tell(self, ticket_id: int) -> None:
        for look in await self._looks.of_ticket(ticket_id, most=1):
            result = f"{look.verdict}: {look.why}" if look.verdict else f"could not be judged: {look.why}"
            self._tools.say(f"[Again] Ticket #{ticket_id}: {clip(printable(result), 400)}")

    async def _disown(self, look_id: str, fence: int) -> None:
        """Ours in the store, but nothing here works on it: an answer was lost, or its end could not be written."""
        await asyncio.sleep(0.05)
        key = (look_id, fence)
        if key not in self._jobs and key in await self._looks.owned(self._worker):
            with contextlib.suppress(Fenced):
                await self._looks.disown(look_id, self._worker, fence)

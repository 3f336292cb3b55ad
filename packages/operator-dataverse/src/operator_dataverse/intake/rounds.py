"""One look after the other: what was left, what others did, what can be taken now, and what has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from operator_core import clock
from operator_core.errors import OperatorError, StoreError
from operator_dataverse.errors import Refused, Throttled, Unauthorized, Unreachable
from operator_dataverse.intake.claims import claim_task, promote_task, queue_task
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.leases import watch_rows
from operator_dataverse.intake.poll import candidates, pending_here
from operator_dataverse.intake.recovery import recover_claims
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["Rounds"]

_GLANCE_S = 1.0
_GRACE_S = 5.0
_LONGEST_PAUSE_S = 300.0


class Rounds:
    """Keeps the rows and the tickets of this box in agreement, one round at a time.

    Args:
        desk: The two sides.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._one_at_a_time = asyncio.Lock()
        self._news = asyncio.Event()
        self._complaint = ""
        self._odd: dict[str, str] = {}

    async def look(self) -> int:
        """One round.

        Returns:
            How many tickets came of it.

        Raises:
            DataverseError: The service does not answer, or not to us.
            StoreError: The store cannot be used.
        """
        async with self._one_at_a_time:
            taken = await recover_claims(self.desk, await self._slots(), self._oddities)
            taken += await watch_rows(self.desk, self._oddities)
            taken += await self._take()
            if await self._free() <= 0:
                await self._queue()
            return taken

    async def when_idle(self, action: Callable[[bool], Awaitable[bool]]) -> bool:
        """Do something while no row is taken; it is told whether nothing is worked on."""
        async with self._one_at_a_time:
            return await action(await self.desk.queue.taken(self.desk.settings.worker.name) == 0)

    def wake(self) -> None:
        """A row is not as it was expected: look now."""
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Look every ``poll_s`` seconds, and as soon as something here has ended, until ``stop`` is set."""
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set():
                round_ = asyncio.create_task(self._round())
                await asyncio.wait({round_, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not round_.done():
                    # A service that does not answer must not keep the worker; what was begun is taken up next time.
                    await asyncio.wait({round_}, timeout=_GRACE_S)
                    round_.cancel()
                    await asyncio.gather(round_, return_exceptions=True)
                    return
                await self._rest(stopped, round_.result())
        finally:
            stopped.cancel()

    async def _round(self) -> float:
        """Look once; returns the seconds until the next time."""
        pause = self.desk.mine.poll_s
        try:
            await self.look()
            self._recovered()
        except Throttled as error:
            pause = max(pause, min(error.after_s, _LONGEST_PAUSE_S))
            self._complain(error)
        except OperatorError as error:
            self._complain(error)
        return pause

    # ---- taking

    async def _free(self) -> int:
        """Slots that nothing needs: no row is taken that would only wait here (D-68)."""
        claiming = await self.desk.links.list(SOURCE, owner=self.desk.box, unsettled=True, without_ticket=True)
        now = await self.desk.links.now_ms()
        states = [LinkState.model_validate(link.state) for link in claiming]
        return await self._slots() - sum(state.claiming and state.taken_until > now for state in states)

    async def _slots(self) -> int:
        """Slots that no ticket needs; claims that are under way may need them."""
        desk, name = self.desk, self.desk.settings.worker.name
        processes = sum(worker.name == name for worker in await desk.queue.living())
        return desk.settings.worker.concurrency * max(1, processes) - await desk.queue.taken(name)

    async def _take(self) -> int:
        taken, free = 0, await self._free()
        if free <= 0:
            return 0
        async with aclosing(candidates(self.desk, free)) as rows:
            async for row in rows:
                async with self._oddities(row.id, "taken"):
                    taken += await self._take_one(row)
                if taken >= free:
                    break
        return taken

    async def _take_one(self, row: TaskRow) -> bool:
        if row.status is TaskCode.QUEUED:
            promoted = await promote_task(self.desk, row)
            return promoted is not None and await claim_task(self.desk, promoted)
        return await claim_task(self.desk, row)

    async def _queue(self) -> None:
        """Say of the rows that wait for this box that they do."""
        async with aclosing(pending_here(self.desk)) as rows:
            waiting = [row async for row in rows]
        if not waiting:
            return
        known = await self.desk.links.list(SOURCE, ids=[row.id for row in waiting], unsettled=True)
        busy = {link.external_id for link in known}
        for row in waiting:
            if row.id not in busy:
                async with self._oddities(row.id, "taken"):
                    await queue_task(self.desk, row)

    @asynccontextmanager
    async def _oddities(self, row_id: str, what: str) -> AsyncIterator[None]:
        """A row that the service does not let us write is said once, and holds up no other (D-42)."""
        try:
            yield
        except (Refused, Unauthorized) as error:
            if self._odd.get(row_id) != str(error):
                self._odd[row_id] = str(error)
                self.desk.say(f"[Dataverse] Task {row_id[:8]} cannot be {what}: {error}")

    # ---- between two rounds

    async def _rest(self, stopped: asyncio.Task[bool], pause_s: float) -> None:
        until = clock.monotonic() + pause_s
        taken = await self._glance()
        news = asyncio.create_task(self._news.wait())
        try:
            while (left := until - clock.monotonic()) > 0:
                done, _ = await asyncio.wait(
                    {news, stopped}, timeout=min(left, _GLANCE_S), return_when=asyncio.FIRST_COMPLETED
                )
                now = await self._glance()
                # Fewer: a session has ended, and its slot may be for a row that waits.
                if done or (now is not None and taken is not None and now < taken):
                    return
                taken = now
        finally:
            self._news.clear()
            news.cancel()

    async def _glance(self) -> int | None:
        try:
            return await self.desk.queue.taken(self.desk.settings.worker.name)
        except StoreError:
            return None

    def _complain(self, error: OperatorError) -> None:
        """Say what is wrong, once for each trouble."""
        if str(error) == self._complaint:
            return
        self._complaint = str(error)
        more = " What runs goes on, and is reported when it is over." if isinstance(error, Unreachable) else ""
        self.desk.say(f"[Dataverse] {error}{more}")

    def _recovered(self) -> None:
        if self._complaint:
            self._complaint = ""
            self.desk.say("[Dataverse] The service answers again.")

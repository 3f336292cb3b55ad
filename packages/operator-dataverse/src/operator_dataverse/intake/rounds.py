"""One look after the other: what was left, what others did, what can be taken now, and what has to wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager

from operator_core import clock
from operator_core.db.fleet import Room
from operator_core.errors import OperatorError, StoreError
from operator_dataverse.errors import Refused, Throttled, Unauthorized, Unreachable
from operator_dataverse.intake.claims import claim_task, promote_task, queue_task
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.leases import Watch
from operator_dataverse.intake.poll import candidates, pending_here, strangers
from operator_dataverse.intake.recovery import recover_claims
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["Rounds"]

_GLANCE_S = 1.0
_GRACE_S = 5.0
_LONGEST_PAUSE_S = 300.0
_SHORTEST_LIMIT_S = 2.0
_STRANGERS_S = 60.0


class Rounds:
    """Keeps the rows and the tickets of this box in agreement, one round at a time.

    Args:
        desk: The two sides.
    """

    def __init__(self, desk: Desk) -> None:
        self.desk = desk
        self._one_at_a_time = asyncio.Lock()
        self._news = asyncio.Event()
        self._look_again = asyncio.Event()
        self._complaints: dict[str, str] = {}
        self._odd: dict[str, str] = {}
        self._resting: dict[str, float] = {}
        # One row may take so long of a round: however many do, others show their signs of life in time.
        self._limit_s = max(_SHORTEST_LIMIT_S, desk.mine.lease_s / 8)
        self._watch = Watch(desk, self._oddities)
        self._watching = asyncio.Lock()
        self._next_strangers = 0.0

    async def look(self) -> int:
        """One round.

        Returns:
            How many tickets came of it.

        Raises:
            DataverseError: The service does not answer, or not to us.
            StoreError: The store cannot be used.
        """
        async with self._one_at_a_time:
            taken = await self._recover(self._resting.__contains__)
            taken += await self._watch.look()
            return taken + await self._take_all()

    async def when_idle(self, action: Callable[[bool], Awaitable[bool]]) -> bool:
        """Do something while no row is taken; it is told whether nothing is worked on."""
        async with self._one_at_a_time, self._watching:
            await self._watch.settle()
            return await action(await self.desk.queue.taken(self.desk.settings.worker.name) == 0)

    def wake(self) -> None:
        """A row is not as it was expected: look now."""
        self._news.set()
        self._look_again.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Look every ``poll_s`` seconds, and as soon as something here has ended, until ``stop`` is set."""
        stopped = asyncio.create_task(stop.wait())
        # Apart, so that no sign of life waits for what is taken.
        loops = [
            asyncio.create_task(self._repeat(stopped, self._take_round, self._rest, _LONGEST_PAUSE_S)),
            asyncio.create_task(self._repeat(stopped, self._watch_round, self._doze, self.desk.mine.lease_s / 4)),
        ]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in (stopped, *loops):
                task.cancel()
            ends = await asyncio.gather(*loops, return_exceptions=True)
            await self._watch.close()
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _repeat(
        self,
        stopped: asyncio.Task[bool],
        what: Callable[[], Awaitable[None]],
        rest: Callable[[asyncio.Task[bool], float], Awaitable[None]],
        longest_s: float,
    ) -> None:
        while not stopped.done():
            round_ = asyncio.create_task(self._round(what, longest_s))
            try:
                await asyncio.wait({round_, stopped}, return_when=asyncio.FIRST_COMPLETED)
                if not round_.done():
                    # A service that does not answer must not keep the worker; what was begun is taken up next time.
                    await asyncio.wait({round_}, timeout=_GRACE_S)
                    return
            finally:
                round_.cancel()
                await asyncio.gather(round_, return_exceptions=True)
            await rest(stopped, round_.result())

    async def _round(self, what: Callable[[], Awaitable[None]], longest_s: float) -> float:
        """Do it once; returns the seconds until the next time."""
        pause, part = self.desk.mine.poll_s, what.__name__
        try:
            await what()
            self._recovered(part)
        except Throttled as error:
            pause = max(pause, min(error.after_s, longest_s))
            self._complain(part, error)
        except OperatorError as error:
            self._complain(part, error)
        return pause

    async def _take_round(self) -> None:
        async with self._one_at_a_time:
            await self._recover(self._resting.__contains__)
            await self._take_all()

    async def _watch_round(self) -> None:
        async with self._watching:
            await self._watch.begin()

    # ---- taking

    async def _recover(self, rests: Callable[[str], bool]) -> int:
        return await recover_claims(self.desk, await self._slots(), self._oddities, rests)

    async def _take_all(self) -> int:
        taken = await self._take(self._resting.__contains__)
        # A box that drains waits for nothing: rows that name it stay as they are until it may take again.
        if await self._free() <= 0 and not (await self._room()).draining:
            await self._queue()
        await self._pass_over()
        # Rows that got no answer come last: whatever they cost, no other waits for them.
        now = clock.monotonic()
        if rested := [row_id for row_id, until in self._resting.items() if until <= now]:
            taken += await self._recover(self._rests) + await self._take(self._rests)
            for row_id in rested:
                if self._resting.get(row_id, now) <= now:
                    self._resting.pop(row_id, None)
        return taken

    async def _free(self) -> int:
        """Slots that nothing needs: no row is taken that would only wait here (D-68)."""
        claiming = await self.desk.links.list(SOURCE, owner=self.desk.box, unsettled=True, without_ticket=True)
        now = await self.desk.links.now_ms()
        states = [LinkState.model_validate(link.state) for link in claiming]
        return await self._slots() - sum(state.claiming and state.taken_until > now for state in states)

    async def _slots(self) -> int:
        """Slots that no ticket needs; claims that are under way may need them."""
        return (await self._room()).free

    async def _room(self) -> Room:
        mine = self.desk.settings.worker
        return await self.desk.queue.room(mine.name, mine.concurrency)

    async def _take(self, rests: Callable[[str], bool]) -> int:
        taken, free = 0, await self._free()
        if free <= 0:
            return 0
        async with aclosing(candidates(self.desk, free)) as rows:
            async for row in rows:
                if rests(row.id):
                    continue
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
            if row.id not in busy and not self._rests(row.id):
                async with self._oddities(row.id, "taken"):
                    await queue_task(self.desk, row)

    async def _pass_over(self) -> None:
        """Say of rows that only call themselves the person's why nothing is done for them."""
        if clock.monotonic() < self._next_strangers:
            return
        self._next_strangers = clock.monotonic() + _STRANGERS_S
        for row in await strangers(self.desk):
            whose = f"it belongs to {row.owner or 'nobody'}, and not to {self.desk.mine.user}"
            remedy = "assign it to that person, or add its owner to `[dataverse] trusted_owners`"
            self._say_once(row.id, f"is passed over: {whose}; {remedy}.")

    def _say_once(self, row_id: str, what: str) -> None:
        if self._odd.get(row_id) != what:
            self._odd[row_id] = what
            self.desk.say(f"[Dataverse] Task {row_id[:8]} {what}")

    @asynccontextmanager
    async def _oddities(self, row_id: str, what: str) -> AsyncIterator[None]:
        """A row that the service does not let us write, or not now, is said once, and holds up no other (D-42)."""
        try:
            with self.desk.dataverse.http.within(self._limit_s):
                yield
        except (Refused, Unauthorized) as error:
            if isinstance(error, Refused) and error.status >= 500:
                self._let_rest(row_id)
            self._say_once(row_id, f"cannot be {what}: {error}")
        except (Throttled, Unreachable):
            if what == "kept":
                self._say_once(row_id, "cannot be kept: its row gets no answer now. It is tried again.")
                return
            # Perhaps it is no matter of this row; the next round begins with the others.
            self._let_rest(row_id)
            raise

    def _let_rest(self, row_id: str) -> None:
        self._resting[row_id] = clock.monotonic() + 2 * self._limit_s

    def _rests(self, row_id: str) -> bool:
        return self._resting.get(row_id, 0.0) > clock.monotonic()

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

    async def _doze(self, stopped: asyncio.Task[bool], pause_s: float) -> None:
        news = asyncio.create_task(self._look_again.wait())
        try:
            await asyncio.wait({news, stopped}, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._look_again.clear()
            news.cancel()

    async def _glance(self) -> int | None:
        try:
            return await self.desk.queue.taken(self.desk.settings.worker.name)
        except StoreError:
            return None

    def _complain(self, part: str, error: OperatorError) -> None:
        """Say what is wrong, once for each trouble."""
        known = str(error) in self._complaints.values()
        self._complaints[part] = str(error)
        if known:
            return
        more = " What runs goes on, and is reported when it is over." if isinstance(error, Unreachable) else ""
        self.desk.say(f"[Dataverse] {error}{more}")

    def _recovered(self, part: str) -> None:
        if self._complaints.pop(part, None) and not self._complaints:
            self.desk.say("[Dataverse] The service answers again.")

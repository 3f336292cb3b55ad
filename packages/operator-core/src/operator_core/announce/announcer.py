"""The one who tells people: looks at the ledger, sends the digest in time, and carries the letters out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta

from operator_core import clock
from operator_core.announce.delivery import Delivery
from operator_core.announce.projection import CHANNELS, Projection
from operator_core.api.digest import make_digest
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.errors import StoreError
from operator_core.model.notification import DigestPlan
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import put

__all__ = ["Announcer", "due_moment"]

_LOOK_S = 1.0
_CROWDED_S = 30.0
_AT_LEAST_AT_ONCE = 8
_LATE = timedelta(hours=3)
"""A digest whose moment passed while no server ran is still sent for so long."""


class Announcer:
    """Tells people and programs what happens, until it is told to stop. Any number of servers may have one.

    Args:
        settings: Channels, rules and the digest.
        database: An open store.
        base_url: How people reach the console, for links; see :func:`operator_core.announce.delivery.base_url_of`.
        say: Prints one line for a person.
        lease_s: After the death of this process another one waits for so long before it carries its letters.
        look_s: Time between two looks at the ledger.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        *,
        base_url: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        lease_s: float = 60.0,
        look_s: float = _LOOK_S,
    ) -> None:
        notify = settings.notify
        self._database = database
        self._say = say
        self._look_s = look_s
        self._plan = notify.digest
        self._digested: datetime | None = None
        self._complaint = ""
        self._projection = Projection(notify, database) if notify.rule else None
        delivery = Delivery(settings, database, base_url=base_url)
        # A channel that hangs takes one place, so that each has one.
        at_once = max(_AT_LEAST_AT_ONCE, len(notify.channel))
        self._courier = Courier(database, delivery, CHANNELS, at_once=at_once, lease_s=lease_s, say=say)

    async def left(self) -> int:
        """How many letters have not ended."""
        return await self._courier.left()

    async def run(self, stop: asyncio.Event) -> None:
        """Tell what happens until ``stop`` is set. Trouble with the store or with channels is said and waited out."""
        over = asyncio.Event()
        courier = asyncio.create_task(self._courier.run(over))
        stopped = asyncio.create_task(stop.wait())
        try:
            while not stop.is_set() and not courier.done():
                pause = await self.step()
                await asyncio.wait({stopped, courier}, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopped.cancel()
            over.set()
            await asyncio.gather(courier, stopped, return_exceptions=True)
        if courier.done() and not courier.cancelled() and (error := courier.exception()) is not None:
            raise error

    async def step(self) -> float:
        """Put into the outbox what is new.

        Returns:
            Seconds until the next look.
        """
        try:
            pause = await self._look()
            await self._digest()
            self._complaint = ""
        except Exception as error:
            # Whatever it is: the console beside it, and the work, go on.
            said = str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
            if said != self._complaint:
                self._complaint = said
                self._say(f"[Notify] {self._database.redactor.text(said)}")
            return self._look_s
        return pause

    async def drain(self, timeout_s: float) -> int:
        """Carry out what is there; not while :meth:`run` is at work.

        Returns:
            How many letters have not ended.
        """
        await self.step()
        return await self._courier.drain(timeout_s)

    async def _look(self) -> float:
        if self._projection is None:
            return self._look_s
        seen = await self._projection.step()
        if seen.letters:
            self._courier.wake()
        if seen.more:
            return 0.0
        return _CROWDED_S if seen.crowded else self._look_s

    async def _digest(self) -> None:
        if self._plan is None:
            return
        due = due_moment(self._plan, clock.now())
        if self._digested == due or clock.now() - due > _LATE:
            return
        since = due_moment(self._plan, due - timedelta(minutes=1))
        body = {"digest": (await make_digest(self._database, since, due)).model_dump(mode="json")}
        async with self._database.begin() as c:
            for name in dict.fromkeys(self._plan.channels):
                # Whichever server is first; the others find that it is there.
                key = f"digest:{clock.iso(due)}:{name}"
                message = {**body, "id": clock.new_id(), "put_at": clock.iso()}
                await put(c, f"{CHANNELS}{name}", "digest", message, dedupe_key=key)
        self._digested = due
        self._courier.wake()


def due_moment(plan: DigestPlan, now: datetime) -> datetime:
    """The last moment, at or before ``now``, at which a digest is due."""
    zone = plan.time.tzinfo
    today = now.astimezone(zone).date()
    moments = [datetime.combine(today - timedelta(days=n), plan.time) for n in range(3)]
    return max(m.astimezone(now.tzinfo) for m in moments if m.astimezone(now.tzinfo) <= now)

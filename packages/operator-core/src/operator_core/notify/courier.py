"""The one who carries letters out of the outbox, and what it does when that fails, or when it dies on the way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from sqlalchemy import BigInteger, Integer, Text, and_, bindparam, case, delete, func, select, update
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.schema import db_now_ms, outbox
from operator_core.errors import OperatorError, StoreError
from operator_core.failpoints import reach
from operator_core.notify.outbox import Later, Letter, Never, Outcome

__all__ = ["Courier", "Deliver"]

Deliver = Callable[[Letter], Awaitable[Outcome]]

_NOW = db_now_ms()
_PAUSE_S, _LONGEST_S = 1.0, 300.0
_MISTAKES = 8
_DRAIN_STEP_S = 0.05
_GRACE_S = 5.0
_PRUNE_EVERY_S = 3600.0
_PRUNE_AT_ONCE = 500
_WHY_LENGTH = 2000

_prefix = bindparam("prefix", type_=Text)
_ours = func.substr(outbox.c.channel, 1, func.length(_prefix)) == _prefix
_left = and_(outbox.c.ended_at.is_(None), _ours)
_free = and_(outbox.c.due_at <= _NOW, outbox.c.taken_until <= _NOW)
_heads = (
    select(func.min(outbox.c.id).label("id"), func.max(outbox.c.taken_until).label("busy_until"))
    .where(_left)
    .group_by(outbox.c.channel)
    .subquery()
)
# One that was given up and is to go out again stands before the one that may be under way.
_quiet = _heads.c.busy_until <= _NOW
_pick = (
    select(outbox.c.id)
    .join(_heads, _heads.c.id == outbox.c.id)
    .where(outbox.c.ended_at.is_(None), _free, _quiet)
    .order_by(outbox.c.due_at, outbox.c.id)
    .limit(bindparam("n", type_=Integer))
    .with_for_update(skip_locked=True, of=outbox)
    .cte("pick")
)
_TAKE = (
    update(outbox)
    .where(outbox.c.id.in_(select(_pick.c.id)))
    .values(
        taken_by=bindparam("me", type_=Text),
        taken_until=_NOW + bindparam("lease_ms", type_=BigInteger),
        attempts=outbox.c.attempts + 1,
    )
    .returning(outbox.c.id, outbox.c.channel, outbox.c.kind, outbox.c.body, outbox.c.attempts)
)
_mine = and_(outbox.c.taken_by == bindparam("me", type_=Text), outbox.c.ended_at.is_(None))
_RENEW = (
    update(outbox)
    .where(_mine, outbox.c.id.in_(bindparam("letters", expanding=True)))
    .values(taken_until=_NOW + bindparam("lease_ms", type_=BigInteger))
    .returning(outbox.c.id)
)
_END = (
    update(outbox)
    .where(_mine, outbox.c.id == bindparam("letter", type_=Integer))
    .values(
        ended_at=bindparam("now", type_=Text),
        error=bindparam("why", type_=Text),
        # What went out is kept for its key alone; what was given up can be asked to go out again.
        body=case((bindparam("why", type_=Text).is_(None), "{}"), else_=outbox.c.body),
        taken_by=None,
        taken_until=0,
    )
    .returning(outbox.c.id)
)
_PUT_OFF = (
    update(outbox)
    .where(_mine, outbox.c.id == bindparam("letter", type_=Integer))
    .values(
        due_at=_NOW + bindparam("pause_ms", type_=BigInteger),
        error=bindparam("why", type_=Text),
        taken_by=None,
        taken_until=0,
    )
    .returning(outbox.c.id)
)
_LET_GO = (
    update(outbox)
    .where(_mine, outbox.c.id.in_(bindparam("letters", expanding=True)))
    .values(taken_by=None, taken_until=0)
    .returning(outbox.c.id)
)
_ANY_READY = select(_heads.c.id).join(outbox, _heads.c.id == outbox.c.id).where(_free, _quiet).limit(1)
_COUNT = select(func.count()).select_from(outbox).where(_left)
_old = (
    select(outbox.c.id)
    .where(outbox.c.ended_at < bindparam("before", type_=Text), _ours)
    .limit(_PRUNE_AT_ONCE)
    .scalar_subquery()
)
_PRUNE = delete(outbox).where(outbox.c.id.in_(_old)).returning(outbox.c.id)


class Courier:
    """Carries letters out until it is told to stop.

    Args:
        database: An open store.
        deliver: Carries one out and says how that ended. It must be idempotent, and may be cancelled. What it raises
            counts as :class:`Later`; a mistake (anything but an ``OperatorError``) is given up after a few attempts.
        channels: Only channels whose names begin so.
        at_once: Most letters under way, each of another channel.
        lease_s: After the death of this process another one waits for so long before it carries on.
        poll_s: Time between two looks for letters that other processes put.
        keep: So long the ended ones are kept; nothing may be put again under their keys after that.
        say: Prints one line for a person.
    """

    def __init__(
        self,
        database: Database,
        deliver: Deliver,
        channels: str = "",
        *,
        at_once: int = 8,
        lease_s: float = 30.0,
        poll_s: float = 1.0,
        keep: timedelta = timedelta(days=14),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.id = clock.new_id()
        self._database = database
        self._deliver = deliver
        self._channels = channels
        self._at_once = at_once
        self._lease_s = lease_s
        self._lease_ms = int(lease_s * 1000)
        self._step_s = lease_s / 4
        self._poll_s = poll_s
        self._keep = keep
        self._say = say
        self._complaint = ""
        self._news = asyncio.Event()
        self._under_way: dict[int, asyncio.Task[None]] = {}
        self._held_until = float("-inf")

    def wake(self) -> None:
        """There may be new letters."""
        self._news.set()

    async def left(self) -> int:
        """How many letters have not ended."""
        return int((await self._database.fetch(_COUNT, prefix=self._channels))[0][0])

    async def run(self, stop: asyncio.Event) -> None:
        """Carry letters out until ``stop`` is set; what is under way then may be finished, within a few seconds.

        Trouble with the store is said and waited out.
        """
        stopped = asyncio.create_task(stop.wait())
        keeper = asyncio.create_task(self._keep_leases())
        pruned = float("-inf")
        try:
            while not stop.is_set():
                if keeper.done():
                    keeper.result()
                if clock.monotonic() - pruned > _PRUNE_EVERY_S:
                    pruned = clock.monotonic()
                    await self._guarded(self._prune())
                if not await self._guarded(self._take()):
                    await self._pause(stopped)
        finally:
            stopped.cancel()
            if self._under_way:
                await asyncio.wait(self._under_way.values(), timeout=min(_GRACE_S, self._lease_s))
            await self._let_go()
            keeper.cancel()
            await asyncio.gather(keeper, stopped, return_exceptions=True)

    async def drain(self, timeout_s: float) -> int:
        """Carry out what is there, also what is due a little later; not while :meth:`run` is at work.

        Args:
            timeout_s: Give up after so long.

        Returns:
            How many letters have not ended.
        """
        stop = asyncio.Event()
        running = asyncio.create_task(self.run(stop))
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    while await self.left() and not running.done():
                        await asyncio.wait({running}, timeout=_DRAIN_STEP_S)
        finally:
            stop.set()
            await running
        return await self.left()

    # ---- taking and carrying

    async def _ready(self) -> bool:
        return bool(await self._database.fetch(_ANY_READY, prefix=self._channels))

    async def _take(self) -> int:
        """Take the heads of as many channels as there is room for."""
        self._news.clear()
        room = self._at_once - len(self._under_way)
        if room <= 0 or not await self._ready():
            return 0
        asked = clock.monotonic()
        if self._under_way and asked >= self._held_until:
            return 0  # this process stood still: what it carries is dropped first
        rows = await self._database.one(_TAKE, prefix=self._channels, n=room, me=self.id, lease_ms=self._lease_ms)
        if rows and clock.monotonic() >= asked + self._lease_s - self._step_s:
            await self._database.one(_LET_GO, me=self.id, letters=[row.id for row in rows])
            return 0
        if rows and not self._under_way:
            self._held_until = asked + self._lease_s
        reach("outbox.taken")
        for row in rows:
            if row.id in self._under_way:
                continue  # this process stood still for longer than its lease, and goes on with it
            task = asyncio.create_task(self._carry(_letter(row)), name=f"letter-{row.id}")
            self._under_way[row.id] = task
            task.add_done_callback(partial(self._landed, row.id))
        return len(rows)

    def _landed(self, letter: int, task: asyncio.Task[None]) -> None:
        del self._under_way[letter]
        self._news.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            # Its end could not be recorded: it is carried again when its lease is over.
            self._complain(error)

    async def _carry(self, letter: Letter) -> None:
        reach(f"outbox.deliver.before:{letter.kind}")
        outcome = await self._outcome(letter)
        reach(f"outbox.deliver.after:{letter.kind}")
        if isinstance(outcome, Later):
            pause = _pause(letter.attempt, outcome.after_s)
            why = self._sentence(outcome.why)
            await self._database.one(_PUT_OFF, letter=letter.id, me=self.id, pause_ms=int(pause * 1000), why=why)
        else:
            given_up = self._sentence(outcome.why) if isinstance(outcome, Never) else None
            await self._database.one(_END, letter=letter.id, me=self.id, now=clock.iso(), why=given_up)
            self._complaint = ""
        reach(f"outbox.ended:{letter.kind}")

    async def _outcome(self, letter: Letter) -> Outcome:
        try:
            outcome = await self._deliver(letter)
        except StoreError:
            raise
        except OperatorError as error:
            outcome = Later(str(error))
        except Exception as error:
            # Not the other side's trouble but ours: it would be the same for ever, and nothing behind it would go out.
            said = f"{type(error).__name__}: {error}"
            outcome = Later(said) if letter.attempt < _MISTAKES else Never(said)
        if isinstance(outcome, Never):
            self._say(f"[Outbox] {letter.channel}: {letter.kind} is given up: {self._sentence(outcome.why)}")
        elif isinstance(outcome, Later) and letter.attempt == 1:
            self._say(f"[Outbox] {letter.channel}: {letter.kind} has to wait: {self._sentence(outcome.why)}")
        return outcome

    def _sentence(self, why: str) -> str:
        return self._database.redactor.column(why)[:_WHY_LENGTH]

    # ---- leases

    async def _keep_leases(self) -> None:
        """Renew them while letters are under way; when that fails for too long, drop what is under way."""
        step = self._step_s
        while True:
            # Before anybody else may take them, and with time to drop them.
            until = self._held_until - step
            await asyncio.sleep(max(0.0, min(step, until - clock.monotonic())) if self._under_way else step)
            if not self._under_way:
                continue
            asked, until = clock.monotonic(), self._held_until - step
            if asked >= until:
                await self._let_go()
                continue
            letters = dict(self._under_way)
            try:
                async with asyncio.timeout(min(step, until - asked)):
                    rows = await self._database.one(_RENEW, me=self.id, letters=list(letters), lease_ms=self._lease_ms)
            except (StoreError, TimeoutError) as error:
                self._complain(error)
                continue
            self._held_until = asked + self._lease_s
            for lost in letters.keys() - {row.id for row in rows}:
                # It has ended just now; or it is somebody else's, because a clock was set.
                letters[lost].cancel()

    async def _let_go(self) -> None:
        """Drop what is still under way; whoever carries it again knows that it may have had its effect."""
        dropped = dict(self._under_way)
        for task in dropped.values():
            task.cancel()
        await asyncio.gather(*dropped.values(), return_exceptions=True)
        if dropped:
            with suppress(StoreError):
                await self._database.one(_LET_GO, me=self.id, letters=list(dropped))

    async def _pause(self, stopped: asyncio.Task[bool]) -> None:
        news = asyncio.create_task(self._news.wait())
        await asyncio.wait([news, stopped], timeout=self._poll_s, return_when=asyncio.FIRST_COMPLETED)
        news.cancel()
        await asyncio.gather(news, return_exceptions=True)

    # ---- tidying

    async def _prune(self) -> int:
        before = clock.iso(clock.now() - self._keep)
        gone = 0
        while rows := await self._database.one(_PRUNE, before=before, prefix=self._channels):
            gone += len(rows)
        return gone

    async def _guarded(self, what: Awaitable[int]) -> int:
        try:
            return await what
        except StoreError as error:
            self._complain(error)
            return 0

    def _complain(self, error: BaseException) -> None:
        """Say what is wrong, once for each trouble."""
        said = str(error) or type(error).__name__
        if said != self._complaint:
            self._complaint = said
            self._say(f"[Outbox] {said}")


def _letter(row: Row[Any]) -> Letter:
    return Letter(row.id, row.channel, row.kind, json.loads(row.body), row.attempts)


def _pause(attempt: int, after_s: float | None) -> float:
    """Seconds until the next attempt: twice as long each time, and never shorter than what was asked for.

    Jittered, so that those who were turned away together do not come back together.
    """
    chance = int(clock.new_id()[:8], 16) / 2**32
    grown = min(_LONGEST_S, _PAUSE_S * 2.0 ** min(attempt - 1, 30))
    return max(grown * (0.5 + chance / 2), (after_s or 0.0) * (1 + chance / 10))

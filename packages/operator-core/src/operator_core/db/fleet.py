"""Workers in the store: how they announce themselves, what they could still take, and what people decide about them."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple

from sqlalchemy import BigInteger, Boolean, Text, and_, bindparam, case, func, insert, or_, select, update

from operator_core import clock
from operator_core.db import ledger
from operator_core.db.client import StoreClient
from operator_core.db.engine import Database
from operator_core.db.schema import db_now_ms, tickets, workers
from operator_core.errors import Fenced, NotFound

__all__ = ["LivingWorker", "Room", "Workers", "set_draining"]

_NOW = db_now_ms()
_own_name = bindparam("own_name", type_=Text)
_REGISTER = insert(workers).values(lease_until=_NOW + bindparam("ttl", type_=BigInteger))
_BEAT = (
    update(workers)
    .where(workers.c.id == bindparam("worker", type_=Text))
    .values(lease_until=_NOW + bindparam("ttl", type_=BigInteger))
    .returning(workers.c.id)
)
_LIVING = (
    select(workers.c.id, workers.c.name, workers.c.host, workers.c.pid)
    .where(workers.c.lease_until >= _NOW, workers.c.draining.is_(False))
    .order_by(workers.c.started_at, workers.c.id)
)
_is_pinned = and_(tickets.c.status.in_(["open", "queued"]), tickets.c.pinned_to == _own_name)
_is_worked_on = and_(tickets.c.status == "running", workers.c.name == _own_name)
_count_needed = (
    select(func.count())
    .select_from(tickets.outerjoin(workers, workers.c.id == tickets.c.owner))
    .where(tickets.c.held.is_(False))
)
_TAKEN = _count_needed.where(or_(_is_pinned, _is_worked_on))
_NEEDED = _count_needed.where(or_(_is_pinned, and_(_is_worked_on, workers.c.draining.is_(False))))
_HANDS = (
    select(func.count().label("every"), func.count(case((workers.c.draining.is_(False), 1))).label("taking"))
    .select_from(workers)
    .where(workers.c.name == _own_name, workers.c.lease_until >= _NOW)
)
_SET = (
    update(workers)
    .where(workers.c.id == bindparam("worker", type_=Text))
    .values(draining=bindparam("wanted", type_=Boolean))
    .returning(workers.c.name)
)


class LivingWorker(NamedTuple):
    """A worker whose lease has not run out."""

    id: str
    name: str
    host: str
    pid: int


class Room(NamedTuple):
    """What the workers of one name could still take.

    Attributes:
        free: Slots that no ticket needs; not above zero: none.
        draining: There are such workers, and all of them are to take nothing new.
    """

    free: int
    draining: bool


class Workers(StoreClient):
    """Incarnations of workers: each has a row, and the row holds its lease."""

    async def register(self, worker: str, lease_s: float, name: str = "", concurrency: int = 0) -> None:
        """Announce one incarnation of a worker; its lease runs from now.

        Args:
            name: What tickets are pinned to (`[worker] name`); several processes may share one.
            concurrency: How many tickets it works on at once; 0: it does not say.
        """
        row = {"id": worker, "host": socket.gethostname(), "pid": os.getpid(), "started_at": clock.iso(), "name": name}
        row["concurrency"] = concurrency
        async with self.database.begin() as c:
            await c.execute(_REGISTER, {**row, "ttl": int(lease_s * 1000)})

    async def heartbeat(self, worker: str, lease_s: float) -> None:
        """Renew the lease of everything this process works on, with one row.

        Raises:
            Fenced: It was declared dead; the process must stop at once.
        """
        if not await self.database.one(_BEAT, urgent=True, worker=worker, ttl=int(lease_s * 1000)):
            raise Fenced("This worker was declared dead because its lease ran out; it stops and writes nothing more.")

    async def living(self) -> list[LivingWorker]:
        """The workers that could take a ticket now, oldest first."""
        return [LivingWorker(r.id, r.name, r.host, r.pid) for r in await self.database.fetch(_LIVING)]

    async def taken(self, name: str) -> int:
        """How many slots of the workers with this name are taken, or will be by what is pinned to it."""
        return int((await self.database.fetch(_TAKEN, own_name=name))[0][0])

    async def room(self, name: str, concurrency: int) -> Room:
        """What the workers with this name could still take; one that drains has no slots.

        Args:
            concurrency: Slots of each of them. While none is registered, one is counted that soon will be.
        """
        (hands,) = await self.database.fetch(_HANDS, own_name=name)
        (needed,) = await self.database.fetch(_NEEDED, own_name=name)
        free = concurrency * (hands.taking if hands.every else 1) - needed[0]
        return Room(free, hands.every > 0 and not hands.taking)


async def set_draining(database: Database, worker_id: str, draining: bool, *, actor: str = "person") -> None:
    """Let a worker take nothing new, or let it take again.

    Raises:
        NotFound: There is no such worker, or it is gone.
    """
    async with database.begin() as c:
        row = (await c.execute(_SET, {"worker": worker_id, "wanted": draining})).first()
        if row is None:
            raise NotFound("There is no such worker any more; list them with `operator worker list`.")
        kind = "drained" if draining else "undrained"
        await ledger.append(database, c, kind, worker=worker_id, name=row.name, actor=actor)
        if not draining:
            await database.notify(c)

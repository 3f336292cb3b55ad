"""What people decide about workers."""

from __future__ import annotations

from sqlalchemy import Boolean, Text, bindparam, update

from operator_core.db import ledger
from operator_core.db.engine import Database
from operator_core.db.schema import workers
from operator_core.errors import NotFound

__all__ = ["set_draining"]

_SET = (
    update(workers)
    .where(workers.c.id == bindparam("worker", type_=Text))
    .values(draining=bindparam("wanted", type_=Boolean))
    .returning(workers.c.name)
)


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

"""Looking for rows: what may be taken, what waits for this box, and how rows that were taken stand now."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from uuid import UUID

from operator_dataverse.client import Filter, field
from operator_dataverse.intake.desk import Desk
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["candidates", "first_queued", "pending_here", "poll_pending_tasks", "rows_of", "strangers"]

_AT_ONCE = 20
_PAGE = 50
_MOST_STRANGERS = 20
_OLDEST = ("createdon asc",)
_EPOCH = datetime.min.replace(tzinfo=UTC)


async def poll_pending_tasks(desk: Desk) -> AsyncGenerator[TaskRow, None]:
    """Pending rows of the person, for this box or for any, oldest first (row B-003); like all here, without prompts."""
    where = field("cr_status").eq(TaskCode.PENDING) & desk.for_us & await _believed(desk)
    async for task in _tasks(desk, where):
        yield task


async def pending_here(desk: Desk) -> AsyncGenerator[TaskRow, None]:
    """Pending rows that name this box, oldest first."""
    where = field("cr_status").eq(TaskCode.PENDING) & desk.for_this_box & await _believed(desk)
    async for task in _tasks(desk, where):
        yield task


async def first_queued(desk: Desk, n: int) -> list[TaskRow]:
    """The oldest ``n`` rows that wait for this box."""
    where = field("cr_status").eq(TaskCode.QUEUED) & desk.for_this_box & await _believed(desk)
    return [task async for task in _tasks(desk, where, top=n)]


async def candidates(desk: Desk, n: int) -> AsyncGenerator[TaskRow, None]:
    """Pending rows, and the oldest ``n`` queued ones, together by age: of two that may be taken, the older one comes
    first, whether it had to wait or not.
    """
    queued = await first_queued(desk, n)
    async for task in poll_pending_tasks(desk):
        while queued and _age(queued[0]) <= _age(task):
            yield queued.pop(0)
        yield task
    for task in queued:
        yield task


async def strangers(desk: Desk) -> list[TaskRow]:
    """The oldest rows that would be taken if they were the person's, as they say."""
    waits = field("cr_status").is_in((TaskCode.PENDING, TaskCode.QUEUED))
    where = waits & desk.for_us & ~await _believed(desk)
    return [task async for task in _tasks(desk, where, top=_MOST_STRANGERS) if not await desk.believes(task)]


async def rows_of(desk: Desk, ids: Sequence[str]) -> dict[str, TaskRow]:
    """These rows as they are now, by id; one that is missing was deleted."""
    found: dict[str, TaskRow] = {}
    for start in range(0, len(ids), _AT_ONCE):
        where = field(desk.info.key).is_in(UUID(one) for one in ids[start : start + _AT_ONCE])
        found |= {task.id: task async for task in _tasks(desk, where)}
    return found


async def _believed(desk: Desk) -> Filter:
    # Asked of the service, so that rows of strangers, however many, keep none of the others from being found.
    return await desk.dataverse.owners.owned(desk.people[0])


async def _tasks(desk: Desk, where: Filter, top: int | None = None) -> AsyncGenerator[TaskRow, None]:
    # Without the prompts: a page of them may have megabytes, and a claim is answered with the whole row.
    select = tuple(name for name in TaskRow.select(desk.info) if name != "cr_prompt")
    rows = desk.dataverse.rows(desk.table, where, select=select, orderby=_OLDEST, top=top, page_size=_PAGE)
    async for row in rows:
        yield TaskRow.parse(row)


def _age(task: TaskRow) -> datetime:
    return task.created or _EPOCH

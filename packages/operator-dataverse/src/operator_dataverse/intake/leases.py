"""Rows that this store has: they show signs of life, and what others do to them has its effect here.

While the ticket is open, queued, running or waiting, and the row

* is 9: the ticket is canceled; a session stops at its next checkpoint;
* is 1 after 6: the answer of the person goes to the session (:mod:`operator_dataverse.intake.answers`);
* is 1 and on no box: it was taken back because this box seemed dead. Nobody has it yet, so it is claimed again;
* is deleted, of another owner, ended or queued by others, or 1 by a person's hand: it is lost. The session is stopped
  at once, and nothing more is written to the row;
* is 5 and ours: it shows a sign of life, four times in a lease.

A service that does not answer is no reason to stop: the work goes on, its result waits in the outbox, and a row that
was taken back meanwhile is found out as soon as the service answers again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from functools import partial
from typing import Any

from operator_core.db.links import LinkedTicket
from operator_core.errors import TransitionRefused
from operator_core.failpoints import reach
from operator_core.model.ticket import TicketStatus
from operator_core.text import clip, printable
from operator_dataverse.client import Dataverse
from operator_dataverse.errors import DataverseError
from operator_dataverse.intake.answers import pass_answer, resume
from operator_dataverse.intake.claims import ENDS
from operator_dataverse.intake.desk import Apart, Desk, together
from operator_dataverse.intake.poll import rows_of
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["Watch", "is_task_canceled", "watch_rows"]

_BEATS_A_LEASE = 4
_AT_ONCE = 8


async def is_task_canceled(dataverse: Dataverse, table: str, row_id: str) -> bool | None:
    """Whether a person canceled a task (row B-026); None: it could not be looked up, which is not No (D-41)."""
    try:
        row = await dataverse.row(table, row_id, select=("cr_status",))
    except DataverseError:
        return None
    return None if row is None else TaskRow.parse(row).status is TaskCode.CANCELED


class Watch:
    """Looks at the rows that this box has: several at once, so that one that takes long keeps no other waiting, and
    never two times at once at the same row.

    Args:
        desk: Both sides.
        apart: Around what is done to one row: the others must show their signs of life all the same.
    """

    def __init__(self, desk: Desk, apart: Apart = together) -> None:
        self._desk = desk
        self._apart = apart
        self._room = asyncio.Semaphore(_AT_ONCE)
        self._judging: dict[str, asyncio.Task[bool]] = {}
        self._failed: list[BaseException] = []

    async def look(self) -> int:
        """Look at every row once.

        Returns:
            How many tickets became claimable.
        """
        await self.begin()
        return await self.settle()

    async def begin(self) -> None:
        """Begin to look at every row, those aside that are being looked at; what went wrong before is raised."""
        self._raise()
        desk = self._desk
        ours = await desk.links.tickets(SOURCE, owner=desk.box)
        before = [one for one in ours if one.link.external_id not in self._judging]
        if not before:
            return
        rows = await rows_of(desk, [one.link.external_id for one in before])
        # A row is judged by a ticket that stood still while the row was read, however long that took.
        after = {one.link.external_id: one for one in await desk.links.tickets(SOURCE, owner=desk.box)}
        for one in before:
            row_id = one.link.external_id
            now = after.get(row_id)
            if now is not None and _standing(now) == _standing(one) and row_id not in self._judging:
                self._judging[row_id] = task = asyncio.create_task(self._judge(now, rows))
                task.add_done_callback(partial(self._judged, row_id))

    async def settle(self) -> int:
        """Wait for all that is being looked at; how many tickets became claimable."""
        tasks = list(self._judging.values())
        if tasks:
            await asyncio.wait(tasks)
        self._raise()
        return sum(not task.cancelled() and task.result() for task in tasks)

    async def close(self) -> None:
        """Break off what is under way; it is made good later, as after the death of this process."""
        tasks = list(self._judging.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _judge(self, one: LinkedTicket, rows: Mapping[str, TaskRow]) -> bool:
        resumed = False
        async with self._room, self._apart(one.link.external_id, "kept"):
            resumed = await _judge(self._desk, one, rows)
        return resumed

    def _judged(self, row_id: str, task: asyncio.Task[bool]) -> None:
        del self._judging[row_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed.append(error)

    def _raise(self) -> None:
        failed, self._failed = self._failed, []
        if failed:
            raise failed[0]


async def watch_rows(desk: Desk) -> int:
    """Look at every row that this box has, once; how many tickets became claimable."""
    return await Watch(desk).look()


def _standing(one: LinkedTicket) -> tuple[object, ...]:
    state = LinkState.model_validate(one.link.state)
    return one.status, one.fence, one.session_id, state.attempt, state.mark, state.status, state.claiming, state.lost


async def _judge(desk: Desk, one: LinkedTicket, rows: Mapping[str, TaskRow]) -> bool:
    state = LinkState.model_validate(one.link.state)
    row = rows.get(one.link.external_id)
    ended = one.status in ENDS
    if state.claiming:
        return False
    if state.lost:
        if ended:
            await desk.remember(one.link.external_id, settled=True)
        else:
            await _stop(desk, one, state.lost)
        return False
    if row is None:
        return await _lose(desk, one, "the row was deleted")
    if row.status is TaskCode.CANCELED:
        await _note(desk, row, state)
        if not ended and not one.canceling:
            desk.say(f"[Dataverse] Task {row.id[:8]} was canceled; ticket #{one.ticket_id} stops.")
            await _cancel(desk, one.ticket_id, "dataverse", now=False)
        return False
    if ended:
        await _note(desk, row, state)
        return False
    return await _judge_active(desk, one, row, state)


async def _judge_active(desk: Desk, one: LinkedTicket, row: TaskRow, state: LinkState) -> bool:
    waiting = one.status is TicketStatus.WAITING_FOR_INPUT
    ours = desk.is_ours(row, state)
    if row.status is TaskCode.PENDING and (waiting or state.status == TaskCode.WAITING_FOR_INPUT):
        if ours or not row.devbox:
            return await resume(desk, one, row, state)
        return await _lose(desk, one, f"it was given to {_shown(row.devbox)}")
    if row.status is TaskCode.PENDING and not row.devbox and desk.may_take(row):
        return await _regain(desk, one, row, state)
    if row.status in (TaskCode.COMPLETED, TaskCode.FAILED) and row.status == state.status:
        return False  # somebody reopened the ticket here, and the row does not say so yet
    if row.status not in (TaskCode.RUNNING, TaskCode.WAITING_FOR_INPUT):
        word = "unknown" if row.status is None else row.status.name.lower()
        return await _lose(desk, one, f"its state became {word} by somebody else")
    if not ours:
        return await _lose(desk, one, f"it belongs to {_shown(row.lease_owner or row.devbox) or 'nobody'} now")
    if waiting and row.status is TaskCode.RUNNING and state.answering == one.fence:
        return await pass_answer(desk, one, row, state)
    await _note(desk, row, state)
    if row.status is TaskCode.RUNNING:
        await _beat(desk, row, state)
    return False


async def _regain(desk: Desk, one: LinkedTicket, row: TaskRow, state: LinkState) -> bool:
    """This box seemed dead, so its row was given back; nobody has taken it yet, and the work is still here."""
    claimed = await desk.write(row, desk.claim_values(state.mark))
    reach("intake.regained")
    if claimed is not None:
        now = await desk.links.now_ms()
        await desk.remember(row.id, etag=claimed.etag, status=int(TaskCode.RUNNING), beat_ms=now)
        desk.say(f"[Dataverse] Task {row.id[:8]} had been taken back from this box; ticket #{one.ticket_id} goes on.")
    return False


async def _beat(desk: Desk, row: TaskRow, state: LinkState) -> None:
    """A sign of life, if it is time for one; a row that changed meanwhile is looked at again soon anyway."""
    now = await desk.links.now_ms()
    # The next look may come a whole pause later, and would be too late for this one.
    early_s = min(desk.mine.poll_s, desk.mine.lease_s / (2 * _BEATS_A_LEASE))
    if now - state.beat_ms < 1000 * (desk.mine.lease_s / _BEATS_A_LEASE - early_s):
        return
    written = await desk.write(row, desk.beat_values(row.status_message or f"Running on {desk.box}"))
    reach("intake.beat")
    if written is not None:
        await desk.remember(row.id, beat_ms=now, etag=written.etag)


async def _note(desk: Desk, row: TaskRow, state: LinkState) -> None:
    """Remember the version and the state of the row, for whoever writes to it next."""
    if not desk.is_ours(row, state):
        return  # with its version, what is still in the outbox would be written over somebody else's
    code = 0 if row.status is None else int(row.status)
    values: dict[str, Any] = {}
    if row.etag != state.etag:
        values["etag"] = row.etag
    if code != state.status:
        values["status"] = code
        if row.status is TaskCode.WAITING_FOR_INPUT and row.modified is not None:
            values["question_at"] = f"{row.modified:%Y-%m-%dT%H:%M:%SZ}"
    if values:
        await desk.remember(row.id, **values)


async def _lose(desk: Desk, one: LinkedTicket, why: str) -> bool:
    """The row is not ours any more: nothing is written to it, and the session stops."""
    # Before the session is told: what it says at its end must not be written any more.
    await desk.remember(one.link.external_id, lost=why)
    reach("intake.lost")
    if one.status not in ENDS:
        desk.say(f"[Dataverse] Task {one.link.external_id[:8]} is lost: {why}; ticket #{one.ticket_id} stops at once.")
        await _stop(desk, one, why)
    return False


async def _stop(desk: Desk, one: LinkedTicket, why: str) -> None:
    if not one.canceling:
        await _cancel(desk, one.ticket_id, f"dataverse: {why}", now=True)


async def _cancel(desk: Desk, ticket_id: int, actor: str, *, now: bool) -> None:
    with contextlib.suppress(TransitionRefused):  # it ended by itself just now
        await desk.tickets.cancel_ticket(ticket_id, now=now, actor=actor)


def _shown(name: str) -> str:
    return clip(printable(name), 80)

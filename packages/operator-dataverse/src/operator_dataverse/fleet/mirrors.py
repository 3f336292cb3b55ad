"""Rows that stand for the task of somebody else, and their agreement with it.

A mirror has an id that follows from its task's, so that there is one at most, however often its making is repeated. The
mirror is what a worker works on; what the worker writes goes to the task, and what the person does to the task (an
answer, a cancellation, beginning it again) goes to the mirror. Anybody can write a row that calls itself the mirror of
a stranger's task; only one that this account has made, or one that is trusted, and gave to the person whom it names, is
believed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any
from uuid import UUID

from operator_core import clock
from operator_dataverse.client import Conflict, Dataverse, Row, field
from operator_dataverse.fleet.changes import change, derived_id, row_id_of
from operator_dataverse.fleet.presence import Box, Fleet
from operator_dataverse.tables.message import WORKER
from operator_dataverse.tables.schema import MESSAGES
from operator_dataverse.tables.task import ENDED, TaskCode, TaskRow

__all__ = ["Mirrors", "mirror_id"]

_NEEDED = ("cr_ismirror", "cr_mirroroftaskid")
_RESULTS = (
    "cr_result",
    "cr_transcript",
    "crb3b_sessionsummary",
    "crb3b_onedriveurl",
    "crb3b_workingdir",
    "crb3b_shortdescription",
)
_AT_ONCE = 20
_FORWARDED = 20
_TEXTS_S = 60.0
_OLDEST, _NEWEST = ("createdon asc",), ("createdon desc",)
_SHOWN_OF = {
    TaskCode.PENDING: TaskCode.QUEUED,
    TaskCode.QUEUED: TaskCode.QUEUED,
    TaskCode.RUNNING: TaskCode.RUNNING,
    TaskCode.WAITING_FOR_INPUT: TaskCode.WAITING_FOR_INPUT,
}
"""State of a mirror -> what its task shows; pending would be an invitation to the person's own workers."""


def mirror_id(task_id: str) -> str:
    """The id of the row that stands for a task."""
    return derived_id("mirror", task_id)


class Mirrors:
    """The mirrors of a table.

    Args:
        dataverse: Where.
        table: Entity set of the tasks.
    """

    def __init__(self, dataverse: Dataverse, table: str) -> None:
        self._dataverse = dataverse
        self._table = table

    async def possible(self) -> bool:
        """Whether the table has the columns of mirrors."""
        return (await self._dataverse.info(self._table)).has(*_NEEDED)

    async def make(self, task_id: str, box: Box, values: Mapping[str, Any]) -> bool:
        """Make the mirror of a task on a box; one that is there already stays as it is.

        Args:
            task_id: The task.
            box: A shared box; its first person is the one that the mirror names.
            values: Further columns.

        Returns:
            Whether there is one now.
        """
        task = await self._dataverse.row(self._table, task_id)
        if task is None or (given := TaskRow.parse(task)).ended:
            return False
        if not await self._dataverse.owners.believes(given.owner, given.user_email or given.user_id):
            return False  # nobody's name is lent to a stranger
        columns = {
            "cr_name": task.get("cr_name") or "Task",
            "cr_prompt": task.get("cr_prompt"),
            "crb3b_useremail": box.users[0],
            "crb3b_devbox": box.name,
            "crb3b_label": task.get("crb3b_label"),
            "cr_ismirror": True,
            "cr_mirroroftaskid": task.id,
        }
        info = await self._dataverse.info(self._table)
        known = {name: value for name, value in columns.items() if value is not None and info.has(name)}
        heir = await self._dataverse.owners.heir(box.users[0])
        made = await self._dataverse.create(self._table, {**known, **values}, row_id=mirror_id(task.id), owner=heir)
        return not isinstance(made, Conflict) or bool(await self._rows([mirror_id(task.id)]))

    async def agree(self, fleet: Fleet, among: Collection[TaskRow]) -> tuple[set[str], list[str]]:
        """Bring tasks and mirrors into agreement.

        Args:
            fleet: What a survey found.
            among: Tasks that may have a mirror which has ended, so that the survey has not seen it.

        Returns:
            The tasks that have a mirror, and those of them where something was written.
        """
        if not await self.possible():
            return set(), []
        tasks = {task.id: task for task in fleet.tasks if not task.is_mirror}
        ours = {task.mirror_of: task for task in fleet.tasks if await self._believed(task)}
        unknown = [task.id for task in among if not task.is_mirror and task.id not in ours]
        mirrors = ours | {row.mirror_of: row for row in await self._rows(mirror_id(one) for one in unknown)}
        synced = []
        for task_id, mirror in mirrors.items():
            task = tasks.get(task_id)
            if task is None or task.devbox:
                done = await self._withdraw(mirror, task, task_id)
            elif task.status is TaskCode.PENDING:
                done = await self._go_on(task, mirror)
            else:
                done = await self._report(task, mirror)
            if done:
                synced.append(task_id)
        return {task_id for task_id in mirrors if task_id in tasks and not tasks[task_id].devbox}, synced

    async def _rows(self, ids: Iterable[str]) -> list[TaskRow]:
        found, wanted = [], list(ids)
        info = await self._dataverse.info(self._table)
        columns = tuple(name for name in TaskRow.select(info) if name != "cr_prompt")
        for start in range(0, len(wanted), _AT_ONCE):
            where = field(info.key).is_in(UUID(one) for one in wanted[start : start + _AT_ONCE])
            found += [TaskRow.parse(row) async for row in self._dataverse.rows(self._table, where, select=columns)]
        return [row for row in found if await self._believed(row)]

    async def _believed(self, mirror: TaskRow) -> bool:
        if not mirror.is_mirror or mirror.id != mirror_id(mirror.mirror_of):
            return False
        owners = self._dataverse.owners
        made_here = mirror.creator == await owners.me() or mirror.creator in owners.trusted
        return made_here and await owners.believes(mirror.owner, mirror.user_email)

    async def _withdraw(self, mirror: TaskRow, task: TaskRow | None, task_id: str) -> bool:
        """The task was canceled, or a box of its own person has it: its mirror is for nothing."""
        if mirror.ended:
            return False
        if task is None:
            original = await self._dataverse.row(self._table, task_id) if row_id_of(task_id) else None
            # It may have been opened again since the survey.
            if original is not None and not TaskRow.parse(original).ended:
                return False
            why = "Canceled, as the task that it stands for was"
        else:
            why = "Canceled, because a dev box of the person has the task"

        def decide(row: Row) -> Mapping[str, Any] | None:
            if TaskRow.parse(row).ended:
                return None
            return {"cr_status": int(TaskCode.CANCELED), "cr_statusmessage": why}

        await change(self._dataverse, self._table, mirror.id, decide)
        return True

    async def _go_on(self, task: TaskRow, mirror: TaskRow) -> bool:
        """The person answered the task, or began it again: the mirror goes on."""
        if mirror.status is TaskCode.WAITING_FOR_INPUT:
            await self._pass_messages(task, mirror)

        def decide(row: Row) -> Mapping[str, Any] | None:
            code = TaskRow.parse(row).status
            if code is TaskCode.WAITING_FOR_INPUT or code in ENDED:
                return {"cr_status": int(TaskCode.PENDING), "cr_statusmessage": task.status_message or "Goes on"}
            return None

        # The mirror first: a task that shows it again would not be looked at for an answer.
        if await change(self._dataverse, self._table, mirror.id, decide) is None:
            return False
        return await self._write(task, {"cr_status": int(TaskCode.QUEUED)})

    async def _pass_messages(self, task: TaskRow, mirror: TaskRow) -> None:
        person, owners = task.user_email or task.user_id, self._dataverse.owners
        where = (field("crb3b_taskid") == task.id) & (field("cr_from") == person)
        async for message in self._dataverse.rows(MESSAGES, where & await owners.owned(person), orderby=_OLDEST):
            values = {
                "cr_name": message.get("cr_name") or "Answer",
                "cr_content": message.get("cr_content"),
                # A worker hears only the person of the row that it works on.
                "cr_from": mirror.user_email,
                "cr_to": mirror.devbox or WORKER,
                "crb3b_taskid": mirror.id,
            }
            row_id = derived_id("mirror-message", message.id)
            heir = await owners.heir(mirror.user_email)
            await self._dataverse.create(MESSAGES, values, row_id=row_id, owner=heir)

    async def _forward_messages(self, task: TaskRow, mirror: TaskRow) -> None:
        """The newest words of the worker go to the person of the task, the question among them."""
        person, owners = task.user_email or task.user_id, self._dataverse.owners
        where = (field("crb3b_taskid") == mirror.id) & (field("cr_from") == WORKER)
        where &= await owners.owned(mirror.user_email)
        rows = self._dataverse.rows(MESSAGES, where, orderby=_NEWEST, top=_FORWARDED)
        for message in reversed([row async for row in rows]):
            values = {
                "cr_name": message.get("cr_name") or "Message",
                "cr_content": message.get("cr_content"),
                "cr_from": WORKER,
                "cr_to": person,
                "crb3b_taskid": task.id,
            }
            await owners.give(MESSAGES, values, person, row_id=derived_id("mirror-message", message.id))

    async def _report(self, task: TaskRow, mirror: TaskRow) -> bool:
        """What the worker made of the mirror goes to the task."""
        if mirror.ended:
            full = await self._dataverse.row(self._table, mirror.id)
            if full is None or not (ended := TaskRow.parse(full)).ended:
                return False
            # A worker writes the state first and the result behind it; only a dead one never does.
            young = ended.modified is not None and (clock.now() - ended.modified).total_seconds() < _TEXTS_S
            texts = full.get("cr_result") and full.get("cr_transcript")
            if young and not texts and ended.status is not TaskCode.CANCELED:
                return False
            # In one write: what the same columns of the mirror hold fits, and a half of it would never be completed.
            await self._forward_messages(task, mirror)
            values: dict[str, Any] = {name: full[name] for name in _RESULTS if full.get(name)}
            return await self._write(
                task, {**values, "cr_status": int(full["cr_status"]), "cr_statusmessage": mirror.status_message}
            )
        if mirror.status is None:
            return False
        shown = _SHOWN_OF[mirror.status]
        if task.status is shown and (
            task.status_message == mirror.status_message or shown is not TaskCode.WAITING_FOR_INPUT
        ):
            return False
        await self._forward_messages(task, mirror)
        return await self._write(task, {"cr_status": int(shown), "cr_statusmessage": mirror.status_message})

    async def _write(self, task: TaskRow, values: Mapping[str, Any]) -> bool:
        if task.etag is None:
            return False
        return not isinstance(await self._dataverse.update(self._table, task.id, values, etag=task.etag), Conflict)

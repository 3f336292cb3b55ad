"""The tasks table for people: give a task, look at it, cancel it, answer it, begin it again.

Every change names the version of the row that it was decided on, and the task it is meant for by its id (D-39, D-61).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from operator_core import clock
from operator_core.text import first_line
from operator_dataverse.client import Conflict, Dataverse, Filter, Row, clip_units, field, units
from operator_dataverse.errors import Refused
from operator_dataverse.fleet.changes import change, derived_id, row_id_of
from operator_dataverse.fleet.users import address
from operator_dataverse.tables.message import WORKER
from operator_dataverse.tables.schema import MESSAGES, TASKS
from operator_dataverse.tables.task import ENDED, HEARTBEAT, LEASE_OWNER, TaskCode, TaskRow

__all__ = ["Tasks"]

_PREFIX = re.compile(r"[0-9a-f]{6,32}", re.ASCII)
_LOOKED_AT = 500
_LONGEST_TEXT = 100_000
_LONGEST_NAME = 200


class Tasks:
    """Tasks of everybody, or of one person.

    Args:
        dataverse: Where they are.
        table: Entity set of the tasks.
        user: Only the tasks of this address are seen and touched; None: all that this account may see.
    """

    def __init__(self, dataverse: Dataverse, table: str = TASKS, *, user: str | None = None) -> None:
        self._dataverse = dataverse
        self._table = table
        self._user = None if user is None else address(user)

    async def create(
        self,
        prompt: str,
        *,
        user: str | None = None,
        name: str | None = None,
        box: str | None = None,
        label: str | None = None,
        key: str | None = None,
    ) -> TaskRow:
        """Give a task.

        Args:
            prompt: What is wanted.
            user: Whose task it is (default: the person of this object).
            name: What people see (default: the first line of the prompt).
            box: Only this dev box takes it.
            label: Only a box that offers this; then it waits until `fleet run` has found one.
            key: The same key again, for the same person, is the same task and makes no second one.

        Raises:
            Refused: It says nothing, is too long, or is for somebody else and this account may not give rows away.
        """
        owner = address(user) if user is not None else self._user
        if owner is None:
            raise Refused("Say whose task it is, with `--user ADDRESS`.")
        if self._user is not None and not _same(owner, self._user):
            raise Refused(f"Only tasks of {self._user} can be given here.")
        info = await self._dataverse.info(self._table)
        column = info.columns.get("cr_prompt")
        text = _said(prompt, "prompt", column.max_length if column else None)
        for word in (box, label):
            if word is not None and (not word.strip() or units(word) > _LONGEST_NAME):
                raise Refused(f"{word!r:.60} is no name of a box or label; it has 1 to {_LONGEST_NAME} characters.")
        if label and not info.has("crb3b_label"):
            raise Refused("These tables know no labels; make the column with `operator-dataverse schema create`.")
        values = {
            "cr_name": clip_units(" ".join((name or first_line(text)).split()) or "Task", 100),
            "cr_prompt": text,
            # Queued and on no box is what only the fleet manager takes up; a worker would take it without its label.
            "cr_status": int(TaskCode.QUEUED if label and not box else TaskCode.PENDING),
            "crb3b_useremail": owner,
            "crb3b_devbox": box,
            "crb3b_label": label,
        }
        row_id = derived_id("task", owner.casefold(), key) if key is not None else None
        given = {name: value for name, value in values.items() if value is not None}
        # The person's own, or a worker with the rights of that person would not see it.
        heir = await self._dataverse.owners.heir(owner)
        made = await self._dataverse.create(self._table, given, row_id=row_id, owner=heir)
        if isinstance(made, Conflict):
            return await self.show(row_id or "")
        return TaskRow.parse(made)

    async def list(self, *, codes: Collection[TaskCode] = (), box: str | None = None, limit: int = 20) -> list[TaskRow]:
        """The newest tasks first.

        Args:
            codes: Only these; none: all.
            box: Only those on this box.
            limit: At most so many.
        """
        conditions = [*self._mine()]
        if codes:
            conditions.append(field("cr_status").is_in(int(code) for code in sorted(codes)))
        if box is not None:
            conditions.append(field("crb3b_devbox") == box)
        where = Filter.all(conditions)
        rows = self._dataverse.rows(
            self._table, where, select=await self._shown(), orderby=("createdon desc",), top=limit
        )
        return [TaskRow.parse(row) async for row in rows if self._may(row)]

    async def show(self, task: str) -> TaskRow:
        """One task, with its texts.

        Args:
            task: Its id, or at least six digits from the beginning of it.

        Raises:
            Refused: There is none, or the digits fit several.
        """
        row = await self._dataverse.row(self._table, await self._id(task))
        if row is None or not self._may(row):
            raise self._unknown(task)
        return TaskRow.parse(row)

    async def cancel(self, task: str, *, author: str | None = None) -> TaskRow:
        """Cancel a task that has not ended; the worker that has it stops. It is no error to do so twice.

        Args:
            task: As for :meth:`show`.
            author: Who cancels.

        Raises:
            Refused: There is none, or it has ended.
        """

        def decide(row: Row) -> Mapping[str, Any] | None:
            code = _code(row)
            if code == TaskCode.CANCELED:
                return None
            if code in ENDED:
                raise _wrong_state(row, "has ended and cannot be canceled")
            return {"cr_status": int(TaskCode.CANCELED), "cr_statusmessage": _by("Canceled", author)}

        return await self._change(task, decide)

    async def answer(self, task: str, text: str, *, author: str | None = None, key: str | None = None) -> TaskRow:
        """Answer the question of a task that waits for input; it goes on.

        Args:
            task: As for :meth:`show`.
            text: The answer.
            author: Who answers, for the status message.
            key: The same key again is the same answer, e.g. after a crash.

        Raises:
            Refused: There is none, it waits for nothing, or the answer says nothing.
        """
        words = _said(text, "answer", _LONGEST_TEXT)
        found = await self.show(task)
        said, fresh = await self._say(found, words, key)
        tried = False

        def decide(row: Row) -> Mapping[str, Any] | None:
            nonlocal tried
            if _code(row) == TaskCode.WAITING_FOR_INPUT:
                tried = True
                return {"cr_status": int(TaskCode.PENDING), "cr_statusmessage": _by("Answered", author)}
            # Said before under the same key, or written before with an answer of the service that was lost: the worker
            # may be at work with it already.
            if (tried or not fresh) and _code(row) != TaskCode.CANCELED:
                return None
            raise _wrong_state(row, "waits for no answer")

        try:
            return await self._change(found.id, decide)
        except Refused:
            # What was said for nothing is taken back.
            if fresh and said is not None and said.etag is not None:
                await self._dataverse.delete(MESSAGES, said.id, etag=said.etag)
            raise

    async def reopen(self, task: str, *, author: str | None = None) -> TaskRow:
        """Begin a task again that has ended, as it was given; the box that had it takes it.

        Args:
            task: As for :meth:`show`.
            author: Who says so, for the status message.

        Raises:
            Refused: There is none, or it has not ended.
        """
        lease = dict.fromkeys((await self._dataverse.info(self._table)).only((LEASE_OWNER, HEARTBEAT)))
        tried = False

        def decide(row: Row) -> Mapping[str, Any] | None:
            nonlocal tried
            if _code(row) in ENDED:
                tried = True
                return {"cr_status": int(TaskCode.PENDING), "cr_statusmessage": _by("Opened again", author), **lease}
            # Written before, with an answer of the service that was lost: a worker may have it already.
            if tried:
                return None
            raise _wrong_state(row, "has not ended; there is nothing to begin again")

        return await self._change(task, decide)

    async def _say(self, task: TaskRow, text: str, key: str | None) -> tuple[Row | None, bool]:
        """The row of what a person says, and whether it was made just now."""
        person = task.user_email or task.user_id
        if not person:
            raise Refused(f"Task {task.id} belongs to nobody, so nobody's answer is heard; cancel it and give it anew.")
        values = {
            "cr_name": clip_units(first_line(text) or "Answer", 450),
            "cr_content": text,
            # A worker hears only the person whose task it is.
            "cr_from": person,
            "cr_to": task.devbox or WORKER,
            "crb3b_taskid": task.id,
        }
        row_id = derived_id("answer", task.id, key if key is not None else clock.new_id())
        heir = await self._dataverse.owners.heir(person)
        made = await self._dataverse.create(MESSAGES, values, row_id=row_id, owner=heir)
        return (made.current, False) if isinstance(made, Conflict) else (made, True)

    async def _change(self, task: str, decide: Callable[[Row], Mapping[str, Any] | None]) -> TaskRow:
        def mine(row: Row) -> Mapping[str, Any] | None:
            if not self._may(row):
                raise self._unknown(task)
            return decide(row)

        row = await change(self._dataverse, self._table, await self._id(task), mine)
        if row is None:
            raise self._unknown(task)
        return TaskRow.parse(row)

    async def _id(self, task: str) -> str:
        found = row_id_of(task)
        if found is not None:
            return found
        digits = task.strip().lower().replace("-", "")
        if not _PREFIX.fullmatch(digits):
            raise self._unknown(task)
        key = (await self._dataverse.info(self._table)).key
        columns = (key, "crb3b_useremail", "cr_userid")
        where, newest = Filter.all(self._mine()), ("createdon desc",)
        rows = self._dataverse.rows(self._table, where, select=columns, orderby=newest, top=_LOOKED_AT)
        seen = [row.id async for row in rows if self._may(row)]
        fitting = [row_id for row_id in seen if row_id.replace("-", "").startswith(digits)]
        if len(fitting) > 1:
            raise Refused(f"{len(fitting)} tasks begin with `{digits}`; give more of the id.")
        if not fitting:
            raise self._unknown(task)
        return fitting[0]

    async def _shown(self) -> tuple[str, ...]:
        return tuple(name for name in TaskRow.select(await self._dataverse.info(self._table)) if name != "cr_prompt")

    def _mine(self) -> tuple[Filter, ...]:
        if self._user is None:
            return ()
        older = field("crb3b_useremail").eq(None) & (field("cr_userid") == self._user)
        return ((field("crb3b_useremail") == self._user) | older,)

    def _may(self, row: Row) -> bool:
        task = TaskRow.parse(row)
        return self._user is None or _same(task.user_email or task.user_id, self._user)

    def _unknown(self, task: str) -> Refused:
        # The same words for a task of somebody else: whether there is one is nobody's business.
        whose = f" of {self._user}" if self._user else ""
        return Refused(
            f"There is no task {task!r:.80}{whose}; see the ids with `operator-dataverse tasks list`.", status=404
        )


def _code(row: Row) -> int:
    value = row.get("cr_status")
    return value if isinstance(value, int) else 0


def _wrong_state(row: Row, what: str) -> Refused:
    state = row.formatted("cr_status") or "in no known state"
    return Refused(f"Task {row.id} is {state} and {what}.", status=409)


def _by(what: str, author: str | None) -> str:
    return clip_units(f"{what} by {author}" if author else f"{what} by a person", 200)


def _same(one: str, other: str) -> bool:
    return one.strip().casefold() == other.strip().casefold()


def _said(text: str, what: str, limit: int | None) -> str:
    if not text.strip():
        raise Refused(f"The {what} says nothing; write what is wanted.")
    if limit is not None and units(text) > limit:
        raise Refused(f"The {what} has more than {limit} characters; put the details into a file and name it.")
    return text

"""What one person can have done in a chat, whoever asks for it: a plain command, or the model (D-55).

Everything here is bound to the person whose message is answered, by code and not by a prompt: the tasks are looked for
under this address, and checked again under it. An act may be repeated after a crash; it is done once.
"""

from __future__ import annotations

from typing import NamedTuple

from operator_core.text import clip, printable
from operator_dataverse.chat.sessions import Pending
from operator_dataverse.client import Dataverse
from operator_dataverse.errors import Refused
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["Desk", "Done", "short"]

_LISTED = 5
_LONGEST_CONFIRMED = 2000
_LONGEST_RESULT = 4000


class Done(NamedTuple):
    """What came of an act.

    Attributes:
        text: For the person, or for the model.
        ok: Whether it was done.
        show: What the person is to read as it stands, whatever the model makes of the rest.
    """

    text: str
    ok: bool = True
    show: str = ""


class Desk:
    """Acts for one person, on behalf of one message.

    Args:
        dataverse: The open service.
        table: Entity set of the tasks.
        email: The person.
        message: Id of the row that is answered; with it an act that is repeated is recognised.
        box: New tasks are for this dev box; None: for the person's, whichever that is.
    """

    def __init__(self, dataverse: Dataverse, table: str, email: str, message: str, box: str | None) -> None:
        self.email = email
        self._tasks = Tasks(dataverse, table, user=email)
        self._message = message
        self._box = box
        self._made = 0

    async def create(self, text: str) -> Done:
        """Give a task."""
        self._made += 1
        try:
            task = await self._tasks.create(text, box=self._box, key=f"{self._message}/{self._made}")
        except Refused as error:
            return Done(str(error), False)
        place = f" for the dev box {task.devbox}" if task.devbox else ""
        return Done(f'Created task {short(task.id)} "{_line(task.name)}"{place}; it is {_state(task)}.')

    async def list(self, limit: int = _LISTED) -> Done:
        """The newest tasks."""
        # To the service an accent makes no difference, and two people may differ in nothing else.
        tasks = [task for task in await self._tasks.list(limit=limit) if self._owns(task)]
        lines = [
            f'{short(task.id)}  {_state(task)}  "{_line(task.name)}"'
            + (f"  ({_line(task.status_message)})" if task.status_message else "")
            for task in tasks
        ]
        return Done("\n".join(lines) or "You have no tasks.")

    async def show(self, ref: str) -> Done:
        """One task, with its result."""
        task = await self._find(ref)
        if isinstance(task, Done):
            return task
        lines = [f'Task {short(task.id)} "{_line(task.name)}" is {_state(task)}.']
        lines += [f"Dev box: {_line(task.devbox)}"] if task.devbox else []
        lines += [_line(task.status_message)] if task.status_message else []
        lines += [f"Files: {_line(task.onedrive_url)}"] if task.onedrive_url else []
        lines += ["Result:", clip(printable(task.result.strip()), _LONGEST_RESULT)] if task.result.strip() else []
        return Done("\n".join(lines))

    async def cancel(self, ref: str) -> Done:
        """Cancel a task."""
        try:
            task = await self._tasks.cancel(ref, author=self.email)
        except Refused as error:
            return self._refused(ref, error)
        return Done(f'Canceled task {short(task.id)} "{_line(task.name)}".')

    async def answer(self, ref: str, text: str) -> Done:
        """Answer the question of a task."""
        try:
            task = await self._tasks.answer(ref, text, author=self.email, key=self._message)
        except Refused as error:
            return self._refused(ref, error)
        return Done(f'Your answer went to task {short(task.id)} "{_line(task.name)}"; it goes on.')

    async def confirmable(self, pending: Pending) -> tuple[Pending, str] | Done:
        """The act, with the id of its task, and the question that the person has to answer with yes."""
        if pending.act == "create":
            if len(pending.text) > _LONGEST_CONFIRMED:
                return Done("The text is too long to be confirmed; ask the person to write `new: …` with it.", False)
            return pending, f"Write yes to create this task:\n{printable(pending.text.strip())}"
        task = await self._find(pending.task)
        if isinstance(task, Done):
            return task
        named = f'task {short(task.id)} "{_line(task.name)}"'
        found = pending.model_copy(update={"task": task.id})
        if pending.act == "cancel":
            return found, f"Write yes to cancel {named}."
        if len(pending.text) > _LONGEST_CONFIRMED:
            return Done(f"The answer is too long to be confirmed; ask for `answer {short(task.id)} …`.", False)
        return found, f"Write yes to answer {named} with:\n{printable(pending.text.strip())}"

    async def confirmed(self, pending: Pending) -> Done:
        """Do what the person said yes to."""
        match pending.act:
            case "create":
                return await self.create(pending.text)
            case "cancel":
                return await self.cancel(pending.task)
            case "answer":
                return await self.answer(pending.task, pending.text)

    async def _find(self, ref: str) -> TaskRow | Done:
        try:
            return await self._tasks.show(ref)
        except Refused as error:
            return self._refused(ref, error)

    def _refused(self, ref: str, error: Refused) -> Done:
        if error.status == 404:
            return Done(f"There is no task {_line(ref)!r} of yours.", False)
        return Done(str(error), False)

    def _owns(self, task: TaskRow) -> bool:
        return (task.user_email or task.user_id).strip().casefold() == self.email.casefold()


def short(task_id: str) -> str:
    """An id as it is shown to people; the beginning of an id is enough everywhere."""
    return task_id[:8]


def _state(task: TaskRow) -> str:
    return "in no known state" if task.status is None else TaskCode(task.status).name.lower().replace("_", " ")


def _line(text: str) -> str:
    return clip(" ".join(printable(text).split()), 200)

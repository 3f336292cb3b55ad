"""The tools of the model that answers people: narrow, typed, and bound to one person.

What a task says may have been written by anybody. So once the model has read such a text, it can create nothing by
itself any more; and it never cancels or answers a task that the person did not name. Such an act becomes a question to
the person instead, which the next message answers: not the model, but what the person writes, decides.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from operator_core.errors import OperatorError
from operator_dataverse.chat.desk import Desk, Done
from operator_dataverse.chat.sessions import Pending

__all__ = ["NoInput", "Tool", "Toolbox", "names"]

_HEX = re.compile(r"[0-9a-f][0-9a-f-]{4,34}[0-9a-f]", re.IGNORECASE | re.ASCII)
_LEAST_DIGITS = 6


class _Input(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NoInput(_Input):
    """Nothing is to be said."""


class _Create(_Input):
    text: str = Field(min_length=1, max_length=50_000, description="Everything the person said about the work.")


class _List(_Input):
    limit: int = Field(default=5, ge=1, le=20, description="How many.")


class _Task(_Input):
    task: str = Field(min_length=6, max_length=40, description="Id of the task, or the first eight characters of it.")


class _Answer(_Task):
    text: str = Field(min_length=1, max_length=50_000, description="The answer, in the person's words.")


class Tool(NamedTuple):
    """One tool.

    Attributes:
        name: As the model calls it.
        description: For the model.
        takes: Its input.
        run: Does it.
        command: The word that a person writes to have it done without a model; only without an input. Empty: none.
        about: What that does, for people.
    """

    name: str
    description: str
    takes: type[BaseModel]
    run: Callable[[Any], Awaitable[Done]]
    command: str = ""
    about: str = ""


class Toolbox:
    """The tools for one message.

    Args:
        desk: Acts for the person.
        said: What the person wrote.
        others: The conversation holds text of others already.
        more: Further tools.

    Attributes:
        others: Whether the model has read text that others wrote.
        pending: What the person is to be asked before it is done; None: nothing.
        question: The question; empty without one.
        acts: What was done, in words.
        shown: What the person is to read as it stands.
    """

    def __init__(self, desk: Desk, said: str, *, others: bool = False, more: Iterable[Tool] = ()) -> None:
        self._desk = desk
        self._said = said
        self.others = others
        self.pending: Pending | None = None
        self.question = ""
        self.acts: list[str] = []
        self.shown: list[str] = []
        tools = (
            Tool("create_task", "Create a task for the person's dev box.", _Create, self._create),
            Tool("list_tasks", "The person's newest tasks.", _List, self._list),
            Tool("show_task", "One of the person's tasks, with its result.", _Task, self._show),
            Tool("cancel_task", "Cancel one of the person's tasks.", _Task, self._cancel),
            Tool("answer_task", "Answer the question of a task that waits for input.", _Answer, self._answer),
            *more,
        )
        self._tools = {tool.name: tool for tool in tools}

    def schemas(self) -> list[Any]:
        """The tools as the model service wants them."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.takes.model_json_schema()}
            for tool in self._tools.values()
        ]

    async def call(self, name: str, given: object) -> tuple[str, bool]:
        """Do what the model asks for.

        Returns:
            The result, and whether it failed.
        """
        tool = self._tools.get(name)
        if tool is None:
            return f"There is no tool {name[:60]!r}.", True
        try:
            values = tool.takes.model_validate(given)
        except ValidationError as error:
            wrong = error.errors()[0]
            return f"not done: {'.'.join(map(str, wrong['loc'])) or 'the input'}: {wrong['msg']}", True
        try:
            done = await tool.run(values)
        except OperatorError as error:
            return f"not done: {error}", True
        if done.show and done.show not in self.shown:
            self.shown.append(done.show)
        return done.text, not done.ok

    async def _create(self, values: _Create) -> Done:
        if self.others:
            return await self._ask(Pending(act="create", text=values.text))
        return self._did(await self._desk.create(values.text))

    async def _list(self, values: _List) -> Done:
        self.others = True
        return await self._desk.list(values.limit)

    async def _show(self, values: _Task) -> Done:
        self.others = True
        return await self._desk.show(values.task)

    async def _cancel(self, values: _Task) -> Done:
        if not names(self._said, values.task):
            return await self._ask(Pending(act="cancel", task=values.task))
        return self._did(await self._desk.cancel(values.task))

    async def _answer(self, values: _Answer) -> Done:
        if self.others or not names(self._said, values.task):
            return await self._ask(Pending(act="answer", task=values.task, text=values.text))
        return self._did(await self._desk.answer(values.task, values.text))

    async def _ask(self, pending: Pending) -> Done:
        if self.pending is not None:
            return Done("not done: one act waits for the person's yes already", False)
        found = await self._desk.confirmable(pending)
        if isinstance(found, Done):
            return found
        self.pending, self.question = found
        return Done("Not done yet: the person is asked below your answer, and it is done when they write yes.")

    def _did(self, done: Done) -> Done:
        if done.ok:
            self.acts.append(done.text)
        return done


def names(said: str, task: str) -> bool:
    """Whether a text names this task: with its id, or with at least six digits from the beginning of it."""
    wanted = task.strip().lower().replace("-", "")
    for word in _HEX.findall(said):
        digits = word.lower().replace("-", "")
        if len(digits) >= _LEAST_DIGITS and (wanted.startswith(digits) or digits.startswith(wanted)):
            return len(wanted) >= _LEAST_DIGITS
    return False

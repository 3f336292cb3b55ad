"""What a person can write that needs no model: it always works, costs nothing and is always understood the same."""

from __future__ import annotations

import re
from collections.abc import Sequence

from operator_dataverse.chat.desk import Desk, Done
from operator_dataverse.chat.sessions import Pending
from operator_dataverse.chat.tools import NoInput, Tool

__all__ = ["HELP", "run_command"]

HELP = """\
You can write what you want in your own words, or one of these:
help
tasks - your newest tasks
task ID - one task with its result
new: TEXT - create a task
cancel ID - cancel a task
answer ID TEXT - answer the question of a task
An ID is the first eight characters of a task's id."""

_ID = r"(?P<id>[0-9a-f][0-9a-f-]{4,34}[0-9a-f])"
_LINE = re.compile(
    rf"/?(?:(?P<help>help|\?)|(?P<tasks>tasks)|task\s+{_ID}|cancel\s+(?P<cancel>{_ID.replace('?P<id>', '?:')})"
    rf"|answer\s+(?P<answer>{_ID.replace('?P<id>', '?:')})\s+(?P<text>\S.*)|new:\s*(?P<new>\S.*))",
    re.IGNORECASE | re.ASCII | re.DOTALL,
)
_YES = frozenset({"yes", "y", "yes.", "yes!"})
_NO = frozenset({"no", "n", "no.", "no!"})


async def run_command(desk: Desk, text: str, pending: Pending | None, more: Sequence[Tool] = ()) -> Done | None:
    """Do what a command says.

    Args:
        desk: Acts for the person.
        text: What the person wrote.
        pending: What a yes means.
        more: Further commands: the tools that have one.

    Returns:
        What came of it; None: it is no command.
    """
    words = text.strip()
    if pending is not None and words.casefold() in _YES:
        return await desk.confirmed(pending)
    if pending is not None and words.casefold() in _NO:
        return Done("Nothing was done.")
    tool = next((tool for tool in more if tool.command and tool.command == words.removeprefix("/").casefold()), None)
    if tool is not None:
        return await tool.run(NoInput())
    found = _LINE.fullmatch(words)
    if found is None:
        return None
    if found["help"]:
        return Done("\n".join([HELP, *(f"{tool.command} - {tool.about}" for tool in more if tool.command)]))
    if found["tasks"]:
        return await desk.list()
    if found["cancel"]:
        return await desk.cancel(found["cancel"])
    if found["answer"]:
        return await desk.answer(found["answer"], found["text"])
    if found["new"]:
        return await desk.create(found["new"])
    return await desk.show(found["id"])

"""``operator-dataverse tasks``: give tasks and see to them (row B-054)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output, seconds
from operator_core.cli.people import spoken
from operator_core.errors import ConfigError
from operator_dataverse.cli.connection import DryRun, dataverse_settings, open_dataverse
from operator_dataverse.tables.task import TaskCode, TaskRow

if TYPE_CHECKING:
    from operator_dataverse.fleet.tasks import Tasks

__all__ = ["app", "document_of"]

app = typer.Typer(help="Give tasks, look at them, answer, cancel and reopen them.", no_args_is_help=True)

TaskId = Annotated[
    str, typer.Argument(metavar="TASK", help="Its id, or the first six or more digits.", show_default=False)
]
User = Annotated[
    str | None, typer.Option("--user", metavar="ADDRESS", help="Only tasks of this person are seen and touched.")
]
Author = Annotated[
    str | None, typer.Option("--author", metavar="ADDRESS", help="Who does it. Default: `[dataverse] user`.")
]
Key = Annotated[str | None, typer.Option("--key", metavar="TEXT", help="The same key again is the same thing again.")]
_STATES = {code.name.lower(): code for code in TaskCode}


@app.command()
def create(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(metavar="PROMPT|-", help="What is wanted; - reads it from standard input.")],
    user: Annotated[
        str | None, typer.Option("--user", metavar="ADDRESS", help="Whose task. Default: `[dataverse] user`.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Default: the first line of the prompt.")] = None,
    box: Annotated[str | None, typer.Option("--box", metavar="HOST", help="Only this dev box takes it.")] = None,
    label: Annotated[
        str | None, typer.Option("--label", help="Only a box that offers this; `fleet run` finds one.")
    ] = None,
    key: Key = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give a task."""
    text = spoken(prompt)
    owner = user or dataverse_settings(context).user
    if dry_run:
        _would({"user": owner, "name": name, "box": box, "label": label, "prompt": text}, as_json)
        return
    _show(
        run(
            _with(context, None, lambda tasks: tasks.create(text, user=owner, name=name, box=box, label=label, key=key))
        ),
        as_json,
    )


@app.command("list")
def list_(
    context: typer.Context,
    user: User = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", metavar="STATE", help=f"{', '.join(_STATES)}; may be repeated.")
    ] = None,
    box: Annotated[str | None, typer.Option("--box", metavar="HOST", help="Only those on this dev box.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=5000, help="At most so many.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List tasks, the newest first."""
    codes = {_code(word) for word in state or ()}
    tasks = run(_with(context, user, lambda tasks: tasks.list(codes=codes, box=box, limit=limit)))
    out = Output()
    if as_json:
        out.json([document_of(task, long=False) for task in tasks])
        return
    rows = [
        (
            task.id[:8],
            _state(task).replace("_", " "),
            task.user_email or task.user_id,
            task.devbox,
            task.name,
            task.status_message,
        )
        for task in tasks
    ]
    out.table(("id", "state", "person", "box", "name", "message"), rows, empty="There are no such tasks.")


@app.command()
def show(context: typer.Context, task: TaskId, user: User = None, as_json: AsJson = False) -> None:
    """Show one task with its texts."""
    _show(run(_with(context, user, lambda tasks: tasks.show(task))), as_json)


@app.command()
def cancel(
    context: typer.Context,
    task: TaskId,
    user: User = None,
    author: Author = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a task in any state before its end; whoever works on it stops."""
    who = author or dataverse_settings(context).user
    _act(context, task, user, "cancel", lambda tasks: tasks.cancel(task, author=who), dry_run, as_json)


@app.command()
def answer(
    context: typer.Context,
    task: TaskId,
    text: Annotated[str, typer.Argument(metavar="TEXT|-", help="The answer; - reads it from standard input.")],
    user: User = None,
    author: Author = None,
    key: Key = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Answer the question of a task that waits for input; it goes on."""
    words, who = spoken(text), author or dataverse_settings(context).user
    _act(context, task, user, "answer", lambda tasks: tasks.answer(task, words, author=who, key=key), dry_run, as_json)


@app.command()
def reopen(
    context: typer.Context,
    task: TaskId,
    user: User = None,
    author: Author = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Begin a task again that has ended."""
    who = author or dataverse_settings(context).user
    _act(context, task, user, "reopen", lambda tasks: tasks.reopen(task, author=who), dry_run, as_json)


async def _with(context: typer.Context, user: str | None, work: Callable[[Tasks], Awaitable[Any]]) -> Any:
    from operator_dataverse.fleet.tasks import Tasks

    async with open_dataverse(context) as dataverse:
        return await work(Tasks(dataverse, dataverse_settings(context).table, user=user))


def _act(
    context: typer.Context,
    task: str,
    user: str | None,
    verb: str,
    work: Callable[[Tasks], Awaitable[TaskRow]],
    dry_run: bool,
    as_json: bool,
) -> None:
    if dry_run:
        found = run(_with(context, user, lambda tasks: tasks.show(task)))
        _would({"action": verb, "task": found.id, "name": found.name, "state": _state(found)}, as_json)
        return
    _show(run(_with(context, user, work)), as_json)


def _would(what: dict[str, Any], as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json({"dry_run": True, **what})
    else:
        out.fields({"would": what.pop("action", "create"), **what})


def _show(task: TaskRow, as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json(document_of(task))
        return
    shown = document_of(task)
    for name in ("etag", "status", "transcript", "session_summary", "owner"):
        shown.pop(name)
    shown |= {name: seconds(shown[name]) for name in ("created", "modified", "heartbeat")}
    first = {"task": shown.pop("id"), "state": shown.pop("state").replace("_", " ")}
    out.fields({name: value for name, value in {**first, **shown}.items() if value is not False})


def document_of(task: TaskRow, *, long: bool = True) -> dict[str, Any]:
    """A task, JSON-ready.

    Args:
        task: The task.
        long: With its texts.
    """
    from operator_core import clock

    document = asdict(task)
    for name in ("created", "modified", "heartbeat"):
        document[name] = clock.iso(document[name]) if document[name] else None
    document["status"] = None if task.status is None else int(task.status)
    document["state"] = _state(task)
    for name in () if long else ("prompt", "result", "transcript", "session_summary"):
        document.pop(name)
    return {name: None if value == "" else value for name, value in document.items()}


def _state(task: TaskRow) -> str:
    return "unknown" if task.status is None else task.status.name.lower()


def _code(word: str) -> TaskCode:
    found = _STATES.get(word.strip().lower().replace("-", "_").replace(" ", "_"))
    if found is None:
        raise ConfigError(f"`{word:.40}` is no state; there are {', '.join(_STATES)}.")
    return found

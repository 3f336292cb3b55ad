"""The cards of one task, from its start to its end.

Each takes what is said by others as plain text of any length, and keeps the limits itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from operator_dataverse.teams.elements import Card, Colour, Element, card, details, heading, open_url, ours, theirs
from operator_dataverse.teams.text import flat

__all__ = [
    "ANSWER",
    "TaskFacts",
    "canceled_card",
    "completed_card",
    "failed_card",
    "running_card",
    "waiting_card",
]

ANSWER = "answer"
"""Id of the answer box; the key under which its text is submitted."""

_NAME = 150
_TEXT = 4000
_PROGRESS_LINES = 8
_PROGRESS = 300
_ANSWER = 4000


@dataclass(frozen=True)
class TaskFacts:
    """What every card of a task shows.

    Attributes:
        task_id: Id of its row.
        name: As the person called it.
        box: Dev box that works on it.
        description: What it is about, in a few words.
        folder_url: The session folder in the web; no button without it.
        deeplink: Where the person asked for it, e.g. a Teams chat; no button without it.
    """

    task_id: str
    name: str
    box: str = ""
    description: str = ""
    folder_url: str | None = None
    deeplink: str | None = None


def running_card(task: TaskFacts, *, progress: Sequence[str] = (), attempt: str = "") -> Card:
    """The task is being worked on.

    Args:
        task: The task.
        progress: What happened, oldest first; the latest few are shown (D-60).
        attempt: E.g. ``iteration 2 of 10``.
    """
    body = _head(task, "Task is running", "accent", [("Attempt", attempt)])
    latest = [line for line in progress if line.strip()][-_PROGRESS_LINES:]
    if latest:
        body.append(ours("Latest:", subtle=True))
        for line in latest:
            body += theirs(line, _PROGRESS)
    return card(body, _links(task))


def completed_card(task: TaskFacts, *, summary: str, facts: Iterable[tuple[str, str | None]] = ()) -> Card:
    """The task is done, and that was verified.

    Args:
        task: The task.
        summary: Of the summarizer.
        facts: Label and value of what else is to be known, e.g. ``("Cost", "$0.42")``; the labels are ours.
    """
    body = _head(task, "Task completed and verified", "good", facts)
    return card([*body, *theirs(summary, _TEXT)], _links(task))


def failed_card(task: TaskFacts, *, reason: str, facts: Iterable[tuple[str, str | None]] = ()) -> Card:
    """The task ended without a proof that it is done; a person has to look."""
    body = _head(task, "Task failed", "attention", facts)
    return card([*body, *theirs(reason or "No reason was given.", _TEXT)], _links(task))


def canceled_card(task: TaskFacts, *, reason: str = "") -> Card:
    """A person canceled the task."""
    return card([*_head(task, "Task canceled", "warning"), *theirs(reason, _TEXT)], _links(task))


def waiting_card(task: TaskFacts, *, question: str, question_id: str = "", answerable: bool = True) -> Card:
    """The task waits for a person, who can answer in the card.

    The button submits ``{"action": "answer_task", "taskId": …, "questionId": …, "answer": …}``.

    Args:
        task: The task.
        question: What the agent wants to know.
        question_id: Which question it is, so that an answer to an older card can be told from one to this card.
        answerable: Whether what posts the card also takes the answer; else the card says how to answer elsewhere.
    """
    body = _head(task, "Task waits for your answer", "warning")
    body += theirs(question or "No question was given.", _TEXT)
    if not answerable:
        body.append(ours("Answer in the chat with the bot, or with `operator-dataverse tasks answer`."))
        return card(body, _links(task))
    box: Element = {
        "type": "Input.Text",
        "id": ANSWER,
        "label": "Your answer",
        "isMultiline": True,
        "maxLength": _ANSWER,
        "isRequired": True,
        "errorMessage": "Please write an answer.",
    }
    send: Element = {
        "type": "Action.Submit",
        "title": "Send answer",
        "data": {"action": "answer_task", "taskId": task.task_id[:100], "questionId": flat(question_id, 100)},
    }
    return card([*body, box], [send, *_links(task)])


def _head(task: TaskFacts, title: str, colour: Colour, facts: Iterable[tuple[str, str | None]] = ()) -> list[Element]:
    return [
        heading(title, colour),
        *theirs(task.name or "(a task without a name)", _NAME, bold=True),
        *theirs(task.description, _PROGRESS),
        *details([("Dev box", task.box), ("Task", task.task_id), *facts]),
    ]


def _links(task: TaskFacts) -> list[Element]:
    return [*open_url("Open the folder", task.folder_url), *open_url("Open the conversation", task.deeplink)]

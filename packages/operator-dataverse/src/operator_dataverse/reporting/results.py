"""How a task stands and what came of it, as columns of its row: the state first, the long texts behind it (D-52)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from operator_core.model.entry import Entry, EntryKind
from operator_core.model.ticket import DATAVERSE_CODES, Reason, Ticket, TicketStatus
from operator_core.text import clip, first_line, printable
from operator_core.work.folder.exports import result_md, session_summary, transcript_jsonl
from operator_core.work.folder.transcript import json_text
from operator_dataverse.client import clip_units
from operator_dataverse.tables.task import TaskCode

__all__ = [
    "Ending",
    "Patch",
    "UrlOf",
    "begun",
    "code_of",
    "ending_of",
    "expected_after",
    "expected_before",
    "question_of",
    "shown_by",
    "texts_of",
]

UrlOf = Callable[[Path], str | None]
"""The address of a file or folder on the web; None: it has none."""

_RESTS = frozenset(
    {TicketStatus.WAITING_FOR_INPUT, TicketStatus.RESOLVED, TicketStatus.ESCALATED, TicketStatus.CANCELED}
)
_STATUS_MESSAGE = 200
_PREVIEW = 160
_LINK = re.compile(r"\]\(([^()\s]{1,1000})\)")
# The name of the task is said beside the summary already.
_HEADING = re.compile(r"\A(?:#[^\n]*\n\s*)+")
_TERMINAL = {TicketStatus.RESOLVED: "completed", TicketStatus.CANCELED: "canceled", TicketStatus.ESCALATED: "failed"}


class Patch(NamedTuple):
    """Some columns of the row, and where the whole text of those is that may be too long."""

    name: str
    values: dict[str, Any]
    pointer: str | None = None


class Ending(NamedTuple):
    """How a ticket stands, in words.

    Attributes:
        status_message: For ``cr_statusmessage``: at most 200 UTF-16 code units.
        notice: What the person is told; empty: nothing.
        result: For ``cr_result``; empty: there is none yet.
        text: For people: the summary, the question or the reason.
    """

    status_message: str
    notice: str
    result: str
    text: str


def code_of(status: TicketStatus) -> TaskCode:
    """The code of a state."""
    return TaskCode(DATAVERSE_CODES[status])


def shown_by(new: TicketStatus, old: TicketStatus | None) -> TicketStatus | None:
    """The state that a row shows after a transition; None: the row stays as it is.

    A ticket that a worker gave back is still ours: its row goes on showing that it runs. One that was answered, or was
    opened again, runs on too.
    """
    if new is TicketStatus.OPEN:
        return TicketStatus.RUNNING if old in _RESTS else None
    return None if new is TicketStatus.QUEUED else new


def expected_before(shown: TicketStatus, reported: TicketStatus | None) -> list[int]:
    """Codes that a row may have, for a new one to be written over them.

    What a person wrote meanwhile is not among them: a canceled row stays canceled (row B-026).

    Args:
        shown: What is to be written.
        reported: What was written last; None: nothing yet.
    """
    if shown is TicketStatus.CANCELED:
        return [int(code) for code in TaskCode if code is not TaskCode.COMPLETED]
    codes = {TaskCode.RUNNING, code_of(shown)}
    if shown is not TicketStatus.RUNNING:
        codes.add(TaskCode.WAITING_FOR_INPUT)
    if reported is not None:
        codes.add(code_of(reported))
    return sorted(int(code) for code in codes)


def expected_after(shown: TicketStatus) -> list[int]:
    """Codes that a row may have for the texts that belong to an end; also where a person canceled it in the end."""
    return sorted({int(code_of(shown)), int(TaskCode.CANCELED)})


def question_of(entries: Iterable[Entry]) -> str:
    """What the agent asked last."""
    found = ""
    for entry in entries:
        if entry.entry_type == EntryKind.OUTCOME and (entry.meta or {}).get("outcome") == "blocked":
            found = entry.raw_content or entry.content
        elif entry.entry_type == EntryKind.APPROVAL:
            asked = isinstance(entry.body, dict) and entry.body.get("event") == "asked"
            found = f"{entry.content}; answer with `operator approvals` on this box" if asked else ""
    return printable(found)


def ending_of(
    status: TicketStatus, reason: str, *, box: str, title: str, diagnosis: str, entries: Sequence[Entry], urls: UrlOf
) -> Ending:
    """A state in words.

    Args:
        status: Running, waiting, resolved, escalated or canceled.
        reason: Of the ticket.
        box: Name of this dev box.
        title: Name of the task.
        diagnosis: Of the ticket: what the worker said last, or why there is no result.
        entries: The journal of the session; empty: none had begun.
        urls: For the links in the summary.
    """
    said = printable(diagnosis)
    match status:
        case TicketStatus.WAITING_FOR_INPUT:
            question = question_of(entries) or said or "The agent needs an answer."
            return Ending(
                _short(f"Waiting for input: {first_line(question, 400)}"),
                f"Worker blocked\nReason: {question}",
                "",
                question,
            )
        case TicketStatus.RESOLVED:
            by_hand = reason == Reason.BY_HAND
            summary = _with_urls(_summary(entries), _folder(entries), urls)
            result = result_md(said, _commit(entries)) if said else ""
            whole = "\n\n".join(part.rstrip() for part in (summary, result) if part.strip())
            text = whole or ("A person resolved it by hand." if by_hand else "Completed.")
            points = _HEADING.sub("", summary)
            preview = first_line(_unmarked(points) or said, _PREVIEW)
            how = "Completed by hand" if by_hand else "Completed"
            return Ending(
                _short(f"{how}: {preview}" if preview else how),
                f"Task completed: {title}\n{points or text}",
                text,
                points or text,
            )
        case TicketStatus.ESCALATED:
            why = said or reason
            return Ending(
                _short(f"Failed: {first_line(why, 400)}"), f"Task failed: {title}\n{why}", f"Error: {why}", why
            )
        case TicketStatus.CANCELED:
            before = " (before verification)" if _before_verification(entries) else ""
            text = f"Task canceled by user{before}"
            return Ending(_short(text), text, text, text)
    return Ending(_short(f"Running on {box}"), "", "", "")


def texts_of(
    status: TicketStatus,
    ending: Ending,
    *,
    ticket: Ticket,
    row_id: str,
    box: str,
    entries: Sequence[Entry],
    urls: UrlOf,
) -> list[Patch]:
    """What is written behind a final state: the result, then the transcript, as patches of their own (D-52, D-53).

    Args:
        status: Resolved, escalated or canceled.
        ending: Of :func:`ending_of`.
        ticket: The ticket.
        row_id: Id of the row.
        box: Name of this dev box.
        entries: The whole journal of the session; empty: none had begun.
        urls: For the folder's address.
    """
    folder = _folder(entries)
    result: dict[str, Any] = {"cr_result": ending.result, **_places(folder, urls)}
    if not entries:
        return [Patch("result", result)]
    summary = session_summary(
        entries,
        ticket=ticket,
        session_id=entries[0].session_id,
        terminal_status=_TERMINAL[status],
        result_text=ending.result,
        working_dir=str(folder or ""),
        worker_name=box,
    )
    result["crb3b_sessionsummary"] = json_text({**summary, "task_id": row_id})
    return [
        Patch("result", result, _pointer(folder, "result.md")),
        Patch("transcript", {"cr_transcript": transcript_jsonl(entries)}, _pointer(folder, "transcript.md")),
    ]


def begun(entries: Iterable[Entry], urls: UrlOf) -> dict[str, Any]:
    """The columns that are known once the session folder is there."""
    entries = list(entries)
    brief = next((e.body for e in reversed(entries) if e.entry_type == EntryKind.TASK and isinstance(e.body, dict)), {})
    about = clip(first_line(printable(str(brief.get("task_description", ""))), _STATUS_MESSAGE), 120)
    return _places(_folder(entries), urls) | ({"crb3b_shortdescription": about} if about else {})


def _places(folder: Path | None, urls: UrlOf) -> dict[str, Any]:
    if folder is None:
        return {}
    url = urls(folder)
    return {"crb3b_workingdir": str(folder)} | ({"crb3b_onedriveurl": url} if url else {})


def _folder(entries: Iterable[Entry]) -> Path | None:
    for entry in entries:
        if entry.entry_type == EntryKind.BASELINE and isinstance(entry.body, dict) and entry.body.get("folder"):
            return Path(str(entry.body["folder"]))
    return None


def _pointer(folder: Path | None, name: str) -> str | None:
    return None if folder is None else str(folder / name)


def _summary(entries: Iterable[Entry]) -> str:
    found = ""
    for entry in entries:
        if entry.entry_type == EntryKind.SUMMARY:
            found = entry.raw_content or entry.content
    return printable(found).strip()


def _commit(entries: Iterable[Entry]) -> str | None:
    found = None
    for entry in entries:
        if entry.entry_type == EntryKind.DELIVERED and isinstance(entry.body, dict):
            found = entry.body.get("commit") or None
    return None if found is None else str(found)


def _with_urls(summary: str, folder: Path | None, urls: UrlOf) -> str:
    """Links that are relative to the session folder, as addresses on the web (row B-025); others stay as they are."""
    if folder is None:
        return summary

    def address(match: re.Match[str]) -> str:
        target = match[1]
        try:
            if urlsplit(target).scheme or target.startswith(("/", "\\", "#")):
                return match[0]
        except ValueError:  # such as `http://[x`
            return match[0]
        inside = Path(unquote(target))
        # An agent wrote it: what leaves the folder is no link of ours.
        url = None if ".." in inside.parts else urls(folder / inside)
        return f"]({url})" if url else match[0]

    return _LINK.sub(address, summary)


def _before_verification(entries: Iterable[Entry]) -> bool:
    """Whether a worker had said that it is done, and no verifier had begun."""
    before = False
    for entry in entries:
        phase = entry.phase or ""
        if entry.entry_type == EntryKind.OUTCOME and phase.startswith("worker_"):
            before = (entry.meta or {}).get("outcome") == "proposed"
        elif phase.startswith("verifier_"):
            before = False
    return before


def _unmarked(markdown: str) -> str:
    """The first line that says something, without the mark of a list."""
    return first_line(markdown, 1000).lstrip("-*• ")


def _short(text: str) -> str:
    return clip_units(" ".join(text.split()), _STATUS_MESSAGE)

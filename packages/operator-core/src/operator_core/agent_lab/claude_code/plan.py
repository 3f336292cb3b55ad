"""How a phase starts or goes on: a fold over its journal, and whether the CLI still has the conversation."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from operator_core import clock
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.text import clip

__all__ = ["CONTINUE", "CliResult", "Plan", "make_plan", "session_ended", "session_started"]

CONTINUE = "Continue where you were interrupted."

_RETOLD = 4000
_MOST_RETOLD = 40
_MOST_READ = 64 << 20
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\Z")
_KINDS = ("done", "limit", "error", "refused", "stopped")


class CliResult(NamedTuple):
    """How a phase of the CLI ended.

    Attributes:
        kind: ``done``: the agent has said its last word. ``limit``: the budget or the wall clock ended it.
            ``refused``: the model did. ``error``: anything else. ``stopped`` is never journaled.
        text: The last reply of the model, as the proxy saw it; empty if there was none.
        structured: The answer in the form of the schema; None without one.
        commands: Shell commands that ran to an end, over all runs of the phase.
        session_id: Of the CLI.
        detail: One sentence for a person: why it is not ``done``.
    """

    kind: Literal["done", "limit", "error", "refused", "stopped"]
    text: str
    structured: Any | None
    commands: int
    session_id: str
    detail: str


class Plan(NamedTuple):
    """What to start.

    Attributes:
        session: The CLI's session id.
        resume: Whether the CLI has that session.
        prompt: What to tell the agent.
        ended: The journaled result of this very prompt: there is nothing to start.
    """

    session: str
    resume: bool
    prompt: str
    ended: CliResult | None = None


def make_plan(entries: Sequence[Entry], prompt: str, config_dir: Path, *, lost: bool = False) -> Plan:
    """Decide from the journal.

    Args:
        entries: Of this phase so far.
        prompt: What the agent is to be told now: the same as before after a crash, another one to go on talking.
        config_dir: The CLI's folder on this machine, which may be gone.
        lost: The CLI says that it does not know the session after all.
    """
    digest = _digest(prompt)
    marks = [e for e in entries if e.entry_type == EntryKind.ENGINE_SESSION and isinstance(e.body, dict)]
    if not marks:
        return Plan(str(uuid.UUID(clock.new_id())), False, prompt)
    last = marks[-1]
    session = str(last.body.get("cli_session_id"))
    if "result" in last.body and last.body.get("prompt") == digest:
        return Plan(session, True, prompt, _result_of(last.body["result"], session))
    transcript = b"" if lost else _transcript(config_dir, session)
    if not transcript:
        return Plan(str(uuid.UUID(clock.new_id())), False, _retell(entries, prompt))
    # Told already, and heard: the agent has answered since.
    told = next((e.seq for e in marks if e.body.get("prompt") == digest and "result" not in e.body), None)
    heard = told is not None and any(e.seq > told and _is_reply(e) for e in entries)
    begun = next(e.seq for e in marks if e.body.get("cli_session_id") == session)
    # The CLI writes its transcript a moment later: what it was killed after may not be in there.
    missing = {
        e.tool_use_id
        for e in entries
        if e.seq > begun and e.tool_use_id and e.entry_type == EntryKind.TOOL_CALL
        if e.tool_use_id.encode("utf-8", "replace") not in transcript
    }
    words = CONTINUE if heard else prompt
    return Plan(
        session, True, _add_story(words, [e for e in entries if e.tool_use_id in missing]) if missing else words
    )


def session_started(plan: Plan, prompt: str, version: str) -> Draft:
    """The entry that is durable before the CLI starts.

    Args:
        plan: What is started.
        prompt: What the phase is about; ``plan.prompt`` may say less.
        version: Of the program.
    """
    body = {
        "cli_session_id": plan.session,
        "config_dir": "config",
        "version": version,
        "prompt": _digest(prompt),
        "resumed": plan.resume,
    }
    verb = "resumes" if plan.resume else "begins"
    text = f"Claude Code {version or '(version unknown)'} {verb} session {plan.session}"
    return Draft(EntryKind.ENGINE_SESSION, text, body=body)


def session_ended(result: CliResult, prompt: str) -> Draft:
    """The entry after which this prompt is never paid for again."""
    body = {"cli_session_id": result.session_id, "prompt": _digest(prompt), "result": result._asdict()}
    return Draft(EntryKind.ENGINE_SESSION, clip(f"Claude Code ended: {result.kind} {result.detail}".strip()), body=body)


def _result_of(value: Any, session: str) -> CliResult:
    data = value if isinstance(value, dict) else {}
    kind = data.get("kind")
    return CliResult(
        kind if kind in _KINDS else "error",
        str(data.get("text") or ""),
        data.get("structured"),
        int(data.get("commands") or 0),
        session,
        str(data.get("detail") or ""),
    )


def _transcript(config_dir: Path, session: str) -> bytes:
    """What the CLI has written about that session (its last part, if it is long); empty if that is nothing.

    The agent can write there, so it is read as hostile: no links, no devices, no more than fits.
    """
    if not _UUID.match(session):
        return b""
    try:
        folders = [entry.name for entry in os.scandir(config_dir / "projects")]
    except OSError:
        return b""
    for folder in folders:
        try:
            path = config_dir / "projects" / folder / f"{session}.jsonl"
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            continue
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode) or not info.st_size:
            os.close(fd)
            continue
        with open(fd, "rb") as file:
            file.seek(max(0, info.st_size - _MOST_READ))
            return file.read(_MOST_READ)
    return b""


def _retell(entries: Sequence[Entry], prompt: str) -> str:
    """The prompt for a fresh session after one whose transcript is not here."""
    known = [e for e in entries if e.entry_type != EntryKind.MESSAGE or e.raw_content not in (None, CONTINUE, prompt)]
    return _add_story(prompt, known)


def _add_story(words: str, entries: Sequence[Entry]) -> str:
    """The words, and what these entries say; the same words if they say nothing."""
    said = [text for entry in entries if (text := _told(entry))]
    if not said:
        return words
    answered = {e.tool_use_id for e in entries if e.entry_type == EntryKind.TOOL_RESULT}
    said += [
        f"The outcome of this call is unknown: {clip(e.content, 200)}"
        for e in entries
        if e.entry_type == EntryKind.TOOL_CALL and e.tool_use_id not in answered
    ]
    story = "\n\n".join(said[-_MOST_RETOLD:])
    return (
        f"{words}\n\n<interrupted>\nYou have worked on this before and were interrupted; your record of that is "
        "incomplete. Look at what is there before you repeat anything. What is known besides:\n\n"
        f"{story}\n</interrupted>"
    )


def _told(entry: Entry) -> str:
    match entry.entry_type:
        case EntryKind.MESSAGE if isinstance(entry.body, dict) and entry.body.get("role") == "user":
            return f"You were told:\n{clip(str(entry.raw_content), _RETOLD)}"
        case EntryKind.REASONING:
            return f"You said:\n{clip(entry.raw_content or entry.content, _RETOLD)}"
        case EntryKind.TOOL_CALL:
            arguments = json.dumps(entry.tool_params, ensure_ascii=False)
            return f"You called {clip(entry.tool_name or '', 80)} with {clip(arguments, _RETOLD)}"
        case EntryKind.TOOL_RESULT:
            return f"The result was:\n{clip(entry.raw_content or entry.content, _RETOLD)}"
        case _:
            return ""


def _is_reply(entry: Entry) -> bool:
    return (
        entry.entry_type == EntryKind.MESSAGE and isinstance(entry.body, dict) and entry.body.get("role") == "assistant"
    )


def _digest(prompt: str) -> str:
    return hashlib.sha256(prompt.encode("utf-8", "surrogatepass")).hexdigest()

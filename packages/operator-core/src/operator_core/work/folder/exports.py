"""The files of a session folder, as copies of what the journal says (rows B-009, B-029, B-032 to B-035).

Nothing reads them back. What agents wrote is hostile text: it never becomes a row, a heading or a link of ours.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from operator_core import clock
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Ticket
from operator_core.text import clip, first_line, printable
from operator_core.verify.markup import code, inline, quoted
from operator_core.verify.report import ClosureReport
from operator_core.work.folder import SessionFolder
from operator_core.work.folder.accounts import Accounts, PhaseAccount, accounts_of
from operator_core.work.folder.transcript import activities, json_text, transcript_jsonl

__all__ = [
    "export_all",
    "export_files",
    "result_md",
    "session_log",
    "session_summary",
    "transcript_jsonl",
    "verdict_json",
]

_PREVIEW = 200
_VERDICT_FIELDS = (
    "approved", "feedback", "testing_done", "results", "criteria_met", "criteria_failed", "expert_comparison",
)  # fmt: skip


def session_summary(
    entries: Sequence[Entry],
    *,
    ticket: Ticket,
    session_id: str,
    terminal_status: str,
    result_text: str,
    working_dir: str,
    worker_name: str,
) -> dict[str, Any]:
    """Telemetry with exactly the keys of requirements 2.2.6.

    Times are working times in milliseconds: waiting for a person and for another worker after a crash is not in them.
    A cost that is not known is null, not zero. ``session_id`` is the CLI's where the Claude Code engine worked last.
    """
    accounts = accounts_of(entries)
    return {
        "session_id": _cli_session(entries) or session_id,
        "task_id": ticket.id,
        "dev_box": worker_name,
        "working_dir": working_dir,
        "total_duration_ms": accounts.duration_ms,
        "total_cost_usd": _money(accounts.usage.cost_usd),
        "total_api_duration_ms": accounts.api_ms,
        "total_turns": accounts.turns,
        "tokens": {
            "input": accounts.usage.input_tokens,
            "output": accounts.usage.output_tokens,
            "cache_read": accounts.usage.cache_read_tokens,
            "cache_creation": accounts.usage.cache_write_tokens,
        },
        "model_usage": {
            model: {
                "cost_usd": _money(usage.cost_usd),
                "input_tokens": usage.input_tokens,
                "output_tokens": usage.output_tokens,
            }
            for model, usage in accounts.models.items()
        },
        "num_sub_agents": max(0, len(accounts.models) - 1),
        "phases": [
            {
                "phase": phase.name,
                "cost_usd": _money(phase.usage.cost_usd),
                "duration_ms": phase.duration_ms,
                "turns": phase.turns,
            }
            for phase in _agent_phases(accounts)
        ],
        "activities": activities(entries),
        "terminal_status": terminal_status,
        "result_preview": clip(printable(result_text), _PREVIEW),
        "timestamp": entries[-1].timestamp if entries else clock.iso(),
    }


def session_log(summary: dict[str, Any], *, version: str, result_text: str, session_id: str) -> str:
    """The log for people, with the sections of requirements 2.2.7."""
    tokens = summary["tokens"]
    lines = ["# SESSION LOG", "", "## Task Information", ""]
    lines += _table(
        ("Field", "Value"),
        [
            ("Task ID", summary["task_id"]),
            ("Terminal Status", summary["terminal_status"]),
            ("Timestamp", summary["timestamp"]),
            ("Dev Box", summary["dev_box"]),
            ("Worker Version", version),
            ("Session", session_id),
            ("Claude Session ID", summary["session_id"]),
            ("Working Directory", summary["working_dir"]),
        ],
    )
    lines += ["", "## Session Stats", ""]
    lines += _table(
        ("Metric", "Value"),
        [
            ("Total Duration", _seconds(summary["total_duration_ms"])),
            ("API Duration", _seconds(summary["total_api_duration_ms"])),
            ("Total Cost", _dollars(summary["total_cost_usd"])),
            ("Total Turns", summary["total_turns"]),
            ("Input Tokens", tokens["input"]),
            ("Output Tokens", tokens["output"]),
            ("Cache Read Tokens", tokens["cache_read"]),
            ("Cache Creation Tokens", tokens["cache_creation"]),
            ("Sub-agents", summary["num_sub_agents"]),
        ],
    )
    if summary["model_usage"]:
        lines += ["", "## Model Usage", ""]
        lines += _table(
            ("Model", "Cost", "Input Tokens", "Output Tokens"),
            [
                (model, _dollars(used["cost_usd"]), used["input_tokens"], used["output_tokens"])
                for model, used in summary["model_usage"].items()
            ],
        )
    lines += ["", "## Execution Phases", ""]
    lines += _table(
        ("Phase", "Cost", "Duration", "Turns"),
        [
            (phase["phase"], _dollars(phase["cost_usd"]), _seconds(phase["duration_ms"]), phase["turns"])
            for phase in summary["phases"]
        ],
    )
    lines += ["", "## Activity Log", ""]
    lines += [f"{n}. {inline(title)}" for n, title in enumerate(summary["activities"], 1)] or ["Nothing was done."]
    lines += ["", "## Final Results", *quoted(result_text, 100_000)]
    lines += [
        "",
        "## Transcript Reference",
        "",
        "Everything that was said and done is in `transcript.md`, one JSON object a line.",
    ]
    return "\n".join(lines) + "\n"


def result_md(result_text: str, commit: str | None) -> str:
    """The result in the agent's or the platform's words, and the commit that holds it."""
    text = printable(result_text).rstrip() or "(no result)"
    return f"{text}\n\n[Git Commit: {commit[:8]}]\n" if commit else f"{text}\n"


def verdict_json(entries: Iterable[Entry]) -> str | None:
    """The newest verdict of a verifier agent (row B-023), from the journal; None if none has answered."""
    found: dict[str, Any] | None = None
    for entry in entries:
        judged = entry.entry_type == EntryKind.OUTCOME and (entry.meta or {}).get("outcome") == "judged"
        if judged and (entry.phase or "").startswith("verifier_") and isinstance(entry.body, dict):
            found = entry.body
    if found is None:
        return None
    return _pretty({name: found.get(name) for name in _VERDICT_FIELDS})


def export_files(
    *,
    ticket: Ticket,
    spec: TaskSpec,
    session_id: str,
    entries: Sequence[Entry],
    report: ClosureReport | None,
    terminal_status: str,
    result_text: str,
    working_dir: str,
    worker_name: str,
    version: str,
    history: str,
) -> dict[str, str | None]:
    """All files by name; None for one that must not be there."""
    summary = session_summary(
        entries,
        ticket=ticket,
        session_id=session_id,
        terminal_status=terminal_status,
        result_text=result_text,
        working_dir=working_dir,
        worker_name=worker_name,
    )
    delivered = next((e for e in reversed(entries) if e.entry_type == EntryKind.DELIVERED), None)
    commit = delivered.body.get("commit") if delivered and isinstance(delivered.body, dict) else None
    page, data = _report(ticket, session_id, report, entries, terminal_status, result_text)
    return {
        "VERDICT.json": verdict_json(entries),
        "SUMMARY.md": _summary_md(spec, entries, terminal_status, result_text),
        "result.md": result_md(result_text, commit),
        "transcript.md": transcript_jsonl(entries),
        "session_summary.json": _pretty(summary),
        "SESSION_LOG.md": session_log(summary, version=version, result_text=result_text, session_id=session_id),
        "REPORT.md": page,
        "report.json": _pretty(data),
        "GIT_HISTORY.md": _history(history),
    }


def export_all(
    folder: SessionFolder,
    *,
    ticket: Ticket,
    spec: TaskSpec,
    session_id: str,
    entries: Sequence[Entry],
    report: ClosureReport | None,
    terminal_status: str,
    result_text: str,
    worker_name: str,
    version: str,
    history: str,
) -> None:
    """Write all files of the session folder; again gives the same, from a longer journal the newer ones.

    Args:
        folder: Where to.
        ticket: Of the task.
        spec: The task.
        session_id: The session.
        entries: Its whole journal.
        report: None: the one in the journal, or a page that says that nothing was proved.
        terminal_status: ``completed``, ``failed``, ``canceled``, or ``waiting`` while a person is asked.
        result_text: The worker's last words, or why there is no result; redacted.
        worker_name: ``[worker] name``.
        version: Of Operator.
        history: ``git log --oneline`` of the result; empty if nothing was delivered.

    Raises:
        StoreReadOnly: The folder cannot be written.
        StoreFull: The disk is full.
    """
    files = export_files(
        ticket=ticket,
        spec=spec,
        session_id=session_id,
        entries=entries,
        report=report,
        terminal_status=terminal_status,
        result_text=result_text,
        working_dir=str(folder.path),
        worker_name=worker_name,
        version=version,
        history=history,
    )
    for name, text in files.items():
        if text is None:
            folder.remove(name)
        else:
            folder.write(name, text)


def _agent_phases(accounts: Accounts) -> list[PhaseAccount]:
    return [p for p in accounts.phases if re.fullmatch(r"(worker|verifier)_\d+|summarizer", p.name)]


def _cli_session(entries: Iterable[Entry]) -> str | None:
    found = None
    for entry in entries:
        if entry.entry_type == EntryKind.ENGINE_SESSION and isinstance(entry.body, dict):
            found = entry.body.get("cli_session_id") or found
    return None if found is None else str(found)


def _summary_md(spec: TaskSpec, entries: Sequence[Entry], terminal_status: str, result_text: str) -> str:
    found = next((e for e in reversed(entries) if e.entry_type == EntryKind.SUMMARY), None)
    if found is not None:
        return printable(found.raw_content or found.content).rstrip() + "\n"
    why = inline(first_line(result_text, 300) or "no reason given")
    return f"# Task Summary: {inline(spec.name)}\n\n- {terminal_status}: {why}\n"


def _report(
    ticket: Ticket,
    session_id: str,
    report: ClosureReport | None,
    entries: Sequence[Entry],
    terminal_status: str,
    result_text: str,
) -> tuple[str, Any]:
    if report is not None:
        return report.markdown(), report.to_dict()
    found = next((e for e in reversed(entries) if e.entry_type == EntryKind.REPORT), None)
    if found is not None:
        return found.raw_content or found.content, found.body
    lines = [
        f"# Closure report: ticket #{ticket.id}, {inline(ticket.invariant_name)}",
        "",
        f"**{terminal_status}: {inline(first_line(result_text, 300))}**",
        "",
        "Nothing was proved.",
        "",
        f"- The whole session: `operator sessions show {code(session_id)}`",
    ]
    data = {
        "ticket": ticket.id,
        "session": session_id,
        "headline": f"{terminal_status}: {result_text}",
        "verdict": None,
    }
    return "\n".join(lines) + "\n", data


def _history(history: str) -> str:
    if not history.strip():
        return "# Git history\n\nNothing was committed by the platform.\n"
    return "\n".join(["# Git history", *quoted(history, 100_000)]) + "\n"


def _table(head: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(inline(str(cell)) for cell in row)} |" for row in rows),
    ]


def _pretty(value: Any) -> str:
    return json_text(value, indent=2) + "\n"


def _money(cost: float | None) -> float | None:
    return None if cost is None else round(cost, 6)


def _dollars(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:.6f}"


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.1f} s"

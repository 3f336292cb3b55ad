"""A journal as people read it: its entries with what was asked, what came out, how long it took."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from operator_core.api.models import EntryView
from operator_core.api.protocol import Api
from operator_core.model.entry import EntryKind
from operator_core.model.verdict import Clause, ClauseState, VerdictKind
from operator_core.text import clip
from operator_core.web.words import money

__all__ = ["Output", "Step", "call_mark", "output_of", "sandbox_of", "steps_of"]

_CALLS_BEFORE = 64
_BEGINS = (EntryKind.TOOL_CALL.value, EntryKind.APPROVAL.value)
"""A call that had to wait for a person begins when it was let through."""
_TELLING = ("command", "path", "pattern", "query", "url", "job", "title", "summary", "description")
_SHELLS = ("shell", "shell_exec", "bash", "job_start")
_KINDS = frozenset(kind.value for kind in EntryKind)
# A text that was cut may end inside of an escape.
_HALF_ESCAPE = re.compile(r"(?<!\\)((?:\\\\)*)\\(?:u[0-9a-fA-F]{0,3})?\Z")
_HALF_WORD = re.compile(r"\b[a-z]+\Z")
_EXIT = re.compile(r"\Aexit -?\d+(?:[,:] |\Z)")
_CLAUSES = 12
_CLAUSE_NAMES = [clause.value for clause in Clause]
_CLAUSE_STATES = [state.value for state in ClauseState]
_VERDICTS = [kind.value for kind in VerdictKind]
_TITLES: Mapping[str, str] = {
    EntryKind.BASELINE: "Before the work",
    EntryKind.COMPACTION: "Context shortened",
    EntryKind.DELIVERED: "Delivered",
    EntryKind.EGRESS: "Network",
    EntryKind.ENGINE_SESSION: "Engine",
    EntryKind.EVIDENCE: "Evidence",
    EntryKind.OUTCOME: "Outcome",
    EntryKind.REPORT: "Closure report",
    EntryKind.SANDBOX_REPORT: "Sandbox",
    EntryKind.SESSION_END: "End of the session",
    EntryKind.SESSION_START: "Begin of the session",
    EntryKind.WIND_DOWN: "Time to come to an end",
}


class Output(NamedTuple):
    """What a call gave.

    Attributes:
        text: Standard output, or all of it where there are no two streams.
        error: Standard error.
        timed_out: Whether it was stopped because its time was over.
    """

    text: str
    error: str = ""
    timed_out: bool = False


class Sandbox(NamedTuple):
    """What a sandbox enforces, by a report that may be anything.

    Attributes:
        level: ``isolated``, ``confined`` or ``open``, which is also what an unknown one counts as.
        weak: Name, state and explanation of each control that is not verified.
        held: Name and explanation of the others.
    """

    backend: str
    level: str
    weak: list[tuple[str, str, str]]
    held: list[tuple[str, str]]
    warnings: list[str]


class Judged(NamedTuple):
    """A verdict, by a payload that may be anything.

    Attributes:
        clauses: Each with ``clause``, ``state``, ``required`` and ``why``.
    """

    kind: str
    why: str
    clauses: list[dict[str, Any]]


class Step(NamedTuple):
    """One entry as it is shown.

    Attributes:
        kind: Its entry type, which decides how it looks.
        title: What kind of entry it is, in words.
        what: Of a call: its command, path and the like, if it has one.
        reason: Of a call: why the agent makes it.
        arguments: Of a call: the others.
        output: Of a result.
        duration_s: Of a result: seconds since its call was journaled; None: that is not known.
        failed: Whether it is something that went wrong.
        used: Of a reply of the model: what it cost, in words.
        verdict: Of a verdict.
        sandbox: Of a sandbox report.
    """

    entry: EntryView
    kind: str
    title: str
    what: str | None = None
    reason: str | None = None
    arguments: Mapping[str, Any] = {}
    output: Output | None = None
    duration_s: float | None = None
    failed: bool = False
    used: str = ""
    verdict: Judged | None = None
    sandbox: Sandbox | None = None

    @property
    def gist(self) -> str:
        """Of a result: it in one line, without the exit code that stands before it."""
        return _EXIT.sub("", self.entry.content)

    @property
    def shell(self) -> bool:
        """Whether it is a command line."""
        return self.entry.tool_name in _SHELLS or (self.entry.tool_name or "").lower() == "bash"

    @property
    def look(self) -> str:
        """The name of its look in the style sheet."""
        return self.kind.replace("_", "-") if self.kind in _KINDS else "other"

    @property
    def call(self) -> str:
        """See :func:`call_mark`."""
        return call_mark(self.entry.tool_use_id)

    @property
    def at_ms(self) -> int:
        """When, in milliseconds since 1970."""
        return round(self.entry.timestamp.timestamp() * 1000)


def call_mark(tool_use_id: str | None) -> str:
    """The identity of a call as a short plain word, because the id itself is text of the model's server."""
    return hashlib.sha256(tool_use_id.encode("utf-8", "replace")).hexdigest()[:16] if tool_use_id else ""


async def steps_of(api: Api, session_id: str, entries: Sequence[EntryView]) -> list[Step]:
    """The entries of a window; a result whose call lies before the window is timed nevertheless."""
    begun = {e.tool_use_id: e.timestamp for e in entries if e.entry_type in _BEGINS}
    results = [e for e in entries if e.entry_type == EntryKind.TOOL_RESULT and e.tool_use_id]
    if any(result.tool_use_id not in begun for result in results):
        first = entries[0].seq
        since = max(-1, first - 1 - _CALLS_BEFORE)
        earlier = await api.entries(session_id, after=since, limit=_CALLS_BEFORE, kinds=_BEGINS, max_chars=2000)
        calls = [e for e in earlier.items if e.seq < first]
        begun = {e.tool_use_id: e.timestamp for e in calls} | begun
    shown = []
    for entry, said in zip(entries, _said(entries), strict=True):
        step = _step(entry, begun)
        shown.append(step._replace(reason=None) if step.reason == said else step)
    return shown


def _said(entries: Sequence[EntryView]) -> Iterator[str | None]:
    """What the agent said last before each of these: why it makes a call, as a rule."""
    last: str | None = None
    for entry in entries:
        yield last
        if entry.entry_type == EntryKind.REASONING:
            last = (entry.raw_content or entry.content).strip()
        elif entry.entry_type != EntryKind.TOOL_CALL:
            last = None


def _step(entry: EntryView, begun: Mapping[str | None, datetime]) -> Step:
    kind = entry.entry_type
    title = _TITLES.get(kind) or clip(kind.replace("_", " "), 40).capitalize()
    if kind == EntryKind.TOOL_CALL:
        return _call(entry, title)
    if kind == EntryKind.TOOL_RESULT:
        since = begun.get(entry.tool_use_id) if entry.tool_use_id else None
        took = max(0.0, (entry.timestamp - since).total_seconds()) if since else None
        failed = entry.exit_code not in (0, None) or (entry.meta or {}).get("status", "ok") != "ok"
        return Step(entry, kind, title, output=output_of(entry), duration_s=took, failed=failed)
    if kind == EntryKind.VERDICT:
        verdict = _verdict(entry.body)
        return Step(entry, kind, "Verdict", verdict=verdict, failed=verdict is None or verdict.kind != "verified")
    if kind == EntryKind.SANDBOX_REPORT:
        return Step(entry, kind, title, sandbox=sandbox_of(entry.body))
    return Step(entry, kind, title, failed=kind == EntryKind.ERROR, used=_used(entry))


def _call(entry: EntryView, title: str) -> Step:
    arguments = dict(entry.tool_params or {})
    reason = arguments.pop("reasoning", None)
    name = next((name for name in _TELLING if isinstance(arguments.get(name), str)), None)
    what = arguments.pop(name) if name else None
    return Step(
        entry,
        EntryKind.TOOL_CALL,
        title,
        what=what,
        reason=reason.strip() or None if isinstance(reason, str) else None,
        arguments=arguments,
    )


def _used(entry: EntryView) -> str:
    usage = (entry.meta or {}).get("usage")
    if not isinstance(usage, dict):
        return ""
    tokens = {name: value for name, value in usage.items() if isinstance(value, int)}
    into = sum(tokens.get(name, 0) for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens"))
    cost = usage.get("cost_usd")
    priced = f", {money(cost)}" if isinstance(cost, int | float) else ", price unknown"
    return f"{into:,} tokens in, {tokens.get('output_tokens', 0):,} out{priced}"


def _verdict(body: Any) -> Judged | None:
    if not isinstance(body, dict):
        return None
    kind = body.get("kind")
    clauses = [
        {
            "clause": c.get("clause") if c.get("clause") in _CLAUSE_NAMES else "clause",
            "state": str(c.get("state")) if c.get("state") in _CLAUSE_STATES else "not_proved",
            "required": c.get("required") is True,
            "why": str(c.get("why")),
        }
        for c in _list(body.get("clauses"))[:_CLAUSES]
        if isinstance(c, dict)
    ]
    return Judged(kind if kind in _VERDICTS else "inconclusive", str(body.get("why") or ""), clauses)


def sandbox_of(report: Any) -> Sandbox | None:
    """What a sandbox report says; None: it is none."""
    if not isinstance(report, dict):
        return None
    controls = report.get("controls")
    weak, held = [], []
    for name, control in controls.items() if isinstance(controls, dict) else ():
        state, how = (control.get("state"), control.get("how")) if isinstance(control, dict) else (None, None)
        if state == "verified":
            held.append((str(name), str(how)))
        else:
            weak.append((str(name), str(state), str(how)))
    level = report.get("level")
    known = level if level in ("isolated", "confined") else "open"
    return Sandbox(str(report.get("backend")), known, weak, held, [str(w) for w in _list(report.get("warnings"))])


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def output_of(entry: EntryView) -> Output:
    """What a result says, also if its text was cut in the middle of the JSON that it is."""
    text = entry.raw_content or ""
    value = _read(text, cut=entry.cut > 0)
    if isinstance(value, str):
        return Output(value)
    if not isinstance(value, dict):
        return Output(text)
    if "stdout" in value:
        error = value.get("stderr")
        return Output(str(value["stdout"] or ""), str(error or ""), value.get("timed_out") is True)
    if set(value) <= {"error", "partial_output"}:
        return Output(str(value.get("partial_output") or ""), str(value.get("error") or ""))
    return Output(json.dumps(value, indent=2, ensure_ascii=False))


def _read(text: str, *, cut: bool) -> Any:
    if not text.startswith(("{", '"')):
        return None
    for candidate in _completed(text) if cut else (text,):
        try:
            return json.loads(candidate)
        except ValueError:
            continue
    return None


def _completed(text: str) -> Iterator[str]:
    """A flat JSON value whose end is missing, as it may have been: in a string, behind one, or in a word."""
    begun = _HALF_ESCAPE.sub(r"\1", text)
    for end in ('"', '"}', '": null}'):
        yield begun + end
    begun = _HALF_WORD.sub("", text).rstrip(", ")
    for end in ("}", " null}", ": null}"):
        yield begun + end

"""The closure report: one page that says what was claimed, what was proved, how, and what was not."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, dataclass
from typing import Any

from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Ticket
from operator_core.model.usage import Usage
from operator_core.model.verdict import Clause, ClauseState, Evidence, Verdict
from operator_core.text import clip
from operator_core.verify.markup import code, inline, quoted

__all__ = ["ClosureReport", "TaskFacts"]

_SIGNS = {True: "ok", False: "NOT OK", None: "could not look"}
_STATES = {
    ClauseState.PROVED: "proved",
    ClauseState.FAILED: "FAILED",
    ClauseState.COULD_NOT_LOOK: "could not look",
    ClauseState.NOT_PROVED: "not proved",
}
_BEFORE = {
    "red": "failed, as it should",
    "green": "was already green, so that it proves nothing about the work",
    "vacuous": "passed even in an empty folder, so that it proves nothing",
    "could_not_look": "could not be tried",
}
_SHOWN_COMMANDS = 20
# In one line there is no room for the rules that test runners draw.
_RULE = re.compile(r"^([-=_*~#])\1{9,}$", re.MULTILINE)


@dataclass(frozen=True)
class TaskFacts:
    """What a report says of a task beside its verdict.

    Attributes:
        asked: The request, as it was submitted.
        folder: Session folder, as text.
        workspace: Where the work is.
        checks: The frozen commands.
        before: Each check's command and how it was before the work: ``red``, ``green``, ``vacuous`` (green, even in an
            empty folder) or ``could_not_look``.
        digest: Digest (hex) of the content that was judged; None: nothing was.
        base: The commit that the work began with.
        branch: Branch of the result.
        commit: The result in the workspace's repository; None: nothing was delivered.
        notes: What was restored or taken out for the checks, and what is to be known about the delivery.
        iterations: Worker phases that were begun.
    """

    asked: str
    folder: str
    workspace: str
    checks: tuple[str, ...] = ()
    before: tuple[tuple[str, str], ...] = ()
    digest: str | None = None
    base: str | None = None
    branch: str | None = None
    commit: str | None = None
    notes: tuple[str, ...] = ()
    iterations: int = 1


@dataclass(frozen=True)
class ClosureReport:
    """Everything the page says; :meth:`markdown` and :meth:`to_dict` are its two forms."""

    ticket: Ticket
    session_id: str
    outcome: Outcome
    verdict: Verdict | None
    engine: str
    model: str
    usage: Usage
    turns: int
    commands: int
    sandbox: str
    task: TaskFacts | None = None

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if self.verdict is not None:
            return f"{self.verdict.kind.value}: {self.verdict.why}"
        if self.task is not None and self.outcome.kind is OutcomeKind.BLOCKED:
            return f"waiting: a person is asked: {clip(' '.join(self.outcome.summary.split()), 400)}"
        return {
            OutcomeKind.GAVE_UP: "handed over: the agent gave up and says why",
            OutcomeKind.NO_OUTCOME: "nothing was claimed, so nothing was proved",
            OutcomeKind.LIMIT: "stopped at a limit",
            OutcomeKind.REFUSED: "the model ended the conversation",
            OutcomeKind.CANCELED: "canceled by a person",
        }.get(self.outcome.kind, f"ended by an error: {clip(' '.join(self.outcome.summary.split()), 400)}")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ticket": self.ticket.id,
            "invariant": self.ticket.invariant_name,
            "session": self.session_id,
            "headline": self.headline,
            "claimed": {"kind": self.outcome.kind.value, "summary": self.outcome.summary},
            "verdict": self.verdict.to_dict() if self.verdict else None,
            "engine": self.engine,
            "model": self.model,
            "usage": self.usage._asdict(),
            "turns": self.turns,
            "commands": self.commands,
            "sandbox": self.sandbox,
            **({"kind": "task", "task": asdict(self.task), "not_proved": self._gaps()} if self.task else {}),
        }

    def markdown(self) -> str:
        """The page. Everything that an agent or a command wrote is quoted, never markup."""
        task = self.task
        lines = [
            f"# Closure report: ticket #{self.ticket.id}, {inline(self.ticket.invariant_name)}",
            "",
            f"**{inline(self.headline)}**",
            "",
            f"- Incident: {inline(self.ticket.message)}"
            if task is None
            else f"- Session folder: `{code(task.folder)}`",
            f"- Session: `{self.session_id}`, {self.turns} turns, {self.commands} commands, {self._cost()}",
            f"- Engine: {self.engine}, model {inline(self.model)}",
            f"- Sandbox: {inline(self.sandbox)}",
            "",
        ]
        if task is not None:
            lines += ["## What was asked", *quoted(task.asked), ""]
        lines += ["## What was claimed", *quoted(self.outcome.summary), "", "## What was proved", ""]
        if self.verdict is None:
            what = "resolution" if task is None else "result"
            canceled = self.outcome.kind is OutcomeKind.CANCELED
            lines.append(
                "Nothing: a person canceled it. A verdict from before that, if there is one, is in its journal."
                if canceled
                else f"Nothing: no {what} was proposed, so nothing was verified."
            )
            if task is None:
                return "\n".join(lines) + "\n"
            lines.append("")
        if task is not None:
            lines += _what(task)
        if self.verdict is not None and not self.verdict.clauses:
            lines += [f"Nothing: {inline(self.verdict.why).rstrip('.')}.", ""]
        for clause in self.verdict.clauses if self.verdict else ():
            need = "required" if clause.required else "not required"
            lines += [
                f"### {clause.clause.value.replace('_', ' ')}: {_STATES[clause.state]} ({need})",
                "",
                inline(clause.why).rstrip(".") + ".",
                "",
            ]
            for evidence in clause.evidence:
                lines += _evidence(evidence)
            lines.append("")
        if gaps := self._gaps():
            lines += ["## What was not proved", "", *[f"- {inline(gap)}" for gap in gaps], ""]
        lines += ["## How to look again", "", *self._again()]
        return "\n".join(line for i, line in enumerate(lines) if line or i == 0 or lines[i - 1]) + "\n"

    def _gaps(self) -> list[str]:
        """Everything that nobody has proved, each in one sentence."""
        clauses = self.verdict.clauses if self.verdict else ()
        gaps = [f"{c.clause.value.replace('_', ' ')}: {c.why}" for c in clauses if c.state is not ClauseState.PROVED]
        task = self.task
        if task is None:
            return gaps
        if self.verdict is None:
            canceled = self.outcome.kind is OutcomeKind.CANCELED
            gaps.append(f"the work: it was {'canceled' if canceled else 'not judged'}")
        present = {clause.clause for clause in clauses}
        if not task.checks and Clause.CHECKS not in present:
            gaps.append("checks: the task has no check")
        elif self.verdict is not None:
            gaps += [f"{c.value}: nobody looked" for c in (Clause.CHECKS, Clause.REVIEW) if c not in present]
        for command, state in task.before:
            if state != "red":
                gaps.append(f"the check {command!r}: before the work it {_BEFORE.get(state, f'was {state}')}")
        if self.verdict is not None and task.commit is None:
            gaps.append("delivery: the work is not committed; it is only in the workspace")
        return gaps

    def _again(self) -> list[str]:
        check_hash = self.verdict.check_hash if self.verdict else self.ticket.check_hash
        whole = (
            f"- The whole session: `operator sessions show {self.session_id}`; its integrity: `operator audit verify`."
        )
        if self.task is None:
            assert self.verdict is not None
            frozen = f"- The check is frozen as `{check_hash[:16]}` (SHA-256 of the invariant)." if check_hash else ""
            return [
                frozen or "- It has no check, so that nothing can be looked at again; a person has to decide.",
                *[f"- `{code(how)}`" for how in dict.fromkeys(_all_how(self.verdict))],
                whole,
            ]
        reviewed = [c for c in (self.verdict.clauses if self.verdict else ()) if c.clause is Clause.REVIEW]
        tried = list(dict.fromkeys(e.how for c in reviewed for e in c.evidence if e.how))
        model = " (`--checks-only` needs no model)" if tried else ""
        lines = [
            f"- All of it, from what was recorded: `operator verify {self.ticket.id}`{model}",
            *([f"- The task with its checks is frozen as `{check_hash[:16]}` (SHA-256)."] if check_hash else []),
        ]
        enter = f"cd {shlex.quote(self.task.workspace)}"
        for number, command in enumerate(self.task.checks, 1):
            both = f"{enter}\n{command}" if "\n" in command.strip() else f"{enter} && {command}"
            lines += [f"- Check {number}; it is right when this ends with exit code 0:", *quoted(both, 20_000), ""]
        if tried:
            lines.append("- What the verifier agent executed:")
            for command in tried[:_SHOWN_COMMANDS]:
                lines += [*quoted(command, 1000), ""]
            if len(tried) > _SHOWN_COMMANDS:
                lines.append(f"  and {len(tried) - _SHOWN_COMMANDS} more.")
        return [*lines, whole]

    def _cost(self) -> str:
        cost = "cost unknown" if self.usage.cost_usd is None else f"{self.usage.cost_usd:.4f} USD"
        return f"{self.usage.tokens} tokens, {cost}"


def _all_how(verdict: Verdict) -> list[str]:
    return [e.how for c in verdict.clauses for e in c.evidence if e.how and not e.what.startswith("protected")]


def _what(task: TaskFacts) -> list[str]:
    """On what exactly it was proved."""
    lines = [
        f"- Content: `{task.digest}` (SHA-256 over the workspace)" if task.digest else "- Content: none was judged"
    ]
    if task.commit:
        lines.append(f"- Result: commit `{code(task.commit)}` on branch `{code(task.branch or '')}` of the workspace")
    if task.base:
        lines.append(f"- The work began with commit `{code(task.base)}`")
    lines += [f"- Worker iterations: {task.iterations}", *[f"- {inline(note)}" for note in task.notes]]
    for command, state in task.before:
        lines.append(f"- Before the work {inline(repr(command), 160)}: {_BEFORE.get(state, inline(state, 160))}")
    return [*lines, ""]


def _evidence(evidence: Evidence) -> list[str]:
    """One line for what is as it should be; the raw observation too for what is not."""
    head = f"- {_SIGNS[evidence.ok]}: {inline(evidence.what, 160)}"
    if evidence.ok:
        return [f"{head}: {inline(_RULE.sub('', evidence.observed), 160)}"]
    return [f"{head}, {evidence.at}; expected {inline(evidence.expected)}; observed:", *quoted(evidence.observed), ""]

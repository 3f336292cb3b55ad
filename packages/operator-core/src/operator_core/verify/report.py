"""The closure report: one page that says what was claimed, what was proved, how, and what was not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Ticket
from operator_core.model.usage import Usage
from operator_core.model.verdict import ClauseState, Evidence, Verdict
from operator_core.text import clip, printable

__all__ = ["ClosureReport"]

_SIGNS = {True: "ok", False: "NOT OK", None: "could not look"}
_STATES = {
    ClauseState.PROVED: "proved",
    ClauseState.FAILED: "FAILED",
    ClauseState.COULD_NOT_LOOK: "could not look",
    ClauseState.NOT_PROVED: "not proved",
}


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

    @property
    def headline(self) -> str:
        """The result in one sentence."""
        if self.verdict is not None:
            return f"{self.verdict.kind.value}: {self.verdict.why}"
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
        }

    def markdown(self) -> str:
        """The page. Everything that an agent or a command wrote is quoted, never markup."""
        lines = [
            f"# Closure report: ticket #{self.ticket.id}, {_inline(self.ticket.invariant_name)}",
            "",
            f"**{_inline(self.headline)}**",
            "",
            f"- Incident: {_inline(self.ticket.message)}",
            f"- Session: `{self.session_id}`, {self.turns} turns, {self.commands} commands, {self._cost()}",
            f"- Engine: {self.engine}, model {_inline(self.model)}",
            f"- Sandbox: {_inline(self.sandbox)}",
            "",
            "## What was claimed",
            *_quote(self.outcome.summary),
        ]
        if self.verdict is None:
            lines += ["", "## What was proved", "", "Nothing: no resolution was proposed, so nothing was verified."]
            return "\n".join(lines) + "\n"
        lines += ["", "## What was proved", ""]
        for clause in self.verdict.clauses:
            need = "required" if clause.required else "not required"
            lines += [
                f"### {clause.clause.value.replace('_', ' ')}: {_STATES[clause.state]} ({need})",
                "",
                _inline(clause.why).rstrip(".") + ".",
                "",
            ]
            for evidence in clause.evidence:
                lines += _evidence(evidence)
            lines.append("")
        open_ = [c for c in self.verdict.clauses if c.state is not ClauseState.PROVED]
        if open_:
            lines += ["## What was not proved", ""]
            lines += [f"- {c.clause.value.replace('_', ' ')}: {_inline(c.why)}" for c in open_]
            lines.append("")
        lines += [
            "## How to look again",
            "",
            f"- The check is frozen as `{(self.verdict.check_hash or 'none')[:16]}` (SHA-256 of the invariant).",
            *[f"- `{_code(how)}`" for how in dict.fromkeys(_all_how(self.verdict))],
            f"- The whole session: `operator sessions show {self.session_id}`; its integrity: `operator audit verify`.",
        ]
        return "\n".join(line for i, line in enumerate(lines) if line or i == 0 or lines[i - 1]) + "\n"

    def _cost(self) -> str:
        cost = "cost unknown" if self.usage.cost_usd is None else f"{self.usage.cost_usd:.4f} USD"
        return f"{self.usage.tokens} tokens, {cost}"


def _all_how(verdict: Verdict) -> list[str]:
    return [e.how for c in verdict.clauses for e in c.evidence if e.how and not e.what.startswith("protected")]


def _evidence(evidence: Evidence) -> list[str]:
    """One line for what is as it should be; the raw observation too for what is not."""
    head = f"- {_SIGNS[evidence.ok]}: {_inline(evidence.what, 160)}"
    if evidence.ok:
        return [f"{head}: {_inline(evidence.observed, 160)}"]
    return [f"{head}, {evidence.at}; expected {_inline(evidence.expected)}; observed:", *_quote(evidence.observed), ""]


def _inline(text: str, length: int = 400) -> str:
    """One line in which nothing is markup."""
    flat = " ".join(printable(text).split())
    return "".join("\\" + c if c in "\\`*[]<|~" else c for c in clip(flat, length))


def _quote(text: str) -> list[str]:
    # An indented block cannot be ended from the inside, as a fence could.
    body = printable(clip(text.strip(), 4000)) or "(nothing)"
    return ["", *[f"      {line}".rstrip() for line in body.splitlines()]]


def _code(text: str) -> str:
    return " ".join(printable(text).split()).replace("`", "'")

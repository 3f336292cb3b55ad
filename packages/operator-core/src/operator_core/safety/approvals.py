"""Whether a call of an agent is allowed, needs a person's word, or is denied: a pure function of the rules.

It reads texts that an agent wrote, so it is no boundary: whoever wants to can write a command that no rule recognises.
The sandbox is the boundary. The rules say when a person wants to be asked, and in doubt they ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from operator_core.model.approval import ApprovalRule
from operator_core.model.entry import canonical, too_deep
from operator_core.model.pattern import Pattern, Unreadable
from operator_core.model.ticket import TicketKind
from operator_core.safety.advice import CommandAdvisor

__all__ = ["Circumstances", "Ruling", "decide", "first_in_force"]

_LONGEST = 100_000
"""A longer text is not searched, nor is what cannot be: to ask or deny it counts as found, to allow as not fitting."""
_ADVISED = 32_768
"""The advisor reads no further, so that something could be hidden behind it."""


class Circumstances(NamedTuple):
    """Who calls, and where.

    Attributes:
        profile: Name of the agent's profile.
        phase: Of the session.
        kind: Of the ticket; None: there is none.
        labels: Of the ticket.
        environment: Of the worker.
        workspace: What lies in it belongs to the agent.
    """

    profile: str
    phase: str
    kind: TicketKind | None = None
    labels: Mapping[str, str] = {}
    environment: Mapping[str, str] = {}
    workspace: Path = Path("/workspace")


class Ruling(NamedTuple):
    """What the rules say about one call, and for which reason."""

    decision: Literal["allow", "ask", "deny"]
    why: str


def decide(
    rules: Sequence[ApprovalRule], circumstances: Circumstances, tool: str, arguments: Mapping[str, Any]
) -> Ruling:
    """The decision of the first rule that matches; a call that none matches is allowed."""
    for number, rule in enumerate(rules, 1):
        if _in_force(rule, circumstances) and _fits(rule, circumstances, tool, arguments):
            return Ruling(rule.decision, rule.why or _number(rule, number))
    return Ruling("allow", "no rule matches")


def first_in_force(rules: Sequence[ApprovalRule], circumstances: Circumstances) -> int | None:
    """Number (from 1) of the first rule that could ask or deny here, whatever the call is; None: none could."""
    for number, rule in enumerate(rules, 1):
        if _in_force(rule, circumstances):
            if rule.decision != "allow":
                return number
            if not rule.looks_at_calls:
                return None
    return None


def _in_force(rule: ApprovalRule, circumstances: Circumstances) -> bool:
    return (
        fnmatchcase(circumstances.profile, rule.profile)
        and fnmatchcase(circumstances.phase, rule.phase)
        and rule.kind in (None, circumstances.kind)
        and _labelled(rule.labels, circumstances.labels)
        and _labelled(rule.environment, circumstances.environment)
    )


def _labelled(wanted: Mapping[str, str], found: Mapping[str, str]) -> bool:
    return all(name in found and fnmatchcase(found[name], pattern) for name, pattern in wanted.items())


def _fits(rule: ApprovalRule, circumstances: Circumstances, tool: str, arguments: Mapping[str, Any]) -> bool:
    if not fnmatchcase(tool, rule.tool):
        return False
    if rule.dangerous and not _is_dangerous(arguments, circumstances.workspace):
        return False
    whole = rule.decision == "allow"
    return all(
        _some(arguments, name, _pattern(pattern, whole=whole), whole=whole) for name, pattern in rule.matches.items()
    ) and all(_some(arguments, name, _words_in(words), whole=whole) for name, words in rule.contains.items())


def _some(arguments: Mapping[str, Any], name: str, holds: Callable[[str], bool], *, whole: bool) -> bool:
    """Whether it holds for a text of that argument; what cannot be looked at is found, but fits nothing."""
    texts = _texts(arguments, name, inner=not whole)
    if texts is None:
        return not whole
    try:
        return any(not whole if len(text) > _LONGEST else holds(text) for text in texts)
    except Unreadable:
        return not whole


def _pattern(text: str, *, whole: bool) -> Callable[[str], bool]:
    pattern = Pattern(text)
    return pattern.fits if whole else pattern.found_in


def _words_in(words: str) -> Callable[[str], bool]:
    wanted = words.casefold()
    return lambda text: wanted in text.casefold()


def _texts(arguments: Mapping[str, Any], name: str, *, inner: bool) -> list[str] | None:
    """The argument with that name, or all of them; what is no text as JSON. None: they cannot be read.

    Args:
        inner: Also each text inside of it: in JSON, quotation marks and line breaks are not what they are in a text.
    """
    values = list(arguments.values()) if name == "*" else [arguments[name]] if name in arguments else []
    if too_deep(values):
        return None
    try:
        found = [value if isinstance(value, str) else canonical(value) for value in values]
    except (TypeError, ValueError):
        return None
    return [*found, *(text for value in values for text in _inside(value))] if inner else found


def _inside(value: Any) -> Iterator[str]:
    parts = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    for part in parts:
        if isinstance(part, str):
            yield part
        else:
            yield from _inside(part)


def _is_dangerous(arguments: Mapping[str, Any], workspace: Path) -> bool:
    command = arguments.get("command")
    if not isinstance(command, str):
        return False
    return len(command) > _ADVISED or CommandAdvisor(workspace).check(command) is not None


def _number(rule: ApprovalRule, number: int) -> str:
    verb = {"allow": "allows", "ask": "asks about", "deny": "denies"}[rule.decision]
    return f"rule {number} of [approvals] {verb} such calls"

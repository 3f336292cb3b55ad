"""Checks that cannot fail prove nothing, and are refused when they are submitted."""

from __future__ import annotations

import re
from typing import NamedTuple

from operator_core.text import clip, printable
from operator_core.verify.shell import (
    AndOr,
    Group,
    If,
    Listing,
    Loop,
    Node,
    NotRead,
    Pipeline,
    Simple,
    Word,
    parse,
    shell_script,
    unwrapped,
)

__all__ = ["PRELUDE", "why_it_cannot_fail"]

PRELUDE = "set -o pipefail; "
"""What the platform puts before each check, so that ``pytest | tee log`` fails when pytest does."""


class _End(NamedTuple):
    """One way in which a command can end: with success or not, and whether the whole script ends with it."""

    ok: bool
    leaves: bool = False


_Ends = frozenset[_End]
_OK: _Ends = frozenset([_End(True)])
_BAD: _Ends = frozenset([_End(False)])
_EITHER = _OK | _BAD
_GIVE = "give a command that ends with 0 only when the work is right"
_READ_ONLY = ("BASHOPTS=", "BASH_VERSINFO=", "EUID=", "PPID=", "SHELLOPTS=", "UID=")

# They change what the rest of the script means.
_CHANGES_THE_RULES = frozenset(
    [
        ".", "alias", "break", "continue", "declare", "enable", "eval", "exec", "export", "kill", "local", "readonly",
        "return", "set", "shopt", "source", "trap", "typeset", "ulimit", "unalias", "unset", "umask",
    ]
)  # fmt: skip
_HARMLESS_SETTINGS = (["-x"], ["+x"], ["-v"], ["+e"], ["-o", "pipefail"], ["+o", "errexit"])


def why_it_cannot_fail(command: str) -> str | None:
    """Why a check would pass whatever the work is, as a sentence that says what to do; None if it may fail.

    What is not understood is not refused: a check that is refused here really ends with 0, always.
    """
    try:
        listing = parse(command)
        if not listing.items:
            return f"The check runs no command, so it cannot fail; {_GIVE}."
        ends = _listing(listing, True, 0)
    except (NotRead, RecursionError):
        return None
    if any(not end.ok for end in ends):
        return None
    return _sentence(command, listing)


def _sentence(command: str, listing: Listing) -> str:
    last, background = listing.items[-1]
    shown = f"`{clip(' '.join(printable(command).split()), 120)}`"
    if background:
        return f"The check {shown} cannot fail, because `&` does not wait for its result; take the `&` away."
    if any(operator == "||" for operator, _ in last.parts):
        return f"The check {shown} cannot fail, because what follows `||` always succeeds; take the `|| …` away."
    if len(listing.items) > 1:
        return (
            f"The check {shown} cannot fail, because its last command always succeeds and hides the result of those "
            "before; join them with `&&`, or begin with `set -e`."
        )
    return f"The check {shown} cannot fail, because it always succeeds; {_GIVE}."


def _listing(listing: Listing, before: bool, depth: int) -> _Ends:
    """How it can end. ``before`` is whether the command before it was a success, which a bare ``exit`` repeats."""
    ends: _Ends = frozenset([_End(before)])
    for item, background in listing.items:
        following: set[_End] = {end for end in ends if end.leaves}
        for end in ends - following:
            following |= _OK if background else _and_or(item, end.ok, depth)
        ends = frozenset(following)
    return ends


def _and_or(item: AndOr, before: bool, depth: int) -> _Ends:
    ends = _pipeline(item.parts[0][1], before, depth)
    for operator, pipeline in item.parts[1:]:
        following: set[_End] = set()
        for end in ends:
            runs = not end.leaves and end.ok == (operator == "&&")
            following |= _pipeline(pipeline, end.ok, depth) if runs else {end}
        ends = frozenset(following)
    return ends


def _pipeline(pipeline: Pipeline, before: bool, depth: int) -> _Ends:
    if len(pipeline.stages) == 1:
        ends = _node(pipeline.stages[0], before, depth)
    elif any(isinstance(stage, Simple) and _name(stage) in ("echo", "printf") for stage in pipeline.stages[:-1]):
        # It fails when nobody reads what it writes.
        ends = _EITHER
    else:
        stages = [_node(stage, before, depth) for stage in pipeline.stages]
        fails = any(not end.ok for ends in stages for end in ends)
        ends = (_EITHER if fails else _OK) if all(any(e.ok for e in ends) for ends in stages) else _BAD
    if pipeline.negated:
        ends = frozenset(end if end.leaves else _End(not end.ok) for end in ends)
    return ends


def _node(node: Node, before: bool, depth: int) -> _Ends:
    if depth > 20:
        raise NotRead("nested too deeply")
    if isinstance(node, Simple):
        return _simple(node, before, depth)
    if isinstance(node, Group):
        ends = _listing(node.body, before, depth + 1)
        _no_surprise(tuple(target for _, target in node.redirects))
        if node.redirects and not _harmless(node.redirects):
            ends |= _BAD
        return frozenset(_End(end.ok) for end in ends) if node.subshell else ends
    if isinstance(node, If):
        return _if(node, before, depth)
    assert isinstance(node, Loop)
    _no_surprise(node.words)
    if node.condition is not None:
        # It may wait for ever, and then the check fails by its time limit.
        return _EITHER
    return _OK | _listing(node.body, before, depth + 1) | _listing(node.body, False, depth + 1)


def _if(node: If, before: bool, depth: int) -> _Ends:
    ends: set[_End] = set()
    undecided = {before}
    for condition, body in node.arms:
        falls: set[bool] = set()
        for state in undecided:
            for end in _listing(condition, state, depth + 1):
                if end.leaves:
                    ends.add(end)
                elif end.ok:
                    ends |= _listing(body, True, depth + 1)
                else:
                    falls.add(False)
        undecided = falls
    if undecided:
        ends |= _listing(node.otherwise, False, depth + 1) if node.otherwise else _OK
    return frozenset(ends)


def _name(simple: Simple) -> str:
    words = _program(simple.words)
    return words[0].text if words else ""


def _program(words: tuple[Word, ...]) -> tuple[Word, ...]:
    """Without ``command``, ``builtin`` and ``time``, which exist wherever bash does."""
    while words and words[0].literal and words[0].text in ("command", "builtin", "time"):
        if len(words) == 1 or words[1].text.startswith("-"):
            return words
        words = words[1:]
    return words


def _simple(simple: Simple, before: bool, depth: int) -> _Ends:
    _no_surprise((*simple.assignments, *simple.words, *(target for _, target in simple.redirects)))
    if simple.redirects and not _harmless(simple.redirects):
        return _unknown(simple)
    if not simple.words:
        # Its status is that of its last substitution.
        odd = (
            not w.literal or "[" in w.text.partition("=")[0] or w.text.startswith(_READ_ONLY)
            for w in simple.assignments
        )
        return _EITHER if any(odd) else _OK
    words = _program(simple.words)
    name, arguments = words[0].text, [word.text for word in words[1:]]
    literal = all(word.literal for word in words)
    if not words[0].literal:
        raise NotRead("a program that is not named")
    if name == "set" and literal and arguments in _HARMLESS_SETTINGS:
        return _OK
    if name in _CHANGES_THE_RULES:
        raise NotRead(name)
    script = shell_script(simple)
    if script is not None and len(unwrapped(simple.words)) == 3 and unwrapped(simple.words) == words:
        if words[0].text in ("bash", "sh") and words[1].text == "-c":
            return frozenset(_End(end.ok) for end in _listing(parse(script), True, depth + 1))
        return _EITHER
    if name in ("true", ":", "echo") or (name == "/bin/true" and not arguments):
        return _OK
    if name == "wait":
        return _EITHER if arguments else _OK
    if name == "false":
        return _BAD
    if name == "exit":
        return _exit(arguments, before) if literal else _EITHER
    if name == "printf":
        return _OK if arguments and words[1].literal and _prints_anything(arguments[0]) else _EITHER
    if name == "cd":
        return _OK if arguments in ([], ["."], ["/"]) and literal else _EITHER
    if name == "sleep":
        return _OK if len(arguments) == 1 and re.fullmatch(r"\d+(\.\d+)?[smhd]?", arguments[0]) else _EITHER
    return _unknown(simple)


def _unknown(simple: Simple) -> _Ends:
    words = _program(simple.words)
    if words and (not words[0].literal or words[0].text in _CHANGES_THE_RULES or words[0].text == "exit"):
        raise NotRead(words[0].text)
    return _EITHER


def _exit(arguments: list[str], before: bool) -> _Ends:
    if not arguments:
        return frozenset([_End(before, True)])
    if len(arguments) == 1 and arguments[0].isdecimal() and len(arguments[0]) < 8:
        return frozenset([_End(int(arguments[0]) % 256 == 0, True)])
    return frozenset([_End(True, True), _End(False, True)])


def _prints_anything(form: str) -> bool:
    """Whether ``printf`` takes every argument with this format: no options, no numbers."""
    return not form.startswith("-") and not re.search(r"%(?![%s])", form) and "\\x" not in form and "\\u" not in form


def _no_surprise(words: tuple[Word, ...]) -> None:
    """``${x:?}``, arithmetic and mistakes in expansions end the whole shell; ``$x``, ``${x}`` and ``$(…)`` do not."""
    for word in words:
        if not word.literal and re.search(r"\$\{(?!\w+(?:\}|:?[-+]))|\$\(\(|\$\[", word.text):
            raise NotRead("an expansion that may fail")


def _harmless(redirects: tuple[tuple[str, Word], ...]) -> bool:
    for operator, target in redirects:
        to_nowhere = operator in (">", ">>", "&>", "&>>", "<") and target.text == "/dev/null"
        to_another = operator == ">&" and target.text in ("1", "2")
        if not (to_nowhere or to_another):
            return False
    return True

"""The verdict of a verifier agent: what it must say, and what the platform must have seen it do."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from operator_core import clock
from operator_core.errors import VerificationError
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence
from operator_core.text import clip, printable
from operator_core.verify.refusal import why_it_cannot_fail
from operator_core.verify.shell import NotRead, Simple, parse, simples, unwrapped

__all__ = ["Executed", "ReviewRefused", "ReviewVerdict", "judge_review", "read_review", "tests_something"]

_Said = Annotated[str, Field(max_length=100_000)]


class ReviewRefused(VerificationError, ValueError):
    """The verdict is not one; give it again with all of its fields."""


class ReviewVerdict(BaseModel):
    """What a verifier agent answers with: the fields of ``VERDICT.json``, and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    approved: bool
    feedback: _Said
    """What has to change; may be empty if approved."""
    testing_done: _Said
    results: _Said
    criteria_met: list[_Said]
    criteria_failed: list[_Said]
    """Empty if approved."""
    expert_comparison: _Said

    @model_validator(mode="after")
    def _means_something(self) -> ReviewVerdict:
        for name in ("testing_done", "results", "expert_comparison"):
            if not getattr(self, name).strip():
                raise ValueError(f"`{name}` is empty; say what you did and saw")
        for name in ("criteria_met", "criteria_failed"):
            if not all(text.strip() for text in getattr(self, name)):
                raise ValueError(f"`{name}` holds an empty text; name each criterion")
        if self.approved and self.criteria_failed:
            raise ValueError(
                "it is approved although `criteria_failed` is not empty; work with a failed criterion is rejected"
            )
        if not self.approved and not self.feedback.strip():
            raise ValueError("it is rejected and `feedback` is empty; say what has to change")
        return self


def read_review(data: object) -> ReviewVerdict:
    """The verdict in the arguments of the tool ``submit_verdict``.

    Raises:
        ReviewRefused: It is not a verdict; the sentence tells the agent what to change. It is a ``ValueError``.
    """
    try:
        return ReviewVerdict.model_validate(data)
    except ValidationError as error:
        problems = dict.fromkeys(_problem(list(map(str, e["loc"])), e["type"], e["msg"]) for e in error.errors())
        raise ReviewRefused(f"The verdict is not taken: {'; '.join(list(problems)[:5])}.") from None


def _problem(where: list[str], kind: str, message: str) -> str:
    if not where:
        return (
            "give an object with the seven fields" if kind != "value_error" else message.removeprefix("Value error, ")
        )
    name = f"`{clip(printable(where[0]), 60)}`"
    if kind == "missing":
        return f"{name} is missing"
    if kind == "extra_forbidden":
        return f"{name} is no field of a verdict, leave it out"
    if kind == "string_too_long":
        return f"{name} is too long, shorten it"
    wanted = {"approved": "true or false"}.get(where[0], "a list of texts" if "criteria" in where[0] else "a text")
    return f"{name} must be {wanted}"


class Executed(NamedTuple):
    """A command that the verifier ran, as the platform saw it.

    Attributes:
        command: Bash.
        exit_code: As the shell says it; None if it did not end by itself.
        timed_out: Whether it was stopped because its time was over.
        summary: What it showed, short.
    """

    command: str
    exit_code: int | None
    timed_out: bool
    summary: str


def judge_review(review: ReviewVerdict | None, executed: Sequence[Executed]) -> ClauseResult:
    """The clause "review": an approval counts only with a test that the platform saw succeed.

    Args:
        review: What the verifier said; None if it said nothing.
        executed: Its commands, in order.
    """
    tests = [command for command in executed if tests_something(command.command)]
    evidence = tuple(_evidence(command) for command in tests)

    def result(state: ClauseState, why: str) -> ClauseResult:
        return ClauseResult(Clause.REVIEW, state, True, why, evidence)

    if review is None:
        return result(ClauseState.COULD_NOT_LOOK, "the verifier ended without a verdict")
    if not review.approved:
        failed = f" (failed: {'; '.join(review.criteria_failed)})" if review.criteria_failed else ""
        return result(
            ClauseState.FAILED, clip(f"the verifier rejected the work: {review.feedback.strip()}{failed}", 4000)
        )
    if not tests:
        return result(ClauseState.NOT_PROVED, "the verifier approved without executing anything that tests the work")
    good = [command for command in tests if command.exit_code == 0 and not command.timed_out]
    if not good:
        return result(
            ClauseState.NOT_PROVED,
            f"the verifier approved although none of its {len(tests)} testing commands ended with success",
        )
    telling = [command for command in good if why_it_cannot_fail(command.command) is None]
    if not telling:
        return result(
            ClauseState.NOT_PROVED,
            "the verifier approved after commands whose exit status says nothing, because their last part always "
            "succeeds (like `; echo done` or `|| true`)",
        )
    what = f"`{clip(' '.join(printable(telling[-1].command).split()), 120)}`"
    count = f", one of {len(good)} tests that succeeded" if len(good) > 1 else ""
    return result(ClauseState.PROVED, f"the verifier approved the work after executing {what}{count}")


def _evidence(command: Executed) -> Evidence:
    ended = "timed out" if command.timed_out else f"exit {command.exit_code}"
    summary = printable(command.summary.strip())
    return Evidence(
        f"verifier ran: {clip(' '.join(printable(command.command).split()), 400)}",
        "exit 0",
        _observed(ended, clip(summary, 600)),
        None if command.timed_out or command.exit_code is None else command.exit_code == 0,
        clock.iso(),
        command.command,
    )


def _observed(ended: str, summary: str) -> str:
    """How it ended and what it said, each once: a summary of ours begins with how it ended."""
    said = (
        re.sub(rf"{re.escape(ended)}(?=[:,]|\Z)[:,]?\s*", "", summary, count=1)
        if summary.startswith(ended)
        else summary
    )
    return f"{ended}: {said}" if said else ended


# They look, print, move files or fetch things; none of them runs the work.
_PASSIVE_NAMES = """
: . [ [[ alias apt apt-get awk b2sum base64 basename bat break brew builtin cat cd chgrp chmod chown cksum clear cmp
column comm command continue cp cut date dd declare df diff dirname dpkg du echo egrep env exit export expr exa
fd fgrep file find fmt fold free gawk git grep groups gunzip gzip head hexdump history hostname iconv id install jq
join kill less ln local locate ls lsof md5sum mkdir mktemp more mv nl nproc numfmt od open paste pgrep pkill popd
printenv printf ps pushd pwd read readlink readonly realpath return rev rg rm rmdir sed seq set sha1sum sha256sum
sha512sum shasum shift shopt sleep sort split ss stat strings sum tac tail tar tee test time timeout top touch tr
tree true false truncate tty type ulimit umask unalias uname uniq unset unzip uptime wait watch wc which
whereis who whoami xxd yq yes zcat zip
"""
_PASSIVE = frozenset(_PASSIVE_NAMES.split())
_INSTALLERS = frozenset(["pip", "pip3", "npm", "yarn", "pnpm", "gem", "conda", "uv", "poetry", "cargo", "go", "bundle"])
_INSTALLING = frozenset(
    ["install", "i", "ci", "add", "sync", "lock", "list", "show", "freeze", "download", "uninstall", "fetch", "update"]
)
_INTERPRETERS = re.compile(r"(?:python|pypy|node|ruby|perl|php|java|bash|sh|go|rustc|cargo|gcc|make|npm)[\d.]*\Z")


def tests_something(command: str) -> bool:
    """Whether a shell command does more than look, print, wait, move files or install: whether it runs something."""
    try:
        return any(_runs(simple) for simple in simples(parse(command)))
    except (NotRead, RecursionError):
        # Of what is not read, the word after each separator is most likely a program.
        for part in re.split(r"&&|\|\||[;|&\n(){}`]|\bthen\b|\bdo\b|\belse\b", command):
            words = [word for word in part.split() if not re.match(r"[A-Za-z_]\w*=|[!<>]", word)]
            if words and re.fullmatch(r"[\w./+-]+", words[0]) and not _is_passive([w.strip("'\"") for w in words]):
                return True
        return False


def _runs(simple: Simple) -> bool:
    words = [word.text for word in unwrapped(simple.words)]
    if not words or (words[0].startswith("$") and len(words) == 1):
        return False
    return not _is_passive(words)


_KEYWORDS = frozenset(["case", "esac", "fi", "done", "if", "for", "while", "until", "in", "function", "select", "elif"])


def _is_passive(words: list[str]) -> bool:
    name, arguments = words[0].rpartition("/")[2], words[1:]
    if name == "find":
        return not any(word in ("-exec", "-execdir", "-ok", "-okdir") and _after(words, word) for word in arguments)
    if name in ("awk", "gawk"):
        return not any("system(" in word for word in arguments)
    if name in ("source", ".", "eval", "exec"):
        return name != "eval" or not any(tests_something(word) for word in arguments)
    if name in ("bash", "sh", "dash", "zsh") and any(re.fullmatch(r"-[a-z]*c", word) for word in arguments):
        # Its script has been looked at by itself, if it can be read.
        script = arguments[-1] if len(arguments) > 1 else ""
        return not tests_something(script)
    if name in _INSTALLERS and arguments and arguments[0] in _INSTALLING:
        return True
    if re.fullmatch(r"python[\d.]*", name) and arguments[:2] in (["-m", "pip"], ["-m", "venv"], ["-m", "ensurepip"]):
        return True
    by_name = "/" not in words[0] or _INTERPRETERS.match(name)
    if by_name and arguments in (["--version"], ["-V"], ["-v"], ["version"], ["--help"], ["-h"]):
        return True
    return name in _PASSIVE or name in _KEYWORDS


def _after(words: list[str], option: str) -> bool:
    rest = words[words.index(option) + 1 :]
    return bool(rest) and not _is_passive(rest)

"""Subjects and invariants: what is watched, what must hold, and what counts as a proved repair.

They are read from ``operator.toml`` and travel, frozen and hashed, with every ticket they open.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from operator_core.model.entry import canonical
from operator_core.model.pattern import Pattern
from operator_core.model.verdict import Clause

__all__ = [
    "CheckSpec",
    "CommandProbe",
    "Durability",
    "HttpProbe",
    "Invariant",
    "Probe",
    "PromQLProbe",
    "Protect",
    "Subject",
    "TcpProbe",
]

_EXPECT = re.compile(r"^\s*(==|!=|<=|>=|<|>|=~)\s*(.+?)\s*$")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HttpProbe(_Frozen):
    """One HTTP request."""

    type: Literal["http"]
    url: str
    """Address to ask."""
    method: str = "GET"
    headers: dict[str, str] = {}
    body: str | None = None
    timeout_s: float = Field(default=5.0, gt=0)
    status: tuple[int, ...] = (200,)
    """Statuses that count as an answer; empty: any."""
    value: str | None = None
    """Path of the value in a JSON answer, e.g. ``nodes[0].state``; without it the value is the status."""


class TcpProbe(_Frozen):
    """One TCP connection."""

    type: Literal["tcp"]
    host: str = "127.0.0.1"
    port: int = Field(ge=1, le=65535)
    timeout_s: float = Field(default=5.0, gt=0)


class CommandProbe(_Frozen):
    """One command on the machine of the monitor, run by ``bash``; its value is the exit code or what it prints.

    It runs outside of the sandbox, as the monitor, in ``/``; ``$WORKSPACE`` is the subject's folder. It must only look:
    a script or a module that an agent can write would run with the monitor's rights.
    """

    type: Literal["command"]
    command: str
    timeout_s: float = Field(default=30.0, gt=0)
    value: Literal["exit_code", "stdout"] = "exit_code"
    """``stdout``: what it prints, stripped, when it exits with 0; another exit code is then a failed look."""


class PromQLProbe(_Frozen):
    """One instant query to a Prometheus-compatible server; a missing or ambiguous series is a failed look."""

    type: Literal["promql"]
    url: str
    """Address of the server, without ``/api/v1/query``."""
    query: str
    timeout_s: float = Field(default=5.0, gt=0)


Probe = Annotated[HttpProbe | TcpProbe | CommandProbe | PromQLProbe, Field(discriminator="type")]


class Durability(_Frozen):
    """How "still true afterwards" is tested: run the commands, then observe again through a full settle window."""

    commands: tuple[str, ...] = ()
    """E.g. a restart, and the trigger of the fault once more; each must exit with 0."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Limit of one command."""


class Protect(_Frozen):
    """What a repair must not touch; compared with what it was before the agent's first command."""

    files: tuple[str, ...] = ()
    """Files or folders, relative to the workspace or absolute; compared by content."""
    commands: tuple[str, ...] = ()
    """Commands whose output must stay the same, e.g. one that prints a safety limit or a checksum of customer data."""

    def __bool__(self) -> bool:
        return bool(self.files or self.commands)


class Invariant(_Frozen):
    """Something that must hold of a subject, and what a proof of its repair needs."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    description: str = ""
    """What must hold, in words, for people and for the agent."""
    probe: Probe | None = None
    """How to look. None: the subject's own checker reports it."""
    expect: str | None = None
    """Comparison that holds when healthy: ``== 10``, ``< 0.5``, ``=~ ^ok``. None: the probe only has to succeed."""
    on_error: Literal["red", "unknown"] | None = None
    """What a failed look means. None: ``red`` for a probe that only tests reachability, else ``unknown``."""
    severity: Literal["critical", "warning", "info"] = "warning"
    grace_s: float = Field(default=0.0, ge=0)
    """How long it must be violated before a ticket opens; survives a restart of the monitor."""
    settle_s: float = Field(default=5.0, ge=0)
    """How long the platform must see it green, without a gap, before it counts as restored."""
    settle_observations: int = Field(default=3, ge=1)
    """How many observations the settle window has at least."""
    # Not in the identity of checks that leave it open: it came later than the tickets of some stores.
    patience_s: float | None = Field(default=None, ge=0, exclude_if=lambda seconds: seconds is None)
    """How long a repaired service may take to become green. None: three settle windows, and at least 10 s."""
    verify: tuple[str, ...] = ()
    """Functional commands that must exit with 0 after the repair; exit code 3 means "could not look"."""
    verify_timeout_s: float = Field(default=60.0, gt=0)
    durability: Durability = Durability()
    protect: Protect = Protect()
    require: tuple[Clause, ...] | None = None
    """Clauses without which nothing is resolved. None: ``restored`` and every other one that is configured."""
    watch_s: float = Field(default=600.0, ge=0)
    """How long after its resolution the same violation reopens the ticket."""

    @model_validator(mode="after")
    def _expectation_is_readable(self) -> Self:
        if self.expect is not None and not _EXPECT.match(self.expect):
            raise ValueError(f"expect = {self.expect!r} is not a comparison such as '== 10', '< 0.5' or '=~ ^ok'")
        if self.expect is not None and (match := _EXPECT.match(self.expect)) and match[1] == "=~":
            try:
                Pattern(match[2])
            except ValueError as error:
                raise ValueError(f"expect = {self.expect!r} has no valid pattern: {error}") from None
        return self

    @model_validator(mode="after")
    def _required_clauses_are_configured(self) -> Self:
        for clause, there in ((Clause.DURABLE, self.durability.commands), (Clause.NO_COLLATERAL, self.protect)):
            if self.require and clause in self.require and not there:
                raise ValueError(f"invariant {self.name!r} requires the clause {clause}, which it does not configure")
        return self

    @property
    def required(self) -> frozenset[Clause]:
        """The clauses that decide."""
        if self.require is not None:
            return frozenset(self.require)
        configured = {Clause.RESTORED}
        if self.durability.commands:
            configured.add(Clause.DURABLE)
        if self.protect:
            configured.add(Clause.NO_COLLATERAL)
        return frozenset(configured)

    def holds(self, value: object) -> bool:
        """Whether an observed value meets ``expect``; numbers are compared as numbers, everything else as text.

        Raises:
            ValueError: The value cannot be compared in that way (a word with ``<``): nothing is known then.
        """
        if self.expect is None:
            return True
        match = _EXPECT.match(self.expect)
        assert match is not None
        op, wanted = match.groups()
        text = ("true" if value else "false") if isinstance(value, bool) else str(value)
        if op == "=~":
            return Pattern(wanted).found_in(text)
        try:
            left, right = float(text), float(wanted)
        except ValueError:
            if op not in ("==", "!="):
                raise ValueError(f"{text!r} is not a number, so it cannot be compared with {self.expect!r}") from None
            return (text == wanted) == (op == "==")
        if left != left or right != right:
            raise ValueError("the value is NaN: nothing is known")
        return {
            "==": left == right,
            "!=": left != right,
            "<": left < right,
            "<=": left <= right,
            ">": left > right,
            ">=": left >= right,
        }[op]


class Subject(_Frozen):
    """A system under watch, and what an agent may see and change of it."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")
    workspace: Path | None = None
    """Folder that the agent may change. None: an empty one of its own for each session."""
    context: str = ""
    """For the agent: what the system is, key commands, common issues."""
    readable: tuple[Path, ...] = ()
    """Further folders that the agent may read."""
    network: Literal["none", "allowlist", "host"] = "none"
    """Network of the agent's sandbox; ``allowlist``: a proxy that reaches ``allow_hosts`` and nothing else."""
    allow_hosts: tuple[str, ...] = ()
    """For ``allowlist``: ``host``, ``host:port``, ``*.example.org:443``."""
    env: dict[str, str] = {}
    """Variables of the agent's commands."""
    plugin: str | None = None
    """``module:factory`` of a Python subject (``SubjectProtocol``)."""
    checker: str | None = None
    """``module:factory`` of its invariants (``InvariantCheckerProtocol``)."""
    invariant: tuple[Invariant, ...] = ()
    """What must hold."""


class CheckSpec(_Frozen):
    """One invariant of one subject as it was when the ticket opened."""

    subject: Subject
    invariant: Invariant

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over its canonical JSON: the identity of the check."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode()).hexdigest()

    @classmethod
    def of(cls, subject: Subject, invariant: Invariant) -> CheckSpec:
        """The check of one invariant, without the subject's other invariants."""
        return cls(subject=subject.model_copy(update={"invariant": ()}), invariant=invariant)

"""What an attack is, and the witnesses: they look from outside and do not ask the attack how it went."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from tests.escape.field import Field

__all__ = [
    "AREAS",
    "KIT",
    "Attack",
    "Benign",
    "Outcome",
    "beats",
    "changed",
    "claimed",
    "heard",
    "hindered",
    "lives",
    "many",
    "planted",
    "spoiled",
    "told",
    "victim",
]

Outcome = Literal["escaped", "held", "not run"]
AREAS = ("write", "read", "processes", "kernel", "network", "resources", "blocklist")
KIT = 'python3 -I "$KIT"'

Witness = Callable[["Field"], bool]
Prepare = Callable[["Field"], None]


class Attack(NamedTuple):
    """One attempt to reach what is not the agent's.

    Attributes:
        name: Says what is tried; unique.
        commands: Bash, one call of the sandbox after the other. ``$H`` is a folder of the host for this attack alone
            (``file``, ``secret``, ``dir/file``); the other variables are in :meth:`Field.variables`.
        witness: Whether the attack succeeded, seen from outside.
        prepare: What a person, or an earlier session, had left in the workspace.
        with_victim: A process of the host is its target.
        timeout: Seconds for each command; where ``cancel`` is set, the call is cancelled then instead.
        cancel: See ``timeout``.
        unsafe: Why it does not run without a sandbox; empty if it may.
        machine: Whether it depends on kernel and machine that it works without a sandbox.
        idle: Why it does not work even without a sandbox on the machine of the table, and is here nevertheless.
        job: Bash that runs in the background meanwhile.
    """

    name: str
    commands: str | tuple[str, ...]
    witness: Witness
    prepare: Prepare | None = None
    with_victim: bool = False
    timeout: float = 10.0
    cancel: bool = False
    unsafe: str = ""
    machine: bool = False
    idle: str = ""
    job: str = ""


class Benign(NamedTuple):
    """Honest work that a sandbox must not break.

    Attributes:
        name: What is done; unique.
        commands: As of an attack; each must end with exit code 0.
        says: Must be in the output.
        not_in: A backend where it cannot work, and why.
    """

    name: str
    commands: str | tuple[str, ...]
    says: str = ""
    not_in: tuple[str, str] | None = None


def changed(field: Field) -> bool:
    """The attack's folder of the host is not what it was: content, names, modes, times, attributes."""
    return field.tree() != field.before


def told(field: Field) -> bool:
    """A secret of the host is in the output."""
    return field.token in field.output or (field.key in field.output and bool(field.key))


def claimed(field: Field) -> bool:
    """The attack says so. For what leaves no trace outside; the word is not guessable and only printed on success."""
    return field.say in field.output


def heard(field: Field) -> bool:
    """A service of the host was reached, or its secret is in the output."""
    return field.host.reached(field.id) or told(field)


def lives(field: Field) -> bool:
    """A process of the call is alive after its end."""
    return field.survivors() > 0


def beats(field: Field) -> bool:
    """A file of the workspace still grows after the end of the call: a process writes it."""
    return field.grows()


def many(field: Field) -> bool:
    """More processes than the limit were alive at the same time."""
    return field.most > field.limits.procs


def victim(field: Field) -> bool:
    """A process of the host was killed, stopped or changed."""
    return field.victim_state() != field.victim_before


def hindered(field: Field) -> bool:
    """The last command of the attack, which says its ``$ID``, did not run: the platform itself is hurt."""
    return not field.results or field.id not in field.results[-1].stdout.text()


def planted(field: Field) -> bool:
    """The workspace holds a file with rights beyond the agent's: set-id bits, capabilities, a device."""
    return field.privileged_files() > 0


def spoiled(field: Field) -> bool:
    """A protected path of the workspace is not what it was."""
    return field.guarded() != field.guarded_before

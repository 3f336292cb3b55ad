"""What people and programs do: each act says who did it, and the same key has one effect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operator_core.api.submission import submission
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.idempotency import principal_of
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError
from operator_core.model.invariant import CheckSpec
from operator_core.model.person import Actor
from operator_core.model.ticket import Ticket
from operator_core.work.submit import submit_task

__all__ = ["SUBMIT_OPTIONS", "check_of", "open_incident", "submit"]

SUBMIT_OPTIONS = frozenset(
    {
        "allow_change",
        "allow_hosts",
        "budget_usd",
        "check_files",
        "checks",
        "engine",
        "files",
        "max_iterations",
        "model",
        "name",
        "network",
        "pinned_to",
        "priority",
        "profile",
        "ref",
        "repo",
        "warn",
    }
)
"""What a caller may say of a task; who asks for it, and what it stands for elsewhere, is not for the caller to say."""

_SEVERITIES = ("critical", "warning", "info")


async def submit(
    database: Database, settings: Settings, actor: Actor, prompt: str, key: str | None, options: Mapping[str, Any]
) -> Ticket:
    """Submit a task.

    Raises:
        ConfigError: Why it is not accepted.
    """
    strange = sorted(set(options) - SUBMIT_OPTIONS)
    if strange:
        raise ConfigError(f"A task has no option {strange[0][:40]!r}; it has {', '.join(sorted(SUBMIT_OPTIONS))}.")
    with submission(actor, options) as usable:
        return await submit_task(database, settings, prompt, actor=str(actor), link=_link(actor, key), **usable)


async def open_incident(
    database: Database,
    settings: Settings,
    actor: Actor,
    name: str,
    message: str,
    *,
    severity: str,
    context: str | None,
    invariant: str | None,
    subject: str | None,
    labels: Mapping[str, str] | None,
    priority: int,
    key: str | None,
) -> Ticket:
    """Open an incident by hand.

    Raises:
        ConfigError: Something of it is not usable.
        TransitionRefused: One for that invariant is open already.
    """
    for value, what in ((name, "name"), (message, "message")):
        if not value.strip():
            raise ConfigError(f"The {what} of an incident must say something.")
    if severity not in _SEVERITIES:
        raise ConfigError(f"{severity[:40]!r} is no severity; choose {', '.join(_SEVERITIES)}.")
    if not -(2**31) <= priority < 2**31:
        raise ConfigError("The priority must be a number between -2147483648 and 2147483647.")
    check = check_of(settings, subject, invariant)
    return await TicketDB(database).open_ticket(
        database.redactor.column(name),
        message,
        severity=severity,
        subject_context=context or (check.subject.context if check else None),
        check=check,
        priority=priority,
        key=check.invariant.name if check else None,
        labels=labels,
        actor=str(actor),
        link=_link(actor, key),
    )


def check_of(settings: Settings, subject: str | None, invariant: str | None) -> CheckSpec | None:
    """The check of a configured invariant; None when none is named.

    Raises:
        ConfigError: There is none of that name.
    """
    if invariant is None:
        if subject is not None:
            raise ConfigError("A subject alone attaches no check; name the invariant that must hold, too.")
        return None
    for configured in settings.subject:
        for candidate in configured.invariant:
            if candidate.name == invariant and subject in (None, configured.name):
                return CheckSpec.of(configured, candidate)
    of = f" of the subject {subject[:80]!r}" if subject else ""
    raise ConfigError(f"There is no invariant {invariant[:80]!r}{of}; `operator config show` lists what is configured.")


def _link(actor: Actor, key: str | None) -> tuple[str, str] | None:
    return None if key is None else (principal_of(actor), key)

"""What the messages of every kind of door are turned into, before anything is written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from operator_core.config import Settings
from operator_core.errors import IntakeRefused
from operator_core.model.intake import Severity, TaskOptions
from operator_core.model.invariant import CheckSpec
from operator_core.model.ticket import InvariantViolation
from operator_core.text import clip, printable

__all__ = [
    "MAX_ITEMS",
    "Asked",
    "Delivery",
    "Done",
    "Firing",
    "Ignored",
    "Item",
    "Observed",
    "Receipt",
    "find_check",
    "harmless_labels",
    "missing_labels",
    "of_severity",
    "one_line",
    "short_key",
    "too_many",
]

MAX_ITEMS = 500
"""Messages in one delivery; all of them are written in one transaction, for which others wait."""
_MAX_LABELS = 64
_SEVERITIES: dict[Severity, tuple[str, ...]] = {
    "critical": ("critical", "page", "emergency", "fatal", "disaster", "error", "high", "major"),
    "warning": ("warning", "warn", "average", "medium", "minor", "ticket"),
    "info": ("info", "information", "informational", "notice", "low", "none"),
}


class Done(BaseModel):
    """What became of one message."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    what: Literal["opened", "reopened", "counted", "seen", "stands", "observed", "ignored"]
    """``opened``, ``reopened``: there is work. ``counted``: one more occurrence of an open ticket. ``seen``: known
    already. ``stands``: what was decided about it stands. ``observed``: noted in the ticket's history. ``ignored``."""
    ticket_id: int | None = None
    note: str | None = None
    """What the sender may want to know about it."""


class Receipt(BaseModel):
    """What became of one delivery."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    intake: str
    """Name of the door."""
    items: list[Done] = []
    """In the order of the messages."""
    replayed: bool = False
    """This delivery was taken before; this is what became of it then."""
    note: str | None = None


@dataclass(frozen=True)
class Firing:
    """Something is wrong.

    Attributes:
        key: What the messages about the same thing have in common.
        episode: When it began, in the sender's words; a second message with the same one is no new occurrence. None:
            each is one.
    """

    key: str
    violation: InvariantViolation
    episode: str | None = None
    snapshot: dict[str, Any] | None = None
    context: str | None = None
    check: CheckSpec | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    note: str | None = None


@dataclass(frozen=True)
class Asked:
    """Something is to be done.

    Attributes:
        key: A second message with it asks for the same; None: there is no second one.
        name: None: the first line of the prompt.
    """

    key: str | None
    prompt: str
    options: TaskOptions
    name: str | None = None
    repo: str | None = None
    ref: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Observed:
    """Somebody says something about a ticket; it is noted in its history, and decides nothing.

    Attributes:
        key: As of :class:`Firing` and :class:`Asked`.
        saw: What is said, e.g. ``resolved``.
        at: When, in the sender's words; the same thing at the same time is noted once. None: each time.
    """

    key: str
    saw: str
    at: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Ignored:
    """Nothing follows from it.

    Attributes:
        why: One clause.
    """

    why: str
    key: str | None = None


Item = Firing | Asked | Observed | Ignored


@dataclass(frozen=True)
class Delivery:
    """One request.

    Attributes:
        delivery_id: The sender's number of it, or its signature; None: it may come any number of times.
        refuse_replay: A second one with the same number is refused instead of being answered as the first one was.
        batch_key: What its tickets have in common.
    """

    items: tuple[Item, ...]
    delivery_id: str | None = None
    refuse_replay: bool = False
    batch_key: str | None = None
    note: str | None = None


def too_many(count: int, remedy: str) -> None:
    """Refuse more messages than one transaction should write.

    Raises:
        IntakeRefused: There are more than :data:`MAX_ITEMS`.
    """
    if count > MAX_ITEMS:
        raise IntakeRefused(413, f"The delivery has {count} messages, and {MAX_ITEMS} are the most; {remedy}.")


def find_check(settings: Settings, name: str) -> CheckSpec | None:
    """The configured invariant of that name, as a check; None: there is none."""
    for subject in settings.subject:
        for invariant in subject.invariant:
            if invariant.name == name:
                return CheckSpec.of(subject, invariant)
    return None


def one_line(text: str, length: int = 200) -> str:
    """Harmless, on one line, short."""
    return clip(" ".join(printable(text).split()), length)


def short_key(text: str) -> str:
    """The text, or a hash of one that is long or not printable."""
    if 0 < len(text) <= 200 and text.isprintable() and text.strip() == text:
        return text
    return "sha256-" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def harmless_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The first 64 labels by name, with names of 128 and values of 500 characters; what is empty is left out."""
    return dict(_labels(labels)[:_MAX_LABELS])


def missing_labels(labels: Mapping[str, str]) -> str | None:
    """The sentence that says that :func:`harmless_labels` has not kept all; None: it has."""
    more = len(_labels(labels)) - _MAX_LABELS
    return f"{more} label(s) were left out; the first {_MAX_LABELS} by name are kept." if more > 0 else None


def _labels(labels: Mapping[str, str]) -> list[tuple[str, str]]:
    kept = {one_line(name, 128): clip(labels[name], 500) for name in labels if name.strip() and labels[name].strip()}
    return sorted(kept.items())


def of_severity(word: str, known: Mapping[str, Severity]) -> Severity | None:
    """What a sender's word for it means; None: nothing."""
    word = word.strip().casefold()
    theirs = {name.casefold(): meant for name, meant in known.items()}
    return theirs.get(word) or next((meant for meant, words in _SEVERITIES.items() if word in words), None)

"""What callers give, checked once: numbers, ids and words that the store can be asked about."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from operator_core.db.board import LAST, TicketFilter
from operator_core.errors import ConfigError, NotFound
from operator_core.model.ticket import TicketKind, TicketStatus

__all__ = ["known_session", "known_ticket", "limited", "storable", "ticket_filter"]

_SESSION = re.compile(r"[0-9A-Za-z_.:-]{1,100}")
_QUOTED = re.compile(r'[^\s"=]+="[^"]*"')
_WORD = re.compile(rf"{_QUOTED.pattern}(?!\S)|\S+")
_WORDS = 8
_LONGEST = 200


def known_ticket(ticket_id: int) -> int:
    """A number that a ticket can have.

    Raises:
        NotFound: None can.
    """
    if not 0 < ticket_id <= LAST:
        raise NotFound(f"There is no ticket #{ticket_id}; list them with `operator tickets list`.")
    return ticket_id


def known_session(session_id: str) -> str:
    """An id that a session can have.

    Raises:
        NotFound: None can.
    """
    if not _SESSION.fullmatch(session_id):
        raise NotFound("There is no such session; list them with `operator sessions list`.")
    return session_id


def limited(what: str, value: int, most: int, *, least: int = 1) -> int:
    """A number in its bounds.

    Raises:
        ConfigError: It is not.
    """
    if not least <= value <= most:
        raise ConfigError(f"The {what} must be from {least} to {most}, not {value}.")
    return value


def storable(what: str, text: str, most: int = _LONGEST) -> str:
    """Text that a database can compare with what it holds.

    Raises:
        ConfigError: It is too long, or has a NUL or half of a surrogate pair in it.
    """
    if len(text) > most:
        raise ConfigError(f"The {what} has {len(text)} characters; {most} is the most.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"The {what} is no Unicode text; write it with whole characters.") from None
    if "\0" in text:
        raise ConfigError(f"The {what} has a NUL character in it; leave that out.")
    return text


def ticket_filter(
    *,
    status: Collection[str] = (),
    kind: str | None = None,
    severity: str | None = None,
    label: Mapping[str, str] | None = None,
    search: str = "",
) -> TicketFilter:
    """What a caller wants to see.

    Raises:
        ConfigError: One of the arguments is not usable.
    """
    found = _WORD.findall(storable("search", search))
    words = [word.replace('"', "") if _QUOTED.fullmatch(word) else word for word in found]
    return TicketFilter(
        status=tuple(dict.fromkeys(_one_of("state", state, list(TicketStatus)) for state in status)),
        kind=None if kind is None else _one_of("kind", kind, list(TicketKind)),
        severity=None if severity is None else storable("severity", severity),
        labels={storable("label", k): storable("label", v) for k, v in (label or {}).items()},
        words=tuple(words[: limited("number of words of the search", len(words), _WORDS, least=0)]),
    )


def _one_of(what: str, value: str, choices: list[str]) -> str:
    if value not in choices:
        raise ConfigError(f"{value[:40]!r} is no {what} of a ticket; choose {', '.join(choices)}.")
    return str(value)

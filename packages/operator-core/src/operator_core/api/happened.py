"""What a row of a ticket's history says beside its kind, in a few words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from operator_core import clock
from operator_core.api.models import Observed
from operator_core.model.ticket import plain_diagnosis
from operator_core.text import clip

__all__ = ["detail_words", "event_word", "happened", "said_since"]

_LONGEST = 400
_EACH = 120
_PARTS = 8
_JUDGES = {
    "second_look_asked": "asked to judge again",
    "second_look_claimed": "a worker judges again",
    "second_look_ended": "judged again",
}
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[0-9.]{0,10}(Z|\+00:00)")


def happened(kind: str, body: Mapping[str, Any]) -> str | None:
    """What was seen, which call was asked about and why, how a session ended; None: the kind says it all.

    All of it may be text of agents and senders, and is as hostile as before.

    Args:
        kind: Of the row, e.g. ``observation``.
        body: What the row says beside its kind, its time and the actor.
    """
    match kind:
        case "observation":
            detail = body.get("detail")
            more = detail_words(detail) if isinstance(detail, Mapping) else ""
            words = f"{_text(body.get('saw'))} ({more})" if more else _text(body.get("saw"))
        case "session_closed":
            words = _joined(body.get("status"), plain_diagnosis(_text(body.get("summary"))))
        case "second_look_ended":
            words = _joined(body.get("verdict") or "could not be judged", body.get("why"))
        case _ if kind.startswith("approval_"):
            words = _joined(body.get("tool"), body.get("why") or body.get("note"))
        case _:
            return None
    return clip(" ".join(words.split()), _LONGEST) or None


def event_word(kind: str) -> str:
    """The kind of a row as people read it, e.g. ``approval asked``."""
    return _JUDGES.get(kind) or kind.replace("_", " ")


def said_since(seen: Observed, clean: Callable[[str, int], str], most: int = 400) -> str:
    """What a sender said since the incident was seen last, on one line that also says what that is worth.

    Args:
        clean: Makes one harmless line of a text of others, with at most so many characters.
        most: So many characters of what was said.
    """
    words = happened("observation", {"saw": seen.said, "detail": seen.detail}) or "something"
    by = clean(seen.by or "its sender", 60)
    return f"{clean(words, most)}, says {by} at {seen.at:%Y-%m-%d %H:%M:%S} UTC; that proves nothing"


def detail_words(detail: Mapping[str, Any]) -> str:
    """The details of an observation on one line, without the key that only tells alerts apart."""
    told = [(name, value) for name, value in detail.items() if name != "key"]
    parts = [f"{clip(_text(name), 40).replace('_', ' ')}: {_moment(clip(_text(value), _EACH))}" for name, value in told]
    parts = parts[:_PARTS]
    return ", ".join(parts + ["…"] * (len(told) > _PARTS))


def _joined(first: Any, then: Any) -> str:
    one, two = _text(first), _text(then)
    # The end of a session often says its state again.
    return two if not one or two.startswith(one) else f"{one}: {two}" if two else one


def _moment(text: str) -> str:
    """A time as people read it; anything else as it is."""
    if not _TIME.fullmatch(text):
        return text
    try:
        return f"{clock.parse_iso(text):%Y-%m-%d %H:%M:%S} UTC"
    except (ValueError, OverflowError):
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)

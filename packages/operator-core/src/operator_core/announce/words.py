"""What a person reads about a piece of news: a title, and a few short lines."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NamedTuple

from operator_core import clock
from operator_core.announce.neutral import neutral
from operator_core.announce.news import News
from operator_core.api.telling import telling_labels
from operator_core.model.ticket import Reason, TicketStatus

__all__ = ["Words", "address", "crowd_words", "ticket_words"]

_LATE = timedelta(minutes=15)
_LABELS = 8
_NEEDS_SOMEBODY = (TicketStatus.WAITING_FOR_INPUT, TicketStatus.ESCALATED)

_RESOLVED = {Reason.VERIFIED.value: "resolved, and proved", Reason.BY_HAND.value: "resolved by hand"}
_OPEN = {
    Reason.RECURRED.value: "is back: the repair did not last",
    Reason.NEW_FINGERPRINT.value: "changed, and is open again",
    Reason.BY_HAND.value: "reopened",
    Reason.VIOLATION.value: "opened",
    "opened": "opened",
    "submitted": "submitted",
    Reason.ANSWERED.value: "answered, and goes on",
    Reason.LEASE_EXPIRED.value: "lost its worker, and waits for another",
    Reason.RELEASED.value: "given back by its worker",
}
_ESCALATED = {
    Reason.GAVE_UP.value: "the agent gave up",
    Reason.REFUTED.value: "the repair was refuted",
    Reason.UNPROVEN.value: "the result is not proved",
    Reason.INCONCLUSIVE.value: "the check could not look",
    Reason.ITERATIONS.value: "no attempt passed its check",
    Reason.BUDGET.value: "its budget is used up",
    Reason.ERROR.value: "an error ended it",
    Reason.LOST_WORKER.value: "its workers died again and again",
}


class Words(NamedTuple):
    """A message; both without any markup."""

    title: str
    body: str


def ticket_words(news: News, base: str | None, link: str | None = None) -> Words:
    """A message about one change.

    Args:
        base: How people reach the console; None: no link.
        link: Answers the question for approval that it is about.
    """
    severity = f"[{neutral(news.severity, 20)}] " if news.kind == "incident" else ""
    lines = [neutral(news.message)]
    if news.labels and news.state in _NEEDS_SOMEBODY:
        lines.append(_labels(news))
    if news.why and (why := neutral(news.why)) != lines[0]:
        lines.append(f"{_why_is(news)}: {why}")
    if news.reason == Reason.BY_HAND and news.actor:
        lines.append(f"By {neutral(news.actor, 80)}.")
    if clock.now() - news.at > _LATE:
        lines.append(f"This was at {news.at:%Y-%m-%d %H:%M} UTC; it may be different now.")
    if base:
        lines.append(address(base, news.ticket_id))
    if news.approval_id and link:
        lines.append(f"Allow or deny it: {link}")
    title = f"{severity}#{news.ticket_id} {neutral(news.name, 80)}: {happened(news)}"
    return Words(title, "\n".join(line for line in lines if line))


def crowd_words(body: Mapping[str, Any], base: str | None) -> Words:
    """A message about many changes at once."""
    counts = {TicketStatus(state): int(n) for state, n in body["counts"].items()}
    said = ", ".join(f"{n} {_STATES[state]}" for state, n in counts.items())
    lines = []
    for item in body["news"]:
        news = News.of(item)
        lines.append(f"- #{news.ticket_id} {neutral(news.name, 60)}: {happened(news)}")
    if body["more"]:
        lines.append(f"- and {body['more']} more")
    if base:
        lines.append(f"{base.rstrip('/')}/")
    return Words(f"{sum(counts.values())} changes: {said}", "\n".join(lines))


def address(base: str, ticket_id: int) -> str:
    """Of a ticket in the console."""
    return f"{base.rstrip('/')}/tickets/{ticket_id}"


def happened(news: News) -> str:
    """What happened, in a few words."""
    reason = news.reason or ""
    match news.state:
        case TicketStatus.WAITING_FOR_INPUT if reason == Reason.NEEDS_APPROVAL:
            return f"may it use {neutral(news.tool, 60)}?" if news.tool else "waits for an approval"
        case TicketStatus.WAITING_FOR_INPUT:
            return "waits for an answer"
        case TicketStatus.ESCALATED:
            return f"needs a person, {_ESCALATED.get(reason, reason.replace('_', ' '))}"
        case TicketStatus.RESOLVED:
            return _RESOLVED.get(reason, "resolved")
        case TicketStatus.OPEN:
            return _OPEN.get(reason, "open again")
        case TicketStatus.CANCELED:
            return "went away by itself" if reason == Reason.CLEARED else "canceled"
        case TicketStatus.RUNNING:
            return "a worker works on it"
        case TicketStatus.QUEUED:
            return "waits for its worker"


_STATES = {
    TicketStatus.OPEN: "opened",
    TicketStatus.QUEUED: "queued",
    TicketStatus.RUNNING: "running",
    TicketStatus.WAITING_FOR_INPUT: "waiting for somebody",
    TicketStatus.RESOLVED: "resolved",
    TicketStatus.ESCALATED: "escalated",
    TicketStatus.CANCELED: "canceled",
}


def _labels(news: News) -> str:
    """Host, team and the like, which say to whom it matters."""
    told = telling_labels(news.labels, news.name, news.severity)
    named = [f"{neutral(name, 40)}={neutral(value, 60)}" for name, value in told[:_LABELS]]
    more = len(told) - len(named)
    return ", ".join([*named, f"and {more} more"] if more else named)


def _why_is(news: News) -> str:
    if news.state is TicketStatus.WAITING_FOR_INPUT:
        return "Why it asks" if news.approval_id else "Question"
    return "Result"

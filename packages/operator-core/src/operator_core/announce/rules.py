"""Which channels are told what: pure."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from operator_core.announce.news import News
from operator_core.model.notification import NotifyRule
from operator_core.model.ticket import Reason

__all__ = ["channels_for", "may_matter"]

# Everyday work: nobody wants to hear of it who does not ask for it by name.
_EVERYDAY = frozenset(
    {
        Reason.RELEASED,
        Reason.LEASE_EXPIRED,
        Reason.ANSWERED,
        Reason.QUEUED,
        Reason.PROMOTED,
    }
)


def channels_for(rules: Sequence[NotifyRule], news: News) -> list[str]:
    """Names of the channels that are told of it, each once, in the order of the rules."""
    return list(dict.fromkeys(name for rule in rules if _matches(rule, news) for name in rule.channels))


def may_matter(rules: Sequence[NotifyRule], state: str | None, reason: str | None) -> bool:
    """Whether a rule could be about such a change, whatever the ticket is."""
    return any(state in rule.states and _reason_fits(rule, reason) for rule in rules)


def _matches(rule: NotifyRule, news: News) -> bool:
    return (
        news.state in rule.states
        and _reason_fits(rule, news.reason)
        and (not rule.severities or news.severity in rule.severities)
        and (not rule.kinds or news.kind in rule.kinds)
        and (not rule.names or any(fnmatchcase(news.name, name) for name in rule.names))
        and all(key in news.labels and fnmatchcase(news.labels[key], v) for key, v in rule.labels.items())
    )


def _reason_fits(rule: NotifyRule, reason: str | None) -> bool:
    return reason in rule.reasons if rule.reasons else reason not in _EVERYDAY

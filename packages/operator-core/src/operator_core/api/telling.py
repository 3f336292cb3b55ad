"""Which labels of a ticket say most to whoever has to decide."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["telling_labels"]

_FIRST = ("host", "instance", "node", "pod", "container", "namespace", "service", "job", "cluster", "region", "team")
_SAID = ("alertname", "severity")


def telling_labels(labels: Mapping[str, str], *known: str) -> list[tuple[str, str]]:
    """Names and values: first where it is, then the others by name, without what is said beside them.

    Args:
        known: What is said already: the name of the incident, its severity.
    """
    told = [(name, value) for name, value in labels.items() if not (name in _SAID and value in known)]
    return sorted(told, key=lambda pair: (_FIRST.index(pair[0]) if pair[0] in _FIRST else len(_FIRST), pair[0]))

"""The part of an observation that shows a violation, small and JSON-ready enough to be stored with the ticket."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

__all__ = ["SNAPSHOT_LIMIT", "cut_out", "plain"]

SNAPSHOT_LIMIT = 16 * 1024
"""Longest snapshot, in characters of JSON."""
_DEPTH = 12
_NAMES = ("id", "store_id", "key", "name")


def cut_out(observation: Mapping[str, Any], store_id: str | None) -> dict[str, Any]:
    """The observation, without what belongs to other entities than ``store_id``.

    A member that has ``store_id`` among its keys is cut to it, and so is a list of objects one of which carries it as
    ``id``, ``store_id``, ``key`` or ``name``; everything else stays. What is longer than :data:`SNAPSHOT_LIMIT` becomes
    ``{"excerpt": …, "characters": …}``.
    """
    part = {name: _of(value, store_id) for name, value in observation.items()} if store_id else observation
    out: dict[str, Any] = plain(part)
    text = json.dumps(out, ensure_ascii=False)
    return out if len(text) <= SNAPSHOT_LIMIT else {"excerpt": text[:SNAPSHOT_LIMIT], "characters": len(text)}


def plain(value: object, depth: int = _DEPTH) -> Any:
    """A JSON value: keys become text, what JSON cannot say becomes its ``str``, and so does what is too deep."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if depth > 0 and isinstance(value, Mapping):
        return {_text(k): plain(v, depth - 1) for k, v in value.items()}
    if depth > 0 and isinstance(value, list | tuple | set | frozenset):
        return [plain(v, depth - 1) for v in value]
    return _text(value)


def _text(value: object) -> str:
    # NUL and lone surrogates are texts that PostgreSQL refuses.
    return str(value).replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _of(value: Any, store_id: str) -> Any:
    if isinstance(value, Mapping):
        mine = {k: v for k, v in value.items() if str(k) == store_id}
        return mine or value
    if isinstance(value, list | tuple):
        mine_too = [v for v in value if isinstance(v, Mapping) and any(str(v.get(n)) == store_id for n in _NAMES)]
        return mine_too or value
    return value

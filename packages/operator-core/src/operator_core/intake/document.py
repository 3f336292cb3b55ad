"""The body of a webhook: JSON of anybody, made harmless for a store."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from operator_core.errors import IntakeRefused

__all__ = ["parse_document"]

_DEPTH = 48
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


def parse_document(body: bytes) -> Any:
    """The JSON in a body; what no database can store (NUL, half characters) becomes U+FFFD.

    Raises:
        IntakeRefused: It is no JSON, or is nested too deeply.
    """
    try:
        document = json.loads(body.decode("utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise IntakeRefused(400, "The body is not JSON in UTF-8; send it as `application/json`.") from None
    return _harmless(document, 0)


def _no_constant(word: str) -> None:
    raise ValueError(word)


def _harmless(value: Any, depth: int) -> Any:
    if depth > _DEPTH:
        raise IntakeRefused(400, f"The JSON is nested more than {_DEPTH} levels deep; send it flatter.")
    if isinstance(value, str):
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", value)
    if isinstance(value, dict):
        return {_harmless(key, depth): _harmless(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_harmless(item, depth + 1) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise IntakeRefused(400, "A number in the JSON is too large to be one; send it as text.")
    return value

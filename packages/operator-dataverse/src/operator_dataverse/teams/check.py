"""Whether a card is one that Teams shows: its form, and its size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from operator_dataverse.teams.elements import MAX_BYTES, size_of

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["problems_of"]


def problems_of(card: Mapping[str, Any]) -> list[str]:
    """What is wrong with a card of ours, one sentence each; none if it is good."""
    found = [
        f"{'.'.join(str(part) for part in problem.absolute_path) or 'the card'}: {problem.message[:200]}"
        for problem in sorted(_validator().iter_errors(card), key=lambda problem: list(map(str, problem.absolute_path)))
    ]
    size = size_of(dict(card))
    if size > MAX_BYTES:
        found.append(f"the card has {size} bytes, and {MAX_BYTES} is the limit")
    return found


@cache
def _validator() -> Validator:
    from jsonschema import Draft202012Validator

    text = resources.files("operator_dataverse.teams").joinpath("card.schema.json").read_text(encoding="utf-8")
    return Draft202012Validator(json.loads(text))

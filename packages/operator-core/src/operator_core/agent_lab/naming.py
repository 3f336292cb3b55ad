"""How whoever works is called: what a program of ours answered is never shown as the word of a model."""

from __future__ import annotations

from typing import Any

from operator_core.config import ModelSettings
from operator_core.text import clip, printable

__all__ = ["by_whom", "shown_model", "speaker"]

_CLAUDE = "Claude"


def shown_model(settings: ModelSettings, model: str) -> str:
    """The model as it is journaled: ``scripted: claude-opus-5-5`` where the scripted engine stood in for it."""
    if settings.engine != "scripted" or not model or model.startswith("scripted"):
        return model
    return f"scripted: {model}"


def speaker(settings: ModelSettings, model: str | None) -> str:
    """Whose words these are: ``Claude`` (row A-058), ``Scripted``, or the id of another model."""
    if settings.engine == "scripted":
        return "Scripted"
    if not model or "claude" in model.lower():
        return _CLAUDE
    return clip(" ".join(printable(model).replace("[", "").replace("]", "").split()), 40) or _CLAUDE


def by_whom(who: str) -> dict[str, Any] | None:
    """What a ``reasoning`` entry says of whoever speaks in it; nothing: Claude."""
    return None if who == _CLAUDE else {"by": who}

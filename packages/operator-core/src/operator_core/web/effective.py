"""The configuration that is in force, for people: each value without secrets, and where it comes from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from operator_core.config import LISTS, LoadedSettings, extension_models
from operator_core.db.engine import safe_url
from operator_core.model.described import descriptions
from operator_core.redaction import Redactor, without_named

__all__ = ["Setting", "effective"]


class Setting(NamedTuple):
    """One setting; a table of a list (a subject, a credential) is one too.

    Attributes:
        key: Dotted.
        value: JSON-ready.
        origin: ``default``, ``environment NAME`` or a file.
        what: What it is for; of tables nothing.
    """

    key: str
    value: Any
    origin: str
    what: str = ""


def effective(loaded: LoadedSettings) -> list[Setting]:
    """Every setting, in the order of the file that `operator init` writes."""
    clean = Redactor.from_environment()
    settings = loaded.settings
    parts: dict[str, BaseModel] = {s: getattr(settings, s) for s in type(settings).model_fields if s not in LISTS}
    parts |= {section: settings.extension(section, model) for section, model in extension_models().items()}
    found = []
    for section, part in parts.items():
        told = descriptions(type(part))
        for key, value in part.model_dump(mode="json").items():
            name = f"{section}.{key}"
            shown = clean.tree(without_named(safe_url(value) if name == "store.url" else value))
            found.append(Setting(name, shown, _origin(loaded.origins, name), told.get(key, "")))
    for section in LISTS:
        for table in getattr(settings, section):
            data = clean.tree(without_named(table.model_dump(mode="json", exclude_defaults=True)))
            found.append(Setting(f"{section}.{table.name}", data, _origin(loaded.origins, section)))
    return found


def _origin(origins: Mapping[str, str], name: str) -> str:
    found = origins.get(name)
    if found is None:
        found = next((origin for key, origin in origins.items() if key.startswith(f"{name}.")), "default")
    return found

"""Reading the configuration: the file, the environment, the command line, and which of them set what."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from operator_core.config.explain import explain
from operator_core.config.extension import extension_models
from operator_core.config.file import read_toml
from operator_core.config.settings import LISTS, Settings
from operator_core.errors import ConfigError

__all__ = ["CONFIG_NAME", "LoadedSettings", "load_settings"]

CONFIG_NAME = "operator.toml"
_ENV_PREFIX = "OPERATOR_"


class LoadedSettings(NamedTuple):
    """Settings and where each came from.

    Attributes:
        settings: The merged, validated tree.
        origins: Dotted key -> ``default``, ``environment NAME`` or the file's path; only keys that were set.
        path: The file that was read, if any.
    """

    settings: Settings
    origins: dict[str, str]
    path: Path | None


def load_settings(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, db: str | None = None
) -> LoadedSettings:
    """Read the configuration.

    Args:
        path: The file; None: ``$OPERATOR_CONFIG``, else ``operator.toml`` in the current folder if there is one.
        environ: The environment (default: this process's).
        db: Database of the command line; wins over everything.

    Raises:
        ConfigError: The file is missing, is not TOML, has an unknown key or a bad value.
    """
    env = os.environ if environ is None else environ
    named = path or (Path(env["OPERATOR_CONFIG"]) if env.get("OPERATOR_CONFIG") else None)
    file = named or (Path(CONFIG_NAME) if Path(CONFIG_NAME).is_file() else None)
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        data = read_toml(file)
        origins.update({key: str(file) for key in _leaves(data)})
    models = extension_models()
    sections = [*(s for s in Settings.model_fields if s not in LISTS), *models]
    for extension, model in models.items():
        for name, key in model.ENVIRONMENT.items():
            if env.get(name):
                _put(data, extension, key, env[name])
                origins[f"{extension}.{key}"] = f"environment {name}"
    for name, value in env.items():
        section, _, key = name.removeprefix(_ENV_PREFIX).lower().partition("__")
        if name.startswith(_ENV_PREFIX) and key:
            if section not in sections:
                raise ConfigError(f"{name} names no setting; the sections are {', '.join(sections)}.")
            _put(data, section, key, value)
            origins[f"{section}.{key}"] = f"environment {name}"
    if "base_url" not in data.get("model", {}) and env.get("ANTHROPIC_BASE_URL"):
        _put(data, "model", "base_url", env["ANTHROPIC_BASE_URL"])
        origins["model.base_url"] = "environment ANTHROPIC_BASE_URL"
    chosen = db or env.get("OPERATOR_DB")
    if chosen:
        _put(data, "store", "url", chosen)
        origins["store.url"] = "command line --db" if db else "environment OPERATOR_DB"
    theirs = {name: data.pop(name) for name in models if name in data}
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(explain(error, data, file, origins)) from None
    for extension, values in theirs.items():
        try:
            settings = settings.extended(extension, models[extension].model_validate(values))
        except ValidationError as error:
            raise ConfigError(explain(error, theirs, file, origins, extension)) from None
    return LoadedSettings(settings, origins, file)


def _leaves(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        out.extend(_leaves(value, f"{name}.") if isinstance(value, Mapping) else [name])
    return out


def _put(data: dict[str, Any], section: str, key: str, value: str) -> None:
    # What is no section is left to the validation, which says so.
    if isinstance(data.setdefault(section, {}), dict):
        data[section][key] = value

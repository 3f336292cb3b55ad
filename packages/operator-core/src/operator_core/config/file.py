"""``operator.toml``, as the tables that it holds."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

from operator_core.config.extension import extension_models
from operator_core.errors import ConfigError

__all__ = ["read_toml"]


def read_toml(file: Path) -> dict[str, Any]:
    """The tables of a file; a path in them is meant from the folder of that file, and written so.

    Raises:
        ConfigError: The file is missing, cannot be read or is not TOML.
    """
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {file}; write one with `operator init`.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML: {error}.") from None
    # A path is meant relative to the file that names it, wherever the command is started.
    base = file.resolve().parent
    for section, key in (
        ("subject", "workspace"),
        ("credential", "file"),
        ("intake", "secret_file"),
        ("mcp_server", "token_file"),
    ):
        for table in data[section] if isinstance(data.get(section), list) else []:
            if isinstance(table, dict) and isinstance(table.get(key), str):
                table[key] = str(base / Path(table[key]).expanduser())
    servers = data.get("mcp_server")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, dict) and isinstance(server.get("readable"), list):
            server["readable"] = [
                str(base / Path(path).expanduser()) if isinstance(path, str) else path for path in server["readable"]
            ]
    notify = data.get("notify")
    channels = notify.get("channel") if isinstance(notify, dict) else None
    for channel in channels if isinstance(channels, list) else []:
        for key in ("url_file", "secret_file"):
            if isinstance(channel, dict) and isinstance(channel.get(key), str):
                channel[key] = str(base / Path(channel[key]).expanduser())
    for section, key in (("store", "url"), ("worker", "state_dir"), ("tasks", "root"), ("claude_code", "program")):
        table = data.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and "://" not in table[key]:
            table[key] = str(file.parent / Path(table[key]).expanduser())
    for section, model in extension_models().items():
        table = data.get(section)
        if not isinstance(table, dict):
            continue
        for key, field in model.model_fields.items():
            if Path in (field.annotation, *get_args(field.annotation)) and isinstance(table.get(key), str):
                table[key] = str(file.parent / Path(table[key]).expanduser())
    return data

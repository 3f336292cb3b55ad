"""Files of which only a part says how tests are run, like ``pyproject.toml`` and ``package.json``."""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

from operator_core.verify.trees import Tree

__all__ = ["SECTIONED", "section"]

_FILE_MAX = 1 << 20


def _toml(text: str) -> Any:
    tools = tomllib.loads(text).get("tool", {})
    parts = {name: tools.get(name) for name in ("pytest", "tox", "nox", "coverage", "poe", "taskipy")}
    parts |= {"hatch": tools.get("hatch", {}).get("envs"), "pdm": tools.get("pdm", {}).get("scripts")}
    return {name: part for name, part in parts.items() if part}


def _ini(text: str) -> Any:
    parser = configparser.RawConfigParser(strict=False, allow_no_value=True)
    parser.read_string(text)
    return {
        name: dict(parser[name])
        for name in parser.sections()
        if re.match(r"(?:tool:)?pytest\b|tox\b|testenv|coverage:|aliases|nosetests|unittest", name)
    }


def _package_json(text: str) -> Any:
    data = json.loads(text)
    scripts = {k: v for k, v in data.get("scripts", {}).items() if re.fullmatch(r"(?:pre|post)?test(?::.*)?", k)}
    return {k: v for k, v in {**data, "scripts": scripts}.items() if v and k in _JSON_KEYS}


_JSON_KEYS = ("scripts", "jest", "mocha", "ava", "vitest", "nyc", "c8")
_READERS: Mapping[str, Callable[[str], Any]] = {
    "pyproject.toml": _toml,
    "setup.cfg": _ini,
    "tox.ini": _ini,
    "package.json": _package_json,
}


SECTIONED = frozenset(_READERS)
"""Names of these files."""


def section(tree: Tree, path: str) -> Any:
    """The part about tests, empty if there is none; a text that no parser reads counts as a whole.

    A file of more than a megabyte is not read, and is equal to nothing.
    """
    data = tree.read(path, _FILE_MAX)
    if len(data) == _FILE_MAX:
        return object()
    text = data.decode("utf-8", "replace")
    try:
        return _READERS[path.rpartition("/")[2]](text)
    except (ValueError, configparser.Error, AttributeError, TypeError, RecursionError):
        return text

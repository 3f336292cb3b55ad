"""What an MCP server says about its tools, made fit to be told to a model.

Everything in a definition is the server's own words, and a model reads them before any tool runs. So they are short,
without hidden characters, and marked as what they are; a definition that no model service would take is left out,
because one of them would make every request of the session fail.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from operator_core.agent_lab.fence import Fence, Origin
from operator_core.model.entry import canonical
from operator_core.text import clip, printable

__all__ = ["MOST_TOOLS", "Definition", "NotUsable", "define", "digest_of", "own_name"]

MOST_TOOLS = 64
"""Tools of one server, the first ones; the others are left out."""

_LONGEST_NAME = 64
_DESCRIPTION = 1000
_PARAMETER = 300
_SCHEMA = 16_384
_DEPTH = 12
_WORD = 500
_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9_-]")
_PROPERTY = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# No model service takes these at the top of a schema; the server itself still insists on what they say.
_NOT_AT_THE_TOP = ("anyOf", "oneOf", "allOf", "not", "if", "then", "else", "$schema", "$id", "title")
_WORDS = ("description", "title")
_DROPPED = ("$comment", "examples", "$id", "$anchor", "$dynamicAnchor")
_NAMED = ("properties", "$defs", "definitions", "patternProperties", "dependentSchemas", "dependentRequired")


class NotUsable(Exception):
    """A definition that cannot be told to a model; the message is a clause that says why."""


class Definition(NamedTuple):
    """One tool, as it is journaled at the beginning of a conversation and offered until its end.

    Attributes:
        name: As the model calls it.
        tool: As the server calls it.
        description: For the model, with the server's words marked.
        input_schema: JSON Schema of its arguments.
        digest: Of the definition exactly as the server gave it.
    """

    name: str
    tool: str
    description: str
    input_schema: dict[str, Any]
    digest: str


def own_name(server: str, tool: str) -> str:
    """``SERVER__TOOL``, in the characters and the length that model services take."""
    name = f"{server}__{_NOT_IN_A_NAME.sub('_', tool)}"
    if name == f"{server}__{tool}" and len(name) <= _LONGEST_NAME:
        return name
    return f"{name[: _LONGEST_NAME - 9]}_{hashlib.sha256(_bytes(tool)).hexdigest()[:8]}"


def digest_of(tool: str, description: str | None, schema: Any) -> str:
    """What changes when the server says something else about a tool."""
    return hashlib.sha256(_bytes(canonical([tool, description or "", schema]))).hexdigest()


def define(
    server: str,
    tool: str,
    description: str | None,
    schema: Mapping[str, Any],
    *,
    fence: Fence,
    clean: Callable[[str], str],
) -> Definition:
    """A definition for the model.

    Args:
        fence: Marks the server's words; nothing of them can look like its end.
        clean: Takes secrets out, before anything is shortened.

    Raises:
        NotUsable: No model could be told about it.
    """
    name = own_name(server, tool)

    def words(text: str, length: int) -> str:
        return clip(fence.unmarked(printable(clean(text))).strip(), length)

    usable = _schema(dict(schema), words)
    said = words(description or "", _DESCRIPTION)
    about = f"A tool of the MCP server {server}."
    if said:
        label = f"description by the MCP server {server}"
        about = f"{about} How its author describes it:\n{fence.wrap(Origin.MATERIAL, said, label)}"
    return Definition(name, tool, about, usable, digest_of(tool, description, schema))


def _schema(schema: dict[str, Any], words: Callable[[str, int], str]) -> dict[str, Any]:
    if schema.get("type") != "object":
        raise NotUsable("its arguments are no object")
    cleaned: dict[str, Any] = _cleaned({k: v for k, v in schema.items() if k not in _NOT_AT_THE_TOP}, words, _DEPTH)
    properties = cleaned.get("properties", {})
    if not isinstance(properties, dict):
        raise NotUsable("its properties are no object")
    odd = next((name for name in properties if not _PROPERTY.fullmatch(name)), None)
    if odd is not None:
        raise NotUsable(f"its argument {clip(printable(odd), 40)!r} has a name that models cannot use")
    if len(_bytes(json.dumps(cleaned, ensure_ascii=False))) > _SCHEMA:
        raise NotUsable(f"its schema is longer than {_SCHEMA} bytes")
    from jsonschema import Draft202012Validator, SchemaError

    try:
        Draft202012Validator.check_schema(cleaned)
    except SchemaError as error:
        raise NotUsable(f"its schema is no JSON Schema ({clip(printable(error.message), 100)})") from None
    # A schema of others, in a library of others: whatever that makes of it must not end a session.
    except Exception as error:
        raise NotUsable(f"its schema cannot be read ({type(error).__name__})") from None
    return cleaned


def _cleaned(value: Any, words: Callable[[str, int], str], depth: int, *, names: bool = False) -> Any:
    """A part of a schema.

    Args:
        names: The keys of this object are names that the server has chosen, and no words of JSON Schema.
    """
    if depth == 0:
        raise NotUsable("its schema is nested too deeply")
    if isinstance(value, str):
        return _word(value)
    if isinstance(value, list):
        return [_cleaned(item, words, depth - 1) for item in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, item in value.items():
        if not names and key in _DROPPED:
            continue
        if not names and key in _WORDS and isinstance(item, str):
            found[key] = words(item, _PARAMETER)
        elif not names and key in ("$ref", "$dynamicRef") and not (isinstance(item, str) and item.startswith("#")):
            raise NotUsable("its schema refers to another document")
        elif not names and key == "pattern" and not _is_pattern(item):
            continue
        else:
            found[_word(key)] = _cleaned(item, words, depth - 1, names=not names and key in _NAMED)
    return found


def _word(text: str) -> str:
    if len(text) > _WORD:
        raise NotUsable(f"its schema has a word of more than {_WORD} characters")
    if printable(text) != text:
        raise NotUsable("its schema has control characters")
    return text


def _is_pattern(value: Any) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")

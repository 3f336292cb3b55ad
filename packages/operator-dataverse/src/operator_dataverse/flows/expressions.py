"""Expressions of the workflow definition language: where they are in a text, and what they refer to.

This reads as much of the language as it takes to find a slip before a flow runs: quotes and brackets that do not match,
functions that do not exist, and names of actions and variables that are not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

__all__ = ["Reference", "columns_of_trigger", "expressions", "inputs_of_trigger", "problems", "references"]

_FUNCTIONS = frozenset(
    ("and", "body", "coalesce", "concat", "contains", "empty", "equals", "first", "greater", "greaterOrEquals", "if",
     "item", "items", "json", "length", "less", "lessOrEquals", "min", "not", "or", "outputs", "parameters", "replace",
     "reverse", "startsWith", "string", "substring", "toLower", "trim", "triggerBody", "triggerOutputs", "utcNow",
     "variables")
)  # fmt: skip
_STRING = re.compile(r"'(?:[^']|'')*'")
_CALL = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)\s*\(")
_REFERENCE = re.compile(r"\b(outputs|body|variables|parameters)\s*\(\s*'((?:[^']|'')*)'\s*\)")
_INPUT = re.compile(r"\btriggerBody\(\)\?\['([^']+)'\]")
_TRIGGER = re.compile(r"\btriggerOutputs\(\)\?\['body/([^']+)'\]")


class Reference(NamedTuple):
    """What an expression refers to.

    Attributes:
        kind: ``outputs``, ``body``, ``variables`` or ``parameters``.
        name: Of the action, variable or parameter.
    """

    kind: str
    name: str


def expressions(text: str) -> list[str]:
    """The expressions in a text: all of it behind a leading ``@``, else each ``@{…}``; ``@@`` is an at sign."""
    if text.startswith("@") and not text.startswith(("@@", "@{")):
        return [text[1:]]
    return list(_inserted(text))


def problems(expression: str) -> list[str]:
    """What is wrong with one expression, apart from what it refers to."""
    bare = _STRING.sub("''", expression)
    if "'" in bare.replace("''", ""):
        return [f"a quote is not closed in {_short(expression)}"]
    stack: list[str] = []
    for sign in bare:
        if sign in "([{":
            stack.append(sign)
        elif sign in ")]}" and (not stack or stack.pop() + sign not in ("()", "[]", "{}")):
            return [f"brackets do not match in {_short(expression)}"]
    if stack:
        return [f"a bracket is not closed in {_short(expression)}"]
    unknown = sorted({name for name in _CALL.findall(bare) if name not in _FUNCTIONS})
    return [f"there is no function {name!r} in {_short(expression)}" for name in unknown]


def references(expression: str) -> list[Reference]:
    """The actions, variables and parameters that it names."""
    return [Reference(kind, name.replace("''", "'")) for kind, name in _REFERENCE.findall(expression)]


def columns_of_trigger(expression: str) -> list[str]:
    """The columns that it takes from the row that started the flow."""
    return _TRIGGER.findall(expression)


def inputs_of_trigger(expression: str) -> list[str]:
    """What it takes from the request that started the flow."""
    return _INPUT.findall(expression)


def _inserted(text: str) -> Iterator[str]:
    at = text.find("@{")
    while at >= 0:
        if at and text[at - 1] == "@":
            at = text.find("@{", at + 2)
            continue
        depth, quoted, end = 0, False, len(text)
        for place in range(at + 1, len(text)):
            sign = text[place]
            if sign == "'":
                quoted = not quoted
            elif not quoted and sign in "{}":
                depth += 1 if sign == "{" else -1
                if depth == 0:
                    end = place
                    break
        yield text[at + 2 : end]
        at = text.find("@{", end)


def _short(expression: str) -> str:
    return repr(expression if len(expression) <= 80 else expression[:79] + "…")

"""One tool of an agent: what the model is told about it, and what it does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from anthropic.lib.tools import BetaAsyncFunctionTool

from operator_core.agent_lab.gateway import ToolGateway, ToolRefused

__all__ = ["ONLY_A_SCHEMA", "Tool", "check_names", "number_of", "sendable"]

ONLY_A_SCHEMA = "the schema is made from this signature; calls go through the gateway"


class Tool(NamedTuple):
    """A tool that does something.

    Attributes:
        schema: Its name, description and parameters.
        run: Does one call: gateway, id of the call, arguments as the model sent them. Returns what the model is told;
            refuses with :class:`ToolRefused`.
    """

    schema: BetaAsyncFunctionTool[Any]
    run: Callable[[ToolGateway, str, dict[str, Any]], Awaitable[str]]


def check_names(tool: str, arguments: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse an argument that the tool does not have, so that a misspelled one is not passed over.

    Raises:
        ToolRefused: There is one.
    """
    unknown = [name for name in arguments if name not in names]
    if unknown:
        listed = ", ".join(names[:-1]) + f" and {names[-1]}" if len(names) > 1 else names[0]
        raise ToolRefused(f"{tool} has no parameter {unknown[0]!r}; it takes {listed}.")


def number_of(
    arguments: Mapping[str, Any], name: str, default: float, *, least: float = float("-inf"), whole: bool = True
) -> float:
    """A number among the arguments.

    Raises:
        ToolRefused: It is no number, or below ``least``.
    """
    value = arguments.get(name, default)
    usable = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 2**53
    if not usable or (whole and value != int(value)) or value < least:
        kind = "a whole number" if whole else "a number"
        raise ToolRefused(f"`{name}` must be {kind}{f' of at least {least:g}' if least > float('-inf') else ''}.")
    return int(value) if whole else float(value)


def sendable(text: str, name: str, *, nul: bool = False) -> str:
    """A text that can leave this process.

    Raises:
        ToolRefused: It has half of a surrogate pair, or a NUL where none may be.
    """
    try:
        bad = b"\0" in text.encode() and not nul
    except UnicodeEncodeError:
        bad = True
    if bad:
        raise ToolRefused(f"`{name}` has a character that no shell can take (NUL, or half of a surrogate pair).")
    return text

"""Which commands are refused before they reach a shell: the seed's filter, its list, and what is told to the agent."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from operator_core.errors import ConfigError
from operator_core.model.pattern import Pattern, Unreadable

__all__ = ["DEFAULT_PATTERNS", "BlockedCommand", "CommandCheck", "CommandFilter"]

DEFAULT_PATTERNS: tuple[tuple[str, str], ...] = (
    (r"(?i)\bsudo\b", "sudo is not allowed: privilege escalation"),
    (r"(?i)\bsu\b\s", "su is not allowed: privilege escalation"),
    (r"(?i)\bdoas\b", "doas is not allowed: privilege escalation"),
    (r"rm\s+(-[^\s]*)?(\s+-[^\s]*)?\s+/($|\s)", "removing the root directory is not allowed"),
    (r"rm\s+(-[^\s]*)?(\s+-[^\s]*)?\s+/\*", "removing everything below the root directory is not allowed"),
    (r">\s*/etc/", "writing to /etc is not allowed"),
    (r">\s*/usr/", "writing to /usr is not allowed"),
    (r">\s*/boot/", "writing to /boot is not allowed"),
    (r">\s*/sys/", "writing to /sys is not allowed"),
    (r">\s*/proc/", "writing to /proc is not allowed"),
    (r"(?i)\bmkfs\b", "making a file system is not allowed"),
    (r"(?i)\bdd\b\s.*of=/dev/", "writing to a device is not allowed"),
    (r":\(\)\s*\{.*\}", "a fork bomb is not allowed"),
    (r"(?i)\bshutdown\b", "shutting the system down is not allowed"),
    (r"(?i)\breboot\b", "rebooting the system is not allowed"),
    (r"(?i)\bhalt\b", "halting the system is not allowed"),
    (r"(?i)\bpoweroff\b", "powering the system off is not allowed"),
    (r"chmod\s.*\s/($|\s|[a-z])", "changing the mode of system paths is not allowed"),
    (r"chown\s.*\s/($|\s|[a-z])", "changing the owner of system paths is not allowed"),
)
"""The seed's list (2.3.2 of the requirements): expressions, searched for in the text of a command.

It refuses harmless commands (`grep reboot notes.md`) and misses many that are not, so that the advisor
(:class:`operator_core.safety.advice.CommandAdvisor`) is what is used unless a list is asked for.
"""


class BlockedCommand(NamedTuple):
    """A command that is refused.

    Attributes:
        command: As it was given.
        reason: Why, for the agent.
    """

    command: str
    reason: str


class CommandCheck(Protocol):
    """Says of a command whether it is refused."""

    def check(self, command: str) -> BlockedCommand | None:
        """Why the command is refused; None if it is not."""
        ...


class CommandFilter:
    """Refuses commands in which an expression is found; the first one that is found says why.

    Args:
        patterns: Regular expressions (:class:`~operator_core.model.pattern.Pattern`) and reasons (default: the seed's).

    Raises:
        ConfigError: One of them is no regular expression.
    """

    def __init__(self, patterns: Iterable[tuple[str, str]] = DEFAULT_PATTERNS) -> None:
        self._rules: list[tuple[Pattern, str]] = []
        for pattern, reason in patterns:
            try:
                self._rules.append((Pattern(pattern), reason))
            except ValueError as error:
                raise ConfigError(
                    f"The blocked pattern {pattern!r} is no regular expression ({error}); correct it."
                ) from None

    def check(self, command: str) -> BlockedCommand | None:
        """Why the command is refused; None if it is not."""
        try:
            return next((BlockedCommand(command, why) for rule, why in self._rules if rule.found_in(command)), None)
        except Unreadable:
            return BlockedCommand(command, "it is no text that can be checked (a lone surrogate is in it)")

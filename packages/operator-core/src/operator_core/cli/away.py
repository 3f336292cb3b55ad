"""A server that is away for a while: a command that waits for something there waits on."""

from __future__ import annotations

from collections.abc import Callable

from operator_core import clock
from operator_core.errors import StoreUnavailable

__all__ = ["Away"]

_LONGEST_S = 300.0
"""A restart and an upgrade of a server are shorter; a wrong address is found before anything is waited for."""


class Away:
    """How long a server has not answered.

    Args:
        say: Prints one line when it goes away, and one when it answers again.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._since: float | None = None

    def met(self, error: StoreUnavailable) -> None:
        """It did not answer.

        Raises:
            StoreUnavailable: Nor has it for five minutes.
        """
        if self._since is None:
            self._since = clock.monotonic()
            self._say(f"{error} What was asked for stays there; this command waits for {_LONGEST_S / 60:.0f} minutes.")
        elif clock.monotonic() - self._since > _LONGEST_S:
            raise error

    def over(self) -> None:
        """It answered."""
        if self._since is not None:
            self._since = None
            self._say("The server answers again.")

"""What every screen does: it looks again and again, says when it cannot, and does what a person wants."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any

from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widgets import Static

from operator_core.api.protocol import Api
from operator_core.errors import OperatorError
from operator_core.text import exact
from operator_core.tui.dialogs import Help

__all__ = ["KEYS", "Watching"]

KEYS: list[BindingType] = [("question_mark", "help", "Help"), ("q", "app.quit", "Quit")]
"""The last ones of every screen."""

_PATIENCE_S = 1.0


class Watching(Screen[None]):
    """A screen that follows what it shows; only what changed is drawn anew.

    Args:
        pause_s: Between two looks, in seconds.
    """

    def __init__(self, api: Api, *, pause_s: float) -> None:
        super().__init__()
        self._api = api
        self._pause_s = pause_s
        self._wake = asyncio.Event()
        self._busy = asyncio.Lock()
        self._said: dict[str, str] = {}

    @abstractmethod
    async def look(self) -> bool:
        """Look once, and show it; whether there is more to read at once.

        Raises:
            OperatorError: It could not look.
        """

    def begin(self) -> None:
        """Begin to look."""
        self.query_one("#problem").display = False
        self.run_worker(self._watch(), name=type(self).__name__)

    def on_screen_resume(self) -> None:
        """What was missed meanwhile is looked at now."""
        self._wake.set()

    async def rest(self) -> None:
        """Look no more: whoever quits must not tear a query of the store in two."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await self._busy.acquire()

    def look_again(self) -> None:
        """Do not wait for the next look."""
        self._wake.set()

    async def _watch(self) -> None:
        while True:
            self._wake.clear()
            more = False
            if self.is_current:
                try:
                    async with self._busy:
                        more = await self.look()
                    self.say("problem", "")
                except OperatorError as error:
                    # What is on the screen may be old then, and must not look as if it were not.
                    self.say("problem", f"not live: {exact(str(error))}")
            if more:
                continue
            try:
                async with asyncio.timeout(self._pause_s):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def say(self, where: str, text: str) -> None:
        """Show a text in its place, unless it stands there already; an empty one takes no room."""
        if self._said.get(where) != text:
            self._said[where] = text
            field = self.query_one(f"#{where}", Static)
            field.update(text)
            field.display = bool(text)

    def act(self, act: Awaitable[Any], said: str) -> None:
        """Do what a person wants, and say that it was done or why not."""

        async def work() -> None:
            try:
                await act
            except OperatorError as error:
                self.tell(str(error), bad=True)
            else:
                self.tell(said)
            self._wake.set()

        self.run_worker(work(), name="act")

    def tell(self, text: str, *, bad: bool = False) -> None:
        """Say something that goes away by itself."""
        self.notify(exact(text), severity="error" if bad else "information", markup=False)

    def action_help(self) -> None:
        """What the keys do, and what the signs mean."""
        keys: dict[str, list[str]] = {}
        for binding in Binding.make_bindings(self.BINDINGS):
            does = binding.tooltip or binding.description
            keys.setdefault(does, []).append(self.app.get_key_display(binding))
        self.app.push_screen(Help({does: " ".join(shown) for does, shown in keys.items()}))

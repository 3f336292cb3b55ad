"""The program in the terminal."""

from __future__ import annotations

from textual.app import App

from operator_core.api.protocol import Api
from operator_core.tui.board import BoardScreen
from operator_core.tui.watching import Watching

__all__ = ["Top"]


class Top(App[None]):
    """The board and the tickets of a store or a server.

    Args:
        api: The product, on behalf of the person at the terminal.
        pause_s: Between two looks, in seconds.
    """

    TITLE = "Operator"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { scrollbar-size-vertical: 1; }
    * { scrollbar-size-vertical: 1; scrollbar-background: $surface; scrollbar-color: $accent; }
    #counts { height: auto; max-height: 2; padding: 0 1; background: $panel; }
    #facts { height: auto; max-height: 14; padding: 0 1; background: $panel; }
    #stalled { height: auto; padding: 0 1; background: $panel; color: #f0e442; }
    #problem { height: auto; padding: 0 1; background: #7a3e00; color: #ffffff; text-style: bold; }
    #search { height: 3; }
    #tickets { height: 1fr; }
    #asked { height: auto; max-height: 40%; }
    #call { height: 1fr; padding: 0 1; background: $surface; border-top: solid $accent; }
    #empty { height: auto; padding: 1 2; }
    #journal { height: 1fr; padding: 0 1; }
    #tail { height: auto; max-height: 10; padding: 0 1; border-top: solid $accent; }
    Question, Choice, Help { align: center middle; }
    .dialog { width: 80%; max-width: 90; height: auto; max-height: 90%; padding: 1 2; }
    .dialog { background: $surface; border: solid $accent; }
    .title { text-style: bold; padding-bottom: 1; }
    .about { max-height: 8; padding-bottom: 1; }
    """

    def __init__(self, api: Api, *, pause_s: float = 2.0) -> None:
        super().__init__()
        self._api = api
        self._pause_s = pause_s

    def on_mount(self) -> None:
        """Show the board."""
        self.push_screen(BoardScreen(self._api, pause_s=self._pause_s))

    async def action_quit(self) -> None:
        """Leave the terminal as it was."""
        for screen in self.screen_stack:
            if isinstance(screen, Watching):
                await screen.rest()
        self.exit()

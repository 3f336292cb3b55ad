"""Questions to the person at the terminal."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

__all__ = ["Choice", "Question"]


class Question(ModalScreen[str | None]):
    """Asks for one line; None: the person thought better of it.

    Args:
        title: What is asked.
        hint: What becomes of the answer.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Leave it")]

    def __init__(self, title: str, hint: str) -> None:
        super().__init__()
        self._title = title
        self._hint = hint

    def compose(self) -> ComposeResult:
        """The dialog."""
        with Vertical(classes="dialog"):
            yield Static(self._title, markup=False, classes="title")
            yield Input(id="answer")
            yield Static(f"{self._hint} Enter sends, Esc leaves it.", markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        if event.value.strip():
            self.dismiss(event.value.strip())


class Choice(ModalScreen[str | None]):
    """Asks for one key; None: none of them.

    Args:
        title: What is asked.
        keys: Key and what it means.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Leave it")]

    def __init__(self, title: str, keys: dict[str, str]) -> None:
        super().__init__()
        self._title = title
        self._keys = keys
        for key, meaning in keys.items():
            self._bindings.bind(key, f"choose('{key}')", meaning)

    def compose(self) -> ComposeResult:
        """The dialog."""
        with Vertical(classes="dialog"):
            yield Static(self._title, markup=False, classes="title")
            for key, meaning in self._keys.items():
                yield Static(f"{key}  {meaning}", markup=False)
            yield Static("Esc  leave it", markup=False)

    def action_choose(self, key: str) -> None:
        """Take that key."""
        self.dismiss(key)

"""Questions to the person at the terminal, and what they may want to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from operator_core.tui.lines import SIGNS

__all__ = ["Choice", "Help", "Question"]


class Question(ModalScreen[str | None]):
    """Asks for one line; None: the person thought better of it.

    Args:
        title: What is asked.
        hint: What becomes of the answer.
        about: What the person should have before their eyes; may be empty.
        optional: An empty answer is one, too.
        longest: So many characters at most.
    """

    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss", "Leave it")]

    def __init__(
        self, title: str, hint: str, *, about: str = "", optional: bool = False, longest: int = 100_000
    ) -> None:
        super().__init__()
        self._title = title
        self._hint = hint
        self._about = about
        self._optional = optional
        self._longest = longest

    def compose(self) -> ComposeResult:
        """The dialog."""
        with Vertical(classes="dialog"):
            yield Static(self._title, markup=False, classes="title")
            if self._about:
                yield Static(self._about, markup=False, classes="about")
            yield Input(id="answer", max_length=self._longest)
            yield Static(self._hint, markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take what was typed."""
        if event.value.strip() or self._optional:
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


class Help(ModalScreen[None]):
    """What the keys of a screen do, and what the signs mean; any key closes it.

    Args:
        keys: What can be done, and by which key.
    """

    def __init__(self, keys: Mapping[str, str]) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """The dialog."""
        with Vertical(classes="dialog"):
            yield Static("Keys", markup=False, classes="title")
            yield Static("\n".join(f"{key:<9} {does}" for does, key in self._keys.items()), markup=False)
            signs = [f"{sign} {word}" for sign, word in SIGNS] + ["! critical"]
            yield Static("\n" + "  ".join(signs[:4]) + "\n" + "  ".join(signs[4:]), markup=False)

    def on_key(self, event: events.Key) -> None:
        """Close it; the key does nothing else."""
        event.stop().prevent_default()
        self.dismiss()

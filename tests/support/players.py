"""Small real programs on a PATH of the test's own, which play programs of others and write down how they were called.

``stage.player("az", "if words[0] == 'login': sys.exit(1)")`` puts a program ``az`` there. Its body is Python that knows
``words`` (its arguments), ``folder`` (that of all players), and ``bin`` (where they are). Each call becomes one
:class:`Call` of :meth:`Stage.calls`, in their order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["Call", "Stage"]

_PLAYER = """\
#!{python} -ISB
import json, os, sys
from pathlib import Path
words, folder, bin = sys.argv[1:], Path({folder!r}), Path({bin!r})
name = os.path.basename(sys.argv[0])
with open(folder / "calls.jsonl", "a") as file:
    file.write(json.dumps([name, words, dict(os.environ), sys.stdin.isatty()]) + "\\n")
{body}
"""


class Call(NamedTuple):
    """How a player was called."""

    name: str
    words: list[str]
    env: Mapping[str, str]
    on_terminal: bool

    @property
    def line(self) -> str:
        """The program and its words."""
        return " ".join([self.name, *self.words])


class Stage:
    """A folder of players.

    Args:
        folder: An empty one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)

    def player(self, name: str, body: str = "") -> Path:
        """Put a program there; with the same name again it is replaced."""
        path = self.bin / name
        text = _PLAYER.format(python=sys.executable, folder=str(self.folder), bin=str(self.bin), body=body)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def calls(self, name: str | None = None) -> list[Call]:
        """All calls so far, or those of one player."""
        path = self.folder / "calls.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [call for call in (Call(*json.loads(line)) for line in lines) if name in (None, call.name)]

    def lines(self, name: str | None = None) -> list[str]:
        """The same as command lines."""
        return [call.line for call in self.calls(name)]

"""What people and programs see: tables and colours on a terminal, plain lines elsewhere, or one JSON document.

Text from tickets, agents and tools is hostile: it goes through :func:`operator_core.text.printable`, and is never read
as markup.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from operator_core.cli.hints import completed
from operator_core.text import clip, printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

__all__ = ["Output", "dumps", "flat", "plain", "seconds", "style_of"]

_STYLES = (
    ("[Claude]", "cyan"),
    ("[Scripted]", "cyan"),
    ("[Approval]", "bold yellow"),
    ("[Tool Call", "yellow"),
    ("[Result (exit 0)", "green"),
    ("[Result", "red"),
    ("[Verify]", "magenta"),
    ("[Monitor]", "blue"),
    ("[Retry]", "red"),
    ("[Resumed]", "magenta"),
    ("[Sandbox]", "red"),
    ("[Store]", "red"),
    ("====", "dim"),
    ("# ", "bold"),
    ("## ", "bold"),
    ("### ", "bold"),
)
_OF_TICKET = re.compile(r"#\d+ ")
# How the lines end that say what to type; what they quote before it is of others.
_HINT = re.compile(
    r"`operator (?:approvals approve [^` ]+` or `operator approvals deny [^` ]+ --note TEXT`\."
    r"|explore resume [^` ]+`)\Z"
)
_ADVISES = ("[Approval]", "[Paused]")


class Output:
    """Prints to one stream.

    Args:
        stream: Default: standard output.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream if stream is not None else sys.stdout
        self.rich = self._stream.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
        self._console: Console | None = None
        self._status: Status | None = None
        self._deaf = False

    def line(self, text: str = "", *, style: str | None = None, mark: str | None = None) -> None:
        """One or more lines.

        Args:
            mark: For words of others: on a terminal a line that is too long for it goes on behind this, so that no part
                of it can be taken for a line of ours.
        """
        clean = printable(text)
        if mark is not None and self._stream.isatty():
            clean = "\n".join(_folded(part, mark) for part in clean.split("\n"))
        if not self.rich:
            self._stream.write(clean + "\n")
            self._stream.flush()
            return
        from rich.text import Text

        for part in clean.split("\n"):
            self.console.print(Text(part, style=style or style_of(part) or ""), soft_wrap=True)

    def ours(self, text: str, *, style: str | None = None) -> None:
        """As :meth:`line`, for a sentence of ours: the commands in it get the options that this one was given."""
        self.line(completed(text), style=style)

    def say(self, text: str) -> None:
        """As :meth:`line`, for a process that must go on when nobody reads its output any more."""
        if self._deaf:
            return
        if _bare(text).startswith(_ADVISES) and (hint := _HINT.search(text)):
            text = text[: hint.start()] + completed(hint[0])
        try:
            self.line(text)
        except (OSError, ValueError):
            self._deaf = True

    def json(self, value: Any) -> None:
        """One JSON document; pure ASCII, so that no text in it can reach a terminal as an escape."""
        self._stream.write(dumps(value, indent=2) + "\n")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, empty: str = "Nothing.") -> None:
        """Rows of cells; each cell is one line."""
        cells = [[flat(cell) for cell in row] for row in rows]
        if not cells:
            self.ours(empty)
        elif self.rich:
            self._rich_table(columns, cells)
        else:
            widths = [max(len(row[i]) for row in [list(columns), *cells]) for i in range(len(columns))]
            for row in [[c.upper() for c in columns], *cells]:
                self.line("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def fields(self, pairs: Mapping[str, object]) -> None:
        """Name and value, one per line; those without a value are left out."""
        shown = {name: value for name, value in pairs.items() if value not in (None, "")}
        width = max((len(name) for name in shown), default=0)
        for name, value in shown.items():
            text = value if isinstance(value, str) else _text(value)
            first, *rest = printable(text).rstrip("\n").split("\n")
            self.line(f"{name:<{width}}  {first}")
            for line in rest:
                self.line(f"{'':<{width}}  {line}")

    def working(self, text: str | None) -> None:
        """On a terminal, show that something is under way; None: it is over."""
        if not self.rich:
            return
        if text is None:
            if self._status is not None:
                self._status.stop()
                self._status = None
            return
        from rich.text import Text

        shown = Text(printable(text))
        if self._status is None:
            self._status = self.console.status(shown)
            self._status.start()
        else:
            self._status.update(shown)

    @property
    def console(self) -> Console:
        """The terminal."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(file=self._stream, highlight=False, markup=False, emoji=False)
        return self._console

    def _rich_table(self, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        self.console.print(table)


def style_of(line: str) -> str | None:
    """The colour of a line by how it begins."""
    bare = _bare(line)
    return next((style for begin, style in _STYLES if bare.startswith(begin)), None)


def _bare(line: str) -> str:
    """Without the number of the ticket, which several sessions at once put before their lines."""
    return _OF_TICKET.sub("", line.lstrip(), count=1)


def flat(value: object, length: int = 160) -> str:
    """A value as one harmless line."""
    text = " ".join(printable(_text(value)).split())
    return clip(text, length)


def plain(markdown: str) -> str:
    """A page as a terminal shows it best: without the backslashes that keep text from being markup."""
    return "\n".join(
        line if line.startswith(("      ", "- `")) else re.sub(r"\\([^\w\s])", r"\1", line)
        for line in markdown.split("\n")
    )


def seconds(stamp: str | None) -> str | None:
    """A time as people read it, ``2026-01-28 10:30:45 UTC``; the JSON forms keep that of the store."""
    return stamp and re.sub(r"^(\d{4}-\d\d-\d\d)T(\d\d:\d\d:\d\d)(?:\.\d+)?(?:\+00:00|Z)$", r"\1 \2 UTC", stamp)


def dumps(value: Any, *, indent: int | None = None) -> str:
    """JSON in ASCII."""
    return json.dumps(value, indent=indent, default=_jsonable).replace("\x7f", "\\u007f")


def _text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return str(value)


def _jsonable(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if hasattr(value, "model_dump"):
        # Not as JSON: its times would look otherwise than those of the store.
        return value.model_dump()
    if isinstance(value, datetime):
        return value.isoformat(timespec="microseconds")
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    if isinstance(value, Path):
        return str(value)
    return str(value)


def _folded(line: str, mark: str) -> str:
    from rich.cells import chop_cells

    width = max(len(mark) + 10, shutil.get_terminal_size().columns)
    first, *rest = chop_cells(line.expandtabs(4), width) or [""]
    return "\n".join([first, *(mark + part for part in chop_cells("".join(rest), width - len(mark)))])

"""What programs print for a terminal, as HTML in which nothing is markup and nothing can be hidden.

Colours become class names (the page forbids styles of its own), of which the style sheet makes ones that can be read on
its ground: a program that writes white on white is read like any other. All other escapes are dropped. A line that was
written over and over, as progress bars do, shows its last version and a mark that says how often.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from markupsafe import Markup

from operator_core.text import clip, printable
from operator_core.web.words import MAX_MARKS, MAX_SHOWN, visible

__all__ = ["ansi"]

_SPANS = 2000
# A sequence that carries text is named, because somebody may have put there what nobody is to read; if it has no end,
# only its first character is one.
_ESCAPE = re.compile(
    r"\x1b(?:\[([0-?]{0,200})[ -/]{0,8}([@-~])|([]PX^_])([^\x07\x1b\n]*)(?:\x07|\x1b\\)|[ -/]{0,8}[0-OQ-WYZ\\`-~])"
)
_COLOURS = ("", "red", "green", "yellow", "blue", "magenta", "cyan", "")
# The six corners of the colour cube that have a name; the others are shades of grey.
_CORNERS = {(1, 0, 0): "red", (0, 1, 0): "green", (1, 1, 0): "yellow", (0, 0, 1): "blue", (1, 0, 1): "magenta"}
_CORNERS |= {(0, 1, 1): "cyan"}
_ON = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "marked", 9: "struck", 21: "underline"}
_OFF = {22: ("bold", "dim"), 23: ("italic",), 24: ("underline",), 27: ("marked",), 29: ("struck",), 49: ("ground",)}


class _Look(NamedTuple):
    colour: str = ""
    marks: frozenset[str] = frozenset()

    @property
    def classes(self) -> str:
        # A ground of any colour is one and the same, so that the text on it can always be read.
        names = {"marked" if mark == "ground" else mark for mark in self.marks} | {self.colour}
        return " ".join(f"a-{name}" for name in sorted(names - {""}))


def ansi(value: object, limit: int = MAX_SHOWN) -> Markup:
    """A program's output as HTML; see :func:`operator_core.web.words.visible` for what becomes of odd characters.

    Args:
        value: The text with its escapes; time and size of the result grow with its length alone.
        limit: More characters than so many are cut, which is said.
    """
    text = str(value)
    cut = len(text) - limit
    if cut > 0:
        text = text[:limit]
    out: list[Markup] = []
    look, spans, marks = _Look(), _SPANS, MAX_MARKS
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n")):
        if number:
            out.append(Markup("\n"))
        shown, overwritten = _last_version(line)
        if overwritten:
            look = _after(look, line[: len(line) - len(shown)])
        if overwritten and marks > 0:
            out.append(_odd(f"^M×{overwritten}", f"written over {overwritten} times; the entry itself has all of it"))
            marks -= 1
        for piece, style, carried in _pieces(shown, look):
            look = style
            if carried and marks > 0:
                out.append(_odd("^[", f"for the terminal: {carried}"))
                marks -= 1
            if piece:
                html = visible(piece, len(piece), marks=marks)
                marks -= html.count('class="odd"')
                styled = look.classes if spans > 0 else ""
                out.append(Markup('<span class="{}">{}</span>').format(styled, html) if styled else html)
                spans -= bool(styled)
    if cut > 0:
        out.append(Markup('<span class="cut"> … {} more characters</span>').format(f"{cut:,}"))
    return Markup("").join(out)


def _odd(mark: str, title: str) -> Markup:
    return Markup('<span class="odd" title="{}">{}</span>').format(clip(printable(title), 300), mark)


def _last_version(line: str) -> tuple[str, int]:
    """What was written last on a line, and how often something before it was written over."""
    versions = [part for part in line.split("\r") if _ESCAPE.sub("", part).strip()]
    if "\r" not in line or not versions:
        return line, 0
    last = line.rindex(versions[-1])
    return line[last:].rstrip("\r"), len(versions) - 1


def _after(look: _Look, text: str) -> _Look:
    for _, after, _ in _pieces(text, look):
        look = after
    return look


def _pieces(text: str, look: _Look) -> Iterator[tuple[str, _Look, str]]:
    """The text between escapes: each part, how it looks, and what the escape before it carried."""
    last, carried = 0, ""
    for match in _ESCAPE.finditer(text):
        yield text[last : match.start()], look, carried
        last, carried = match.end(), match[4] or ""
        if match[2] == "m":
            look = _changed(look, match[1])
    yield text[last:], look, carried


def _changed(look: _Look, codes: str) -> _Look:
    """How text looks after ``ESC [ codes m``."""
    if re.search("[<-?]", codes):
        return look
    numbers = iter([int(part[:4] or 0) for part in re.split("[;:]", codes)])
    for code in numbers:
        if code == 0:
            look = _Look()
        elif code in _ON:
            look = look._replace(marks=look.marks | {_ON[code]})
        elif code in _OFF:
            look = look._replace(marks=look.marks.difference(_OFF[code]))
        elif 30 <= code <= 37 or 90 <= code <= 97:
            look = look._replace(colour=_COLOURS[code % 10])
        elif code == 39:
            look = look._replace(colour="")
        elif code == 38:
            look = look._replace(colour=_extended(numbers))
        elif code == 48:
            _extended(numbers)
            look = look._replace(marks=look.marks | {"ground"})
        elif 40 <= code <= 47 or 100 <= code <= 107:
            look = look._replace(marks=look.marks | {"ground"})
    return look


def _extended(numbers: Iterator[int]) -> str:
    """The colour of ``5;n`` (of a table) or ``2;r;g;b``, as the nearest that has a name."""
    kind = next(numbers, 0)
    if kind == 5:
        n = next(numbers, 0)
        if n < 16:
            return _COLOURS[n % 8]
        if n > 231:
            return ""
        return _named((n - 16) // 36, (n - 16) // 6 % 6, (n - 16) % 6)
    if kind == 2:
        return _named(next(numbers, 0), next(numbers, 0), next(numbers, 0))
    return ""


def _named(red: int, green: int, blue: int) -> str:
    low, high = min(red, green, blue), max(red, green, blue)
    if high - low < high / 4:
        return ""
    middle = (low + high) / 2
    return _CORNERS.get((int(red > middle), int(green > middle), int(blue > middle)), "")

"""How values look to people: times, money, sizes, and text that nobody may trust."""

from __future__ import annotations

import json
import re
import textwrap
import unicodedata
from datetime import datetime
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from operator_core.clock import now
from operator_core.text import ODD

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

__all__ = [
    "MAX_MARKS",
    "MAX_SHOWN",
    "ago",
    "duration",
    "grouped",
    "markdown",
    "moment",
    "money",
    "on_page",
    "pretty",
    "sentence",
    "size",
    "visible",
]

MAX_SHOWN = 100_000
"""No page shows more characters of one text."""

MAX_MARKS = 500
"""No page names more invisible characters of one text."""

_UNITS = ((86400 * 365, "y"), (86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
_NEARLY = 0.05
_CONTROL = {i: f"^{chr(i + 64)}" for i in range(32) if i not in (9, 10)} | {0x7F: "^?"}
_COMMAND = re.compile(r"; (?:see|list)\b[^;`]*`operator [^`]*`[^;`]*\.\Z")
_TICKS = re.compile(r"(``?)([^`]+)\1")
# More marks on one letter than any language has paint over the lines around it.
_STACK = re.compile(
    "([\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})"
    "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)


def visible(value: object, limit: int = MAX_SHOWN, *, marks: int = MAX_MARKS) -> Markup:
    """Text as HTML in which nothing is markup and nothing is hidden; invisible characters become marks.

    Args:
        limit: More characters than so many are cut, which is said.
        marks: So many invisible characters are named; what follows are U+FFFD, so that the page stays small.
    """
    text = str(value).replace("\r\n", "\n")
    cut = len(text) - limit
    if cut > 0:
        text = text[:limit]
    out, last = [], 0
    text = _STACK.sub(r"\1", text)
    for match in islice(ODD.finditer(text), max(0, marks)):
        out += [escape(text[last : match.start()]), _mark(match[0])]
        last = match.end()
    out.append(escape(ODD.sub("\ufffd", text[last:])))
    if cut > 0:
        out.append(Markup('<span class="cut"> … {} more characters</span>').format(f"{cut:,}"))
    return Markup("").join(out)


def _mark(char: str) -> Markup:
    code = ord(char)
    name = unicodedata.name(char, "control character").lower()
    shown = _CONTROL.get(code, f"U+{code:04X}")
    return Markup('<span class="odd" title="{}">{}</span>').format(f"U+{code:04X} {name}", shown)


def sentence(value: object, limit: int = 2000) -> Markup:
    """A sentence of ours, as :func:`visible`; what stands between backticks in it looks like code.

    Args:
        limit: More characters than so many are cut, which is said.
    """
    text = str(value)
    out, last, end = [], 0, min(len(text), limit)
    for match in _TICKS.finditer(text, 0, end):
        out += [
            visible(text[last : match.start()]),
            Markup('<code class="command">{}</code>').format(visible(match[2])),
        ]
        last = match.end()
    out.append(visible(text[last:], end - last))
    return Markup("").join(out)


def on_page(text: str) -> str:
    """A sentence of ours without the command that would list or show what the page has in its place."""
    return _COMMAND.sub(".", text)


def pretty(value: object, limit: int = MAX_SHOWN) -> Markup:
    """Any JSON value over several lines, as :func:`visible`; on one line if nothing but that made it too long."""
    text = json.dumps(value, indent=2, ensure_ascii=False, sort_keys=True, default=str)
    if len(text) > limit:
        text = json.dumps(value, ensure_ascii=False, sort_keys=True, default=str)
    return visible(text, limit)


def markdown(text: str) -> Markup:
    """A page that we wrote with quotations in it, as HTML below a heading of ours: no raw HTML, pictures or links."""
    made = _markdown()
    tokens = made.parse(ODD.sub(lambda m: _CONTROL.get(ord(m[0]), f"[U+{ord(m[0]):04X}]"), text[:MAX_SHOWN]))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, int(token.tag[1]) + 2)}"
        elif token.type == "code_block":
            token.content = textwrap.dedent(token.content)
    return Markup(made.renderer.render(tokens, made.options, {}))


@cache
def _markdown() -> MarkdownIt:
    from markdown_it import MarkdownIt

    return MarkdownIt("commonmark", {"html": False}).disable(["html_block", "html_inline", "image", "link", "autolink"])


def ago(then: datetime, at: datetime | None = None) -> str:
    """``just now``, ``5 min ago``, ``3 h ago``, ``in 2 d``."""
    seconds = ((at or now()) - then).total_seconds()
    if abs(seconds) < 10:
        return "just now"
    if seconds > 0:
        return f"{_short(seconds)} ago"
    # What was given for 30 days says so, and not 29 a second later.
    size_s, unit = next((size_s, unit) for size_s, unit in _UNITS if -seconds >= size_s * (1 - _NEARLY))
    return f"in {int(-seconds / size_s + _NEARLY)} {unit}"


def _short(seconds: float) -> str:
    size_s, unit = next((size_s, unit) for size_s, unit in _UNITS if seconds >= size_s)
    return f"{int(seconds // size_s)} {unit}"


def moment(then: datetime) -> str:
    """``2026-01-28 10:30:45 UTC``."""
    return f"{then:%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """``340 ms``, ``12.3 s``, ``4 min 05 s``, ``2 h 03 min``, ``3 d 4 h``."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def money(usd: float) -> str:
    """``$0.00``, ``$0.0042``, ``$1.37``, ``$1,204``."""
    if usd >= 1000:
        return f"${usd:,.0f}"
    return f"${usd:.2f}" if usd >= 0.1 or usd == 0 else f"${usd:.4f}"


def size(count: int) -> str:
    """``512 B``, ``8.0 KB``, ``1.4 MB``."""
    value = float(count)
    for unit in ("B", "KB", "MB", "GB"):
        if value < 1024 or unit == "GB":
            break
        value /= 1024
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def grouped(count: Any) -> str:
    """``12,345``."""
    return f"{count:,}"

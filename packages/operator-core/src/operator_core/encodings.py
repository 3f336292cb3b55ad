"""Known strings in all their usual encodings, found fast: the search costs about the same for one as for a hundred."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterable, Sequence
from urllib.parse import quote, quote_plus

__all__ = ["Needles", "encodings_of"]

_STRIDES = (64, 32, 16)
_GRAM = 8
_PREFIX = 4
# Columns at which `base64` and `openssl base64` break lines.
_COLUMNS = (76, 64)


def encodings_of(text: str, shortest: int) -> set[str]:
    """A string, and what it looks like encoded: JSON, percent, hex, and base64 wherever it stands in a longer text.

    Args:
        shortest: Forms with fewer characters are left out.
    """
    raw = text.encode(errors="ignore")
    hexed = raw.hex()
    pairs = [hexed[at : at + 2] for at in range(0, len(hexed), 2)]
    escaped = "".join(f"\\u{unit:04x}" for unit in _utf16(text))
    plain_json = json.dumps(text)[1:-1]
    forms = {
        text,
        plain_json,
        json.dumps(text, ensure_ascii=False)[1:-1],
        plain_json.replace("/", "\\/"),
        "".join(f"\\u{ord(c):04x}" if c in "<>&'" else c for c in plain_json),
        escaped,
        "\\u".join(part.upper() for part in escaped.split("\\u")),
        hexed,
        hexed.upper(),
        "".join(f"%{pair}" for pair in pairs),
        "".join(f"%{pair.upper()}" for pair in pairs),
        "".join(f"\\x{pair}" for pair in pairs),
        *_percent(raw),
        *_base64(raw, shortest),
    }
    return {form for form in forms if len(form) >= shortest}


def _utf16(text: str) -> list[int]:
    units = text.encode("utf-16-be", "surrogatepass")
    return [int.from_bytes(units[at : at + 2]) for at in range(0, len(units), 2)]


def _percent(raw: bytes) -> set[str]:
    forms = {quote(raw, safe="/"), quote(raw, safe=""), quote(raw, safe="!'()*"), quote_plus(raw)}
    lower = set()
    for form in forms:
        first, *rest = form.split("%")
        lower.add("%".join([first, *(part[:2].lower() + part[2:] for part in rest)]))
    return forms | lower


def _base64(raw: bytes, shortest: int) -> set[str]:
    forms = set()
    for before in range(3):
        # The characters at both ends depend on the neighbours too.
        begin, end = (0, 2, 3)[before], (before + len(raw)) * 8 // 6
        forms.add(base64.b64encode(bytes(before) + raw)[begin:end].decode())
    whole = base64.b64encode(raw).decode()
    for columns in _COLUMNS:
        lines = (whole[at : at + columns].rstrip("=") for at in range(0, len(whole), columns))
        forms |= {line for line in lines if len(line) >= shortest}
    return forms | {form.replace("+", "-").replace("/", "_") for form in forms}


class Needles:
    """Strings to look for.

    Of a long string that stands anywhere, at least one of the 8-byte words at multiples of a stride lies within it. So
    these words alone are compared with those of the strings, and only where one matches the strings are searched for.

    Args:
        forms: All of them.
    """

    def __init__(self, forms: Iterable[str]) -> None:
        texts = sorted(set(forms))
        # What no UTF-8 can say cannot turn up in a stream of bytes.
        pairs = [(text, text.encode(errors="ignore")) for text in texts]
        self._stride = _stride_for([len(data) for _, data in pairs])
        self._short: list[tuple[str, bytes]] = []
        self._long: list[tuple[str, bytes]] = []
        words: set[int] = set()
        for text, data in pairs:
            if len(data) < self._stride + _GRAM - 1 or len(text.encode(errors="replace")) != len(data):
                self._short.append((text, data))
                continue
            self._long.append((text, data))
            words |= {int.from_bytes(data[at : at + _GRAM], sys.byteorder) for at in range(self._stride)}
        self._words = frozenset(words)
        self._short_texts, self._all_texts = _first(self._short), _first(self._short + self._long)
        self._short_bytes, self._all_bytes = _second(self._short), _second(self._short + self._long)
        self._beginnings: dict[bytes, list[bytes]] = {}
        self._stubs: set[bytes] = set()
        for data in self._all_bytes:
            self._beginnings.setdefault(data[:_PREFIX], []).append(data)
            self._stubs |= {data[:size] for size in range(1, _PREFIX)}
        self._longest = max(map(len, self._all_bytes), default=0)

    def in_text(self, value: str) -> Sequence[str]:
        """Those that may be in a string; all others are not."""
        if self._long and self._hit(value.encode(errors="surrogatepass")):
            return self._all_texts
        return self._short_texts

    def in_bytes(self, data: bytes) -> Sequence[bytes]:
        """Those that may be in these bytes; all others are not."""
        if self._long and self._hit(data):
            return self._all_bytes
        return self._short_bytes

    def _hit(self, data: bytes) -> bool:
        whole = len(data) & -_GRAM
        words = memoryview(data)[:whole].cast("Q")[:: self._stride // _GRAM]
        return not self._words.isdisjoint(words)

    def before_begun(self, data: bytes) -> int:
        """Where the earliest of them begins that the end of ``data`` may have cut off; its length if none does."""
        size = len(data)
        first = size
        for length in range(1, min(_PREFIX, size + 1)):
            if data[-length:] in self._stubs:
                first = size - length
        window = max(0, size - self._longest + 1)
        for beginning, forms in self._beginnings.items():
            at = data.find(beginning, window, first + _PREFIX)
            while 0 <= at < first:
                tail = data[at:]
                if any(len(tail) < len(form) and form.startswith(tail) for form in forms):
                    first = at
                at = data.find(beginning, at + 1, first + _PREFIX)
        return first


def _stride_for(lengths: list[int]) -> int:
    """The widest that still serves most of the strings."""
    for stride in _STRIDES:
        if 10 * sum(length >= stride + _GRAM - 1 for length in lengths) >= 9 * len(lengths):
            return stride
    return _STRIDES[-1]


def _first(pairs: list[tuple[str, bytes]]) -> list[str]:
    return [text for text, _ in pairs]


def _second(pairs: list[tuple[str, bytes]]) -> list[bytes]:
    return [data for _, data in pairs if data]

"""Secrets are taken out of everything that is stored, logged, streamed or exported.

Two sources: the *values* of environment variables whose names look secret and of configured credentials (wherever they
turn up, also in base64, hex, percent-encoding and JSON), and the *shapes* of well-known credentials (API keys, tokens,
private keys, passwords in URLs). It is the last net, not the boundary: a program that has a secret can write it in ways
that nobody foresees.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from operator_core.encodings import Needles, encodings_of

__all__ = ["MASK", "RedactFilter", "Redactor", "looks_secret", "without_named"]

MASK = "[REDACTED]"

_NAME = re.compile(
    r"(?i)(key|token|secret|passw(or)?d|passphrase|pwd|credential|auth|cookie|private|dsn|webhook|connection_string"
    r"|(^|_)(pass|creds?)(_|$))"
)
# Names that match the pattern above and hold no secret; masking their values would hide ordinary words.
_HARMLESS = re.compile(
    r"(?i)^((old)?pwd|ssh_auth_sock|xauthority|gpg_agent_info|(?!.*webhook_url).*_(file|path|dir|url|header|name|id))$"
)
# A parameter of an address; those that are no secret are not many.
_PARAMETER = re.compile(r"(?<=[?&])([\w.\[\]-]{1,64})=([^&#\s'\"]+)")
_MIN_LENGTH = 8

# Every shape begins with one of these literals (after so many characters), by which it is found: that is several times
# faster than a search for the expression.
_LITERALS: tuple[tuple[str, int], ...] = (
    *((text, 0) for text in ("sk-", "op_", "github_pat_", "xox", "AKIA", "ASIA", "eyJ", "://", "-----BEGIN ")),
    ("earer ", 1),
)
_GITHUB = "gh[pousr]_"
# A named group is the part that is the secret. All but the last are one word, and all have a greatest length: that
# is what makes it possible to redact a stream exactly.
_KEY_BEGIN = r"-----BEGIN [A-Z ]{0,32}PRIVATE KEY-----"
_KEY_END = r"-----END [A-Z ]{0,32}PRIVATE KEY-----"
_SHAPES = (
    # Not every word of that kind: `disk-exporter-5c8b9d7f4-x2x8k` is a name.
    r"sk-(?:(?:ant|proj|svcacct|admin|or|test|live)-[A-Za-z0-9_-]{16,2048}|[A-Za-z0-9]{32,2048})",
    # Our own, see operator_core.db.tokens.
    r"op_[0-9a-f]{12}_[A-Za-z0-9_-]{43}",
    r"gh[pousr]_[A-Za-z0-9]{20,255}",
    r"github_pat_[A-Za-z0-9_]{20,255}",
    r"xox[abprs]-[A-Za-z0-9-]{10,255}",
    r"A(?:KIA|SIA)[A-Z0-9]{16}",
    r"eyJ[A-Za-z0-9_-]{8,2400}\.eyJ[A-Za-z0-9_-]{8,2400}\.[A-Za-z0-9_-]{8,2400}",
    r"[Bb]earer (?P<bearer>[A-Za-z0-9._~+/=-]{16,4096})",
    r"://(?P<login>[^\s/:@'\"]{0,64}:[^\s/@'\"]{1,128})(?=@)",
    # A private key goes to its end; if that was cut off, as far as it looks like one.
    rf"(?P<key>{_KEY_BEGIN})" + r"(?:(?:\r?\n|\\n)[A-Za-z0-9+/=]{16,100}){0,80}",
)
_LONGEST_WORD = 8192
_LONGEST_KEY = 8500
_LONGEST_BODY = 8300
_BEGINNINGS_TEXT = (*_LITERALS, (re.compile(_GITHUB), 0))
_BEGINNINGS_BYTES = (*((text.encode(), ahead) for text, ahead in _LITERALS), (re.compile(_GITHUB.encode()), 0))
_SHAPE = "|".join(f"(?:{s})" for s in _SHAPES)
_SHAPE_TEXT, _SHAPE_BYTES = re.compile(_SHAPE, re.ASCII), re.compile(_SHAPE.encode())
_KEY_END_TEXT, _KEY_END_BYTES = re.compile(_KEY_END), re.compile(_KEY_END.encode())
_MAYBE_KEY = re.compile(rb"-----BEGIN (?:[A-Z ]{0,43}-{0,4}\Z|[A-Z ]{0,32}PRIVATE KEY-----)")
_BLANKS = tuple(bytes([b]) for b in b" \t\n\r\f\v")

_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")

_Span = tuple[int, int]


def looks_secret(name: str) -> bool:
    """Whether an environment variable of this name probably holds a secret."""
    return bool(_NAME.search(name)) and not _HARMLESS.match(name)


def without_named(value: Any) -> Any:
    """A JSON-like value without what its name says is secret, at any depth: members of objects, headers among them, and
    parameters of addresses. The name of a variable or of a file is no secret.
    """
    if isinstance(value, str):
        return _PARAMETER.sub(lambda m: f"{m[1]}={MASK}" if looks_secret(m[1]) else m[0], value)
    if isinstance(value, Mapping):
        return {k: MASK if _holds_secret(k, v) else without_named(v) for k, v in value.items()}
    return [without_named(item) for item in value] if isinstance(value, (list, tuple)) else value


def _holds_secret(name: Any, value: Any) -> bool:
    return isinstance(value, str) and looks_secret(str(name)) and not str(name).endswith(("_env", "_file"))


class Redactor:
    """Replaces secrets by ``[REDACTED]``.

    Args:
        secrets: Values to remove wherever they appear; values under 8 characters are ignored, because masking them
            would also mask ordinary text.
        shapes: Whether to remove also what only looks like a credential.
    """

    def __init__(self, secrets: Iterable[str] = (), *, shapes: bool = True) -> None:
        self._known: set[str] = set()
        self._shapes = shapes
        self._needles = Needles(())
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Remove these values too, from now on; a filter that was made before does not know them."""
        new = {secret for secret in secrets if len(secret) >= _MIN_LENGTH} - self._known
        if new:
            self._known |= new
            self._needles = Needles(form for secret in self._known for form in encodings_of(secret, _MIN_LENGTH))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Redactor:
        """A redactor that knows the secret-looking variables of this process's environment."""
        source = os.environ if environ is None else environ
        return cls(value for name, value in source.items() if looks_secret(name))

    def text(self, value: str) -> str:
        """The string without secrets."""
        literals = _BEGINNINGS_TEXT if self._shapes else ()
        spans = _spans(value, len(value), self._needles.in_text(value), literals, _SHAPE_TEXT, _KEY_END_TEXT)
        if not spans:
            return value
        out: list[str] = []
        covered = 0
        for start, end in spans:
            if start >= covered:
                out += (value[covered:start], MASK)
            covered = max(covered, end)
        return "".join((*out, value[covered:]))

    def column(self, value: str) -> str:
        """As :meth:`text`, for a text column: what no database can store (NUL, half characters) becomes U+FFFD."""
        return _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", self.text(value))

    def data(self, value: bytes) -> bytes:
        """The bytes without secrets."""
        whole = self.filter()
        return whole.feed(value) + whole.flush()

    def tree(self, value: Any) -> Any:
        """A JSON-like value with every string in it, keys included, redacted."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(k) if isinstance(k, str) else k: self.tree(v) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.tree(v) for v in value]
        return value

    def filter(self) -> RedactFilter:
        """A new streaming filter; one per stream."""
        return RedactFilter(self._needles, shapes=self._shapes)


class RedactFilter:
    """Redacts a stream of bytes: what comes out does not depend on how the stream was cut into chunks.

    It holds back the last, unfinished word, a private key until its end, and what may be the beginning of a known
    secret; everything else passes at once. Memory is bounded by one chunk and about 16 KiB.

    Args:
        needles: What to remove wherever it appears.
        shapes: Whether to remove also what only looks like a credential.
    """

    def __init__(self, needles: Needles, *, shapes: bool = True) -> None:
        self._needles = needles
        self._literals = _BEGINNINGS_BYTES if shapes else ()
        self._held = b""
        # So many bytes at the beginning of what is held belong to a secret whose mask is out already.
        self._covered = 0

    def feed(self, chunk: bytes) -> bytes:
        """Takes the next bytes; returns the redacted bytes that are safe to pass on (may be empty)."""
        data = self._held + chunk
        return self._pass_on(data, self._certain(data))

    def flush(self) -> bytes:
        """The redacted rest at the end of the stream."""
        return self._pass_on(self._held, len(self._held))

    def _pass_on(self, data: bytes, upto: int) -> bytes:
        out: list[bytes] = []
        covered = self._covered
        found = self._needles.in_bytes(data)
        for start, end in _spans(data, upto, found, self._literals, _SHAPE_BYTES, _KEY_END_BYTES):
            if start >= covered:
                out += (data[covered:start], MASK.encode())
            covered = max(covered, end)
        out.append(data[covered:upto])
        self._held, self._covered = data[upto:], max(0, covered - upto)
        return b"".join(out)

    def _certain(self, data: bytes) -> int:
        """Up to where it is certain which secrets begin there, whatever may still come."""
        if not self._literals:
            return self._needles.before_begun(data)
        tail = max(0, len(data) - _LONGEST_WORD)
        certain = max(tail, *(data.rfind(blank, tail) + 1 for blank in _BLANKS))
        if data[max(0, certain - 7) : certain].lower() == b"bearer ":
            certain -= 7
        begin = data.find(b"-----BEGIN ", max(0, len(data) - _LONGEST_KEY))
        while 0 <= begin < certain:
            maybe = _MAYBE_KEY.match(data, begin)
            if maybe and not _KEY_END_BYTES.search(data, maybe.end(), maybe.end() + _LONGEST_BODY):
                return min(self._needles.before_begun(data), begin)
            begin = data.find(b"-----BEGIN ", begin + 1)
        return min(self._needles.before_begun(data), certain)


def _spans(
    value: Any,
    upto: int,
    secrets: Sequence[Any],
    literals: tuple[Any, ...],
    shape: re.Pattern[Any],
    key_end: re.Pattern[Any],
) -> list[_Span]:
    """Where secrets are that begin before ``upto``, sorted; they may overlap."""
    spans: list[_Span] = []
    for secret in secrets:
        start = value.find(secret)
        while 0 <= start < upto:
            spans.append((start, start + len(secret)))
            start = value.find(secret, start + 1)
    for literal, ahead in literals:
        for start in _places(value, literal, ahead):
            if start - ahead >= upto:
                break
            if match := shape.match(value, start - ahead):
                begin, end = match.span(match.lastgroup or 0)
                if match.lastgroup == "key":
                    begin, body = match.start(), match.end("key")
                    found = key_end.search(value, body, body + _LONGEST_BODY)
                    end = found.end() if found else match.end()
                spans.append((begin, end))
    return sorted(spans)


def _places(value: Any, literal: Any, begin: int) -> Iterator[int]:
    if isinstance(literal, re.Pattern):
        yield from (match.start() for match in literal.finditer(value, begin))
        return
    start = value.find(literal, begin)
    while start >= 0:
        yield start
        start = value.find(literal, start + 1)

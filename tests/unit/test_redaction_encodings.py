"""A known secret is found in every encoding in which it is likely to turn up, however the stream is cut."""

from __future__ import annotations

import base64
import itertools
import json
import os
import subprocess
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from operator_core.encodings import Needles, encodings_of
from operator_core.redaction import MASK, Redactor

SECRET = 'p@ss/w+rd ünd="5f3c9e1b"'
PLAIN = "Zk9vQmFyQmF6UXV4MTIzNDU2Nzg5MGFiY2RlZg"
SECRETS = [SECRET, PLAIN, "kurz-8-x", "postgres://me:hunter2@db.example:5432/app?sslmode=require"]

ENCODERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda s: json.dumps(s)[1:-1],
    "json, not ASCII": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "json of PHP": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "json of Go": lambda s: json.dumps(s)[1:-1].replace("<", "\\u003c").replace("&", "\\u0026"),
    "all \\u": lambda s: "".join(f"\\u{ord(c):04x}" for c in s),
    "all \\U": lambda s: "".join(f"\\u{ord(c):04X}" for c in s),
    "\\x": lambda s: "".join(f"\\x{b:02x}" for b in s.encode()),
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
    "percent": lambda s: quote(s, safe=""),
    "percent of a path": quote,
    "percent, small letters": lambda s: quote(s, safe="").replace("%2F", "%2f").replace("%C3%BC", "%c3%bc").replace(
        "%2B", "%2b").replace("%3D", "%3d").replace("%3A", "%3a").replace("%3F", "%3f"),
    "percent of a form": quote_plus,
    "encodeURIComponent": lambda s: quote(s, safe="!'()*"),
    "percent, all": lambda s: "".join(f"%{b:02X}" for b in s.encode()),
    "base64": lambda s: base64.b64encode(s.encode()).decode(),
    "base64 without padding": lambda s: base64.b64encode(s.encode()).decode().rstrip("="),
    "base64url": lambda s: base64.urlsafe_b64encode(s.encode()).decode(),
}  # fmt: skip


def leaks(text: str, encoded: str) -> bool:
    """Whether twelve characters in a row of the secret are left (or eight of a short one)."""
    size = 12 if len(encoded) > 16 else 8
    return any(encoded[at : at + size] in text for at in range(len(encoded) - size + 1))


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("secret", SECRETS, ids=["mixed", "long", "short", "address"])
def test_each_encoding_is_found(secret: str, name: str) -> None:
    encoded = ENCODERS[name](secret)
    redactor = Redactor(SECRETS)
    for text in (encoded, f"before {encoded} after", f'{{"k":"{encoded}"}}', f"{'x' * 5000}\n{encoded}{'y' * 70}"):
        clean = redactor.text(text)
        assert MASK in clean
        assert not leaks(clean, encoded), clean
        assert redactor.data(text.encode()).decode() == clean


@pytest.mark.parametrize("before", range(7))
@pytest.mark.parametrize("secret", [SECRET, PLAIN])
def test_base64_of_a_longer_text_is_found_wherever_the_secret_stands_in_it(secret: str, before: int) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        for after in range(4):
            encoded = encode(b"x" * before + secret.encode() + b"y" * after).decode()
            clean = Redactor([secret]).text(f"auth: {encoded}.")
            assert MASK in clean
            # What is left at both ends stands for a byte of the secret at most.
            assert len(clean) - len("auth: .") - len(MASK) <= (before + after + 3) * 4 // 3 + 4


@pytest.mark.parametrize(("program", "columns"), [("base64", 76), ("openssl", 64)])
def test_what_the_programs_print_of_a_long_secret_is_found(program: str, columns: int) -> None:
    secret = "".join(chr(33 + (n * 7) % 90) for n in range(200))
    words = ["base64"] if program == "base64" else ["openssl", "base64"]
    printed = subprocess.run(words, input=secret.encode(), capture_output=True, check=True).stdout.decode()
    assert max(map(len, printed.splitlines())) == columns
    clean = Redactor([secret]).text(printed)
    assert not any(leaks(clean, line) for line in printed.splitlines())
    assert Redactor([secret]).data(printed.encode()).decode() == clean


def test_ordinary_text_around_encodings_is_left_alone() -> None:
    redactor = Redactor(SECRETS)
    other = "Zk9vQmFyQmF6UXV4MTIzNDU2Nzg5MGFiXXRlZg"
    for text in (other, other.encode().hex(), base64.b64encode(other.encode()).decode(), "%20%2F", "\\u0070\\u0040"):
        assert redactor.text(text) == text
        assert redactor.data(text.encode()) == text.encode()


def test_a_secret_that_is_learned_later_is_found_from_then_on() -> None:
    redactor = Redactor()
    assert redactor.text(PLAIN) == PLAIN
    redactor.learn([PLAIN, "short"])
    assert redactor.text(f"{PLAIN} short") == f"{MASK} short"
    assert redactor.data(PLAIN.encode().hex().encode()) == MASK.encode()
    redactor.learn([SECRET])
    assert redactor.text(f"{PLAIN} {SECRET}") == f"{MASK} {MASK}"


def test_without_shapes_only_known_values_are_taken_out() -> None:
    redactor = Redactor([PLAIN], shapes=False)
    other = "Bearer abcdefghijklmnopqrstuvwxyz ghp_" + "a" * 36
    assert redactor.text(f"{other} {PLAIN}") == f"{other} {MASK}"
    assert redactor.data(f"{other} {PLAIN}".encode()) == f"{other} {MASK}".encode()


def test_what_no_utf8_can_say_is_found_in_text() -> None:
    secret = "half-\ud800-character-and-more-of-it"
    redactor = Redactor([secret, PLAIN])
    assert redactor.text(f"a {secret} b {PLAIN}") == f"a {MASK} b {MASK}"
    assert redactor.text("\ud800 x") == "\ud800 x"


# ---- streams

PIECE = st.sampled_from([encode(secret) for secret in SECRETS for encode in ENCODERS.values()])
NOISE = st.text(st.sampled_from('aZ9 \n%\\u"=+/{'), max_size=40)
STREAM = st.lists(PIECE | PIECE.map(lambda p: p[:-1]) | PIECE.map(lambda p: p[1:]) | NOISE, max_size=8).map("".join)


@settings(max_examples=400)
@given(text=STREAM, cuts=st.lists(st.integers(0, 2000), max_size=12))
def test_however_a_stream_is_cut_the_same_comes_out(text: str, cuts: list[int]) -> None:
    data = text.encode()
    redactor = Redactor(SECRETS)
    whole = redactor.data(data)
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    stream = redactor.filter()
    out = b"".join([*(stream.feed(data[a:b]) for a, b in itertools.pairwise(edges)), stream.flush()])
    assert out == whole
    assert redactor.text(text).encode() == whole
    assert redactor.data(whole) == whole, "cleaning twice changes nothing"


@settings(max_examples=60)
@given(text=STREAM, shapes=st.booleans())
def test_one_byte_at_a_time(text: str, shapes: bool) -> None:
    data = text.encode()
    redactor = Redactor(SECRETS, shapes=shapes)
    stream = redactor.filter()
    out = b"".join([*(stream.feed(data[n : n + 1]) for n in range(len(data))), stream.flush()])
    assert out == redactor.data(data)


@settings(max_examples=200)
@given(
    forms=st.lists(st.text(st.sampled_from("abAB01"), min_size=8, max_size=90), min_size=1, max_size=6),
    before=st.binary(max_size=80),
    after=st.binary(max_size=80),
    data=st.data(),
)
def test_no_place_in_a_text_is_missed(forms: list[str], before: bytes, after: bytes, data: st.DataObject) -> None:
    needles = Needles(forms)
    form = data.draw(st.sampled_from(forms)).encode()
    assert form in needles.in_bytes(before + form + after)
    assert form.decode() in needles.in_text((before + form + after).decode("latin-1"))


def test_a_form_is_looked_for_once() -> None:
    assert len(encodings_of("abcdefgh12345678", 8)) < 12, "for a plain word most encodings are the same"
    assert all(len(form) >= 8 for form in encodings_of("abcdefgh", 8))


def test_many_secrets_cost_about_as_much_as_none() -> None:
    secrets = [base64.b64encode(os.urandom(30)).decode() for _ in range(20)]
    chunk = (os.urandom(1 << 10).hex().encode() + b"\n") * 64

    def seconds(redactor: Redactor) -> float:
        best = 9.0
        for _ in range(5):
            stream = redactor.filter()
            start = time.process_time()
            for _ in range(40):
                stream.feed(chunk)
            best = min(best, time.process_time() - start)
        return best

    assert seconds(Redactor(secrets)) < 1.6 * seconds(Redactor())

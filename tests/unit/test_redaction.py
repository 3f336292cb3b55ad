"""Secrets are found wherever they stand and however a stream is cut; ordinary text is left alone."""

from __future__ import annotations

import itertools
import json
import os
import time

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from operator_core.redaction import MASK, Redactor, looks_secret, without_named

KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "MIIEpAIBAAKCAQEAvq8ZlLaPB+2x0hJ7cN3yQd8S1mW5uKz4tRfYgHjKlMnOpQrS\n" * 12
    + "-----END RSA PRIVATE KEY-----"
)
JWT = f"eyJ{'a' * 500}.eyJ{'b' * 900}.{'c' * 300}"
SHAPES = [
    "sk-ant-api03-abcdefghijklmnop",
    "ghp_" + "a1" * 18,
    "op_0123456789ab_" + "aB3_-" * 8 + "xyz",
    "github_pat_" + "b2" * 20,
    "xoxb-1234567890-abcdef",
    "AKIAABCDEFGHIJKLMNOP",
    JWT,
    KEY,
]
NAMED = ["canary-5f3c9e1b", "two words and\na newline", 'quo"ted\\back', "ümläut-geheim", "aaaaaaaa", "aaaaaaaab"]


@pytest.mark.parametrize("secret", SHAPES, ids=lambda s: s[:12])
@pytest.mark.parametrize("around", ["{}", "before {} after", '{{"k": "{}"}}', "x={},", "\n{}\n", "é{}é"])
def test_well_known_shapes_are_found(secret: str, around: str) -> None:
    text = around.format(secret)
    clean = around.format(MASK)
    assert Redactor().text(text) == clean
    assert Redactor().data(text.encode()) == clean.encode()


def test_a_password_in_an_address_and_a_bearer_token() -> None:
    redactor = Redactor()
    assert redactor.text("postgres://me:hunter2@db:5432/x") == f"postgres://{MASK}@db:5432/x"
    assert redactor.text("redis://:hunter2@db") == f"redis://{MASK}@db"
    assert redactor.text("Authorization: Bearer abc.def-ghi_jkl~mno+pqr/stu=") == f"Authorization: Bearer {MASK}"
    assert redactor.text("Bearer sk-ant-aaaaaaaaaaaaaaaaaaaa.bbbbbbbbbb") == f"Bearer {MASK}"
    assert redactor.text("bearer token is needed") == "bearer token is needed"


@pytest.mark.parametrize(
    "text",
    [
        "sk-learn is a library", "http://localhost:8080/path?q=a:b@c", "disk-exporter-5c8b9d7f4-x2x8k-and-more",
        "ghost_town",
        "-----BEGIN CERTIFICATE-----\nMIIC\n-----END CERTIFICATE-----", "eyJ.eyJ.x", "AKIA", "user@host:port",
        "2026-01-28T10:30:45 GET /health 200",
    ],
)  # fmt: skip
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor(["short", ""]).text(text) == text
    assert Redactor(["short"]).data(text.encode()) == text.encode()


def test_a_key_whose_end_was_cut_off_is_masked_as_far_as_it_goes() -> None:
    cut = KEY[:400]
    assert Redactor().text(cut).startswith(MASK)
    assert "MIIEpAIBAAKCAQEA" not in Redactor().text(cut)
    assert "MIIEpAIBAAKCAQEA" not in Redactor().text(json.dumps(cut))
    assert Redactor().data(cut.encode()) == Redactor().text(cut).encode()


def test_values_of_the_environment_are_found_also_inside_json() -> None:
    environ = {
        "MY_TOKEN": 'quo"ted\\secret',
        "DB_PASSWORD": "hünter-two-two",
        "PATH": "/usr/bin:/bin",
        "API_KEY": "short",
    }
    redactor = Redactor.from_environment(environ)
    for value in ('quo"ted\\secret', "hünter-two-two"):
        for text in (value, json.dumps({"v": value}), json.dumps({"v": value}, ensure_ascii=False)):
            assert value not in redactor.text(text)
            assert MASK in redactor.text(text)
            assert redactor.data(text.encode()) == redactor.text(text).encode()
    assert redactor.text("/usr/bin:/bin short") == "/usr/bin:/bin short"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True), ("GITHUB_TOKEN", True), ("PGPASSWORD", True), ("MYSQL_PWD", True),
        ("AWS_SECRET_ACCESS_KEY", True), ("SENTRY_DSN", True), ("SESSION_COOKIE", True), ("PATH", False),
        ("SSH_AUTH_SOCK", False), ("XAUTHORITY", False), ("SSL_KEY_FILE", False), ("HOME", False),
        ("DB_PASS", True), ("SSH_PASSPHRASE", True), ("SMTP_CREDS", True), ("SLACK_WEBHOOK_URL", True),
        ("AZURE_STORAGE_CONNECTION_STRING", True), ("COMPASS", False), ("BYPASS_RULES", False), ("KEYS_URL", False),
    ],
)  # fmt: skip
def test_which_names_look_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


def test_trees_are_cleaned_keys_included() -> None:
    redactor = Redactor(["canary-5f3c9e1b"])
    tree = {"a": ["x canary-5f3c9e1b", 1, None, True, {"canary-5f3c9e1b": ("canary-5f3c9e1b",)}]}
    assert redactor.tree(tree) == {"a": [f"x {MASK}", 1, None, True, {MASK: [MASK]}]}


def test_overlapping_secrets_leave_no_rest() -> None:
    redactor = Redactor(["abcdefgh", "efghijkl", "12345678"])
    assert redactor.text("x abcdefghijkl y") == f"x {MASK} y"
    assert redactor.text("postgres://u:abcdefgh ijkl@h") == f"postgres://u:{MASK} ijkl@h"
    assert redactor.text("1234567812345678") == MASK * 2
    assert Redactor(["aaaaaaaa"]).text("a" * 21) == MASK


def test_a_column_can_always_be_stored() -> None:
    assert Redactor(["canary-5f3c9e1b"]).column("a\0b\ud800 canary-5f3c9e1b 𝕏") == f"a\ufffdb\ufffd {MASK} 𝕏"


# ---- streams

PIECE = st.sampled_from([*SHAPES, *NAMED, JWT[:700], KEY[:300], KEY[60:], "Bearer ", "bearer abcdefghijklmnopqrst"])
NOISE = st.text(st.sampled_from('ab \n\t-:/@s.k=BEGIN"\\ü'), max_size=30)
STREAM = st.lists(PIECE | NOISE, max_size=8).map(lambda parts: "".join(parts).encode())
CUTS = st.lists(st.integers(0, 4000), max_size=12)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


@settings(max_examples=600)
@given(data=STREAM, cuts=CUTS)
@example(data=f"x {JWT} y".encode(), cuts=[100, 600, 1000, 1500, 1700])
@example(data=f"x {KEY}".encode(), cuts=[5, 20, 33, 40, 300, 860])
@example(data=b"Bearer abcdefghijklmnopqrstuvwxyz", cuts=[6, 7, 10])
@example(data=b"a" * 40, cuts=list(range(40)))
def test_however_a_stream_is_cut_the_same_comes_out(data: bytes, cuts: list[int]) -> None:
    redactor = Redactor(NAMED)
    whole = redactor.data(data)
    stream = redactor.filter()
    assert b"".join([*map(stream.feed, cut(data, cuts)), stream.flush()]) == whole
    assert stream.flush() == b""
    for secret in (*SHAPES[:-1], *NAMED):
        assert secret.encode() not in whole
    assert redactor.text(data.decode()).encode() == whole
    assert redactor.data(whole) == whole, "cleaning twice changes nothing"


@given(data=STREAM)
@settings(max_examples=100)
def test_one_byte_at_a_time(data: bytes) -> None:
    redactor = Redactor(NAMED)
    stream = redactor.filter()
    out = b"".join([*(stream.feed(data[n : n + 1]) for n in range(len(data))), stream.flush()])
    assert out == redactor.data(data)


@given(data=st.binary(max_size=300), cuts=CUTS)
def test_any_bytes_pass_unchanged_without_secrets(data: bytes, cuts: list[int]) -> None:
    stream = Redactor().filter()
    out = b"".join([*map(stream.feed, cut(data, cuts)), stream.flush()])
    if Redactor().data(data) == data:
        assert out == data


def test_a_finished_word_passes_at_once() -> None:
    stream = Redactor(NAMED).filter()
    assert stream.feed(b"hello world\n") == b"hello world\n"
    assert stream.feed(b"progress 10% sk-") == b"progress 10% "
    assert stream.feed(b"learn\n") == b"sk-learn\n"


def test_what_is_held_back_is_bounded() -> None:
    for filling in (b"x", b"sk-", b"-----BEGIN RSA PRIVATE KEY-----\n", b"aaaa", b"://:"):
        stream = Redactor(NAMED).filter()
        fed = out = 0
        for _ in range(200):
            chunk = filling * (8192 // len(filling))
            fed += len(chunk)
            stream.feed(chunk)
            out = max(out, len(stream._held))
        assert out < 32 << 10, (filling, out)
        assert fed > 1 << 20


def test_a_long_stream_costs_little() -> None:
    chunk = os.urandom(1 << 10).hex().encode() * 32
    stream = Redactor(NAMED).filter()
    start = time.process_time()
    for _ in range(64):
        stream.feed(chunk)
    assert time.process_time() - start < 4, "slower than 1 MiB/s: a big output would stop the session"


def test_what_is_named_like_a_secret_is_not_shown() -> None:
    value = {
        "url": "https://h.example.com/x?page=2&access_token=abc123&q=a#f",
        "command": "curl 'http://h/?api_key=abc123' | sort --key=2",
        "headers": {"X-Api-Key": "abc123", "Accept": "text/html", "Cookie": "sid=abc123"},
        "secret_env": "HOOK_SECRET",
        "list": ["https://h/?sig=1&token=abc123", 7, None],
    }
    shown = without_named(value)
    assert "abc123" not in repr(shown)
    assert shown["url"] == f"https://h.example.com/x?page=2&access_token={MASK}&q=a#f"
    assert shown["command"] == f"curl 'http://h/?api_key={MASK}' | sort --key=2"
    assert shown["headers"] == {"X-Api-Key": MASK, "Accept": "text/html", "Cookie": MASK}
    assert shown["secret_env"] == "HOOK_SECRET"

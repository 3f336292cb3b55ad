"""Doors of the configuration, the words that are filled from messages, and the signatures of senders."""

from __future__ import annotations

import hashlib
import hmac
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.config import Settings, load_settings
from operator_core.errors import ConfigError, IntakeRefused
from operator_core.intake.document import parse_document
from operator_core.intake.items import harmless_labels, of_severity, short_key
from operator_core.intake.reception import closed_doors, secret_of
from operator_core.intake.signature import check_bearer, check_github, check_signed, sign
from operator_core.model.intake import Intake
from operator_core.model.template import Template
from tests.support.webhooks import SAMPLES, from_github

DOOR = '[[intake]]\nname = "d"\n'
NOW = 1_800_000_000


def refused(tmp_path: Path, text: str) -> str:
    file = tmp_path / "operator.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ={})
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_the_example_is_a_configuration() -> None:
    doors = load_settings(SAMPLES / "operator.toml", environ={}).settings.intake
    assert [(door.name, door.kind) for door in doors] == [
        ("alerts", "alertmanager"),
        ("builds", "webhook"),
        ("github", "github"),
    ]


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ('kind = "alertmanager"', "no door is open to everybody"),
        ('kind = "alertmanager"\nsecret_env = "S"\nsecret_file = "s"', "no door is open to everybody"),
        ('kind = "webhook"\nsecret_env = "S"', "needs a table [intake.webhook]"),
        ('kind = "alertmanager"\nsecret_env = "S"\n[intake.webhook]\n[intake.webhook.incident]\nname = "a"\n'
         'message = "b"', "has no meaning for the kind 'alertmanager'"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook]\neach = "a"', "either `incident` or `task`"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook.incident]\nname = "{a"\nmessage = "b"', "a single '{'"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook.incident]\nname = "{a..b}"\nmessage = "b"', "not a path"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook]\nwhen = {"a[" = ["b"]}\n[intake.webhook.incident]\n'
         'name = "a"\nmessage = "b"', "not a path"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook.incident]\nname = "a"\nmessage = "b"\nkeys = "c"',
         "'key' is meant"),
        ('kind = "webhook"\nsecret_env = "S"\n[intake.webhook]\nobserve = {a = ["b"]}\n[intake.webhook.task]\n'
         'prompt = "p"', "without a `key`"),
        ('kind = "github"\nsecret_env = "S"\n[intake.github]\nlabel = "x"\nrepository = []', "at least 1 item"),
        ('kind = "github"\nsecret_env = "S"\n[intake.github]\nlabel = "x"\n[[intake.github.repository]]\nname = "x"',
         "should match pattern"),
        ('kind = "github"\nsecret_env = "S"\n[intake.github]\nlabel = "x"\nrepository = [{name = "A/b"}, '
         '{name = "a/B"}]', "named twice"),
        ('kind = "github"\nsecret_env = "S"\n[intake.github]\nlabel = "x"\nrepository = [{name = "A/b", check = []}]',
         "'checks' is meant"),
    ],
)  # fmt: skip
def test_a_wrong_door_is_refused_with_one_sentence(tmp_path: Path, rest: str, said: str) -> None:
    assert said in refused(tmp_path, DOOR + rest)


def test_the_file_of_a_secret_is_relative_to_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "operator.toml").write_text(DOOR + 'kind = "alertmanager"\nsecret_file = "s.txt"')
    (door,) = load_settings(tmp_path / "operator.toml", environ={}).settings.intake
    assert door.secret_file == tmp_path / "s.txt"


# ---- templates


@pytest.mark.parametrize(
    ("words", "filled"),
    [
        ("plain", "plain"),
        ("", ""),
        ("{a.b[1]} and {{a}} and }}", "two and {a} and }"),
        ("{n} {t} {f} {o}", '3 true 1.5 {"x":[1]}'),
        ("{gone|a default: |}", "a default: |"),
        ("{nil|was null}{gone|}", "was null"),
        ("{evil}", "{a.b[1]} {{ %s ${x} {0}"),
        ("{a b.c-d/e}", "odd"),
    ],
)
def test_a_template_is_filled_from_a_document(words: str, filled: str) -> None:
    document = {
        "a": {"b": ["one", "two"]}, "n": 3, "t": True, "f": 1.5, "o": {"x": [1]}, "nil": None,
        "evil": "{a.b[1]} {{ %s ${x} {0}", "a b": {"c-d/e": "odd"},
    }  # fmt: skip
    assert Template.parse(words).fill(document) == filled


@pytest.mark.parametrize("words", ["{", "}", "{a", "a}", "{}", "{a{b}}", "{.a}", "{a[x]}", "{|x}"])
def test_what_is_no_template_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=r"single|path"):
        Template.parse(words)


@pytest.mark.parametrize("words", ["{gone}", "{nil}", "{a.b[9]}", "{a.b.c}"])
def test_a_place_with_nothing_in_it_is_an_error(words: str) -> None:
    with pytest.raises(LookupError, match="nothing is at"):
        Template.parse(words).fill({"nil": None, "a": {"b": []}})


@given(st.text())
def test_any_text_with_its_braces_doubled_means_itself(text: str) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    assert Template.parse(doubled).fill({}) == text


@given(st.text(), st.text())
def test_what_is_filled_in_is_not_looked_at_again(left: str, right: str) -> None:
    assert Template.parse("{a}{b}").fill({"a": left, "b": right}) == left + right


# ---- signatures


def test_the_signature_is_the_documented_one() -> None:
    body = b'{"a": 1}'
    wanted = hmac.new(b"k" * 16, b"1800000000." + body, hashlib.sha256).hexdigest()
    headers = {"x-operator-timestamp": str(NOW), "x-operator-signature": f"v1={wanted}"}
    assert check_signed(b"k" * 16, headers, body, now=NOW, tolerance_s=300) == f"v1={wanted}"


@pytest.mark.parametrize(
    "change",
    [
        {"x-operator-signature": ""},
        {"x-operator-signature": "v1=" + "0" * 64},
        {"x-operator-signature": "v1=é"},
        {"x-operator-timestamp": ""},
        {"x-operator-timestamp": str(NOW + 1)},
        {"x-operator-timestamp": f" {NOW}"},
        {"x-operator-timestamp": f"0{NOW}"},
        {"x-operator-timestamp": "1_800_000_000"},
        {"x-operator-timestamp": "١٨٠٠٠٠٠٠٠٠"},
        {"x-operator-timestamp": "9" * 5000},
    ],
)
def test_another_time_or_signature_is_refused(change: dict[str, str]) -> None:
    headers = {"x-operator-timestamp": str(NOW), "x-operator-signature": sign(b"k" * 16, NOW, b"{}")}
    with pytest.raises(IntakeRefused, match="signature is missing or wrong") as caught:
        check_signed(b"k" * 16, {**headers, **change}, b"{}", now=NOW, tolerance_s=300)
    assert caught.value.status == 401


@pytest.mark.parametrize(("off", "fine"), [(300, True), (-300, True), (301, False), (-301, False)])
def test_an_old_or_new_message_is_refused(off: int, fine: bool) -> None:
    headers = {"x-operator-timestamp": str(NOW - off), "x-operator-signature": sign(b"k" * 16, NOW - off, b"{}")}
    if fine:
        check_signed(b"k" * 16, headers, b"{}", now=NOW, tolerance_s=300)
    else:
        with pytest.raises(IntakeRefused, match="301 s away"):
            check_signed(b"k" * 16, headers, b"{}", now=NOW, tolerance_s=300)


def test_a_signature_of_github_is_of_every_byte() -> None:
    headers = {k.lower(): v for k, v in from_github(b"{}", secret="s" * 16).items()}
    check_github(b"s" * 16, headers, b"{}")
    for body, secret, changed in (
        (b"{} ", b"s" * 16, headers),
        (b"{}", b"t" * 16, headers),
        (b"{}", b"s" * 16, {}),
        (b"{}", b"s" * 16, {"x-hub-signature-256": headers["x-hub-signature-256"].upper()}),
    ):
        with pytest.raises(IntakeRefused, match="signature"):
            check_github(secret, changed, body)


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", "Basic s3cret-s3cret-s3c", "Bearer s3cret", "Bearer ü", "s3cret-s3cret-s3c"]
)
def test_a_wrong_bearer_is_refused(given: str) -> None:
    check_bearer(b"s3cret-s3cret-s3c", {"authorization": "bearer s3cret-s3cret-s3c"})
    with pytest.raises(IntakeRefused, match="Bearer"):
        check_bearer(b"s3cret-s3cret-s3c", {"authorization": given})


def test_a_door_without_a_secret_stays_closed(tmp_path: Path) -> None:
    env = Intake(name="d", kind="alertmanager", secret_env="S")
    file = Intake(name="d", kind="alertmanager", secret_file=tmp_path / "s")
    for door, environ in ((env, {}), (env, {"S": ""}), (env, {"S": "x" * 15}), (env, {"S": " " * 40}), (file, {})):
        with pytest.raises(IntakeRefused, match="stays closed") as caught:
            secret_of(door, environ)
        assert caught.value.status == 503
    only = Settings(intake=(env, file.model_copy(update={"name": "e"})))
    assert [line.rpartition(" into ")[2] for line in closed_doors(only, {})] == [
        "the variable S.",
        f"the file {tmp_path / 's'}.",
    ]
    (tmp_path / "s").write_text("x" * 16 + "\n")
    assert closed_doors(only, {"S": "x" * 16}) == []
    assert secret_of(file, {}) == b"x" * 16
    (tmp_path / "s").write_text("y" * 20)
    assert secret_of(file, {}) == b"y" * 20, "a rotated secret is taken up"


# ---- documents and words


@pytest.mark.parametrize(
    "body",
    [b"", b"x", b"\xff\xfe", b"{", b'{"a": NaN}', b'{"a": Infinity}', b'{"a": 1e999}', b'{"a": -1e999}', b"[" * 200_000,
     b"[" * 60 + b"]" * 60, b'{"a":' * 60 + b"1" + b"}" * 60, b"9" * 5000, "{}".encode("utf-16")],
)  # fmt: skip
def test_what_is_no_usable_json_is_refused(body: bytes) -> None:
    with pytest.raises(IntakeRefused) as caught:
        parse_document(body)
    assert caught.value.status == 400


def test_what_no_database_can_store_is_replaced() -> None:
    assert parse_document(b'{"a\\u0000": ["\\ud800", "\\ud83d\\ude00"]}') == {"a�": ["�", "\U0001f600"]}


@pytest.mark.parametrize(
    ("word", "meant"),
    [("Critical", "critical"), (" page ", "critical"), ("ticket", "warning"), ("none", "info"), ("sev0", "critical"),
     ("INFO", "warning"), ("purple", None), ("", None)],
)  # fmt: skip
def test_words_of_severity(word: str, meant: str | None) -> None:
    assert of_severity(word, {"SEV0": "critical", "info": "warning"}) == meant


@given(st.text())
def test_a_key_is_short_and_printable_and_keeps_its_difference(text: str) -> None:
    key = short_key(text)
    assert 0 < len(key) <= 200
    assert key.isprintable()
    assert short_key(text + "x") != key


def test_labels_are_bounded() -> None:
    many: dict[str, Any] = {f"l{n}": "v" * 5000 for n in range(200)}
    kept = harmless_labels({"": "x", "empty": " ", "a\x1b[31m\nb": "c", **many})
    assert len(kept) == 64
    assert "a b" in kept
    assert all(len(value) <= 500 for value in kept.values())


def test_no_door_by_default() -> None:
    assert Settings().intake == ()

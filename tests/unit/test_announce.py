"""Rules, words and neutral text of notifications; addresses and signatures of channels."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
import unicodedata
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from operator_core import clock
from operator_core.announce.announcer import due_moment
from operator_core.announce.by_apprise import SCHEMES, check_address, outcome_of, secrets_in
from operator_core.announce.digest_words import digest_words
from operator_core.announce.neutral import neutral
from operator_core.announce.news import News
from operator_core.announce.rules import channels_for, may_matter
from operator_core.announce.secret import access_of
from operator_core.announce.webhook import key_of, signature
from operator_core.announce.words import crowd_words, ticket_words
from operator_core.config import load_settings
from operator_core.errors import ConfigError
from operator_core.model.digest import Digest, Line
from operator_core.model.notification import Channel, DigestPlan, NotifyRule
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.notify.outbox import Later
from operator_core.redaction import Redactor

HOSTILE = (
    "@everyone <!channel> <https://evil.example/x|our console> [login](https://evil.example) ![p](//evil.example/p.png)"
    " ```\n\n**RESOLVED** by Operator\r\n<script>alert(1)</script> \x1b[2J\u202egnp.exe\u2066 a\u200bb www.evil.example"
    " mailto:boss@evil.example ||x|| ~~y~~ \\[z] "
)


def news(**values: Any) -> News:
    fields: dict[str, Any] = {
        "id": "5f" * 32,
        "seq": 7,
        "at": clock.now(),
        "ticket_id": 12,
        "kind": "incident",
        "name": "disk-full",
        "severity": "critical",
        "message": "The disk is full.",
        "state": "escalated",
        "reason": "gave_up",
    }
    return News.model_validate({**fields, **values})


# ---- rules


def test_a_rule_without_conditions_tells_of_what_people_care_about() -> None:
    rule = NotifyRule(channels=("ops",))
    told = {s for s in TicketStatus if channels_for([rule], news(state=s, reason=None))}
    assert told == {TicketStatus.WAITING_FOR_INPUT, TicketStatus.ESCALATED, TicketStatus.RESOLVED}


@pytest.mark.parametrize(
    ("conditions", "fits"),
    [
        ({}, True),
        ({"states": ["resolved"]}, False),
        ({"reasons": ["gave_up"]}, True),
        ({"reasons": ["budget"]}, False),
        ({"severities": ["critical", "info"]}, True),
        ({"severities": ["warning"]}, False),
        ({"kinds": ["incident"]}, True),
        ({"kinds": ["task"]}, False),
        ({"names": ["cpu", "disk-*"]}, True),
        ({"names": ["disk"]}, False),
        ({"labels": {"team": "db*"}}, True),
        ({"labels": {"team": "db*", "env": "*"}}, False),
        ({"labels": {"team": "web"}}, False),
        ({"severities": ["critical"], "kinds": ["task"]}, False),
    ],
)
def test_all_conditions_of_a_rule_must_hold(conditions: dict[str, Any], fits: bool) -> None:
    rule = NotifyRule.model_validate({"channels": ["ops"], **conditions})
    assert bool(channels_for([rule], news(labels={"team": "dba"}))) is fits


def test_a_channel_is_told_once_and_everyday_work_only_when_it_is_named() -> None:
    rules = [
        NotifyRule(channels=("a", "b")),
        NotifyRule(channels=("b", "c"), severities=("critical",)),
        NotifyRule(channels=("d",), states=(TicketStatus.OPEN,)),
        NotifyRule(channels=("e",), states=(TicketStatus.OPEN,), reasons=(Reason.RELEASED,)),
    ]
    assert channels_for(rules, news()) == ["a", "b", "c"]
    assert channels_for(rules, news(state="open", reason="violation")) == ["d"]
    assert channels_for(rules, news(state="open", reason="released")) == ["e"]
    assert channels_for(rules, news(state="open", reason="answered")) == []
    assert not may_matter(rules, "running", "claimed")
    assert may_matter(rules, "open", "released")


# ---- what a configuration may say

APPRISE: dict[str, Any] = {"name": "ops", "kind": "apprise"}
WEBHOOK: dict[str, Any] = {"name": "hook", "kind": "webhook", "secret_env": "S"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (APPRISE, "needs one of `url_env` and `url_file`"),
        ({**APPRISE, "url_env": "A", "url_file": "b"}, "needs one of"),
        ({**APPRISE, "url": "slack://a/b/c"}, "holds secrets"),
        ({**APPRISE, "url_env": "A", "secret_env": "B"}, "only webhooks are signed"),
        ({"name": "h", "kind": "webhook", "url": "https://a.example/"}, "either `secret_env` or `secret_file`"),
        ({**WEBHOOK, "url": "https://a.example/", "secret_file": "b"}, "either `secret_env` or `secret_file`"),
        ({**WEBHOOK, "url": "ftp://a.example/"}, "must be http"),
        ({**WEBHOOK, "url": "https://user:pw@a.example/"}, "without a login"),
        ({**WEBHOOK, "url": "https://a.example/", "give_up_hours": 0}, "greater than 0"),
        ({**APPRISE, "name": "Ops Team", "url_env": "A"}, "match pattern"),
    ],
)
def test_a_channel_that_cannot_work_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        Channel.model_validate(fields)


def test_the_configuration_knows_channels_and_finds_files_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "operator.toml"
    text = """
[[notify.channel]]
name = "ops"
kind = "apprise"
url_file = "secrets/slack"

[[notify.rule]]
channels = ["ops"]
labels = { team = "db" }

[notify.digest]
channels = ["ops"]
timezone = "Europe/Berlin"
"""
    file.write_text(text)
    notify = load_settings(file, environ={}).settings.notify
    assert notify.channel[0].url_file == tmp_path / "secrets/slack"
    assert notify.digest is not None
    for wrong, said in (
        (text.replace('labels = { team = "db" }', 'reasons = ["gaveup"]'), "rule"),
        (text.replace('channels = ["ops"]\nlabels', 'channels = ["dev"]\nlabels'), "there is no channel 'dev'"),
        (text.replace("Europe/Berlin", "Europe/Atlantis"), "no time zone"),
        (text.replace("Europe/Berlin", "../../etc/passwd"), "no time zone"),
        (text.replace("timezone", "tz"), "Unknown key 'notify.digest.tz'"),
    ):
        file.write_text(wrong)
        with pytest.raises(ConfigError, match=said):
            load_settings(file, environ={})


# ---- text that nobody may trust


@given(st.text(max_size=400))
@example(HOSTILE)
@example("]" * 5 + "(" * 5)
def test_nothing_is_left_that_a_channel_takes_for_markup(text: str) -> None:
    out = neutral(text)
    assert not set(out) & set("<>`*|\\\n\r\t\x1b")
    assert "://" not in out
    assert "](" not in out
    assert "][" not in out
    assert "@" not in out.replace("@\u2060", "")
    # Only what breaks markup is invisible.
    assert not {c for c in out if unicodedata.category(c)[0] == "C"} - {"\u2060"}


def test_a_hostile_text_stays_readable_and_is_one_line() -> None:
    out = neutral(HOSTILE, 1000).replace("\u2060", "")
    assert out.startswith("@everyone ‹!channel› ‹https://evil.example/x¦our console› [login](https://evil.example)")
    assert "\u202e" not in out
    assert "www\u2060.evil.example" in neutral(HOSTILE, 1000)
    assert "mailto:\u2060boss" in neutral(HOSTILE, 1000)
    assert neutral("db1.example.com: 3 of 4 (75 %) used, see #12") == "db1.example.com: 3 of 4 (75 %) used, see #12"


def test_a_long_text_is_cut_before_it_costs_anything() -> None:
    began = clock.monotonic()
    out = neutral("x://@" * 4_000_000, 100)
    assert clock.monotonic() - began < 0.5
    assert len(out.replace("\u2060", "")) == 100
    assert out.endswith("…")
    assert len(neutral("e" + "\u0301" * 5000)) == 3


# ---- words


def test_the_title_says_what_and_the_link_leads_there() -> None:
    words = ticket_words(news(why="Could not find out who fills it."), "https://ops.example.com/")
    assert words.title == "[critical] #12 disk-full: needs a person, the agent gave up"
    assert words.body.split("\n") == [
        "The disk is full.",
        "Result: Could not find out who fills it.",
        "https://ops.example.com/tickets/12",
    ]


@pytest.mark.parametrize("state", list(TicketStatus))
@pytest.mark.parametrize("reason", [None, *Reason, "opened", "submitted"])
def test_every_change_has_words(state: TicketStatus, reason: str | None) -> None:
    words = ticket_words(news(state=state, reason=reason, why=HOSTILE, name=HOSTILE, message=HOSTILE), None)
    assert "\n" not in words.title
    assert len(words.body.split("\n")) <= 3
    assert not set(words.title + words.body) & set("<>`*|")


def test_a_question_for_approval_has_its_own_words_and_link() -> None:
    asked = news(state="waiting_for_input", reason="needs_approval", approval_id="a1", tool="shell", why="rm needs it")
    words = ticket_words(asked, "http://c", "http://c/a/a1")
    assert words.title.endswith(": may it use shell?")
    assert words.body.endswith("http://c/tickets/12\nAllow or deny it: http://c/a/a1")
    assert "Why it asks: rm needs it" in words.body
    assert "Allow" not in ticket_words(asked, "http://c").body


def test_who_is_asked_reads_where_it_is_and_how_bad() -> None:
    labels = {"host": "web-3", "team": "shop", "note": HOSTILE, **{f"x{n}": "y" for n in range(10)}}
    asked = news(state="waiting_for_input", reason="needs_approval", labels=labels, why="rm needs it")
    words = ticket_words(asked, None)
    assert words.title.startswith("[critical] #12 disk-full")
    line = words.body.split("\n")[1]
    assert "host=web-3" in line
    assert "team=shop" in line
    assert line.endswith("and 5 more")
    assert not set(words.body) & set("<>`*|")
    assert "host=web-3" not in ticket_words(news(state="running", labels=labels), None).body, "nobody has to decide"


def test_late_news_say_that_they_are_late() -> None:
    assert "This was at" in ticket_words(news(at=clock.now() - timedelta(hours=1)), None).body
    assert "This was at" not in ticket_words(news(), None).body


def test_many_at_once_are_listed_and_counted() -> None:
    body = {
        "counts": {"escalated": 3, "resolved": 30},
        "news": [news(ticket_id=n, name=HOSTILE).to_json() for n in range(3)],
        "more": 30,
    }
    words = crowd_words(body, "http://c/")
    assert words.title == "33 changes: 3 escalated, 30 resolved"
    assert len(words.body.split("\n")) == 5
    assert words.body.endswith("- and 30 more\nhttp://c/")


def test_the_digest_says_first_what_needs_somebody() -> None:
    line = Line(ticket_id=3, kind="incident", name="disk", severity="critical", reason="gave_up", why=HOSTILE)
    made = Digest(
        since=clock.now() - timedelta(hours=12),
        until=clock.now(),
        proved=20,
        escalated=1,
        escalated_now=2,
        waiting=1,
        opened=30,
        resolved_lines=[line.model_copy(update={"reason": "verified", "why": None})],
        escalated_lines=[line],
        waiting_lines=[line.model_copy(update={"reason": None})],
        untaken=1,
        untaken_lines=[line],
        stalled="No worker is running; start one with `operator worker run`.",
        sessions=3,
        cost_usd=1.239,
        unpriced=1,
    )
    words = digest_words(made, None)
    assert words.title == (
        "Operator: 20 resolved and proved, 2 need a person, 1 waiting for an answer, 1 open that no worker has"
    )
    order = [
        words.body.index(part)
        for part in ("Waiting for", "Open, and", "No worker is", "Came to need", "Resolved (20)", "Tickets: 30")
    ]
    assert order == sorted(order)
    assert "- and 19 more" in words.body
    assert "Cost of the 3 attempts that worked in this time: at least $1.24." in words.body
    assert not set(words.body) & set("<>`*|")
    empty = Digest(since=made.since, until=made.until)
    assert digest_words(empty, None).title == "Operator: all quiet"


@pytest.mark.parametrize(
    ("now", "due"),
    [
        ("2026-01-28T12:00", "2026-01-28T06:30"),
        ("2026-01-28T06:30", "2026-01-28T06:30"),
        ("2026-01-28T06:29", "2026-01-27T06:30"),
        ("2026-03-29T12:00", "2026-03-29T05:30"),  # the night in which the clocks went forward
    ],
)
def test_a_digest_is_due_at_a_time_of_day_of_people(now: str, due: str) -> None:
    plan = DigestPlan(channels=("ops",), at="07:30", timezone="Europe/Berlin")
    moment = datetime.fromisoformat(now).replace(tzinfo=UTC)
    assert due_moment(plan, moment) == datetime.fromisoformat(due).replace(tzinfo=UTC)


# ---- addresses and secrets


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "exec://x",
        "dbus://",
        "syslog://",
        "json://localhost/",
        "form://localhost/",
        "windows://",
        "kodi://x",
        "slack",
        "",
        "slack://a b",
        "slack://a/b/c?template=/etc/passwd",
        "mailto://a:b@c.example?pgpkey=/etc/passwd",
        "discord://a/b?Attach=/etc/passwd",
        "slack://" + "a" * 9000,
    ],
)
def test_an_address_that_is_not_for_people_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        check_address(url)
    assert "passwd" not in str(refused.value)
    assert str(refused.value).count(".") <= 2


def test_the_services_that_are_allowed_exist() -> None:
    # In a process of its own, as the product has it: apprise imports what Python deprecates.
    code = (
        "import apprise, json; found = apprise.Apprise().details()['schemas'];"
        "print(json.dumps([s for p in found for s in [*(p['protocols'] or []), *(p['secure_protocols'] or [])]]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, timeout=60)
    assert set(json.loads(done.stdout)) >= SCHEMES
    for url in ("slack://T12345678/B12345678/abcdefghijklmnop", "mailtos://u:p@mail.example.com", "discord://1/2"):
        check_address(url)


def test_every_part_of_an_address_that_may_be_secret_is_known() -> None:
    found = secrets_in("mailtos://alice:p%40ssw0rd@mail.example.com?to=bob@example.com")
    assert {"p%40ssw0rd", "p@ssw0rd"} <= set(found)
    assert "mail.example.com" not in found
    assert "TokenOfSlack" in secrets_in("slack://TokenOfSlack/B12345678/abcdefghijkl")


@pytest.mark.parametrize("answer", [b"", b"{", b"[]", b'{"ok": true}', b'"x"', b"\xff"])
def test_an_answer_that_breaks_off_is_no_success(answer: bytes) -> None:
    assert isinstance(outcome_of(answer, "ntfy://h/topic12"), Later)


def test_what_a_service_says_is_passed_on_without_the_address() -> None:
    url = "mailtos://alice:p%40ssw0rd@mail.example.com?to=bob@example.com"
    said = json.dumps({"ok": False, "why": f"535 alice: p@ssw0rd is wrong, at {url}"}).encode()
    outcome = outcome_of(said, url)
    assert isinstance(outcome, Later)
    assert outcome.why == "535 alice: [REDACTED] is wrong, at [REDACTED]"


def test_ordinary_words_of_an_address_are_not_masked_everywhere() -> None:
    url = "workflows://prod.logic.azure.com/643e69f83c8944aa/notifications?to=ops@example.com&region=westeurope"
    assert secrets_in(url, certain=True) == [url, "643e69f83c8944aa"]
    assert "hunter2!" in secrets_in("mailto://a:hunter2!@b.example", certain=True)


def test_what_is_missing_is_named_and_nothing_secret_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    redactor = Redactor()
    hook = Channel.model_validate({**WEBHOOK, "secret_env": "HOOK_KEY", "url": "https://a.example/"})
    with pytest.raises(ConfigError, match="set the variable HOOK_KEY"):
        access_of(hook, redactor)
    monkeypatch.setenv("HOOK_KEY", "tiny")
    with pytest.raises(ConfigError, match="at least 16"):
        access_of(hook, redactor)
    monkeypatch.setenv("HOOK_KEY", "whsec_%%%")
    with pytest.raises(ConfigError, match="base64"):
        access_of(hook, redactor)
    monkeypatch.setenv("HOOK_KEY", "0123456789abcdef")
    assert access_of(hook, redactor).key == b"0123456789abcdef"
    assert "0123456789abcdef" not in redactor.text("x 0123456789abcdef y"), "no log and no row will hold it"
    file = Channel.model_validate({**APPRISE, "url_file": str(tmp_path / "address")})
    with pytest.raises(ConfigError, match="cannot be read"):
        access_of(file, redactor)
    (tmp_path / "address").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no UTF-8"):
        access_of(file, redactor)
    (tmp_path / "address").write_text(" ntfys://example.com/topic1234\n")
    assert access_of(file, redactor).url == "ntfys://example.com/topic1234"


def test_the_signature_is_that_of_the_standard() -> None:
    # The example of the specification.
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = b'msg_p5jXN8AQM9LWM0D4loKWxJek.1614265330.{"test": 2432232314}'
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    body = b'{"test": 2432232314}'
    assert signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body) == f"v1,{expected}"
    assert expected == "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="

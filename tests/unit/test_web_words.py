"""How values look on pages: hostile text above all."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from operator_core.web.words import MAX_MARKS, ago, duration, markdown, money, on_page, pretty, sentence, size, visible

NOW = datetime(2026, 1, 28, 10, 30, 45, tzinfo=UTC)
HIDDEN = "\x00\x07\x1b\x7f\x9b\u00ad\u200b\u200e\u202a\u202e\u2066\u2069\u2028\ufeff\U000e0041\ud800"
TEXT = st.text(st.one_of(st.characters(), st.sampled_from(HIDDEN + "<>&\"'`[]()!#*_{}%\n\\")))


class _Seen(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@given(TEXT)
@example("<script>alert(1)</script>")
@example("\u202e<b>\x1b]0;title\x07")
def test_visible_text_is_never_markup_and_hides_nothing(text: str) -> None:
    html = str(visible(text))
    seen = _Seen(html)
    assert set(seen.tags) <= {"span"}
    assert set(seen.attributes) <= {"class", "title"}
    assert not set(HIDDEN) & set(html)
    html.encode()


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=200))
def test_ordinary_text_is_shown_exactly(text: str) -> None:
    assert _Seen(str(visible(text))).text == text


def test_long_and_odd_texts_stay_small() -> None:
    html = str(visible("x" * 500 + "y" * 500, 500))
    assert "y" not in _Seen(html).text.replace("only", "")
    assert "500 more characters" in html
    assert len(str(visible("\u202e" * 100_000))) < 100_000 * 2 + MAX_MARKS * 120
    assert str(visible("e" + "\u0301" * 1000)).count("\u0301") == 4


@given(TEXT)
@example("[a](javascript:alert(1)) ![x](http://example.com/x.png) <http://example.com> <b onclick=x>")
@example("[a]: javascript:alert(1)\n\n[a] [a][a]")
@example("# one\n###### six\n")
def test_markdown_has_no_links_pictures_or_html(text: str) -> None:
    seen = _Seen(str(markdown(text)))
    assert not {"a", "img", "script", "iframe", "h1", "h2"} & set(seen.tags)
    assert set(seen.attributes) <= {"class", "start"}
    assert not set(HIDDEN) & set(str(markdown(text)))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (59, "59 s ago"), (61, "1 min ago"), (7300, "2 h ago"), (200_000, "2 d ago"), (-7300, "in 2 h")],
)
def test_ago(seconds: float, words: str) -> None:
    assert ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_numbers() -> None:
    assert [duration(s) for s in (0.34, 12.34, 245, 7380, 273_600)] == [
        "340 ms",
        "12.3 s",
        "4 min 05 s",
        "2 h 03 min",
        "3 d 4 h",
    ]
    assert [money(usd) for usd in (0, 0.0042, 1.366, 1204.4)] == ["$0.00", "$0.0042", "$1.37", "$1,204"]
    assert [size(n) for n in (512, 8192, 1_500_000)] == ["512 B", "8.0 KB", "1.4 MB"]


def test_what_is_nested_deeply_is_not_hidden_behind_blanks() -> None:
    value: object = "rm -rf /"
    for _ in range(400):
        value = [value]
    assert "rm -rf /" in pretty({"steps": value})
    assert str(pretty({"b": [1], "a": "<"})) == "{\n  &#34;a&#34;: &#34;&lt;&#34;,\n  &#34;b&#34;: [\n    1\n  ]\n}"


@pytest.mark.parametrize(
    ("ahead", "said"),
    [
        (timedelta(days=30), "in 30 d"),
        (timedelta(days=30, seconds=-3), "in 30 d"),
        (timedelta(days=29, hours=12), "in 29 d"),
        (timedelta(hours=24, seconds=-1), "in 1 d"),
        (timedelta(hours=1, minutes=50), "in 1 h"),
        (timedelta(seconds=45), "in 45 s"),
        (timedelta(seconds=59), "in 1 min"),
        (timedelta(days=400), "in 1 y"),
    ],
)
def test_what_was_given_for_30_days_does_not_say_29(ahead: timedelta, said: str) -> None:
    assert ago(NOW + ahead, NOW) == said


def test_commands_in_a_sentence_look_like_code() -> None:
    html = str(sentence("Start one with `operator worker run`, see ``[web]`` <b>`<i>`</b> and `this"))
    assert '<code class="command">operator worker run</code>' in html
    assert '<code class="command">[web]</code>' in html
    assert '<code class="command">&lt;i&gt;</code>' in html
    assert _Seen(html).text == "Start one with operator worker run, see [web] <b><i></b> and `this"
    assert "more characters" in str(sentence("x" * 50, 10))


def test_a_page_does_not_send_people_to_a_command_line() -> None:
    assert on_page("There is no ticket #7; list them with `operator tickets list`.") == "There is no ticket #7."
    assert on_page("It is open; see `operator tickets show 7`.") == "It is open."
    kept = "A session works on it; stop it first with `operator tickets cancel 7`."
    assert on_page(kept) == kept, "what is to be done is no mere address"


@given(TEXT)
@example("`<script>`")
def test_a_sentence_is_never_markup_of_others(text: str) -> None:
    html = str(sentence(text))
    seen = _Seen(html)
    assert set(seen.tags) <= {"span", "code"}
    assert not set(HIDDEN) & set(html)
    html.encode()

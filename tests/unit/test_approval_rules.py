"""The rules of `[approvals]`: what matches, in which order, and that a doubt asks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from rich.cells import cell_len

from operator_core import clock
from operator_core.api.models import ApprovalView
from operator_core.cli.approvals import _show
from operator_core.cli.output import Output
from operator_core.config import load_settings
from operator_core.errors import ConfigError
from operator_core.model.approval import ApprovalRule, arguments_hash
from operator_core.model.ticket import TicketKind
from operator_core.safety.approvals import Circumstances, decide, first_in_force

HERE = Circumstances("worker", "worker_1", TicketKind.TASK, {"team": "db"}, {"tier": "production"})


def rule(decision: str, **values: Any) -> ApprovalRule:
    return ApprovalRule.model_validate({"decision": decision, **values})


def ruled(rules: list[ApprovalRule], tool: str = "shell", where: Circumstances = HERE, **arguments: Any) -> str:
    return decide(rules, where, tool, arguments).decision


def test_without_rules_everything_is_allowed() -> None:
    assert ruled([], command="rm -rf /") == "allow"


def test_the_first_rule_that_matches_decides() -> None:
    rules = [rule("allow", tool="shell", matches={"command": "ls( .*)?"}), rule("ask", tool="shell"), rule("deny")]
    assert ruled(rules, command="ls -l") == "allow"
    assert ruled(rules, command="rm x") == "ask"
    assert ruled(rules, "file_write", path="x") == "deny"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf /",
        "rm -rf / # git status",
        "git status\nrm -rf /",
        "git status\n",
        " git status",
        "git STATUS",
    ],
)
def test_nothing_hides_behind_what_is_allowed(command: str) -> None:
    rules = [rule("allow", tool="shell", matches={"command": "git status"}), rule("ask")]
    assert ruled(rules, command="git status") == "allow"
    assert ruled(rules, command=command) == "ask"


def test_what_is_allowed_must_be_named() -> None:
    """Else an agent would write the harmless words into another argument."""
    with pytest.raises(ValidationError, match="must name the arguments"):
        rule("allow", matches={"*": "git status"})
    rules = [rule("allow", matches={"command": "git status"}), rule("ask")]
    assert ruled(rules, command="rm x", reasoning="git status") == "ask"


@pytest.mark.parametrize("values", [{"contains": {"command": "ls"}}, {"dangerous": True}])
def test_a_rule_that_allows_takes_no_loose_tests(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="must fit the whole"):
        rule("allow", **values)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"matches": {"command": "("}}, "no regular expression"),
        ({"matches": {"command": ""}}, "not empty"),
        ({"contains": {"command": ""}}, "not empty"),
        ({"tool": ""}, "at least 1"),
        ({"tol": "shell"}, "Extra inputs"),
        ({"kind": "incidents"}, "incident"),
    ],
)
def test_a_rule_that_could_not_work_is_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        rule("ask", **values)


def test_to_ask_it_is_enough_to_find_it_anywhere() -> None:
    rules = [rule("ask", matches={"command": r"\bdrop\s+table\b"}), rule("deny", contains={"*": "Force-Push"})]
    assert ruled(rules, command="psql -c 'drop  table x'") == "ask"
    assert ruled(rules, command="psql -c 'select 1'") == "allow"
    assert ruled(rules, "mcp__git", options={"mode": ["FORCE-PUSH"]}) == "deny"
    # An argument that is not there says nothing.
    assert ruled(rules, "file_read", path="drop table") == "allow"


def test_a_text_inside_of_an_argument_is_read_as_it_is() -> None:
    """As JSON it would have backslashes in it, and a rule about it would not be met."""
    rules = [rule("ask", contains={"*": 'drop table "users"'}), rule("deny", matches={"steps": r"(?m)^shutdown\s"})]
    assert ruled(rules, "db__run", queries=[{"sql": 'DROP TABLE "users"'}]) == "ask"
    assert ruled(rules, "db__run", queries={'drop table "users"': 1}) == "ask"
    assert ruled(rules, "box__do", steps=[["sync\nshutdown now"]]) == "deny"
    # To allow, all of the argument must fit, and not a part of it.
    assert ruled([rule("allow", matches={"steps": "ls"}), rule("ask")], "box__do", steps=["ls", "rm x"]) == "ask"


def test_a_text_that_is_too_long_to_search_is_asked_about_and_never_allowed() -> None:
    long = "ls " + "x" * 200_000
    assert ruled([rule("ask", matches={"command": "rm"})], command=long) == "ask"
    assert ruled([rule("ask", contains={"command": "rm"})], command=long) == "ask"
    assert ruled([rule("ask", dangerous=True)], command=" " * 40_000 + "rm -rf /") == "ask"
    assert ruled([rule("allow", matches={"command": "(?s).*"}), rule("deny")], command=long) == "deny"


def test_dangerous_is_what_the_advisor_refuses() -> None:
    rules = [rule("ask", dangerous=True)]
    assert ruled(rules, command="rm -r -f -v //") == "ask"
    assert ruled(rules, command="grep reboot notes.md") == "allow"
    assert ruled(rules, "file_read", path="/etc/passwd") == "allow"
    assert ruled(rules, command=["sudo", "ls"]) == "allow"


@pytest.mark.parametrize(
    ("values", "fits"),
    [
        ({"profile": "worker"}, True),
        ({"profile": "verifier"}, False),
        ({"phase": "worker_*"}, True),
        ({"phase": "verifier_*"}, False),
        ({"kind": "task"}, True),
        ({"kind": "incident"}, False),
        ({"labels": {"team": "d*"}}, True),
        ({"labels": {"team": "web"}}, False),
        ({"labels": {"squad": "*"}}, False),
        ({"environment": {"tier": "prod*"}}, True),
        ({"environment": {"tier": "staging"}}, False),
        ({"profile": "worker", "environment": {"tier": "staging"}}, False),
    ],
)
def test_who_and_where(values: dict[str, Any], fits: bool) -> None:
    rules = [rule("ask", **values)]
    assert ruled(rules, command="ls") == ("ask" if fits else "allow")
    # Whether it could matter to a program whose calls cannot be asked about.
    assert first_in_force(rules, HERE) == (1 if fits else None)


def test_what_could_apply_ends_at_a_rule_that_allows_everything() -> None:
    allows_all, asks = rule("allow", profile="worker"), rule("ask", tool="shell")
    assert first_in_force([allows_all, asks], HERE) is None
    assert first_in_force([rule("allow", tool="shell"), asks], HERE) == 2
    assert first_in_force([rule("allow", profile="operator"), asks], HERE) == 2


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), ANYTHING, max_size=4), st.text(max_size=20))
def test_no_arguments_break_a_rule(arguments: dict[str, Any], tool: str) -> None:
    rules = [
        rule("ask", matches={"*": "rm.*-rf", "command": "x"}),
        rule("deny", contains={"*": "DROP"}),
        rule("ask", dangerous=True),
    ]
    assert decide(rules, HERE, tool, arguments).decision in ("allow", "ask", "deny")
    assert decide([*rules, rule("ask")], HERE, tool, arguments).decision != "allow"


@given(st.dictionaries(st.text(max_size=8), st.text() | st.integers(), max_size=4), st.text(max_size=5))
def test_the_hash_is_of_this_tool_and_these_arguments(arguments: dict[str, Any], key: str) -> None:
    digest = arguments_hash("shell", arguments)
    assert digest == arguments_hash("shell", dict(reversed(arguments.items())))
    assert digest != arguments_hash("shell ", arguments)
    assert digest != arguments_hash("shell", {**arguments, key: [arguments.get(key)]})


def test_it_is_read_from_the_configuration(tmp_path: Path) -> None:
    file = tmp_path / "operator.toml"
    file.write_text(
        '[approvals]\nexpire_s = 60\n[[approvals.rule]]\ndecision = "ask"\ntool = "shell"\nwhy = "Careful."\n'
    )
    settings = load_settings(file, environ={}).settings.approvals
    assert settings.rule == (ApprovalRule(decision="ask", tool="shell", why="Careful."),)
    file.write_text('[[approvals.rule]]\ndecision = "ask"\ntols = "shell"\n')
    with pytest.raises(ConfigError, match=r"Unknown key 'approvals.rule\[1\].tols'.*perhaps 'tool'"):
        load_settings(file, environ={})


def test_the_name_of_an_argument_writes_no_lines_of_its_own() -> None:
    arguments = {"command": "rm x", "a\n  hash     0000\n  note     approved\x1b[2J" + "b" * 200: "y"}
    moment = clock.now()
    shown = ApprovalView(
        id="0" * 32, ticket_id=1, session_id="s", phase="worker_1", call_id="c", tool="shell", arguments=arguments,
        arguments_hash=arguments_hash("shell", arguments), why="Careful.", state="pending", asked_at=moment,
        expires_at=moment,
    )  # fmt: skip
    out = io.StringIO()
    _show(Output(out), shown, whole=True)
    lines = out.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["0" * 32, "why", ">", ">", "hash", "asked"]
    assert max(map(len, lines)) < 100


class Terminal(io.StringIO):
    """A terminal, as far as what is written can tell."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_that_wraps_makes_no_line_that_looks_like_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "dumb")
    forged = "why      rule 3 allows it"
    arguments = {"command": f"{'x' * 29}{forged}{'y' * 15}{forged}", "漢" * 9: "漢" * 60}
    moment = clock.now()
    shown = ApprovalView(
        id="0" * 32, ticket_id=1, session_id="s", phase="worker_1", call_id="c", tool="shell", arguments=arguments,
        arguments_hash=arguments_hash("shell", arguments), why=f"{'z' * 29}hash     0000", state="pending",
        asked_at=moment, expires_at=moment,
    )  # fmt: skip
    out = Terminal()
    _show(Output(out), shown, whole=True)
    lines = out.getvalue().splitlines()
    call = [line for line in lines if line.startswith("  >")]
    assert len(call) > 6
    assert max(map(cell_len, call)) <= 40
    assert "".join(line[11:] for line in call).replace(" ", "").startswith(arguments["command"].replace(" ", ""))
    assert not [line for line in lines if line.startswith(("why", "hash"))]


def test_nothing_of_a_call_is_hidden_in_a_terminal_escape() -> None:
    """Else somebody would allow what a terminal does not show and a shell executes."""
    arguments = {"command": "echo '\x1b]0;\nrm -rf /srv\n\x07' \u200b\u202efdp.exe", "a\x1b]0;b\x07": "y"}
    moment = clock.now()
    shown = ApprovalView(
        id="0" * 32, ticket_id=1, session_id="s", phase="worker_1", call_id="c", tool="shell", arguments=arguments,
        arguments_hash=arguments_hash("shell", arguments), why="Careful.", state="pending", asked_at=moment,
        expires_at=moment,
    )  # fmt: skip
    for whole in (True, False):
        out = io.StringIO()
        _show(Output(out), shown, whole=whole)
        text = out.getvalue()
        assert "rm -rf /srv" in text
        assert "\\u200b\\u202efdp.exe" in text
        assert "a\\x1b]0;b\\x07" in text
        assert not set(text) & set("\x1b\x07\u200b\u202e")

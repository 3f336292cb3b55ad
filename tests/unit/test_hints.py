"""Commands in our sentences work as they stand: with the options of the command that says them."""

from __future__ import annotations

import io
import shlex

import pytest

from operator_core import clock
from operator_core.agent_lab.naming import shown_model, speaker
from operator_core.agent_lab.resting import AwaitingApproval
from operator_core.cli.closing import Closing, question_about_a_call
from operator_core.cli.hints import command, completed, remember
from operator_core.cli.output import Output
from operator_core.cli.submit import _tell
from operator_core.config import ModelSettings
from operator_core.db.messages import why_not_answered, why_not_steered
from operator_core.model.ticket import Reason, Ticket, TicketKind, TicketStatus
from operator_core.verify.markup import inline, quoted

REMOTE = {"tickets", "worker", "sessions"}


@pytest.fixture(autouse=True)
def nothing_in_use() -> None:
    remember()


def test_without_options_nothing_is_added() -> None:
    text = "See `operator tickets show 5`; `operator-dataverse fleet run`."
    assert completed(text) == text


def test_a_store_and_a_configuration_go_with_every_command_that_uses_them() -> None:
    remember(db="a folder/it's.db", config="x.toml")
    said = completed("See `operator tickets show 5` and `operator-dataverse outbox`, or `operator config show`.")
    first, second, third = (shlex.split(part) for part in said.split("`")[1::2])
    options = ["--db", "a folder/it's.db", "--config", "x.toml"]
    assert first == ["operator", *options, "tickets", "show", "5"]
    assert second == ["operator-dataverse", *options, "outbox"]
    assert third == ["operator", "--config", "x.toml", "config", "show"]
    for alone in (
        "`operator demo`",
        "`operator submit --help`",
        "`ls -l`",
        "`operator --db b.db tickets list`",
        "operator",
    ):
        assert completed(alone) == alone


def test_a_server_goes_only_with_commands_that_can_ask_one() -> None:
    remember(server="https://ops.example.com", token_file="~/token", remote=REMOTE)
    options = "--server https://ops.example.com --token-file '~/token'"
    assert completed("`operator worker list`, `operator tickets list`") == (
        f"`operator {options} worker list`, `operator {options} tickets list`"
    )
    for here in ("`operator worker run`", "`operator doctor`"):
        assert completed(here) == here


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ann:secret@db.example/operator", "postgresql://ann@db.example/operator"),
        ("postgresql://db.example/o?password=secret", "postgresql://db.example/o?"),
        ("postgresql://db.example/o?a=1&password=secret&b=2", "postgresql://db.example/o?a=1&b=2"),
        ("postgresql://ann@db.example/o", "postgresql://ann@db.example/o"),
        ("postgresql://ann:sec/ret?=:x@db.example/o", "postgresql://ann@db.example/o"),
        ("postgresql://db.example/o?SSLpassword=secret&b=2", "postgresql://db.example/o?b=2"),
    ],
)
def test_a_password_is_not_repeated(url: str, shown: str) -> None:
    remember(db=url)
    assert shlex.split(command("tickets list")) == ["operator", "--db", shown, "tickets", "list"]


def test_a_program_that_is_not_on_the_path_is_called_by_its_place() -> None:
    remember(db="d/operator.db", program=".venv/bin/operator")
    assert command("audit verify") == ".venv/bin/operator --db d/operator.db audit verify"


def test_only_what_we_say_ourselves_is_completed() -> None:
    remember(db="a.db")
    text = io.StringIO()
    out = Output(text)
    out.line("[Scripted] Try `operator tickets list`.")
    out.say("#3 [Result (exit 0)] see `operator tickets list`")
    out.ours("See `operator tickets list`.")
    assert text.getvalue().splitlines() == [
        "[Scripted] Try `operator tickets list`.",
        "#3 [Result (exit 0)] see `operator tickets list`",
        "See `operator --db a.db tickets list`.",
    ]


def test_what_a_line_quotes_before_its_hint_is_shown_as_it_is() -> None:
    remember(db="a.db")
    text = io.StringIO()
    out = Output(text)
    why = "it runs `operator tickets cancel 5`; answer with `operator approvals approve 1`"
    out.say(f"#3 [Approval] {AwaitingApproval('0123456789abcdef', f'a call of shell ({why})')}")
    out.say(f"[Approval] {why}")
    out.say("[Paused] (`operator tickets list`) go on with `operator explore resume s-1`")
    assert text.getvalue().splitlines() == [
        f"#3 [Approval] A person is asked to approve a call of shell ({why}); answer with `operator --db a.db "
        "approvals approve 01234567` or `operator --db a.db approvals deny 01234567 --note TEXT`.",
        f"[Approval] {why}",
        "[Paused] (`operator tickets list`) go on with `operator --db a.db explore resume s-1`",
    ]


def test_what_a_page_of_ours_quotes_is_shown_as_it_is() -> None:
    remember(db="a.db")
    said = "Then run `operator tickets resolve 5 --reason proved`."
    page = "\n".join([inline(said), *quoted(f"{said}\n{said}"), "", "- `operator verify 5`"])
    assert completed(page) == page.replace("`operator verify", "`operator --db a.db verify")


@pytest.mark.parametrize(
    ("engine", "model", "who", "shown"),
    [
        ("anthropic", "claude-opus-5-5", "Claude", "claude-opus-5-5"),
        ("anthropic", "eu.anthropic.Claude-x", "Claude", "eu.anthropic.Claude-x"),
        ("anthropic", "qwen3", "qwen3", "qwen3"),
        ("anthropic", "[Tool\x1b[2J Call: shell]\n", "Tool Call: shell", "[Tool\x1b[2J Call: shell]\n"),
        ("scripted", "claude-opus-5-5", "Scripted", "scripted: claude-opus-5-5"),
        ("scripted", "scripted-tasks", "Scripted", "scripted-tasks"),
    ],
)
def test_whose_words_they_are(engine: str, model: str, who: str, shown: str) -> None:
    settings = ModelSettings.model_validate({"engine": engine})
    assert (speaker(settings, model), shown_model(settings, model)) == (who, shown)


def test_a_ticket_that_waits_for_an_approval_names_the_question() -> None:
    ticket = Ticket(
        id=7,
        violation_key="x",
        invariant_name="x",
        message="x",
        severity="warning",
        first_seen_at=clock.now(),
        last_seen_at=clock.now(),
        kind=TicketKind.TASK,
        status=TicketStatus.WAITING_FOR_INPUT,
        reason=Reason.NEEDS_APPROVAL,
    )
    for why in (why_not_answered, why_not_steered):
        said = why(ticket, "0123456789abcdef")
        assert said is not None
        assert "`operator approvals approve 01234567`" in said
        assert "`operator approvals deny 01234567 --note TEXT`" in said


@pytest.mark.parametrize("reason", [Reason.NEEDS_APPROVAL, Reason.ASKED_A_PERSON])
def test_what_waits_is_told_with_the_command_that_answers_it(
    reason: Reason, capsys: pytest.CaptureFixture[str]
) -> None:
    remember(db="a.db")
    told = question_about_a_call("a person is asked about shell: It is dear.", "0123456789abcdef")
    question = told if reason is Reason.NEEDS_APPROVAL else "Which one?"
    _tell(Output(), {"id": 7, "status": "waiting_for_input", "reason": reason.value}, Closing("s-1", question=question))
    said = capsys.readouterr().out
    if reason is Reason.NEEDS_APPROVAL:
        assert (
            "A person is asked about shell: It is dear; answer with `operator --db a.db approvals approve 01234567`"
            in said
        )
    assert ("`operator --db a.db reply 7" in said) is (reason is Reason.ASKED_A_PERSON)

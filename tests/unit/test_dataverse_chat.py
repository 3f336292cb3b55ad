"""The small parts of the chat: what names a task, what is a command, what stands still, what a conversation keeps."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from operator_core.agent_lab.fence import Fence
from operator_core.clock import Clock
from operator_dataverse.chat.claims import claimant
from operator_dataverse.chat.commands import run_command
from operator_dataverse.chat.desk import Desk, Done
from operator_dataverse.chat.prompts import system_prompt
from operator_dataverse.chat.sessions import Exchange, Talk
from operator_dataverse.chat.stillness import SKEW_S, Stillness
from operator_dataverse.chat.tools import names
from tests.support.processes import operator_environment

TASK = "3f2a9c1e-1111-4222-8333-444455556666"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        (f"cancel {TASK}", True),
        ("cancel 3f2a9c1e please", True),
        ("cancel 3F2A9C", True),
        ("(3f2a9c1e)", True),
        ("cancel my last task", False),
        ("cancel 3f2a9", False),
        ("cancel 3f2a9c1f", False),
        ("a3f2a9c1e", False),
        ("", False),
    ],
)
def test_only_an_id_names_a_task(said: str, named: bool) -> None:
    assert names(said, TASK) is named
    assert names(said, TASK[:8]) is named


def test_a_short_reference_is_named_by_nothing() -> None:
    assert not names("cancel 3f2a9c1e", "3f2")


class Noted(Desk):
    """Says what it would do."""

    def __init__(self) -> None:
        pass

    async def create(self, text: str) -> Done:
        return Done(f"create {text}")

    async def list(self, limit: int = 5) -> Done:
        return Done("list")

    async def show(self, ref: str) -> Done:
        return Done(f"show {ref}")

    async def cancel(self, ref: str) -> Done:
        return Done(f"cancel {ref}")

    async def answer(self, ref: str, text: str) -> Done:
        return Done(f"answer {ref}: {text}")


@pytest.mark.parametrize(
    ("text", "done"),
    [
        (" Tasks ", "list"),
        ("/tasks", "list"),
        ("task 3f2a9c1e", "show 3f2a9c1e"),
        (f"cancel {TASK}", f"cancel {TASK}"),
        ("answer 3f2a9c1e yes\nand no", "answer 3f2a9c1e: yes\nand no"),
        ("new: build\nit", "create build\nit"),
        ("cancel my last task", None),
        ("cancel 3f2a9c1e please", None),
        ("help me with my tasks", None),
        ("yes", None),
        ("new task: build it", None),
        ("answer 3f2a9c1e", None),
        ("", None),
    ],
)
async def test_commands_are_whole_messages(text: str, done: str | None) -> None:
    found = await run_command(Noted(), text, None)
    assert (found and found.text) == done


class TestStillness:
    """When something counts as dead."""

    def test_a_first_look_trusts_no_clock_but_for_long(self) -> None:
        now = datetime.now(UTC)
        watch = Stillness(60.0)
        assert not watch.still("a", "1", now - timedelta(seconds=70))
        assert not watch.still("b", "1", now + timedelta(hours=1))
        assert not watch.still("c", "1")
        assert watch.still("d", "1", now - timedelta(seconds=61 + SKEW_S))

    def test_what_moves_lives_however_old_it_says_it_is(self) -> None:
        old = datetime.now(UTC) - timedelta(days=1)
        watch = Stillness(60.0)
        assert watch.still("a", "1", old)
        assert not watch.still("a", "2", old)

    def test_what_stood_for_the_whole_limit_is_dead(self) -> None:
        class Set(Clock):
            at = 0.0

            def monotonic(self) -> float:
                return self.at

        clock = Set()
        watch = Stillness(60.0, clock)
        assert not watch.still("a", "1")
        clock.at = 59.0
        assert not watch.still("a", "1")
        clock.at = 60.0
        assert watch.still("a", "1")
        watch.only(())
        assert not watch.still("a", "1")


def test_a_name_fits_its_column_and_is_new_each_time() -> None:
    long = claimant("personal", "x" * 300 + "@example.com")
    assert len(long) <= 190
    assert claimant("global") != claimant("global")
    assert claimant("global").startswith("global:")


def test_a_conversation_keeps_the_newest() -> None:
    talk = Talk(email="alice@example.com")
    for number in range(100):
        talk = talk.after(Exchange(inbound=str(number), asked="x" * 1000, replied="y" * 1000), None)
    assert talk.exchanges[-1].inbound == "99"
    assert len(talk.exchanges) == 20
    assert talk.answer_to("99") is talk.exchanges[-1]
    assert talk.answer_to("0") is None
    huge = talk.after(Exchange(inbound="100", asked="x", replied="y" * 10**6), None)
    assert [exchange.inbound for exchange in huge.exchanges] == ["100"]


@pytest.mark.parametrize("role", ["personal", "global"])
def test_the_prompt_says_whose_assistant_it_is(role: str) -> None:
    fence = Fence.new()
    text = system_prompt(role, "alice@example.com", "box-1", fence)  # type: ignore[arg-type]
    assert "alice@example.com" in text
    assert fence.mark in text
    assert "{" not in text


@pytest.mark.parametrize(
    ("words", "missing"),
    [
        (
            ["personal", "run", "--once"],
            "`[dataverse] url` (or DATAVERSE_URL in the environment) and `[dataverse] user`",
        ),
        (["global", "run", "--once"], "`[dataverse] url`"),
        (["send", "--reply-to", "x", "--message", "y"], "`[dataverse] url`"),
        (["relay-test"], "`[dataverse] url`"),
    ],
)
def test_what_is_not_configured_is_named(words: list[str], missing: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "operator_dataverse", "chat", *words],
        env=operator_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert missing in done.stderr
    assert "Traceback" not in done.stderr

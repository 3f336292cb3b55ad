"""One-line summaries: the deterministic ones, and the model's, which are never waited for (row A-054, D-12)."""

from __future__ import annotations

import asyncio
import time

import pytest
from anthropic import AsyncAnthropic

from operator_core.agent_lab.prompts import HAIKU_SUMMARIZE_PROMPT
from operator_core.agent_lab.summaries import Summarizer, summarize_output, summarize_text, summarize_with_haiku
from operator_core.scripted import FunctionBrain, Reply, Router, ScriptedServer


@pytest.mark.parametrize(
    ("stdout", "stderr", "code", "summary"),
    [
        ("", "", 0, "exit 0, no output"),
        ("one\n", "", 0, "exit 0: one"),
        ("one\ntwo\nthree\n", "", 0, "exit 0: three (3 lines)"),
        ("ok\nError: disk full\nbye\n", "", 1, "exit 1: Error: disk full … bye (3 lines)"),
        ("", "ls: cannot access 'x'\n", 2, "exit 2: ls: cannot access 'x'"),
        ("\x1b[31mred\x1b[0m\n", "", 0, "exit 0: red"),
    ],
)
def test_of_output(stdout: str, stderr: str, code: int, summary: str) -> None:
    assert summarize_output(stdout, stderr, code) == summary


def test_of_output_that_took_too_long() -> None:
    assert summarize_output("begun\n", "", -1, timed_out=True) == "timed out: begun"


def test_of_text() -> None:
    assert summarize_text("\n\n  First. \nSecond.") == "First."
    assert summarize_text(" \n") == "(no text)"
    assert len(summarize_text("x" * 5000)) <= 200


async def test_by_a_model() -> None:
    """Row A-054, exactly: 99 characters cost nothing, 100 are one call with these arguments."""
    brain = Router(summaries=FunctionBrain(lambda turn: Reply(text="  The disk is full.  ")))
    async with ScriptedServer(brain) as server:
        client = AsyncAnthropic(base_url=server.base_url, api_key="x", max_retries=0)
        assert await summarize_with_haiku(client, "x" * 99) == "x" * 99
        assert server.requests == []
        assert await summarize_with_haiku(client, "x" * 100, "claude-haiku-4-5-x") == "The disk is full."
        (call,) = server.model_calls()
        assert call.body == {
            "model": "claude-haiku-4-5-x",
            "max_tokens": 150,
            "messages": [{"role": "user", "content": f"{HAIKU_SUMMARIZE_PROMPT}\n\n{'x' * 100}"}],
        }
        # Its price is bounded, whatever a command printed.
        await summarize_with_haiku(client, "begin" + "x" * 1_000_000 + "end")
        content = server.model_calls()[-1].body
        assert content is not None
        text = content["messages"][0]["content"]
        assert len(text) < 13_000
        assert "begin" in text
        assert text.endswith("end")
        await client.close()


async def test_what_comes_back_is_one_harmless_line() -> None:
    """Tool output can talk to the summarizer."""
    kept: dict[int, str] = {}

    async def ask(text: str) -> str:
        return "line one\n# \x1b]0;owned\x07heading\r\n" + "y" * 9000

    async def store(entry: int, text: str) -> None:
        kept[entry] = text

    summarizer = Summarizer(ask, store)
    summarizer.add(7, "x" * 200)
    summarizer.add(8, "short")
    await summarizer.close()
    assert list(kept) == [7]
    assert "\n" not in kept[7]
    assert "\x1b" not in kept[7]
    assert len(kept[7]) <= 400


async def test_failures_and_budgets_leave_the_first_summary() -> None:
    kept: dict[int, str] = {}
    allowed = iter([True, False, True])

    async def ask(text: str) -> str:
        if text.startswith("bad"):
            raise RuntimeError("no")
        return "good"

    async def store(entry: int, text: str) -> None:
        kept[entry] = text

    summarizer = Summarizer(ask, store, lambda: next(allowed))
    for entry, text in ((1, "bad"), (2, "too dear"), (3, "fine")):
        summarizer.add(entry, text + "x" * 200)
    await summarizer.close()
    assert kept == {3: "good"}


async def test_closing_waits_only_so_long() -> None:
    async def ask(text: str) -> str:
        await asyncio.sleep(60)
        return "late"

    async def store(entry: int, text: str) -> None:
        raise AssertionError("too late")

    summarizer = Summarizer(ask, store)
    summarizer.add(1, "x" * 200)
    started = time.monotonic()
    await summarizer.close(0.2)
    assert time.monotonic() - started < 2

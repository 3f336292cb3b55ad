"""Limits of one ticket: checked before they are exceeded, and said in one sentence (row D-14)."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from operator_core.model.ticket import TicketStatus
from operator_core.scripted import FunctionBrain, Reply, ScriptBrain, Turn
from tests.support import processes_of, wait_until_async
from tests.support.rig import PROPOSE, Rig, command, open_rig

KEY = {"api_key_env": "LIMITS_KEY", "engine": "anthropic"}


def _busy(turn: Turn) -> Reply:
    return Reply(calls=(command(f"echo {turn.step}"),))


BUSY = FunctionBrain(_busy)


async def _stopped(rig: Rig) -> str:
    ticket = await rig.solve()
    assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "budget")
    await rig.assert_faithful()
    return (ticket.diagnosis or "").removeprefix("ESCALATED: budget: ")


async def test_turns(tmp_path: Path) -> None:
    async with open_rig(BUSY, tmp_path, limits={"turns": 3}) as rig:
        assert await _stopped(rig) == "The limit of 3 turns is reached ([limits] turns)."
        assert len(rig.sent()) == 3
        # The calls of the last reply are answered all the same.
        assert [e.exit_code for e in await rig.journal() if e.entry_type == "tool_result"] == [0, 0, 0]


async def test_no_limits_by_the_number_zero(tmp_path: Path) -> None:
    steps = [Reply(calls=(command("touch fixed"),))] * 8
    nothing = {"turns": 0, "wall_clock_s": 0, "tokens": 0, "cost_usd": 0}
    async with open_rig(ScriptBrain([*steps, PROPOSE]), tmp_path, limits=nothing) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED


async def test_the_clock_stops_a_running_command_and_its_call_is_answered(tmp_path: Path) -> None:
    slow = Reply(calls=(command("echo begun; touch begun; sleep 61.7"), command("touch never")))
    async with open_rig(ScriptBrain([slow, PROPOSE]), tmp_path, limits={"wall_clock_s": 1.5}) as rig:
        started = time.monotonic()
        assert await _stopped(rig) == "The limit of 1.5 s is reached."
        assert time.monotonic() - started < 6
        assert processes_of("sleep\00061.7") == []
        results = [e for e in await rig.journal() if e.entry_type == "tool_result"]
        assert [(e.meta or {})["status"] for e in results] == ["unknown", "not_executed"]
        assert "outcome unknown" in (results[0].raw_content or "")
        assert json.loads(results[0].raw_content or "")["partial_output"] == "begun\n"
        assert not (rig.workspace / "never").exists()


async def test_the_clock_stops_a_model_that_does_not_answer(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(text="late", delay_s=60)]), tmp_path, limits={"wall_clock_s": 1.0}) as rig:
        started = time.monotonic()
        assert await _stopped(rig) == "The limit of 1 s is reached."
        assert time.monotonic() - started < 6


async def test_tokens_count_the_next_call_before_it_is_made(tmp_path: Path) -> None:
    nothing_cached = {"cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
    usage = {"input_tokens": 4000, "output_tokens": 1000, **nothing_cached}
    brain = ScriptBrain([Reply(calls=(command("true"),), usage=usage)] * 9)
    limits = {"tokens": 22_000}
    async with open_rig(brain, tmp_path, limits=limits, model={"max_tokens": 8192}) as rig:
        assert await _stopped(rig) == "The next call could exceed the limit of 22000 tokens; 15000 are used."
        assert len(rig.sent()) == 3


async def test_money_is_reserved_before_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The price is that of the table, cached tokens included; what could be exceeded is not begun."""
    monkeypatch.setenv("LIMITS_KEY", "key")
    usage = {"input_tokens": 1000, "output_tokens": 1000, "cache_read_input_tokens": 10_000}
    brain = ScriptBrain([Reply(calls=(command("true"),), usage=usage)] * 9)
    prices = {"claude-opus-5-5": {"input": 10, "output": 100, "cache_read": 1}}
    async with open_rig(brain, tmp_path, limits={"cost_usd": 1.0}, model={**KEY, "prices": prices}) as rig:
        # 0.12 USD a call, and at most 0.83 for an answer of 8192 tokens.
        assert await _stopped(rig) == "The next call could exceed the budget of 1 USD; 0.2400 USD are spent."
        assert rig.conclusions[0].report.usage.cost_usd == pytest.approx(0.24)
        assert "0.2400 USD" in rig.conclusions[0].report.markdown()


async def test_the_built_in_table_knows_the_default_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMITS_KEY", "key")
    brain = ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE])
    async with open_rig(brain, tmp_path, model=KEY) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        cost = rig.conclusions[0].report.usage.cost_usd
        assert cost is not None
        assert cost > 0


async def test_an_unknown_price_is_no_price(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMITS_KEY", "key")
    async with open_rig(BUSY, tmp_path, model={**KEY, "model": "house-model-7"}) as rig:
        assert await _stopped(rig) == (
            "The price of house-model-7 is not known, so no budget can be kept; set [model.prices.'house-model-7'], "
            "or allow it with [model] allow_unknown_price = true."
        )
        assert rig.sent() == []


async def test_an_unknown_price_can_be_allowed_and_stays_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIMITS_KEY", "key")
    brain = ScriptBrain([Reply(calls=(command("touch fixed"),)), PROPOSE])
    model = {**KEY, "model": "house-model-7", "allow_unknown_price": True}
    async with open_rig(brain, tmp_path, model=model) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        assert rig.conclusions[0].report.usage.cost_usd is None
        assert "cost unknown" in rig.conclusions[0].report.markdown()


async def test_limits_survive_a_change_of_worker(tmp_path: Path) -> None:
    """What the journal says was used is used, whoever goes on with the session."""

    def work(turn: Turn) -> Reply:
        return Reply(calls=(command(f"echo {turn.step} >> {tmp_path}/steps; touch step-{turn.step}"),))

    async with open_rig(FunctionBrain(work), tmp_path, limits={"turns": 5}) as rig:
        number = await rig.incident()
        stop = asyncio.Event()
        async with rig.worker() as worker, asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run(stop))
            await wait_until_async(lambda: (rig.workspace / "step-1").exists())
            stop.set()
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.OPEN
        first = len(rig.sent())
        assert 2 <= first < 5
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.reason == "budget"
        assert (tmp_path / "steps").read_text().split() == ["0", "1", "2", "3", "4"]
        assert len(rig.sent()) == 5
        await rig.assert_faithful()

"""Explorers: an agent without a ticket, in a workspace that it owns."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import Clock
from operator_core.config import LimitSettings
from operator_core.db.explorers import Explorers, Wanted
from operator_core.db.integrity import verify
from operator_core.errors import ConfigError, NotFound, SystemPromptNotFound, TransitionRefused
from operator_core.model.entry import Entry, EntryKind
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Turn
from operator_core.work.explore import Explored, ExploreSession
from operator_core.work.explore_log import log_events
from operator_core.work.explorers import PHASE, Exploration, end_if_dead, exploration_of, is_held
from tests.support import wait_until_async
from tests.support.context import assert_only_folds_were_sent, assert_sent_is_journaled
from tests.support.rig import Rig, open_rig

SMALL = {"limit_tokens": 12_288, "carryover_turns": 2}
LIMITS = LimitSettings(turns=200)


def shell_exec(command: str) -> Call:
    return Call("shell_exec", {"command": command})


@asynccontextmanager
async def explorers(brain: Brain, folder: Path, **sections: dict[str, Any]) -> AsyncIterator[Rig]:
    async with open_rig(brain, folder, **sections) as rig:
        (rig.workspace / "SYSTEM_PROMPT.md").write_text("Look around. The word is plum.\n")
        yield rig


async def explore(
    rig: Rig, *, limits: LimitSettings = LIMITS, resume: str | None = None, rate: float = 1.0, meet: Any = None
) -> Explored:
    async with rig.tools() as tools:
        tools = tools._replace(clock=Clock(rate))
        session = ExploreSession(tools, Exploration(rig.workspace, limits), resume)
        if meet is not None:
            meet(session)
        async with asyncio.timeout(60):
            return await session.run()


async def journal(rig: Rig, done: Explored) -> list[Entry]:
    return await rig.audit.entries(done.session_id)


def filling(turn: Turn) -> Reply:
    """Its own words fill the context; it also changes its own prompt."""
    command = "echo x >> ran; [ $(wc -l < ran) -ne 5 ] || sed -i 's/plum/pear/' SYSTEM_PROMPT.md; wc -l < ran"
    return Reply(text="Let me think about it. " * 100, calls=(shell_exec(command),))


async def test_a_full_context_begins_anew_with_the_prompt_as_it_is_now(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(filling), tmp_path, context=SMALL, explore={"max_restarts": 3}) as rig:
        done = await explore(rig)
        assert done.ended == "The context is full again after 3 restarts ([explore] max_restarts = 3)."
        entries = await journal(rig, done)
        restarts = [e for e in entries if e.entry_type == EntryKind.RESTART]
        assert [e.body["number"] for e in restarts] == [2, 3, 4]
        systems = [(r.body or {})["system"] for r in rig.server.model_calls(rig.settings.model.model)]
        said = ["pear" if "pear" in str(s) else "plum" for s in systems]
        # Changed in the first context, used from the second on, and not before.
        assert said.index("pear") == next(i for i, m in enumerate(rig.sent()) if "Session #2." in json.dumps(m))
        assert "pear" not in said[: said.index("pear")]
        assert "This is session #4." in str(systems[-1])
        assert "This is session" not in str(systems[0])
        assert str(systems[-1]).startswith("You are an autonomous AI agent running in the Ouroboros research harness.")
        assert "### file_edit" in str(systems[0])
        assert len({e.body["system_sha256"] for e in restarts}) == 3
        assert_sent_is_journaled(entries, rig.sent(), PHASE)
        assert_only_folds_were_sent(entries, rig.sent(), PHASE)
        assert (await verify(rig.database)).ok
        assert (await rig.audit.session(done.session_id)).status == "completed"
        ran = len((rig.workspace / "ran").read_text().split())
        assert ran == sum(e.entry_type == EntryKind.TOOL_CALL for e in entries)


async def test_words_alone_do_not_end_it(tmp_path: Path) -> None:
    def talk(turn: Turn) -> Reply:
        return Reply(text=f"Thought number {turn.step}.")

    async with explorers(FunctionBrain(talk), tmp_path) as rig:
        done = await explore(rig, limits=LimitSettings(turns=8), rate=1000)
        assert "8 turns" in str(done.ended)
        assert len(rig.sent()) == 8
        # It is told to go on, so that no request repeats the one before.
        assert all(m[-1]["role"] == "user" for m in rig.sent())
        assert "go on with your work" in json.dumps(rig.sent()[-1][-1])
        slow = [line for line in rig.lines if line.startswith("[Slow]")]
        assert [line.split()[-2] for line in slow] == ["1", "2", "4", "8", "16", "32"]


async def test_going_round_in_circles_ends_with_a_sentence(tmp_path: Path) -> None:
    """Two turns in turn, each with the result that it had before."""

    def circle(turn: Turn) -> Reply:
        return Reply(text="Again.", calls=(shell_exec("echo tick" if turn.step % 2 else "echo tock"),))

    async with explorers(FunctionBrain(circle), tmp_path) as rig:
        done = await explore(rig, rate=1000)
        assert "did the same thing" in str(done.ended)
        assert 10 < len(rig.sent()) < 16


async def test_a_question_whose_answer_changes_is_no_circle(tmp_path: Path) -> None:
    def poll(turn: Turn) -> Reply:
        return Reply(calls=(shell_exec("echo x >> ran; wc -l < ran"),))

    async with explorers(FunctionBrain(poll), tmp_path) as rig:
        done = await explore(rig, limits=LimitSettings(turns=20))
        assert "20 turns" in str(done.ended)
        assert not any(line.startswith("[Slow]") for line in rig.lines)


def counting(turn: Turn) -> Reply:
    return Reply(calls=(shell_exec("echo x >> ran; wc -l < ran; sleep 0.05"),))


async def test_people_pause_it_resume_it_and_stop_it(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        people = Explorers(rig.database)
        ran = rig.workspace / "ran"
        task = asyncio.create_task(explore(rig, limits=LimitSettings(turns=0)))
        await wait_until_async(lambda: ran.exists() and ran.stat().st_size >= 6)
        (info,) = await people.list(running=True)
        await people.want(info.session_id, Wanted.PAUSED)
        await wait_until_async(lambda: any(line.startswith("[Paused]") for line in rig.lines))
        asked, done_so_far = len(rig.sent()), ran.stat().st_size
        await asyncio.sleep(0.5)
        assert (len(rig.sent()), ran.stat().st_size) == (asked, done_so_far)
        await people.want(info.session_id, Wanted.RUNNING)
        await wait_until_async(lambda: ran.stat().st_size >= done_so_far + 6)
        await people.want(info.session_id, Wanted.STOPPED)
        done = await task
        assert done.ended == "stopped by a person"
        assert (await rig.audit.session(done.session_id)).status == "completed"
        kinds = [e.entry_type for e in await journal(rig, done)]
        assert [k for k in kinds if k in ("paused", "continued", "session_end")] == [
            "paused",
            "continued",
            "session_end",
        ]
        with pytest.raises(TransitionRefused):
            await people.want(info.session_id, Wanted.RUNNING)
        with pytest.raises(NotFound):
            await people.want("nobody", Wanted.RUNNING)


async def test_without_auto_restart_a_full_context_waits_for_a_person(tmp_path: Path) -> None:
    options = {"auto_restart": False, "max_restarts": 1}
    async with explorers(FunctionBrain(filling), tmp_path, context=SMALL, explore=options) as rig:
        people = Explorers(rig.database)
        task = asyncio.create_task(explore(rig))
        await wait_until_async(lambda: any(line.startswith("[Paused]") for line in rig.lines))
        (info,) = await people.list()
        assert info.wanted is Wanted.PAUSED
        await asyncio.sleep(0.5)
        assert not task.done()
        await people.want(info.session_id, Wanted.RUNNING)
        done = await task
        assert "after 1 restarts" in str(done.ended)


async def test_one_that_is_stopped_when_its_context_is_full_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stops it is not overruled, and not answered with an error, by the pause for a full context."""
    monkeypatch.setattr("operator_core.work.explore._LOOK_S", 60.0)  # it learns of it by that pause, not before
    people: list[Explorers] = []

    async def reply(turn: Turn) -> Reply:
        (info,) = await people[0].list()
        await people[0].want(info.session_id, Wanted.STOPPED)
        return Reply(text="Let me think about it. " * 3000, calls=(shell_exec("true"),))

    async with explorers(FunctionBrain(reply), tmp_path, context=SMALL, explore={"auto_restart": False}) as rig:
        people.append(Explorers(rig.database))
        done = await explore(rig)
        assert done.ended == "stopped by a person"
        assert (await rig.audit.session(done.session_id)).status == "completed"


async def test_it_rests_when_told_and_goes_on_from_its_journal(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        ran = rig.workspace / "ran"
        found: list[ExploreSession] = []
        task = asyncio.create_task(explore(rig, limits=LimitSettings(turns=12), meet=found.append))
        await wait_until_async(lambda: ran.exists() and ran.stat().st_size >= 6)
        # A workspace has one explorer.
        assert is_held(rig.workspace)
        with pytest.raises(ConfigError, match="Another process explores"):
            await explore(rig)
        found[0].stopping.set()
        rested = await task
        assert rested.ended is None
        assert not is_held(rig.workspace)
        with pytest.raises(ConfigError, match=f"`operator explore --resume --session {rested.session_id}`"):
            await explore(rig)
        asked = Exploration(rig.workspace, LimitSettings(turns=12))
        session, exploration = await exploration_of(rig.database, asked, None, anywhere=False)
        assert (session, exploration.workspace) == (rested.session_id, rig.workspace)
        done = await explore(rig, limits=LimitSettings(turns=12), resume=session)
        assert "12 turns" in str(done.ended)
        entries = await journal(rig, done)
        assert_sent_is_journaled(entries, rig.sent(), PHASE)
        assert [e.entry_type for e in entries].count("session_start") == 1
        assert len(ran.read_text().split()) == 12
        with pytest.raises(ConfigError, match="no session to go on with"):
            await exploration_of(rig.database, asked, None, anywhere=True)


async def test_one_that_nobody_runs_any_more_can_be_stopped(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        rested = await explore(rig, meet=lambda session: session.stopping.set())
        people = Explorers(rig.database)
        await people.want(rested.session_id, Wanted.STOPPED)
        assert await end_if_dead(rig.settings, rig.database, await people.find(rested.session_id))
        assert (await rig.audit.session(rested.session_id)).status == "completed"
        assert (await verify(rig.database)).ok
        assert list((tmp_path / "state" / "sessions").iterdir()) == []
        # Somebody may be told to stop at the moment at which it ends by itself.
        assert await end_if_dead(rig.settings, rig.database, await people.find(rested.session_id))
        assert [e.entry_type for e in await journal(rig, rested)].count("session_end") == 1


async def test_a_secret_in_its_prompt_is_hidden_from_the_first_request_on(tmp_path: Path) -> None:
    """The journal hides it, and whoever resumes sends what the journal has."""
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        rig.database.redactor.learn(["correct-horse-battery"])
        (rig.workspace / "SYSTEM_PROMPT.md").write_text("The word is correct-horse-battery.")
        ran = rig.workspace / "ran"
        found: list[ExploreSession] = []
        task = asyncio.create_task(explore(rig, meet=found.append))
        await wait_until_async(ran.exists)
        found[0].stopping.set()
        rested = await task
        await explore(rig, limits=LimitSettings(turns=len(rig.sent()) + 1), resume=rested.session_id)
        systems = {json.dumps((r.body or {})["system"]) for r in rig.server.model_calls(rig.settings.model.model)}
        assert len(systems) == 1
        assert "The word is [REDACTED]." in systems.pop()


async def test_discoveries_and_the_session_log(tmp_path: Path) -> None:
    def brain(turn: Turn) -> Reply:
        calls = [
            Call("discovery", {"title": "A \x1b[31mred\x1b[0m line", "description": "I saw it.\nTwice."}),
            Call("discovery", {"title": "no description"}),
            shell_exec("echo out; exit 3"),
        ]
        return Reply(text="Look.", calls=(calls[min(turn.step, 2)],))

    async with explorers(FunctionBrain(brain), tmp_path) as rig:
        done = await explore(rig, limits=LimitSettings(turns=3))
        entries = await journal(rig, done)
        found = [e for e in entries if e.entry_type == EntryKind.DISCOVERY]
        assert [e.body["description"] for e in found] == ["I saw it.\nTwice."]
        assert "\x1b" not in found[0].content
        lines = [json.loads(line) for line in done.log.read_text().splitlines()]
        assert lines == log_events(entries)
        assert not done.log.is_relative_to(rig.workspace)
        assert done.session_id in done.log.name
        assert lines[0]["event_type"] == "session_start"
        assert lines[-1] == {"timestamp": lines[-1]["timestamp"], "event_type": "session_end"} | {
            "total_turns": 3,
            "reason": done.ended,
        }
        kinds = {line["event_type"] for line in lines}
        assert kinds == {
            "session_start",
            "system_message",
            "token_usage",
            "assistant_text",
            "tool_call",
            "tool_result",
            "discovery",
            "session_end",
        }
        results = [line for line in lines if line["event_type"] == "tool_result"]
        assert [line["fn_name"] for line in results] == ["discovery", "discovery", "shell_exec"]
        assert "error" in results[1]
        assert json.loads(results[2]["result"])["exit_code"] == 3
        assert all(len(line["timestamp"]) == 24 and line["timestamp"].endswith("Z") for line in lines)
        assert all(line["context_used_pct"] >= 0 for line in lines if line["event_type"] == "token_usage")


async def test_what_must_be_there_before_it_begins(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        (rig.workspace / "SYSTEM_PROMPT.md").unlink()
        with pytest.raises(SystemPromptNotFound, match=r"SYSTEM_PROMPT\.md"):
            await explore(rig)
        async with rig.tools() as tools:
            (tmp_path / "SYSTEM_PROMPT.md").write_text("x")
            with pytest.raises(ConfigError, match="narrower folder"):
                await ExploreSession(tools, Exploration(tmp_path, LIMITS)).run()
        assert await Explorers(rig.database).list() == []
        assert rig.sent() == []


async def test_blocked_commands_are_refused_and_noted_outside(tmp_path: Path) -> None:
    def brain(turn: Turn) -> Reply:
        return Reply(calls=(shell_exec("touch forbidden-thing correct-horse-battery"),))

    blocked = [{"pattern": "forbidden", "reason": "not here"}]
    async with explorers(FunctionBrain(brain), tmp_path, explore={"blocked": blocked}) as rig:
        rig.database.redactor.learn(["correct-horse-battery"])
        done = await explore(rig, limits=LimitSettings(turns=2))
        results = [e for e in await journal(rig, done) if e.entry_type == EntryKind.TOOL_RESULT]
        assert results[0].exit_code == 126
        assert "not here" in str(results[0].raw_content)
        assert not (rig.workspace / "forbidden-thing").exists()
        noted = (tmp_path / "state" / "logs" / "security.log").read_text()
        assert "not here" in noted
        assert "correct-horse" not in noted


async def test_working_time_is_limited(tmp_path: Path) -> None:
    async with explorers(FunctionBrain(counting), tmp_path) as rig:
        done = await explore(rig, limits=LimitSettings(turns=0, wall_clock_s=0.5))
        assert done.ended == "The limit of 0.5 s is reached."
        assert (rig.workspace / "ran").exists()

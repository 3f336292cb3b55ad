"""How a phase of the real Claude Code CLI ends: limits, failing services, leaving workers, kills, and going on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from operator_core.agent_lab.agent_run import Stopping
from operator_core.db.integrity import verify
from operator_core.errors import Fenced, ModelNotUsable, ModelUnreachable
from operator_core.model.entry import Entry
from operator_core.model.usage import Usage
from operator_core.scripted import Call, Failure, FunctionBrain, Reply, ScriptBrain, ScriptedServer, Turn
from tests.support import claude_code as support
from tests.support import free_port, processes_of, wait_until_async
from tests.support.claude_code import API_KEY, PHASE, CliRig, bash, open_cli_rig
from tests.support.store import Work, start_work

pytestmark = pytest.mark.usefixtures("require_claude_code")

ROOT = Path(__file__).parents[2]
HANG = "echo begun > begun; setsid sleep 4321 & sleep 4321"


def replies(entries: list[Entry]) -> list[Entry]:
    return [e for e in entries if e.entry_type == "message" and e.body["role"] == "assistant"]


def results(entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.entry_type == "tool_result"]


def sleepers() -> list[int]:
    """Processes of :data:`HANG`."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                words = (folder / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if words[:2] == ["sleep", "4321"]:
                found.append(int(folder.name))
    return found


async def test_the_budget_ends_it_before_a_call_that_does_not_fit(tmp_path: Path) -> None:
    server = ScriptedServer(ScriptBrain([Reply(calls=(bash("echo hi"),)), Reply(text="never asked")]))
    async with server, open_cli_rig(server.base_url, tmp_path, limits={"turns": 1}) as rig:
        result = await rig.run()
        entries = await rig.entries()
        again = await rig.run()
    assert result.kind == "limit"
    assert "limit of 1 turns" in result.detail
    assert result.commands == 1
    assert len(server.model_calls()) == 1
    assert again == result
    assert results(entries)[0].exit_code == 0


async def test_money_is_reserved_for_the_longest_answer(tmp_path: Path) -> None:
    server = ScriptedServer(ScriptBrain([Reply(text="never asked")]))
    prices = {"claude-opus-5-5": {"input": 4.0, "output": 20.0}}
    model = {"engine": "anthropic", "prices": prices}
    async with server, open_cli_rig(server.base_url, tmp_path, model=model, limits={"cost_usd": 0.5}) as rig:
        result = await rig.run()  # 32,000 tokens of output alone would be 0.64 USD
        assert result.kind == "limit"
        assert "0.5 USD" in result.detail
    assert server.model_calls() == []


async def test_the_wall_clock_kills_everything_daemons_included(tmp_path: Path) -> None:
    brain = ScriptBrain([Reply(calls=(bash(HANG),))])
    for seconds in (2.5, 10.0, 40.0):  # a busy machine may need longer to get there
        folder = tmp_path / f"{seconds:g}"
        folder.mkdir()
        async with open_cli_rig(brain, folder, limits={"wall_clock_s": seconds}) as rig:
            result = await rig.run()
            entries = await rig.entries()
        assert sleepers() == []
        assert processes_of(str(folder)) == []
        assert result.kind == "limit"
        assert f"{seconds:g} s" in result.detail
        if (rig.workspace / "begun").exists():
            break
    (answer,) = results(entries)  # unknown, or that a signal ended it, if the CLI could still say so
    assert answer.exit_code != 0


@pytest.mark.parametrize(
    ("answers", "error", "words"),
    [
        ([Failure(401, "bad key", times=None)], ModelNotUsable, "refused the key in ANTHROPIC_API_KEY"),
        ([Failure(404, "no such model", times=None)], ModelNotUsable, "no such model"),
        ([Failure(529, times=None)], ModelUnreachable, "529"),
        ([Reply(text="half " * 50, drop="mid", times=None)], ModelUnreachable, "cut short|cannot be reached"),
    ],
    ids=["key", "model", "overloaded", "cut"],
)
async def test_a_failing_service_is_named_and_the_phase_goes_on_later(
    tmp_path: Path, answers: list[Any], error: type[Exception], words: str
) -> None:
    async with open_cli_rig(ScriptBrain(answers), tmp_path) as rig:
        with pytest.raises(error, match=words):
            await rig.run()
    if error is ModelUnreachable:
        async with open_cli_rig(ScriptBrain([], after=Reply("done")), tmp_path, session_id=rig.session_id) as later:
            assert (await later.run()).text == "done"


async def test_a_service_that_is_not_there(tmp_path: Path) -> None:
    async with open_cli_rig(f"http://127.0.0.1:{free_port()}", tmp_path) as rig:
        with pytest.raises(ModelUnreachable, match="cannot be reached"):
            await rig.run()


async def test_a_refused_request_is_an_error_although_the_cli_calls_it_a_success(tmp_path: Path) -> None:
    async with open_cli_rig(ScriptBrain([Failure(400, "too odd", times=None)]), tmp_path) as rig:
        result = await rig.run()
    assert result.kind == "error"
    assert "too odd" in result.detail


async def test_trouble_that_passes_is_journaled_and_paid_for(tmp_path: Path) -> None:
    answers = [
        Failure(529, headers={"retry-after": "0"}),
        Reply(text="lost " * 50, calls=(bash("echo lost >> effects"),), drop="mid"),
        Reply(calls=(bash("echo done >> effects"),)),
        Reply(text="done"),
    ]
    async with open_cli_rig(ScriptBrain(answers), tmp_path, claude_code={"max_retries": 3}) as rig:
        result = await rig.run()
        entries = await rig.entries()
    assert result.text == "done"
    assert (rig.workspace / "effects").read_text() == "done\n"
    retries = [e for e in entries if e.entry_type == "retry"]
    assert any("529" in e.content for e in retries)
    (cut,) = [e for e in retries if e.meta and "usage" in e.meta]
    assert cut.meta is not None
    assert cut.meta["usage"]["cache_write_tokens"] > 1000
    assert rig.phase is not None
    journaled = [Usage(**e.meta["usage"]).tokens for e in entries if e.meta and "usage" in e.meta]
    assert rig.phase.budget.used.tokens == sum(journaled)


async def test_retry_after_is_capped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("operator_core.agent_lab.claude_code.proxy.MAX_RETRY_AFTER_S", 0.2)
    brain = ScriptBrain([Failure(429, headers={"retry-after": "3600"}), Reply(text="done")])
    async with open_cli_rig(brain, tmp_path) as rig, asyncio.timeout(60):
        assert (await rig.run()).text == "done"


async def test_a_model_that_refuses(tmp_path: Path) -> None:
    no = Reply(text="I will not.", stop_reason="refusal")
    async with open_cli_rig(ScriptBrain([no, no, no], after=no), tmp_path) as rig:
        result = await rig.run()
    assert result.kind == "refused"


async def test_a_worker_that_leaves_rests_between_two_calls_and_goes_on_later(tmp_path: Path) -> None:
    first = Reply(calls=(bash("echo one >> effects; until test -e leave; do :; done"),))
    server = ScriptedServer(ScriptBrain([first], after=Reply(text="done")))
    async with server, open_cli_rig(server.base_url, tmp_path) as rig:
        stopping = asyncio.Event()
        running = asyncio.ensure_future(rig.run(stopping=stopping))
        await wait_until_async((rig.workspace / "effects").exists, timeout=60)
        stopping.set()
        (rig.workspace / "leave").touch()
        with pytest.raises(Stopping):
            await running
        assert processes_of(str(tmp_path)) == []
        assert len(server.model_calls()) == 1
        (result,) = results(await rig.entries())
        assert result.exit_code == 0
        assert (await rig.run()).text == "done"
    assert (rig.workspace / "effects").read_text() == "one\n"


async def test_a_cancelled_phase_leaves_nothing_running(tmp_path: Path) -> None:
    async with open_cli_rig(ScriptBrain([Reply(calls=(bash(HANG),))]), tmp_path) as rig:
        running = asyncio.ensure_future(rig.run())
        await wait_until_async(lambda: len(sleepers()) == 2, timeout=60, what="both sleepers")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert sleepers() == []
        assert processes_of(str(tmp_path)) == []


async def test_a_worker_that_lost_its_ticket_starts_no_command_and_makes_no_further_call(tmp_path: Path) -> None:
    lost: list[Work] = []

    async def answer(turn: Turn) -> Reply:
        await lost[0].queue.release(lost[0].claim)
        return Reply(calls=(bash("touch effect"),))

    server = ScriptedServer(FunctionBrain(answer))
    async with server, open_cli_rig(server.base_url, tmp_path) as rig:
        work = await start_work(rig.database)
        lost.append(work)
        work.journal.phase = PHASE
        with pytest.raises(Fenced):
            await rig.run(journal=work.journal)
        entries = await rig.audit.entries(work.session_id)
    assert entries[-1].entry_type == "message"
    assert not (rig.workspace / "effect").exists()
    assert len(server.model_calls()) == 1


# ---- kills


@contextmanager
def started(rig: CliRig, **env: str) -> Iterator[subprocess.Popen[bytes]]:
    """The phase in a process of its own."""
    with subprocess.Popen(
        [sys.executable, "-W", "error", support.__file__, str(rig.folder), rig.base_url, rig.session_id],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env={"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "PYTHONPATH": str(ROOT), **env},
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("lost", [False, True], ids=["whole", "without its end"])
async def test_after_a_kill_the_same_conversation_goes_on(tmp_path: Path, lost: bool) -> None:
    server = ScriptedServer(ScriptBrain([Reply(text="Part one.", calls=(bash(HANG),))], after=Reply(text="done")))
    async with server, open_cli_rig(server.base_url, tmp_path) as rig:
        with started(rig):
            await wait_until_async(lambda: len(sleepers()) == 2, timeout=60, what="both sleepers")
        await wait_until_async(
            lambda: not processes_of(str(tmp_path)) and not sleepers(), timeout=60, what="no process of it"
        )
        before = await rig.entries()
        assert [e.entry_type for e in before][-1] == "tool_call"
        (transcript,) = (rig.folder / "state" / PHASE / "config" / "projects").glob("*/*.jsonl")
        if lost:
            lines = transcript.read_text().splitlines(keepends=True)
            transcript.write_text("".join(line for line in lines if '"role":"assistant"' not in line))
        result = await rig.run()
        entries = await rig.entries()
    assert result.text == "done"
    assert result.session_id == before[1].body["cli_session_id"]
    last = server.model_calls()[-1].body
    assert last is not None
    said = json.dumps(last["messages"])
    assert "sleep 4321" in said
    assert "unknown" in said
    assert "Continue where you were interrupted." in said
    assert sum("Do it." in json.dumps(m) for m in last["messages"]) == 1
    (unknown,) = results(entries)
    assert unknown.meta == {"status": "unknown"}
    assert [e.body["resumed"] for e in entries if e.entry_type == "engine_session" and "resumed" in e.body] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    "place",
    [
        "claude_code.begun",
        "journal.append.before:message+tool_call",
        "claude_code.replied",
        "journal.append.after:tool_result",
        "journal.append.before:engine_session",
    ],
)
async def test_killed_at_any_point_nothing_is_done_twice_unsaid(tmp_path: Path, place: str) -> None:
    answers = [
        Reply(calls=(Call("Bash", {"command": "echo x >> effects", "description": "x"}, id="toolu_x"),)),
        Reply("done"),
    ]
    server = ScriptedServer(ScriptBrain(answers))
    async with server, open_cli_rig(server.base_url, tmp_path) as rig:
        with started(rig, OPERATOR_CRASH_AT=place) as process:
            await wait_until_async(lambda: process.poll() is not None, timeout=60, what="the end of the process")
        assert process.returncode == -signal.SIGKILL
        await wait_until_async(lambda: not processes_of(str(tmp_path)), timeout=60, what="no process of it")
        effects = rig.workspace / "effects"
        if place.endswith("before:message+tool_call"):
            assert not effects.exists()  # no effect without its intent
        result = await rig.run()
        entries = await rig.entries()
    assert result.kind == "done"
    asked = [e for e in entries if e.entry_type == "tool_call"]
    times = effects.read_text().count("x") if effects.exists() else 0
    assert times <= len(asked)
    assert len(results(entries)) == len(asked)
    if times > 1:
        assert any((e.meta or {}).get("status") == "unknown" for e in results(entries))


@pytest.mark.parametrize("left", [None, '{"type":"queue-operation"}\n'], ids=["gone", "not yet begun"])
async def test_a_transcript_that_is_gone_is_retold(tmp_path: Path, left: str | None) -> None:
    server = ScriptedServer(ScriptBrain([Reply(text="It was the disk.")], after=Reply(text="It was the disk.")))
    async with server, open_cli_rig(server.base_url, tmp_path) as rig:
        first = await rig.run("What was it?")
        for path in (rig.folder / "state" / PHASE / "config" / "projects").glob("*/*.jsonl"):
            path.unlink() if left is None else path.write_text(left)
        second = await rig.run("And why?")
    assert second.session_id != first.session_id
    sent = json.dumps(server.model_calls()[-1].body)
    assert "And why?" in sent
    assert "It was the disk." in sent


async def test_the_journal_of_a_phase_holds(tmp_path: Path) -> None:
    async with open_cli_rig(
        ScriptBrain([Reply(calls=(bash(f"echo {API_KEY}"),)), Reply(text="done")]), tmp_path
    ) as rig:
        await rig.run()
        report = await verify(rig.database)
        assert report.ok, report.problem
        entries = await rig.entries()
    assert API_KEY not in json.dumps([vars(e) for e in entries])
    assert [(e.exit_code, e.raw_content) for e in results(entries)] == [(0, "[REDACTED]")]

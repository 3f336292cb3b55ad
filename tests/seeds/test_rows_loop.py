"""What seeds 000 and 004 ask of the loop, seen from outside (rows A-014 to A-075, D-12 to D-24)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from operator_core.agent_lab import SYSTEM_PROMPT, shell
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.schema import workers
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, Reply, ScriptBrain, unfence
from operator_core.work.process import serve
from tests.support import wait_until_async
from tests.support.rig import PROPOSE, command, open_rig, spec_of
from tests.support.store import finish, start_work

FIX = Reply(calls=(command("touch fixed"),))
LONG = "The disk of the third replica is full, because its log is not rotated, and so nothing can be written to it."


# ---- what the model is sent


async def test_the_request_is_the_seeds(tmp_path: Path) -> None:
    """Rows A-021, A-056, A-057: ticket text, model, length, tools, system prompt."""
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path, model={"model": "claude-opus-4-20250514"}) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED
        body = rig.server.model_calls()[0].body
        assert body is not None
        text = 'Ticket #1: file-exists\nThe file is missing.\nMetrics: {"light": "red"}'
        (question,) = body["messages"]
        assert (question["role"], unfence(question["content"])) == ("user", ("ticket", text))
        assert (body["model"], body["max_tokens"]) == ("claude-opus-5-5", 8192)
        assert body["system"].startswith(SYSTEM_PROMPT.strip())
        first, *outcomes = body["tools"]
        assert [tool["name"] for tool in outcomes] == ["propose_resolution", "give_up"]
        assert first["name"] == "shell"
        schema = first["input_schema"]
        assert (schema["type"], schema["required"]) == ("object", ["command", "reasoning"])
        assert {name: p["type"] for name, p in schema["properties"].items()} == {
            "command": "string",
            "reasoning": "string",
            "timeout": "number",
        }
        assert "default" in schema["properties"]["timeout"]


async def test_a_ticket_without_an_observation_has_no_metrics(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Reply(calls=(Call("give_up", {"reason": "no"}),))]), tmp_path) as rig:
        await rig.tickets.open_ticket("by-hand", "Somebody says so.")
        await rig.work()
        (question,) = rig.sent()[0]
        assert unfence(question["content"]) == ("ticket", "Ticket #1: by-hand\nSomebody says so.")


async def test_results_of_parallel_calls_are_one_message_in_order(tmp_path: Path) -> None:
    """Row A-074; and nothing stands between the model and the shell (rows A-009, A-015)."""
    calls = (command("sleep 0.3; echo 'sudo rm -rf /' | cat"), command("echo two; exit 3"), command("touch fixed"))
    async with open_rig(ScriptBrain([Reply(text="Three.", calls=calls), PROPOSE]), tmp_path) as rig:
        await rig.solve()
        question, asked, answer = rig.sent()[1]
        assert [m["role"] for m in (question, asked, answer)] == ["user", "assistant", "user"]
        ids = [block["id"] for block in asked["content"] if block["type"] == "tool_use"]
        assert [(block["type"], block["tool_use_id"]) for block in answer["content"]] == [
            ("tool_result", one) for one in ids
        ]
        results = [json.loads(unfence(block["content"]).text) for block in answer["content"]]
        assert [(r["stdout"], r["exit_code"]) for r in results] == [("sudo rm -rf /\n", 0), ("two\n", 3), ("", 0)]
        assert all(set(r) == {"stdout", "stderr", "exit_code", "timed_out"} for r in results)


# ---- what is written


async def test_the_rows_of_two_parallel_calls(tmp_path: Path) -> None:
    """Rows A-036, A-058, A-059, D-10: read beside the product, in the seed's columns, in the order of things."""
    calls = (command("echo out; echo err >&2", "first look"), command("exit 4", "second look"))
    async with open_rig(ScriptBrain([Reply(text=LONG, calls=calls), FIX, PROPOSE]), tmp_path) as rig:
        await rig.solve()
    columns = "entry_type, content, raw_content, tool_name, tool_params, exit_code"
    kinds = "('reasoning', 'tool_call', 'tool_result')"
    with contextlib.closing(sqlite3.connect(tmp_path / "operator.db")) as c:
        rows = c.execute(f"SELECT {columns} FROM agent_log_entries WHERE entry_type IN {kinds} ORDER BY id").fetchall()
    reasoning, one, two, result_one, result_two, *_ = rows
    assert reasoning[:4] == ("reasoning", LONG, LONG, None)
    assert [(r[0], r[3], json.loads(r[4])) for r in (one, two)] == [
        ("tool_call", "shell", {"command": c.input["command"], "reasoning": c.input["reasoning"]}) for c in calls
    ]
    assert [(r[0], r[3], r[5]) for r in (result_one, result_two)] == [
        ("tool_result", "shell", 0),
        ("tool_result", "shell", 4),
    ]
    assert json.loads(result_one[2]) == {"stdout": "out\n", "stderr": "err\n", "exit_code": 0, "timed_out": False}
    assert all(r[1] for r in rows), "each has a summary"


async def test_the_file_of_a_session_has_the_whole_conversation(tmp_path: Path) -> None:
    """Row A-029: every message of the model, every call with its reason, one file per session."""
    steps = [Reply(text=LONG, calls=(command("echo hello", "to be polite"),)), FIX, PROPOSE]
    async with open_rig(ScriptBrain(steps), tmp_path) as rig:
        await rig.solve(audit_dir=tmp_path / "audit")
        (session,) = await rig.audit.sessions()
        data = json.loads((tmp_path / "audit" / f"{session.session_id}.json").read_text())
        assert (data["session_id"], data["message_count"]) == (session.session_id, len(data["messages"]))
        said = [m["content"] for m in data["messages"] if m.get("role") == "assistant"]
        assert said == [m["content"] for m in rig.sent()[-1] if m["role"] == "assistant"] + said[-1:]
        calls = [m for m in data["messages"] if m.get("type") == "tool_call"]
        assert [c["tool"] for c in calls] == ["shell", "shell", "propose_resolution"]
        assert calls[0]["parameters"] == {"command": "echo hello", "reasoning": "to be polite"}
        assert calls[0]["result"]["stdout"] == "hello\n"


async def test_a_resolved_ticket_carries_the_agents_summary(tmp_path: Path) -> None:
    """Row A-066."""
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        ticket = await rig.solve()
        assert (ticket.status, ticket.diagnosis) == (TicketStatus.RESOLVED, "The file is there again.")
        assert ticket.resolved_at is not None
        (session,) = await rig.audit.sessions()
        assert (session.status, session.outcome_summary) == ("completed", "The file is there again.")
        assert session.ended_at is not None


# ---- how it runs


def test_the_poll_is_the_seeds_and_sessions_at_once_fit_the_machine() -> None:
    """Rows A-062 and A-075."""
    worker = Settings().worker
    assert worker.poll_s == 1.0
    assert 1 <= worker.concurrency <= 4 * (os.cpu_count() or 1)


async def test_the_loop_of_the_seed_works_one_by_one(tmp_path: Path) -> None:
    """Row A-063: `run_agent_loop` takes one ticket at a time, whatever the configuration says of workers."""
    log = tmp_path / "log"
    steps = [Reply(calls=(command(f"echo + >> {log}; sleep 0.3; echo - >> {log}; touch fixed"),)), PROPOSE]
    async with open_rig(ScriptBrain(steps), tmp_path, worker={"concurrency": 4}) as rig:
        for name in ("a", "b", "c"):
            await rig.incident(spec_of(rig.workspace, name))
        await serve(str(tmp_path / "operator.db"), settings=rig.settings, concurrency=1, until_idle=True)
    assert log.read_text().split() == ["+", "-"] * 3


async def test_an_unforeseen_failure_escalates_its_ticket_and_the_loop_goes_on(tmp_path: Path) -> None:
    """Rows A-067 and A-068: the seed left such a ticket open, and tried it again for ever."""
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        await rig.incident(spec_of(tmp_path / "gone", "first"))
        await rig.incident(spec_of(rig.workspace, "second"))
        await rig.work()
        first, second = await rig.tickets.get_ticket(1), await rig.tickets.get_ticket(2)
        assert (first.status, first.reason) == (TicketStatus.ESCALATED, "error")
        assert second.status is TicketStatus.RESOLVED
        assert f"The workspace `{tmp_path}/gone` is not a directory" in (first.diagnosis or "")
        assert any(line.startswith("Error processing ticket: The workspace") for line in rig.lines)
        sessions = {s.invariant_name: s.status for s in await rig.audit.sessions()}
        assert sessions == {"first": "failed", "second": "completed"}
        assert [t.id for t in await rig.tickets.list_tickets("escalated")] == [1]
        before = len(rig.lines)
        await rig.work()
        assert len(rig.lines) == before, "nobody picks it up again"


async def test_a_timeout_leaves_no_zombie() -> None:
    """Row A-014."""
    assert (await shell("sleep 60 & sleep 60; echo x", "hangs", timeout=0.3))["timed_out"]
    children = f"/proc/self/task/{threading.get_native_id()}/children"
    for pid in Path(children).read_text().split():
        with contextlib.suppress(FileNotFoundError):
            assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.parametrize("status", [TicketStatus.RESOLVED, TicketStatus.ESCALATED])
async def test_the_end_of_the_work_ends_a_hold(store_url: str, status: TicketStatus) -> None:
    """D-16: it stayed for ever."""
    async with Database.open(store_url) as database:
        work = await start_work(database, entries=1)
        await work.tickets.hold_ticket(work.claim.ticket_id)
        await finish(work, status)
        ticket = await work.tickets.get_ticket(work.claim.ticket_id)
        assert (ticket.status, ticket.held) == (status, False)


async def test_an_idle_worker_opens_the_store_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D-24: each poll opened the file anew and ran its schema; and a writer stopped every reader."""
    opened = 0
    real = sqlite3.connect

    def connect(*args: Any, **values: Any) -> sqlite3.Connection:
        nonlocal opened
        opened += 1
        connection: sqlite3.Connection = real(*args, **values)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    async with open_rig(ScriptBrain([]), tmp_path, worker={"poll_s": 0.01}) as rig, rig.worker() as worker:
        stop = asyncio.Event()
        work = asyncio.create_task(worker.run(stop))
        await wait_until_async(lambda: rig.database.fetch(select(workers.c.id)))
        await asyncio.sleep(1.0)
        assert 1 <= opened <= 5, "one writer, at most three readers, and one that is woken by writes"
        async with rig.database.begin() as writing:
            assert (await writing.exec_driver_sql("PRAGMA journal_mode")).scalar() == "wal"
            assert (await writing.exec_driver_sql("PRAGMA busy_timeout")).scalar() == 30_000
            assert await rig.tickets.list_tickets() == [], "reading goes on while somebody writes"
        stop.set()
        await work

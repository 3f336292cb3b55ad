"""A worker process: what it prints, how it shares, how it leaves, and that an idle one costs nothing."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from sqlalchemy import select

from operator_core import clock
from operator_core.cli.output import style_of
from operator_core.clock import Clock
from operator_core.config import MonitorSettings
from operator_core.db.schema import workers
from operator_core.model.invariant import Invariant, Subject, TcpProbe
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import InvariantViolation, TicketStatus
from operator_core.monitor.build import build_loops
from operator_core.scripted import Call, FunctionBrain, Reply, ScriptBrain, Turn
from operator_core.work.transcript import label
from tests.support import processes_of, wait_until_async
from tests.support.rig import PROPOSE, Rig, command, open_rig, spec_of
from tests.support.worker_process import start_worker

FIX = Reply(calls=(command("touch fixed"),))


@pytest.mark.parametrize(("engine", "who"), [("anthropic", "[Claude]"), ("scripted", "[Scripted]")])
async def test_console(tmp_path: Path, engine: str, who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows A-058 and A-064, to the letter; what a program of ours says is not called the word of a model."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "the-key-of-a-test")
    model = {"engine": engine, "allow_unknown_price": True}
    steps = [
        Reply(text="I look first.", calls=(command("echo hello"), command("ls /nonexistent"))),
        FIX,
        PROPOSE,
    ]
    async with open_rig(ScriptBrain(steps), tmp_path, model=model) as rig:
        await rig.solve()
        (session,) = await rig.audit.sessions()
        entries = await rig.audit.entries(session.session_id)
    said = next(entry for entry in entries if entry.entry_type == "reasoning")
    assert (label(said), said.meta) == (who, None if engine == "anthropic" else {"by": "Scripted"})
    replies = [entry.meta["model"] for entry in entries if entry.entry_type == "message" and entry.meta]
    assert set(replies) == {"claude-opus-5-5" if engine == "anthropic" else "scripted: claude-opus-5-5"}
    rule = "=" * 60
    text = "\n".join(rig.lines)
    assert f"{rule}\nProcessing ticket #1: file-exists\n{rule}" in text
    assert f"{who} I look first." in rig.lines
    assert "[Tool Call: shell] echo hello" in rig.lines
    assert "[Result (exit 0)] hello" in rig.lines
    assert any(line.startswith("[Result (exit 2)] ls: cannot access") for line in rig.lines)
    assert "Ticket #1 -> resolved\nSummary: verified: every required clause was observed by the platform" in text
    # Words come before the calls, calls before their results.
    order = [rig.lines.index(line) for line in (f"{who} I look first.", "[Tool Call: shell] echo hello")]
    assert order == sorted(order)


async def test_where_several_sessions_work_at_once_each_line_says_of_which_ticket(tmp_path: Path) -> None:
    def reply(turn: Turn) -> Reply:
        return PROPOSE if turn.step else Reply(text="I look first.", calls=(command("touch fixed; printf 'a\\nb'"),))

    async with open_rig(FunctionBrain(reply), tmp_path, worker={"concurrency": 2}) as rig:
        await rig.incident()
        await rig.work()
    assert "#1 [Scripted] I look first." in rig.lines
    assert [line for line in rig.lines if line.startswith("#1 [Result (exit 0)]")]
    assert not [line for line in rig.lines if line.startswith("[")], "no line leaves it open"
    assert style_of("#2 [Scripted] I look first.") == style_of("[Scripted] I look first.") == "cyan"


async def test_an_error_of_one_ticket_is_printed_and_the_next_one_is_done(tmp_path: Path) -> None:
    """Row A-068: failed session, escalated ticket, living loop."""

    def reply(turn: Turn) -> Reply:
        if "first" in turn.first_text and turn.step == 0:
            (tmp_path / "state" / "sessions" / turn.user_id / "calls").rename(tmp_path / "away")
            (tmp_path / "state" / "sessions" / turn.user_id / "calls").write_text("not a folder")
        return FIX if turn.step == 0 else PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, worker={"lease_s": 1.0}) as rig:
        await rig.incident(spec_of(rig.workspace, "first"))
        await rig.incident(spec_of(rig.workspace, "second"))
        await rig.work()
        first, second = await rig.tickets.get_ticket(1), await rig.tickets.get_ticket(2)
        assert second.status is TicketStatus.RESOLVED
        assert (first.status, first.reason) == (TicketStatus.ESCALATED, "error")
        assert any(line.startswith("Error processing ticket: ") for line in rig.lines)
        assert {s.invariant_name: s.status for s in await rig.audit.sessions()} == {
            "first": "failed",
            "second": "completed",
        }


async def test_tickets_are_done_one_by_one_in_the_order_of_their_creation(tmp_path: Path, store_url: str) -> None:
    """Row A-063."""
    running: list[str] = []

    def reply(turn: Turn) -> Reply:
        name = turn.first_text.partition(": ")[2].partition("\n")[0]
        if name not in running:
            running.append(name)
        return PROPOSE if turn.step else FIX

    async with open_rig(FunctionBrain(reply), tmp_path, store=store_url) as rig:
        for name in ("c", "a", "b"):
            await rig.incident(spec_of(rig.workspace, name))
        await rig.work()
        assert running == ["c", "a", "b"]
        starts = [e for s in reversed(await rig.audit.sessions()) for e in (s.started_at, s.ended_at)]
        assert starts == sorted(starts)
        assert {t.status for t in await rig.tickets.list_tickets()} == {TicketStatus.RESOLVED}


async def test_two_at_once_by_two_workers_and_none_twice(tmp_path: Path, store_url: str) -> None:
    """Row A-075: no double claim."""

    def reply(turn: Turn) -> Reply:
        name = turn.first_text.partition(": ")[2].partition("\n")[0]
        if turn.step == 0:
            return Reply(calls=(command(f"echo $$ >> effects-{name}; touch fixed; sleep 0.1"),))
        return PROPOSE

    concurrency = {"concurrency": 2}
    async with open_rig(FunctionBrain(reply), tmp_path, store=store_url, worker=concurrency) as rig:
        for n in range(6):
            await rig.incident(spec_of(rig.workspace, f"n{n}"))
        await asyncio.gather(rig.work(), rig.work())
        tickets = await rig.tickets.list_tickets()
        assert [(t.status, t.fence) for t in tickets] == [(TicketStatus.RESOLVED, 1)] * 6
        assert {f.name: len(f.read_text().split()) for f in rig.workspace.glob("effects-*")} == {
            f"effects-n{n}": 1 for n in range(6)
        }
        assert len(await rig.audit.sessions()) == 6


async def test_the_lease_is_renewed_while_the_model_thinks(tmp_path: Path, store_url: str) -> None:
    """Row A-073: a pending model call blocks nothing."""
    slow = Reply(calls=(command("touch fixed"),), delay_s=2.5)
    async with open_rig(ScriptBrain([slow, PROPOSE]), tmp_path, store=store_url, worker={"lease_s": 0.9}) as rig:
        number = await rig.incident()
        work = asyncio.create_task(rig.work())
        leases: set[int] = set()
        await wait_until_async(lambda: rig.server.model_calls())
        while not work.done():
            leases |= {r.lease_until for r in await rig.database.fetch(select(workers.c.lease_until))}
            await asyncio.sleep(0.05)
        await work
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.fence) == (TicketStatus.RESOLVED, 1)
        assert len(leases) >= 10


async def test_asked_to_leave_it_finishes_its_command_and_another_one_goes_on(tmp_path: Path, store_url: str) -> None:
    """D-11: no late result, no lost work."""

    def reply(turn: Turn) -> Reply:
        if turn.step < 3:
            return Reply(
                calls=(command(f"echo {turn.step} >> effects; touch step-{turn.step}; sleep 0.5; touch fixed"),)
            )
        return PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, store=store_url) as rig:
        ticket = await rig.incident()
        output = tmp_path / "output"
        process = start_worker(store_url, rig.settings, output, until_idle=False)
        try:
            await wait_until_async(lambda: (rig.workspace / "step-1").exists(), 30)
            process.send_signal(signal.SIGTERM)
            started = time.monotonic()
            assert await asyncio.to_thread(process.wait, 15) == 0, output.read_text()
            assert time.monotonic() - started < 5
        finally:
            process.kill()
        seen = await rig.tickets.get_ticket(ticket)
        assert (seen.status, seen.owner, seen.reason) == (TicketStatus.OPEN, None, "released")
        assert "Agent loop starting. Polling for tickets...\n" in output.read_text()
        await rig.work()
        assert (await rig.tickets.get_ticket(ticket)).status is TicketStatus.RESOLVED
        assert (rig.workspace / "effects").read_text().split() == ["0", "1", "2"]
        assert len(await rig.audit.sessions()) == 1
        entries = await rig.journal()
        assert [e.entry_type for e in entries].count("resumed") == 1
        assert {
            (e.meta or {}).get("status") for e in entries if e.tool_name == "shell" and e.exit_code is not None
        } == {"ok"}
        await rig.assert_faithful()


async def test_leaving_does_not_wait_for_a_command_that_takes_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the grace it is stopped, and the next worker is told that its outcome is unknown."""
    monkeypatch.setattr("operator_core.work.worker._GRACE_S", 0.5)
    slow = Reply(calls=(command("echo $$ > pid; echo begun; sleep 62.9"),))
    async with open_rig(ScriptBrain([slow, FIX, PROPOSE]), tmp_path) as rig:
        ticket = await rig.incident()
        stop = asyncio.Event()
        async with rig.worker() as worker, asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run(stop))
            await wait_until_async(lambda: (rig.workspace / "pid").exists())
            stop.set()
        assert processes_of("sleep\00062.9") == []
        assert (await rig.tickets.get_ticket(ticket)).status is TicketStatus.OPEN
        await rig.work()
        assert (await rig.tickets.get_ticket(ticket)).status is TicketStatus.RESOLVED
        (told,) = [
            e for e in await rig.journal() if e.tool_name == "shell" and (e.meta or {}).get("status") == "unknown"
        ]
        assert "begun" in (told.raw_content or "")
        await rig.assert_faithful()


async def test_canceling_stops_the_command_and_wins_over_a_late_result(tmp_path: Path, store_url: str) -> None:
    slow = Reply(calls=(command("touch fixed begun; sleep 64.1"),))
    async with open_rig(ScriptBrain([slow, PROPOSE]), tmp_path, store=store_url) as rig:
        number = await rig.incident()
        work = asyncio.create_task(rig.work())
        await wait_until_async(lambda: (rig.workspace / "begun").exists())
        asked = time.monotonic()
        await rig.tickets.cancel_ticket(number)
        await work
        assert time.monotonic() - asked < 2.5
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason) == (TicketStatus.CANCELED, "by_hand")
        assert processes_of("sleep\00064.1") == []
        (session,) = await rig.audit.sessions()
        assert session.status == "canceled"
        entries = await rig.journal()
        assert len([e for e in entries if e.entry_type == "tool_result"]) == 1, "the stopped call is answered"
        (page,) = [e for e in entries if e.entry_type == "report"]
        assert page.body["headline"] == "canceled by a person"
        assert "a person canceled it" in (page.raw_content or "")
        assert {e.phase for e in entries if e.entry_type in ("report", "session_end")} == {"worker_1"}
        assert "\nTicket #1 -> canceled\nSummary: canceled by a person\n" in rig.lines
        await rig.assert_faithful()


async def test_a_cancellation_during_the_verification_beats_the_proof(tmp_path: Path) -> None:
    """The work is done and green, but a person was first."""
    check = spec_of(tmp_path / "workspace", verify=("touch looking; until test -e canceled; do sleep 0.02; done",))
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as rig:
        number = await rig.incident(check)
        work = asyncio.create_task(rig.work())
        await wait_until_async(lambda: (rig.workspace / "looking").exists())
        await rig.tickets.cancel_ticket(number)
        (rig.workspace / "canceled").touch()
        await work
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.CANCELED


async def test_every_session_is_closed_on_every_path(tmp_path: Path) -> None:
    """Row A-069."""

    def reply(turn: Turn) -> Reply:
        name = turn.first_text.partition(": ")[2].partition("\n")[0]
        if name == "gives-up":
            return Reply(calls=(Call("give_up", {"reason": "no"}),))
        if name == "refuses":
            return Reply(text="no", stop_reason="refusal")
        return FIX if turn.step == 0 else PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path) as rig:
        for name in ("gives-up", "refuses", "works"):
            await rig.incident(spec_of(rig.workspace, name))
        await rig.tickets.open_ticket("by-hand", "somebody says so")
        await rig.work()
        sessions = {s.invariant_name: s.status for s in await rig.audit.sessions()}
        assert sessions == {
            "gives-up": "escalated",
            "refuses": "escalated",
            "works": "completed",
            "by-hand": "escalated",
        }
        by_hand = await rig.tickets.get_ticket(4)
        assert by_hand.reason == "unproven"
        assert "no check" in (by_hand.diagnosis or "")
        # Nothing of them stays on disk, and what was escalated is not picked up again (row A-067).
        assert not list((tmp_path / "state" / "sessions").iterdir())
        before = len(rig.sent())
        await rig.work()
        assert len(rig.sent()) == before


async def test_a_blind_monitor_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its incident is for a person: a worker neither claims it nor waits for it to go away."""
    async with open_rig(ScriptBrain([]), tmp_path) as rig:
        now = clock.now()
        await rig.tickets.create_or_update_ticket(InvariantViolation(MONITOR_BLIND, "blind", now, now))
        held = await rig.incident()
        await rig.tickets.hold_ticket(held)
        await rig.work(timeout=5)
        assert rig.sent() == []


async def test_workers_that_are_lost_again_and_again_hand_the_ticket_over(tmp_path: Path) -> None:
    """Beginning is no progress: otherwise a ticket that kills its worker would do so for ever."""
    store = str(tmp_path / "operator.db")
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path, worker={"lost_after": 2}) as rig:
        number = await rig.incident()
        short = rig.settings.model_copy(update={"worker": rig.settings.worker.model_copy(update={"lease_s": 0.6})})
        code: int | None = None
        for place in ("session.created", "session.opened", "session.opened", "session.opened"):
            crash = {"OPERATOR_CRASH_AT": place}
            process = start_worker(store, short, tmp_path / "output", env=crash)
            code = await asyncio.to_thread(process.wait, 30)
            if code != -signal.SIGKILL:
                break
        assert code == 0, (tmp_path / "output").read_text()
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason, ticket.fence) == (TicketStatus.ESCALATED, "lost_worker", 4)
        assert "2 workers in a row" in (ticket.diagnosis or "")
        assert rig.sent() == []


async def test_a_new_ticket_is_claimed_at_once(tmp_path: Path, store_url: str) -> None:
    """Row A-062: within 1.2 s, here by a notification."""
    settings = {"poll_s": 30.0}
    async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path, store=store_url, worker=settings) as rig:
        stop = asyncio.Event()
        async with rig.worker() as worker, asyncio.TaskGroup() as tasks:
            tasks.create_task(worker.run(stop))
            await wait_until_async(lambda: rig.database.fetch(select(workers.c.id)))
            await asyncio.sleep(0.2)
            opened = time.monotonic()
            await rig.incident()
            await wait_until_async(lambda: rig.sent())
            assert time.monotonic() - opened < 1.2
            await wait_until_async(lambda: rig.conclusions)
            stop.set()


async def _hour(rig: Rig, port: int) -> tuple[int, int]:
    """An hour of monitor and worker on a fast clock; cycles of the monitor, and model calls."""
    hasty = Clock(rate=1200.0)
    subject = Subject(
        name="quiet", workspace=rig.workspace, invariant=(Invariant(name="up", probe=TcpProbe(type="tcp", port=port)),)
    )
    settings = rig.settings.model_copy(update={"subject": (subject,), "monitor": MonitorSettings(interval_s=30.0)})
    stop = asyncio.Event()
    cycles = 0

    def count(report: object) -> None:
        nonlocal cycles
        cycles += 1

    monitors = build_loops(settings, rig.tickets, hasty, on_cycle=count)
    async with rig.worker(clock=hasty) as worker, asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        for monitor in monitors:
            tasks.create_task(monitor.run(stop))
        await hasty.sleep(3600)
        stop.set()
    return cycles, len(rig.server.requests)


async def test_an_idle_hour_costs_no_model_call(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([]), tmp_path, worker={"poll_s": 1.0}) as rig:
        cycles, requests = await _hour(rig, rig.server.port)
        assert cycles >= 30, "the monitor has really looked"
        assert requests == 0
        assert await rig.tickets.list_tickets() == []

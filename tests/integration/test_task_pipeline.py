"""The pipeline of a task: worker and verifier in turn, people in between, and how each way ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from operator_core.db.integrity import verify
from operator_core.model.entry import Entry
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.model.verdict import VerdictKind
from operator_core.scripted import Reply, Turn
from operator_core.work.rejudge import rejudge
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import APPROVE, REJECT, TEST, blocked, done, run, task_brain, verdict

MAKE = (run("printf 'echo hello\\n' > hello"), done())


def spec(**fields: object) -> TaskSpec:
    values = {"name": "say hello", "prompt": "Make a script hello that says hello.", **fields}
    return TaskSpec.model_validate(values)


CHECK = (TaskCheck(command='test "$(sh ./hello)" = hello'),)


async def do(rig: Rig, task: TaskSpec) -> int:
    ticket = await rig.tickets.submit_task(task)
    assert ticket.id is not None
    await rig.work()
    return ticket.id


def folder_of(rig: Rig) -> Path:
    (found,) = rig.workspace.parent.glob("Operator Sessions/*/attempt-1")
    return found


def phases(entries: list[Entry]) -> list[str]:
    return list(dict.fromkeys(e.phase for e in entries if e.phase and e.entry_type == "phase_start"))


async def test_a_task_is_done_verified_and_delivered(tmp_path: Path, store_url: str) -> None:
    async with open_rig(
        task_brain(MAKE), tmp_path, store=store_url, tasks={"root": tmp_path}, sandbox={"backend": "bubblewrap"}
    ) as rig:
        number = await do(rig, spec(checks=CHECK))
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, Reason.VERIFIED), ticket.diagnosis
        entries = await rig.journal(number)
        assert phases(entries) == ["worker_1", "verifier_1"]
        folder = folder_of(rig)
        verdict_file = json.loads((folder / "VERDICT.json").read_text())
        assert verdict_file["approved"] is True
        assert (folder / "SUMMARY.md").read_text().startswith("# Task Summary")
        summary = json.loads((folder / "session_summary.json").read_text())
        assert summary["terminal_status"] == "completed"
        assert [p["phase"] for p in summary["phases"]] == ["worker_1", "verifier_1", "summarizer"]
        report = (folder / "REPORT.md").read_text()
        assert CHECK[0].command in report
        assert "hello" in (folder / "workspace" / "hello").read_text()


async def test_a_rejection_feeds_the_next_worker(tmp_path: Path) -> None:
    def verifier(turn: Turn) -> Reply:
        script = REJECT if "loud" not in turn.first_text else APPROVE
        return script[min(turn.step, 1)]

    def worker(turn: Turn) -> Reply:
        if turn.step == 0:
            return run("printf 'echo hello\\n' > hello")
        return done("It is loud now." if "loudly enough" in turn.first_text else "It is made.")

    async with open_rig(task_brain(worker, verifier), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec())
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.reason == Reason.VERIFIED, ticket.diagnosis
        assert phases(await rig.journal(number)) == ["worker_1", "verifier_1", "worker_2", "verifier_2"]


async def test_ten_rejections_escalate(tmp_path: Path) -> None:
    async with open_rig(task_brain(MAKE, REJECT), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec())
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, Reason.ITERATIONS)
        wanted = [f"{who}_{n}" for n in range(1, 11) for who in ("worker", "verifier")]
        assert phases(await rig.journal(number)) == wanted
        summary = json.loads((folder_of(rig) / "session_summary.json").read_text())
        assert summary["terminal_status"] == "failed"


async def test_a_failed_check_needs_no_verifier_and_is_the_feedback(tmp_path: Path) -> None:
    def worker(turn: Turn) -> Reply:
        right = "FEEDBACK" in turn.first_text
        if turn.step == 0:
            return run(f"printf 'echo {'hello' if right else 'goodbye'}\\n' > hello")
        return done()

    async with open_rig(task_brain(worker), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec(checks=CHECK))
        assert (await rig.tickets.get_ticket(number)).reason == Reason.VERIFIED
        assert phases(await rig.journal(number)) == ["worker_1", "worker_2", "verifier_2"]


async def test_a_blocked_worker_waits_and_goes_on_in_the_same_conversation(tmp_path: Path, store_url: str) -> None:
    def worker(turn: Turn) -> Reply:
        if turn.step == 0:
            return blocked("Which greeting?")
        if turn.step == 1:
            assert "say hello please" in turn.last_text
            return run("printf 'echo hello\\n' > hello")
        return done()

    async with open_rig(task_brain(worker), tmp_path, store=store_url, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec(checks=CHECK))
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.owner) == (TicketStatus.WAITING_FOR_INPUT, None)
        session = ticket.session_id
        assert "Which greeting?" in (folder_of(rig) / "result.md").read_text()
        await rig.tickets.reply(number, "say hello please")
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.reason == Reason.VERIFIED, ticket.diagnosis
        (one,) = await rig.audit.sessions(ticket_id=number)
        assert one.session_id == session
        assert phases(await rig.journal(number)) == ["worker_1", "verifier_1"]


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply(text="He said: STATUS: done\nbut I am not sure."), TicketStatus.WAITING_FOR_INPUT),
        (Reply(text="All is well."), TicketStatus.WAITING_FOR_INPUT),
    ],
)
async def test_a_turn_without_a_status_is_asked_once_then_blocked(
    tmp_path: Path, reply: Reply, kind: TicketStatus
) -> None:
    async with open_rig(task_brain((reply,)), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec())
        assert (await rig.tickets.get_ticket(number)).status is kind
        assert (
            sum(e.entry_type == "message" and bool((e.meta or {}).get("nudge")) for e in await rig.journal(number)) == 1
        )


async def test_an_approval_without_a_test_is_never_taken(tmp_path: Path) -> None:
    verifier = (run("cat hello"), verdict(True))
    async with open_rig(task_brain(MAKE, verifier), tmp_path, tasks={"root": tmp_path}, limits={"turns": 6}) as rig:
        number = await do(rig, spec())
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.status is TicketStatus.ESCALATED
        assert ticket.reason != Reason.VERIFIED


async def test_finished_work_is_judged_again(tmp_path: Path) -> None:
    async with open_rig(task_brain(MAKE), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec(checks=CHECK))
        async with rig.tools() as tools:
            again = await rejudge(tools, number)
            assert (again.verdict.kind, again.unchanged) == (VerdictKind.VERIFIED, True)
            other = await rejudge(tools, number, checks=[TaskCheck(command="grep -q goodbye hello")], checks_only=True)
            assert other.verdict.kind is VerdictKind.REFUTED
            (folder_of(rig) / "workspace" / "hello").write_text("echo goodbye\n")
            changed = await rejudge(tools, number, checks_only=True)
            assert (changed.verdict.kind, changed.unchanged) == (VerdictKind.REFUTED, False)
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        report = await verify(rig.database)
        assert report.ok, report.problem


async def test_what_is_said_while_the_work_is_judged_is_worked_on(tmp_path: Path) -> None:
    """It reaches the next worker, never the verifier, and no verdict passes over it."""
    sent: list[int] = []

    async def verifier(turn: Turn) -> Reply:
        assert not any("louder" in str(message) for message in turn.messages)
        if turn.step == 0 and not sent:
            sent.append(1)
            await rig.tickets.steer(1, "make it louder")
        return TEST if turn.step == 0 else verdict(True)

    def worker(turn: Turn) -> Reply:
        if turn.step == 0:
            return run(f"printf 'echo {'HELLO' if 'louder' in str(turn.messages) else 'hello'}\\n' > hello")
        return done()

    async with open_rig(task_brain(worker, verifier), tmp_path, tasks={"root": tmp_path}) as rig:
        number = await do(rig, spec())
        assert (await rig.tickets.get_ticket(number)).reason == Reason.VERIFIED
        assert phases(await rig.journal(number)) == ["worker_1", "verifier_1", "worker_2", "verifier_2"]
        assert "HELLO" in (folder_of(rig) / "workspace" / "hello").read_text()

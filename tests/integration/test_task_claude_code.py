"""The same task with the other engine: the real Claude Code CLI works and verifies, against the scripted model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from operator_core.model.task import TaskCheck
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, Router, Turn
from operator_core.scripted.turn import text_of
from tests.integration.test_task_pipeline import CHECK, folder_of, phases, spec
from tests.support.claude_code import bash
from tests.support.egress import Origin
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import role_of, task_brain, verdict

pytestmark = pytest.mark.usefixtures("require_claude_code")

CLI = {"sandbox": {"backend": "bubblewrap"}}


def cli_brain(*worker: Reply, verifier: tuple[Reply, ...] = ()) -> Brain:
    """The CLI's requests are told apart by what the prompt says; those of the platform have no tools."""
    fields = verdict(True).calls[0].input
    verifier = verifier or (
        Reply(calls=(bash("sh ./hello"),)),
        Reply(calls=(Call("StructuredOutput", dict(fields)),)),
        Reply(text="Done."),
    )
    asides = task_brain(())

    async def reply(turn: Turn) -> Reply:
        if not turn.tools:
            assert role_of(turn) in ("parser", "summarizer")
            answer = await asides.reply(turn)
            assert isinstance(answer, Reply)
            return answer
        words = "\n".join(text_of(m["content"]) for m in turn.messages)
        script = verifier if "LATEST WORKER OUTPUT" in words else worker
        return script[min(turn.step, len(script) - 1)]

    brain = FunctionBrain(reply)
    return Router(default=brain, summaries=brain)


async def do(rig: Rig, **fields: object) -> int:
    ticket = await rig.tickets.submit_task(spec(engine="claude-code", **fields))
    assert ticket.id is not None
    await rig.work()
    return ticket.id


MAKE = Reply(text="I make it.", calls=(bash("printf 'echo hello\\n' > hello"),))
DONE = Reply(text="It is made.\nSTATUS: done")


async def test_a_task_is_worked_and_verified_by_the_cli(tmp_path: Path) -> None:
    async with open_rig(cli_brain(MAKE, DONE), tmp_path, tasks={"root": tmp_path}, **CLI) as rig:
        number = await do(rig, checks=CHECK)
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.reason == Reason.VERIFIED, (ticket.diagnosis, rig.lines)
        entries = await rig.journal(number)
        assert phases(entries) == ["worker_1", "verifier_1"]
        folder = folder_of(rig)
        assert json.loads((folder / "VERDICT.json").read_text())["approved"] is True
        report = (folder / "REPORT.md").read_text()
        assert "claude-code (scripted model)" in report
        assert "sh ./hello" in report


async def test_a_blocked_cli_goes_on_in_its_own_conversation(tmp_path: Path) -> None:
    ask = Reply(text="Which one?\nSTATUS: blocked - which greeting?")
    async with open_rig(cli_brain(ask, MAKE, DONE), tmp_path, tasks={"root": tmp_path}, **CLI) as rig:
        number = await do(rig, checks=CHECK)
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.WAITING_FOR_INPUT
        await rig.tickets.reply(number, "the short one")
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.reason == Reason.VERIFIED, (ticket.diagnosis, rig.lines)
        sent = [text_of(m["content"]) for r in rig.sent() for m in r]
        assert any("the short one" in text for text in sent)
        assert any("which greeting?" in text for text in sent[-40:])


async def test_the_cli_has_the_way_out_of_its_sandbox_and_calls_its_model_past_it(tmp_path: Path) -> None:
    async with Origin() as origin:
        fetch = bash(f"curl -sS http://127.0.0.1:{origin.port}/ > got; curl -sS http://evil.example/; cat got > hello")
        rule = f"127.0.0.1:{origin.port}"
        brain = cli_brain(Reply(text="I fetch it.", calls=(fetch,)), DONE)
        async with open_rig(brain, tmp_path, tasks={"root": tmp_path}, **CLI) as rig:
            check = (TaskCheck(command="test $(cat hello) = hello"),)
            number = await do(rig, checks=check, network="allowlist", allow_hosts=(rule,), profile="operator")
            ticket = await rig.tickets.get_ticket(number)
            assert ticket.reason == Reason.VERIFIED, (ticket.diagnosis, rig.lines)
            entries = await rig.journal(number)
    decisions = [(e.phase, e.body["allowed"], e.body["host"]) for e in entries if e.entry_type == "egress"]
    assert decisions == [("worker_1", True, "127.0.0.1"), ("worker_1", False, "evil.example")]
    started = next(e for e in entries if e.entry_type == "phase_start" and e.phase == "worker_1")
    assert f"commands reach {rule}, and nothing else" in started.body["system"]

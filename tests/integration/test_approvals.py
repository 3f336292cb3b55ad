"""Calls that need a person's word: parked without a process, answered once, and executed exactly as they were asked."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

from operator_core import clock
from operator_core.agent_lab.gateway import ToolGateway, ToolRefused
from operator_core.agent_lab.history import Conversation
from operator_core.agent_lab.permission import Permission
from operator_core.db.approvals import Approvals, Question
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.journal import Journal
from operator_core.db.ledger import ticket_history
from operator_core.db.numbers import numbers
from operator_core.db.queue import WorkQueue
from operator_core.db.retention import prune
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, Fenced, NotFound, TransitionRefused
from operator_core.model.approval import Approval
from operator_core.model.entry import EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_core.redaction import Redactor
from operator_core.safety.approvals import Circumstances
from operator_core.scripted import Brain, Call, FunctionBrain, Reply, ScriptBrain, Turn
from tests.support import wait_until_async
from tests.support.rig import PROPOSE, Rig, command, open_rig, spec_of
from tests.support.task_brain import done, run, task_brain, verdict

ASK: dict[str, Any] = {"decision": "ask", "tool": "shell", "contains": {"command": "effect"}}
EFFECT = Reply(calls=(command("echo x >> effect; touch fixed"),))


def rules(*values: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"approvals": {"rule": list(values), **settings}}


def after(reply: Reply) -> Brain:
    """Makes that reply once, and then ends."""
    return FunctionBrain(lambda turn: reply if turn.step == 0 else PROPOSE)


async def waiting(rig: Rig, number: int = 1) -> Approval:
    """The one question that waits."""
    ticket = await rig.tickets.get_ticket(number)
    assert (ticket.status, ticket.reason) == (TicketStatus.WAITING_FOR_INPUT, Reason.NEEDS_APPROVAL), ticket.diagnosis
    assert ticket.owner is None
    (found,) = await Approvals(rig.database).listed()
    return found


async def ended(rig: Rig, status: TicketStatus, number: int = 1) -> Ticket:
    ticket = await rig.tickets.get_ticket(number)
    assert ticket.status is status, (ticket.status, ticket.reason, ticket.diagnosis)
    report = await verify(rig.database)
    assert report.ok, report.problem
    return ticket


def made(rig: Rig) -> list[str]:
    return sorted(path.name for path in rig.workspace.iterdir())


async def results(rig: Rig, number: int = 1) -> list[str]:
    return [e.raw_content or "" for e in await rig.journal(number) if e.entry_type == EntryKind.TOOL_RESULT]


# ---- the way of one call


async def test_it_rests_without_a_process_and_goes_on_where_it_was(tmp_path: Path, store_url: str) -> None:
    reply = Reply(calls=(command("touch before"), command("touch effect fixed"), command("touch behind")))
    async with open_rig(after(reply), tmp_path, store=store_url, **rules({**ASK, "why": "It lasts."})) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        assert (asked.tool, asked.why, asked.state) == ("shell", "It lasts.", "pending")
        assert asked.arguments["command"] == "touch effect fixed"
        assert made(rig) == ["before"]
        calls = len(rig.server.model_calls())
        await rig.work()  # nothing of it is work for a worker
        assert len(rig.server.model_calls()) == calls
        decided = await Approvals(rig.database).decide(asked.id, True, note="go on", actor="ann")
        assert (decided.state, decided.answered_by, decided.note) == ("approved", "ann", "go on")
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        assert made(rig) == ["before", "behind", "effect", "fixed"]
        used = await Approvals(rig.database).get(asked.id)
        assert used.state == "used"
        assert used.used_at is not None
        await rig.assert_faithful()
        story = [(row.kind, row.body.get("actor")) for row in await ticket_history(rig.database, 1)]
        assert ("approval_approved", "ann") in story
        assert {"approval_asked", "approval_approved", "approval_used"} <= {kind for kind, _ in story}
        entries = [e for e in await rig.journal() if e.entry_type == EntryKind.APPROVAL]
        (note,) = [e for e in entries if e.body["event"] == "used"]
        assert (note.body["by"], note.body["note"]) == ("ann", "go on")


async def test_a_no_is_told_with_its_note_and_nothing_is_executed(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        await Approvals(rig.database).decide(asked.id, False, note="Use the other one.", actor="ann")
        await rig.work()
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []
        told = str(rig.sent()[-1])
        assert "denied it" in told
        assert "Use the other one." in told
        await rig.assert_faithful()


async def test_a_rule_that_denies_asks_nobody(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules({**ASK, "decision": "deny", "why": "Never here"})) as rig:
        await rig.solve()
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []
        assert "Never here" in str(rig.sent()[-1])
        assert await Approvals(rig.database).listed(pending=False) == []


async def test_without_an_answer_it_is_denied_in_time_and_goes_on_by_itself(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK, expire_s=1.0)) as rig:
        await rig.incident()
        stop = asyncio.Event()
        async with rig.worker() as worker:
            running = asyncio.create_task(worker.run(stop))

            async def over() -> bool:
                return (await rig.tickets.get_ticket(1)).status is TicketStatus.ESCALATED

            await wait_until_async(over, 30)
            stop.set()
            await running
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []
        assert "in time" in str(rig.sent()[-1])
        (asked,) = await Approvals(rig.database).listed(pending=False)
        assert asked.state == "expired"
        with pytest.raises(TransitionRefused, match="time for this answer is over"):
            await Approvals(rig.database).decide(asked.id, True)
        await rig.assert_faithful()


async def test_a_yes_that_comes_to_be_used_too_late_is_none(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK, expire_s=1.5)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        await Approvals(rig.database).decide(asked.id, True)
        await asyncio.sleep(max(0.0, (asked.expires_at - clock.now()).total_seconds()))
        await rig.work()
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []
        assert (await Approvals(rig.database).get(asked.id)).state == "expired"


async def test_two_calls_of_one_reply_are_asked_about_together(tmp_path: Path) -> None:
    reply = Reply(calls=(command("touch effect-1"), command("touch effect-2 fixed")))
    async with open_rig(after(reply), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        first, second = await Approvals(rig.database).listed()
        by_command = {str(a.arguments["command"]): a for a in (first, second)}
        # The second answer alone moves nothing: calls are run in their order.
        await Approvals(rig.database).decide(by_command["touch effect-2 fixed"].id, True)
        await rig.work()
        assert made(rig) == []
        await Approvals(rig.database).decide((await waiting(rig)).id, False)
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        assert made(rig) == ["effect-2", "fixed"]
        assert len(rig.sent()) == 2
        await rig.assert_faithful()


async def test_an_outcome_behind_a_call_that_waits_is_not_taken_early(tmp_path: Path) -> None:
    reply = Reply(calls=(*EFFECT.calls, *PROPOSE.calls))
    async with open_rig(ScriptBrain([reply]), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        assert not [e for e in await rig.journal() if e.entry_type == EntryKind.OUTCOME]
        await Approvals(rig.database).decide(asked.id, True)
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        assert len(rig.sent()) == 1  # no further reply was paid for


async def test_a_tool_that_does_not_exist_behind_it_is_answered_later(tmp_path: Path) -> None:
    reply = Reply(calls=(*EFFECT.calls, Call("nonsense", {}), command("", "an empty command")))
    async with open_rig(after(reply), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        await Approvals(rig.database).decide((await waiting(rig)).id, True)
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        assert "'nonsense' not found" in str(rig.sent()[-1])
        await rig.assert_faithful()


async def test_what_the_rules_deny_by_now_is_not_executed_in_spite_of_a_yes(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        await Approvals(rig.database).decide((await waiting(rig)).id, True)
        denying = rig.settings.approvals.rule[0].model_copy(update={"decision": "deny"})
        approvals = rig.settings.approvals.model_copy(update={"rule": (denying,)})
        rig.settings = rig.settings.model_copy(update={"approvals": approvals})
        await rig.work()
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []


async def test_a_secret_is_not_asked_about_because_it_could_not_be_kept(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple-9431"
    reply = Reply(calls=(command(f"echo {secret} > effect"),))
    redactor = Redactor([secret])
    async with open_rig(after(reply), tmp_path, redactor=redactor, **rules(ASK)) as rig:
        await rig.solve()
        assert made(rig) == []
        assert await Approvals(rig.database).listed(pending=False) == []
        assert "looks like a secret" in str(await results(rig))


async def test_what_nobody_would_read_is_not_asked_about(tmp_path: Path) -> None:
    long = Call("shell", {"command": f"touch effect # {'x' * 100_000}", "reasoning": "r"})
    async with open_rig(after(Reply(calls=(long,))), tmp_path, **rules(ASK)) as rig:
        await rig.solve()
        assert made(rig) == []
        assert await Approvals(rig.database).listed(pending=False) == []
        assert "nobody would read" in str(await results(rig))


async def test_what_is_nested_so_deeply_that_the_inbox_could_not_show_it_is_not_asked_about(tmp_path: Path) -> None:
    steps: Any = "x"
    for _ in range(150):
        steps = [steps]
    deep = Call("shell", {"command": "touch effect", "reasoning": "r", "steps": steps})
    async with open_rig(after(Reply(calls=(deep,))), tmp_path, **rules(ASK)) as rig:
        await rig.solve()
        assert made(rig) == []
        assert await Approvals(rig.database).listed(pending=False) == []
        assert "nested so deeply" in str(await results(rig))


async def test_a_secret_behind_it_is_not_executed_from_its_mask(tmp_path: Path) -> None:
    secret = "correct-horse-battery-staple-9431"
    reply = Reply(calls=(*EFFECT.calls, command(f"echo {secret} > leaked")))
    redactor = Redactor([secret])
    async with open_rig(after(reply), tmp_path, redactor=redactor, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        await Approvals(rig.database).decide((await waiting(rig)).id, True)
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        assert made(rig) == ["effect", "fixed"]


# ---- people


async def test_two_people_answer_at_once(tmp_path: Path, store_url: str) -> None:
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        async with Database.open(store_url) as other:
            answers = await asyncio.gather(
                Approvals(rig.database).decide(asked.id, True, actor="ann"),
                Approvals(other).decide(asked.id, False, actor="bob"),
                return_exceptions=True,
            )
        assert sorted(type(a).__name__ for a in answers) == ["Approval", "TransitionRefused"]
        (one,) = [a for a in answers if isinstance(a, Approval)]
        await rig.work()
        assert made(rig) == (["effect", "fixed"] if one.answered_by == "ann" else [])
        final = await Approvals(rig.database).get(asked.id)
        assert final.answered_by == one.answered_by


async def test_the_same_answer_again_changes_nothing_and_another_one_is_refused(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        first = await approvals.decide(asked.id, True, note="yes", actor="ann")
        again = await approvals.decide(asked.id, True, note="yes", actor="ann")
        assert again == first
        for approve, actor in ((False, "ann"), (True, "bob")):
            with pytest.raises(TransitionRefused, match="ann has approved this call already"):
                await approvals.decide(asked.id, approve, actor=actor)
        with pytest.raises(NotFound):
            await approvals.decide("0" * 32, True)
        with pytest.raises(ConfigError, match="2000 is the most"):
            await approvals.decide(asked.id, True, note="x" * 2001)


@pytest.mark.parametrize("round_", range(4))
async def test_an_answer_and_a_cancellation_at_once(tmp_path: Path, store_url: str, round_: int) -> None:
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        async with Database.open(store_url) as other:
            acts: list[Any] = [Approvals(rig.database).decide(asked.id, True), TicketDB(other).cancel_ticket(1)]
            answers = await asyncio.gather(*(acts if round_ % 2 else reversed(acts)), return_exceptions=True)
        assert not [a for a in answers if isinstance(a, Exception) and not isinstance(a, TransitionRefused)]
        await rig.work()
        await ended(rig, TicketStatus.CANCELED)
        assert made(rig) == []
        # It is in nobody's inbox any more.
        assert await Approvals(rig.database).listed() == []
        assert await Approvals(rig.database).count_pending() == 0
        with pytest.raises(TransitionRefused):
            await Approvals(rig.database).decide(asked.id, False, actor="late")


async def test_an_answer_in_the_moment_in_which_it_parks_is_not_lost(tmp_path: Path, store_url: str) -> None:
    """Answered as soon as it is asked, while the session is still being put to rest."""
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        await rig.incident()
        stop = asyncio.Event()
        async with rig.worker() as worker:
            running = asyncio.create_task(worker.run(stop))

            async def asked() -> bool:
                return bool(await Approvals(rig.database).listed())

            await wait_until_async(asked, 30, every=0.001)
            (question,) = await Approvals(rig.database).listed()
            await Approvals(rig.database).decide(question.id, True)

            async def resolved() -> bool:
                return (await rig.tickets.get_ticket(1)).status is TicketStatus.RESOLVED

            await wait_until_async(resolved, 30)
            stop.set()
            await running
        await rig.assert_faithful()


async def test_words_to_a_ticket_that_waits_for_an_approval_are_no_approval(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        for say in (rig.tickets.reply, rig.tickets.steer):
            with pytest.raises(TransitionRefused, match=f"`operator approvals approve {asked.id[:8]}`"):
                await say(1, "yes, do it")
        # A program that sends all the same wakes it, and it rests again; nothing was paid, and the words are kept.
        calls = len(rig.server.model_calls())
        await rig.tickets.send(1, "yes, do it")
        await rig.work()
        assert (await waiting(rig)).id == asked.id
        assert (made(rig), len(rig.server.model_calls())) == ([], calls)
        await Approvals(rig.database).decide(asked.id, True)
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)


async def test_resolved_by_hand_while_it_waits_the_question_is_over(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        asked = await waiting(rig)
        assert (await numbers(rig.database)).approvals == 1
        await rig.tickets.resolve_ticket(1, note="I did it.")
        assert await Approvals(rig.database).listed() == []
        assert (await numbers(rig.database)).approvals == 0
        with pytest.raises(TransitionRefused):
            await Approvals(rig.database).decide(asked.id, True)
        await rig.tickets.reopen_ticket(1)
        await rig.work()
        # The new attempt asks anew; the old question stays over.
        assert (await waiting(rig)).id != asked.id
        with pytest.raises(TransitionRefused):
            await Approvals(rig.database).decide(asked.id, True)


# ---- what an answer is good for


async def claimed(rig: Rig) -> tuple[Claim, Journal]:
    """The session of the ticket, as its next worker has it."""
    queue = WorkQueue(rig.database)
    worker = clock.new_id()
    await queue.register(worker, 60)
    (claim,) = await queue.claim(worker)
    journal = await rig.audit.journal(str(claim.ticket.session_id), claim)
    journal.phase = "worker_1"
    return claim, journal


async def test_an_answer_fits_one_call_once(tmp_path: Path, store_url: str) -> None:
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        await approvals.decide(asked.id, True)
        _, journal = await claimed(rig)
        other = {**asked.arguments, "command": "rm -rf /"}
        tries = [
            (asked.call_id, asked.tool, other),
            (asked.call_id, "file_write", asked.arguments),
            ("toolu_other", asked.tool, asked.arguments),
            (asked.call_id, asked.tool, {**asked.arguments, "timeout": 1}),
        ]
        for call, tool, arguments in tries:
            taken = await approvals.take(journal, asked.id, call, tool, arguments, "here")
            assert taken.state == "unfit", (call, tool, arguments)
        taken = await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert taken.state == "used"
        again = await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert again.state == "spent"


async def test_who_lost_the_ticket_uses_no_answer(tmp_path: Path, store_url: str) -> None:
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        await approvals.decide(asked.id, True)
        claim, journal = await claimed(rig)
        await WorkQueue(rig.database).release(claim)
        with pytest.raises(Fenced):
            await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert not await approvals.park(claim, asked.id)
        _, later = await claimed(rig)
        with pytest.raises(Fenced):
            await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert (await approvals.take(later, asked.id, asked.call_id, asked.tool, asked.arguments, "x")).state == "used"


async def test_another_session_uses_no_answer(tmp_path: Path) -> None:
    brain = FunctionBrain(lambda turn: EFFECT)
    async with open_rig(brain, tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        await approvals.decide(asked.id, True)
        other = await rig.tickets.open_ticket("other", "another one")
        await rig.tickets.hold_ticket(1)
        queue = WorkQueue(rig.database)
        await queue.register("w", 60)
        (claim,) = await queue.claim("w")
        assert claim.ticket_id == other.id
        session = await rig.audit.create_session(other.id, claim=claim)
        journal = await rig.audit.journal(session, claim)
        taken = await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert taken.state == "unfit"


async def test_after_a_cancellation_no_answer_is_used(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        await approvals.decide(asked.id, True)
        _, journal = await claimed(rig)
        await rig.tickets.cancel_ticket(1)
        taken = await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert taken.state == "canceled"
        assert (await approvals.get(asked.id)).state == "approved"


# ---- tasks


async def test_a_task_and_its_verifier_wait_too(tmp_path: Path) -> None:
    def worker(turn: Turn) -> Reply:
        return (
            done() if any(r.name == "shell" for r in turn.history()) else run("echo 'echo hello' > hello; touch effect")
        )

    def verifier(turn: Turn) -> Reply:
        return verdict(True) if any(r.name == "shell" for r in turn.history()) else run("sh ./hello; ls effect")

    brain = task_brain(worker, verifier)
    async with open_rig(brain, tmp_path, tasks={"root": tmp_path}, **rules(ASK)) as rig:
        spec = TaskSpec(name="hello", prompt="Make hello.", checks=(TaskCheck(command="sh ./hello | grep hello"),))
        number = (await rig.tickets.submit_task(spec)).id or 0
        phases = []
        for _ in range(2):
            await rig.work()
            asked = await waiting(rig, number)
            phases.append(asked.phase)
            summary = next(tmp_path.glob("Operator Sessions/*/attempt-1/session_summary.json")).read_text()
            assert '"waiting"' in summary
            await Approvals(rig.database).decide(asked.id, True)
        await rig.work()
        assert phases == ["worker_1", "verifier_1"]
        await ended(rig, TicketStatus.RESOLVED, number)


async def test_a_rule_for_one_phase_leaves_the_others_alone(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules({**ASK, "phase": "verifier_*"})) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED


async def test_claude_code_does_not_run_where_a_rule_could_ask(tmp_path: Path) -> None:
    """Its own tools wait for nobody, so it is refused before anything of it runs."""
    brain = task_brain(())
    values = {**rules({**ASK, "kind": "task"}), "sandbox": {"backend": "bubblewrap"}, "tasks": {"root": tmp_path}}
    async with open_rig(brain, tmp_path, **values) as rig:
        spec = TaskSpec(name="hello", prompt="Make hello.", engine="claude-code")
        number = (await rig.tickets.submit_task(spec)).id or 0
        await rig.work()
        ticket = await ended(rig, TicketStatus.ESCALATED, number)
        assert ticket.reason == Reason.ERROR
        assert "Rule 1 of [approvals]" in (ticket.diagnosis or "")
        assert "use the engine anthropic" in (ticket.diagnosis or "")


async def test_an_explorer_has_nobody_to_ask(tmp_path: Path) -> None:
    """It has no ticket that could wait: what would be asked about is not executed, and it is told so."""
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        session = await rig.audit.create_session(None)
        journal = await rig.audit.journal(session)
        conversation = Conversation()
        gateway = ToolGateway(
            journal,
            Never(),  # type: ignore[arg-type]
            calls=tmp_path / "calls",
            place="here",
            conversation=conversation,
        )
        gateway.guard = Permission(
            rig.settings.approvals.rule,
            Circumstances("ouroboros", "explorer"),
            tools=["shell"],
            expire_s=60,
            say=rig.lines.append,
        )
        with pytest.raises(ToolRefused, match="nobody to ask"):
            await gateway.admit("toolu_1", "shell", {"command": "touch effect", "reasoning": "r"})
        await gateway.admit("toolu_2", "shell", {"command": "ls", "reasoning": "r"})
        assert gateway.waiting is None


class Never:
    """A sandbox in which nothing may be started."""

    async def exec(self, command: str, **options: object) -> None:
        raise AssertionError(f"started: {command}")


async def test_the_id_of_a_call_that_was_used_before_is_refused(tmp_path: Path) -> None:
    """A model server that gives two calls one id gets no second question, and no loop."""
    reply = Reply(calls=(Call("shell", {"command": "touch effect", "reasoning": "r"}, id="toolu_same"),))
    brain = FunctionBrain(lambda turn: reply if turn.step < 2 else PROPOSE)
    async with open_rig(brain, tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        await Approvals(rig.database).decide((await waiting(rig)).id, False)
        await rig.work()
        await ended(rig, TicketStatus.ESCALATED)
        assert made(rig) == []
        assert len(await Approvals(rig.database).listed(pending=False)) == 1


@pytest.mark.parametrize("early_s", [0.08, 0.02, 0.0, -0.02])
async def test_an_answer_at_the_moment_at_which_its_time_is_over(tmp_path: Path, early_s: float) -> None:
    """Whoever is first: it is executed exactly if the answer was used."""
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK, expire_s=1.0)) as rig:
        await rig.incident()
        stop = asyncio.Event()
        async with rig.worker() as worker:
            running = asyncio.create_task(worker.run(stop))

            async def asked() -> bool:
                return bool(await Approvals(rig.database).listed())

            await wait_until_async(asked, 30)
            (question,) = await Approvals(rig.database).listed()
            await asyncio.sleep(max(0.0, (question.expires_at - clock.now()).total_seconds() - early_s))
            with contextlib.suppress(TransitionRefused):
                await Approvals(rig.database).decide(question.id, True)

            async def over() -> bool:
                return (await rig.tickets.get_ticket(1)).status in (TicketStatus.RESOLVED, TicketStatus.ESCALATED)

            await wait_until_async(over, 30)
            stop.set()
            await running
        state = (await Approvals(rig.database).get(question.id)).state
        assert state in ("used", "expired")
        assert bool(made(rig)) is (state == "used")
        await rig.assert_faithful()


async def test_retention_takes_the_quoted_call_with_its_journal(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident(spec_of(rig.workspace, watch_s=0.0))
        await rig.work()
        await Approvals(rig.database).decide((await waiting(rig)).id, True, actor="ann")
        await rig.work()
        await ended(rig, TicketStatus.RESOLVED)
        pruned = await prune(rig.database, older_than=None, keep=0, state_dir=tmp_path / "state")
        assert len(pruned.sessions) == 1
        assert await Approvals(rig.database).listed(pending=False) == []
        kept = [row.kind for row in await ticket_history(rig.database, 1)]
        assert "approval_approved" in kept
        report = await verify(rig.database)
        assert report.ok, report.problem


@pytest.mark.parametrize("act", ["yes", "no", "cancel", "nothing"])
async def test_it_parks_only_while_nobody_has_answered(tmp_path: Path, store_url: str, act: str) -> None:
    """Whatever came since it was asked is seen under the lock, so that no answer waits for one that waits for it."""
    async with open_rig(after(EFFECT), tmp_path, store=store_url, **rules(ASK)) as rig:
        ticket = await rig.tickets.open_ticket("x", "y")
        queue, approvals = WorkQueue(rig.database), Approvals(rig.database)
        await queue.register("w", 60)
        (claim,) = await queue.claim("w")
        journal = await rig.audit.journal(await rig.audit.create_session(ticket.id, claim=claim), claim)
        await approvals.ask(journal, [Question("toolu_1", "shell", {"command": "x"}, "why")], ["toolu_1"], 60)
        (asked,) = await approvals.listed()
        if act in ("yes", "no"):
            await approvals.decide(asked.id, act == "yes")
        elif act == "cancel":
            await rig.tickets.cancel_ticket(1)
        assert await approvals.park(claim, asked.id) is (act == "nothing")
        status = (await rig.tickets.get_ticket(1)).status
        assert status is (TicketStatus.WAITING_FOR_INPUT if act == "nothing" else TicketStatus.RUNNING)


async def test_an_answer_of_an_earlier_attempt_is_worth_nothing(tmp_path: Path) -> None:
    async with open_rig(after(EFFECT), tmp_path, **rules(ASK)) as rig:
        await rig.incident()
        await rig.work()
        approvals, asked = Approvals(rig.database), await waiting(rig)
        await approvals.decide(asked.id, True)
        await rig.tickets.cancel_ticket(1)
        await rig.tickets.reopen_ticket(1)
        queue = WorkQueue(rig.database)
        await queue.register("w", 60)
        (claim,) = await queue.claim("w")
        journal = await rig.audit.journal(await rig.audit.create_session(1, claim=claim), claim)
        journal.phase = "worker_1"
        taken = await approvals.take(journal, asked.id, asked.call_id, asked.tool, asked.arguments, "here")
        assert taken.state not in ("used", "pending")

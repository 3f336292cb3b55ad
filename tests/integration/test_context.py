"""A conversation that outgrows the model's context: masked, wound down, begun anew, and rebuilt from the journal."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from operator_core.model.entry import EntryKind
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import Failure, FunctionBrain, Reply, Turn
from tests.integration.test_task_pipeline import CHECK, spec
from tests.support.context import assert_sent_is_journaled, counting, wordy
from tests.support.rig import PROPOSE, command, open_rig
from tests.support.task_brain import TEST, done, run, sh, task_brain, verdict

SMALL = {"limit_tokens": 8192}


def _texts(messages: list[dict[str, Any]]) -> str:
    return json.dumps(messages, ensure_ascii=False)


async def test_old_observations_give_way_in_batches(tmp_path: Path) -> None:
    async with open_rig(counting(30), tmp_path, context={"limit_tokens": 16_384}) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        entries, sent = await rig.journal(), rig.sent()
        assert_sent_is_journaled(entries, sent)
        assert len((rig.workspace / "steps").read_text().split()) == 30
        rounds = [e for e in entries if e.entry_type == EntryKind.COMPACTION]
        # In batches: each change of what was sent before costs the prompt cache.
        assert 2 <= len(rounds) <= 8
        assert all(len(e.body["masks"]) >= 3 for e in rounds)
        assert all((e.meta or {})["reclaimed_pct"] > 5 for e in rounds)
        assert all(
            "[shell result masked -- exit_code=0, stdout=30" in text
            for e in rounds
            for text in e.body["masks"].values()
        )
        said = [m for m in sent[-1] if "[Context compressed:" in _texts([m])]
        assert said
        # The opening is as it was, and the newest observation is whole.
        assert all(messages[0] == sent[0][0] for messages in sent)
        for messages in sent[1:-1]:
            assert "xxxxxxxxxx" in _texts(messages[-1:]), "the model never saw this result"
        usages = [(e.meta or {})["usage"] for e in entries if (e.meta or {}).get("usage")]
        assert max(u["input_tokens"] + u["cache_read_tokens"] + u["cache_write_tokens"] for u in usages) < 12_288


async def test_words_that_fill_it_lead_to_a_restart_with_the_last_turns(tmp_path: Path) -> None:
    async with open_rig(wordy(40), tmp_path, context={**SMALL, "carryover_turns": 2}) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        entries, sent = await rig.journal(), rig.sent()
        assert_sent_is_journaled(entries, sent)
        assert len((rig.workspace / "steps").read_text().split()) == 40
        restarts = [e for e in entries if e.entry_type == EntryKind.RESTART]
        assert len(restarts) >= 2
        assert [e.body["number"] for e in restarts] == list(range(2, 2 + len(restarts)))
        kinds = [e.entry_type for e in entries if e.entry_type in ("wind_down", "restart")]
        assert kinds[:4] == ["wind_down", "restart", "wind_down", "restart"]
        first = next(m for m in sent if "Session #2." in _texts(m))
        assert first[0] == sent[0][0]
        assert [m["role"] for m in first] == ["user", "assistant", "user", "assistant", "user"]
        assert "Previous session context was full" in first[-1]["content"][-1]["text"]
        winding = [m for m in sent if "Please wrap up your current task" in _texts(m[-1:])]
        assert len(winding) >= len(restarts)


async def test_an_observation_larger_than_the_context_is_shown_in_part(tmp_path: Path) -> None:
    """The agent's first command prints more than the whole context has room for."""

    def reply(turn: Turn) -> Reply:
        if not turn.results:
            return Reply(calls=(command("head -c 29000 /dev/zero | tr '\\0' 'y'; touch fixed; echo the-end"),))
        assert "the-end" in turn.results[-1].text
        assert "did not fit into the context" in turn.results[-1].text
        return PROPOSE

    async with open_rig(FunctionBrain(reply), tmp_path, context=SMALL) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        assert_sent_is_journaled(await rig.journal(), rig.sent())


async def test_what_people_said_is_not_forgotten(tmp_path: Path) -> None:
    inner = wordy(30)
    async with open_rig(FunctionBrain(inner.reply), tmp_path, context=SMALL) as rig:
        number = await rig.incident()
        await rig.tickets.send(number, "Do not touch the blue database.")
        await rig.work()
        entries, sent = await rig.journal(), rig.sent()
        assert any(e.entry_type == EntryKind.RESTART for e in entries)
        after = [m for m in sent if "Session restarted" in _texts(m)]
        assert after
        assert all("blue database" in _texts(m) for m in after)
        assert_sent_is_journaled(entries, sent)


async def test_the_task_is_not_forgotten_when_people_spoke_before_it(tmp_path: Path) -> None:
    """What is said during a verification stands in front of the next worker's task; its contexts begin with both."""
    told: list[str] = []

    async def verifier(turn: Turn) -> Reply:
        if not told:
            told.append("Leave the blue database alone.")
            await rig.tickets.steer(number, told[0])
        return TEST if turn.step == 0 else verdict(True)

    def worker(turn: Turn) -> Reply:
        if "blue database" not in str(turn.messages):
            return done() if turn.results else run("printf 'echo hello\\n' > hello")
        if turn.results and "made" in turn.results[-1].text:
            return done()
        words = "Let me think about it. " * 60
        return Reply(text=words, calls=(sh("echo x >> steps; [ $(wc -l < steps) -lt 12 ] || echo made"),))

    brain = task_brain(worker, verifier)
    async with open_rig(brain, tmp_path, context=SMALL, tasks={"root": tmp_path}) as rig:
        number = (await rig.tickets.submit_task(spec(checks=CHECK))).id or 0
        await rig.work()
        assert (await rig.tickets.get_ticket(number)).reason == Reason.VERIFIED, rig.lines
        work = [m for m in rig.sent() if "blue database" in _texts(m[:1])]
        after = [m for m in work if "Session restarted" in _texts(m)]
        assert after
        assert all(m[:2] == work[0][:2] for m in after)
        assert_sent_is_journaled(await rig.journal(number), rig.sent(), "worker_2")


async def test_people_who_say_more_than_fits_are_heard_from_the_end(tmp_path: Path) -> None:
    async with open_rig(wordy(20), tmp_path, context=SMALL) as rig:
        number = await rig.incident()
        for n in range(15):
            await rig.tickets.send(number, f"Message {n}. " + "And so on. " * 250)
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        entries, sent = await rig.journal(), rig.sent()
        after = _texts(next(m for m in sent if "Session #2." in _texts(m))[-1:])
        assert "Message 14." in after.split("which still holds")[1]
        assert "Message 0." not in after.split("which still holds")[1]
        assert_sent_is_journaled(entries, sent)


async def test_a_service_with_a_smaller_context_than_configured(tmp_path: Path) -> None:
    """It refuses the request; the conversation is shortened and goes on."""
    inner = counting(30)

    async def reply(turn: Turn) -> Any:
        if len(_texts(list(turn.messages))) > 24_000:
            return Failure(400, "prompt is too long: 6123 tokens > 6000 maximum", times=None)
        return await inner.reply(turn)

    async with open_rig(FunctionBrain(reply), tmp_path) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED, ticket.diagnosis
        entries = await rig.journal()
        assert [e.entry_type for e in entries].count("restart") >= 2
        assert_sent_is_journaled(entries, rig.sent())


async def test_an_opening_that_does_not_fit_ends_with_a_sentence(tmp_path: Path) -> None:
    async with open_rig(counting(3), tmp_path, context=SMALL) as rig:
        number = await rig.incident(message="words and words " * 3000)
        await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert ticket.status is TicketStatus.ESCALATED
        assert "limit_tokens" in (ticket.diagnosis or "")
        assert rig.sent() == []


async def test_a_server_that_cuts_silently_is_noticed_once(tmp_path: Path) -> None:
    inner = counting(12)

    async def reply(turn: Turn) -> Any:
        answer = await inner.reply(turn)
        assert isinstance(answer, Reply)
        most = {"input_tokens": 2048, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        return Reply(text=answer.text, calls=answer.calls, usage=most if turn.step > 3 else {})

    async with open_rig(FunctionBrain(reply), tmp_path) as rig:
        await rig.solve()
        warned = [line for line in rig.lines if "may cut the context silently" in line]
        assert len(warned) == 1
        assert "OLLAMA_CONTEXT_LENGTH" in warned[0]


async def test_nothing_happens_in_a_context_that_is_large_enough(tmp_path: Path) -> None:
    async with open_rig(counting(12), tmp_path) as rig:
        await rig.solve()
        kinds = {e.entry_type for e in await rig.journal()}
        assert kinds.isdisjoint({"compaction", "wind_down", "restart"})
        await rig.assert_faithful()
        assert not any("[Context]" in line for line in rig.lines)

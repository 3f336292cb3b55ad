"""Trouble of the model service: what is tried again, for how long, and what is told to a person (traps 6 and 7)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from operator_core.errors import ModelNotUsable, ModelUnreachable
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Answer, Failure, Reply, ScriptBrain
from tests.support import free_port
from tests.support.rig import PROPOSE, Rig, command, open_rig

FIX = Reply(calls=(command("echo x >> fixed"),))


@pytest.mark.parametrize(
    "trouble",
    [
        Failure(529, times=2),
        Failure(500),
        Failure(429, headers={"retry-after": "0.2"}),
        Reply(text="lost", drop="start"),
        Reply(text="lost", drop="mid"),
        Reply(text="half a document", truncate=True),
        Reply(text="no", stream_error="overloaded_error"),
    ],
    ids=["529-twice", "500", "429", "dropped", "dropped-in-the-middle", "truncated", "overloaded"],
)
async def test_passing_trouble_is_survived_and_noted(tmp_path: Path, trouble: Answer) -> None:
    async with open_rig(ScriptBrain([FIX, trouble, PROPOSE]), tmp_path) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED
        # Trying again repeats a question, never a command.
        assert (rig.workspace / "fixed").read_text() == "x\n"
        times = trouble.times or 0
        retries = [e for e in await rig.journal() if e.entry_type == "retry"]
        assert len(retries) == times
        assert len(rig.sent()) == 2 + times
        assert sum("[Retry]" in line for line in rig.lines) == times
        await rig.assert_faithful()


async def test_the_service_says_how_long_to_wait(tmp_path: Path) -> None:
    brain = ScriptBrain([Failure(429, headers={"retry-after": "1.5"}), FIX, PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        await rig.solve()
        first, second, *_ = rig.server.model_calls()
        assert 1.5 <= (second.at - first.at).total_seconds() < 3.0
        (retry,) = [e for e in await rig.journal() if e.entry_type == "retry"]
        assert retry.meta == {"pause_s": 1.5}


async def test_a_pause_beyond_the_deadline_is_not_begun(tmp_path: Path) -> None:
    """The SDK would sleep an hour (trap 7)."""
    brain = ScriptBrain([Failure(429, headers={"retry-after": "3600"}, times=None)])
    async with open_rig(brain, tmp_path, model={"retry_deadline_s": 20}) as rig:
        started = time.monotonic()
        await given_back(rig, r"overloaded or failing \(429")
        assert time.monotonic() - started < 10


async def given_back(rig: Rig, message: str) -> None:
    """An outage is no ticket's fault: the worker stops with one sentence, and the ticket is open again."""
    number = await rig.incident()
    with pytest.raises(ModelUnreachable, match=message):
        await rig.work()
    ticket = await rig.tickets.get_ticket(number)
    assert (ticket.status, ticket.owner, ticket.reason) == (TicketStatus.OPEN, None, "released")


async def test_trouble_that_lasts_ends_at_the_deadline_with_one_sentence(tmp_path: Path) -> None:
    trouble = [Failure(529, times=None)]
    async with open_rig(ScriptBrain(trouble), tmp_path, model={"retry_deadline_s": 1.0}) as rig:
        started = time.monotonic()
        await given_back(rig, r"The model service at http://127\.0\.0\.1.* overloaded or failing \(529")
        assert time.monotonic() - started < 6
        (session,) = await rig.audit.sessions()
        assert session.status == "running"  # it goes on when the service is back


async def test_an_endpoint_that_is_down_is_named(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    settings = {"retry_deadline_s": 0.2, "base_url": nowhere}
    async with open_rig(ScriptBrain([]), tmp_path, model=settings) as rig:
        await given_back(rig, f"The model endpoint {nowhere} cannot be reached.*check \\[model\\] base_url")


async def test_trouble_after_work_begins_a_new_deadline(tmp_path: Path) -> None:
    """Each trouble gets its own deadline: a long session is not ended by the sum of short ones."""
    steps: list[Answer] = []
    for _ in range(3):
        steps += [Failure(503, headers={"retry-after": "0.7"}), Reply(calls=(command("echo x >> fixed"),))]
    async with open_rig(ScriptBrain([*steps, PROPOSE]), tmp_path, model={"retry_deadline_s": 1.5}) as rig:
        assert (await rig.solve()).status is TicketStatus.RESOLVED
        assert (rig.workspace / "fixed").read_text() == "x\n" * 3


@pytest.mark.parametrize(("status", "words"), [(401, "refused the key"), (404, "does not know")])
async def test_a_refused_key_or_model_gives_the_ticket_back(tmp_path: Path, status: int, words: str) -> None:
    """It is not this ticket's fault: nothing is lost, and the worker stops before the next one fares likewise."""
    async with open_rig(ScriptBrain([FIX, Failure(status)]), tmp_path) as rig:
        number = await rig.incident()
        with pytest.raises(ModelNotUsable, match=words):
            await rig.work()
        ticket = await rig.tickets.get_ticket(number)
        assert (ticket.status, ticket.owner) == (TicketStatus.OPEN, None)
        # With a valid key the same session goes on.
        rig.server.log.clear()
        async with open_rig(ScriptBrain([FIX, PROPOSE]), tmp_path) as again:
            await again.work()
            assert (await again.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
            assert len(again.sent()) == 1
            assert len(await again.audit.sessions()) == 1
    assert (tmp_path / "workspace" / "fixed").read_text() == "x\n"


async def test_a_refused_request_needs_a_person(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain([Failure(413, "request too large")]), tmp_path) as rig:
        ticket = await rig.solve()
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "error")
        assert "refused the request (413: request too large)" in (ticket.diagnosis or "")

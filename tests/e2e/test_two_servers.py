"""Two processes serve one store: they are one face, and when one of them is killed the other one is all of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from operator_core.client import Client
from operator_core.db.approvals import Approvals, Question
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft
from tests.support import free_port, wait_until_async
from tests.support.depth import DEEP
from tests.support.posts import HttpSink, http_sink
from tests.support.scene import attempt
from tests.support.serving import Serving
from tests.support.store import column_of

CONFIG = """
[web]
public_url = "http://127.0.0.1:8642"
[[notify.channel]]
name = "desk"
kind = "webhook"
url = "{url}/desk"
secret_env = "HOOK_SECRET"
[[notify.rule]]
channels = ["desk"]
states = ["open"]
"""
SECRET = {"HOOK_SECRET": "a-secret-for-webhooks"}
KEYS = 12
QUESTIONS = 6


class Two(NamedTuple):
    """Both servers, the store under them, and who is told."""

    store: str
    database: Database
    sink: HttpSink
    one: Serving
    other: Serving
    token: str

    def told(self) -> list[int]:
        """Numbers of the tickets that the channel was told of, in order."""
        return [post.json()["ticket"]["ticket_id"] for post in self.sink.posts]


@asynccontextmanager
async def two(store: str, folder: Path) -> AsyncIterator[Two]:
    """Both started at once, on a store that is not there yet."""
    async with AsyncExitStack() as stack:
        sink = await stack.enter_async_context(http_sink())
        config = CONFIG.format(url=sink.url)
        one, other = (
            stack.enter_context(Serving(folder / name, store, config=config, port=free_port(), env=SECRET))
            for name in ("one", "other")
        )
        for server in (one, other):
            await asyncio.to_thread(server.wait)
        shown = [*one.tokens(), *other.tokens()]
        assert len(shown) == 1, "the first token is made once, whoever is first"
        database = await stack.enter_async_context(Database.open(store))
        yield Two(store, database, sink, one, other, shown[0])


async def question(database: Database, ticket: int) -> str:
    """Let a session of that ticket wait for a person's word; the question."""
    work = await attempt(database, ticket)
    call = f"call-{ticket}"
    await Approvals(database).ask(work.journal, [Question(call, "shell", {"command": "reboot"}, "why")], [call], 3600.0)
    ((asked),) = [a for a in await Approvals(database).listed() if a.ticket_id == ticket]
    assert await Approvals(database).park(work.claim, asked.id)
    return asked.id


async def opened(both: Two) -> list[int]:
    """The tickets in the order in which they were opened; numbers are given before a transaction ends."""
    asked = "SELECT ticket_id FROM ledger WHERE kind = 'transition' ORDER BY seq"
    return list(dict.fromkeys(await column_of(both.store, asked)))


async def follow(client: Client, seen: list[int]) -> None:
    """Note the numbers of all changes, for ever."""
    async for change in client.changes(0):
        if change.number is not None:
            seen.append(change.number)


@pytest.mark.deep
async def test_they_are_one_face(store_url: str, tmp_path: Path) -> None:
    async with two(store_url, tmp_path) as both, AsyncExitStack() as stack:
        clients = here, there = [
            await stack.enter_async_context(Client(server.url, both.token)) for server in (both.one, both.other)
        ]
        seen: list[list[int]] = [[], []]
        following = [asyncio.create_task(follow(client, each)) for client, each in zip(clients, seen, strict=True)]

        # The same request, sent to both at once: one ticket, one answer.
        answers = await asyncio.gather(
            *(client.open_incident(f"n{n}", "full", key=f"key-{n}") for n in range(KEYS) for client in clients)
        )
        numbers = [answer.id for answer in answers]
        assert numbers[::2] == numbers[1::2]
        assert len(set(numbers)) == KEYS

        # What is announced is announced once, and in order, though both look.
        await wait_until_async(lambda: len(both.told()) >= KEYS, 30, what="everything was announced")
        assert both.told() == await opened(both)

        # A yes here and a no there: one of them counts, and the other one is told so.
        for number in range(1, QUESTIONS + 1):
            ticket = await here.open_incident(f"q{number}", "full", priority=number)
            asked = await question(both.database, ticket.id)
            ends = await asyncio.gather(here.decide(asked, True), there.decide(asked, False), return_exceptions=True)
            assert sorted(type(end).__name__ for end in ends) == ["ApprovalView", "TransitionRefused"], ends
            (said,) = [end.state for end in ends if not isinstance(end, BaseException)]
            assert {(await client.approval(asked)).state for client in clients} == {said}

        # What was spent is counted once, though both count.
        paid = await there.open_incident("paid", "full", priority=QUESTIONS + 1)
        work = await attempt(both.database, paid.id)
        meta = {"usage": {"input_tokens": 7, "output_tokens": 1, "cost_usd": 0.5}, "model": "m"}
        for _ in range(40):
            body = {"role": "assistant", "content": []}
            await work.journal.append(Draft("message", "a call", body=body, meta=meta, phase="worker_1"))
        for client in clients:
            (row,) = await client.costs("model")
            assert (row.key, row.spent.calls, row.spent.cost_usd) == ("m", 40, 20.0)

        # Everything came once, and in order, on streams of either.
        (head,) = await column_of(both.store, "SELECT seq FROM ledger_head")
        await wait_until_async(
            lambda: all(each and each[-1] >= head for each in seen), 20, what="the streams are there"
        )
        (every,) = [
            await column_of(both.store, f"SELECT seq FROM ledger WHERE ticket_id IS NOT NULL AND seq <= {head}")
        ]
        assert [[number for number in each if number <= head] for each in seen] == [sorted(every)] * 2
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        assert (await verify(both.database)).ok
        for server in (both.one, both.other):
            server.stop()


@pytest.mark.broad
async def test_whom_one_lets_in_and_sends_away(store_url: str, tmp_path: Path) -> None:
    """Logins and tokens are the store's, and what ends at one ends at the other: at once, or with the next look."""
    async with two(store_url, tmp_path) as both, httpx2.AsyncClient(timeout=60) as browser:
        admin = {"Authorization": f"Bearer {both.token}"}
        signed = await browser.post(f"{both.one.url}/login", data={"token": both.token})
        assert signed.status_code == 303
        assert (await browser.get(f"{both.other.url}/api/v1/me")).json()["name"] == "first"
        made = (
            await browser.post(f"{both.one.url}/api/v1/tokens", json={"name": "ci", "role": "viewer"}, headers=admin)
        ).json()
        theirs = {"Authorization": f"Bearer {made['token']}"}
        url = both.other.url
        async with browser.stream("GET", f"{url}/api/v1/stream", headers=theirs) as stream:
            pieces = stream.aiter_raw()
            await anext(pieces)
            gone = await browser.delete(f"{both.one.url}/api/v1/tokens/{made['id']}", headers=admin)
            assert gone.status_code == 200
            assert (await browser.get(f"{url}/api/v1/board", headers=theirs)).status_code == 401
            if DEEP:
                async with asyncio.timeout(60):
                    async for _ in pieces:
                        pass


@pytest.mark.broad
async def test_when_one_is_killed_the_other_goes_on_with_all_of_it(store_url: str, tmp_path: Path) -> None:
    async with two(store_url, tmp_path) as both, AsyncExitStack() as stack:
        here, there = [
            await stack.enter_async_context(Client(server.url, both.token)) for server in (both.one, both.other)
        ]
        asking = [
            asyncio.create_task(here.open_incident(f"n{n}", "full", key=f"key-{n}", labels={"n": str(n)}))
            for n in range(KEYS)
        ]
        await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        both.one.kill()
        ends = await asyncio.gather(*asking, return_exceptions=True)
        # Whoever got no answer asks again, elsewhere and with the same key.
        again = [await there.open_incident(f"n{n}", "full", key=f"key-{n}", labels={"n": str(n)}) for n in range(KEYS)]
        for end, now in zip(ends, again, strict=True):
            assert isinstance(end, BaseException) or end.id == now.id
        assert len({ticket.id for ticket in again}) == KEYS
        tickets = await TicketDB(both.database).list_tickets(limit=1000)
        assert len(tickets) == KEYS
        assert {ticket.occurrence_count for ticket in tickets} == {1}
        (late,) = [await there.open_incident("late", "full")]
        # What the dead one had in its hands is told when its lease is over; nothing is lost, and nothing overtakes.
        left = await column_of(both.store, "SELECT count(*) FROM outbox WHERE ended_at IS NULL AND taken_until > 0")
        if left == [0] or DEEP:
            await wait_until_async(lambda: late.id in both.told(), 90, what="the late one was announced")
            assert sorted(set(both.told())) == sorted([*(ticket.id for ticket in again), late.id])
            assert list(dict.fromkeys(both.told())) == await opened(both)
        assert (await verify(both.database)).ok

"""The outbox: in one transaction with what it tells of, in order, by one process at a time, never given up quietly."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import suppress
from datetime import timedelta

import pytest
from sqlalchemy import select

from operator_core import clock
from operator_core.cli.notify import when_next
from operator_core.cli.output import seconds
from operator_core.db.engine import Database
from operator_core.db.ledger import recent_rows
from operator_core.db.schema import outbox
from operator_core.errors import NotFound, OperatorError, TransitionRefused
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import Delivered, Later, Letter, Never, Outcome, Slip, again, put, slips
from tests.support import wait_until_async
from tests.support.store import column_of


class Post:
    """Delivers into a list; what it answers is set by letter."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.answers: dict[int, list[Outcome | Exception]] = defaultdict(list)
        self.open: defaultdict[str, asyncio.Event] = defaultdict(_set)
        self.inside: defaultdict[str, int] = defaultdict(int)
        self.crowds: list[str] = []
        self.dropped = 0

    async def __call__(self, letter: Letter) -> Outcome:
        self.inside[letter.channel] += 1
        try:
            if self.inside[letter.channel] > 1:
                self.crowds.append(letter.channel)
            await asyncio.sleep(0)
            await self.open[letter.channel].wait()
            n = letter.body["n"]
            self.seen.append((letter.channel, n, letter.attempt))
            answer = self.answers[n].pop(0) if self.answers[n] else Delivered()
            if isinstance(answer, Exception):
                raise answer
            return answer
        except asyncio.CancelledError:
            self.dropped += 1
            raise
        finally:
            self.inside[letter.channel] -= 1

    def numbers(self, channel: str) -> list[int]:
        return [n for c, n, _ in self.seen if c == channel]


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def post_all(database: Database, *letters: tuple[str, int]) -> None:
    for channel, n in letters:
        async with database.begin() as c:
            assert await put(c, channel, "test", {"n": n}, dedupe_key=f"{channel}/{n}")


async def test_a_letter_is_put_with_its_transaction_and_once(store_url: str) -> None:
    async with Database.open(store_url) as database:
        with suppress(RuntimeError):
            async with database.begin() as c:
                await put(c, "a", "test", {"n": 1}, dedupe_key="x")
                raise RuntimeError
        assert await slips(database) == []
        async with database.begin() as c:
            assert await put(c, "a", "test", {"n": 2, "text": "\x00 \ud800 'x'"}, dedupe_key="x")
            assert not await put(c, "b", "test", {"n": 3}, dedupe_key="x")
        post = Post()
        courier = Courier(database, post)
        assert await courier.drain(10) == 0
        assert post.seen == [("a", 2, 1)]
        async with database.begin() as c:
            assert not await put(c, "a", "test", {"n": 4}, dedupe_key="x"), "the key of a letter that went out is known"
        assert await courier.drain(10) == 0
        assert post.seen == [("a", 2, 1)]


async def test_a_letter_never_appears_behind_one_that_was_put_later(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as two:
        post = Post()
        courier = Courier(two, post)

        async def second() -> None:
            async with two.begin() as c:
                await put(c, "a", "test", {"n": 2}, dedupe_key="2")

        async with one.begin() as c:
            await put(c, "a", "test", {"n": 1}, dedupe_key="1")
            later = asyncio.create_task(second())
            await asyncio.sleep(0.3)
            assert await courier.left() == 0
            assert not later.done(), "it waits for the transaction that was first"
        await later
        assert await courier.drain(10) == 0
        assert post.numbers("a") == [1, 2]


async def test_channels_keep_their_order_and_do_not_wait_for_each_other(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, *((c, n) for n in range(4) for c in ("slow", "late", "fast")))
        post = Post()
        post.open["slow"] = asyncio.Event()
        post.answers[1] = []
        courier = Courier(database, post, poll_s=0.05)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))
        await wait_until_async(lambda: post.numbers("fast") == [0, 1, 2, 3])
        assert post.numbers("slow") == []
        post.open["slow"].set()
        await wait_until_async(lambda: len(post.seen) == 12)
        assert post.numbers("slow") == post.numbers("late") == [0, 1, 2, 3]
        stop.set()
        await running
        assert await courier.left() == 0


async def test_what_has_to_wait_holds_up_its_channel_alone(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("a", 2), ("b", 3))
        post = Post()
        post.answers[1] = [Later("the service is busy", 0.2), OperatorError("not reachable")]
        said: list[str] = []
        courier = Courier(database, post, poll_s=0.05, say=said.append)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))
        await wait_until_async(lambda: post.numbers("b") == [3])

        async def waits() -> list[Slip]:
            return [s for s in await slips(database) if s.error]

        (waiting,) = await wait_until_async(waits)
        assert (waiting.error, waiting.attempts, waiting.ended_at) == ("the service is busy", 1, None)
        await wait_until_async(lambda: post.numbers("a") == [1, 1, 1, 2])
        assert [attempt for _, n, attempt in post.seen if n == 1] == [1, 2, 3]
        stop.set()
        await running
        assert said == ["[Outbox] a: test has to wait: the service is busy"]


async def test_the_list_says_when_a_letter_is_tried_next(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("a", 2), ("b", 3))
        post = Post()
        post.answers[1] = [Later("the service is busy", 200.0)]
        post.open["b"] = asyncio.Event()
        courier = Courier(database, post, poll_s=0.05)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))

        async def both() -> list[Slip] | None:
            found = sorted(await slips(database), key=lambda slip: slip.id)
            return found if found[0].error and found[-1].under_way else None

        first, second, third = await wait_until_async(both)
        assert first.next_try is not None
        assert 100 < (clock.parse_iso(first.next_try) - clock.now()).total_seconds() <= 300
        assert (first.behind, second.behind, second.next_try) == (None, first.id, None), "in the order of the channel"
        assert (third.behind, third.under_way, first.under_way) == (None, True, False)
        assert when_next(first) == ("waits", seconds(first.next_try))
        assert when_next(second) == ("new", f"after letter {first.id}")
        assert when_next(third) == ("on its way", "now")
        post.open["b"].set()
        stop.set()
        await running


async def test_what_will_never_go_out_is_kept_with_its_reason(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("a", 2))
        post = Post()
        post.answers[1] = [Never("a person canceled it")]
        said: list[str] = []
        courier = Courier(database, post, say=said.append)
        assert await courier.drain(10) == 0
        assert post.numbers("a") == [1, 2]
        (slip,) = await slips(database)
        assert (slip.error, slip.ended_at is not None) == ("a person canceled it", True)
        assert said == ["[Outbox] a: test is given up: a person canceled it"]
        await again(database, slip.id, actor="ann (cli)")
        (row,) = await recent_rows(database, before=2**62, limit=1)
        assert (row.kind, row.body["letter"], row.body["actor"]) == ("letter_again", slip.id, "ann (cli)")
        assert await courier.drain(10) == 0
        assert post.numbers("a") == [1, 2, 1]
        assert await slips(database) == []
        with pytest.raises(TransitionRefused):
            await again(database, slip.id)
        with pytest.raises(NotFound):
            await again(database, 12345)
        assert (await recent_rows(database, before=2**62, limit=1))[0].seq == row.seq


async def test_a_mistake_of_ours_does_not_block_a_channel_for_ever(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("a", 2))
        post = Post()
        post.answers[1] = [ValueError("oops") for _ in range(20)]
        courier = Courier(database, post, poll_s=0.02)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))

        async def hurry() -> bool:
            await column_of(store_url, "UPDATE outbox SET due_at = 0 WHERE ended_at IS NULL RETURNING id")
            return post.numbers("a")[-1:] == [2]

        await wait_until_async(hurry, 20)
        stop.set()
        await running
        assert post.numbers("a") == [1] * 8 + [2]
        assert [s.error for s in await slips(database)] == ["ValueError: oops"]


async def test_two_couriers_never_carry_the_same_letter_or_channel_at_once(store_url: str) -> None:
    letters = [(f"channel-{c}", n) for n in range(6) for c in range(10)]
    async with Database.open(store_url) as one, Database.open(store_url) as two:
        await post_all(one, *letters)
        post = Post()
        couriers = [Courier(database, post, at_once=4, poll_s=0.02) for database in (one, two)]
        assert await asyncio.gather(*(courier.drain(30) for courier in couriers)) == [0, 0]
    assert post.crowds == []
    assert sorted((c, n) for c, n, _ in post.seen) == sorted(letters)
    assert all(post.numbers(f"channel-{c}") == list(range(6)) for c in range(10))


async def test_a_lease_is_renewed_while_a_letter_is_under_way(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as two:
        await post_all(one, ("a", 1))
        post = Post()
        post.open["a"] = asyncio.Event()
        first = asyncio.create_task(Courier(one, post, lease_s=1.0).drain(20))
        await wait_until_async(lambda: post.inside["a"])
        other = Courier(two, post, lease_s=1.0)
        assert await other.drain(2.5) == 1
        assert post.crowds == []
        post.open["a"].set()
        assert await first == 0
        assert post.seen == [("a", 1, 1)]


async def test_what_a_dead_courier_had_taken_is_carried_by_another(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1))
        post = Post()
        post.open["a"] = asyncio.Event()
        dead = Courier(database, post, lease_s=0.5)
        task = asyncio.create_task(dead._take())
        await wait_until_async(lambda: post.inside["a"])
        await task
        for carrying in dead._under_way.values():
            carrying.cancel()
        post.open["a"].set()
        living = Courier(database, post, poll_s=0.05)
        assert await living.drain(10) == 0
        assert post.seen == [("a", 1, 2)], "the second attempt knows that there was a first one"


async def test_a_courier_whose_leases_cannot_be_renewed_drops_what_it_carries(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1))
        post = Post()
        post.open["a"] = asyncio.Event()
        courier = Courier(database, post, lease_s=1.0)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))
        await wait_until_async(lambda: post.inside["a"])
        courier._held_until = float("-inf")  # as if the store had not answered for so long
        await wait_until_async(lambda: post.dropped == 1, 5)
        assert post.seen == []
        post.open["a"].set()
        await wait_until_async(lambda: post.seen == [("a", 1, 2)], 5)
        stop.set()
        await running


async def test_what_is_to_go_out_again_waits_for_the_one_that_is_under_way(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as two:
        await post_all(one, ("a", 1), ("a", 2), ("a", 3))
        post = Post()
        post.answers[1] = [Never("no")]
        couriers = [Courier(database, post, poll_s=0.02) for database in (one, two)]
        gate = post.open["a"] = asyncio.Event()
        first = asyncio.create_task(couriers[0].drain(20))
        await wait_until_async(lambda: post.inside["a"])
        post.open["a"] = asyncio.Event()  # the first goes on, the second waits here
        gate.set()
        await wait_until_async(lambda: post.numbers("a") == [1] and post.inside["a"])
        (slip,) = [slip for slip in await slips(one) if slip.ended_at]
        await again(two, slip.id)
        second = asyncio.create_task(couriers[1].drain(20))
        await asyncio.sleep(0.3)
        assert post.inside["a"] == 1
        post.open["a"].set()
        assert await asyncio.gather(first, second) == [0, 0]
        assert post.crowds == []
        assert post.numbers("a") == [1, 2, 1, 3]


@pytest.mark.parametrize("phase", [0.0, 0.25, 0.45])
async def test_what_is_carried_is_dropped_before_its_lease_is_over(store_url: str, phase: float) -> None:
    lease_s = 2.0
    async with Database.open(store_url) as one, Database.open(store_url) as two:
        post = Post()
        post.open["a"] = asyncio.Event()
        courier = Courier(one, post, lease_s=lease_s, poll_s=0.02)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))
        await asyncio.sleep(phase)
        await post_all(one, ("a", 1))
        await wait_until_async(lambda: post.inside["a"])
        before = asyncio.get_running_loop().time()
        async with two.begin() as c:  # nothing can be renewed meanwhile
            await c.execute(select(outbox.c.id).with_for_update())
            await wait_until_async(lambda: post.dropped, 5)
            assert asyncio.get_running_loop().time() - before < lease_s
        post.open["a"].set()
        await wait_until_async(lambda: post.seen, 5)
        stop.set()
        await running


async def test_a_courier_drops_what_has_become_another_ones(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("a", 2))
        post = Post()
        post.open["a"] = asyncio.Event()
        courier = Courier(database, post, lease_s=0.8)
        stop = asyncio.Event()
        running = asyncio.create_task(courier.run(stop))
        await wait_until_async(lambda: post.inside["a"])
        # As if the clock of the database had been set, and another one had been quick.
        far = "UPDATE outbox SET taken_by = 'other', taken_until = 9000000000000 WHERE id = 1 RETURNING id"
        await column_of(store_url, far)
        await wait_until_async(lambda: post.dropped == 1, 5)
        stop.set()
        await running
        assert await column_of(store_url, "SELECT taken_by FROM outbox WHERE id = 1") == ["other"]


async def test_a_courier_carries_its_own_channels_only(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a_%", 1), ("A_%", 2), ("ab%", 3), ("a_%:x", 4))
        post = Post()
        courier = Courier(database, post, "a_%")
        assert await courier.drain(10) == 0
        assert sorted(n for _, n, _ in post.seen) == [1, 4]
        assert [s.channel for s in await slips(database, "A")] == ["A_%"]


async def test_what_has_ended_is_tidied_away_and_what_has_not_stays(store_url: str) -> None:
    async with Database.open(store_url) as database:
        await post_all(database, ("a", 1), ("b", 2))
        post = Post()
        post.answers[2] = [Later("later", 1000)]
        courier = Courier(database, post, keep=timedelta(0))
        assert await courier.drain(0.5) == 1
        assert await courier.drain(0.5) == 1  # it tidies when it begins
        assert await column_of(store_url, "SELECT channel FROM outbox") == ["b"]

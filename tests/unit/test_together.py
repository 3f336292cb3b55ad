"""Things that begin and end together."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from operator_core.together import together


async def test_all_of_them_are_done_at_the_end() -> None:
    async with together() as group:
        tasks = [group.create_task(asyncio.sleep(0, n)) for n in range(3)]
    assert [task.result() for task in tasks] == [0, 1, 2]


async def test_the_first_failure_is_told_as_it_was_when_the_others_have_ended() -> None:
    ended = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)  # as giving a connection back
            ended.append("waits")

    async def fails() -> None:
        await asyncio.sleep(0)
        raise LookupError("the first")

    async def work() -> None:
        async with together() as group:
            group.create_task(waits())
            group.create_task(fails())

    with pytest.raises(LookupError, match="the first"):
        await work()
    assert ended == ["waits"]


async def test_what_fails_between_them_is_told_as_it_was() -> None:
    async def work() -> None:
        async with together() as group:
            group.create_task(asyncio.sleep(60))
            raise LookupError("between")

    with pytest.raises(LookupError, match="between"):
        await work()


async def test_whoever_goes_away_is_not_kept() -> None:
    async def work() -> None:
        async with together() as group:
            group.create_task(asyncio.sleep(60))

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_who_is_cancelled_while_one_of_them_fails_is_cancelled() -> None:
    """Else a loop that goes on after an error would never hear that it is to end."""

    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise LookupError("the connection is gone") from None

    async def work() -> None:
        async with together() as group:
            group.create_task(fails_when_cancelled())

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)


async def test_an_earlier_cancellation_hides_no_later_failure() -> None:
    async def fails() -> None:
        raise LookupError("later")

    async def work() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        async with together() as group:
            group.create_task(fails())

    task = asyncio.create_task(work())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(LookupError, match="later"):
        await asyncio.wait_for(task, 5)

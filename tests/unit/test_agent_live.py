"""What people are shown of a running command: its end, at most once a second, and never at the command's expense."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.agent_lab.live import TAIL_BYTES, LiveTail
from operator_core.errors import StoreUnavailable
from tests.support.waiting import wait_until_async

EVERY_S = 0.02


class Screen:
    """Remembers what was shown."""

    def __init__(self) -> None:
        self.shown: list[tuple[str, int]] = []
        self.cleared = 0

    async def show(self, text: str, total: int) -> None:
        self.shown.append((text, total))

    async def clear(self) -> None:
        self.cleared += 1

    def tail(self, every_s: float = EVERY_S) -> LiveTail:
        return LiveTail(self.show, self.clear, every_s=every_s)


async def test_a_command_that_is_done_within_the_first_second_is_not_shown() -> None:
    screen = Screen()
    async with screen.tail(every_s=0.5) as tail:
        tail("stdout", memoryview(b"quick\n"))
        await asyncio.sleep(0.05)
    await asyncio.sleep(0.6)
    assert (screen.shown, screen.cleared) == ([], 0)


async def test_output_is_shown_as_it_comes_and_taken_away_with_the_command() -> None:
    screen = Screen()
    async with screen.tail() as tail:
        tail("stdout", memoryview(b"one\n"))
        await wait_until_async(lambda: screen.shown)
        tail("stderr", memoryview(b"two\n"))
        await wait_until_async(lambda: len(screen.shown) > 1)
        assert screen.cleared == 0
    assert screen.shown == [("one\n", 4), ("one\ntwo\n", 8)]
    assert screen.cleared == 1


async def test_a_command_that_says_nothing_writes_nothing() -> None:
    screen = Screen()
    async with screen.tail():
        await asyncio.sleep(5 * EVERY_S)
    assert (screen.shown, screen.cleared) == ([], 0)


async def test_silence_is_not_written_again_and_again() -> None:
    screen = Screen()
    async with screen.tail() as tail:
        tail("stdout", memoryview(b"once"))
        await asyncio.sleep(10 * EVERY_S)
    assert screen.shown == [("once", 4)]


async def test_a_store_that_fails_is_no_concern_of_the_command() -> None:
    tries = 0

    async def fail(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise StoreUnavailable if tries % 2 else RuntimeError("a mistake")

    wanted: list[int] = []
    async with LiveTail(fail, fail, every_s=EVERY_S) as tail:
        for _ in range(3):
            wanted.append(tries + 1)
            tail("stdout", memoryview(b"x"))
            await wait_until_async(lambda: tries >= wanted[-1])
    assert tries >= 4, "clearing is tried too"


async def test_a_slow_store_is_asked_less_often() -> None:
    times = []

    async def slow(text: str, total: int) -> None:
        times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.05)

    async with LiveTail(slow, Screen().clear, every_s=EVERY_S) as tail:
        end = asyncio.get_running_loop().time() + 0.6
        while asyncio.get_running_loop().time() < end:
            tail("stdout", memoryview(b"x"))
            await asyncio.sleep(0.005)
    assert len(times) == 1, "after 0.05 s of work it rests for a second"


async def test_a_command_that_fails_takes_its_output_away() -> None:
    screen = Screen()

    async def fail() -> None:
        async with screen.tail() as tail:
            tail("stdout", memoryview(b"x"))
            await wait_until_async(lambda: screen.shown)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert screen.cleared == 1


@given(st.lists(st.text("aé€😀\n", max_size=5000), max_size=12), st.randoms(use_true_random=False))
def test_it_is_the_end_of_the_text_in_whole_characters(texts: list[str], random: object) -> None:
    screen = Screen()
    tail = screen.tail()
    whole = "".join(texts).encode()
    position = 0
    while position < len(whole):
        size = random.randint(1, 20_000)  # type: ignore[attr-defined]
        tail("stdout", memoryview(whole)[position : position + size])
        position += size
    text = tail._text()
    assert whole.decode().endswith(text)
    assert len(text.encode()) <= TAIL_BYTES
    assert len(text.encode()) > min(len(whole), TAIL_BYTES) - 4
    assert len(tail._tail) <= 5 * TAIL_BYTES

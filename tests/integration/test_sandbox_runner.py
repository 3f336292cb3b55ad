"""The output pump with real processes: bounded memory, bounded time, nothing left behind."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from operator_core.sandbox import Limits, RawResult
from operator_core.sandbox.process import Process
from operator_core.sandbox.runner import Spawn, exit_status, run
from tests.support import processes_of, wait_until, wait_until_async

# Seconds to sleep that no other run of these tests uses, so that leftovers are ours.
RUN = f"{random.randrange(10**9):09d}"

DEVNULL = asyncio.subprocess.DEVNULL


def shell(command: str, **options: object) -> Spawn:
    """As ``agent_lab`` does it: a process that asyncio made, not ours."""

    async def spawn(stdout: int, stderr: int) -> Process:
        return await asyncio.create_subprocess_shell(
            command, stdin=DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True, **options
        )

    return spawn


async def test_streams_are_separate_and_the_exit_code_is_kept() -> None:
    raw = await run(shell("echo out; echo err >&2; exit 7"), timeout=10)
    assert (raw.returncode, raw.reason) == (7, "exited")
    assert (raw.stdout.text(), raw.stderr.text()) == ("out\n", "err\n")


def test_exit_status() -> None:
    assert exit_status(0) == (0, None)
    assert exit_status(-9) == exit_status(137) == (137, 9)
    assert exit_status(255) == (255, None)
    assert exit_status(None) == (None, None)


async def test_standard_input_is_empty() -> None:
    raw = await run(shell("cat; echo done"), timeout=10)
    assert raw.stdout.text() == "done\n"


async def test_what_was_written_just_before_the_end_is_not_lost() -> None:
    for _ in range(20):
        raw = await run(shell("head -c 900000 /dev/zero"), timeout=10)
        assert raw.stdout.total == 900_000


async def test_a_background_child_that_holds_the_pipe_does_not_hang_the_call() -> None:
    started = time.monotonic()
    raw = await run(shell(f"sleep 61.{RUN} & echo hi"), timeout=30)
    assert time.monotonic() - started < 25
    assert raw.stdout.text() == "hi\n"
    assert raw.background == 1
    wait_until(lambda: not processes_of(f"61.{RUN}"))


async def test_a_daemon_that_left_the_group_and_holds_the_pipe_does_not_hang_the_call() -> None:
    started = time.monotonic()
    raw = await run(shell(f"setsid sleep 62.{RUN} & echo hi"), timeout=30)
    try:
        assert time.monotonic() - started < 25
        assert raw.stdout.text() == "hi\n"
    finally:
        for pid in processes_of(f"62.{RUN}"):
            os.kill(pid, signal.SIGKILL)


async def test_a_timeout_keeps_the_output_and_ends_the_tree() -> None:
    command = f"echo before; (trap '' TERM; sleep 63.{RUN}; sleep 63.{RUN}) & setsid sleep 69.{RUN}; echo after"
    started = time.monotonic()
    raw = await run(shell(command), timeout=1.0, limits=Limits(grace_s=0.3))
    assert raw.reason == "timeout"
    assert raw.stdout.text() == "before\n"
    assert 0.95 < time.monotonic() - started < 30
    wait_until(lambda: not processes_of(f"63.{RUN}") and not processes_of(f"69.{RUN}"))


async def test_sigterm_comes_first_so_that_a_trap_can_run() -> None:
    raw = await run(shell("trap 'echo cleaned; exit 7' TERM; while :; do sleep 0.05; done"), timeout=1.0)
    assert (raw.reason, raw.returncode, raw.stdout.text()) == ("timeout", 7, "cleaned\n")


async def test_endless_output_is_stopped() -> None:
    raw = await run(shell("yes"), timeout=60, limits=Limits(output_kill=5 << 20, grace_s=0.2))
    assert raw.reason == "output_limit"
    assert raw.duration_s < 50
    assert len(raw.stdout.head) + len(raw.stdout.tail) == 32768


async def test_cancelling_kills_the_tree_and_says_so() -> None:
    task = asyncio.create_task(
        run(shell(f"trap '' TERM; sleep 64.{RUN} & setsid sleep 64.{RUN} & sleep 64.{RUN}"), timeout=60)
    )
    await wait_until_async(lambda: len(processes_of(f"64.{RUN}")) >= 4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: not processes_of(f"64.{RUN}"))


@pytest.mark.parametrize("delay", [0.0, 0.0005, 0.001, 0.002, 0.004])
async def test_cancelling_while_it_starts_leaves_nothing(delay: float) -> None:
    for _ in range(5):
        task = asyncio.create_task(run(shell(f"sleep 65.{RUN}"), timeout=60))
        await asyncio.sleep(delay)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    wait_until(lambda: not processes_of(f"65.{RUN}"))


async def test_a_second_cancellation_does_not_interrupt_the_killing() -> None:
    task = asyncio.create_task(run(shell(f"sleep 66.{RUN} & setsid sleep 66.{RUN} & wait"), timeout=60))
    await wait_until_async(lambda: len(processes_of(f"66.{RUN}")) >= 3)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    wait_until(lambda: not processes_of(f"66.{RUN}"))


async def test_stop_is_graceful() -> None:
    stop = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.3, stop.set_result, None)
    raw = await run(shell("trap 'exit 5' TERM; while :; do sleep 0.05; done"), timeout=60, stop=stop)
    assert (raw.reason, raw.returncode) == ("cancelled", 5)


async def test_no_file_descriptor_is_left_open() -> None:
    await run(shell("true"), timeout=10)
    before = len(os.listdir("/proc/self/fd"))
    for command in ("true", "echo x", "sleep 0.01 & true"):
        await run(shell(command), timeout=10)

    async def fails(stdout: int, stderr: int) -> Process:
        raise OSError("no")

    with contextlib.suppress(OSError):
        await run(fails, timeout=10)
    assert len(os.listdir("/proc/self/fd")) == before


class Upper:
    """Replaces ``secret`` by stars, also across chunks, as the product's filter does."""

    WORD = b"secret"

    def __init__(self) -> None:
        self.held = b""

    def feed(self, data: bytes) -> bytes:
        data = (self.held + data).replace(self.WORD, b"******")
        keep = next((n for n in range(len(self.WORD) - 1, 0, -1) if data.endswith(self.WORD[:n])), 0)
        self.held = data[len(data) - keep :]
        return data[: len(data) - keep]

    def flush(self) -> bytes:
        held, self.held = self.held, b""
        return held


async def test_redaction_comes_before_everything_also_across_chunks(tmp_path: Path) -> None:
    seen = bytearray()
    command = "printf 'a sec'; sleep 0.15; printf 'ret b'; printf 'sec' >&2; sleep 0.1; printf 'ret' >&2; printf ' se'"
    raw = await run(
        shell(command),
        timeout=10,
        limits=Limits(head=2, tail=2),
        spool=tmp_path,
        redact=Upper,
        on_output=lambda _, data: seen.extend(data),
    )
    assert raw.stdout.spill is not None
    assert raw.stdout.spill.read_bytes() == b"a ****** b se"
    assert raw.stdout.total == 13
    assert (raw.stderr.head, raw.stderr.tail) == (b"**", b"**")
    assert b"secret" not in seen
    assert b"******" in seen


class Broken(Upper):
    def feed(self, data: bytes) -> bytes:
        raise ValueError("the filter is broken")


async def test_a_broken_filter_ends_the_command_and_keeps_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="broken"):
        await run(
            shell(f"echo secret; sleep 67.{RUN}"),
            timeout=60,
            limits=Limits(head=0, tail=0),
            spool=tmp_path,
            redact=Broken,
        )
    assert not list(tmp_path.iterdir())
    wait_until(lambda: not processes_of(f"67.{RUN}"))


async def test_a_listener_that_fails_ends_the_command() -> None:
    def listener(_: str, data: memoryview) -> None:
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        await run(shell(f"echo x; sleep 68.{RUN}"), timeout=60, on_output=listener)
    wait_until(lambda: not processes_of(f"68.{RUN}"))


async def test_output_is_given_on_while_it_comes() -> None:
    arrived = asyncio.Event()
    task = asyncio.create_task(run(shell("echo x; sleep 5"), timeout=60, on_output=lambda *_: arrived.set()))
    async with asyncio.timeout(3):
        await arrived.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_binary_output_is_kept_as_it_is() -> None:
    raw: RawResult = await run(shell(r"printf '\000\377\200ok'"), timeout=10)
    assert raw.stdout.head == b"\x00\xff\x80ok"
    assert raw.stdout.text() == "\x00��ok"


GIBIBYTE = """
import asyncio, sys
from pathlib import Path
from operator_core.sandbox import run

async def main():
    raw = await run(
        lambda out, err: asyncio.create_subprocess_exec(
            "head", "-c", str((1 << 30) - 5), "/dev/zero", stdout=out, stderr=err, stdin=-3, start_new_session=True),
        timeout=100, spool=Path(sys.argv[1]))
    print(raw.returncode, raw.reason, raw.stdout.total, raw.stdout.spill.stat().st_size)
    # Not ru_maxrss: a new process inherits that of the one that started it.
    print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))

asyncio.run(main())
"""


@pytest.mark.usefixtures("cold")
def test_one_gibibyte_of_output_stays_below_64_mebibytes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GIBIBYTE, str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 0, done.stderr
    first, memory = done.stdout.splitlines()
    assert first == f"0 exited {(1 << 30) - 5} {64 << 20}"
    assert int(memory) < 64 << 10

"""``shell``: rows A-010 to A-020, and the defects D-01 and D-19."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest

from operator_core.agent_lab import shell
from tests.support import processes_of, wait_until, wait_until_async

GRACE_S = 2.5


def test_signature() -> None:
    """Rows A-010, A-016, A-019."""
    parameters = inspect.signature(shell).parameters
    assert list(parameters) == ["command", "reasoning", "timeout"]
    assert parameters["timeout"].default == 120.0
    assert parameters["reasoning"].default is inspect.Parameter.empty
    assert inspect.iscoroutinefunction(shell)
    assert shell.__doc__ is not None
    assert all(key in shell.__doc__ for key in ("stdout", "stderr", "exit_code", "timed_out"))


async def test_reasoning_is_required() -> None:
    with pytest.raises(TypeError, match="reasoning"):
        await shell("true")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("command", "stdout", "stderr", "code"),
    [
        ("echo hello", "hello\n", "", 0),
        ("echo out; echo err >&2; exit 7", "out\n", "err\n", 7),
        ("true", "", "", 0),
        ("kill -9 $$", "", "", 137),
        (r"printf '\377\376'", "\ufffd\ufffd", "", 0),
        (r"printf 'gr\303\274\303\237e'", "grüße", "", 0),
        ("""printf %s '{"a": "b c", "d": "$HOME `x`"}'""", '{"a": "b c", "d": "$HOME `x`"}', "", 0),
        ("cat <<'E' | tr a-z A-Z\nit's \"quoted\"\nE", 'IT\'S "QUOTED"\n', "", 0),
        ("echo $(echo nested $((6*7))) && echo a\\ b | sed 's/ /_/'", "nested 42\na_b\n", "", 0),
    ],
)
async def test_results(command: str, stdout: str, stderr: str, code: int) -> None:
    """Rows A-013, A-015, A-017: exactly these keys, and the command as it was given."""
    assert await shell(command, "r") == {"stdout": stdout, "stderr": stderr, "exit_code": code, "timed_out": False}


async def test_a_megabyte_is_whole() -> None:
    """Row A-020."""
    result = await shell("yes 0123456 | head -c 1000000; yes e | head -c 300000 >&2", "r")
    assert result["stdout"] == "0123456\n" * 125_000
    assert result["stderr"] == "e\n" * 150_000


async def test_a_timeout_is_a_result_and_keeps_what_was_printed() -> None:
    """Rows A-012 and A-014, D-19."""
    started = time.monotonic()
    result = await shell("echo begun; echo trouble >&2; sleep 67.1", "r", timeout=0.5)
    assert time.monotonic() - started < 0.5 + GRACE_S
    assert result == {
        "stdout": "begun\n",
        "stderr": "trouble\nCommand timed out after 0.5 seconds",
        "exit_code": -1,
        "timed_out": True,
    }
    assert processes_of("sleep\00067.1") == []


@pytest.mark.parametrize(
    "command",
    [
        "sleep 68.2 & sleep 68.2; echo x",
        "(sleep 68.2; true) | cat; echo x",
        "trap '' TERM; sleep 68.2 & sleep 68.2; sleep 68.2",
        "setsid sleep 68.2 & sleep 68.2",
    ],
)
async def test_nothing_survives_a_timeout(command: str) -> None:
    """D-01: the seed's own code hung here, or left orphans."""
    started = time.monotonic()
    result = await shell(command, "r", timeout=0.4)
    assert time.monotonic() - started < 0.4 + GRACE_S
    assert (result["exit_code"], result["timed_out"]) == (-1, True)
    assert processes_of("sleep\00068.2") == []


async def test_a_background_job_does_not_hold_the_call() -> None:
    started = time.monotonic()
    result = await shell("sleep 4.3 & echo started", "r")
    assert time.monotonic() - started < 2
    assert result == {"stdout": "started\n", "stderr": "", "exit_code": 0, "timed_out": False}
    wait_until(lambda: not processes_of("sleep\0004.3"))


async def test_standard_input_is_empty() -> None:
    assert (await shell("cat; read x || echo end", "r", timeout=5))["stdout"] == "end\n"


async def test_calls_at_once_do_not_mix() -> None:
    """D-10: no result passes through anything shared."""
    results = await asyncio.gather(*(shell(f"sleep 0.{n % 3}; echo {n}", "r") for n in range(9)))
    assert [r["stdout"] for r in results] == [f"{n}\n" for n in range(9)]


async def test_a_cancelled_call_ends_its_command() -> None:
    call = asyncio.create_task(shell("sleep 69.4", "r"))
    await wait_until_async(lambda: processes_of("sleep\00069.4"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert processes_of("sleep\00069.4") == []

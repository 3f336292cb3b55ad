"""What a sandbox costs, backend by backend, side by side in one run.

* command: one trivial command, from the call to its result; the backends take turns, so that noise meets all of them.
  "bare" is an asyncio subprocess of bash with nothing around it.
* start: a session with its self-test, and the self-test alone
* output: seconds, and the most memory of the process that reads it, for one command that writes 1 GiB

Run ``python benchmarks/sandbox_cost.py`` (about two minutes). A backend that does not work here is named with its
reason. Machines are noisy: trust the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from operator_core.errors import OperatorError
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.sandbox.options import Options

BACKENDS = ("none", "bubblewrap", "docker", "landlock")
SIZE = 1 << 30


def box(backend: str, folder: Path, image: str) -> Sandbox:
    """A sandbox of this backend in a new session directory."""
    workspace = folder / "workspace"
    workspace.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(dir=folder)) / "session"
    policy = Policy(workspace, limits=Limits(output_kill=2 * SIZE))
    return open_sandbox(backend, policy, session_dir=directory, options=Options(docker_image=image))


async def bare() -> None:
    """What everything is compared with."""
    process = await asyncio.create_subprocess_exec(
        "bash", "--noprofile", "--norc", "-c", "true", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    )
    await process.communicate()


async def timed(work: Callable[[], Awaitable[object]]) -> float:
    """Milliseconds."""
    started = time.perf_counter()
    await work()
    return (time.perf_counter() - started) * 1000


async def measure_commands(folder: Path, image: str, backends: list[str], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each command, by backend."""
    boxes = {name: box(name, folder, image) for name in backends}
    found: dict[str, list[float]] = {name: [] for name in ("bare", *backends)}
    try:
        for sandbox in boxes.values():
            await sandbox.start()
        for number in range(rounds + 3):
            for name in found:
                work = (lambda name=name: boxes[name].exec("true")) if name in boxes else bare
                taken = await timed(work)
                if number >= 3:
                    found[name].append(taken)
    finally:
        for sandbox in boxes.values():
            await sandbox.close()
    return found


async def measure_starts(folder: Path, image: str, backend: str, rounds: int) -> tuple[list[float], list[float]]:
    """Milliseconds of each start, and of the self-test in it."""
    starts, tests = [], []
    for _ in range(rounds):
        sandbox = box(backend, folder, image)
        try:
            starts.append(await timed(sandbox.start))
            tests.append(sandbox.report().self_test_ms)
        finally:
            await sandbox.close()
    return starts, tests


async def one_output(backend: str, folder: Path, image: str) -> None:
    """Read 1 GiB and print what that took; in a process of its own, so that its memory is that of this only."""
    sandbox = box(backend, folder, image)
    await sandbox.start()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    result = await sandbox.exec(f"head -c {SIZE} /dev/zero", timeout=300)
    taken = time.perf_counter() - started
    await sandbox.close()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(json.dumps({"seconds": taken, "most": most >> 10, "before": before >> 10, "bytes": result.stdout.total}))


async def usable(folder: Path, image: str) -> tuple[list[str], dict[str, str]]:
    """The backends that work here, and why the others do not."""
    good, bad = [], {}
    for name in BACKENDS:
        sandbox = box(name, folder, image)
        try:
            await sandbox.start()
        except OperatorError as error:
            bad[name] = str(error).splitlines()[0]
        else:
            good.append(name)
        finally:
            await sandbox.close()
    return good, bad


async def main_async(arguments: argparse.Namespace, folder: Path) -> None:
    """All measurements, as one table."""
    image = arguments.image
    backends, bad = await usable(folder, image)
    commands = await measure_commands(folder, image, backends, arguments.rounds)
    base = statistics.median(commands["bare"])
    row = "{:12}{:>12}{:>8}{:>8}{:>10}{:>11}{:>9}{:>10}"
    print(row.format("", "command ms", "p90", "ratio", "start ms", "self-test", "1 GiB s", "most MiB"))
    print(row.format("bare", f"{base:.1f}", f"{quantile(commands['bare']):.1f}", "1.0", "", "", "", ""))
    for name in backends:
        starts, tests = await measure_starts(folder, image, name, arguments.starts)
        argv = [sys.executable, __file__, "--output", name, "--folder", str(folder), "--image", image]
        done = await asyncio.to_thread(subprocess.run, argv, capture_output=True, text=True, check=True)
        output = json.loads(done.stdout)
        median = statistics.median(commands[name])
        figures = (median, quantile(commands[name]), median / base)
        rest = (f"{statistics.median(starts):.0f}", f"{statistics.median(tests):.0f}", f"{output['seconds']:.1f}")
        print(row.format(name, *(f"{figure:.1f}" for figure in figures), *rest, output["most"]))
    for name, why in bad.items():
        print(f"{name}: {why}")
    print(f"User id {os.geteuid()}, {os.cpu_count()} processors, {arguments.rounds} commands each.")


def quantile(values: list[float]) -> float:
    """The ninth decile."""
    return statistics.quantiles(values, n=10)[8]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="commands for each backend")
    parser.add_argument("--starts", type=int, default=10, help="sessions for each backend")
    parser.add_argument("--image", default="operator-agent:test", help="for docker")
    parser.add_argument("--output", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.output:
        asyncio.run(one_output(arguments.output, arguments.folder, arguments.image))
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main_async(arguments, Path(folder)))


if __name__ == "__main__":
    main()

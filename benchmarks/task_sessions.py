"""Many task sessions at once in one worker process: is the heartbeat ever late, and what does a session cost?

Each session is a whole task: the request is read, a worker makes a file, its check runs on a copy, a verifier agent
tries it, a summary is written and the result is committed. The model answers at once (it is the scripted server, in a
process of its own), so everything that is measured is the platform. The store is SQLite.

The lease is watched from outside: another process reads it from the store every 50 ms.

Run ``python benchmarks/task_sessions.py`` (about five minutes), or with ``--sessions 20 --sandbox none`` for a glance.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import platform
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

SAMPLE_S = 0.05
CHECK = "sh ./hello | grep -q hello"


def brain() -> Any:
    """The model: two turns of the worker, two of the verifier, and the words before and after."""
    from operator_core.scripted import Call, FunctionBrain, Reply, Router, Turn

    verdict = {
        "approved": True,
        "feedback": "",
        "testing_done": "ran it",
        "results": "it says hello",
        "criteria_met": ["it says hello"],
        "criteria_failed": [],
        "expert_comparison": "the same",
    }

    def shell(command: str) -> Reply:
        return Reply(calls=(Call("shell", {"command": command, "reasoning": "bench"}),))

    def reply(turn: Turn) -> Reply:
        if "submit_verdict" in turn.tools:
            return shell("sh ./hello") if turn.step == 0 else Reply(calls=(Call("submit_verdict", verdict),))
        if "report_done" in turn.tools:
            return shell("echo 'echo hello' > hello") if turn.step == 0 else Reply(text="It is made.\nSTATUS: done")
        if "task_description" in turn.system:
            parsed = {"task_description": "Make a script hello.", "success_criteria": "It says hello."}
            return Reply(text=json.dumps(parsed))
        return Reply(text="# Task Summary: hello\n\n- The script is made.")

    answers = FunctionBrain(reply)
    return Router(default=answers, summaries=answers)


# ---- the worker, in a process of its own


async def work(db: str, url: str, sandbox: str, sessions: int, lease_s: float) -> dict[str, Any]:
    """Do everything that is in the store, ``sessions`` at once; what it took."""
    from operator_core.agent_lab.engine import open_engine
    from operator_core.config import Settings
    from operator_core.db.engine import Database
    from operator_core.work.session import Conclusion
    from operator_core.work.worker import Worker

    settings = Settings.model_validate(
        {
            "model": {"engine": "scripted", "base_url": url, "summaries": "deterministic"},
            "sandbox": {"backend": sandbox},
            "worker": {"concurrency": sessions, "lease_s": lease_s},
        }
    )
    ends: dict[str, int] = {}
    lags: list[float] = []

    def ended(conclusion: Conclusion) -> None:
        ends[conclusion.reason.value] = ends.get(conclusion.reason.value, 0) + 1

    async def lag() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(0.01)
            lags.append(time.perf_counter() - before - 0.01)

    engine = open_engine(settings.model)
    async with Database.open(db) as database:
        worker = Worker(settings, database, engine, say=lambda line: None, on_conclusion=ended)
        watching = asyncio.create_task(lag())
        begun = time.perf_counter()
        await worker.run(asyncio.Event(), until_idle=True)
        wall = time.perf_counter() - begun
        watching.cancel()
    await engine.close()
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    lags.sort()
    return {
        "ends": ends,
        "wall_s": wall,
        "cpu_own_s": own.ru_utime + own.ru_stime,
        "cpu_children_s": children.ru_utime + children.ru_stime,
        "rss_mb": own.ru_maxrss / 1024,
        "lag_p99_s": lags[int(len(lags) * 0.99)] if lags else 0.0,
        "lag_max_s": lags[-1] if lags else 0.0,
    }


# ---- from outside


class Watch(NamedTuple):
    """What was seen of a worker while it ran.

    Attributes:
        longest_gap_s: Between two heartbeats, in the store's time.
        least_left_s: Of the lease.
        beats: Heartbeats that were seen.
        files: Most open files.
        threads: Most threads.
    """

    longest_gap_s: float
    least_left_s: float
    beats: int
    files: int
    threads: int


def watch(process: subprocess.Popen[str], db: Path, lease_s: float) -> Watch:
    """Look at the worker's lease and its open files until it ends."""
    leases: list[int] = []
    least, files, threads = lease_s, 0, 0
    proc = Path(f"/proc/{process.pid}")
    with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True, timeout=30)) as store:
        while process.poll() is None:
            row = store.execute("SELECT lease_until FROM workers").fetchone()
            if row is not None:
                least = min(least, row[0] / 1000 - time.time())
                if not leases or row[0] != leases[-1]:
                    leases.append(row[0])
            try:
                files = max(files, len(os.listdir(proc / "fd")))
                threads = max(threads, len(os.listdir(proc / "task")))
            except OSError:
                pass  # it ends at this very moment, or this is not Linux
            time.sleep(SAMPLE_S)
    gaps = [(b - a) / 1000 for a, b in itertools.pairwise(leases)]
    return Watch(max(gaps, default=0.0), least, len(leases), files, threads)


async def submit(db: Path, sessions: int) -> None:
    """Hand in so many tasks."""
    from operator_core.db.engine import Database
    from operator_core.db.tickets import TicketDB
    from operator_core.model.task import TaskCheck, TaskSpec

    async with Database.open(db) as database:
        for number in range(sessions):
            checks = (TaskCheck(command=CHECK),)
            await TicketDB(database).submit_task(TaskSpec(name=f"hello {number}", prompt="Make hello.", checks=checks))


def measure(sessions: int, sandbox: str, lease_s: float) -> dict[str, Any]:
    """One fresh store, server and worker; everything that was seen, as JSON."""
    from operator_core.scripted import ScriptedProcess

    with (
        tempfile.TemporaryDirectory(prefix="operator-bench-") as folder,
        ScriptedProcess(f"{__file__}:brain") as server,
    ):
        db = Path(folder) / "bench.db"
        asyncio.run(submit(db, sessions))
        arguments = [sys.executable, __file__, "--role", "worker", "--db", str(db), "--url", server.base_url]
        arguments += ["--sandbox", sandbox, "--sessions", str(sessions), "--lease", str(lease_s)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LANG": "C.UTF-8"}
        with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                seen = watch(process, db, lease_s)
                assert process.stdout is not None
                out = process.stdout.read()
            finally:
                process.kill()
        if process.returncode:
            raise SystemExit(f"The worker ended with {process.returncode}.")
        return {"sessions": sessions, "lease_s": lease_s, **json.loads(out.splitlines()[-1]), **seen._asdict()}


def table(one: dict[str, Any], many: dict[str, Any], sandbox: str) -> str:
    """The result as Markdown."""
    sessions, lease, gap = many["sessions"], many["lease_s"], many["longest_gap_s"]
    cpu = many["cpu_own_s"] + many["cpu_children_s"]
    rows = [
        ("verified", f"{many['ends'].get('verified', 0)} of {sessions}"),
        ("wall time", f"{many['wall_s']:.1f} s"),
        ("sessions a minute", f"{60 * sessions / many['wall_s']:.0f}"),
        ("longest gap between two heartbeats", f"{gap:.2f} s ({many['beats']} heartbeats seen)"),
        ("... as a part of the lease", f"{gap / lease:.2f} of {lease:g} s (1/6 is wanted, 0.8 is the end)"),
        ("least that was left of the lease", f"{many['least_left_s']:.1f} s"),
        ("the event loop late, p99 and most", f"{1000 * many['lag_p99_s']:.0f} ms, {1000 * many['lag_max_s']:.0f} ms"),
        ("CPU for each session", f"{cpu / sessions:.2f} s ({many['cpu_own_s'] / sessions:.2f} s of it the worker's)"),
        ("peak memory of the worker", f"{many['rss_mb']:.0f} MB ({one['rss_mb']:.0f} MB with one session)"),
        ("... for each session more", f"{(many['rss_mb'] - one['rss_mb']) / max(1, sessions - 1):.2f} MB"),
        ("most open files, threads", f"{many['files']}, {many['threads']}"),
    ]
    lines = [f"| {sessions} sessions at once, {sandbox} | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)]
    load = os.getloadavg()[0]
    lines += ["", f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the end, Python "]
    lines[-1] += f"{platform.python_version()}."
    return "\n".join(lines)


def chosen_sandbox(wanted: str) -> str:
    """``auto``: bubblewrap if it works here."""
    if wanted != "auto":
        return wanted
    try:
        probe = ["bwrap", "--unshare-user", "--ro-bind", "/", "/", "true"]
        works = subprocess.run(probe, capture_output=True, timeout=10, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        works = False
    return "bubblewrap" if works else "none"


def main() -> None:
    """Parse the command line and run one role."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--sandbox", choices=("auto", "bubblewrap", "none"), default="auto")
    parser.add_argument("--lease", type=float, default=30.0, help="seconds")
    parser.add_argument("--json", action="store_true", help="print the raw numbers instead of the table")
    parser.add_argument("--role", choices=("main", "worker"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--db", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "worker":
        print(json.dumps(asyncio.run(work(given.db, given.url, given.sandbox, given.sessions, given.lease))))
        return
    sandbox = chosen_sandbox(given.sandbox)
    one = measure(1, sandbox, given.lease)
    many = measure(given.sessions, sandbox, given.lease)
    print(json.dumps([one, many]) if given.json else table(one, many, sandbox))
    if many["ends"] != {"verified": given.sessions}:
        sys.exit(f"Not all of them are verified: {many['ends']}.")


if __name__ == "__main__":
    main()

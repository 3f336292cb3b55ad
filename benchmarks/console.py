"""What the console's pages wait for: each read of the API on a store as it is after years.

100,000 tickets and a session of 300,000 entries, seeded in bulk. For each read: the first time in this process, then
the median and the slowest of some more, in milliseconds; at the end the most memory of the process. A page's first byte
is one to three of these reads away.

Run ``python -m benchmarks.console`` from the repository's root (about two minutes; the store is kept with ``--store``
and used again). Machines are noisy: trust the order of magnitude.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from operator_core.api.local import LocalApi
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.model.person import Actor, Role
from tests.support.crowd import make_crowd

WANTED_MS = 150.0


async def reads(api: LocalApi) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Every read, by what a person would call it."""
    newest = (await api.tickets(limit=1)).items[0]
    session = newest.session_id or ""
    page = await api.tickets(order="attention", limit=500)
    while page.next and page.items[-1].status not in ("resolved", "canceled"):
        page = await api.tickets(order="attention", limit=500, cursor=page.next)
    deep, half = page.next, (await api.session(session)).entries // 2
    return {
        "board: counts": api.board,
        "board: newest": api.tickets,
        "board: attention": lambda: api.tickets(order="attention"),
        "board: attention, far down": lambda: api.tickets(order="attention", cursor=deep),
        "board: needs me": lambda: api.tickets(needs_me=True, order="attention"),
        "board: one state": lambda: api.tickets(status=["canceled"]),
        "search: found": lambda: api.tickets(search="disk host-5"),
        "search: nothing found": lambda: api.tickets(search="nothing like it", order="attention"),
        "search: a label": lambda: api.tickets(label={"team": "team-3"}),
        "ticket": lambda: api.ticket(newest.id),
        "sessions": api.sessions,
        "session": lambda: api.session(session),
        "entries: first": lambda: api.entries(session),
        "entries: in the middle": lambda: api.entries(session, after=half),
        "entries: of some kinds": lambda: api.entries(session, kinds=["verdict", "phase_start", "error"]),
        "entries: of a phase": lambda: api.entries(session, phase="worker_2"),
        "ticks": lambda: api.ticks(session),
        "workers": api.workers,
        "invariants": api.invariants,
        "costs by ticket": lambda: api.costs("ticket"),
        "costs by model": lambda: api.costs("model"),
        "costs by phase": lambda: api.costs("phase"),
        "costs by day": lambda: api.costs("day"),
    }


async def measure(read: Callable[[], Awaitable[Any]], times: int) -> tuple[float, float, float]:
    """Milliseconds: the first, the median and the slowest of the others."""
    taken = []
    for _ in range(times + 1):
        began = time.perf_counter()
        await read()
        taken.append((time.perf_counter() - began) * 1000)
    return taken[0], statistics.median(taken[1:]), max(taken[1:])


async def run(store: str, tickets: int, entries: int, times: int) -> dict[str, Any]:
    """Seed the store if it is new, and measure."""
    seeded = None
    if "://" in store or not Path(store).exists():
        began = time.perf_counter()
        await make_crowd(store, count=tickets, entries=entries)
        seeded = time.perf_counter() - began
    async with Database.open(store) as database:
        api = LocalApi(database, Settings(), Actor("bench", Role.VIEWER))
        found = {name: await measure(read, times) for name, read in (await reads(api)).items()}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seeded_s": seeded, "reads_ms": found, "memory_mib": memory}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="an SQLite file that is kept, or the URL of an empty PostgreSQL database")
    parser.add_argument("--tickets", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=300_000)
    parser.add_argument("--times", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="operator-console-") as folder:
        store = given.store or str(Path(folder) / "operator.db")
        found = asyncio.run(run(store, given.tickets, given.entries, given.times))
    if given.json:
        print(json.dumps(found, indent=2))
        return
    if found["seeded_s"] is not None:
        print(f"seeded in {found['seeded_s']:.0f} s")
    print(f"{'read':<28} {'first':>9} {'median':>9} {'slowest':>9}   ms")
    for name, (first, median, slowest) in found["reads_ms"].items():
        note = "  slow" if max(first, slowest) > WANTED_MS else ""
        print(f"{name:<28} {first:9.1f} {median:9.1f} {slowest:9.1f}{note}")
    print(f"most memory: {found['memory_mib']:.0f} MiB")


if __name__ == "__main__":
    main()

"""What people wait for in the console, on a store as it is after years.

100,000 tickets, a session of 300,000 entries and 50 invariants with a day of looks, seeded in bulk, behind a real
``operator serve``:

* first byte: the first answer of a server that has just started (cold; each address by a server of its own), then the
  median and the worst of some more, all addresses in turns, and the processor time of the server for one: on a busy
  machine the rest is waiting for a processor
* first paint: Chromium without a window, as the page itself reports it (``first-contentful-paint``); once by a browser
  that has nothing yet, then by one that has been there
* memory of the server, before and after

And with ``--reads`` each read of the API without a server: the first in this process, the median, the worst.

Run ``python -m benchmarks.console`` from the repository's root (about five minutes; the store is kept with ``--store``
and used again). Each run says the machine's load: on a busy one trust the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import math
import os
import platform
import resource
import shutil
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from sqlalchemy import delete, func, insert, select

from benchmarks.serving import Serving, make_token, new_store, serving
from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.db.schema import monitor_samples, monitor_spans, monitor_states
from operator_core.db.spans import WIDTH_MS
from operator_core.model.person import Actor, Role
from tests.support.crowd import make_crowd

BYTE_MS = 150.0
PAINT_MS = 1000.0

_LOOKS = 2880
"""Of each invariant: one every thirty seconds for a day."""


class Times(NamedTuple):
    """Milliseconds: the first, then the median and the worst of the others."""

    first: float
    median: float
    worst: float


def times_of(taken: list[float], first: float | None = None) -> Times:
    """Of some measurements; without a first one of its own, the first of them is it."""
    first, others = (taken[0], taken[1:] or taken) if first is None else (first, taken)
    return Times(first, statistics.median(others), max(others))


# ---- the store


async def prepare(store: str, tickets: int, entries: int, invariants: int) -> float | None:
    """Seed the store if it is new; how long that took, in seconds."""
    began = time.perf_counter()
    async with Database.open(store) as database:
        known = (await database.fetch(select(func.count()).select_from(monitor_states)))[0][0]
    if not known:
        await make_crowd(store, count=tickets, entries=entries)
    async with Database.open(store) as database:
        # Anew each time, since a day of looks is of use on that day alone.
        await _watched(database, invariants)
        if not database.sqlite:
            # As its own housekeeping does in time, which a server for tests leaves out.
            async with database._rw.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
                await connection.exec_driver_sql("VACUUM ANALYZE")
    return None if known else time.perf_counter() - began


async def _watched(database: Database, invariants: int) -> None:
    now, at = clock.now(), clock.iso()
    last = int(now.timestamp() * 1000)
    async with database.begin() as c:
        for table in (monitor_states, monitor_samples, monitor_spans):
            await c.execute(delete(table))
    for number in range(invariants):
        key = f"watched:{number}"
        light = ("red", "unknown")[number % 20] if number % 20 < 2 else "green"
        state: dict[str, Any] = {
            "violation_key": key,
            "invariant_name": f"watched-{number}",
            "light": light,
            "since": at,
        }
        state |= {"changes": "[]", "greens": 0, "last_value": "1", "updated_at": at}
        looks = [
            {"violation_key": key, "at": last - 30_000 * n, "light": light, "value": 50 + 40 * math.sin(n / 50)}
            for n in range(_LOOKS)
        ]
        async with database.begin() as c:
            await c.execute(insert(monitor_states), state)
            await c.execute(insert(monitor_samples), looks)
            await c.execute(insert(monitor_spans), _spans(looks))


def _spans(looks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that the product would have written with these looks of one key and one light."""
    spans: dict[int, dict[str, Any]] = {}
    for look in sorted(looks, key=lambda look: look["at"]):
        at, light, value = look["at"], look["light"], look["value"] if look["light"] != "unknown" else None
        begin = at // WIDTH_MS * WIDTH_MS
        fresh = {"violation_key": look["violation_key"], "at": begin, "first_at": at, "low": value, "high": value}
        span = spans.setdefault(begin, {**fresh, "greens": 0, "reds": 0, "unknowns": 0})
        span["last_at"] = at
        span[f"{light}s"] += 1
        if value is not None:
            span |= {"low": min(span["low"], value), "high": max(span["high"], value)}
    return list(spans.values())


class Places(NamedTuple):
    """Addresses, by what a person would call them."""

    pages: dict[str, str]
    reads: dict[str, str]


async def places(store: str) -> Places:
    """What is looked at in this store."""
    async with Database.open(store) as database:
        api = LocalApi(database, Settings(), Actor("bench", Role.VIEWER))
        newest = (await api.tickets(limit=1)).items[0]
        proved = (await api.tickets(status=["resolved"], limit=1)).items[0]
        session = newest.session_id or ""
        half = (await api.session(session)).entries // 2
        over = (await api.tickets(order="attention", status=["resolved"], limit=500)).next
    own = f"/sessions/{session}"
    pages = {
        "board": "/",
        "board, newest first": "/?order=newest",
        "board, far down": f"/?cursor={over}&view=resolved",
        "board, a search": "/?q=disk+host-5",
        "board, nothing found": "/?q=nothing+like+it",
        "ticket, running": f"/tickets/{newest.id}",
        "ticket, resolved": f"/tickets/{proved.id}",
        "evidence": f"/tickets/{proved.id}/evidence",
        "session, its end": own,
        "session, its middle": f"{own}?at={half}",
        "session, rows": f"{own}/rows?after={half}",
        "replay": f"{own}/replay",
        "replay, ticks": f"{own}/replay/ticks",
        "entry": f"{own}/entries/{half}",
        "audit": "/audit",
        "approvals": "/approvals",
        "monitor": "/monitor",
        "monitor, a day": "/monitor?hours=24",
        "fleet": "/fleet",
        "costs": "/costs",
        "costs by model": "/costs?by=model",
        "costs by phase, a year": "/costs?by=phase&days=365",
        "submit": "/submit",
        "settings": "/settings",
        "badges": "/badges",
        "login": "/login",
    }
    reads = {
        "board": "/board",
        "tickets": "/tickets",
        "tickets that need me": "/tickets?needs_me=true&order=attention",
        "a ticket": f"/tickets/{newest.id}",
        "sessions": "/sessions",
        "a session": own,
        "entries": f"{own}/entries?after={half}",
        "verdicts of a session": f"{own}/entries?kind=verdict",
        "ticks of a session": f"{own}/ticks",
        "workers": "/workers",
        "invariants": "/invariants",
        "costs by ticket": "/costs?by=ticket",
        "costs by model": "/costs?by=model",
        "costs by phase": "/costs?by=phase",
        "costs by day": "/costs?by=day",
        "end of the ledger": "/audit",
    }
    return Places(pages, {f"api: {name}": f"/api/v1{path}" for name, path in reads.items()})


def fragment(name: str) -> bool:
    """Whether it is a part that a script asks for: nothing to be painted by itself."""
    return name.startswith("api: ") or name in ("session, rows", "replay, ticks", "badges")


# ---- first byte


def first_byte(server: Serving, token: str, path: str) -> tuple[float, int]:
    """Milliseconds from the connection to the first byte of the answer's body, and its length."""
    connection = http.client.HTTPConnection(*server.address, timeout=60)
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json" if "/api/" in path else "text/html"}
    began = time.perf_counter()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    begin = answer.read(1)
    took = (time.perf_counter() - began) * 1000
    size = len(begin) + len(answer.read())
    connection.close()
    if answer.status != 200:
        raise SystemExit(f"{path} was answered with {answer.status}.")
    return took, size


def cold(store: str, token: str, paths: dict[str, str]) -> dict[str, float]:
    """The first answer to each, by a server that has given none."""
    found = {}
    for name, path in paths.items():
        with serving(store) as server:
            found[name] = first_byte(server, token, path)[0]
    return found


class Answers(NamedTuple):
    """What the answers to one address took, in milliseconds, and how long the last one is, in bytes."""

    byte: list[float]
    processor: list[float]
    size: int


def warm(server: Serving, token: str, paths: dict[str, str], times: int) -> dict[str, Answers]:
    """Some more answers to each, in turns."""
    found = {name: Answers([], [], first_byte(server, token, path)[1]) for name, path in paths.items()}
    for _ in range(times):
        for name, path in paths.items():
            spent = server.cpu_s()
            took, _ = first_byte(server, token, path)
            found[name].byte.append(took)
            found[name].processor.append(1000 * (server.cpu_s() - spent))
    return found


# ---- first paint


_PAINT = """() => new Promise((done, failed) => {
  const found = () => performance.getEntriesByName("first-contentful-paint")[0]?.startTime;
  const look = () => found() === undefined ? setTimeout(look, 5) : done(found());
  setTimeout(() => failed(new Error("nothing was painted")), 20000);
  look();
})"""


async def paint(server: Serving, token: str, paths: dict[str, str], times: int) -> dict[str, Times]:
    """The first paint of each page, by a browser that has nothing, then by one that has been there."""
    from playwright.async_api import async_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("There is no Chromium; install the package chromium, or leave it out with --no-paint.")
    found = {}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        signed_in = await browser.new_context(base_url=server.url)
        page = await signed_in.new_page()
        await page.goto("/login")
        await page.get_by_label("Token").fill(token)
        await page.get_by_role("button", name="Sign in").click()
        await page.wait_for_url("**/?said=signed_in")
        state = await signed_in.storage_state()
        for name, path in paths.items():
            context = await browser.new_context(base_url=server.url, storage_state=state)
            page = await context.new_page()
            taken = []
            for _ in range(times + 1):
                await page.goto(path)
                taken.append(await page.evaluate(_PAINT))
                await page.goto("about:blank")
            found[name] = times_of(taken)
            await context.close()
        await browser.close()
    return found


# ---- without a server


async def reads(store: str, times: int) -> dict[str, Times]:
    """Each read of the API in this process."""
    async with Database.open(store) as database:
        api = LocalApi(database, Settings(), Actor("bench", Role.VIEWER))
        newest = (await api.tickets(limit=1)).items[0]
        session = newest.session_id or ""
        page = await api.tickets(order="attention", limit=500)
        while page.next and page.items[-1].status not in ("resolved", "canceled"):
            page = await api.tickets(order="attention", limit=500, cursor=page.next)
        deep, half = page.next, (await api.session(session)).entries // 2
        every: dict[str, Callable[[], Awaitable[Any]]] = {
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
        found = {}
        for name, read in every.items():
            taken = []
            for _ in range(times + 1):
                began = time.perf_counter()
                await read()
                taken.append((time.perf_counter() - began) * 1000)
            found[name] = times_of(taken)
    return found


# ---- all of it, and what is said about it


def run(store: str, given: argparse.Namespace) -> dict[str, Any]:
    """Seed, measure."""
    load = [os.getloadavg()[0]]
    seeded = asyncio.run(prepare(store, given.tickets, given.entries, given.invariants))
    found: dict[str, Any] = {"seeded_s": seeded, "store": "PostgreSQL" if "://" in store else "SQLite"}
    if given.reads:
        found["reads"] = asyncio.run(reads(store, given.times))
        found["own_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return {**found, "load": [*load, os.getloadavg()[0]]}
    token, where = asyncio.run(make_token(store)), asyncio.run(places(store))
    paths = {**where.pages, **where.reads}
    first = {} if given.no_cold else cold(store, token, paths)
    load.append(os.getloadavg()[0])
    with serving(store) as server:
        before = server.rss_mib()
        taken = warm(server, token, paths, given.times)
        load.append(os.getloadavg()[0])
        shown = {name: path for name, path in where.pages.items() if not fragment(name)}
        painted = {} if given.no_paint else asyncio.run(paint(server, token, shown, given.paints))
        found |= {"started_s": server.started_s, "memory_mib": [before, server.rss_mib(), server.peak_mib()]}
    rows = {
        name: {
            "byte": times_of(answers.byte, first.get(name, answers.byte[0])),
            "processor": statistics.median(answers.processor),
            "paint": painted.get(name),
            "bytes": answers.size,
        }
        for name, answers in taken.items()
    }
    return {**found, "cold": bool(first), "rows": rows, "load": [*load, os.getloadavg()[0]]}


def misses(found: dict[str, Any]) -> list[str]:
    """What takes longer than it may, most of the time or at the first time."""
    said = []
    for name, row in found["rows"].items():
        byte, painted = row["byte"], row["paint"]
        said += [f"{name}: first byte {byte.median:.0f} ms"] if byte.median > BYTE_MS else []
        if found["cold"] and byte.first > BYTE_MS:
            said.append(f"{name}: first byte of a new server {byte.first:.0f} ms")
        if painted is not None and max(painted.first, painted.median) > PAINT_MS:
            said.append(f"{name}: first paint {max(painted.first, painted.median):.0f} ms")
    return said


def table(found: dict[str, Any]) -> str:
    """The result as Markdown; what misses its budget is bold."""

    def ms(value: float, budget: float) -> str:
        return f"**{value:.0f}**" if value > budget else f"{value:.0f}"

    heads = ["cold", "median", "worst", "CPU", "paint, new", "median", "worst", "KiB"]
    lines = [f"| {' | '.join([found['store'], *heads])} |", "|---" * (len(heads) + 1) + "|"]
    for name, row in found["rows"].items():
        cells = [ms(value, BYTE_MS) for value in row["byte"]]
        cells[0] = cells[0] if found["cold"] else ""
        cells.append(f"{row['processor']:.0f}")
        cells += [ms(value, PAINT_MS) for value in row["paint"]] if row["paint"] else [""] * 3
        lines.append(f"| {name} | {' | '.join(cells)} | {row['bytes'] / 1024:.0f} |")
    before, after, most = found["memory_mib"]
    load = " → ".join(f"{value:.1f}" for value in found["load"])
    lines += ["", f"Server: {before:.0f} MiB before, {after:.0f} after, {most:.0f} at most; started in "]
    lines[-1] += f"{found['started_s']:.1f} s. {platform.machine()}, {os.cpu_count()} cores, load {load}, Python "
    lines[-1] += f"{platform.python_version()}. Milliseconds; budgets: first byte {BYTE_MS:.0f}, paint {PAINT_MS:.0f}."
    return "\n".join(lines)


def table_of_reads(found: dict[str, Any]) -> str:
    """The same of the reads without a server."""
    lines = [f"| {found['store']} | first | median | worst |", "|---|---|---|---|"]
    for name, taken in found["reads"].items():
        lines.append(f"| {name} | {' | '.join(f'{value:.1f}' for value in taken)} |")
    load = " → ".join(f"{value:.1f}" for value in found["load"])
    return "\n".join([*lines, "", f"Milliseconds; load {load}; most memory {found['own_mib']:.0f} MiB."])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="an SQLite file that is kept, or the URL of a PostgreSQL database")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own instead of SQLite")
    parser.add_argument("--tickets", type=int, default=100_000)
    parser.add_argument("--entries", type=int, default=300_000)
    parser.add_argument("--invariants", type=int, default=50)
    parser.add_argument("--times", type=int, default=15)
    parser.add_argument("--paints", type=int, default=5)
    parser.add_argument("--no-cold", action="store_true", help="without the first answers of new servers")
    parser.add_argument("--no-paint", action="store_true", help="without a browser")
    parser.add_argument("--reads", action="store_true", help="only the reads of the API, without a server")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ExitStack() as stack:
        store = given.store or stack.enter_context(new_store(postgres=given.postgres))
        found = run(str(Path(store).absolute()) if "://" not in store else store, given)
    if found["seeded_s"] is not None:
        print(f"seeded in {found['seeded_s']:.0f} s\n", file=sys.stderr)
    if given.json:
        print(json.dumps(found, indent=2))
    elif given.reads:
        print(table_of_reads(found))
    else:
        print(table(found))
        print("\n".join(["", "Over budget:", *misses(found)] if misses(found) else ["", "All within the budgets."]))


if __name__ == "__main__":
    main()

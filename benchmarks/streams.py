"""Many live streams on one server, for as long as people leave their pages open.

500 readers follow one ``operator serve`` for ten minutes over the loopback interface: nine of ten a session each (some
of them from its first entry), the others the board. Meanwhile a writer in another process lets the sessions grow, opens
and cancels tickets. A part of the readers leaves now and then and comes back with ``Last-Event-ID``, as browsers do.

Each reader notes every number that comes: one that is missing at the end was lost, one that comes again is doubled.
Both must be 0. The latency is that from the moment before the entry is written to the store to the moment when the
reader has it. The server keeps the newest part of each session that is watched, so its memory grows until that is full;
it is bounded if the server holds no more in the last fifth of the time than in the one before, but for 2 %.

Run ``python -m benchmarks.streams`` from the repository's root (ten minutes), or with ``--seconds 30`` for a glance.
Readers, writer, server and store share the machine: latencies are those of all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from typing import Any

from sqlalchemy import select

from benchmarks.serving import Serving, make_token, new_store, serving
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.schema import agent_sessions, ledger_head
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft

_SAMPLE_S = 5.0
_BOARD_SHARE = 0.1
_LEAVING_SHARE = 0.1
_LEAVES_EVERY_S = 30.0
_LATE_S = 60.0
_STEP_MS = 1
_BOUNDED = 1.02
_STREAMS_EACH = 50
_TEXT = "The limiter lets everything through, so I look at what it counts. " * 12


# ---- the writer


class Growing:
    """Sessions that grow in a store, and a board that changes."""

    def __init__(self, database: Database, sessions: int, rate: float) -> None:
        self._database = database
        self._count = sessions
        self._rate = rate
        self._tickets = TicketDB(database)
        self._journals: list[Journal] = []
        self.sessions: list[str] = []

    async def begin(self) -> None:
        """Open the sessions, each with some entries."""
        queue, audit = WorkQueue(self._database), AuditLogDB(self._database)
        await queue.register("bench", 86_400.0, concurrency=self._count)
        for number in range(self._count):
            await self._tickets.open_ticket(f"growing-{number}", "it grows")
        claims: list[Claim] = []
        while len(claims) < self._count:
            claims += await queue.claim("bench", self._count - len(claims))
        for claim in claims:
            session = await audit.create_session(claim.ticket_id, claim=claim)
            self.sessions.append(session)
            self._journals.append(await audit.journal(session, claim))
            for _ in range(20):
                await self._journals[-1].append(_draft(0.0))

    async def grow(self, seconds: float) -> None:
        """Write for so long."""
        async with asyncio.timeout(seconds + _LATE_S):
            await asyncio.gather(*(self._one(journal, seconds) for journal in self._journals), self._board(seconds))

    async def heads(self) -> tuple[dict[str, int], int]:
        """The last number of each session, and of the ledger."""
        rows = await self._database.fetch(select(agent_sessions.c.session_id, agent_sessions.c.head_seq))
        head = (await self._database.fetch(select(ledger_head.c.seq)))[0].seq
        return {row.session_id: row.head_seq for row in rows}, head

    async def _one(self, journal: Journal, seconds: float) -> None:
        end, pause = time.monotonic() + seconds, 1 / self._rate
        await asyncio.sleep(random.random() * pause)
        while (now := time.monotonic()) < end:
            await journal.append(_draft(now))
            await asyncio.sleep(max(0.0, now + pause - time.monotonic()))

    async def _board(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            ticket = await self._tickets.open_ticket("passing", "it comes and goes")
            await self._tickets.hold_ticket(ticket.id or 0)
            await self._tickets.cancel_ticket(ticket.id or 0)
            await asyncio.sleep(2.0)


def _draft(now: float) -> Draft:
    return Draft("reasoning", f"@{now:.6f}@", _TEXT, phase="worker_1")


async def write(store: str, sessions: int, rate: float) -> None:
    """The writer's process: says its sessions, waits to be told for how long, says the last numbers."""
    async with Database.open(store) as database:
        growing = Growing(database, sessions, rate)
        await growing.begin()
        print(json.dumps({"sessions": growing.sessions, "ledger": (await growing.heads())[1]}), flush=True)
        seconds = float(await asyncio.to_thread(sys.stdin.readline))
        await growing.grow(seconds)
        heads, ledger = await growing.heads()
        print(json.dumps({"heads": heads, "ledger": ledger}), flush=True)


# ---- the readers


class Latencies:
    """A histogram in steps of a millisecond; the last step has all that took longer than a minute."""

    def __init__(self) -> None:
        self._counts = array("L", bytes(array("L").itemsize * (60_000 // _STEP_MS + 1)))
        self.count = 0
        self.most_ms = 0.0

    def add(self, seconds: float) -> None:
        """Count one."""
        ms = max(0.0, seconds * 1000)
        self._counts[min(int(ms / _STEP_MS), len(self._counts) - 1)] += 1
        self.count += 1
        self.most_ms = max(self.most_ms, ms)

    def quantile(self, share: float) -> float:
        """Milliseconds that this share did not exceed."""
        left = share * self.count
        for step, count in enumerate(self._counts):
            left -= count
            if left <= 0:
                return float((step + 1) * _STEP_MS)
        return self.most_ms


class Reader:
    """One reader: where it is, and what came.

    Attributes:
        session: Whose entries it reads; None: it reads the board.
        last: The newest number that came.
        wanted: The number at which it is done; None: that is not known yet.
    """

    def __init__(self, session: str | None, last: int, latencies: Latencies, *, leaves: bool) -> None:
        self.session = session
        self.last = last
        self.wanted: int | None = None
        self.got = 0
        self.doubled = 0
        self.missing = 0
        self.resumed = 0
        self.dropped = 0
        self.refused = 0
        self._path = "/api/v1/stream" if session is None else f"/api/v1/sessions/{session}/stream"
        self._leaves = leaves
        self._latencies = latencies

    @property
    def lost(self) -> int:
        """How many never came."""
        return self.missing + (max(0, self.wanted - self.last) if self.wanted is not None else 0)

    async def read(self, address: tuple[str, int], token: str) -> None:
        """Read until everything came that will."""
        while not self._done():
            leave_at = time.monotonic() + _LEAVES_EVERY_S * random.uniform(0.5, 1.5) if self._leaves else None
            try:
                left = await self._connection(address, token, leave_at)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                left = False
            if self._done():
                return
            if left:
                self.resumed += 1
            else:
                self.dropped += 1
                await asyncio.sleep(0.5)

    def _done(self) -> bool:
        return self.wanted is not None and self.last >= self.wanted

    async def _connection(self, address: tuple[str, int], token: str, leave_at: float | None) -> bool:
        """One connection; whether this reader ended it."""
        reader, writer = await asyncio.open_connection(*address, limit=1 << 20)
        try:
            lines = [f"GET {self._path} HTTP/1.1", f"Host: {address[0]}:{address[1]}", f"Authorization: Bearer {token}"]
            writer.write("\r\n".join([*lines, f"Last-Event-ID: {self.last}", "", ""]).encode())
            status = await reader.readuntil(b"\r\n\r\n")
            if not status.startswith(b"HTTP/1.1 200"):
                self.refused += 1
                return False
            while not self._done():
                if leave_at is not None and time.monotonic() >= leave_at:
                    return True
                line = await reader.readline()
                if not line:
                    return False
                self._line(line)
            return True
        finally:
            writer.close()

    def _line(self, line: bytes) -> None:
        if line.startswith(b"id: "):
            number = int(line[4:])
            # The first number of the board's stream is the place from which it goes on.
            if number <= self.last:
                self.doubled += number < self.last or self.session is not None
                return
            self.missing += number - self.last - 1
            self.got += 1
            self.last = number
        elif line.startswith(b"data: ") and (at := line.find(b"@")) > 0:
            written = float(line[at + 1 : line.index(b"@", at + 1)])
            if written:
                self._latencies.add(time.monotonic() - written)


async def read_all(store: str, clients: int, seconds: float, sessions: int, rate: float) -> dict[str, Any]:
    """Run the writer and the server, read, and say what came."""
    # As many people as have a token each, with some pages: one token may not have all the streams.
    tokens = [await make_token(store) for _ in range(math.ceil(clients / _STREAMS_EACH))]
    words = [sys.executable, "-m", "benchmarks.streams", "--role", "writer", "--store", store]
    words += ["--sessions", str(sessions), "--rate", str(rate)]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8"}
    writer = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, limit=1 << 24
    )
    assert writer.stdin is not None
    assert writer.stdout is not None
    try:
        begun = json.loads(await writer.stdout.readline())
        with serving(store) as server:
            before = server.rss_mib()
            latencies = Latencies()
            readers = _readers(clients, begun, latencies)
            reading = [
                asyncio.create_task(reader.read(server.address, tokens[n % len(tokens)]))
                for n, reader in enumerate(readers)
            ]
            await asyncio.sleep(2.0)
            memory: list[tuple[float, float]] = []
            watching = asyncio.create_task(_watch(server, memory))
            cpu, started = server.cpu_s(), time.monotonic()
            writer.stdin.write(f"{seconds}\n".encode())
            ended = json.loads(await writer.stdout.readline())
            for reader in readers:
                reader.wanted = ended["ledger"] if reader.session is None else ended["heads"][reader.session]
            # Those that wait for nothing more see it with their next heartbeat at the latest.
            await asyncio.wait(reading, timeout=_LATE_S)
            took, cpu = time.monotonic() - started, server.cpu_s() - cpu
            watching.cancel()
            for task in reading:
                task.cancel()
            await asyncio.gather(watching, *reading, return_exceptions=True)
            return {
                "clients": clients,
                "sessions": sessions,
                "seconds": took,
                "written": sum(ended["heads"].values()) + ended["ledger"],
                "delivered": sum(reader.got for reader in readers),
                "lost": sum(reader.lost for reader in readers),
                "doubled": sum(reader.doubled for reader in readers),
                "dropped": sum(reader.dropped for reader in readers),
                "refused": sum(reader.refused for reader in readers),
                "resumed": sum(reader.resumed for reader in readers),
                "latency_ms": [*(latencies.quantile(share) for share in (0.5, 0.95, 0.99)), latencies.most_ms],
                "rss_before_mib": before,
                "rss_mib": memory,
                "peak_mib": server.peak_mib(),
                "cpu_share": cpu / took,
            }
    finally:
        if writer.returncode is None:
            writer.kill()
        await writer.wait()


async def _watch(server: Serving, memory: list[tuple[float, float]]) -> None:
    """Note the server's memory now and then, in seconds and MiB."""
    started = time.monotonic()
    while True:
        memory.append((time.monotonic() - started, server.rss_mib()))
        await asyncio.sleep(_SAMPLE_S)


def _readers(clients: int, begun: dict[str, Any], latencies: Latencies) -> list[Reader]:
    board, leaving = round(clients * _BOARD_SHARE), round(clients * _LEAVING_SHARE)
    readers = []
    for number in range(clients):
        session = begun["sessions"][number % len(begun["sessions"])] if number >= board else None
        leaves = leaving > 0 and number % (clients // leaving) == 0
        # A session from its first entry, the board from now on.
        readers.append(Reader(session, begun["ledger"] if session is None else -1, latencies, leaves=leaves))
    return readers


# ---- what is said about it


def grown(memory: list[tuple[float, float]]) -> float:
    """How much more memory was held in the last fifth of the time than in the one before; 1.0: as much."""
    fifth = len(memory) // 5
    if not fifth:
        return 1.0
    before, last = ([mib for _, mib in part] for part in (memory[-2 * fifth : -fifth], memory[-fifth:]))
    return statistics.median(last) / statistics.median(before)


def table(found: dict[str, Any]) -> str:
    """The result as Markdown."""
    memory = found["rss_mib"]
    marks = [memory[min(len(memory) - 1, len(memory) * n // 10)] for n in range(11)]
    p50, p95, p99, most = found["latency_ms"]
    rows = [
        ("clients, sessions that grow, time", f"{found['clients']}, {found['sessions']}, {found['seconds']:.0f} s"),
        ("events written, delivered", f"{found['written']:,}, {found['delivered']:,}"),
        ("lost", f"{found['lost']}"),
        ("doubled", f"{found['doubled']}"),
        ("connections dropped, refused", f"{found['dropped']}, {found['refused']}"),
        ("left on purpose and resumed", f"{found['resumed']}"),
        ("latency p50, p95, p99, most", f"{p50:.0f}, {p95:.0f}, {p99:.0f}, {most:.0f} ms"),
        ("memory without clients", f"{found['rss_before_mib']:.0f} MiB"),
        ("... every tenth of the time", " ".join(f"{mib:.0f}" for _, mib in marks) + " MiB"),
        ("... most", f"{found['peak_mib']:.0f} MiB"),
        ("... last fifth over the one before", f"{grown(memory):.3f}"),
        ("processor of the server", f"{found['cpu_share']:.2f} of a core"),
    ]
    lines = [f"| streams, {found['store']} | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows)]
    load = " → ".join(f"{value:.1f}" for value in found["load"])
    lines += ["", f"{platform.machine()}, {os.cpu_count()} cores, load {load}, Python {platform.python_version()}."]
    return "\n".join(lines)


def wrong(found: dict[str, Any]) -> list[str]:
    """What may not be."""
    said = [f"{found[what]} events were {what}" for what in ("lost", "doubled") if found[what]]
    said += [f"{found['dropped']} connections were dropped"] if found["dropped"] else []
    if grown(found["rss_mib"]) > _BOUNDED:
        said.append("the server's memory grew to the end")
    return said


def main() -> None:
    """Parse the command line and run one role."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--sessions", type=int, default=20, help="that grow")
    parser.add_argument("--rate", type=float, default=2.0, help="entries a second, each session")
    parser.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own instead of SQLite")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--role", choices=("main", "writer"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "writer":
        asyncio.run(write(given.store, given.sessions, given.rate))
        return
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    load = os.getloadavg()[0]
    with new_store(postgres=given.postgres) as store:
        found = asyncio.run(read_all(store, given.clients, given.seconds, given.sessions, given.rate))
    found |= {"store": "PostgreSQL" if given.postgres else "SQLite", "load": [load, os.getloadavg()[0]]}
    print(json.dumps(found) if given.json else table(found))
    if said := wrong(found):
        sys.exit(f"Not as it should be: {'; '.join(said)}.")


if __name__ == "__main__":
    main()

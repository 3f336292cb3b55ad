"""What the way out of a sandbox costs, side by side in one run.

* direct: a client and a server on the loopback interface, nothing between them
* proxy: the same request through the egress proxy, which decides and forgets
* journal: the same, with each decision durable in an SQLite journal before the connection is made
* tunnel: by CONNECT

And the redaction of a stream of output, by the number of secrets that are known.

Run ``python benchmarks/egress_cost.py`` (about half a minute). Machines are noisy: trust the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.model.entry import Draft, EntryKind
from operator_core.redaction import Redactor
from operator_core.sandbox.egress import Egress, Rules
from operator_core.sandbox.options import Decision

BIG = 256 << 20


async def serve() -> None:
    """A server with as little in it as possible; prints its port and ends with its input."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = BIG if b"/big" in head.split(b"\r\n")[0] else 5
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % size)
        block = b"x" * min(size, 1 << 18)
        for _ in range(size // len(block)):
            writer.write(block)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)


async def fetch(port: int, origin: int, path: str, how: str) -> int:
    """One request; returns the bytes that came back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    host = f"127.0.0.1:{origin}"
    if how == "tunnel":
        writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await reader.readuntil(b"\r\n\r\n")
    target = path if how in ("direct", "tunnel") else f"http://{host}{path}"
    writer.write(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    total = 0
    while data := await reader.read(1 << 18):
        total += len(data)
    writer.close()
    return total


async def ways_out(requests: int, folder: Path) -> None:
    """Print the table of the first four."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--serve", stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    origin = int(await process.stdout.readline())
    async with Database.open(folder / "bench.db") as database:
        audit = AuditLogDB(database)
        journal = await audit.journal(await audit.create_session(None))

        async def note(decision: Decision) -> None:
            await journal.append(Draft(EntryKind.EGRESS, decision.why, body=decision._asdict()))

        ports = {"direct": origin}
        proxies = []
        for name, on_decision in (("proxy", None), ("journal", note), ("tunnel", None)):
            proxy = Egress(Rules.parse([f"127.0.0.1:{origin}"]), (), on_decision)
            listener = socket.create_server(("127.0.0.1", 0))
            listener.setblocking(False)
            ports[name] = listener.getsockname()[1]
            await proxy.serve(listener)
            proxies.append(proxy)
        print(f"{'':8} {'one request':>12} {'50 at once':>12} {'256 MiB':>12}")
        for name, port in ports.items():
            times = []
            for _ in range(requests):
                start = time.perf_counter()
                await fetch(port, origin, "/", name)
                times.append((time.perf_counter() - start) * 1000)
            start = time.perf_counter()
            await asyncio.gather(*(fetch(port, origin, "/", name) for _ in range(50)))
            crowd = (time.perf_counter() - start) * 1000
            start = time.perf_counter()
            assert await fetch(port, origin, "/big", name) > BIG
            speed = BIG / (time.perf_counter() - start) / 1e6
            print(f"{name:8} {statistics.median(times):9.2f} ms {crowd:9.1f} ms {speed:7.0f} MB/s")
        for proxy in proxies:
            await proxy.close()
    assert process.stdin is not None
    process.stdin.close()
    await process.wait()


def redaction() -> None:
    """Print the table of the redaction."""
    lines = b"".join(f"2026-01-28T10:30:{n % 60:02} GET /a/{n} 200 {n * 7919:x}\n".encode() for n in range(6000))
    print(f"\n{'secrets':8} {'redaction':>12}")
    for known in (0, 5, 20, 100):
        stream = Redactor(secrets.token_urlsafe(30) for _ in range(known)).filter()
        best = 0.0
        for _ in range(5):
            start = time.process_time()
            for _ in range(40):
                stream.feed(lines)
            best = max(best, 40 * len(lines) / (time.process_time() - start) / 1e6)
        print(f"{known:<8} {best:7.0f} MB/s")


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve:
        asyncio.run(serve())
        return
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(ways_out(chosen.requests, Path(folder)))
    redaction()


if __name__ == "__main__":
    main()

"""What one turn of an agent costs, side by side in one run.

Four peers do the same work: N turns, one trivial shell command in each, against the same minimal model server in its
own process. The *gap* is measured by that server: from "answer sent" to "next request arrives", which is the tool
run plus everything the peer does around it.

* bare: ``httpx2`` and a subprocess, nothing else
* sdk: the tool runner of the Anthropic SDK and the same subprocess
* product, none: the whole product (worker, journal with fsync, budget), sandbox ``none``
* product, bubblewrap: the same in the sandbox

Run ``python benchmarks/turn_overhead.py`` (about three minutes). Machines are noisy: trust the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PEERS = ("bare", "sdk", "product none", "product bubblewrap")
COMMAND = "echo hi"


# ---- the server


async def serve(turns: int, delay_s: float) -> None:
    """A model server with as little in it as possible; prints its port, then one JSON line when its input closes."""
    gaps: dict[str, list[float]] = {}
    sent: dict[str, float] = {}

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                arrived = time.perf_counter()
                length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
                body = await reader.readexactly(length)
                who = body.split(b'"user_id":', 1)[1].split(b'"')[1].decode()
                step = body.count(b'"tool_result"')
                if who in sent:
                    gaps.setdefault(who, []).append((arrived - sent[who]) * 1000)
                if delay_s:
                    await asyncio.sleep(delay_s)
                if step < turns:
                    name, arguments = "shell", {"command": COMMAND, "reasoning": "bench"}
                else:
                    name, arguments = "give_up", {"reason": "the benchmark is over"}
                use = {"type": "tool_use", "id": f"toolu_{who[-8:]}_{step:05}", "name": name, "input": arguments}
                answer = json.dumps(
                    {
                        "id": f"msg_{step}",
                        "type": "message",
                        "role": "assistant",
                        "model": "bench",
                        "content": [use],
                        "stop_reason": "tool_use",
                        "stop_sequence": None,
                        "usage": {"input_tokens": 10, "output_tokens": 10},
                    }
                ).encode()
                header = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(answer)}\r\n\r\n"
                writer.write(header.encode() + answer)
                await writer.drain()
                sent[who] = time.perf_counter()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, limit=1 << 24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()
    print(json.dumps(gaps), flush=True)


class Server:
    """The model server as a child process."""

    def __init__(self, turns: int, delay_s: float = 0.0) -> None:
        arguments = [sys.executable, __file__, "--role", "server", "--turns", str(turns), "--delay", str(delay_s)]
        self._process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.url = f"http://127.0.0.1:{int(self._process.stdout.readline())}"

    def stop(self) -> dict[str, list[float]]:
        """The gaps in ms, by conversation."""
        gaps: dict[str, list[float]] = json.loads(self._process.communicate("")[0])
        return gaps


# ---- the peers, each in a process of its own


async def run_shell(command: str) -> dict[str, Any]:
    """What every peer that is not the product does for a command."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-c",
        command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return {"stdout": out.decode(), "stderr": err.decode(), "exit_code": process.returncode, "timed_out": False}


async def bare(url: str) -> None:
    """The loop that one would write by hand."""
    import httpx2

    schema = {"type": "object", "properties": {"command": {"type": "string"}, "reasoning": {"type": "string"}}}
    tools = [{"name": "shell", "description": "Run a command.", "input_schema": schema}]
    messages: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        while True:
            body = {"model": "bench", "max_tokens": 8192, "tools": tools, "messages": messages}
            answer = (await client.post("/v1/messages", json={**body, "metadata": {"user_id": "bare"}})).json()
            messages.append({"role": "assistant", "content": answer["content"]})
            results = []
            for block in answer["content"]:
                if block["name"] != "shell":
                    return
                result = await run_shell(block["input"]["command"])
                results.append({"type": "tool_result", "tool_use_id": block["id"], "content": json.dumps(result)})
            messages.append({"role": "user", "content": results})


async def sdk(url: str) -> None:
    """The SDK's own tool loop."""
    from anthropic import AsyncAnthropic, beta_async_tool

    done = asyncio.Event()

    @beta_async_tool
    async def shell(command: str, reasoning: str) -> str:
        """Run a command."""
        return json.dumps(await run_shell(command))

    @beta_async_tool
    async def give_up(reason: str) -> str:
        """End."""
        done.set()
        return "ok"

    async with AsyncAnthropic(api_key="bench", base_url=url, max_retries=0) as client:
        runner = client.beta.messages.tool_runner(
            model="bench",
            max_tokens=8192,
            tools=[shell, give_up],
            messages=[{"role": "user", "content": "go"}],
            metadata={"user_id": "sdk"},
            thread=False,
        )
        async for _ in runner:
            await runner.generate_tool_call_response()
            if done.is_set():
                break


async def product(url: str, sandbox: str, sessions: int) -> None:
    """The product, as ``operator worker run`` starts it."""
    from operator_core.agent_lab.engine import open_engine
    from operator_core.config import Settings
    from operator_core.db.engine import Database
    from operator_core.db.tickets import TicketDB
    from operator_core.work.worker import Worker

    settings = Settings.model_validate(
        {
            "model": {"engine": "scripted", "base_url": url, "model": "bench", "summaries": "deterministic"},
            "limits": {"turns": 0, "wall_clock_s": 0, "cost_usd": 0},
            "sandbox": {"backend": sandbox},
            "worker": {"concurrency": sessions},
        }
    )
    with tempfile.TemporaryDirectory(prefix="operator-bench-") as folder:
        async with Database.open(Path(folder) / "bench.db") as database:
            for number in range(sessions):
                await TicketDB(database).open_ticket(f"bench-{number}", "go")
            engine = open_engine(settings.model)
            await Worker(settings, database, engine, say=lambda line: None).run(asyncio.Event(), until_idle=True)
            await engine.close()


def peer(name: str, url: str, sessions: int) -> None:
    """Run one peer to its end and print what it used."""
    kind, _, sandbox = name.partition(" ")
    if kind == "bare":
        asyncio.run(bare(url))
    elif kind == "sdk":
        asyncio.run(sdk(url))
    else:
        asyncio.run(product(url, sandbox, sessions))
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime
    print(json.dumps({"cpu_s": cpu, "rss_mb": own.ru_maxrss / 1024}))


def run_peer(name: str, turns: int, *, sessions: int = 1, delay_s: float = 0.0) -> tuple[dict[str, Any], list[float]]:
    """One fresh process of a peer: what it used, and its gaps in ms in the order of the turns."""
    server = Server(turns, delay_s)
    arguments = [sys.executable, __file__, "--role", "peer", "--peer", name, "--url", server.url]
    environment = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": tempfile.gettempdir(), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [*arguments, "--sessions", str(sessions)], capture_output=True, text=True, env=environment, timeout=600
    )
    gaps = server.stop()
    if done.returncode:
        sys.exit(f"The peer {name!r} failed: {done.stderr.strip().splitlines()[-1:]}")
    return json.loads(done.stdout.splitlines()[-1]), next(iter(gaps.values()))


# ---- the tables


def measure(rounds: int, turns: int, long: int, sessions: int) -> dict[str, Any]:
    """All peers, interleaved; medians over the rounds."""
    out: dict[str, Any] = {name: {"gaps": [], "cpu": []} for name in PEERS}
    for number in range(rounds):
        print(f"round {number + 1} of {rounds} …", file=sys.stderr)
        for name in PEERS:
            short, _ = run_peer(name, 10)
            used, gaps = run_peer(name, turns)
            out[name]["gaps"] += gaps[3:]
            out[name]["cpu"].append((used["cpu_s"] - short["cpu_s"]) / (turns - 10) * 1000)
    for name in PEERS:
        print(f"{long} turns: {name} …", file=sys.stderr)
        _, gaps = run_peer(name, long)
        out[name]["early"], out[name]["late"] = statistics.median(gaps[5:20]), statistics.median(gaps[-15:])
    for name in PEERS[2:]:
        print(f"{sessions} sessions: {name} …", file=sys.stderr)
        one, many = (run_peer(name, 10, sessions=k, delay_s=0.3)[0]["rss_mb"] for k in (1, sessions))
        out[name]["rss"], out[name]["per_session"] = one, (many - one) / (sessions - 1)
    return out


def table(result: dict[str, Any], turns: int, long: int, sessions: int) -> str:
    """The result as Markdown."""
    base = statistics.median(result["bare"]["gaps"])
    lines = [
        f"| peer | gap median ms | x bare | p95 ms | CPU ms/turn | gap turn ~10 → ~{long} | growth |"
        f" RSS 1 session | + per session (K={sessions}) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name in PEERS:
        r = result[name]
        gap = statistics.median(r["gaps"])
        p95 = statistics.quantiles(r["gaps"], n=20)[-1]
        memory = f"{r['rss']:.0f} MB | {r['per_session']:.2f} MB" if "rss" in r else "– | –"
        lines.append(
            f"| {name} | {gap:.2f} | {gap / base:.2f} | {p95:.2f} | {statistics.median(r['cpu']):.1f} |"
            f" {r['early']:.1f} → {r['late']:.1f} | {r['late'] / r['early']:.2f} | {memory} |"
        )
    none, boxed = (statistics.median(result[name]["gaps"]) for name in PEERS[2:])
    lines += ["", f"bubblewrap adds {boxed - none:.1f} ms per turn. {turns} turns per session; {platform.machine()}, "]
    lines[-1] += (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end, Python {platform.python_version()}."
    )
    return "\n".join(lines)


def main() -> None:
    """Parse the command line and run one role."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=50)
    parser.add_argument("--long", type=int, default=300)
    parser.add_argument("--sessions", type=int, default=16)
    parser.add_argument("--json", action="store_true", help="print the raw numbers instead of the table")
    parser.add_argument("--role", choices=("main", "server", "peer"), default="main", help=argparse.SUPPRESS)
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--url", help=argparse.SUPPRESS)
    parser.add_argument("--delay", type=float, default=0.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "server":
        asyncio.run(serve(given.turns, given.delay))
    elif given.role == "peer":
        peer(given.peer, given.url, given.sessions)
    else:
        result = measure(given.rounds, given.turns, given.long, given.sessions)
        print(json.dumps(result) if given.json else table(result, given.turns, given.long, given.sessions))


if __name__ == "__main__":
    main()

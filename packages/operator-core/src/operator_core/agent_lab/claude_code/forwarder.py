"""Runs inside the sandbox: carries the CLI's loopback connections to the proxy's socket, and its standard input.

A program of its own (``python3 -I -S forwarder.py``), with the standard library only: nothing of Operator is visible in
there. Its folder has ``launch.json`` (``argv``, ``env``, ``foreign``) and the sockets ``api`` and ``input``; it ends as
the CLI ends.

It serves connections of the CLI's own process only. What the CLI starts inherits its address and its token, and could
otherwise put words into the model's mouth; the proxy in turn serves this process only.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import struct
import sys

__all__ = ["main", "owns_connection"]

CHUNK = 1 << 16


def owns_connection(pid: int, port: int, server_port: int) -> bool:
    """Whether the client end of a connection between these two ports of 127.0.0.1 is open in that process."""
    address = struct.pack("<4B", 1, 0, 0, 127).hex().upper()
    ends = [f"{address}:{port:04X}", f"{address}:{server_port:04X}"]
    for line in pathlib.Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]:
        words = line.split()
        if words[1:3] == ends:
            name = f"socket:[{words[9]}]"
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        if os.readlink(f"/proc/{pid}/fd/{fd}") == name:
                            return True
    return False


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError, RuntimeError):
        if writer.can_write_eof():
            writer.write_eof()


async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        inner, outer = await asyncio.open_unix_connection("api")
    except OSError:
        writer.transport.abort()
        return
    up = asyncio.ensure_future(pump(reader, outer))
    try:
        # When the proxy ends its side there is nothing to wait for; a CLI that ends its own may still listen.
        await pump(inner, writer)
    finally:
        up.cancel()
        for end in (outer, writer):
            end.close()


async def main() -> int:
    workspace = os.getcwd()
    # Here, because the path of a socket may not be longer than 107 bytes.
    os.chdir(os.path.dirname(os.path.abspath(__file__)))
    launch = json.loads(pathlib.Path("launch.json").read_text("utf-8"))
    words, _ = await asyncio.open_unix_connection("input")
    allowed: list[int] = []

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if allowed and owns_connection(allowed[0], writer.get_extra_info("peername")[1], port):
            await carry(reader, writer)
        else:
            writer.transport.abort()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    port: int = server.sockets[0].getsockname()[1]
    env = {k: v for k, v in os.environ.items() if not k.startswith(tuple(launch["foreign"]))}
    # Where there is a proxy for other hosts, this name is the one that never goes through it.
    host = "localhost" if "HTTP_PROXY" in env else "127.0.0.1"
    env.update(launch["env"], ANTHROPIC_BASE_URL=f"http://{host}:{port}")
    child = await asyncio.create_subprocess_exec(*launch["argv"], env=env, cwd=workspace, stdin=asyncio.subprocess.PIPE)
    allowed.append(child.pid)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, child.send_signal, number)

    async def feed() -> None:
        assert child.stdin is not None
        await pump(words, child.stdin)
        child.stdin.close()

    feeding = asyncio.ensure_future(feed())
    code = await child.wait()
    feeding.cancel()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    # Not the way out of the interpreter: open connections must not keep it.
    status = asyncio.run(main())
    sys.stdout.flush()
    os._exit(status)

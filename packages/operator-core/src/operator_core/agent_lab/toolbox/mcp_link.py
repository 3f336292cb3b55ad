"""One connection to an MCP server: a program in a sandbox, or an address.

A program gets a connection instead of its standard input and output: it comes from inside of the sandbox to a port that
exists for that moment and says a word that only it was given. So every backend can carry it, and when this process
dies the connection ends, and with it a program that does what the protocol says.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import logging
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from operator_core import __version__
from operator_core.agent_lab.toolbox.mcp_messages import LONGEST_MESSAGE, messages
from operator_core.errors import SandboxError
from operator_core.model.mcp import McpServer
from operator_core.sandbox.protocol import Job, Sandbox
from operator_core.text import clip, printable

if TYPE_CHECKING:
    from mcp import Client
    from mcp.client._transport import TransportStreams
    from mcp.types import CallToolResult, Tool

__all__ = ["CallRefused", "Connect", "Door", "LinkLost", "McpLink", "by_address", "by_program"]

Connect = Callable[[Callable[[str], None]], "AbstractAsyncContextManager[TransportStreams]"]
"""Opens the way to a server, each time anew; what it is given is called when it has ended, with the
reason if there is one."""

_MOST_PAGES = 20
_GOODBYE_S = 2.0
_CLOSE_S = 10.0
_GREETING_S = 5.0
_LAUNCH = (
    "exec 3<>/dev/tcp/127.0.0.1/$OPERATOR_MCP_PORT && printf '%s\\n' \"$OPERATOR_MCP_WORD\" >&3 && "
    "unset OPERATOR_MCP_PORT OPERATOR_MCP_WORD && exec {} <&3 >&3 3>&-"
)


class CallRefused(Exception):
    """The server has looked at a call and does not do it."""


class LinkLost(Exception):
    """There is no connection, or it has ended; the message is a clause that says why."""


class McpLink:
    """A connection to one server.

    Args:
        connect: See :data:`Connect`.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._leave = asyncio.Event()
        self._ended = "the connection ended"
        self._keeper: asyncio.Task[None] | None = None

    async def open(self, timeout_s: float) -> None:
        """Start the server, if it is a program, and greet it.

        Raises:
            LinkLost: It is not there, or said nothing within ``timeout_s`` seconds.
        """
        _be_quiet()
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # What the SDK opens must be closed by the task that opened it, whoever is cancelled meanwhile.
        self._keeper = asyncio.create_task(self._keep(ready), name="mcp")
        try:
            async with asyncio.timeout(timeout_s):
                await asyncio.shield(ready)
        except TimeoutError:
            await self.close()
            raise LinkLost(f"it did not answer within {timeout_s:g} s") from None
        except BaseException:
            await self.close()
            raise

    async def tools(self, timeout_s: float) -> list[Tool]:
        """What the server offers now.

        Raises:
            LinkLost: The connection has ended, or the server does not say.
        """
        found: list[Tool] = []
        cursor: str | None = None
        client = self._open_client()
        try:
            async with asyncio.timeout(timeout_s):
                for _ in range(_MOST_PAGES):
                    page = await client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if not cursor:
                        break
        except TimeoutError:
            raise LinkLost(f"it did not say within {timeout_s:g} s which tools it has") from None
        except Exception as error:
            raise LinkLost(_why(error)) from None
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any], timeout_s: float) -> CallToolResult:
        """Call a tool.

        Raises:
            TimeoutError: The server has not answered; it may still be at it.
            LinkLost: The connection has ended before the answer; the message says why.
            CallRefused: The server refuses the call; the message is its own.
        """
        from mcp import MCPError
        from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult
        from mcp_types import CONNECTION_CLOSED

        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=dict(arguments)))
        session = self._open_client().session
        try:
            async with asyncio.timeout(timeout_s):
                # Not `call_tool`: that would check the result with the patterns of a schema that the server wrote.
                return await session.send_request(request, CallToolResult)
        except TimeoutError:
            raise
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or not self.alive:
                raise LinkLost(self._ended) from None
            raise CallRefused(str(error)) from None
        except Exception as error:
            raise LinkLost(_why(error)) from None

    @property
    def alive(self) -> bool:
        """Whether nothing is known to have ended it."""
        return self._client is not None and self._keeper is not None and not self._keeper.done()

    async def close(self) -> None:
        """End it, and the program with it. May be called again."""
        keeper = self._keeper
        if keeper is None or keeper.done():
            return
        if self._client is None and not self._leave.is_set():
            keeper.cancel()  # it is still being opened
        self._leave.set()
        if not (await asyncio.wait({keeper}, timeout=_CLOSE_S))[0]:
            keeper.cancel()
            await asyncio.wait({keeper}, timeout=_CLOSE_S)

    def _open_client(self) -> Client:
        if self._client is None or not self.alive:
            raise LinkLost(self._ended)
        return self._client

    def _end(self, why: str) -> None:
        self._ended = why or self._ended
        self._leave.set()

    async def _keep(self, ready: asyncio.Future[None]) -> None:
        from mcp import Client, Implementation

        try:
            about = Implementation(name="operator", version=__version__)
            async with Client(self._connect(self._end), client_info=about, cache=None) as client:
                self._client = client
                if not ready.done():
                    ready.set_result(None)
                await self._leave.wait()
        except (Exception, BaseExceptionGroup) as error:
            if not ready.done():
                ready.set_exception(LinkLost(_why(error)))
                ready.exception()  # nobody may be waiting for it any more
        finally:
            self._client = None
            if not ready.done():
                ready.set_exception(LinkLost("it was left"))
                ready.exception()


def by_program(server: McpServer, sandbox: Sandbox, env: Mapping[str, str]) -> Connect:
    """The way to a program.

    Args:
        sandbox: Where it runs; it has been started.
        env: Further variables for it.
    """

    @asynccontextmanager
    async def connect(ended: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
        word = secrets.token_hex(32)
        listener = await sandbox.listen()
        port = listener.getsockname()[1]
        door = Door(word)
        accepting = await asyncio.start_server(door.welcome, sock=listener, limit=LONGEST_MESSAGE)
        command = _LAUNCH.format(shlex.join([str(server.command), *server.args]))
        greeting = {**env, "OPERATOR_MCP_PORT": str(port), "OPERATOR_MCP_WORD": word}
        job: Job | None = None
        reason = ""

        def over(why: str) -> None:
            nonlocal reason
            reason = reason or why
            ended(why)

        try:
            job = await sandbox.spawn(command, name=f"mcp-{server.name}", env=greeting)
            reader, writer = await _first(door, job)
            accepting.close()
            async with messages(reader, writer, over) as streams:
                yield streams
        except Exception as error:
            # Whatever the SDK says about it, who has ended it knows better.
            if reason:
                raise LinkLost(reason) from error
            if job is not None and not (status := await job.wait(_GOODBYE_S)).running and status.exit_code:
                raise LinkLost(_last_words(job)) from error
            raise
        finally:
            accepting.close()
            door.close()
            # Its input has ended: so it goes by itself, or is made to.
            if job is not None and (await job.wait(_GOODBYE_S)).running:
                await job.kill()

    return connect


def by_address(server: McpServer, token: Callable[[], str | None]) -> Connect:
    """The way to an address.

    Args:
        token: Reads the bearer token, if there is one.
    """

    @asynccontextmanager
    async def connect(ended: Callable[[str], None]) -> AsyncIterator[TransportStreams]:
        import httpx2
        from mcp.client.streamable_http import streamable_http_client

        from operator_core.agent_lab.toolbox.mcp_http import Bounded

        bearer = token()
        headers = {"Authorization": f"Bearer {bearer}"} if bearer else {}
        timeout = httpx2.Timeout(server.timeout_s + _GREETING_S, connect=server.start_timeout_s)
        async with (
            httpx2.AsyncClient(transport=Bounded(LONGEST_MESSAGE), headers=headers, timeout=timeout) as http,
            streamable_http_client(str(server.url), http_client=http) as streams,
        ):
            yield streams

    return connect


class Door:
    """Waits for the one connection that knows the word; all others are dropped.

    Args:
        word: What it has to say first, on a line of its own.

    Attributes:
        came: The connection.
    """

    def __init__(self, word: str) -> None:
        self._word = word.encode()
        self.came: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

    async def welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Somebody has come."""
        said = b""
        with contextlib.suppress(TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_GREETING_S):
                said = await reader.readuntil(b"\n")
        if self.came.done() or not hmac.compare_digest(said.strip(), self._word):
            writer.transport.abort()
        else:
            self.came.set_result((reader, writer))

    def close(self) -> None:
        """Nobody is waited for any more."""
        if not self.came.cancel() and not self.came.cancelled() and self.came.exception() is None:
            self.came.result()[1].transport.abort()


async def _first(door: Door, job: Job) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The connection of the program.

    Raises:
        LinkLost: It has ended instead.
    """
    ending = asyncio.ensure_future(job.wait())
    both: set[asyncio.Future[Any]] = {door.came, ending}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if door.came.done():
            return door.came.result()
        raise LinkLost(_last_words(job))
    finally:
        ending.cancel()


def _last_words(job: Job) -> str:
    """How a program ended, and the last line that it printed."""
    status = job.status()
    lines = job.output(max(0, status.output_bytes - 500), 500).decode("utf-8", "replace").strip().splitlines()
    said = clip(printable(lines[-1]), 200) if lines else "it printed nothing"
    return f"it ended with exit code {status.exit_code}: {said}"


def _why(error: BaseException) -> str:
    """A clause about what went wrong with a connection."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, LinkLost):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        return f"the package {error.name} is not installed; `pip install 'operator-core[mcp]'`"
    said = " ".join(printable(str(error)).split()).rstrip(".")
    if isinstance(error, SandboxError):
        return said
    return clip(f"{type(error).__name__}: {said}" if said else type(error).__name__, 300)


def _be_quiet() -> None:
    """What servers do wrong is told to the agent and journaled; the SDK must not print it too."""
    for name in ("mcp", "client", "httpx2"):
        logging.getLogger(name).setLevel(logging.CRITICAL)

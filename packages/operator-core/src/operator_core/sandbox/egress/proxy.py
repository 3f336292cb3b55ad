"""The proxy: one request on each connection, decided and recorded before anything leaves.

A name is looked up once, every address it has is looked at, and the connection is made to one of these: what the
name means a moment later does not matter. Nothing is looked up for a host that no rule allows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, NamedTuple

from operator_core.sandbox.egress.addresses import why_closed
from operator_core.sandbox.egress.broker import Broker, Dressed, Unusable
from operator_core.sandbox.egress.exchange import Exchange, Streams, tunnel
from operator_core.sandbox.egress.host import Address, Host
from operator_core.sandbox.egress.message import Malformed, Request, parse_request
from operator_core.sandbox.egress.refusal import Refused, answer
from operator_core.sandbox.egress.rules import Rule, Rules
from operator_core.sandbox.options import Decision, OnEgress, Secret

__all__ = ["Bounds", "Egress", "Resolve"]

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, as text; an OSError if it has none."""

_BLOCK = 1 << 16
_RESOLVERS = 4
_LINGER_S = 2.0


class Bounds(NamedTuple):
    """How much the proxy bears.

    Attributes:
        head: Bytes of a request's or an answer's head.
        head_s: Seconds for a request's head.
        connect_s: Seconds to look a name up, and again to connect to each of its addresses.
        idle_s: Seconds without a byte in either direction.
        body: Bytes of a request's body; an answer may have a hundred times as many.
        connections: At once.
        requests: In a session; each leaves an entry in the journal.
    """

    head: int = 1 << 15
    head_s: float = 20.0
    connect_s: float = 10.0
    idle_s: float = 120.0
    body: int = 1 << 30
    connections: int = 64
    requests: int = 20_000


class _Route(NamedTuple):
    addresses: tuple[Address, ...]
    port: int
    secrets: tuple[Secret, ...] = ()


class Egress:
    """A proxy for HTTP and CONNECT that reaches what its rules allow.

    Args:
        rules: What a person allows.
        secrets: Credentials; their hosts may be asked for by ``http://`` and get them over TLS.
        on_decision: Told of each decision and waited for; if it fails, nothing leaves.
        resolve: Default: the system's resolver.
        tls: For connections with credentials; default: the system's authorities, names checked.
        closed: Says why no name may lead to an address.
        bounds: Default: those of :class:`Bounds`.

    Attributes:
        on_decision: As given; may be set later.

    Raises:
        ConfigError: A host of a credential cannot be used.
    """

    def __init__(
        self,
        rules: Rules,
        secrets: Sequence[Secret] = (),
        on_decision: OnEgress | None = None,
        resolve: Resolve | None = None,
        *,
        tls: ssl.SSLContext | None = None,
        closed: Callable[[Address], str] = why_closed,
        bounds: Bounds | None = None,
    ) -> None:
        self.rules = rules
        self.bounds = bounds or Bounds()
        self._broker = Broker(secrets)
        self.on_decision = on_decision
        self._resolve = resolve or self._look_up
        self._tls = tls
        self._why_closed = closed
        self._pool: ThreadPoolExecutor | None = None
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._requests = 0
        self._closed = False

    async def serve(self, listener: socket.socket) -> None:
        """Begin to serve a listening socket, which belongs to the proxy from here on."""
        self._servers.append(await asyncio.start_server(self._connected, sock=listener, limit=self.bounds.head))

    async def close(self) -> None:
        """End all connections. May be called again."""
        self._closed = True
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
            await asyncio.sleep(0)  # for the sockets that were aborted
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def environment(self, port: int) -> dict[str, str]:
        """What commands need to find the proxy.

        Args:
            port: Where it listens on their loopback interface.
        """
        proxy = f"http://127.0.0.1:{port}"
        # An address of the host's loopback that a person allowed must not be looked for in the sandbox.
        ours = {rule.host.name for rule in self.rules.rules if rule.explicit}
        direct = ",".join(name for name in ("localhost", "127.0.0.1", "::1") if name not in ours)
        names = {"HTTP_PROXY": proxy, "HTTPS_PROXY": proxy, "ALL_PROXY": proxy, "NO_PROXY": direct}
        return {**names, **{name.lower(): value for name, value in names.items()}}

    # ---- one connection

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        most = self.bounds.connections
        # Twice as many are at least told why they are turned away.
        if self._closed or len(self._tasks) >= 2 * most:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._serve((reader, writer), full=len(self._tasks) >= most))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: Streams, *, full: bool) -> None:
        try:
            if full:
                why = f"there are {self.bounds.connections} connections already; close some first"
                client[1].write(answer(503, why))
            else:
                await self._one(client)
            await _part(client, self.bounds.idle_s)
        except (OSError, EOFError, asyncio.LimitOverrunError, Malformed):
            pass  # it broke off in the middle, and so does what the client gets
        finally:
            client[1].transport.abort()

    async def _one(self, client: Streams) -> None:
        """Decide about one request and carry it out; as long as nothing has left, what fails is said."""
        out = client[1]
        try:
            request = await self._read(client[0])
            route = await self._decide(request)
            dressed = self._broker.dress(request.headers, route.secrets) if route.secrets else None
            server = await self._connect(request, route, dressed is not None)
        except Refused as no:
            out.write(no.answer(self.rules))
            return
        except Malformed as error:
            out.write(answer(error.status, error.why))
            return
        except Unusable as error:
            out.write(answer(502, error.why))
            return
        try:
            await self._carry(request, client, server, dressed)
        finally:
            server[1].transport.abort()

    async def _carry(self, request: Request, client: Streams, server: Streams, dressed: Dressed | None) -> None:
        exchange = Exchange(request, client, server, dressed, self.bounds.body)
        idle = self.bounds.idle_s
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(idle) as limit:

                def alive() -> None:
                    limit.reschedule(loop.time() + idle)

                if request.method == "CONNECT":
                    exchange.begun = True
                    client[1].write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    await tunnel(client, server, alive)
                else:
                    await exchange.run(alive)
        except TimeoutError:
            if exchange.begun:
                raise
            client[1].write(answer(504, f"{request.host.name} said nothing for {idle:g} s"))

    async def _read(self, reader: asyncio.StreamReader) -> Request:
        try:
            return parse_request(await self._head(reader))
        except Malformed as error:
            await self._record(Decision(False, "?", "", 0, f"The request is malformed: {error.why}."))
            raise

    async def _head(self, reader: asyncio.StreamReader) -> bytes:
        try:
            async with asyncio.timeout(self.bounds.head_s):
                return await reader.readuntil(b"\r\n\r\n")
        except TimeoutError:
            raise Malformed("its head did not come to an end in time", 408) from None
        except asyncio.LimitOverrunError:
            raise Malformed(f"its head is longer than {self.bounds.head} bytes", 431) from None
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                raise
            raise Malformed("its head has no end") from None

    # ---- the decision

    async def _decide(self, request: Request) -> _Route:
        """Where it goes; recorded before this returns.

        Raises:
            Refused: Nowhere, or nobody could write it down.
        """
        decision, route = await self._judge(request.method, request.host, request.port)
        await self._record(decision)
        if not decision.allowed:
            raise Refused(decision)
        return route

    async def _judge(self, method: str, host: Host, port: int) -> tuple[Decision, _Route]:
        here = host.at(port)
        there = port
        secrets: tuple[Secret, ...] = ()
        rule: Rule | None = None
        if method != "CONNECT":
            there = 443 if port == 80 else port
            secrets, rule = self._broker.find(host, there)
        if rule is None:
            there, rule = port, self.rules.find(host, port)
        route = _Route((), there, secrets)

        def no(why: str) -> tuple[Decision, _Route]:
            return Decision(False, method, host.name, port, why, tuple(map(str, route.addresses))), route

        if rule is None:
            if self._broker.find(host, port)[1] is not None:
                return no(
                    f"{here} is not among the hosts to which a tunnel is allowed; for its credential ask "
                    f"`http://{host.name}/...` without TLS, and the proxy adds both."
                )
            return no(f"{here} is not among the allowed hosts.")
        if method == "TRACE":
            return no("TRACE does not pass, because it shows what was added on the way.")
        try:
            route = route._replace(addresses=await self._addresses(host))
        except TimeoutError:
            return no(f"Looking up {host.name} took longer than {self.bounds.connect_s:g} s.")
        except (OSError, ValueError):
            return no(f"The name {host.name} could not be looked up.")
        why = f"The rule {rule.text} allows it."
        for address in route.addresses:
            closed = self._why_closed(address)
            if closed and rule.explicit:
                why = f"The rule {rule.text} names this very address and port, although {closed}."
            elif closed:
                return no(
                    f"{host.name} is refused: {closed}."
                    if host.address
                    else f"{host.name} leads to {address}: {closed}."
                )
        names = ", ".join(secret.name for secret in secrets)
        shown = tuple(map(str, route.addresses))
        return Decision(True, method, host.name, port, why, shown, names), route

    async def _addresses(self, host: Host) -> tuple[Address, ...]:
        if host.address is not None:
            return (host.address,)
        async with asyncio.timeout(self.bounds.connect_s):
            found = tuple(dict.fromkeys(map(ip_address, await self._resolve(host.name))))
        if not found:
            raise OSError("no address")
        return found

    async def _look_up(self, name: str) -> list[str]:
        # Threads of its own: slow names must not keep the worker's from their work.
        self._pool = self._pool or ThreadPoolExecutor(_RESOLVERS, thread_name_prefix="egress")
        found = await asyncio.get_running_loop().run_in_executor(self._pool, _getaddrinfo, name)
        return [str(entry[4][0]) for entry in found]

    async def _record(self, decision: Decision) -> None:
        """Make a decision durable.

        Raises:
            Refused: That failed, or there have been too many.
        """
        self._requests += 1
        if self._requests > self.bounds.requests:
            why = f"This session has made {self.bounds.requests} requests, which is the limit."
            raise Refused(decision._replace(allowed=False, why=why), 429)
        if self.on_decision is None:
            return
        try:
            await self.on_decision(decision)
        except Exception:
            why = "The decision could not be written to the journal, and nothing leaves unrecorded."
            raise Refused(decision._replace(allowed=False, why=why), 503) from None

    # ---- the way out

    async def _connect(self, request: Request, route: _Route, encrypted: bool) -> Streams:
        context = None
        if encrypted:
            context = self._tls = self._tls or ssl.create_default_context()
        trouble = "no answer"
        for address in route.addresses:
            try:
                async with asyncio.timeout(self.bounds.connect_s):
                    return await asyncio.open_connection(
                        str(address),
                        route.port,
                        limit=self.bounds.head,
                        ssl=context,
                        server_hostname=request.host.name if context else None,
                    )
            except TimeoutError:
                trouble = f"no answer within {self.bounds.connect_s:g} s"
            except ssl.SSLCertVerificationError as error:
                trouble = f"its certificate is not valid: {error.verify_message}"
            except ssl.SSLError as error:
                trouble = f"TLS failed: {error.reason or 'it broke off'}"
            except OSError as error:
                trouble = os.strerror(error.errno).lower() if error.errno else type(error).__name__
        raise Malformed(f"{request.host.at(route.port)} cannot be reached ({trouble})", 502)


def _getaddrinfo(name: str) -> list[Any]:
    return socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)


async def _part(client: Streams, patience: float) -> None:
    """End a connection so that the client gets all of the answer, even if it has said more than was read."""
    reader, writer = client
    writer.transport.set_write_buffer_limits(0)
    async with asyncio.timeout(patience):
        await writer.drain()
    with contextlib.suppress(TimeoutError):
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(_LINGER_S):
            while await reader.read(_BLOCK):
                pass

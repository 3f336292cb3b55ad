"""A docker socket that can do what a person has allowed, and nothing else (row A-007, defect D-22).

The socket of docker is root on the host. This proxy stands before it with a socket of its own: it reads each request
(:mod:`operator_core.safety.docker_rules`), looks up which container is meant, writes the decision down, and only then
asks the daemon with a request *of its own making*, for the container's full id. Nothing of what the caller sent is
passed on as it came, so that there is nothing to smuggle; each request has a connection to the daemon of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import h11

from operator_core import clock
from operator_core.errors import ConfigError
from operator_core.safety.docker_daemon import DaemonFailed, DaemonRequest, dial
from operator_core.safety.docker_rules import Call, Denied, Rules, mighty, read_call, shown

__all__ = ["Decision", "DockerProxy"]

_HEAD = 16384
_BODY = 65536
_CHUNK = 65536
_CONNECTIONS = 64
_EXECS = 4096
_REQUEST_S = 15.0
_IDLE_S = 300.0
_ANSWER_S = 90.0
_PASSED = (b"content-type", b"api-version", b"docker-experimental", b"ostype", b"server")

_Reader = asyncio.StreamReader
_Writer = asyncio.StreamWriter


class Decision(NamedTuple):
    """What was asked, and what became of it.

    Attributes:
        at: ISO 8601.
        allowed: Whether the daemon was asked.
        method: As the caller sent it.
        target: As the caller sent it, at most 300 characters.
        verb: What that means; empty if nobody knows.
        container: The container's name; empty if none is meant or it is not known.
        command: The words of an exec.
        reason: Why not; empty if allowed.
    """

    at: str
    allowed: bool
    method: str
    target: str
    verb: str = ""
    container: str = ""
    command: tuple[str, ...] = ()
    reason: str = ""


class DockerProxy:
    """Serves the allowed part of a docker daemon.

    Args:
        rules: What is allowed.
        daemon: The daemon's socket.
        on_decision: Told of every decision before it is carried out; if it raises, the request is refused.
    """

    def __init__(
        self, rules: Rules, daemon: Path, on_decision: Callable[[Decision], Awaitable[None]] | None = None
    ) -> None:
        self.rules = rules
        self.daemon = daemon
        self._on_decision = on_decision
        self._execs: OrderedDict[str, str] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._own_folder = ""

    async def serve(self, listener: socket.socket) -> None:
        """Answer on a listening unix socket until :meth:`close`."""
        self._own_folder = os.path.dirname(os.path.abspath(listener.getsockname()))
        self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=_CHUNK)

    async def close(self) -> None:
        """Stop, and end every connection."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def check(self) -> str:
        """Ask the daemon for its version.

        Raises:
            ConfigError: It does not answer, or may not be asked.
        """
        try:
            with contextlib.closing(await dial(self.daemon)) as upstream:
                async with asyncio.timeout(_REQUEST_S):
                    await upstream.ask("GET", "/version")
                    document = await upstream.document()
        except DaemonFailed as error:
            raise ConfigError(f"{error}.") from None
        except TimeoutError:
            raise ConfigError(f"The docker daemon at {self.daemon} does not answer; restart it.") from None
        return str(document.get("Version", "unknown"))

    def _accept(self, reader: _Reader, writer: _Writer) -> None:
        if len(self._tasks) >= _CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(self._converse(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _converse(self, reader: _Reader, writer: _Writer) -> None:
        try:
            await _Caller(self, reader, writer).converse()
        except (OSError, h11.ProtocolError, TimeoutError):
            pass  # the caller is gone, or does not speak HTTP
        finally:
            writer.close()

    async def decide(self, decision: Decision) -> None:
        """Write a decision down.

        Raises:
            Denied: It cannot be written down, so it is not carried out.
        """
        if self._on_decision is None:
            return
        try:
            await self._on_decision(decision)
        except Exception as error:
            if decision.allowed:
                raise Denied(f"the decision cannot be written down ({type(error).__name__})") from None

    async def resolve(self, call: Call) -> tuple[str, dict[str, Any]]:
        """The full id and the document of the container that a call names.

        Raises:
            Denied: It is not one that the verb is allowed for; whether it exists is not said.
            DaemonFailed: It is allowed, but the daemon has none.
        """
        assert call.reference is not None
        refused = Denied(
            f"`{call.verb}` is not allowed for the container `{call.reference}`; a person can allow it with "
            f"`operator docker-proxy --allow {call.verb}:{call.reference}`"
        )
        with contextlib.closing(await dial(self.daemon)) as upstream:
            async with asyncio.timeout(_REQUEST_S):
                status = await upstream.ask("GET", f"{call.version}/containers/{call.reference}/json")
                document = await upstream.document()
        name = str(document.get("Name") or "").removeprefix("/")
        identity = str(document.get("Id") or "")
        if status != 200 or not name or len(identity) != 64:
            if self.rules.allows(call.verb, call.reference):
                raise DaemonFailed(404 if status == 404 else 502, str(document.get("message") or "No such container"))
            raise refused
        if not self.rules.allows(call.verb, name):
            raise refused
        if call.verb == "exec" and (why := mighty(document, self._own_folder)):
            raise Denied(f"a command in `{name}` would be in no sandbox, because {why}")
        return identity, document

    def remember(self, exec_id: str, container: str) -> None:
        """An exec that was made through this proxy."""
        self._execs[exec_id] = container
        while len(self._execs) > _EXECS:
            self._execs.popitem(last=False)

    def container_of(self, exec_id: str) -> str:
        """The container of such an exec.

        Raises:
            Denied: It was not made here.
        """
        if exec_id not in self._execs:
            raise Denied("this exec was not made through this socket")
        return self._execs[exec_id]


class _Caller:
    """One connection to the proxy."""

    def __init__(self, proxy: DockerProxy, reader: _Reader, writer: _Writer) -> None:
        self.proxy = proxy
        self.reader = reader
        self.writer = writer
        self.http = h11.Connection(h11.SERVER, max_incomplete_event_size=_HEAD)
        self.streaming = False
        self.bodiless = False

    async def converse(self) -> None:
        """Answer requests until the caller leaves, or says something that is no HTTP."""
        while True:
            try:
                request = await self._next(_IDLE_S)
                if not isinstance(request, h11.Request):
                    return
                self.bodiless = request.method == b"HEAD"
                async with asyncio.timeout(_REQUEST_S):
                    body = await self._body()
            except h11.RemoteProtocolError as error:
                await self._refuse(error.error_status_hint or 400, f"This is no request that can be read ({error})")
                return
            await self._answer(request, body)
            if self.streaming or self.http.our_state is not h11.DONE or self.http.their_state is not h11.DONE:
                return
            self.http.start_next_cycle()

    async def _next(self, seconds: float) -> Any:
        async with asyncio.timeout(seconds):
            while (event := self.http.next_event()) is h11.NEED_DATA:
                data = await self.reader.read(_HEAD // 4)
                self.http.receive_data(data)
                if not data and self.http.their_state is h11.IDLE:
                    return None
        return event

    async def _body(self) -> bytes:
        body = b""
        if self.http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        while isinstance(event := await self._next(_REQUEST_S), h11.Data):
            body += event.data
            if len(body) > _BODY:
                raise h11.RemoteProtocolError("its body is too long", error_status_hint=413)
        return body

    async def _answer(self, request: h11.Request, body: bytes) -> None:
        method, target = request.method.decode("ascii"), request.target.decode("latin-1")
        call: Call | None = None
        container = ""
        decision = Decision(clock.iso(), False, method, target[:300])
        try:
            upgrade = any(name == b"upgrade" for name, _ in request.headers)
            call = read_call(method, target, body, upgrade=upgrade)
            decision = decision._replace(verb=call.verb, command=tuple(call.body.get("Cmd") or ()))
            identity: str | None = None
            document: dict[str, Any] = {}
            if call.reference is not None:
                decision = decision._replace(container=call.reference)
                identity, document = await self.proxy.resolve(call)
                container = str(document["Name"]).removeprefix("/")
            elif call.exec_id is not None:
                container = self.proxy.container_of(call.exec_id)
            decision = decision._replace(container=container)
            await self.proxy.decide(decision._replace(allowed=True))
            await self._carry_out(call, identity, document, container)
        except Denied as error:
            await self.proxy.decide(decision._replace(reason=str(error)))
            await self._refuse(403, f"The docker proxy refuses {method} {target[:200]}: {error}.")
        except (DaemonFailed, TimeoutError) as error:
            if self.http.our_state in (h11.SEND_RESPONSE, h11.IDLE):
                late = "The docker daemon does not answer"
                status, message = (error.status, str(error)) if isinstance(error, DaemonFailed) else (504, late)
                await self._refuse(status, message)

    async def _carry_out(self, call: Call, identity: str | None, document: dict[str, Any], container: str) -> None:
        if call.verb == "inspect" and not call.query:
            await self._document(200, shown(document))
            return
        with contextlib.closing(await dial(self.proxy.daemon)) as upstream:
            body = json.dumps(call.body).encode() if call.verb in ("exec", "exec-start") else b""
            stream = call.verb == "exec-start" and not call.body.get("Detach")
            # A daemon that stops a container takes as long as the caller gave it.
            async with asyncio.timeout(_ANSWER_S + abs(int(call.query.get("t", "0")))):
                status = await upstream.ask(call.method, call.target(identity), body, upgrade=stream)
            if status == 101:
                await self._become_stream(upstream)
            elif call.verb in ("inspect", "list", "exec") and status < 300:
                answer = await upstream.document()
                if call.verb == "list":
                    answer = [c for c in answer if self.proxy.rules.lists(_name(c))]
                elif call.verb == "inspect":
                    answer = shown(answer)
                else:
                    self.proxy.remember(str(answer.get("Id")), container)
                await self._document(status, answer)
            else:
                await self._relay(upstream)

    async def _relay(self, upstream: DaemonRequest) -> None:
        """Pass the answer on as it comes, as long as the caller is there."""
        assert isinstance(upstream.response, h11.Response)
        headers = [(name, value) for name, value in upstream.response.headers if name in _PASSED]
        await self._send(h11.Response(status_code=upstream.response.status_code, headers=headers))

        async def pass_on() -> None:
            async for part in upstream.data():
                await self._send(h11.Data(data=part))
            await self._send(h11.EndOfMessage())

        async def leave() -> None:
            waiting = 0
            while data := await self.reader.read(_CHUNK):
                self.http.receive_data(data)
                waiting += len(data)
                if waiting > _CHUNK:
                    return
            self.http.receive_data(b"")

        await _first(pass_on(), leave())

    async def _become_stream(self, upstream: DaemonRequest) -> None:
        """From here on bytes go both ways, between the caller and this one exec."""
        self.streaming = True
        assert upstream.response is not None
        headers = [(b"Connection", b"Upgrade"), (b"Upgrade", b"tcp")]
        headers += [(name, value) for name, value in upstream.response.headers if name == b"content-type"]
        await self._send(h11.InformationalResponse(status_code=101, headers=headers, reason=b"UPGRADED"))
        upstream.writer.write(self.http.trailing_data[0])
        self.writer.write(upstream.http.trailing_data[0])
        up = asyncio.ensure_future(_pump(self.reader, upstream.writer))
        try:
            await _pump(upstream.reader, self.writer)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)

    async def _document(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode() + b"\n"
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        await self._send(h11.Response(status_code=status, headers=headers))
        if not self.bodiless:
            await self._send(h11.Data(data=body))
        await self._send(h11.EndOfMessage())

    async def _refuse(self, status: int, message: str) -> None:
        with contextlib.suppress(h11.LocalProtocolError):
            await self._document(status, {"message": message})

    async def _send(self, event: Any) -> None:
        data = self.http.send(event)
        if data:
            self.writer.write(data)
            await self.writer.drain()


def _name(container: dict[str, Any]) -> str:
    """A container's own name; the others are names of links to it."""
    names = [str(name) for name in container.get("Names") or ()]
    return next((name[1:] for name in names if name.count("/") == 1), "")


async def _pump(reader: _Reader, writer: _Writer) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_CHUNK):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _first(*works: Any) -> None:
    """Until one of them ends; the others are stopped. Errors of the one that ended are raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    for result in results:
        if isinstance(result, Exception):
            raise result

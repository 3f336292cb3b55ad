"""Running the scripted server inside this process: in the event loop, or in a thread for synchronous callers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from starlette.types import ASGIApp

from operator_core.errors import ModelUnreachable, OperatorError
from operator_core.http_server import HttpServer
from operator_core.scripted.brain import Brain
from operator_core.scripted.log import LoggedRequest, RequestLog
from operator_core.scripted.server import BANNER, DEFAULT_MODELS, make_app

__all__ = ["QuietServer", "ScriptedServer", "ServerThread"]

_START_S = 30.0


class QuietServer(HttpServer):
    """A server whose end waits for nobody at all.

    Args:
        app: The application; it finds its connection in ``scope["state"]`` under ``TRANSPORT_KEY``.
        closing: Called when the end begins: requests are cancelled from then on, and should end quietly.
    """

    def __init__(self, app: ASGIApp, closing: Callable[[], None] = lambda: None) -> None:
        self._end = asyncio.Event()
        super().__init__(app, self._end, keep_alive_s=600, head_s=None)
        self._closing = closing
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    def stop(self) -> None:
        self._end.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._closing()
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()
        # Lost connections are reported in the next round of the loop; only then do the requests know, and end quietly.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        tasks = list(self.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self.servers:
            await server.wait_closed()
        for connection in list(self.server_state.connections):
            unset = getattr(connection, "_unset_keepalive_if_required", None)
            if unset is not None:
                unset()


class ScriptedServer:
    """The scripted model server on a free port of 127.0.0.1, as an async context manager.

    For example::

        async with ScriptedServer(brain) as server:
            client = AsyncAnthropic(base_url=server.base_url, api_key="any")

    It installs no signal handlers, and on leaving it drops open connections, so that nothing outlives the block.

    Args:
        brain: Answers the model calls; summary requests only if it is a :class:`~operator_core.scripted.Router`.
        api_key: The only key that is accepted; default: any.
        port: The port; 0 (default) takes a free one.
        log: Where requests are noted; default: a new one.
        models: The ids in the model list.
    """

    def __init__(
        self,
        brain: Brain,
        *,
        api_key: str | None = None,
        port: int = 0,
        log: RequestLog | None = None,
        models: Sequence[str] = DEFAULT_MODELS,
    ) -> None:
        self.log = RequestLog() if log is None else log
        self._app = make_app(brain, self.log, api_key=api_key, models=models)
        self._wanted_port = port
        self._port = 0
        self._server: QuietServer | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port; 0 before the start."""
        return self._port

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def banner(self) -> str:
        """One line that says what this is and where it listens."""
        return f"{BANNER} Listening on {self.base_url}"

    @property
    def requests(self) -> list[LoggedRequest]:
        """The requests so far (the last 5,000), oldest first."""
        return self.log.requests()

    def model_calls(self, model_prefix: str | None = None) -> list[LoggedRequest]:
        """The valid model calls so far, of all models or of those whose id begins so."""
        return self.log.model_calls(model_prefix)

    async def __aenter__(self) -> ScriptedServer:
        sock = _bind(self._wanted_port)
        self._port = sock.getsockname()[1]
        self._app.state.closing = False
        self._server = server = QuietServer(self._app, self._close)
        self._task = asyncio.create_task(server.serve(sockets=[sock]), name="scripted-server")
        ready = asyncio.create_task(server.ready.wait())
        try:
            await asyncio.wait({self._task, ready}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
            if not server.ready.is_set():
                self._task.cancel()
                sock.close()
        if self._task.done():
            await self._task
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None and self._task is not None:
            self._server.stop()
            await self._task
        self._server = self._task = None

    def _close(self) -> None:
        self._app.state.closing = True

    def start_in_thread(self) -> ServerThread:
        """Run it in a thread with its own event loop, for callers without one; stop it with the handle.

        Raises:
            ModelUnreachable: If it cannot start, e.g. because the port is taken.
        """
        return ServerThread(self)


class ServerThread:
    """A scripted server in a thread; also a context manager. Made by :meth:`ScriptedServer.start_in_thread`."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._failures: list[BaseException] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="scripted-server", daemon=True)
        self._thread.start()
        served = self._ready.wait(_START_S)
        if self._failures and isinstance(self._failures[0], OperatorError):
            raise self._failures[0]
        if self._failures:
            raise ModelUnreachable(f"The scripted model server cannot start: {self._failures[0]}")
        if not served:
            raise ModelUnreachable(f"The scripted model server did not start within {_START_S:g} s; start it again.")

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return self.server.base_url

    @property
    def banner(self) -> str:
        """One line that says what this is and where it listens."""
        return self.server.banner

    @property
    def requests(self) -> list[LoggedRequest]:
        """The requests so far, oldest first."""
        return self.server.requests

    def model_calls(self, model_prefix: str | None = None) -> list[LoggedRequest]:
        """The valid model calls so far, of all models or of those whose id begins so."""
        return self.server.model_calls(model_prefix)

    def stop(self) -> None:
        """Drop open connections, stop serving and wait for the thread; harmless when repeated."""
        if self._loop is not None and self._end is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended in between
                self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def __enter__(self) -> ServerThread:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as exc:
            self._failures.append(exc)
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with self.server:
            self._ready.set()
            await self._end.wait()


def _bind(port: int) -> socket.socket:
    # asyncio switches Nagle's algorithm off only where the protocol is named; with it every answer takes 40 ms longer.
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", port))
    except OSError as exc:
        sock.close()
        raise ModelUnreachable(
            f"The scripted model server cannot listen on 127.0.0.1:{port} ({exc.strerror}); choose another port."
        ) from exc
    return sock

"""The double as a server on a free port of 127.0.0.1: in a thread of this process, with its rows at hand."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, Self

from starlette.types import ASGIApp

from operator_core.errors import OperatorError
from operator_core.scripted.serve import QuietServer
from operator_dataverse.double.definitions import Table, product_tables, system_tables
from operator_dataverse.double.devcenter import DevCenter
from operator_dataverse.double.faults import Faults
from operator_dataverse.double.flow_api import FlowApi
from operator_dataverse.double.front import Front, Service
from operator_dataverse.double.history import History
from operator_dataverse.double.store import Account, ServiceClock, Store
from operator_dataverse.double.web_api import API, WebApi
from operator_dataverse.double.webhook import Webhook

__all__ = ["Double", "Rows", "Served"]

_START_S = 30.0


class Served:
    """An ASGI application in a thread, on a free port of 127.0.0.1; a context manager.

    Args:
        app: The application.
        port: The port; 0 (default) takes a free one.
    """

    def __init__(self, app: ASGIApp, port: int = 0) -> None:
        self._app = app
        self._wanted_port = port
        self._port = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: QuietServer | None = None
        self._thread: threading.Thread | None = None
        self._ready = threading.Event()
        self._failure: BaseException | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Serve until :meth:`stop`.

        Raises:
            OperatorError: The port is taken, or the server does not start.
        """
        listener = _bound(self._wanted_port)
        self._port = listener.getsockname()[1]
        self._thread = threading.Thread(target=self._run, args=[listener], name=f"serve-{self._port}", daemon=True)
        self._thread.start()
        if not self._ready.wait(_START_S) or self._failure is not None:
            raise OperatorError(f"The server on port {self._port} did not start ({self._failure}); start it again.")
        return self

    def stop(self) -> None:
        """Drop open connections and end; harmless when repeated."""
        if self._loop is not None and self._server is not None and self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the loop ended in between
                self._loop.call_soon_threadsafe(self._server.stop)
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self._serve(listener))
        except BaseException as exc:
            self._failure = exc
        finally:
            listener.close()
            self._ready.set()

    async def _serve(self, listener: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._server = QuietServer(self._app)
        serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        ready = asyncio.create_task(self._server.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        self._ready.set()
        await serving


class Rows(Mapping[str, dict[str, Any]]):
    """The rows of one table as they are now, id -> values, past the HTTP interface; changing these changes nothing.

    Args:
        store: Whose rows.
        table: Entity set.
    """

    def __init__(self, store: Store, table: str) -> None:
        self._store = store
        self.table = table

    def __getitem__(self, row_id: str) -> dict[str, Any]:
        with self._store.lock:
            if not self._store.has(self.table, row_id):
                raise KeyError(row_id)
            return dict(self._store.row(self.table, row_id).values)

    def __iter__(self) -> Iterator[str]:
        return iter([row.id for row in self._store.rows(self.table)])

    def __len__(self) -> int:
        return len(self._store.rows(self.table))

    def etag(self, row_id: str) -> str:
        """The version of a row, as clients send it."""
        return self._store.row(self.table, row_id).etag

    def where(self, **values: Any) -> list[dict[str, Any]]:
        """The rows with these values, oldest first; each with its id under its key column."""
        with self._store.lock:
            found = [dict(row.values) for row in self._store.rows(self.table)]
        return [row for row in found if all(row.get(name) == value for name, value in values.items())]


class Double(Served):
    """A Dataverse organisation on this machine, with DevCenter, Power Automate and a webhook of Teams beside it.

    It is for tests and for trying the product; no service of Microsoft is asked.

    For example::

        with Double() as double:
            row_id = double.seed("cr_shraga_tasks", cr_name="Try", cr_status=1)
            client = Dataverse(double.url, StaticToken(double.token))

    Args:
        optional_columns: The tables also have the columns that the product can use but need not have.
        tables: Other tables than the product's.
        port: The port; 0 (default) takes a free one.
        seed: Of random faults.
        token: The access token of an administrator; default: a random one.
    """

    def __init__(
        self,
        *,
        optional_columns: bool = True,
        tables: list[Table] | None = None,
        port: int = 0,
        seed: int = 0,
        token: str | None = None,
    ) -> None:
        self.clock = ServiceClock()
        self.history = History()
        self.faults = Faults(seed)
        own = product_tables(optional=optional_columns) if tables is None else tables
        self.store = Store([*system_tables(), *own], self.clock)
        self.admin = self.add_account("admin@example.com", token=token)
        self.devcenter = DevCenter(self.clock)
        self.flows = FlowApi(self.clock)
        self.webhook = Webhook()
        services: dict[str, Service] = {
            API: WebApi(self.store),
            "/devcenter": self.devcenter,
            "/flow": self.flows,
            "/teams": self.webhook,
        }
        super().__init__(Front(self.store, self.history, self.faults, services), port)

    @property
    def token(self) -> str:
        """The administrator's access token."""
        return self.admin.token

    @property
    def devcenter_url(self) -> str:
        """Where DevCenter is; its project is ``example``, with the pool ``example-pool``."""
        return f"{self.url}/devcenter"

    @property
    def flow_url(self) -> str:
        """Where the API of Power Automate is; its environment is ``Default-example``."""
        return f"{self.url}/flow"

    @property
    def webhook_url(self) -> str:
        """Where Teams takes cards."""
        return f"{self.url}/teams/{self.webhook.key}"

    @property
    def cards(self) -> list[dict[str, Any]]:
        """The cards that were posted and could be shown, in order."""
        return list(self.webhook.cards)

    @property
    def tables(self) -> Mapping[str, Rows]:
        """Entity set -> its rows."""
        return {table.entity_set: Rows(self.store, table.entity_set) for table in self.store.tables()}

    def add_account(
        self,
        email: str,
        *,
        reach: Literal["organization", "own"] = "organization",
        without: Iterable[str] = (),
        token: str | None = None,
    ) -> Account:
        """Let somebody in.

        Args:
            email: The address.
            reach: ``own``: only rows that this account made or was given, as the role of a user has it.
            without: Privileges that it lacks, such as ``prvWritecr_shraga_task``.
            token: The access token; default: a random one.
        """
        user_id = str(uuid.uuid5(uuid.NAMESPACE_URL, f"mailto:{email}"))
        return self.store.admit(Account(token or secrets.token_urlsafe(24), user_id, email, reach, frozenset(without)))

    def seed(self, table: str, *, account: Account | None = None, row_id: str | None = None, **values: Any) -> str:
        """Make a row past the HTTP interface and the faults; returns its id.

        Args:
            table: Entity set.
            account: Its owner; default: the administrator.
            row_id: Its id; default: a random one.
            values: Its columns; ``createdon`` and ``modifiedon`` (``2026-01-31T10:20:30Z``) make it old.
        """
        times: dict[str, Any] = {name: values.pop(name) for name in ("createdon", "modifiedon") if name in values}
        with self.store.lock:
            row, _ = self.store.create(table, values, account or self.admin, row_id)
            self.store.backdate(table, row.id, times)
        return row.id

    def change(self, table: str, row_id: str, *, account: Account | None = None, **values: Any) -> str:
        """Change a row past the HTTP interface, as another person or program would; returns its new ETag."""
        row, _ = self.store.update(table, row_id, values, account or self.admin, None)
        return row.etag


def _bound(port: int) -> socket.socket:
    # With its protocol named, asyncio sends small answers at once (TCP_NODELAY).
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(512)
    except OSError as exc:
        listener.close()
        raise OperatorError(f"Port {port} of 127.0.0.1 cannot be used ({exc.strerror}); name another one.") from None
    return listener

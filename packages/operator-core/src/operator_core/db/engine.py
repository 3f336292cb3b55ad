"""One database per process: connections, settings of each engine, migrations, and errors that a person can act on."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import socket
import sqlite3
from collections.abc import AsyncIterator, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Executable, create_engine, event, text
from sqlalchemy.engine import URL, Row, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool

from operator_core.db.migrations import upgrade
from operator_core.db.patience import patience
from operator_core.db.schema import SCHEMA_REVISION
from operator_core.errors import ConfigError, SchemaMismatch, StoreError, StoreFull, StoreReadOnly, StoreUnavailable
from operator_core.redaction import Redactor

__all__ = ["Database", "parse_url", "safe_url", "sqlite_reader"]

T = TypeVar("T")

_READERS = 3
_BUSY_MS = 30_000
_SHM_STEP = 64 * 1024
# A client that is stopped inside a transaction must not hold its locks for longer than this.
_PG_SETTINGS = {"idle_in_transaction_session_timeout": "10000", "lock_timeout": "30000", "application_name": "operator"}
# Asked after 10 s of silence, then every 5 s; what is sent must be acknowledged in half a minute.
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 30_000}
NOTIFY_CHANNEL = "operator_ready"
_READY = "operator_ready"
_PARAMETERS = frozenset(
    {
        "host",
        "krbsrvname",
        "passfile",
        "password",
        "port",
        "service",
        "servicefile",
        "ssl",
        "target_session_attrs",
        "user",
    }
)
# Serialisation failure, deadlock, lock time-out: nothing is wrong with the statement, only with the moment.
_TRY_AGAIN = frozenset({"40001", "40P01", "55P03"})


def parse_url(where: str | os.PathLike[str]) -> URL:
    """The SQLAlchemy URL of a path or of a database URL.

    Raises:
        ConfigError: It is neither.
    """
    given = os.fspath(where)
    if "://" not in given:
        return URL.create("sqlite+aiosqlite", database=str(Path(given).expanduser()))
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ConfigError(f"{safe_url(given)!r} is neither a file nor a database URL; check `--db`.") from None
    match url.get_backend_name():
        case "sqlite":
            return url.set(drivername="sqlite+aiosqlite")
        case "postgresql" | "postgres":
            return _for_asyncpg(url)
    raise ConfigError(f"{url.get_backend_name()} is not supported; `--db` takes an SQLite file or a postgresql:// URL.")


def _for_asyncpg(url: URL) -> URL:
    """With what libpq calls ``sslmode`` under the name that the driver has for it."""
    if unknown := sorted(set(url.query) - _PARAMETERS - {"sslmode"}):
        known = ", ".join(sorted(_PARAMETERS | {"sslmode"}))
        raise ConfigError(f"The database URL has a parameter {unknown[0]!r} that is not known; it takes {known}.")
    query = {"ssl" if name == "sslmode" else name: value for name, value in url.query.items()}
    return url.set(drivername="postgresql+asyncpg", query=query)


def safe_url(where: str | os.PathLike[str]) -> str:
    """The address without its password, for messages."""
    given = os.fspath(where)
    if "://" not in given:
        return given
    try:
        return _shown(make_url(given))
    except (ArgumentError, ValueError):
        return given.split("@")[-1].partition("?")[0]


def _shown(url: URL) -> str:
    """What of it may be shown; the drivers take passwords as parameters, too."""
    secret = [name for name in url.query if "password" in name.lower()]
    return url.difference_update_query(secret).render_as_string(hide_password=True)


class Database:
    """An open store, shared by everything in one process.

    Use :meth:`open`; it creates or upgrades the schema once. On SQLite the transactions of a process queue for one
    connection (in asyncio instead of in busy loops), single statements for another, and reads go through others that
    cannot write.

    Attributes:
        url: Where it is.
        redactor: Takes secrets out of everything that is written.
        ready: Set whenever this process makes a ticket claimable; a worker in the same process waits on it.
    """

    def __init__(self, url: URL, redactor: Redactor) -> None:
        self.url = url
        self.redactor = redactor
        self.ready = asyncio.Event()
        self._beside: set[asyncio.Task[Any]] = set()
        self.sqlite = url.get_backend_name() == "sqlite"
        if self.sqlite:
            self._rw = self._sqlite_engine(1, writes=True)
            self._ro = self._sqlite_engine(_READERS, writes=False)
            self._hot, self._urgent = _OneByOne(url), _OneByOne(url)
        else:
            try:
                self._rw = self._ro = create_async_engine(
                    url, pool_size=8, max_overflow=8, pool_pre_ping=True, connect_args={"server_settings": _PG_SETTINGS}
                )
            except ModuleNotFoundError:
                raise ConfigError("PostgreSQL needs the extra `postgres`: install `operator-core[postgres]`.") from None
            _notice_the_dead(self._rw.sync_engine)
            # Single statements commit on the server: no client can be stopped inside an open transaction.
            self._auto = self._rw.execution_options(isolation_level="AUTOCOMMIT")

    @classmethod
    @asynccontextmanager
    async def open(
        cls, where: str | os.PathLike[str], *, redactor: Redactor | None = None, create: bool = True
    ) -> AsyncIterator[Self]:
        """Open the store, creating or upgrading its schema.

        Args:
            where: Path of an SQLite file or a database URL.
            redactor: Default: one that knows the secret-looking variables of this process's environment.
            create: False: a database that does not exist yet, or that has no tables of ours, is an error (for commands
                that only read).

        Raises:
            StoreUnavailable: It cannot be reached, or is no database.
            StoreReadOnly: Its file or folder cannot be written.
            SchemaMismatch: A newer Operator wrote it, or another program did.
        """
        url = parse_url(where)
        if url.get_backend_name() == "sqlite":
            _prepare_file(url, create)
        database = cls(url, redactor or Redactor.from_environment())
        try:
            async with database._guarded():
                await database._bring_up_to_date(create)
            yield database
        finally:
            await database.close()

    def beside(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that its caller need not wait for; what is not done when the store is closed is cancelled."""
        task = asyncio.ensure_future(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def close(self) -> None:
        """Close all connections."""
        left = list(self._beside)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        if self.sqlite:
            await self._hot.close()
            await self._urgent.close()
        await self._rw.dispose()
        await self._ro.dispose()

    @property
    def name(self) -> str:
        """The address without a password; for SQLite the file's path."""
        return (self.url.database or "") if self.sqlite else _shown(self.url)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction; keep it to a few statements and await nothing else inside."""
        async with self._guarded(), self._rw.begin() as connection:
            connection.info.pop(_READY, None)
            yield connection
            ready = connection.info.pop(_READY, False)
        # Not before the commit: whoever is woken looks at once, and must find what woke it.
        if ready:
            self.ready.set()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A connection for reading; never blocks writers."""
        async with self._guarded(), self._ro.connect() as connection:
            yield connection

    async def one(self, statement: Executable, *, urgent: bool = False, **values: Any) -> Sequence[Row[Any]]:
        """Run one writing statement that commits by itself; its returned rows.

        Args:
            urgent: It does not wait in the queue of this process, where a few hundred sessions may be before it.
        """
        async with self._guarded():
            if self.sqlite:
                return await (self._urgent if urgent else self._hot).run(statement, values)
            async with self._auto.begin() as connection:
                return (await connection.execute(statement, values)).all()

    async def fetch(self, statement: Executable, **values: Any) -> Sequence[Row[Any]]:
        """Run one reading statement; its rows."""
        async with self.read() as connection:
            return (await connection.execute(statement, values)).all()

    async def notify(self, connection: AsyncConnection) -> None:
        """Say that work became claimable; all processes hear it when this transaction (:meth:`begin`) commits."""
        if not self.sqlite:
            await connection.execute(text(f"SELECT pg_notify('{NOTIFY_CHANNEL}', '')"))
        connection.info[_READY] = True

    @asynccontextmanager
    async def _guarded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(None if self.sqlite else patience()):
                yield
        except IntegrityError:
            raise
        except (DBAPIError, OSError, TimeoutError, PoolTimeout) as error:
            translated = self._translate(error)
            if translated is None:
                raise
            raise translated from error

    def _translate(self, error: BaseException) -> StoreError | None:
        """What it means for the person at the keyboard; None: a mistake of ours, which keeps its traceback."""
        detail = (str(getattr(error, "orig", None) or error).strip() or type(error).__name__).splitlines()[0]
        detail = re.sub(r"\[Errno -?\d+\] |^<class '[^>]*'>: ", "", detail)
        words = detail.lower()
        code = _sqlstate(error)
        shown = self.name
        if getattr(error, "errno", None) == errno.ENOSPC or code == "53100" or "disk is full" in words:
            return StoreFull(
                f"The disk under {shown} is full; free some space and start again, nothing stored is lost."
            )
        if code == "25006" or "readonly" in words:
            return StoreReadOnly(
                f"The database {shown} is read-only; give it write permission or choose another with --db."
            )
        if "not a database" in words or "malformed" in words:
            return StoreUnavailable(f"{shown} is not an Operator database or is damaged; choose another with --db.")
        if code == "42P01" or "no such table" in words:
            return SchemaMismatch(f"{shown} has no Operator tables; choose another with --db.")
        if isinstance(error, TimeoutError) and not str(error):
            return StoreUnavailable(f"The database {shown} does not answer; look at it, and try again.")
        if isinstance(error, (OSError, TimeoutError, PoolTimeout)) or (not self.sqlite and _connection_lost(error)):
            return StoreUnavailable(f"The database {shown} cannot be reached ({detail}); start it or check --db.")
        if self.sqlite and ("disk i/o" in words or "unable to open" in words) and self._no_space():
            return StoreFull(
                f"The disk under {shown} is full; free some space and start again, nothing stored is lost."
            )
        if code in _TRY_AGAIN or (self.sqlite and any(w in words for w in ("unable to open", "disk i/o", "locked"))):
            return StoreUnavailable(f"The database {shown} cannot be used ({detail}); check it and --db.")
        return None

    def _no_space(self) -> bool:
        """Whether SQLite's index of its write-ahead log cannot grow: a full disk that it calls an I/O error."""
        try:
            return shutil.disk_usage(Path(self.name).absolute().parent).free < _SHM_STEP
        except OSError:
            return False

    async def _bring_up_to_date(self, create: bool) -> None:
        async with self._ro.connect() as connection:
            revision = await connection.run_sync(_revision)
        if revision is None and not create:
            # An empty file must not pass for an empty journal, nor somebody else's database become ours by a look.
            raise SchemaMismatch(
                f"{self.name} has no Operator tables; check --db, or create them with `operator init`."
            )
        if revision != SCHEMA_REVISION:
            # Alembic keeps its place in globals, and another store of this process may be at it too.
            one_by_one = _UPGRADES.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            try:
                async with one_by_one, self._rw.begin() as connection:
                    await connection.run_sync(upgrade)
            except DBAPIError as error:
                if _sqlstate(error) not in _TRY_AGAIN and "is locked" not in str(error.orig):
                    raise
                raise StoreUnavailable(
                    f"The tables of {self.name} must be brought up to date, and something else holds them; end the "
                    "older processes that use it, and start again; nothing was changed."
                ) from error

    def _sqlite_engine(self, size: int, *, writes: bool) -> AsyncEngine:
        engine = create_async_engine(
            self.url, poolclass=AsyncAdaptedQueuePool, pool_size=size, max_overflow=0, pool_timeout=60
        )
        _tune(engine.sync_engine, writes=writes)
        return engine


def sqlite_reader(url: URL) -> Engine:
    """An engine for reading an SQLite file outside of asyncio, in a thread of the caller's; dispose of it."""
    engine = create_engine(url.set(drivername="sqlite"), pool_size=1, max_overflow=0)
    _tune(engine, writes=False)
    return engine


_UPGRADES: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class _OneByOne:
    """A connection to an SQLite file for single statements, with a thread of its own; both come with the first.

    The hot path of the journal: the whole transaction in one visit to a thread, instead of one visit per step.
    """

    def __init__(self, url: URL) -> None:
        self._engine = create_engine(url.set(drivername="sqlite"), pool_size=1, max_overflow=0)
        _tune(self._engine, writes=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="operator-store")

    async def run(self, statement: Executable, values: dict[str, Any]) -> Sequence[Row[Any]]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, statement, values)

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._engine.dispose)
        self._thread.shutdown()

    def _run(self, statement: Executable, values: dict[str, Any]) -> Sequence[Row[Any]]:
        with self._engine.begin() as connection:
            return connection.execute(statement, values).all()


def _tune(engine: Engine, *, writes: bool) -> None:
    """The settings of every SQLite connection of an engine."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        connection.isolation_level = None  # BEGIN is said below, so that it can be IMMEDIATE
        cursor = connection.cursor()
        pragmas = [f"busy_timeout={_BUSY_MS}", "foreign_keys=ON"]
        pragmas += ["journal_mode=WAL", "synchronous=FULL"] if writes else ["query_only=ON"]
        try:
            for pragma in pragmas:
                cursor.execute(f"PRAGMA {pragma}")
        except BaseException:
            # The pool does not know the connection yet: nobody else would close its file and end its thread.
            cursor.close()
            connection.close()
            raise
        cursor.close()

    @event.listens_for(engine, "invalidate")
    def _invalidated(connection: Any, record: Any, error: BaseException | None) -> None:
        # The statement of a cancelled caller still runs in the connection's thread. With rows that nobody reads any
        # more, SQLite would keep the closed connection and its lock on the database until they happen to be collected.
        with suppress(SQLAlchemyError, sqlite3.Error):
            connection.rollback()

    @event.listens_for(engine, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _notice_the_dead(engine: Engine) -> None:
    """A PostgreSQL server that vanished without a word is noticed in half a minute, and not after two hours."""

    @event.listens_for(engine, "connect")
    def _connected(connection: Any, record: Any) -> None:
        line = connection.driver_connection._transport.get_extra_info("socket")
        if line is None or line.family not in (socket.AF_INET, socket.AF_INET6):
            return
        line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE.items():
            with suppress(AttributeError, OSError):  # not on every system
                line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _prepare_file(url: URL, create: bool) -> None:
    path = Path(url.database or "")
    try:
        there = path.exists()
    except OSError as error:  # a folder on the way that may not even be looked into
        raise StoreUnavailable(f"The database {path} cannot be reached ({error.strerror}); check --db.") from None
    if there:
        if path.is_dir():
            raise StoreUnavailable(f"{path} is a folder; `--db` takes the path of a file.")
        if not os.access(path, os.W_OK):
            raise StoreReadOnly(
                f"The database {path} is read-only; give it write permission or choose another with --db."
            )
        return
    if not create:
        raise StoreUnavailable(f"There is no database at {path}; check --db, or create one with `operator init`.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # The journal may hold what tools printed: for the owner's eyes only.
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise StoreReadOnly(
            f"The database {path} cannot be created ({error.strerror}); choose another place with --db."
        ) from None


def _sqlstate(error: BaseException) -> str:
    """PostgreSQL's five characters for what happened; empty if it did not come from there."""
    return str(getattr(getattr(error, "orig", None) or error, "sqlstate", None) or "")


def _connection_lost(error: BaseException) -> bool:
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    code = _sqlstate(error)
    words = str(error).lower()
    return (
        code[:2] in ("08", "28", "3D")
        or code in ("57P01", "57P02", "57P03", "53300")
        or ("connection" in words and any(w in words for w in ("closed", "refused", "lost")))
        or "InterfaceError" in type(getattr(error, "orig", None) or error).__name__
    )


def _revision(connection: Any) -> str | None:
    try:
        found = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    except SQLAlchemyError as error:
        message = str(error).lower()
        if "no such table" in message or "does not exist" in message:
            connection.rollback()
            return None
        raise
    return str(found)

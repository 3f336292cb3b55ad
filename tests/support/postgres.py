"""A private PostgreSQL server for tests, which ends with the process that started it."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.waiting import free_port, wait_until

__all__ = ["PostgresCluster", "PostgresMissing"]

USER = "operator"

# Stands between us and the server: when our end of its standard input closes, however we ended, it stops the server
# and removes the files. `crash` therefore ends the keeper first.
KEEPER = """
"$0" -D "$1/data" >>"$1/log" 2>&1 &
server=$!
cat >/dev/null
kill -INT "$server"
wait "$server"
rm -rf "$1"
"""

# Safe when processes die, not when the machine does, and that no test does. `synchronous_commit` stays on: without it
# a crash of the server loses what it said was committed.
FAST = ("fsync=off", "full_page_writes=off")
SETTINGS = (
    "listen_addresses=127.0.0.1",
    "unix_socket_directories=",
    "max_connections=200",
    "shared_buffers=32MB",
    "autovacuum=off",
    "log_timezone=UTC",
    "timezone=UTC",
)


class PostgresMissing(Exception):
    """PostgreSQL cannot be started here; the text says why, as a clause."""


class PostgresCluster:
    """A server on 127.0.0.1 and a port of its own, with a password, in a temporary folder.

    Args:
        durable: Write through to the disk, as in production; for measurements (default False).

    Attributes:
        port: The TCP port, the same after a restart.
        folder: Its folder, with ``data`` and ``log``; it belongs to the user that the server runs as.

    Raises:
        PostgresMissing: There is no server program, or no user to run it as.
    """

    def __init__(self, *, durable: bool = False) -> None:
        self._programs = _find_programs()
        self._as_user = _server_user()
        self._password = secrets.token_hex(16)
        self._keeper: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        # Not pytest's folder: that is closed to the user that the server runs as.
        self.folder = Path(tempfile.mkdtemp(prefix="operator-postgres-"))
        self._pid_file = self.folder / "data" / "postmaster.pid"
        try:
            self._initialise(SETTINGS if durable else SETTINGS + FAST)
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def url(self, database: str = "postgres") -> str:
        """A SQLAlchemy URL for asyncpg."""
        return f"postgresql+asyncpg://{USER}:{self._password}@127.0.0.1:{self.port}/{database}"

    def start(self) -> None:
        """Start the server and wait until it accepts connections.

        Raises:
            AssertionError: It did not start; the text has the end of its log.
        """
        log = self.folder / "log"
        self._pid_file.unlink(missing_ok=True)
        self._keeper = subprocess.Popen(
            ["sh", "-c", KEEPER, str(self._programs / "postgres"), str(self.folder)],
            stdin=subprocess.PIPE,
            **self._child(),
        )
        try:
            wait_until(self._is_ready, timeout=60, every=0.02)
        except AssertionError:
            text = log.read_text(errors="replace")[-2000:] if log.exists() else "(no log)"
            self.stop()
            raise AssertionError(f"PostgreSQL did not start:\n{text}") from None

    def crash(self) -> None:
        """End the server as a power cut would for its clients: at once, no shutdown, connections broken.

        :meth:`start` then recovers it from its write-ahead log, on the same port.
        """
        keeper = self._keeper
        assert keeper is not None, "the server is not running"
        server = int(self._pid_file.read_text().splitlines()[0])
        keeper.kill()
        self._close(keeper)
        os.kill(server, signal.SIGQUIT)
        wait_until(lambda: not self._pid_file.exists(), timeout=30, what="the end of the PostgreSQL server")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The server says nothing in here, and breaks no connection: all of its processes are stopped."""
        server = int(self._pid_file.read_text().splitlines()[0])
        os.kill(server, signal.SIGSTOP)  # it starts no others from now on
        stopped = [server, *_children(server)]
        try:
            for process in stopped[1:]:
                _signal(process, signal.SIGSTOP)
            yield
        finally:
            for process in reversed(stopped):
                _signal(process, signal.SIGCONT)

    def stop(self) -> None:
        """End the server and remove its files; no error if that has happened."""
        if self._keeper is not None:
            self._close(self._keeper)
        shutil.rmtree(self.folder, ignore_errors=True)

    def create(self, database: str) -> str:
        """Create an empty database and return its URL."""
        self._run("createdb", *self._connection(), database)
        return self.url(database)

    def drop(self, database: str) -> None:
        """Drop a database, and with it whatever is still connected to it; no error if there is none."""
        self._run("dropdb", *self._connection(), "--force", "--if-exists", database)

    def _initialise(self, settings: tuple[str, ...]) -> None:
        secret = self.folder / "password"
        secret.write_text(self._password)
        if self._as_user:
            for path in (self.folder, secret):
                os.chown(path, self._as_user.pw_uid, self._as_user.pw_gid)
        data = self.folder / "data"
        options = ["--auth=scram-sha-256", f"--pwfile={secret}", "--encoding=UTF8", "--locale=C", "--no-sync"]
        self._run("initdb", f"--pgdata={data}", f"--username={USER}", *options)
        secret.unlink()
        lines = [f"{name} = '{value}'\n" for name, value in (line.split("=", 1) for line in settings)]
        with (data / "postgresql.conf").open("a") as file:
            file.writelines([*lines, f"port = {self.port}\n"])

    def _is_ready(self) -> bool:
        keeper = self._keeper
        if keeper is None or keeper.poll() is not None:
            return False
        with contextlib.suppress(OSError, IndexError):
            # The eighth line of the pid file is how the server itself says that it accepts connections.
            return self._pid_file.read_text().splitlines()[7].strip() == "ready"
        return False

    def _close(self, keeper: subprocess.Popen[bytes]) -> None:
        assert keeper.stdin is not None
        keeper.stdin.close()
        keeper.wait(timeout=30)
        self._keeper = None

    def _connection(self) -> list[str]:
        return ["--host=127.0.0.1", f"--port={self.port}", f"--username={USER}", "--no-password"]

    def _child(self) -> dict[str, Any]:
        child: dict[str, Any] = {
            "cwd": "/",
            "env": {"PATH": os.defpath, "LC_ALL": "C", "PGPASSWORD": self._password},
            "start_new_session": True,
        }
        if self._as_user:
            child |= {"user": self._as_user.pw_uid, "group": self._as_user.pw_gid, "extra_groups": []}
        return child

    def _run(self, program: str, *args: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *args],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            **self._child(),
        )
        assert done.returncode == 0, f"{program} failed: {done.stderr}"


def _find_programs() -> Path:
    """The folder with ``initdb`` and ``postgres``: the newest of Debian's, or that on ``PATH``."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    found = str(debian[-1]) if debian else shutil.which("initdb")
    if found is None:
        raise PostgresMissing("PostgreSQL is not installed")
    return Path(found).resolve().parent


def _children(parent: int) -> list[int]:
    found = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(process) for process in found.read_text().split()]


def _signal(process: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(process, number)


def _server_user() -> pwd.struct_passwd | None:
    """Whom to run the server as; None for the current user. PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise PostgresMissing("PostgreSQL does not run as root, and there is no user named postgres") from None

"""The watched system of the demo: a rate limiter over HTTP. A program of its own, standard library only.

    python3 service.py WORKSPACE PORT

It serves on 127.0.0.1. ``GET /check?client=NAME`` counts one request of that client and answers 200 or, when its share
of the window is used up, 429. ``GET /status`` says how it is, ``GET /healthz`` that it runs. ``WORKSPACE/config.json``
is read at the start only; counters and customers live in ``WORKSPACE/data/limiter.db`` (SQLite) and survive a restart.

It knows nothing of Operator: the demo copies it beside the workspace and runs the copy.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import stat
import sys
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

__all__ = ["Limiter", "LimiterConfig", "main"]

VERSION = "1.4.2"
CONFIG = "config.json"
DATABASE = "data/limiter.db"

SCHEMA = """
CREATE TABLE IF NOT EXISTS customers (
    name TEXT PRIMARY KEY, plan TEXT NOT NULL, credits INTEGER NOT NULL, since TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS counters (
    client TEXT PRIMARY KEY, used INTEGER NOT NULL, started_at REAL NOT NULL, expires_at REAL
);
"""


class Unusable(Exception):
    """The service cannot start; the text says why."""


@dataclass(frozen=True)
class LimiterConfig:
    """What ``config.json`` says.

    Attributes:
        limit: Requests of one client in one window.
        window_s: Length of a window, in seconds; it begins with the first request in it.
        exempt: Clients that are never refused.
        expire: Whether a counter gets an end, after which it counts from zero.
    """

    limit: int
    window_s: float
    exempt: tuple[str, ...]
    expire: bool

    @classmethod
    def read(cls, path: Path) -> LimiterConfig:
        """Read the file.

        Raises:
            Unusable: It is missing, is not JSON, or a value is missing or of the wrong kind.
        """
        try:
            data = json.loads(_read_plain(path))
            limit, window, exempt = data["limit_per_window"], data["window_s"], data["exempt"]
            expire = data["counters"]["expire"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise Unusable(f"{path.name} cannot be used ({type(error).__name__}: {error})") from None
        if type(limit) is not int or limit < 0 or type(window) not in (int, float) or window <= 0:
            raise Unusable(f"{path.name}: limit_per_window or window_s is not a usable number")
        if type(expire) is not bool or not isinstance(exempt, list):
            raise Unusable(f"{path.name}: counters.expire or exempt is of the wrong kind")
        return cls(limit, float(window), tuple(str(name) for name in exempt), expire)


class Limiter:
    """Counts requests, on disk.

    Args:
        config: The settings.
        database: The SQLite file; made if it is not there.
    """

    def __init__(self, config: LimiterConfig, database: Path) -> None:
        for path in (database.parent, database):
            # Whoever may write the workspace must not choose which file of this user is written to.
            if path.is_symlink():
                raise Unusable(f"{path.name} is a symbolic link")
        database.parent.mkdir(exist_ok=True)
        self.config = config
        self.allowed = 0
        self.refused = 0
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(database, check_same_thread=False, isolation_level=None, timeout=3.0)
            # Survives the death of the process; a power cut may cost the last requests.
            self._db.execute("PRAGMA synchronous = OFF")
            self._db.executescript(SCHEMA)
            self._db.execute("DELETE FROM counters WHERE expires_at <= ?", (time.time(),))
        except sqlite3.Error as error:
            raise Unusable(f"{database.name} cannot be used ({error})") from None

    def check(self, client: str) -> tuple[bool, int]:
        """Count one request; whether it is allowed, and how many of the window are used.

        Raises:
            sqlite3.Error: The request could not be counted.
        """
        now = time.time()
        with self._lock:
            row = self._db.execute("SELECT used, expires_at FROM counters WHERE client = ?", (client,)).fetchone()
            if row is None or (row[1] is not None and row[1] <= now):
                end = now + self.config.window_s if self.config.expire else None
                self._db.execute("REPLACE INTO counters VALUES (?, 0, ?, ?)", (client, now, end))
                used = 0
            else:
                used = int(row[0])
            allowed = used < self.config.limit or client in self.config.exempt
            if allowed:
                used += 1
                self._db.execute("UPDATE counters SET used = ? WHERE client = ?", (used, client))
                self.allowed += 1
            else:
                self.refused += 1
        return allowed, used

    def customers(self) -> int:
        """How many customers are known."""
        with self._lock:
            count: int = self._db.execute("SELECT count(*) FROM customers").fetchone()[0]
            return count

    def used_up(self) -> dict[str, float]:
        """The clients that would be refused now, and for how many seconds their window has been running."""
        now = time.time()
        with self._lock:
            rows = self._db.execute(
                "SELECT client, started_at FROM counters WHERE used >= ? AND (expires_at IS NULL OR expires_at > ?)"
                " ORDER BY client",
                (self.config.limit, now),
            ).fetchall()
        return {client: round(now - started, 1) for client, started in rows if client not in self.config.exempt}


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, limiter: Limiter) -> None:
        self.limiter = limiter
        self.started = time.time()
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is not worth a traceback."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = 30
    # Headers and body leave as two writes; without this the second one waits 40 ms for an acknowledgement.
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        try:
            match url.path:
                case "/check":
                    self._check(parse_qs(url.query).get("client", [""])[0])
                case "/status":
                    self._send(200, self._status())
                case "/healthz":
                    self._send(200, {"ok": True, "pid": os.getpid()})
                case _:
                    self._send(404, {"error": "no such page; there are /check?client=NAME, /status and /healthz"})
        except sqlite3.Error as error:
            say("ERROR", f"{url.path}: {error}")
            self._send(500, {"error": str(error)})

    def _check(self, client: str) -> None:
        limiter = self.server.limiter
        if not 0 < len(client) <= 64:
            self._send(400, {"error": "client=NAME is missing or too long"})
            return
        allowed, used = limiter.check(client)
        if not allowed:
            say("INFO", f"refused client={client} used={used} limit={limiter.config.limit}")
        self._send(200 if allowed else 429, {"allowed": allowed, "used": used, "limit": limiter.config.limit})

    def _status(self) -> dict[str, Any]:
        limiter = self.server.limiter
        return {
            "service": "ratelimiter",
            "version": VERSION,
            "started_at": self.server.started,
            "limit_per_window": limiter.config.limit,
            "window_s": limiter.config.window_s,
            "customers": limiter.customers(),
            "requests": {"allowed": limiter.allowed, "refused": limiter.refused},
            "used_up_for_s": limiter.used_up(),
        }

    def _send(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged, only refusals."""


def say(level: str, text: str) -> None:
    """One line for the log, which is standard output."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text)
    print(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.%fZ} {level} {line}", flush=True)


def _read_plain(path: Path) -> str:
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(handle, encoding="utf-8") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError("it is not a file")
        return file.read(64 * 1024)


def _die_with_parent() -> None:
    import ctypes
    import signal

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def main(argv: list[str]) -> int:
    """Serve until a signal comes; the exit code is 1 if it cannot start."""
    workspace, port = Path(argv[0]), int(argv[1])
    parent = int(os.environ.get("SUPERVISOR_PID", "0"))
    if parent:
        _die_with_parent()
        if os.getppid() != parent:
            return 1
    try:
        config = LimiterConfig.read(workspace / CONFIG)
        server = _Server(port, Limiter(config, workspace / DATABASE))
    except (Unusable, OSError) as error:
        say("ERROR", f"cannot start: {error}")
        return 1
    say("INFO", f"ratelimiter {VERSION} serves on 127.0.0.1:{port}, customers={server.limiter.customers()}")
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

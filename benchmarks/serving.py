"""``operator serve`` as people run it, in a process of its own, looked at from outside (Linux)."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from operator_core.db.engine import Database
from operator_core.db.tokens import Tokens
from operator_core.model.person import Role
from tests.support.postgres import PostgresCluster

__all__ = ["Serving", "make_token", "new_store", "serving"]

_START_S = 60.0
_PAGE = os.sysconf("SC_PAGE_SIZE")


class Serving:
    """A server that runs.

    Attributes:
        url: Its address, without a slash at the end.
        started_s: From its start until it listened, in seconds.
    """

    def __init__(self, child: subprocess.Popen[bytes], url: str, started_s: float) -> None:
        self.url = url
        self.started_s = started_s
        self._child = child

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        return host, int(port)

    def rss_mib(self) -> float:
        """Memory that it holds now."""
        pages = Path(f"/proc/{self._child.pid}/statm").read_text().split()[1]
        return int(pages) * _PAGE / 2**20

    def peak_mib(self) -> float:
        """The most memory that it held."""
        status = Path(f"/proc/{self._child.pid}/status").read_text()
        return int(re.findall(r"^VmHWM:\s+(\d+) kB$", status, re.MULTILINE)[0]) / 1024

    def cpu_s(self) -> float:
        """Processor time that its threads used; those that ended are left out."""
        spent = 0
        for thread in Path(f"/proc/{self._child.pid}/task").iterdir():
            with suppress(OSError):
                spent += int((thread / "schedstat").read_text().split()[0])
        return spent / 1e9

    def open_files(self) -> int:
        """How many it has, connections included."""
        return len(os.listdir(f"/proc/{self._child.pid}/fd"))


@contextmanager
def serving(store: str) -> Iterator[Serving]:
    """A server on that store and any free port; it is ended in good order at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="operator-bench-") as folder:
        output = Path(folder) / "output"
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": folder, "LANG": "C.UTF-8", "NO_COLOR": "1"}
        words = [sys.executable, "-m", "operator_core", "--db", store, "serve", "--port", "0"]
        began = time.perf_counter()
        with output.open("wb") as file:
            child = subprocess.Popen(
                words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
            )
        try:
            while not (found := re.search(r"Console and API at (http://\S+)", output.read_text())):
                if child.poll() is not None or time.perf_counter() - began > _START_S:
                    raise SystemExit(f"The server did not start:\n{output.read_text()}")
                time.sleep(0.005)
            yield Serving(child, found[1], time.perf_counter() - began)
        finally:
            child.send_signal(signal.SIGTERM)
            try:
                child.wait(30)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


@contextmanager
def new_store(*, postgres: bool) -> Iterator[str]:
    """A store of its own that is gone after the block: an SQLite file, or a database of a server on this machine."""
    if not postgres:
        with tempfile.TemporaryDirectory(prefix="operator-bench-") as folder:
            yield str(Path(folder) / "operator.db")
        return
    cluster = PostgresCluster(durable=True)
    try:
        cluster.start()
        yield cluster.create("bench")
    finally:
        cluster.stop()


async def make_token(store: str) -> str:
    """The text of a new token of an administrator."""
    async with Database.open(store) as database:
        name = f"bench {secrets.token_hex(4)}"
        return (await Tokens(database).create(name, Role.ADMIN, by="bench", expires_s=86_400.0)).text

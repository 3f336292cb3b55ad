"""Keeps the service of the demo running. A program of its own, standard library only.

    python3 supervisor.py SERVICE WORKSPACE PORT PARENT

It starts ``SERVICE`` (a Python file) again when that ends, and restarts it when the file ``WORKSPACE/run/restart``
appears, which it removes once the new process serves or has failed. So somebody who can only write to the workspace,
as an agent in a sandbox that cannot see this process, can restart the service and read ``run/service.log``,
``run/supervisor.log`` and ``run/service.pid``. It ends, and the service with it, when the process ``PARENT`` is gone.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import time
from types import FrameType

__all__ = ["Supervisor", "main"]

TICK_S = 0.05
START_TICKS = 100
PAUSES = (4, 10, 20, 40)
"""Ticks between two failed starts, the last for all further ones."""


class Supervisor:
    """One service and its control files.

    Everything in ``run/`` is reached through a handle of the folder and never through a link, because whoever may write
    the workspace must not choose which file of this user is written to.

    Args:
        service: The Python file.
        workspace: The folder of the service.
        port: Its port.
        parent: Process id of whoever started this.
    """

    def __init__(self, service: str, workspace: str, port: int, parent: int) -> None:
        self._command = [sys.executable, "-I", "-S", "-B", service, workspace, str(port)]
        self._workspace, self._port, self._parent = workspace, port, parent
        self._child: subprocess.Popen[bytes] | None = None
        self._failed = 0
        self._ended = False
        with contextlib.suppress(FileExistsError):
            os.mkdir(os.path.join(workspace, "run"))
        self._run = os.open(os.path.join(workspace, "run"), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Make :meth:`serve` return soon; a signal handler."""
        self._ended = True

    def serve(self) -> None:
        """Supervise until :meth:`stop` is called or the parent is gone."""
        self._say("the supervisor starts")
        self._start()
        wait = 0
        while not self._is_over():
            time.sleep(TICK_S)
            wait = max(0, wait - 1)
            if self._asked():
                self._say("a restart was asked for")
                self._end()
                self._start()
                self._answer()
                wait = 0
            elif self._child is not None and (code := self._child.poll()) is not None:
                self._say(f"the service ended with exit code {code}")
                self._child = None
                wait = PAUSES[min(self._failed, len(PAUSES) - 1)]
            elif self._child is None and wait == 0:
                self._start()
        self._end()
        self._say("the supervisor ends")

    def _is_over(self) -> bool:
        return self._ended or os.getppid() != self._parent

    def _start(self) -> None:
        log = self._open("service.log")
        self._child = subprocess.Popen(
            self._command,
            cwd=self._workspace,
            env={"SUPERVISOR_PID": str(os.getpid()), "PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if log is None else log,
            stderr=subprocess.STDOUT,
        )
        if log is not None:
            os.close(log)
        self._write("service.pid.new", f"{self._child.pid}\n")
        with contextlib.suppress(OSError):
            # Whoever reads it sees a whole number.
            os.rename("service.pid.new", "service.pid", src_dir_fd=self._run, dst_dir_fd=self._run)
        for _ in range(START_TICKS):
            if self._child.poll() is not None or self._serves(self._child.pid) or self._is_over():
                break
            time.sleep(TICK_S / 2)
        if self._child.poll() is None:
            self._failed = 0
            self._say(f"the service runs as process {self._child.pid}")
        else:
            self._failed += 1
            self._say(f"the service did not start (exit code {self._child.returncode}); see service.log")
            self._child = None

    def _serves(self, pid: int) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=1)
        try:
            connection.request("GET", "/healthz")
            # Another process may have the port already.
            return bool(json.loads(connection.getresponse().read())["pid"] == pid)
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return False
        finally:
            connection.close()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(3)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _asked(self) -> bool:
        try:
            return stat.S_ISREG(os.stat("restart", dir_fd=self._run, follow_symlinks=False).st_mode)
        except OSError:
            return False

    def _answer(self) -> None:
        with contextlib.suppress(OSError):
            os.unlink("restart", dir_fd=self._run)

    def _say(self, text: str) -> None:
        self._write("supervisor.log", f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}\n", append=True)

    def _write(self, name: str, text: str, *, append: bool = False) -> None:
        handle = self._open(name, os.O_APPEND if append else os.O_TRUNC)
        if handle is not None:
            with contextlib.suppress(OSError), open(handle, "w", encoding="utf-8") as file:
                file.write(text)

    def _open(self, name: str, how: int = os.O_APPEND) -> int | None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | how
        try:
            handle = os.open(name, flags, 0o644, dir_fd=self._run)
        except OSError:
            return None
        if stat.S_ISREG(os.fstat(handle).st_mode):
            return handle
        os.close(handle)
        return None


def main(argv: list[str]) -> int:
    """Supervise until the parent is gone or SIGTERM or SIGINT comes."""
    service, workspace, port, parent = argv
    supervisor = Supervisor(service, workspace, int(port), int(parent))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, supervisor.stop)
    supervisor.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

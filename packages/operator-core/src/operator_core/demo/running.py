"""Running the service of the demo, and breaking it."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
from types import TracebackType

from operator_core.clock import monotonic
from operator_core.demo.files import CANARY, CUSTOMERS, LIMIT, WINDOW_S, DemoFiles
from operator_core.errors import OperatorError

__all__ = ["RunningService", "break_service", "restart_service"]

START_S = 15.0


class RunningService:
    """The service under its supervisor, both processes of their own; a context manager.

    They end by themselves within a fifth of a second when this process is gone, however it ended.

    Args:
        demo: What :func:`operator_core.demo.files.write_demo` wrote.

    Raises:
        OperatorError: It does not serve in time; the message has the last line of its log. Nothing is left running.
    """

    def __init__(self, demo: DemoFiles) -> None:
        self._demo = demo
        program = [sys.executable, "-I", "-S", "-B", str(demo.service / "supervisor.py")]
        words = [str(demo.service / "service.py"), str(demo.workspace), str(demo.port), str(os.getpid())]
        self._process = subprocess.Popen(
            program + words,
            cwd=demo.root,
            env={"PATH": os.defpath},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Ctrl-C at the terminal is for the demo, which then ends these in order.
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    @property
    def pid(self) -> int:
        """Process id of the supervisor."""
        return self._process.pid

    def stop(self) -> None:
        """End both processes and wait for it; harmless when repeated."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> RunningService:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _wait(self) -> None:
        deadline = monotonic() + START_S
        while not _serves(self._demo):
            if self._process.poll() is not None or monotonic() > deadline:
                log = self._demo.workspace / "run" / "service.log"
                lines = log.read_text("utf-8", "replace").splitlines() if log.is_file() else []
                last = lines[-1] if lines else "it wrote nothing"
                raise OperatorError(f"The service of the demo did not start ({last}); try another port.")
            time.sleep(0.01)


def restart_service(demo: DemoFiles) -> None:
    """Restart it as an operator does, through the control file; returns when it serves again.

    Raises:
        OperatorError: The supervisor did not answer in time.
    """
    control = demo.workspace / "run" / "restart"
    control.touch()
    deadline = monotonic() + START_S
    while control.exists():
        if monotonic() > deadline:
            raise OperatorError("The supervisor of the demo's service does not answer; start the demo again.")
        time.sleep(0.01)


def break_service(demo: DemoFiles) -> None:
    """Break the running service for real: a changed setting, a restart, and ordinary traffic.

    The cause: counters do not end any more, so a client that has used up its limit once is refused for ever. What shows
    is only that the canary and two customers get 429. Takes about two seconds and blocks; call it in a thread.

    Raises:
        OperatorError: The service does not run.
    """
    path = demo.workspace / "config.json"
    config = json.loads(path.read_text("utf-8"))
    config["counters"]["expire"] = False
    new = path.with_name("config.json.new")
    new.write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    new.replace(path)
    restart_service(demo)
    # Counters from before the restart still end; only then does every new one stay.
    time.sleep(1.1 * WINDOW_S)
    _traffic(demo, (CANARY, *CUSTOMERS[:2]))


def _traffic(demo: DemoFiles, clients: tuple[str, ...]) -> None:
    """Requests of each client until it is refused."""
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=5)
    try:
        for client in clients:
            for _ in range(2 * LIMIT):
                connection.request("GET", f"/check?client={client}")
                answer = connection.getresponse()
                answer.read()
                if answer.status == 429:
                    break
    except (OSError, http.client.HTTPException) as error:
        raise OperatorError(f"The service of the demo does not answer ({error}); start the demo again.") from None
    finally:
        connection.close()


def _serves(demo: DemoFiles) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", demo.port, timeout=1)
    try:
        connection.request("GET", "/healthz")
        pid = json.loads(connection.getresponse().read())["pid"]
        # Another process may have the port already.
        return bool(pid == int((demo.workspace / "run" / "service.pid").read_text("ascii")))
    except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
        return False
    finally:
        connection.close()

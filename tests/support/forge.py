"""A process that has everything imported and forks workers, so that one starts in milliseconds, not seconds."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from operator_core.config import Settings

__all__ = ["DECLARED_DEAD", "Forge"]

DECLARED_DEAD = 70
"""Exit code of a worker that lost its lease."""


class Forge:
    """Starts worker processes; a context manager that leaves none behind, however it ends. May be used by many threads.

    Args:
        output: File that gets what the workers print, appended.
    """

    def __init__(self, output: Path) -> None:
        self.output = output
        self._log = output.open("ab")
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True
        )

    def __enter__(self) -> Forge:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # which is how it learns that it must end
        self._process.wait(30)
        self._process.stdout.close()
        self._log.close()

    def start(self, db: str, settings: Settings, *, crash_at: str = "", crash_log: Path | None = None) -> int:
        """Start a worker that leaves when nothing is left to do; returns its process id."""
        request = {
            "start": [db, settings.model_dump_json()],
            "output": str(self.output),
            "crash_at": crash_at,
            "crash_log": str(crash_log or ""),
        }
        return int(self._ask(request))

    def poll(self, pid: int) -> int | None:
        """How it ended: its exit code, or minus a signal; None while it runs. To be asked until it has ended."""
        answer = self._ask({"poll": pid})
        return None if answer is None else int(answer)

    def wait(self, pid: int, timeout: float = 60.0) -> int:
        """Wait until it has ended."""
        deadline = time.monotonic() + timeout
        while (code := self.poll(pid)) is None:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                raise AssertionError(f"the worker is stuck:\n{self.output.read_text('utf-8', 'replace')[-3000:]}")
            time.sleep(0.03)
        return code

    def finish(self, db: str, settings: Settings, timeout: float = 60.0) -> None:
        """Let workers do everything that is left; after one that missed its lease (a busy machine) comes another."""
        deadline = time.monotonic() + timeout
        while (code := self.wait(self.start(db, settings), timeout)) != 0:
            assert code == DECLARED_DEAD, f"the worker ended with {code}"
            assert time.monotonic() < deadline, "worker after worker loses its lease"

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            print(json.dumps(request), file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline()
        assert answer, f"the forge is gone:\n{self.output.read_text('utf-8', 'replace')[-3000:]}"
        return json.loads(answer)


def _main() -> None:
    # What a worker imports when it needs it.
    import aiosqlite  # noqa: F401
    import alembic.command  # noqa: F401
    import anthropic.lib.tools
    import anthropic.resources.beta.messages  # noqa: F401
    import asyncpg  # noqa: F401
    import httpcore2  # noqa: F401
    import truststore  # noqa: F401

    import operator_core.sandbox.local
    import operator_core.work.worker  # noqa: F401

    running: set[int] = set()
    for line in sys.stdin:
        request = json.loads(line)
        if "start" in request:
            pid = os.fork()
            if pid == 0:
                _child(request)
            running.add(pid)
            answer: int | None = pid
        else:
            pid, status = os.waitpid(request["poll"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
            running.discard(pid)
        print(json.dumps(answer), flush=True)
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _child(request: dict[str, Any]) -> None:
    import asyncio

    from operator_core import failpoints
    from operator_core.errors import OperatorError
    from operator_core.work.process import serve

    code = 1
    try:
        null, out = os.open(os.devnull, os.O_RDONLY), os.open(request["output"], os.O_WRONLY | os.O_APPEND)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.environ["OPERATOR_CRASH_LOG"] = request["crash_log"]
        failpoints.arm(request["crash_at"])
        db, settings = request["start"]
        asyncio.run(serve(db, settings=Settings.model_validate_json(settings), until_idle=True))
        code = 0
    except OperatorError as error:
        print(error, flush=True)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()

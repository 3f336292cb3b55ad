"""A process beside each session that ends its sandboxes when the worker is killed in the wrong moment.

bubblewrap dies with its parent (``--die-with-parent``), but each of its processes asks the kernel for that only some
milliseconds after it has been started, and does not look whether its parent is still there. If the worker is killed
between, the processes that have asked die, and those that have not live on without them: with the command, or waiting
for ever for the outer process (measured on two busy processors: one of fifty kills left something).

So somebody must look afterwards. A pipe whose other end only the worker has tells when: a child of the worker has that
end too until it has become the program that it was started for, so when the pipe ends, all of them carry the mark.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from operator_core.clock import new_id
from operator_core.errors import SandboxError
from operator_core.sandbox.process import Process, start_process
from operator_core.sandbox.runner import finish_unbroken

__all__ = ["Guard"]

_HELPER = Path(__file__).with_name("guard_helper.py")


class Guard:
    """Made before the first sandbox of a session, and closed after the last.

    Attributes:
        mark: The last argument of every process that is to end with the worker.
    """

    def __init__(self) -> None:
        self.mark = f"operator-{new_id()}"
        self._pipe: int | None = None
        self._process: Process | None = None

    async def open(self) -> None:
        """Start it; it is not waited for, because the pipe keeps what it has to know.

        Raises:
            SandboxError: No more processes can be started.
        """
        reading, self._pipe = os.pipe()
        try:
            os.write(self._pipe, self.mark.encode("ascii"))
            null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
            try:
                argv = [sys.executable, "-I", "-S", str(_HELPER), str(reading)]
                self._process = await start_process(argv, stdout=null, stderr=null, env={}, pass_fds=(reading,))
            finally:
                os.close(null)
        except OSError as error:
            raise SandboxError(f"The sandbox cannot be watched ({error.strerror}); end other processes.") from error
        finally:
            os.close(reading)

    async def close(self) -> None:
        """Nothing is left, so there is nothing to do. May be called again."""
        if self._pipe is not None:
            with contextlib.suppress(BrokenPipeError):  # somebody has ended it
                os.write(self._pipe, b".")
            os.close(self._pipe)
            self._pipe = None
        if self._process is not None:
            await finish_unbroken(self._process.wait())

"""The scripted server as a process of its own, for benchmarks and for tests that kill everything else."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from operator_core.clock import monotonic
from operator_core.errors import ModelUnreachable

__all__ = ["KEY_VARIABLE", "ScriptedProcess"]

KEY_VARIABLE = "OPERATOR_SCRIPTED_KEY"
"""Environment variable of the process: the only API key that it accepts."""


class ScriptedProcess:
    """Starts ``python -m operator_core.scripted`` and waits until it serves; a context manager.

    The process ends by itself when this one is gone, so that a killed test leaves nothing behind.

    Args:
        brain: ``module:name`` or ``path/to/file.py:name``; the name is a brain, or a function without arguments that
            makes one.
        api_key: The only key that is accepted; default: any.
        port: The port; 0 (default) takes a free one.
        env: The environment of the process; default: that of this one.
        start_s: How long to wait for it, in seconds.

    Raises:
        ModelUnreachable: If it does not serve in time; the message has the last line that it wrote.
    """

    def __init__(
        self,
        brain: str,
        *,
        api_key: str | None = None,
        port: int = 0,
        env: dict[str, str] | None = None,
        start_s: float = 30.0,
    ) -> None:
        self._key = api_key
        environment = dict(os.environ if env is None else env)
        # A key on the command line could be read by everybody.
        environment.pop(KEY_VARIABLE, None)
        if api_key is not None:
            environment[KEY_VARIABLE] = api_key
        with tempfile.TemporaryDirectory(prefix="operator-scripted-") as folder:
            port_file, errors = Path(folder, "port"), Path(folder, "stderr")
            command = [sys.executable, "-m", "operator_core.scripted", "--brain", brain, "--port", str(port)]
            command += ["--port-file", str(port_file), "--with-parent", str(os.getpid())]
            with errors.open("wb") as stderr:
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=environment
                )
            self.port = self._wait(port_file, errors, start_s)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def base_url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    def requests(self, *, bodies: bool = True) -> list[dict[str, Any]]:
        """The requests so far, as :meth:`operator_core.scripted.LoggedRequest.to_json` gives them, oldest first."""
        request = urllib.request.Request(f"{self.base_url}/_log" + ("" if bodies else "?bodies=0"))
        if self._key is not None:
            request.add_header("x-api-key", self._key)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=30) as response:
            entries: list[dict[str, Any]] = json.load(response)
        return entries

    def model_calls(self, model_prefix: str | None = None) -> list[dict[str, Any]]:
        """The valid model calls so far, without bodies."""
        return [
            r for r in self.requests(bodies=False) if (r["model"] or "").startswith(model_prefix or "") and r["model"]
        ]

    def stop(self) -> None:
        """End it (SIGTERM, then SIGKILL after five seconds) and wait; harmless when repeated."""
        if self._process.poll() is None:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(5)
        self.kill()

    def kill(self) -> None:
        """End it at once (SIGKILL) and wait; harmless when repeated."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def __enter__(self) -> ScriptedProcess:
        return self

    def __exit__(self, *_: Any) -> None:
        self.stop()

    def _wait(self, port_file: Path, errors: Path, start_s: float) -> int:
        deadline = monotonic() + start_s
        while not port_file.exists():
            if self._process.poll() is not None or monotonic() > deadline:
                self.kill()
                lines = errors.read_text("utf-8", "replace").strip().splitlines() or ["it wrote nothing"]
                raise ModelUnreachable(f"The scripted model server did not start: {lines[-1]}")
            time.sleep(0.01)
        return int(port_file.read_text("ascii"))

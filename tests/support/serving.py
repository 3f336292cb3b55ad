"""`operator serve` in a process of its own, which can be killed; several may serve one store."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes import operator_environment
from tests.support.waiting import wait_until

__all__ = ["Serving"]


class Serving:
    """A process that serves a store; it is killed at the end of its ``with`` block.

    Args:
        folder: Where it runs; its configuration and output are written there.
        store: Path or URL.
        config: The text of its ``operator.toml``.
        port: 0: any free one.
    """

    def __init__(
        self,
        folder: Path,
        store: str,
        *,
        config: str = "",
        port: int = 0,
        env: Mapping[str, str] | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "operator.toml").write_text(config)
        self._asked = port
        self.output = folder / f"output-{len(list(folder.glob('output-*')))}"
        with self.output.open("wb") as file:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "operator_core", "--db", store, "serve", "--port", str(port)],
                cwd=folder,
                env=operator_environment(env),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    @property
    def text(self) -> str:
        """What it has said."""
        return self.output.read_text(errors="replace")

    @property
    def url(self) -> str:
        """Where it listens; waits until it does."""
        found = wait_until(
            lambda: re.search(r"Console and API at (http://\S+)", self.text) or self.child.poll() is not None,
            60,
            what="the server says where it is",
        )
        assert isinstance(found, re.Match), self.text
        # With `public_url` it says that one.
        return f"http://127.0.0.1:{self._asked}" if self._asked else found[1]

    def wait(self) -> None:
        """Return when it listens."""
        assert self.url

    @property
    def port(self) -> int:
        """Its port."""
        return int(self.url.rpartition(":")[2])

    def tokens(self) -> list[str]:
        """The tokens that it has shown."""
        return re.findall(r"^(op_[0-9a-f]{12}_[A-Za-z0-9_-]{43})$", self.text, re.MULTILINE)

    def kill(self) -> None:
        """End it as nothing else would: by SIGKILL."""
        self.child.kill()
        self.child.wait(30)

    def stop(self) -> None:
        """End it in good order."""
        self.child.send_signal(signal.SIGTERM)
        assert self.child.wait(30) == 0, self.text
        assert "Traceback" not in self.text, self.text

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.child.poll() is None:
            self.kill()

"""A worker process as a person starts it, on tasks of the double; a test may kill it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operator_dataverse.double import Double
from tests.support.processes import operator_environment

__all__ = ["ALICE", "DataverseWorker"]

ALICE = "alice@example.com"


class DataverseWorker:
    """One dev box: a folder with its configuration, its store and what it prints.

    Args:
        folder: Made; everything of the box is in it.
        server: The organisation.
        model: Address of the scripted model.
        box: Name of the box.
        store: Path or URL of the store; default: in the folder.
        **sections: Further settings, by section.
    """

    def __init__(
        self,
        folder: Path,
        server: Double,
        model: str,
        *,
        box: str = "box-1",
        store: str = "",
        token: str = "",
        **sections: Mapping[str, Any],
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.box = folder, box
        self.store = store or str(folder / "operator.db")
        self.output, self.crashes = folder / "output.txt", folder / "crashes.txt"
        self.crashes.touch()
        self._token = token or server.token
        settings: dict[str, dict[str, Any]] = {
            "store": {"url": self.store},
            "model": {"engine": "scripted", "base_url": model, "summaries": "deterministic"},
            "sandbox": {"backend": "none"},
            "tasks": {"root": str(folder)},
            "worker": {
                "name": box,
                "concurrency": 1,
                "lease_s": 4.0,
                "poll_s": 0.1,
                "lost_after": 100,
                "state_dir": str(folder / "state"),
            },
            "dataverse": {
                "url": server.url,
                "user": ALICE,
                "box": box,
                "poll_s": 0.3,
                "lease_s": 4.0,
                "message_s": 0.1,
                "retry_s": 20.0,
                "onedrive": False,
            },
        }
        for section, values in sections.items():
            settings.setdefault(section, {}).update(values)
        self.config = folder / "operator.toml"
        self.config.write_text(_toml(settings))
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, *, until_idle: bool = True, crash_at: str = "") -> subprocess.Popen[bytes]:
        """Start ``operator worker run``."""
        env = {"DATAVERSE_TOKEN": self._token, "PYTHONUNBUFFERED": "1"}
        if crash_at:
            env |= {"OPERATOR_CRASH_AT": crash_at, "OPERATOR_CRASH_LOG": str(self.crashes)}
        words = ["--config", str(self.config), "worker", "run", *(["--until-idle"] if until_idle else [])]
        with self.output.open("ab") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "operator_core", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=operator_environment(env),
            )
        self._processes.append(process)
        return process

    def finish(self, *, crash_at: str = "", timeout: float = 60.0) -> int:
        """Start one and wait until it has nothing left to do, or is killed; its exit code."""
        process = self.start(crash_at=crash_at)
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill(process)
            raise AssertionError(f"the worker goes on and on:\n{self.text()[-5000:]}") from None

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """As the power does."""
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
        process.wait()

    def text(self) -> str:
        """What all of them have printed."""
        return self.output.read_text(errors="replace")

    def __enter__(self) -> DataverseWorker:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            self.kill(process)


def _toml(sections: Mapping[str, Mapping[str, Any]]) -> str:
    lines = []
    for section, values in sections.items():
        lines.append(f"[{section}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"

"""Tasks with their material, as they are in ``examples/tasks``; the demo's own one comes with the package."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from operator_core.errors import ConfigError

__all__ = ["ExampleTask", "copy_demo_task", "read_task"]

DEMO_TASK = "fix-failing-test"
"""A link to the folder in ``examples/tasks``; in a built package the folder itself."""

_LEFT_BY_TOOLS = ("__pycache__", ".pytest_cache", ".ruff_cache", ".mypy_cache")


@dataclass(frozen=True)
class ExampleTask:
    """A task that can be submitted, and what should come of it.

    Attributes:
        folder: ``PROMPT.md`` (what is asked), ``task.json`` (the rest) and ``repo/`` (what the work begins with).
        checks: Commands.
        check_files: Each as ``PATH=PLACE``, the path absolute.
        status: Of the ticket in the end.
        reason: Of that.
        verdicts: Kinds of the verdicts, in order, when :mod:`operator_core.demo.task_brain` plays.
    """

    name: str
    folder: Path
    checks: tuple[str, ...]
    check_files: tuple[str, ...]
    status: str
    reason: str
    verdicts: tuple[str, ...]

    @property
    def repo(self) -> Path:
        """The folder to submit."""
        return self.folder / "repo"

    @property
    def prompt(self) -> str:
        """What is asked."""
        return (self.folder / "PROMPT.md").read_text("utf-8").strip()


def read_task(folder: Path) -> ExampleTask:
    """The task in a folder.

    Raises:
        ConfigError: It holds none.
    """
    try:
        data: dict[str, Any] = json.loads((folder / "task.json").read_text("utf-8"))
        return ExampleTask(
            name=data["name"],
            folder=folder,
            checks=tuple(data["checks"]),
            check_files=tuple(f"{folder / path}={Path(path).name}" for path in data["check_files"]),
            status=data["expected"]["status"],
            reason=data["expected"]["reason"],
            verdicts=tuple(data["scripted"]["verdicts"]),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ConfigError(f"{folder} holds no task ({error}); name a folder of examples/tasks.") from None


def copy_demo_task(target: Path) -> ExampleTask:
    """A copy of the demo's own task, as it was written; what tools have left in it stays behind.

    Args:
        target: A folder that does not exist yet.

    Raises:
        ConfigError: The package is not complete.
    """
    source = Path(str(files("operator_core.demo"))) / DEMO_TASK
    if not source.is_dir():
        raise ConfigError(f"The task of the demo is missing at {source}; install the package operator-core again.")
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*_LEFT_BY_TOOLS))
    return read_task(target)

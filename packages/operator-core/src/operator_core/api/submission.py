"""What people and programs elsewhere may ask for in a task, and how what they send gets to where it is needed.

Whoever is on the command line of a machine can read its files anyway. Who comes over the network cannot: for them a
path would be one of the *server*, and only an administrator may name one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from operator_core.errors import ConfigError
from operator_core.model.person import Actor, Role
from operator_core.text import clip, printable
from operator_core.work.repository.origin import is_remote

__all__ = ["MAX_FILES", "TaskFile", "submission"]

MAX_FILES = 100
_PLACE = r"^[^\x00=/\\][^\x00=\\]*$"
"""A first look only; :func:`operator_core.work.submit.submit_task` decides."""


class TaskFile(BaseModel):
    """A file that the checks of a task need, as text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True)

    path: str = Field(min_length=1, max_length=1000, pattern=_PLACE)
    """Where it is in the workspace, e.g. ``tests/test_shop.py``."""
    content: str = Field(max_length=1_000_000)
    executable: bool = False


_FILES = TypeAdapter(list[TaskFile])


@contextmanager
def submission(actor: Actor, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The options of a task as :func:`operator_core.work.submit.submit_task` takes them, while the task is submitted.

    Args:
        options: Those of ``submit_task``; also ``files``, check files as :class:`TaskFile` or as its fields.

    Raises:
        ConfigError: Somebody asks for what is for others.
    """
    usable = {name: value for name, value in options.items() if value is not None}
    given = usable.pop("files", None) or ()
    if actor.via != "cli":
        _refuse_relative(usable.get("repo"))
        if not actor.role.allows(Role.ADMIN):
            _refuse(usable)
    try:
        files = _FILES.validate_python(list(given))
    except ValidationError as error:
        raise ConfigError(f"The check files are not usable ({clip(error.errors()[0]['msg'])}); change them.") from None
    if len(files) > MAX_FILES:
        raise ConfigError(f"{len(files)} check files are too many, {MAX_FILES} is the most; put them in a repository.")
    with tempfile.TemporaryDirectory(prefix="operator-files-") as folder:
        written = [_written(Path(folder) / str(n), file) for n, file in enumerate(files)]
        if written:
            usable["check_files"] = [*usable.get("check_files", ()), *written]
        yield usable


def _refuse_relative(repo: object) -> None:
    """Whoever says ``.`` means the folder where he is, and not the one where the server was started."""
    if repo is not None and not is_remote(str(repo)) and not os.path.isabs(str(repo)):
        raise ConfigError(
            f"{clip(printable(str(repo)), 120)!r} would be a folder of the server; give the address of a repository "
            "with https:// or ssh://, or, as an admin, the whole path of a folder on the server."
        )


def _refuse(options: Mapping[str, Any]) -> None:
    repo = options.get("repo")
    if repo is not None:
        location = str(repo)
        if not is_remote(location) or location.lower().startswith("file:"):
            raise ConfigError(
                f"{clip(printable(location), 120)!r} is a path on the server, which only an admin may name; give the "
                "address of a repository with https:// or ssh://."
            )
    if options.get("check_files"):
        raise ConfigError("The paths of check files are paths on the server; send the files themselves, as `files`.")
    if options.get("network") == "host":
        raise ConfigError("Only an admin may submit a task with the network `host`; use `none` or `allowlist`.")


def _written(path: Path, file: TaskFile) -> str:
    path.write_text(file.content, encoding="utf-8", newline="")
    path.chmod(0o700 if file.executable else 0o600)
    return f"{path}={file.path}"

"""Tasks: what a person asks for, and what counts as its proof, frozen when it is submitted."""

from __future__ import annotations

import hashlib
import re
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from operator_core.model.entry import canonical

__all__ = ["MAX_PROMPT", "CheckFile", "Source", "TaskCheck", "TaskEngine", "TaskProfile", "TaskSpec"]

MAX_PROMPT = 100_000
"""Characters of a prompt (the size of the task system's own column, requirements 2.2.2)."""

TaskEngine = Literal["anthropic", "claude-code"]
"""Our own loop over the Messages API, or the Claude Code CLI."""
TaskProfile = Literal["shraga", "operator"]
"""``shraga``: worker, then checks, then a verifier agent. ``operator``: worker and checks only."""

_DIGEST = re.compile(r"[0-9a-f]{64}\Z")


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskCheck(_Frozen):
    """One executable acceptance criterion: a command that ends with 0 when the work is right."""

    command: str = Field(min_length=1, max_length=20_000)
    """Run by bash in the root of a copy of the workspace. Exit 0: passed; 3: it could not look; else: failed."""
    timeout_s: float = Field(default=600.0, gt=0)
    """A check that takes longer has failed."""


class CheckFile(_Frozen):
    """A file that a check needs, as it was at submission; restored over the copy before each check."""

    path: str
    """Relative to the workspace, with ``/``; never absolute and never upwards."""
    sha256: str
    """Digest (hex) of the content, which is in the store's blobs."""
    executable: bool = False

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = path.split("/")
        if path.startswith("/") or "\0" in path or any(p in ("", ".", "..") for p in parts) or parts[0] == ".git":
            raise ValueError(f"the check file {path!r} must be a plain relative path inside of the workspace")
        return path

    @field_validator("sha256")
    @classmethod
    def _is_digest(cls, value: str) -> str:
        if not _DIGEST.match(value):
            raise ValueError("not a SHA-256 digest")
        return value


class Source(_Frozen):
    """What the workspace starts from."""

    kind: Literal["none", "git", "folder"] = "none"
    location: str = ""
    """Path or URL, as given."""
    ref: str | None = None
    """Branch, tag or commit, as given."""
    commit: str | None = None
    """The commit that ``ref`` was at submission (git)."""
    blob: str | None = None
    """SHA-256 of the tar archive of the folder at submission (folder), in the store's blobs."""


class TaskSpec(_Frozen):
    """A task as it was submitted; :attr:`digest` is its identity."""

    name: str = Field(min_length=1, max_length=300)
    """Short name, for people and for the session folder; hostile text."""
    prompt: str = Field(min_length=1, max_length=MAX_PROMPT)
    source: Source = Source()
    checks: tuple[TaskCheck, ...] = ()
    check_files: tuple[CheckFile, ...] = ()
    allow_change: tuple[str, ...] = ()
    """Paths of test and runner files that the work may change, which are then not restored before a check."""
    engine: TaskEngine = "anthropic"
    model: str | None = None
    """None: the worker's ``[model] model``."""
    budget_usd: float | None = Field(default=None, gt=0)
    """None: ``[limits] cost_usd``."""
    max_iterations: int = Field(default=10, ge=1, le=10)
    profile: TaskProfile = "shraga"
    network: Literal["none", "allowlist", "host"] = "none"
    """Network of the worker's and the verifier's commands and of the checks."""
    allow_hosts: tuple[str, ...] = ()
    """For ``allowlist``: what they reach, as ``host``, ``host:port`` or ``*.example.org:443``."""

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over its canonical JSON."""
        return hashlib.sha256(canonical(self.model_dump(mode="json")).encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def short_id(self) -> str:
        """The first eight characters of the digest."""
        return self.digest[:8]

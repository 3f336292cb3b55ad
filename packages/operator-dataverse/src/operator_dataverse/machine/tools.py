"""What a dev box needs, and how this platform's package manager installs it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Literal, NamedTuple

from operator_core.errors import ConfigError
from operator_dataverse.machine.programs import find

__all__ = ["MANAGERS", "TOOLS", "Manager", "ManagerName", "Tool", "claude_code_commands", "find_manager", "tools_for"]

ManagerName = Literal["apt", "brew", "winget", "choco"]


class Manager(NamedTuple):
    """A package manager.

    Attributes:
        name: What people call it.
        program: What it is on the PATH.
        platform: As ``sys.platform`` begins.
        words: What comes before the name of a package.
        first: What is run once before the first installation.
        needs_root: Whether an ordinary user needs ``sudo``.
    """

    name: ManagerName
    program: str
    platform: str
    words: tuple[str, ...]
    first: tuple[str, ...] = ()
    needs_root: bool = False

    def command(self, package: str) -> tuple[str, ...]:
        """What installs one package."""
        return self._as_root((self.program, *self.words, *package.split()))

    def refresh(self) -> tuple[str, ...]:
        """What is run once before; may be empty."""
        return self._as_root((self.program, *self.first)) if self.first else ()

    def _as_root(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        ordinary = self.needs_root and getattr(os, "geteuid", lambda: 0)() != 0
        return ("sudo", *argv) if ordinary else argv


_WINGET = (
    *("install", "--exact", "--silent", "--disable-interactivity"),
    *("--accept-source-agreements", "--accept-package-agreements", "--source", "winget", "--id"),
)
MANAGERS = (
    Manager("apt", "apt-get", "linux", ("install", "--yes", "--no-install-recommends"), ("update",), needs_root=True),
    Manager("brew", "brew", "darwin", ("install",)),
    Manager("winget", "winget", "win32", _WINGET),
    Manager("choco", "choco", "win32", ("install", "--yes", "--no-progress")),
)


class Tool(NamedTuple):
    """A program that a dev box needs.

    Attributes:
        name: What people call it.
        program: What it is on the PATH.
        why: What does not work without it; a clause.
        packages: Package (or words) by package manager.
        needed: False: some dev boxes work without it.
    """

    name: str
    program: str
    why: str
    packages: Mapping[str, str]
    needed: bool = True


TOOLS = (
    Tool(
        "git",
        "git",
        "tasks with a repository, and self-update",
        {"apt": "git", "brew": "git", "winget": "Git.Git", "choco": "git"},
    ),
    Tool("bubblewrap", "bwrap", "the sandbox that agents work in", {"apt": "bubblewrap"}),
    Tool(
        "docker",
        "docker",
        "the sandbox that agents work in",
        {"brew": "--cask docker-desktop", "winget": "Docker.DockerDesktop", "choco": "docker-desktop"},
    ),
    Tool(
        "azure",
        "az",
        "signing in to Dataverse as a person",
        {"apt": "azure-cli", "brew": "azure-cli", "winget": "Microsoft.AzureCLI", "choco": "azure-cli"},
        needed=False,
    ),
)


def tools_for(manager: Manager | None, platform: str = sys.platform) -> tuple[Tool, ...]:
    """The tools of a platform: each platform has the sandbox that works on it.

    Args:
        manager: Of which package manager; its platform counts then.
        platform: As ``sys.platform``.
    """
    linux = (manager.platform if manager else platform).startswith("linux")
    return tuple(tool for tool in TOOLS if tool.program != ("docker" if linux else "bwrap"))


def find_manager(
    name: str | None = None, environ: Mapping[str, str] | None = None, platform: str = sys.platform
) -> Manager | None:
    """The package manager to use; None: there is none here.

    Args:
        name: That one, whatever the platform.
        environ: Has the PATH (default: of this process).
        platform: As ``sys.platform``.

    Raises:
        ConfigError: ``name`` is none that is known.
    """
    if name is not None:
        named = next((manager for manager in MANAGERS if manager.name == name), None)
        if named is None:
            known = ", ".join(manager.name for manager in MANAGERS)
            raise ConfigError(f"`{name:.40}` is no package manager that is known here; there are {known}.")
        return named
    mine = (manager for manager in MANAGERS if platform.startswith(manager.platform))
    return next((manager for manager in mine if find(manager.program, environ)), None)


def claude_code_commands(environ: Mapping[str, str] | None = None) -> tuple[tuple[str, ...], ...]:
    """What installs the package that carries the Claude Code program into the environment that runs this."""
    requirement = _claude_requirement()
    if find_spec("pip") is not None:
        return ((sys.executable, "-m", "pip", "install", requirement),)
    if uv := find("uv", environ):
        return ((uv, "pip", "install", "--python", sys.executable, requirement),)
    return (
        (sys.executable, "-m", "ensurepip", "--upgrade"),
        (sys.executable, "-m", "pip", "install", requirement),
    )


def _claude_requirement() -> str:
    # The name of the package itself, not of our extra: nobody else's `operator-core` can come that way.
    for line in importlib.metadata.requires("operator-core") or ():
        requirement, _, marker = line.partition(";")
        if re.search(r"""extra\s*==\s*['"]claude-code['"]""", marker):
            return requirement.strip()
    return "claude-agent-sdk"

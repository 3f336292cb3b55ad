"""The environment of a command: a short allow-list, never this process's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from operator_core.sandbox.policy import Policy, check_variable

__all__ = ["BASE", "SYSTEM_PATH", "build_environment", "interpreter_prefixes", "search_path"]

SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin", "/usr/sbin", "/sbin")

BASE: Mapping[str, str] = {
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "USER": "agent",
    "LOGNAME": "agent",
    "SHELL": "/bin/bash",
    # Nothing may open a pager, ask a question, or colour its output.
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "NO_COLOR": "1",
    "PYTHONUNBUFFERED": "1",
    "DEBIAN_FRONTEND": "noninteractive",
}


def interpreter_prefixes() -> tuple[Path, ...]:
    """Where the running Python lives, if not under ``/usr``; exactly these directories make ``python3`` usable.

    A prefix that is a home directory or contains one is left out: it would show far more than an interpreter.
    """
    home = Path(os.path.expanduser("~")).resolve()
    found: list[Path] = []
    for prefix in dict.fromkeys((Path(sys.prefix), Path(sys.base_prefix))):
        real = prefix.resolve()
        if not real.is_relative_to("/usr") and not home.is_relative_to(real) and len(real.parts) > 2:
            found.append(prefix)
    return tuple(found)


def search_path(visible: Iterable[Path]) -> str:
    """``PATH``: the running Python, then the entries of our own ``PATH`` under ``visible``, then the system's."""
    shown = tuple(visible)
    entries = [str(prefix / "bin") for prefix in interpreter_prefixes()]
    for entry in os.environ.get("PATH", "").split(os.pathsep):
        if entry.startswith("/") and any(Path(entry).is_relative_to(path) for path in shown):
            entries.append(entry)
    return os.pathsep.join(dict.fromkeys((*entries, *SYSTEM_PATH)))


def build_environment(policy: Policy, fixed: Mapping[str, str], env: Mapping[str, str] | None) -> dict[str, str]:
    """All variables of one command: the base, ``fixed`` (of the backend), the policy's, then those of the call.

    Raises:
        ConfigError: A name or value of ``env`` is not possible.
    """
    passed = {name: os.environ[name] for name in policy.env_passthrough if name in os.environ}
    for name, value in (env or {}).items():
        check_variable(name, value)
    return {**BASE, **fixed, **passed, **policy.env, **(env or {})}

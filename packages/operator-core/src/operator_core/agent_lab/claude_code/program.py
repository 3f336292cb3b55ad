"""Where the Claude Code program is."""

from __future__ import annotations

import os
import re
from importlib.util import find_spec
from pathlib import Path

from operator_core.config import ClaudeCodeSettings
from operator_core.errors import ConfigError

__all__ = ["find_program", "program_version"]

_PACKAGE = "claude_agent_sdk"
_INSTALL = "install it with `pip install 'operator-core[claude-code]'` (in a checkout: `make claude-code`)"


def find_program(settings: ClaudeCodeSettings) -> Path:
    """The program: that of the configuration, else the one in this environment's ``claude-agent-sdk`` package.

    A ``claude`` that happens to be on ``PATH`` is not used: nobody has said which version that is.

    Returns:
        An absolute path without links.

    Raises:
        ConfigError: There is none, or it cannot be run; the message says what to install.
    """
    if settings.program is not None:
        path, remedy = settings.program.expanduser(), "correct [claude_code] program"
    else:
        spec = find_spec(_PACKAGE)  # the top-level name alone: nothing of the package is imported
        if spec is None or spec.origin is None:
            raise ConfigError(f"The Claude Code program is not installed; {_INSTALL}, or set [claude_code] program.")
        path, remedy = Path(spec.origin).parent / "_bundled" / "claude", _INSTALL
    if not path.is_file():
        raise ConfigError(f"There is no Claude Code program at {path}; {remedy}.")
    if not os.access(path, os.X_OK):
        raise ConfigError(f"The Claude Code program {path} is not executable; {remedy}.")
    return path.resolve()


def program_version(program: Path) -> str:
    """Its version as the package beside it says (``2.1.330``); empty if nothing does. The program is not run."""
    try:
        text = program.with_name("claude.version").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
    found = re.match(r"\s*(\d[\w.+-]{0,40})", text)
    return found.group(1) if found else ""

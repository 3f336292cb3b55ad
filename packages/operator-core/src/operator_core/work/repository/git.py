"""Git on this machine, for repositories that no agent has touched.

Nothing of the user's or the machine's configuration is used, no hook, template or filter runs, and nothing asks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from operator_core.errors import SourceError, StoreFull
from operator_core.sandbox import run
from operator_core.sandbox.process import Process, start_process
from operator_core.text import clip, printable

__all__ = ["git"]

_PASSED_ON = (
    "SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR",
    "http_proxy", "https_proxy", "no_proxy", "HTTPS_PROXY", "NO_PROXY",
)  # fmt: skip
_OPTIONS = (
    "core.hooksPath=/dev/null", "core.fsmonitor=false", "commit.gpgsign=false", "gc.auto=0", "maintenance.auto=false",
    "protocol.ext.allow=never", "init.defaultBranch=main", "advice.addEmbeddedRepo=false",
)  # fmt: skip
_IDENTITY = {
    "GIT_AUTHOR_NAME": "Operator",
    "GIT_AUTHOR_EMAIL": "operator@localhost",
    "GIT_COMMITTER_NAME": "Operator",
    "GIT_COMMITTER_EMAIL": "operator@localhost",
}


async def git(folder: Path, *arguments: str, timeout: float = 120.0, env: Mapping[str, str] | None = None) -> str:
    """Run git on a repository that no agent has touched; its output without the last line break.

    Args:
        folder: Where.
        arguments: After ``git``; its own options may come before the command.
        timeout: In seconds.
        env: Further variables.

    Raises:
        SourceError: It failed; the message is its own last word.
    """
    program = shutil.which("git")
    if program is None:
        raise SourceError("git is not installed on this machine; install it.")
    argv = [program, "-C", str(folder)]
    for option in _OPTIONS:
        argv += ["-c", option]
    variables = {
        **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
        **_IDENTITY,
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": "/nonexistent",
        "LANG": "C.UTF-8",
        "LC_ALL": "C.UTF-8",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "false",
        "GIT_SSH_COMMAND": "ssh -o BatchMode=yes",
        "GIT_ALLOW_PROTOCOL": "file:git:http:https:ssh",
        "GIT_NO_LAZY_FETCH": "1",
        "GIT_LITERAL_PATHSPECS": "1",
        **(env or {}),
    }
    command = next((word for word in arguments if not word.startswith("-") and "=" not in word), "")

    async def spawn(stdout: int, stderr: int) -> Process:
        return await start_process([*argv, *arguments], stdout=stdout, stderr=stderr, env=variables)

    done = await run(spawn, timeout=timeout)
    said = printable(done.stderr.text()).strip()
    if done.reason == "timeout":
        raise SourceError(f"git {command} took longer than {timeout:g} s")
    if done.returncode != 0:
        if "No space left on device" in said or "Disk quota exceeded" in said:
            raise StoreFull(f"The disk under {folder} is full; free some space and start again.")
        lines = [line for line in said.splitlines() if line.startswith(("fatal:", "error:"))] or said.splitlines()
        why = lines[0].partition(": ")[2] or lines[0] if lines else f"git {command} ended with {done.returncode}"
        raise SourceError(clip(why, 300))
    return done.stdout.text().rstrip("\n")

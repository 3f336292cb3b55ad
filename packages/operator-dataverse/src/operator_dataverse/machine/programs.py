"""Running the programs of others: found on the PATH, with a small explicit environment, bounded or attended."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from operator_core.errors import OperatorError
from operator_core.text import first_line, printable

__all__ = ["Answer", "ask", "attend", "find", "small_environment"]

_LONGEST = 1 << 20
_FAILED_TO_START = 127

# What a program needs to find its files, its screen and its way out; nothing of the product, and no key of a model.
_PASSED_ON = """
PATH PATHEXT HOME USER LOGNAME SHELL TERM TERM_PROGRAM COLORTERM LANG LC_ALL LC_CTYPE TZ TMPDIR TEMP TMP
DISPLAY WAYLAND_DISPLAY XAUTHORITY DBUS_SESSION_BUS_ADDRESS BROWSER
XDG_RUNTIME_DIR XDG_CONFIG_HOME XDG_DATA_HOME XDG_CACHE_HOME XDG_STATE_HOME XDG_SESSION_TYPE
SYSTEMROOT SYSTEMDRIVE WINDIR COMSPEC USERPROFILE USERNAME USERDOMAIN HOMEDRIVE HOMEPATH APPDATA LOCALAPPDATA
PROGRAMDATA PROGRAMFILES PROGRAMFILES(X86) PROGRAMW6432 PUBLIC CHOCOLATEYINSTALL
HTTP_PROXY HTTPS_PROXY NO_PROXY ALL_PROXY SSL_CERT_FILE SSL_CERT_DIR REQUESTS_CA_BUNDLE NODE_EXTRA_CA_CERTS
AZURE_CONFIG_DIR
"""


class Answer(NamedTuple):
    """What a program said.

    Attributes:
        code: Its exit code; negative if a signal ended it; None: it took too long, or could not be started.
        out: Standard output, at most 1 MiB.
        err: Standard error, at most 1 MiB; or why it could not be started.
    """

    code: int | None
    out: str
    err: str

    @property
    def said(self) -> str:
        """The first line that explains a failure."""
        if self.code is None:
            return self.err
        return first_line(printable(self.err)) or first_line(printable(self.out)) or f"exit code {self.code}"


def small_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a program of somebody else.

    Args:
        environ: What to take it from (default: this process's).
    """
    env = os.environ if environ is None else environ
    wanted = set(_PASSED_ON.split())
    return {name: value for name, value in env.items() if name.upper() in wanted}


def find(program: str, environ: Mapping[str, str] | None = None) -> str | None:
    """The absolute path of a program; None: it is not on the PATH."""
    env = os.environ if environ is None else environ
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    return found and os.path.abspath(found)


def ask(argv: Sequence[str], env: Mapping[str, str], *, timeout_s: float = 30.0) -> Answer:
    """Run a program without input until it ends.

    Args:
        argv: The program and its words.
        env: Its whole environment.
        timeout_s: Then it is killed.
    """
    # Files, because whatever the program leaves running would keep pipes open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            child = subprocess.Popen(argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        except OSError as error:
            return Answer(None, "", f"{argv[0]} cannot be started ({error.strerror or error})")
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return Answer(None, "", f"{argv[0]} did not answer within {timeout_s:g} s")
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read(_LONGEST).decode(errors="replace"))
    return Answer(code, texts[0], texts[1])


def attend(argv: Sequence[str], env: Mapping[str, str], *, stdout_free: bool = True) -> int:
    """Run a program on this terminal, for the person there.

    Args:
        argv: The program and its words.
        env: Its whole environment.
        stdout_free: False: standard output is ours, for a document; what the program prints goes to standard error.

    Returns:
        Its exit code; 127 if it could not be started.

    Raises:
        OperatorError: There is no output to give it.
    """
    sys.stdout.flush()
    try:
        target = None if stdout_free else sys.stderr.fileno()
    except (OSError, ValueError):
        raise OperatorError("Standard error is closed; run this on a terminal.") from None
    try:
        return subprocess.run(argv, env=dict(env), stdout=target, check=False).returncode
    except OSError as error:
        print(f"{argv[0]} cannot be started ({error.strerror or error}).", file=sys.stderr)
        return _FAILED_TO_START

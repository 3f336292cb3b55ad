"""What the backends share whose commands are started by a :mod:`~operator_core.sandbox.supervised.supervisor`."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from operator_core.errors import SandboxError
from operator_core.sandbox.environment import build_environment
from operator_core.sandbox.process import Process
from operator_core.sandbox.runner import RawResult
from operator_core.sandbox.session import Call, Launch, Session, prologue
from operator_core.sandbox.supervised.remote import ExecServer, RemoteCommand
from operator_core.sandbox.supervised.supervisor import FAILURE

__all__ = ["RemoteSession", "processes_of"]


class RemoteSession(Session):
    """A backend says where its server is (``_server``), what holds for commands (``_fixed``) and where they see their
    state file; starting and ending them is here.
    """

    _server: ExecServer | None = None
    _fixed: dict[str, str]
    _limits: dict[str, int]
    _bash = "/bin/bash"
    _user: tuple[int, int] | None = None
    """The user and group of commands, if they are not those of this process."""
    _translated = False
    """Whether what belongs to this process belongs to that user in there."""

    def _seen_state(self, state: Path) -> str:
        return str(state)

    def _launch(self, call: Call) -> Launch:
        server = self._server
        if server is None:
            raise SandboxError("This sandbox is closed; open a new one.")
        script = prologue(
            self._seen_state(call.state),
            self._start,
            self._limits,
            'IFS= read -r -d "" __c <&3; exec 3<&-',
            count=False,
        )
        environment = build_environment(self.policy, self._fixed, call.env)
        argv = [self._bash, "--noprofile", "--norc", "-c", script, "bash", call.cwd]
        command = RemoteCommand()
        user = self._user
        if user is not None and not self._translated:
            os.chown(call.state, *user, follow_symlinks=False)

        async def spawn(stdout: int, stderr: int) -> Process:
            if user is not None:
                # `echo >/dev/stderr` opens it anew, by the rights of its owner.
                for fd in (stdout, stderr):
                    os.fchown(fd, *user)
            return await server.start(command, argv, environment, call.command, stdout, stderr)

        return Launch(spawn, command)

    def _setup_error(self, raw: RawResult) -> str:
        text = raw.stderr.text().strip()
        return text.splitlines()[-1].removeprefix(FAILURE).rstrip(".") if text.startswith(FAILURE) else ""


def processes_of(uid: int) -> int:
    """How many processes a user has: the kernel's limit counts all of them, wherever they are."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):
                count += os.stat(f"/proc/{name}").st_uid == uid
    return count

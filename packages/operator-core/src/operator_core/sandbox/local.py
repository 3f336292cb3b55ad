"""The ``none`` backend: the same calls with nothing around them. Never chosen by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

from operator_core.errors import SandboxUnavailable
from operator_core.sandbox import files
from operator_core.sandbox.environment import build_environment, search_path
from operator_core.sandbox.mounts import places
from operator_core.sandbox.process import Process, ProcessTree, start_process
from operator_core.sandbox.report import Control, Report
from operator_core.sandbox.session import Call, Launch, Session, prologue

__all__ = ["LocalSandbox"]

# The kernel takes no single argument above 128 KiB.
_ARGUMENT_MAX = 100_000


class LocalSandbox(Session):
    """Commands run as this user, with this user's files, network and rights."""

    name = "none"

    async def _open(self) -> Report:
        bash = shutil.which("bash")
        if bash is None:
            raise SandboxUnavailable("there is no bash on PATH", "install bash")
        self._bash = bash
        self._fixed = {
            "PATH": search_path([Path("/")]),
            "HOME": str(self._layout.home),
            "TMPDIR": str(self._layout.tmp),
        }
        return _report()

    def _launch(self, call: Call) -> Launch:
        limits = self.policy.limits
        command = call.command
        load = "__c=$2"
        if len(command.encode("utf-8", "surrogateescape")) > _ARGUMENT_MAX:
            path = call.command_file
            path.write_text(command, encoding="utf-8", errors="surrogateescape")
            command, load = str(path), 'IFS= read -r -d "" __c <"$2"'
        script = prologue(
            str(call.state),
            self._start,
            {"c": 0, "n": limits.nofile, "d": limits.memory >> 10, "f": limits.file_size >> 10},
            load,
            count=False,
        )
        env = build_environment(self.policy, self._fixed, call.env)
        argv = [self._bash, "--noprofile", "--norc", "-c", script, "bash", call.cwd, command]

        async def spawn(stdout: int, stderr: int) -> Process:
            return await start_process(argv, stdout=stdout, stderr=stderr, env=env)

        return Launch(spawn, ProcessTree())

    def _places(self) -> list[files.Place]:
        return [files.Place("/", Path("/"), "read"), *places(self.policy, self._layout, mapped=False)]


def _report() -> Report:
    def open_(why: str) -> Control:
        return Control("not_enforced", why)

    controls = {
        "filesystem.write": open_("commands write whatever this user can write"),
        "filesystem.read": open_("commands read whatever this user can read, secrets included"),
        "process.isolation": open_("commands see and signal the processes of this user"),
        "kill_tree": Control(
            "partial",
            "process group and descendants; a daemon that leaves both survives, and so does a command when "
            "this process is killed",
        ),
        "network": open_("the network of the host"),
        "unix_sockets": open_("every socket of the host, docker's included"),
        "vsock": open_("reachable"),
        "secrets.env": Control("partial", "a clean environment, but commands can read that of other processes"),
        "privileges": open_("the rights of this user"),
        "kernel.sysctl": open_("writable for root"),
        "setuid": open_("commands can set the bit"),
        "limits.memory": Control("partial", "RLIMIT_DATA per process"),
        "limits.procs": open_("no limit"),
        "limits.disk": Control("partial", "RLIMIT_FSIZE per file"),
        "limits.output": Control("partial", "bounded by the runner, not tested here"),
        "workspace.exec_later": open_("protected and masked paths hold for the file tools only"),
    }
    warning = "no sandbox: commands run unconfined as this user, because the backend `none` was named"
    return Report("none", "open", controls, warnings=(warning,))

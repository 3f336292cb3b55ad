"""The degraded tier for machines without user namespaces and without docker: landlock, seccomp and a supervisor.

No namespaces: commands see the processes and the file names of the host. What it does hold, for an ordinary user: files
are read and written in listed places only, there is no socket of any kind, no signal leaves, nobody is traced, and all
that a command starts ends with it. It is taken by name, or by ``auto`` with ``on_unavailable = "degrade"``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from operator_core.clock import new_id
from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import files
from operator_core.sandbox.environment import interpreter_prefixes, search_path
from operator_core.sandbox.linux.seccomp import SUPPORTED, build_filter
from operator_core.sandbox.mounts import places
from operator_core.sandbox.policy import Limits
from operator_core.sandbox.process import Process, signal_quietly, start_process
from operator_core.sandbox.protocol import ExecResult
from operator_core.sandbox.report import Control, Report
from operator_core.sandbox.runner import finish_unbroken
from operator_core.sandbox.selftest import attack as selftest
from operator_core.sandbox.selftest.promise import STATUS, Promise
from operator_core.sandbox.session import SetupError
from operator_core.sandbox.supervised import supervisor
from operator_core.sandbox.supervised.remote import ExecServer
from operator_core.sandbox.supervised.session import RemoteSession, processes_of

__all__ = ["LandlockSandbox"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc")
_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "group", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types",
    "nsswitch.conf", "os-release", "passwd", "pki/tls/certs", "pki/ca-trust/extracted", "perl", "protocols", "python3",
    "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
_ETC_NETWORK = ("resolv.conf", "host.conf", "gai.conf", "hosts")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_END_S = 5.0
_SCOPED = 6
"""The version of landlock from which signals stay inside."""


class LandlockSandbox(RemoteSession):
    """See the module. The workspace is seen at its own path, and ``/tmp`` is the session's only as ``$TMPDIR``."""

    name = "landlock"
    _process: Process | None = None

    async def _open(self) -> Report:
        version = self._find()
        self._fixed = {
            "PATH": search_path((*self.policy.readable, *self.policy.writable)),
            "HOME": str(self._layout.home),
            "TMPDIR": str(self._layout.tmp),
            # What cannot be read is an error to git, and what it may hold is not for commands.
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        limits = self.policy.limits
        self._limits = {
            "c": 0,
            "n": limits.nofile,
            "d": limits.memory >> 10,
            "f": limits.file_size >> 10,
            # It counts all processes of this user, so those that are there already are no part of it.
            "u": limits.procs + processes_of(os.getuid()),
        }
        self._server = await self._serve()
        online = self.policy.network == "host"
        await self._server.configure(
            {
                "seccomp": build_filter(sockets=online, beside=False).hex(),
                "landlock": {"readable": self._readable(), "writable": self._writable(), "network": online},
            }
        )
        try:
            promise = _promise(version, online=online, procs=limits.procs, shm=await self._fills_shm())
            report = await selftest.examine(promise, self.policy, self._layout, self._attack)
        except SetupError as error:
            raise SandboxUnavailable(
                f"landlock failed with `{error.why}`", "use another backend; `operator doctor` says which ones work"
            ) from error
        return dataclasses.replace(report, controls={n: _weakened(n, c) for n, c in report.controls.items()})

    async def _fills_shm(self) -> bool:
        """Whether a command can put a file into memory that all processes share."""
        name = f"/dev/shm/.operator-{new_id()}"
        result = await self._exec(f"{{ : >{name}; }} 2>/dev/null && rm -f {name}", cwd=self._start)
        return result.exit_code == 0

    def _find(self) -> int:
        """The version of landlock here.

        Raises:
            SandboxUnavailable: It cannot do here what the policy asks for.
        """
        if sys.platform != "linux" or os.uname().machine not in SUPPORTED:
            raise SandboxUnavailable("landlock needs Linux on x86_64 or aarch64", "run Operator on such a machine")
        version = supervisor.landlock_abi()
        if not version:
            raise SandboxUnavailable(
                "this kernel has no landlock", "use Linux 5.13 or later, and add `landlock` to the kernel's `lsm=` list"
            )
        if os.geteuid() == 0:
            raise SandboxUnavailable(
                "landlock does not hold root, and this is root",
                "start Operator as an ordinary user, or install bubblewrap",
            )
        if shutil.which("bash", path="/bin:/usr/bin") is None:
            raise SandboxUnavailable("there is no bash", "install bash")
        if self.policy.network == "allowlist":
            raise SandboxUnavailable(
                "landlock has no network of its own, so no proxy can be put in front of it",
                'use bubblewrap or docker, or set `network = "none"`',
            )
        if self.policy.secret_files:
            raise SandboxUnavailable("landlock cannot show files at another path", "use bubblewrap or docker")
        return version

    async def _serve(self) -> ExecServer:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        argv = [sys.executable, "-I", "-S", supervisor.__file__, "--fd", str(theirs.fileno())]
        with theirs:
            self._process = await start_process(
                argv,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={"LC_ALL": "C.UTF-8"},
                pass_fds=[theirs.fileno()],
            )
        return ExecServer(ours)

    def _readable(self) -> list[str]:
        names = (*_ETC, *(_ETC_NETWORK if self.policy.network == "host" else ()))
        java = (str(path) for path in Path("/etc").glob("java-*"))
        own = (self._layout.out, *interpreter_prefixes(), *self.policy.readable)
        return [*_SYSTEM, *(f"/etc/{name}" for name in names), *java, *map(str, own)]

    def _writable(self) -> list[str]:
        layout = self._layout
        own = (layout.tmp, layout.home, layout.state, self.policy.workspace, *self.policy.writable)
        return [*_DEVICES, *map(str, own)]

    async def _attack(self, script: str, env: Mapping[str, str]) -> ExecResult:
        return await self._exec(script, cwd=self._start, env=env, limits=Limits(timeout_s=20.0))

    async def _listen(self, port: int) -> socket.socket:
        if self.policy.network == "host":
            return await super()._listen(port)
        raise SandboxError("A landlock sandbox has no network, so nothing can listen in it; use bubblewrap or docker.")

    def _places(self) -> list[files.Place]:
        return places(self.policy, self._layout, mapped=False)

    async def close(self) -> None:
        await super().close()
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._process is not None:
            process, self._process = self._process, None
            waiting = asyncio.ensure_future(process.wait())
            await finish_unbroken(asyncio.wait({waiting}, timeout=_END_S))
            if not waiting.done():
                signal_quietly(process.pid, signal.SIGKILL)
                await finish_unbroken(waiting)


_WEAKER = {
    "filesystem.write": "landlock: nothing outside of the workspace and the session's folders is made, changed or "
    "removed; but modes and times of this user's own files elsewhere can be",
    "filesystem.read": "landlock: files are read in listed folders only; but names and sizes elsewhere can be seen",
}


def _weakened(name: str, control: Control) -> Control:
    """What was attacked and held, and is not all of what the word means elsewhere."""
    return Control("partial", _WEAKER[name]) if name in _WEAKER and control.state == "verified" else control


def _promise(version: int, *, online: bool, procs: int, shm: bool) -> Promise:
    scoped = version >= _SCOPED
    found = {
        "limits.shm": Control("not_enforced", "/dev/shm of the host is writable")
        if shm
        else Control("verified", "/dev/shm cannot be written to"),
        "limits.procs": Control(
            "partial",
            f"{procs} more than this user had at the start (RLIMIT_NPROC), however many commands; not attacked",
        ),
    }
    gaps = {
        "process.isolation": Control(
            "partial",
            "processes of the host and their arguments are visible, but cannot be traced or signalled"
            if scoped
            else "processes of the host are visible, and those of this user can be signalled (this kernel is too old)",
        ),
        "workspace.exec_later": Control("not_enforced", "protected and masked paths hold for the file tools only"),
    }
    if not scoped:
        gaps["kill_tree"] = Control("partial", "a supervisor that commands can kill (this kernel is too old)")
    if online:
        gaps["unix_sockets"] = Control("not_enforced", "the sockets that this user can reach")
    return Promise(
        f"landlock ABI {version}",
        level="confined",
        how={
            "kill_tree": "supervisor that adopts whatever a command leaves behind",
            "network": "seccomp filter: no sockets",
            "unix_sockets": "seccomp filter: no sockets",
            "secrets.env": "clean environment; landlock hides that of other processes",
            "kernel.sysctl": "landlock",
        },
        gaps=gaps,
        found=found,
        namespaces=(),
        processes=1 << 22,
        hidden=(),
        # An ordinary user has no capability, and no way to one; the bounding set only root could empty.
        status={name: value for name, value in STATUS.items() if name != "CapBnd:"},
    )

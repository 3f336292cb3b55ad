"""A container per session, and in it a server that starts the commands.

Not ``docker exec``: that costs 60 ms, and cannot end what it has started. The first process of the container is our
:mod:`~operator_core.sandbox.supervised.supervisor`, as the container's root with four capabilities. It connects to a
socket of ours, which is unlinked before the first command. Commands run as another user without any capability, and
write into pipes of this process. The container ends when the socket does, and so with its worker.

Files of commands belong to the user of this process. If that is root, commands get a user of their own, and each path
is shown with its owner translated (:mod:`~operator_core.sandbox.docker.mounts`).
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import shutil
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from operator_core.clock import new_id
from operator_core.errors import SandboxError, SandboxUnavailable
from operator_core.sandbox import files
from operator_core.sandbox.docker import overmount
from operator_core.sandbox.docker.client import LABEL, Docker, explain
from operator_core.sandbox.docker.mounts import Bind, binds, make_points
from operator_core.sandbox.environment import interpreter_prefixes
from operator_core.sandbox.layout import HOME, ROOM
from operator_core.sandbox.linux.namespaces import can_administer, free_user
from operator_core.sandbox.linux.seccomp import SUPPORTED, build_filter
from operator_core.sandbox.mounts import places, policy_mounts
from operator_core.sandbox.owner import owner
from operator_core.sandbox.policy import Limits
from operator_core.sandbox.process import start_process
from operator_core.sandbox.protocol import ExecResult
from operator_core.sandbox.removal import remove_tree
from operator_core.sandbox.report import Control, Report
from operator_core.sandbox.runner import finish_unbroken
from operator_core.sandbox.selftest import attack as selftest
from operator_core.sandbox.selftest.promise import Promise
from operator_core.sandbox.session import SetupError
from operator_core.sandbox.supervised import supervisor
from operator_core.sandbox.supervised.remote import ExecServer
from operator_core.sandbox.supervised.session import RemoteSession, processes_of

__all__ = ["DockerSandbox"]

_STATE, _LINK = f"{ROOM}/state", f"{ROOM}/server"
_CONNECT_S, _CONNECT_TRIES = 1.0, 15
_CAPABILITIES = ("SETUID", "SETGID", "SETPCAP", "KILL")
# Beside the commands: the server, and a supervisor for each of them.
_SPARE_PROCESSES = 64


class DockerSandbox(RemoteSession):
    """See the module. ``options.docker_image`` is needed; it holds ``python3`` (3.9 or later) and ``/bin/bash``."""

    name = "docker"
    maps = True
    _docker: Docker | None = None
    _link: Path
    _container = ""

    async def _open(self) -> Report:
        docker, image = self._find()
        user = self._choose_user()
        limits = self.policy.limits
        self._fixed = {"HOME": HOME, "TMPDIR": "/tmp"}
        self._limits = {
            "c": 0,
            "n": limits.nofile,
            "d": limits.memory >> 10,
            "f": limits.file_size >> 10,
            # Of this user, in and out of the container; those that are there already are no part of it.
            "u": limits.procs + processes_of(user[0]),
        }
        await finish_unbroken(asyncio.to_thread(docker.sweep))
        self._link = self._layout.root / "server"
        await asyncio.to_thread(self._prepare_link, user)
        mounts = self._mounts()
        pid = await self._bring_up(docker, image, mounts)
        assert self._server is not None
        if self._translated:
            await self._translate(pid, user[0], mounts)
        entries = os.environ.get("PATH", "").split(os.pathsep)
        readable = [entry for entry in entries if any(Path(entry).is_relative_to(p) for p in self.policy.readable)]
        config = {"uid": user[0], "gid": user[1], "seccomp": build_filter().hex(), "path": readable}
        await self._server.configure(config)
        if self.policy.network == "allowlist":
            await self._open_egress()
        version = await asyncio.to_thread(docker.version)
        try:
            found = await self._look(user[0])
            promise = _promise(version, found)
            report = await selftest.examine(promise, self.policy, self._layout, self._attack, proxy=self._proxy)
        except SetupError as error:
            raise SandboxUnavailable(*explain(docker.name, image, error.why)) from error
        return dataclasses.replace(report, controls={**report.controls, **_later(report.controls)})

    def _find(self) -> tuple[Docker, str]:
        """The program and the image.

        Raises:
            SandboxUnavailable: One of them is not there, or this is no machine for it.
        """
        image = self.options.docker_image
        if sys.platform != "linux" or os.uname().machine not in SUPPORTED:
            raise SandboxUnavailable("the backend docker needs Linux on x86_64 or aarch64", "run Operator on such")
        docker = Docker(self.options.docker_program)
        if image is None:
            raise SandboxUnavailable("no image is configured", "set `docker_image` in `[sandbox]`")
        self._docker = docker
        return docker, image

    def _choose_user(self) -> tuple[int, int]:
        """The user and group of commands: never those of the server.

        Raises:
            SandboxUnavailable: This process is root and has nobody else to be.
        """
        wanted, me = self.policy.run_as, os.geteuid()
        if me:
            if wanted not in (None, me):
                raise SandboxUnavailable(
                    f"commands are to run as the user {wanted}, and only root can be somebody else",
                    "leave `run_as` out, or start Operator as root",
                )
            return me, os.getegid()
        holder = self.policy.workspace.stat()
        if wanted == 0:
            raise SandboxUnavailable("commands are to run as root, as whom a container does not hold them", "change it")
        if can_administer():
            self._translated = True
            uid = wanted or free_user()
            self._user = uid, uid
        elif holder.st_uid and wanted in (None, holder.st_uid):
            self._user = holder.st_uid, holder.st_gid
            for path in self._layout[1:]:
                os.chown(path, *self._user)
        else:
            raise SandboxUnavailable(
                "this is root without the right to mount, and the workspace belongs to root",
                "start Operator as an ordinary user, or give the workspace to one",
            )
        return self._user

    def _mounts(self) -> list[Bind]:
        own = {str(path) for path in interpreter_prefixes() if path not in self.policy.readable}
        said = binds(policy_mounts(self.policy, self._layout), empty=self._link / "empty")
        shown = [item for item in said if item.target not in own]
        room = [Bind(str(self._layout.state), _STATE, True), Bind(str(self._layout.tmp), "/var/tmp", True)]
        # A mount over a mount has to come after it, also where the program sorts them.
        mounts = sorted([*room, *shown], key=lambda item: item.target.count("/"))
        hidden = (Path(item.source) for item in mounts if Path(item.source).is_relative_to(self._link))
        make_points(mounts, (self._layout.tmp, self._layout.home, *hidden))
        return mounts

    def _prepare_link(self, user: tuple[int, int]) -> None:
        """A folder for what the server needs: it is root without root's rights, and gets what anybody could read."""
        link = self._link
        remove_tree(link)
        link.mkdir()
        shutil.copyfile(supervisor.__file__, link / "supervisor.py")
        for name, text in _accounts(*user).items():
            (link / name).write_text(text)
        for path in link.iterdir():
            path.chmod(0o644)
        link.chmod(0o755)

    async def _bring_up(self, docker: Docker, image: str, mounts: Sequence[Bind]) -> int:
        """Start the container and wait until its server is there; the id of the server here."""
        name = f"operator-{new_id()[:12]}"
        fixed = [Bind(str(self._link / file), f"/etc/{file}", False) for file in ("passwd", "group")]
        fixed.append(Bind(str(self._link), _LINK, False))
        with _listener(self._link) as listener:
            self._container = name
            arguments = [*self._arguments(docker, name), *_options([*fixed, *mounts])]
            command = ["-I", "-S", f"{_LINK}/supervisor.py", "--connect", f"{_LINK}/s"]
            # Once it is asked for, the daemon makes it: it has to be seen through before it can be removed.
            answer = await finish_unbroken(
                asyncio.to_thread(docker.ask, "run", *arguments, "--entrypoint", "python3", image, *command)
            )
            if answer.code:
                raise SandboxUnavailable(*explain(docker.name, image, answer.error))
            worker = await self._accept(docker, listener)
        if worker is None:
            raise SandboxUnavailable(
                "the container started, but the server in it did not connect",
                f"use a daemon on this machine, and an image with Python 3.9 or later; try `{docker.name} run --rm "
                f"--entrypoint python3 {image} -V`",
            )
        self._server = ExecServer(worker)
        (pid,) = struct.unpack("i8x", worker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return int(pid)

    async def _accept(self, docker: Docker, listener: socket.socket) -> socket.socket | None:
        """The server's connection; None if its container is gone, or it takes too long."""
        for _ in range(_CONNECT_TRIES):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CONNECT_S):
                    worker, _ = await asyncio.get_running_loop().sock_accept(listener)
                    return worker
            running = await asyncio.to_thread(docker.ask, "ps", "--quiet", "--filter", f"name={self._container}")
            if not running.out:
                break
        return None

    def _arguments(self, docker: Docker, name: str) -> list[str]:
        limits = self.policy.limits
        processes = limits.procs + _SPARE_PROCESSES
        words = ["--detach", "--rm", "--pull", "never", "--name", name, "--label", f"{LABEL}={owner()}"]
        words += ["--network", "host" if self.policy.network == "host" else "none", "--user", "0:0", "--workdir", "/"]
        words += ["--cap-drop", "ALL", *(word for item in _CAPABILITIES for word in ("--cap-add", item))]
        words += ["--security-opt", "no-new-privileges", "--read-only", "--ipc", "private"]
        sizes = {"pids-limit": processes, "memory": limits.memory, "memory-swap": limits.memory, "shm-size": limits.shm}
        words += [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
        words += ["--ulimit", "core=0", "--ulimit", f"nofile={limits.nofile}:{limits.nofile}", "--stop-timeout", "1"]
        words += ["--env", "LC_ALL=C.UTF-8", "--env", "PYTHONDONTWRITEBYTECODE=1"]
        if self.policy.network != "host":
            words += ["--hostname", "sandbox"]
        if docker.name == "podman":
            # Left to itself it would try to raise the limit, which not even every root may.
            most = self._limits["u"] + _SPARE_PROCESSES
            words += ["--ulimit", f"nproc={most}:{most}"]
            # Else an ordinary user would be the container's root, and everybody else a stranger.
            words += ["--userns", "keep-id"] if os.geteuid() else []
        return words

    async def _translate(self, pid: int, uid: int, mounts: Sequence[Bind]) -> None:
        """Put each path over itself with its owner translated.

        Raises:
            SandboxUnavailable: The file system cannot, or the container is not of this machine.
        """
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                process = await start_process(
                    [sys.executable, "-I", "-S", overmount.__file__, str(theirs.fileno())],
                    stdout=2,
                    stderr=2,
                    env={},
                    pass_fds=[theirs.fileno()],
                )
            ours.setblocking(False)
            loop = asyncio.get_running_loop()
            data = b""
            with contextlib.suppress(ConnectionError):  # it died; what it said is on our standard error
                await loop.sock_sendall(ours, json.dumps({"pid": pid, "uid": uid, "mounts": mounts}).encode())
                ours.shutdown(socket.SHUT_WR)
                data = await loop.sock_recv(ours, 1 << 16)
            await process.wait()
        error = json.loads(data).get("error") if data else "its helper failed"
        if error:
            raise SandboxUnavailable(
                f"what belongs to root cannot be shown to another user ({error})",
                "start Operator as an ordinary user, or use bubblewrap",
            )

    def _seen_state(self, state: Path) -> str:
        return f"{_STATE}/{state.name}"

    async def _attack(self, script: str, env: Mapping[str, str]) -> ExecResult:
        return await self._exec(script, cwd=self._start, env=env, limits=Limits(timeout_s=20.0))

    async def _look(self, uid: int) -> dict[str, Control]:
        """The limits that the container has, as seen from inside."""
        result = await self._exec(_LOOK, cwd=self._start, limits=Limits(timeout_s=20.0))
        seen = dict(line.split() for line in result.stdout.text().splitlines() if len(line.split()) == 2)
        limits = self.policy.limits

        def limit(name: str, most: int, text: str) -> Control:
            got = seen.get(name, "")
            if got.isdigit() and int(got) <= most:
                return Control("partial", f"{text} for all commands together (cgroup of the container); not attacked")
            return Control("not_enforced", "the cgroup of the container has no such limit")

        found = {
            "limits.memory": limit("memory", limits.memory, f"{limits.memory >> 20} MiB"),
        }
        if self._limits["u"] > limits.procs:
            # The self-test attacks the limit only where it counts nobody else.
            found["limits.procs"] = limit("pids", limits.procs + _SPARE_PROCESSES, f"{limits.procs} processes")
        if self._user is not None:
            found["user"] = Control("verified", f"commands have the user id {uid}, which is not root's")
            if seen.get("uid") != str(uid):
                found["user"] = Control("not_enforced", f"commands have the user id {seen.get('uid')}")
        return found

    async def _listen(self, port: int) -> socket.socket:
        if self.policy.network == "host":
            return await super()._listen(port)
        if self._server is None:
            raise SandboxError("This sandbox is closed; open a new one.")
        return await self._server.listen(port)

    def _places(self) -> list[files.Place]:
        return places(self.policy, self._layout, mapped=True)

    def _remove(self) -> None:
        if self._docker is not None and self._container:
            self._docker.remove(self._container)
            self._container = ""
        if self._server is not None:
            self._server.close()
            self._server = None
        remove_tree(self._layout.root / "server")
        super()._remove()


_LOOK = r"""
first() { local x f=$1; shift; for p; do { read -r x <"$p"; } 2>/dev/null && { echo "$f $x"; return; }; done; }
c=/sys/fs/cgroup
first memory $c/memory.max $c/memory/memory.limit_in_bytes
first pids $c/pids.max $c/pids/pids.max
echo "uid $UID"
"""


def _options(mounts: Sequence[Bind]) -> list[str]:
    return [word for item in mounts for word in item.option()]


def _accounts(uid: int, gid: int) -> dict[str, str]:
    return {
        "passwd": (
            f"root:x:0:0:root:/root:/bin/bash\nagent:x:{uid}:{gid}:Operator agent:{HOME}:/bin/bash\n"
            "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
        ),
        "group": f"root:x:0:\nagent:x:{gid}:\nnogroup:x:65534:\n",
    }


@contextlib.contextmanager
def _listener(folder: Path) -> Iterator[socket.socket]:
    """A socket in a folder, whatever the length of its path, for one connection."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener.bind(f"/proc/self/fd/{fd}/s")
        os.chmod(folder / "s", 0o666)
        listener.listen(1)
        listener.setblocking(False)
        yield listener
    finally:
        listener.close()
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(folder / "s")


def _later(controls: Mapping[str, Control]) -> dict[str, Control]:
    """What holds of protected paths where mounts are made once."""
    name = "workspace.exec_later"
    if name not in controls or controls[name].state != "partial":
        return {}
    why = "protected paths that were there at the start cannot be changed; any other file may be run later, outside"
    return {name: Control("partial", why)}


def _promise(version: str, found: Mapping[str, Control]) -> Promise:
    how = {
        "filesystem.write": "read-only image; only the workspace, /tmp and the home of the session are writable",
        "filesystem.read": "the file system of the image",
        "process.isolation": "the container's own namespaces; processes of the host are invisible",
        "kill_tree": "supervisor that adopts whatever a command leaves behind, in the container's PID namespace",
        "kernel.sysctl": "read-only in containers",
    }
    return Promise(version, how=how, found=found, namespaces=("pid", "mnt", "ipc", "uts"), processes=64, hidden=())

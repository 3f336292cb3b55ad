"""What the commands of one session share: a network, and, when this process is root, a view in which they are not.

Kept alive by file descriptors alone: nothing runs between two commands, and everything is gone when this process is.

* The network has loopback only. A server in a background job answers the next command, and a socket that was made in
  there (:meth:`Namespaces.listen`) can be served from out here.
* The view is a mount namespace in which every path of the policy is shown once more, at a place that an ordinary user
  can reach, with its owner translated: what belongs to root on the disk belongs to that user there, and the other way
  round. So commands lose root, the files keep their owners, and nothing is copied or given away.
"""

from __future__ import annotations

import asyncio
import contextlib
import marshal
import os
import pwd
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from operator_core.clock import new_id
from operator_core.errors import SandboxError
from operator_core.sandbox.process import signal_quietly, start_process
from operator_core.sandbox.runner import finish_unbroken

__all__ = ["Namespaces", "View", "can_administer", "free_user"]

STAGE = "/tmp"
_HELPER = Path(__file__).with_name("namespaces_helper.py")
_ANSWER_S = 30.0
_CAP_SYS_ADMIN = 21
# Nobody is given these by hand: systemd takes the users of short-lived services from here.
_FREE_USERS = range(61184, 65520)


class _HelperFailed(SandboxError):
    """The helper did not run to its end."""


class View(NamedTuple):
    """The paths that commands of another user are to see.

    Attributes:
        uid: That user (and group).
        paths: Host paths, and whether they have to be writable.
    """

    uid: int
    paths: tuple[tuple[Path, bool], ...]

    def staged(self, path: Path) -> Path:
        """Where the view shows a host path; the path itself if the view leaves it where it is."""
        best: tuple[int, Path] | None = None
        for number, (root, _) in enumerate(self.paths):
            if path.is_relative_to(root) and (best is None or len(root.parts) > best[0]):
                best = len(root.parts), Path(STAGE, str(number), path.relative_to(root))
        return best[1] if best else path

    def identity(self) -> tuple[tuple[int, int] | None, ...]:
        """Which files the paths are now; it changes when one of them is replaced."""
        return tuple(_identity(path) for path, _ in self.paths)


def can_administer() -> bool:
    """Whether this process is root with the right to mount."""
    if os.geteuid() != 0:
        return False
    with (
        contextlib.suppress(OSError, ValueError),
        open("/proc/self/status", encoding="ascii", errors="replace") as file,
    ):
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return False


def free_user() -> int:
    """A user id that has no name here, another one for each session."""
    start = int(new_id()[:8], 16)
    for step in range(len(_FREE_USERS)):
        uid = _FREE_USERS[(start + step) % len(_FREE_USERS)]
        try:
            pwd.getpwuid(uid)
        except KeyError:
            return uid
    return _FREE_USERS[0]


class Namespaces:
    """Made by :meth:`open`, ended by :meth:`close`.

    Attributes:
        network: Whether commands share a network of their own.
        view: What they see as another user; None: they run as this one.
        why_no_network: Why not, in a few words; empty if they do.
        why_no_view: The same for the view.
    """

    def __init__(self) -> None:
        self.network = False
        self.view: View | None = None
        self.why_no_network = ""
        self.why_no_view = ""
        self._program = ""
        self._fds: dict[str, int] = {}
        self._identity: tuple[tuple[int, int] | None, ...] = ()
        self._renewing = asyncio.Lock()

    async def open(self, *, network: bool, view: View | None) -> None:
        """Make what is wanted; what cannot be made is told in the attributes."""
        program = shutil.which("nsenter")
        if program is None:
            self.why_no_network = self.why_no_view = "there is no `nsenter`, which is in the package util-linux"
            return
        self._program = program
        kind: Literal["", "root", "user"] = ("root" if can_administer() else "user") if network else ""
        if not kind and view is None:
            return
        if view is not None:
            self._identity = view.identity()
        try:
            found, errors = await _ask(network=kind, view=view)
        except _HelperFailed as error:
            self.why_no_network = self.why_no_view = str(error)
            return
        self._fds.update(found)
        self.network = "net" in found and "network" not in errors
        self.why_no_network = errors.get("network", "")
        self.why_no_view = errors.get("stage", self.why_no_view)
        self.view = view if "mnt" in found else None

    def without_view(self, why: str) -> None:
        """Go on as the user of this process."""
        self.view, self.why_no_view = None, why
        self._close("mnt")

    async def renew(self) -> None:
        """Look again at paths that have been replaced since, so that commands see what this process sees."""
        view = self.view
        if view is None or view.identity() == self._identity:
            return
        async with self._renewing:
            identity = view.identity()
            if identity == self._identity:
                return
            found, errors = await _ask(network="", view=view)
            if "mnt" not in found:
                raise SandboxError(f"The workspace was replaced and cannot be shown again ({errors.get('stage')}).")
            self._close("mnt")
            self._fds.update(found)
            self._identity = identity

    def entrance(self) -> list[str]:
        """The words in front of a command line that start it in here; empty if nothing is shared."""
        words: list[str] = []
        if self.network:
            if "user" in self._fds:
                words += [f"--user={self._path('user')}", "--preserve-credentials"]
            words.append(f"--net={self._path('net')}")
        if self.view is not None:
            words += [f"--mount={self._path('mnt')}", "--setuid", str(self.view.uid), "--setgid", str(self.view.uid)]
        return [self._program, *words, "--"] if words else []

    async def listen(self, port: int) -> socket.socket:
        """A listening socket on 127.0.0.1 of the shared network.

        Raises:
            SandboxError: There is no shared network, or the port is taken.
        """
        if not self.network:
            raise SandboxError(f"The commands of this sandbox share no network ({self.why_no_network or 'closed'}).")
        join = [self._path(name) for name in ("user", "net") if name in self._fds]
        found, errors = await _ask(join=join, ports=[port])
        if "listener" not in found:
            raise SandboxError(f"Port {port} of the sandbox cannot be listened on: {errors.get('network')}.")
        sock = socket.socket(fileno=found["listener"])
        sock.setblocking(False)
        return sock

    def close(self) -> None:
        """Forget everything; it ends with the last command in it. May be called again."""
        self.network, self.view = False, None
        for name in list(self._fds):
            self._close(name)

    def _close(self, name: str) -> None:
        if name in self._fds:
            os.close(self._fds.pop(name))

    def _path(self, name: str) -> str:
        # Through /proc, so that no command inherits a descriptor.
        return f"/proc/{os.getpid()}/fd/{self._fds[name]}"


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        info = os.stat(path)
    except OSError:
        return None
    return info.st_dev, info.st_ino


async def _ask(
    *,
    network: Literal["", "root", "user"] = "",
    join: Sequence[str] = (),
    ports: Sequence[int] = (),
    view: View | None = None,
) -> tuple[dict[str, int], dict[str, str]]:
    """Run the helper: what it made, by name, and what went wrong, by part."""
    stage: dict[str, Any] | None = None
    if view is not None:
        stage = {"at": STAGE, "uid": view.uid, "paths": [[os.fspath(path), needed] for path, needed in view.paths]}
    request = {"network": network, "join": list(join), "listen": list(ports), "stage": stage}
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()
    with contextlib.ExitStack() as stack:
        stack.callback(ours.close)
        stack.callback(theirs.close)
        messages = os.memfd_create("messages", os.MFD_CLOEXEC)
        stack.callback(os.close, messages)
        process = await start_process(
            [sys.executable, "-I", "-S", str(_HELPER), str(theirs.fileno())],
            stdout=messages,
            stderr=messages,
            env={},
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()
        waiting = asyncio.ensure_future(process.wait())
        data = b""
        fds: list[int] = []
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended, and says why
                ours.sendall(marshal.dumps(request))
                ours.shutdown(socket.SHUT_WR)
            loop.add_reader(ours, _settle, answered)
            await asyncio.wait({answered}, timeout=_ANSWER_S)
            if not answered.done():
                raise SandboxError("The sandbox was not made within 30 s; try again when the machine has less to do.")
            data, fds, _, _ = socket.recv_fds(ours, 1 << 16, 16)
        finally:
            loop.remove_reader(ours)
            if process.returncode is None:
                signal_quietly(process.pid, signal.SIGKILL)
            try:
                await finish_unbroken(waiting)
            except asyncio.CancelledError:
                for fd in fds:
                    os.close(fd)
                raise
        if not data:
            os.lseek(messages, 0, os.SEEK_SET)
            said = os.read(messages, 4096).decode("utf-8", "replace").strip().splitlines()
            raise _HelperFailed(f"the helper for namespaces failed with `{said[-1] if said else 'no message'}`")
        reply = marshal.loads(data)
        for fd in fds:
            os.set_inheritable(fd, False)
        return dict(zip(reply["names"], fds, strict=True)), dict(reply["errors"])


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)

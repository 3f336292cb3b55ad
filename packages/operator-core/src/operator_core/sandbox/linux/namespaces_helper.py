"""Makes what the commands of a session share, in a process of its own: a program with many threads may not.

A program (``python3 -I -S namespaces_helper.py FD``), with few modules because every session waits for it. It reads one
request (marshalled, to the end) from the socket FD, answers with one message (marshalled, and file descriptors beside
it), and ends; what it made lives on in the descriptors. :mod:`operator_core.sandbox.linux.namespaces` asks.
"""

from __future__ import annotations

import array
import ctypes
import fcntl
import marshal
import os
import socket
import struct
import sys

MYPY = False
if MYPY:
    from typing import Any

__all__ = ["main"]

NEWNS, NEWUSER, NEWNET = 0x00020000, 0x10000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x4000, 0x40000
# The same numbers on every architecture.
OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
CLONE_TREE, CLOEXEC, RECURSIVE, EMPTY_PATH, FROM_EMPTY_PATH = 0x1, 0x80000, 0x8000, 0x1000, 0x4
ATTR_IDMAP = 0x00100000
AT_FDCWD = -100
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
LAST_ID = 0xFFFFFFFE

libc = ctypes.CDLL(None, use_errno=True)


def call(result: int, what: str) -> int:
    """Raise what the C library says if a call failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def loopback_up() -> None:
    with socket.socket() as sock:
        fcntl.ioctl(sock, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", IFF_UP))


def make_network(user: bool) -> None:
    """A network with nothing but loopback; without rights of its own it needs a user namespace around it."""
    if user:
        owner, group = os.geteuid(), os.getegid()
        call(libc.unshare(NEWUSER | NEWNET), "unshare")
        write("/proc/self/setgroups", "deny")
        # Not 0: a program started by uid 0 of a user namespace has all rights in it.
        write("/proc/self/uid_map", f"1000 {owner} 1")
        write("/proc/self/gid_map", f"1000 {group} 1")
    else:
        call(libc.unshare(NEWNET), "unshare")
    loopback_up()


def join(paths: list[str]) -> None:
    fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    for fd in fds:
        call(libc.setns(fd, 0), "setns")
        os.close(fd)


def listener(port: int) -> int:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    sock.listen(128)
    return sock.detach()


def identity_map(owner: int, uid: int) -> str:
    """``owner`` on the disk is ``uid``, and everybody else is who he is."""
    low, high = sorted((owner, uid))
    lines = [f"{owner} {uid} 1"]
    for first, end in ((0, low), (low + 1, high), (high + 1, LAST_ID)):
        if end > first:
            lines.append(f"{first} {first} {end - first}")
    return "\n".join(lines)


def user_namespace(owner: int, group: int, uid: int) -> int:
    """A user namespace that exists for its maps only."""
    ready, done = os.pipe()
    go_on, release = os.pipe()
    child = os.fork()
    if not child:
        os.close(release)
        os.write(done, b"+" if libc.unshare(NEWUSER) == 0 else b"-")
        os.read(go_on, 1)
        os._exit(0)
    try:
        if os.read(ready, 1) != b"+":
            raise OSError("user namespaces are off")
        for name, disk in (("uid_map", owner), ("gid_map", group)):
            try:
                write(f"/proc/{child}/{name}", identity_map(disk, uid))
            except OSError:  # not all ids exist here
                write(f"/proc/{child}/{name}", f"{disk} {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(release)
        os.waitpid(child, 0)
        for fd in (ready, done, go_on):
            os.close(fd)


def stage(at: str, uid: int, paths: list[tuple[str, bool]]) -> None:
    """A mount namespace where ``at/N`` is the N-th path, and belongs to ``uid`` if it belongs to its owner outside."""
    users: dict[tuple[int, int], int] = {}
    trees: list[tuple[int, bool]] = []
    for path, write_ in paths:
        info = os.stat(path)
        tree = call(libc.syscall(OPEN_TREE, AT_FDCWD, os.fsencode(path), CLONE_TREE | CLOEXEC | RECURSIVE), path)
        trees.append((tree, os.path.isdir(path)))
        owner = info.st_uid, info.st_gid
        if owner == (uid, uid):
            continue
        try:
            if owner not in users:
                users[owner] = user_namespace(*owner, uid)
            attributes = struct.pack("<QQQQ", ATTR_IDMAP, 0, 0, users[owner])
            call(
                libc.syscall(MOUNT_SETATTR, tree, b"", EMPTY_PATH | RECURSIVE, attributes, len(attributes)),
                f"{path}: its file system cannot show it as another user's",
            )
        except OSError:
            if write_:
                raise
    call(libc.unshare(NEWNS), "unshare")
    call(libc.mount(None, b"/", None, MS_REC | MS_PRIVATE, None), "mount")
    call(libc.mount(b"tmpfs", at.encode(), b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=0755,size=1m"), "mount")
    for number, (tree, directory) in enumerate(trees):
        target = f"{at}/{number}"
        if directory:
            os.mkdir(target, 0o755)
        else:
            write(target, "")
        call(libc.syscall(MOVE_MOUNT, tree, b"", AT_FDCWD, target.encode(), FROM_EMPTY_PATH), "move_mount")


def answer(request: dict[str, Any]) -> tuple[dict[str, Any], list[int]]:
    names: list[str] = []
    fds: list[int] = []
    errors: dict[str, str] = {}

    def keep(name: str, fd: int) -> None:
        names.append(name)
        fds.append(fd)

    try:
        if request["network"]:
            make_network(request["network"] == "user")
            keep("net", os.open("/proc/self/ns/net", os.O_RDONLY))
            if request["network"] == "user":
                keep("user", os.open("/proc/self/ns/user", os.O_RDONLY))
        join(request["join"])
        for port in request["listen"]:
            keep("listener", listener(port))
    except OSError as error:
        errors["network"] = str(error.strerror or error)
    if request["stage"]:
        try:
            stage(**request["stage"])
            keep("mnt", os.open("/proc/self/ns/mnt", os.O_RDONLY))
        except OSError as error:
            errors["stage"] = str(error.strerror or error)
    return {"names": names, "errors": errors}, fds


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as sock:
        data = b""
        while chunk := sock.recv(1 << 16):
            data += chunk
        reply, fds = answer(marshal.loads(data))
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        sock.sendmsg([marshal.dumps(reply)], rights)


if __name__ == "__main__":
    main()

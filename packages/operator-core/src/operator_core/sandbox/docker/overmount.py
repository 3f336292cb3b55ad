"""In the mount namespace of a container, put over each path the same path once more, with its owner translated.

A program (``python3 -I -S overmount.py FD``). See :mod:`operator_core.sandbox.linux.namespaces` for why.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import socket
import struct
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

_READ_ONLY = 0x1
_SETATTR_RECURSIVE = 0x9000  # AT_EMPTY_PATH, AT_RECURSIVE
_HELPER = Path(__file__).parents[1] / "linux" / "namespaces_helper.py"


def main(fd: int) -> int:
    """Read ``{"pid", "uid", "mounts": [[source, target, writable]]}``, do it, answer with ``{}`` or an error."""
    helper = _load_helper()
    with socket.socket(fileno=fd) as sock:
        data = b""
        while chunk := sock.recv(1 << 16):
            data += chunk
        try:
            _overmount(helper, **json.loads(data))
            answer = {}
        except OSError as error:
            answer = {"error": str(error.strerror or error)}
        sock.sendall(json.dumps(answer).encode())
    return 0


def _overmount(helper: Any, pid: int, uid: int, mounts: list[tuple[str, str, bool]]) -> None:
    users: dict[tuple[int, int], int] = {}
    ready = []
    for source, target, writable in mounts:
        flags = helper.CLONE_TREE | helper.CLOEXEC | (helper.RECURSIVE if writable else 0)
        tree = helper.call(helper.libc.syscall(helper.OPEN_TREE, helper.AT_FDCWD, os.fsencode(source), flags), source)
        info = os.stat(source)
        owner = info.st_uid, info.st_gid
        if not writable:
            helper.call(_set(helper, tree, _READ_ONLY), source)
        if owner != (uid, uid):
            if owner not in users:
                users[owner] = helper.user_namespace(*owner, uid)
            result = _set(helper, tree, helper.ATTR_IDMAP, users[owner])
            if result < 0 and writable:
                helper.call(result, f"{source}: its file system cannot show it as another user's")
        ready.append((tree, target))
    helper.join([f"/proc/{pid}/ns/mnt"])
    os.chdir("/")
    for tree, target in ready:
        moved = helper.libc.syscall(
            helper.MOVE_MOUNT, tree, b"", helper.AT_FDCWD, os.fsencode(target), helper.FROM_EMPTY_PATH
        )
        helper.call(moved, target)


def _set(helper: Any, tree: int, attributes: int, user: int = 0) -> int:
    wanted = struct.pack("<QQQQ", attributes, 0, 0, user)
    size = ctypes.c_size_t(len(wanted))
    result: int = helper.libc.syscall(helper.MOUNT_SETATTR, tree, b"", _SETATTR_RECURSIVE, wanted, size)
    return result


def _load_helper() -> Any:
    spec = importlib.util.spec_from_file_location("namespaces_helper", _HELPER)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

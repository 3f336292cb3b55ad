"""An interpreter that has imported the product, and forks itself for each program it is asked to run.

It is a program of :mod:`tests.support.warm`, and speaks with that over the socket whose number is its argument.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import io
import os
import pickle
import platform
import runpy
import signal
import socket
import struct
import sys
import threading
import time
import types
import warnings
from typing import Any

from operator_core import failpoints

CLONE_PARENT, CHILD_CLEARTID, CHILD_SETTID = 0x8000, 0x200000, 0x1000000
PR_GET_TID_ADDRESS, PR_SET_MM, PR_SET_MM_MAP = 40, 35, 14
SYS_CLONE = {"x86_64": 56, "aarch64": 220}

WANTED = (
    "operator_core.cli.main",
    "operator_core.cli.submit",
    "operator_core.cli.tickets",
    "operator_core.cli.audit",
    "operator_core.cli.sessions",
    "operator_core.cli.play",
    "operator_core.cli.face",
    "operator_core.work.process",
    "operator_core.agent_lab.agent_run",
    "operator_core.api.local",
    "operator_core.client.client",
    "operator_core.web.app",
    "operator_core.web.serve",
    "operator_core.monitor.configured",
    "operator_dataverse.cli",
    "operator_dataverse.source",
    "aiosqlite",
    "alembic.command",
    "asyncpg",
    "sqlalchemy.dialects.postgresql.asyncpg",
    "sqlalchemy.dialects.sqlite.aiosqlite",
    "uvicorn",
)
"""What programs of the product import anyway, when they need it; what is missing here is only slower."""


def clone_as_sibling() -> int:
    """``fork``, but the new process is a child of our parent, which can wait for it as for any other it started."""
    libc, python = ctypes.PyDLL(None, use_errno=True), ctypes.pythonapi
    tid = ctypes.c_void_p()
    # The C library keeps the id of the thread in memory, and only its own fork would put the new one there.
    if libc.prctl(PR_GET_TID_ADDRESS, ctypes.byref(tid), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    flags = CLONE_PARENT | CHILD_CLEARTID | CHILD_SETTID | signal.SIGCHLD
    words = (tid, None) if platform.machine() == "x86_64" else (None, tid)
    number = ctypes.c_long(SYS_CLONE[platform.machine()])
    libc.syscall.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid: int = libc.syscall(number, ctypes.c_ulong(flags), None, None, *words)
    if pid == 0:
        python.PyOS_AfterFork_Child()
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]
    else:
        python.PyOS_AfterFork_Parent()
        if pid < 0:
            raise OSError(ctypes.get_errno(), "clone")
    return pid


def show(words: list[bytes], variables: list[bytes]) -> None:
    """Make ``/proc`` tell our words and variables, and not those of the process that was forked."""
    with open("/proc/self/stat", "rb") as file:
        stat = [int(field) for field in file.read().rpartition(b")")[2].split()[1:]]
    start_code, end_code, stack = stat[22:25]
    start_data, end_data, start_heap, arg_start, arg_end, env_start, env_end = stat[41:48]
    shown = [b"".join(text + b"\0" for text in texts) for texts in (words, variables)]
    for start, end, text in ((arg_start, arg_end, shown[0]), (env_start, env_end, shown[1])):
        assert len(text) <= end - start
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, text, len(text))
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    places = (start_code, end_code, start_data, end_data, start_heap, libc.sbrk(0), stack)
    ends = (arg_start, arg_start + len(shown[0]), env_start, env_start + len(shown[1]))
    memory = struct.pack("11QQIi", *places, *ends, 0, 0, -1)
    # Where the kernel does not know this, zero bytes follow.
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, memory, ctypes.c_ulong(len(memory)), 0)


def become(request: dict[str, Any], fds: list[int]) -> None:
    """Take over what a new process gets from who starts it."""
    for target, fd in enumerate(fds):
        os.dup2(fd, target)
    for fd in fds:
        if fd > 2:
            os.close(fd)
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    variables: dict[bytes, bytes] = request["env"]
    os.environb.clear()
    show(request["argv"], [name + b"=" + value for name, value in variables.items()])
    os.environb.update(variables)
    time.tzset()
    # The one thing that the product reads from its environment while it is imported.
    failpoints.arm(os.environ.get("OPERATOR_CRASH_AT", ""))
    signal.signal(signal.SIGINT, signal.default_int_handler if request["interruptible"] else signal.SIG_IGN)

    sys.dont_write_bytecode = bool(variables.get(b"PYTHONDONTWRITEBYTECODE"))
    through = bool(variables.get(b"PYTHONUNBUFFERED"))
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        old = getattr(sys, name)
        raw = io.FileIO(fd, mode, closefd=False)
        raw.name = f"<{name}>"
        raw_or_buffer: Any = io.BufferedReader(raw) if fd == 0 else raw if through else io.BufferedWriter(raw)
        text = io.TextIOWrapper(
            raw_or_buffer,
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=not through and (fd == 2 or os.isatty(fd)),
            write_through=through,
        )
        text.mode = mode  # type: ignore[misc]
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
        # Closing these at the end of the process would close the descriptors of the new ones.
        with contextlib.suppress(AttributeError, ValueError):
            old.detach()


def run(words: list[str]) -> None:
    """Run what an interpreter with these words runs."""
    sys.orig_argv = words
    rest = words[1:]
    if rest[0] == "-W":
        sys.warnoptions[:] = [rest[1]]
        warnings._processoptions(sys.warnoptions)  # type: ignore[attr-defined]
        rest = rest[2:]
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = __builtins__
    sys.modules["__main__"] = main
    if rest[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[2:]], ""
        exec(compile(rest[1], "<string>", "exec"), main.__dict__)
    elif rest[0] == "-m":
        sys.argv, sys.path[0] = ["-m", *rest[2:]], os.getcwd()
        runpy._run_module_as_main(rest[1])  # type: ignore[attr-defined]
    else:
        sys.argv, sys.path[0] = rest, os.path.dirname(rest[0])
        with io.open_code(rest[0]) as file:
            code = compile(file.read(), rest[0], "exec")
        main.__dict__["__file__"] = rest[0]
        exec(code, main.__dict__)


def ended(words: list[str]) -> int:
    """Run the program, say what it died of as an interpreter does, and return its exit code or minus a signal."""
    try:
        run(words)
    except SystemExit as stop:
        if isinstance(stop.code, int):
            return stop.code & 0xFF
        if stop.code is not None:
            print(stop.code, file=sys.stderr)
        return int(stop.code is not None)
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def end(code: int) -> None:
    """What an interpreter does at its end, without taking apart every module that was imported."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    # What the program dropped without closing it is reported by its finalizer.
    vars(sys.modules["__main__"]).clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            sys.stderr.write(f"Exception ignored in: {stream!r}\n{type(error).__name__}: {error}\n")
            code = 120
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def serve(line: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork for each request until nobody asks any more; returns in the new processes only."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, ancillary, *_ = line.recvmsg(4, socket.CMSG_SPACE(3 * 4))
        if not head:
            os._exit(0)
        fds = array.array("i")
        for _, _, data in ancillary:
            fds.frombytes(data)
        (size,) = struct.unpack("I", head)
        body = b""
        while len(body) < size:
            body += line.recv(size - len(body))
        pid = clone_as_sibling()
        if pid == 0:
            line.close()
            return pickle.loads(body), list(fds)
        for fd in fds:
            os.close(fd)
        line.sendall(struct.pack("i", pid))


if __name__ == "__main__":
    for module in WANTED:
        # A module that is broken says so in the program that needs it.
        with contextlib.suppress(Exception):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    wanted, given = serve(socket.socket(fileno=int(sys.argv[1])))
    become(wanted, given)
    end(ended([os.fsdecode(word) for word in wanted["argv"]]))

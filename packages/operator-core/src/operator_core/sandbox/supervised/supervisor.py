"""Runs commands for a worker on the other end of a socket, and ends everything that they start.

A program of its own (``python3 -I -S supervisor.py``), with the standard library only: it is the first process of a
container, or a process beside the worker for the landlock tier. It forks one supervisor per command. A supervisor is a
*subreaper*: whatever its command starts stays below it, daemons included, so that it can end all of it.

The worker speaks first; each message is one packet with file descriptors:

    ``C``  configuration (JSON in the descriptor)
    ``E``  start a command: request (JSON), standard output, standard error, control socket, command
    ``L``  make a listening TCP socket and answer with it: control socket

Over the control socket the worker says ``T`` (end, please) or ``K`` (end now), and hears once how it ended. The end of
the worker is the end of both sockets, and so of everything here. A command that could not be set up says so in its
standard error, behind :data:`FAILURE`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

__all__ = ["FAILURE", "PACKET", "landlock_abi", "main"]

FAILURE = "sandbox: "
PACKET = 64
_FDS = 5
# After that, what is left cannot be ended: it waits for a broken disk.
_ROUND_S, _ROUNDS = 0.01, 1000

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 4, 22, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446

_READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, read a folder
_FILE = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # what can be said of a file
_ANY = (1 << 13) - 1
_REFER, _TRUNCATE, _IOCTL = 1 << 13, 1 << 14, 1 << 15

_LISTED = os.path.exists("/proc/thread-self/children")
"""Whether this kernel lists the children of a process (CONFIG_PROC_CHILDREN)."""

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: Any) -> int:
    result: int = getattr(_libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def landlock_abi() -> int:
    """The version of landlock in this kernel; 0 if there is none."""
    try:
        return _call("syscall", _CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(1))
    except OSError:
        return 0


# -- the server


def main(arguments: list[str]) -> int:
    """``--fd N`` serves a socket that was inherited, ``--connect PATH`` one that the worker listens on."""
    if arguments[0] == "--connect":
        worker = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        worker.connect(arguments[1])
    else:
        worker = socket.socket(fileno=int(arguments[1]))
        worker.set_inheritable(False)
    # Nobody of the same user may look into it, or into a supervisor.
    _call("prctl", _PR_SET_DUMPABLE, 0, 0, 0, 0)
    _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake = _children_wake()
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    poll.register(wake, select.POLLIN)
    supervisors: set[int] = set()
    config: dict[str, Any] = {}
    while True:
        for fd, _ in poll.poll():
            if fd == wake:
                _drain(wake)
                supervisors -= _reap()
                # A supervisor that was killed leaves its command to us.
                for child in set(_children(os.getpid())) - supervisors:
                    _end_all(child)
                continue
            packet, fds, _, _ = socket.recv_fds(worker, PACKET, _FDS)
            if not packet:
                _wait_for(supervisors)
                return 0
            if packet == b"C":
                config = _json(fds[0])
            elif packet == b"L":
                _listen(*fds)
            elif packet == b"E":
                try:
                    pid = os.fork()
                except OSError as error:  # too many processes
                    _refuse(error, fds[2], fds[3])
                else:
                    if not pid:
                        worker.close()
                        _supervise(config, *fds)
                    supervisors.add(pid)
            for number in fds:
                os.close(number)


def _children_wake() -> int:
    """A descriptor that becomes readable when a child has ended."""
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    return reading


def _drain(fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while os.read(fd, 512):
            pass


def _json(fd: int) -> dict[str, Any]:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(0)
        found: dict[str, Any] = json.load(file)
        return found


def _listen(request: int, control: int) -> None:
    answer = socket.socket(fileno=os.dup(control))
    try:
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", _json(request)["port"]))
            listener.listen(128)
            socket.send_fds(answer, [b"{}"], [listener.fileno()])
    except OSError as error:
        with contextlib.suppress(OSError):
            answer.send(json.dumps({"error": error.strerror}).encode())
    finally:
        answer.close()


def _refuse(error: OSError, err: int, control: int) -> None:
    """There is no supervisor for a command, so it has not run."""
    with contextlib.suppress(OSError):
        os.write(err, f"{FAILURE}{error.strerror}\n".encode())
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(control)) as answer:
        answer.send(json.dumps({"status": 126, "left": 0}).encode())


def _wait_for(supervisors: set[int]) -> None:
    """The worker is gone: each supervisor has seen that too. Those that do not end are ended, with all below."""
    for _ in range(_ROUNDS):
        supervisors -= _reap()
        if not supervisors:
            break
        select.select([], [], [], _ROUND_S)
    for child in _children(os.getpid()):
        _end_all(child)


# -- one supervisor per command


def _supervise(config: dict[str, Any], request: int, out: int, err: int, control: int, command: int) -> NoReturn:
    """Start one command, wait for it, end what it leaves, say how it was."""
    try:
        wake = _children_wake()
        _call("prctl", _PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        try:
            payload = os.fork()
        except OSError as error:
            _refuse(error, err, control)
            os._exit(0)
        if not payload:
            _become(config, _json(request), out, err, command)
        for fd in (request, out, err, command):
            os.close(fd)
        with socket.socket(fileno=control) as worker:
            status, left = _watch(worker, wake, payload)
            with contextlib.suppress(OSError):
                worker.send(json.dumps({"status": status, "left": left}).encode())
    except BaseException as error:
        os.write(2, f"{FAILURE}{error!r}\n".encode())
    finally:
        os._exit(0)


def _watch(worker: socket.socket, wake: int, payload: int) -> tuple[int | None, int]:
    poll = select.poll()
    poll.register(worker, select.POLLIN)
    poll.register(wake, select.POLLIN)
    ended: dict[int, int] = {}
    while payload not in ended:
        for fd, _ in poll.poll():
            if fd == wake:
                _drain(wake)
                _reap(ended)
            else:
                if _word(worker) == b"T":
                    for pid in _descendants(os.getpid()):
                        _signal(pid, signal.SIGTERM)
                else:
                    poll.unregister(worker)
                    _end_below(wake, ended)
    left = sum(_stat(pid)[0] not in "ZX" for pid in _descendants(os.getpid()))
    _end_below(wake, ended)
    return ended.get(payload), left


def _word(worker: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionError):
        return worker.recv(1)
    return b""


def _end_below(wake: int, ended: dict[int, int]) -> None:
    """End all that is below this process, until there is nothing left."""
    for _ in range(_ROUNDS):
        _reap(ended)
        children = _children(os.getpid())
        if not children:
            return
        for child in children:
            _end_all(child)
        if select.select([wake], [], [], _ROUND_S)[0]:
            _drain(wake)


def _end_all(root: int) -> None:
    """Kill a process and what is below it. All of it is stopped before, so that nothing is started meanwhile."""
    seen: list[int] = []
    fresh = [root]
    while fresh:
        for pid in fresh:
            _signal(pid, signal.SIGSTOP)
        seen += fresh
        fresh = [pid for pid in _descendants(root) if pid not in seen]
    for pid in seen:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _reap(ended: dict[int, int] | None = None) -> set[int]:
    found = set()
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            found.add(pid)
            if ended is not None:
                ended[pid] = os.waitstatus_to_exitcode(status)
    return found


def _children(pid: int) -> list[int]:
    if not _LISTED:
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(name)[1] == str(pid)]
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(word) for word in file.read().split()]
    return found


def _descendants(pid: int) -> list[int]:
    found: list[int] = []
    queue = [pid]
    while queue:
        children = _children(queue.pop())
        found += children
        queue += children
    return found


def _stat(pid: int | str) -> list[str]:
    """The fields of ``/proc/PID/stat`` after the name: its state, its parent, ..."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X", ""]


# -- the command


def _become(config: dict[str, Any], request: dict[str, Any], out: int, err: int, command: int) -> NoReturn:
    """Give up every right, then become the command."""
    try:
        os.setsid()
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        # Beyond the places where they are wanted, whatever numbers they came with.
        safe = [os.dup(fd) for fd in (out, err, command)]
        for wanted, fd in enumerate(safe, 1):
            os.dup2(fd, wanted)
        os.closerange(4, 1 << 16)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
            signal.signal(number, signal.SIG_DFL)  # also what our starter's starter ignored, e.g. for a background job
        os.umask(0o022)
        os.chdir("/")
        _call("prctl", _PR_SET_DUMPABLE, 1, 0, 0, 0)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write("500")  # if memory is short, this and not its supervisor
        if config.get("uid") is not None:
            _drop(config["uid"], config["gid"])
        _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if config.get("landlock"):
            _restrict(**config["landlock"])
        _filter(bytes.fromhex(config["seccomp"]))
        # That of the image, which alone knows where its programs are.
        path = os.pathsep.join([*config.get("path", ()), os.environ.get("PATH", "/usr/bin:/bin")])
        os.execve(request["argv"][0], request["argv"], {"PATH": path, **request["env"]})
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(2, f"{FAILURE}{error}\n".encode())
    finally:
        os._exit(126)


def _drop(uid: int, gid: int) -> None:
    """From the root of a container to an ordinary user without any capability."""
    for capability in range(64):
        try:
            _call("prctl", _PR_CAPBSET_DROP, capability, 0, 0, 0)
        except OSError:
            break  # there are no more of them
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _call("prctl", _PR_CAP_AMBIENT, 4, 0, 0, 0)
    header, nothing = struct.pack("<Ii", 0x20080522, 0), bytes(24)
    _call("syscall", _CAPSET[os.uname().machine], header, nothing)


def _restrict(readable: list[str], writable: list[str], network: bool) -> None:
    """Landlock: these paths only, no TCP unless ``network``, no signals and no abstract sockets out of here."""
    abi = landlock_abi()
    if not abi:
        raise OSError("this kernel has no landlock")
    everything = _ANY | (_REFER if abi >= 2 else 0) | (_TRUNCATE if abi >= 3 else 0) | (_IOCTL if abi >= 5 else 0)
    rules = struct.pack("<Q", everything)
    if abi >= 4:
        rules += struct.pack("<Q", 0 if network else 3)
    if abi >= 6:
        rules += struct.pack("<Q", 2 if network else 3)
    ruleset = _call("syscall", _CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    for paths, rights in ((readable, _READ), (writable, everything)):
        for path in paths:
            try:
                fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            here = rights if os.path.isdir(path) else rights & _FILE & everything
            rule = struct.pack("<Qi", here, fd)
            _call("syscall", _ADD_RULE, ruleset, 1, rule, 0)
            os.close(fd)
    _call("syscall", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _filter(program: bytes) -> None:
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    buffer = ctypes.create_string_buffer(program, len(program))
    whole = Program(len(program) // 8, ctypes.cast(buffer, ctypes.c_void_p))
    _call("prctl", _PR_SET_SECCOMP, 2, ctypes.byref(whole), 0, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

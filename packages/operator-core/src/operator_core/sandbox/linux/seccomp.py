"""A seccomp filter for bubblewrap, assembled here: no library, about 0.1 ms.

It refuses what namespaces do not cover: kernel interfaces that a command never needs (io_uring, keyrings, bpf, the
mount API, new user namespaces), socket families that are in no network namespace (vsock talks to the hypervisor),
typing into the terminal, and setuid bits, with which a file in the workspace would carry root's rights to the host.
"""

from __future__ import annotations

import errno
import platform
import struct

__all__ = ["SUPPORTED", "build_filter", "system_call"]

# <linux/filter.h>, <linux/seccomp.h>, <linux/audit.h>
_LOAD, _EQUAL, _BITS, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SUPPORTED = frozenset(_AUDIT_ARCH)

_SYSCALL, _ARCH = 0, 4
_CLONE_NEWUSER = 0x10000000
_X32_BIT = 0x40000000
_SET_ID_BITS = 0o6000
_IOCTLS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

# Since number 424 all architectures agree.
_COMMON = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "openat2": 437, "pidfd_getfd": 438,
    "mount_setattr": 442, "quotactl_fd": 443, "fchmodat2": 452,
}  # fmt: skip
_NUMBERS = {
    "x86_64": _COMMON | {
        "open": 2, "mmap": 9, "ioctl": 16, "socket": 41, "socketpair": 53, "clone": 56, "creat": 85, "chmod": 90,
        "fchmod": 91,
        "ptrace": 101, "syslog": 103, "mknod": 133, "pivot_root": 155, "chroot": 161, "acct": 163,
        "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
        "sethostname": 170, "setdomainname": 171,
        "iopl": 172, "ioperm": 173, "init_module": 175, "delete_module": 176, "quotactl": 179, "clock_settime": 227,
        "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "openat": 257, "mknodat": 259,
        "fchmodat": 268, "unshare": 272, "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304,
        "prlimit64": 302, "setns": 308, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312,
        "finit_module": 313, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
    "aarch64": _COMMON | {
        "ioctl": 29, "mknodat": 33, "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "fchmod": 52,
        "fchmodat": 53, "openat": 56, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "ptrace": 117, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "socket": 198, "socketpair": 199, "add_key": 217,
        "request_key": 218, "keyctl": 219, "clone": 220, "mmap": 222, "swapon": 224, "swapoff": 225,
        "perf_event_open": 241,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "prlimit64": 261, "setns": 268,
        "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272, "finit_module": 273,
        "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    },
}  # fmt: skip

_REFUSED = [
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "pidfd_getfd",
    "mount_setattr",
    "quotactl_fd",
    "syslog",
    "pivot_root",
    "chroot",
    "acct",
    "settimeofday",
    "mount",
    "umount2",
    "swapon",
    "swapoff",
    "reboot",
    "sethostname",
    "setdomainname",
    "iopl",
    "ioperm",
    "init_module",
    "delete_module",
    "quotactl",
    "clock_settime",
    "kexec_load",
    "add_key",
    "request_key",
    "keyctl",
    "unshare",
    "perf_event_open",
    "open_by_handle_at",
    "name_to_handle_at",
    "setns",
    "kcmp",
    "finit_module",
    "kexec_file_load",
    "bpf",
    "userfaultfd",
]
# What reaches other processes of the same user, where they are in the same namespaces.
_BESIDE = {
    "x86_64": {
        "shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "msgget": 68, "msgsnd": 69,
        "msgrcv": 70, "msgctl": 71, "setpriority": 141, "sched_setparam": 142, "sched_setscheduler": 144,
        "sched_setaffinity": 203, "semtimedop": 220, "mq_open": 240, "mq_unlink": 241, "ioprio_set": 251,
        "migrate_pages": 256, "move_pages": 279, "sched_setattr": 314,
    },
    "aarch64": {
        "ioprio_set": 30, "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122,
        "setpriority": 140, "mq_open": 180, "mq_unlink": 181, "msgget": 186, "msgctl": 187, "msgrcv": 188,
        "msgsnd": 189, "semget": 190, "semctl": 191, "semtimedop": 192, "semop": 193, "shmget": 194, "shmctl": 195,
        "shmat": 196, "migrate_pages": 238, "move_pages": 239, "sched_setattr": 274,
    },
}  # fmt: skip
_NOT_BESIDE = (
    "ptrace", "process_vm_readv", "process_vm_writev", "shmget", "shmat", "shmctl", "semget", "semop", "semctl",
    "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "migrate_pages", "move_pages",
)  # fmt: skip
# Which arguments have to be 0, for "this process".
_OWN_ARGUMENTS = {
    "prlimit64": (0,), "setpriority": (0, 1), "sched_setparam": (0,), "sched_setscheduler": (0,),
    "sched_setaffinity": (0,), "sched_setattr": (0,), "ioprio_set": (1,),
}  # fmt: skip
# Their flags are behind a pointer, which a filter cannot follow; callers fall back to the older call.
_UNKNOWN = ("clone3", "openat2")
# Which argument holds the mode.
_MODE_ARGUMENT = {
    "chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2, "mknod": 1, "mknodat": 2, "open": 2, "creat": 1,
    "openat": 3,
}  # fmt: skip


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _argument(index: int) -> bytes:
    return _op(_LOAD, 16 + 8 * index)  # its lower half: both architectures are little-endian


def _error(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def build_filter(machine: str | None = None, *, sockets: bool = True, beside: bool = True) -> bytes:
    """The filter as an array of 8-byte classic BPF instructions.

    Args:
        machine: ``x86_64`` or ``aarch64``; default this machine.
        sockets: Whether commands may make sockets (pairs of them they may); without an own network namespace they
            would be those of the host.
        beside: Whether commands may look into other processes, limit, slow and move them, and share memory, semaphores
            and queues with them; without own namespaces these would be those of the host.

    Raises:
        KeyError: There is no table for the machine; see :data:`SUPPORTED`.
    """
    machine = machine or platform.machine()
    numbers = _NUMBERS[machine] | _BESIDE[machine]
    program = [_op(_LOAD, _ARCH), _op(_EQUAL, _AUDIT_ARCH[machine], 1), _op(_RETURN, _KILL), _op(_LOAD, _SYSCALL)]
    if machine == "x86_64":
        program += [_op(_AT_LEAST, _X32_BIT, 0, 1), _op(_RETURN, _KILL)]
    blocks: list[tuple[str, list[bytes]]] = [(name, [_error(errno.EPERM)]) for name in _REFUSED]
    blocks += [(name, [_error(errno.ENOSYS)]) for name in _UNKNOWN]
    refuse_if = [_error(errno.EPERM), _op(_RETURN, _ALLOW)]
    blocks.append(("clone", [_argument(0), _op(_BITS, _CLONE_NEWUSER, 0, 1), *refuse_if]))
    blocks.append(("ioctl", [_argument(1), _op(_EQUAL, _IOCTLS[0], 1), _op(_EQUAL, _IOCTLS[1], 0, 1), *refuse_if]))
    known = [_op(_EQUAL, family, len(_FAMILIES) - place) for place, family in enumerate(_FAMILIES)]
    if not beside:
        blocks += [(name, [_error(errno.EPERM)]) for name in _NOT_BESIDE]
        for name, indexes in _OWN_ARGUMENTS.items():
            own = [op for index in indexes for op in (_argument(index), _op(_EQUAL, 0, 1), _error(errno.EPERM))]
            blocks.append((name, [*own, _op(_RETURN, _ALLOW)]))
    if not sockets:
        blocks.append(("socket", [_error(errno.EAFNOSUPPORT)]))
    for name in ("socket", "socketpair") if sockets else ("socketpair",):
        blocks.append((name, [_argument(0), *known, _error(errno.EAFNOSUPPORT), _op(_RETURN, _ALLOW)]))
    for name, index in _MODE_ARGUMENT.items():
        blocks.append((name, [_argument(index), _op(_BITS, _SET_ID_BITS, 0, 1), *refuse_if]))
    for name, body in blocks:
        if name in numbers:
            program += [_op(_EQUAL, numbers[name], 0, len(body)), *body]
    program.append(_op(_RETURN, _ALLOW))
    return b"".join(program)


def system_call(name: str, machine: str | None = None) -> int:
    """The number of a system call, for the self-test's attacks.

    Raises:
        KeyError: There is no table for the machine, or the call is not in it.
    """
    return _NUMBERS[machine or platform.machine()][name]

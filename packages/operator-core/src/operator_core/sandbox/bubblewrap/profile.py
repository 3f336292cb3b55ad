"""The file system of a bubblewrap sandbox: an allow-listed root, chosen parts of /etc, and the mounts of the policy."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from operator_core.sandbox.environment import interpreter_prefixes
from operator_core.sandbox.files import Place
from operator_core.sandbox.layout import HOME, Layout
from operator_core.sandbox.mounts import Mount
from operator_core.sandbox.policy import Policy

__all__ = ["Source", "build_etc", "fixed_arguments", "mount_arguments", "system_places"]

UID = "1000"

# What programs need of /etc. Not here on purpose: shadow, ssh, sudoers, ssl/private, apt (it can hold passwords), and
# gitconfig (it can hold tokens).
_ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "crypto-policies", "debian_version",
    "fonts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "magic", "mime.types", "os-release",
    "pki/tls/certs", "pki/ca-trust/extracted", "perl", "protocols", "python3", "services", "ssl/cert.pem", "ssl/certs",
    "ssl/openssl.cnf", "terminfo", "timezone",
)  # fmt: skip
# Hundreds of links; a bind is much cheaper than making each of them anew.
_ETC_BOUND = ("alternatives", "ssl/certs")
_ETC_NETWORK = ("resolv.conf", "host.conf", "gai.conf", "hosts")
_ETC_FILES = {
    "group": f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n",
    "passwd": (
        f"root:x:0:0:root:/root:/bin/bash\nagent:x:{UID}:{UID}:Operator agent:{HOME}:/bin/bash\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
    ),
    # The host's may name services that are not in here.
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    # Files of other users belong to "nobody" in here, and git would refuse to work on them.
    "gitconfig": "[safe]\n\tdirectory = *\n",
}
_LOCALHOST = "127.0.0.1 localhost sandbox\n::1 localhost\n"
_ETC_FILE_MAX = 4 << 20

_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

# A fresh /proc of bubblewrap leaves these writable or readable for the host's root.
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "asound", "mtrr", "latency_stats")
_PROC_HIDDEN = (
    "kcore", "kmsg", "keys", "key-users", "kallsyms", "timer_list", "sched_debug", "kpagecount", "kpageflags",
    "kpagecgroup", "config.gz", "slabinfo", "vmallocinfo",
)  # fmt: skip


Source = Callable[[Path], Path]
"""Where bubblewrap finds a host path; see :class:`~operator_core.sandbox.linux.namespaces.View`."""


def _same(path: Path) -> Path:
    return path


def build_etc(target: Path, *, network: bool) -> None:
    """Fill a directory that becomes ``/etc``. One bind of a copy is much cheaper than forty binds per command."""
    names = [*_ETC, *(_ETC_NETWORK if network else ())]
    names += [path.name for path in Path("/etc").glob("java-*")]
    for name in names:
        if name in _etc_bound():
            (target / name).mkdir(parents=True, exist_ok=True)
            continue
        source, copy = f"/etc/{name}", f"{target}/{name}"
        # What a link leads to may not be visible, e.g. resolv.conf -> /run/systemd/resolve/...
        real = os.path.realpath(source)
        if os.path.isfile(real) and not real.startswith("/usr/"):
            source = real
        os.makedirs(os.path.dirname(copy), exist_ok=True)
        with contextlib.suppress(OSError):  # missing, not readable for us, or there since an earlier start
            _copy(source, copy)
    for name, text in _ETC_FILES.items():
        (target / name).write_text(text)
    if not (target / "hosts").exists():
        (target / "hosts").write_text(_LOCALHOST)


def _etc_bound() -> list[str]:
    return [n for n in _ETC_BOUND if os.path.isdir(f"/etc/{n}") and os.path.realpath(f"/etc/{n}") == f"/etc/{n}"]


def _copy(source: str, target: str) -> None:
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISDIR(info.st_mode):
        os.mkdir(target)
        for name in os.listdir(source):
            with contextlib.suppress(OSError):
                _copy(f"{source}/{name}", f"{target}/{name}")
    elif stat.S_ISREG(info.st_mode) and info.st_size <= _ETC_FILE_MAX:
        shutil.copyfile(source, target)


def fixed_arguments(policy: Policy, layout: Layout, *, own_network: bool, source: Source = _same) -> list[str]:
    """The options that are the same for all commands of a session.

    Args:
        policy: The policy.
        layout: The session.
        own_network: Whether each command gets a network of its own.
        source: Where bubblewrap finds the host's paths.
    """
    options = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if own_network:
        options.append("--unshare-net")
    options += ["--uid", UID, "--gid", UID, "--hostname", "sandbox", "--die-with-parent", "--new-session"]
    options += ["--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in _USR:
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    options += ["--ro-bind", str(source(layout.etc)), "/etc", "--dir", "/run", "--symlink", "/tmp", "/var/tmp"]
    for name in _etc_bound():
        options += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    options += ["--dev", "/dev", "--perms", "1777", "--size", str(policy.limits.shm), "--tmpfs", "/dev/shm"]
    # /dev itself would be one more place to fill the memory.
    options += ["--remount-ro", "/dev", "--proc", "/proc"]
    for name in _PROC_READ_ONLY:
        if os.path.exists(f"/proc/{name}"):
            options += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    for name in _PROC_HIDDEN:
        if os.path.exists(f"/proc/{name}"):
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    return options


def mount_arguments(mounts: Iterable[Mount], source: Source = _same) -> list[str]:
    """Mounts as options of bubblewrap; ``source`` says where it finds the host's paths."""
    options: list[str] = []
    closed: list[str] = []
    for mount in mounts:
        if mount.source is None:
            options += ["--tmpfs", mount.target]
            closed += ["--remount-ro", mount.target]  # when there is a place for what is mounted in it
        else:
            options += ["--bind" if mount.writable else "--ro-bind", str(source(mount.source)), mount.target]
    return options + closed


def system_places(layout: Layout) -> list[Place]:
    """What commands see of this machine beside the policy's paths, where its own files are bound into a sandbox."""
    found = [Place(f"/{name}", Path("/", name), "public") for name in ("usr", *_USR) if os.path.isdir(f"/{name}")]
    found += [Place("/etc", layout.etc, "read")]
    found += [Place(f"/etc/{name}", Path("/etc", name), "public") for name in _etc_bound()]
    return found + [Place(str(path), path, "public") for path in interpreter_prefixes()]

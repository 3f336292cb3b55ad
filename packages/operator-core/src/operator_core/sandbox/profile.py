"""The file system of a bubblewrap sandbox: an allow-listed root, chosen parts of /etc, and the mounts of the policy."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import SandboxError
from operator_core.sandbox.environment import interpreter_prefixes
from operator_core.sandbox.files import Place
from operator_core.sandbox.policy import Policy

__all__ = ["HOME", "ROOM", "Layout", "build_etc", "fixed_arguments", "places", "policy_arguments"]

HOME = "/home/agent"
ROOM = "/run/operator"
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
_LINKS_MAX = 8

# A fresh /proc of bubblewrap leaves these writable or readable for the host's root.
_PROC_READ_ONLY = ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs", "scsi", "asound", "mtrr", "latency_stats")
_PROC_HIDDEN = (
    "kcore", "kmsg", "keys", "key-users", "kallsyms", "timer_list", "sched_debug", "kpagecount", "kpageflags",
    "kpagecgroup", "config.gz", "slabinfo", "vmallocinfo",
)  # fmt: skip


class Layout(NamedTuple):
    """The directories of a session on the host: all below the session directory, all 0700."""

    root: Path
    tmp: Path
    home: Path
    out: Path
    etc: Path
    state: Path

    @classmethod
    def below(cls, root: Path) -> Layout:
        """The layout of a session directory."""
        return cls(root, *(root / name for name in ("tmp", "home", "out", "etc", "state")))


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


def fixed_arguments(policy: Policy, layout: Layout) -> list[str]:
    """The options that are the same for all commands of a session."""
    options = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if policy.network == "none":
        options.append("--unshare-net")
    options += ["--uid", UID, "--gid", UID, "--hostname", "sandbox", "--die-with-parent", "--new-session"]
    options += ["--cap-drop", "ALL", "--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            options += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            options += ["--ro-bind", str(path), str(path)]
    options += ["--ro-bind", str(layout.etc), "/etc", "--dir", "/run", "--symlink", "/tmp", "/var/tmp"]
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


class _Mount(NamedTuple):
    path: str
    options: tuple[str, ...]


def policy_arguments(policy: Policy, layout: Layout) -> list[str]:
    """The mounts of the session and the policy, for the files that exist now.

    Raises:
        SandboxError: A path that the policy names is gone.
    """
    mounts = [_Mount("/tmp", ("--bind", str(layout.tmp), "/tmp")), _Mount(HOME, ("--bind", str(layout.home), HOME))]
    if any(_within(layout.root, path) for path in (policy.workspace, *policy.writable)):
        room = str(policy.seen(layout.root))
        mounts.append(_Mount(room, ("--tmpfs", room)))
    mounts.append(_bind("--ro-bind", layout.out))
    for path in (*interpreter_prefixes(), *policy.readable):
        mounts.append(_bind("--ro-bind", path))
    for path in (policy.workspace, *policy.writable):
        mounts.append(_bind("--bind", path, policy.seen(path)))
    mounts += _protected(policy)
    for path in policy.paths(policy.masked):
        seen = str(policy.seen(path))
        if path.is_dir():
            mounts.append(_Mount(seen, ("--tmpfs", seen, "--remount-ro", seen)))
        elif path.exists():
            mounts.append(_Mount(seen, ("--ro-bind", "/dev/null", seen)))
    # A mount hides what was mounted below it before, so the outer ones come first.
    mounts.sort(key=lambda item: item.path.count("/"))
    return [option for mount in mounts for option in mount.options]


def _bind(option: str, path: Path, seen: Path | None = None) -> _Mount:
    if not path.exists():
        raise SandboxError(f"`{path}` does not exist, but the sandbox is to show it; create it, or take it off.")
    target = str(seen or path)
    return _Mount(target, (option, str(path), target))


def _protected(policy: Policy) -> Iterator[_Mount]:
    roots = [policy.workspace, *policy.writable]
    seen: set[Path] = set()
    for path in policy.paths(policy.protected):
        path = _followed(policy, path)
        # The agent may have made a link here to what it must not see; only what it can write needs protection.
        if not path.exists() or not any(path.is_relative_to(root) for root in roots):
            continue
        for root in roots:
            if not _within(path, root):
                continue
            # A directory can be renamed away together with the read-only file in it, unless it is a mount itself.
            for parent in reversed(path.relative_to(root).parents[:-1]):
                directory = root / parent
                if directory not in seen and not directory.is_symlink():
                    seen.add(directory)
                    yield _bind("--bind", directory, policy.seen(directory))
        yield _bind("--ro-bind", path, policy.seen(path))


def _followed(policy: Policy, path: Path) -> Path:
    """Where the links in a path lead, as the host's path of what commands reach through it."""
    for _ in range(_LINKS_MAX):
        real = policy.on_host(Path(os.path.realpath(path)))
        if real == path:
            return path
        path = real
    return path


def _within(path: Path, root: Path) -> bool:
    return path != root and path.is_relative_to(root)


def places(policy: Policy, layout: Layout, *, mapped: bool) -> list[Place]:
    """What the file tools may touch: the same mounts as for commands.

    Args:
        policy: The policy.
        layout: The session.
        mapped: Whether ``/tmp`` and the home directory of commands are those of the session, and the workspace is
            seen where the policy wants it.
    """
    found = [Place(str(layout.out), layout.out, "read")]
    if mapped:
        found += [Place("/tmp", layout.tmp, "write"), Place(HOME, layout.home, "write")]
    else:
        found += [Place(str(path), path, "write") for path in (layout.tmp, layout.home)]
    found += [Place(str(path), path, "read") for path in policy.readable]

    def seen(path: Path) -> str:
        return str(policy.seen(path) if mapped else path)

    found += [Place(seen(path), path, "write") for path in (policy.workspace, *policy.writable)]
    found += [Place(seen(path), None, "read") for path in policy.paths(policy.protected)]
    found += [Place(seen(path), None, "none") for path in policy.paths(policy.masked)]
    return found

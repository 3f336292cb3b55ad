"""One attack: its folder of the host, its victim, and everything the witnesses look at."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import secrets
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from operator_core.sandbox import ExecResult, Limits
from tests.escape.host import Host

__all__ = ["GUARDED", "MASKED", "Field"]

GUARDED = (".git/hooks", ".git/config", ".vscode", ".envrc")
MASKED = "conf/secret.env"


class Field:
    """See the module.

    Args:
        host: The services.
        folder: A new one, for the attack alone.
        workspace: The agent's.
        limits: The policy's.
        number: Of the attack; part of what it is recognised by.

    Attributes:
        id: A word that services recognise it by.
        token: The secret it is after.
        key: The agent's own secret, in the environment of its process.
        say: What it prints when only its own word can prove it.
        marker: An odd number of seconds: processes that sleep so long are of this attack.
        results: Of its commands, as they end.
        most: The largest number of its processes that were seen at the same time.
    """

    def __init__(self, host: Host, folder: Path, workspace: Path, limits: Limits, number: int) -> None:
        self.host = host
        self.folder = folder
        self.workspace = workspace
        self.limits = limits
        self.id = f"attack-{number}-{secrets.token_hex(4)}"
        self.token, self.say = secrets.token_hex(16), secrets.token_hex(16)
        self.marker = str(10**6 + secrets.randbelow(10**8))
        self.results: list[ExecResult] = []
        self.text = self.key = ""
        self.most = 0
        self.server_reached = False
        self._victim: subprocess.Popen[bytes] | None = None
        folder.mkdir()
        (folder / "dir").mkdir()
        (folder / "empty").mkdir()
        (folder / "file").write_text("untouched\n")
        (folder / "dir" / "file").write_text("untouched\n")
        (folder / "secret").write_text(self.token + "\n")
        (folder / "dir" / f"name-{self.token}").touch()
        (workspace / "conf").mkdir(exist_ok=True)
        (workspace / MASKED).write_text(self.token + "\n")
        host.secret(self.token)
        self.before: object = None
        self.guarded_before: object = None
        self.victim_before: object = None

    def begin(self, *, with_victim: bool) -> None:
        """Remember how everything was."""
        if with_victim:
            self._start_victim()
        self.before, self.guarded_before, self.victim_before = self.tree(), self.guarded(), self.victim_state()

    def end(self) -> None:
        """Remove what is left: processes, and files in shared places."""
        if self._victim is not None:
            self._victim.kill()
            self._victim.wait()
        for pid in self._pids():
            with contextlib.suppress(OSError):
                os.kill(pid, 9)
        for path in self._shared():
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if str(path).startswith("/dev/shm") and path.is_dir() else _gone(path)
        shutil.rmtree(self.folder, ignore_errors=True)

    def variables(self) -> dict[str, str]:
        """For the commands."""
        victim = str(self._victim.pid) if self._victim else "0"
        kind, number = _handle_of(self.folder / "secret")
        own = {"HANDLE": number, "HANDLE_KIND": str(kind), "NAME": self.folder.name}
        own |= {"H": str(self.folder), "ID": self.id, "SAY": self.say, "MARK": self.marker, "VICTIM": victim}
        return {**self.host.variables, **own}

    @property
    def output(self) -> str:
        """Everything that came back."""
        texts = [result.stdout.text() + result.stderr.text() for result in self.results]
        return "\n".join([*texts, self.text])

    def tree(self) -> object:
        """The folder of the host as it is now, and what the attack left in places that all share."""
        return _tree(self.folder), [str(path) for path in self._shared()]

    def guarded(self) -> object:
        """The protected paths of the workspace as they are now."""
        return [_tree(self.workspace / name) for name in GUARDED]

    def victim_state(self) -> object:
        """The victim as the kernel sees it."""
        if self._victim is None:
            return None
        pid = self._victim.pid
        with contextlib.suppress(OSError):
            text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            score = Path(f"/proc/{pid}/oom_score_adj").read_text().strip()
            limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            state = "alive" if text[0] in "SRD" else text[0]
            return _Victim(state, os.getpriority(os.PRIO_PROCESS, pid), limits, score, os.sched_getaffinity(pid))
        return "gone"

    def survivors(self, within: float = 0.4) -> int:
        """Processes of the attack that live on when they have had time to end."""
        deadline = time.monotonic() + within
        while (left := len(self._pids())) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left

    def grows(self, within: float = 0.3) -> bool:
        """Whether the file of the attack grows: it has had a moment to end, and then nobody writes any more."""
        path = self.workspace / f"beat-{self.id}"
        if not path.exists():
            return False
        time.sleep(within)
        size = path.stat().st_size
        time.sleep(0.1)
        return path.stat().st_size > size

    def count(self) -> None:
        """Look how many processes there are now."""
        self.most = max(self.most, len(self._pids()))

    def privileged_files(self) -> int:
        """Files of the workspace that have more rights than the agent."""
        found = 0
        for root, _, names in os.walk(self.workspace):
            for name in names:
                path = os.path.join(root, name)
                mode = os.lstat(path).st_mode
                found += stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
                found += stat.S_ISREG(mode) and bool(mode & 0o6000)
                found += "security.capability" in os.listxattr(path, follow_symlinks=False)
        return found

    def _pids(self) -> list[int]:
        found = []
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and self.marker.encode() in Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0"):
                    found.append(int(name))
        return found

    def _shared(self) -> list[Path]:
        places = ("/tmp", "/var/tmp", "/dev/shm", "/sys/fs/cgroup", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified")
        return [path for place in places if (path := Path(place, self.id)).exists()]

    def _start_victim(self) -> None:
        script = 'cd "$1"; exec 3<>secret; exec -a "sleeper-$2" sleep 300'
        self._victim = subprocess.Popen(
            ["bash", "-c", script, "bash", str(self.folder), self.token],
            env={"PATH": os.defpath, "VICTIM_SECRET": self.token},
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        mine = f"/proc/{self._victim.pid}/cmdline"
        deadline = time.monotonic() + 5
        while not Path(mine).read_bytes().startswith(b"sleeper-"):
            assert time.monotonic() < deadline, "the victim did not start"
            time.sleep(0.002)


def _gone(path: Path) -> None:
    path.rmdir() if path.is_dir() else path.unlink()


class _Victim(NamedTuple):
    state: str
    nice: int
    files: tuple[int, int]
    score: str
    processors: set[int]


def _handle_of(path: Path) -> tuple[int, str]:
    """The kernel's number of a file: kind and bytes, as ``open_by_handle_at`` takes them."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(8 + 128)
    ctypes.memmove(buffer, (128).to_bytes(4, "little"), 4)
    mount = ctypes.c_int()
    if libc.name_to_handle_at(-100, os.fsencode(path), buffer, ctypes.byref(mount), 0) != 0:
        return 0, ""
    size, kind = int.from_bytes(buffer.raw[:4], "little"), int.from_bytes(buffer.raw[4:8], "little")
    return kind, buffer.raw[8 : 8 + size].hex()


def _tree(root: Path) -> object:
    """All that is known of a file or of a folder and what is in it."""
    found: dict[str, object] = {}
    queue = [root]
    while queue:
        path = queue.pop()
        try:
            info = path.lstat()
        except OSError:
            found[str(path)] = None
            continue
        data: object = None
        if stat.S_ISDIR(info.st_mode):
            queue += path.iterdir()
        elif stat.S_ISREG(info.st_mode):
            data = path.read_bytes()
        elif stat.S_ISLNK(info.st_mode):
            data = os.readlink(path)
        names = tuple(os.listxattr(path, follow_symlinks=False))
        times = None if stat.S_ISDIR(info.st_mode) and path == root else info.st_mtime_ns
        found[str(path)] = (info.st_mode, info.st_uid, info.st_nlink, times, data, names)
    return found

"""The advisor: tells an agent early that a command is not wanted, and leaves alone what only looks like it.

It reads the commands of a script, not its text: `grep reboot notes.md` reboots nothing, and `rm -r -f -v //` is
`rm -rf /`. It is advice. Whoever wants to can write a command that it does not recognise, and then the sandbox decides.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from operator_core.safety.commands import BlockedCommand
from operator_core.safety.shell_words import Simple, split_script

__all__ = ["CommandAdvisor"]

_SHELLS = frozenset(["sh", "bash", "dash", "zsh", "ksh", "ash", "fish"])
_INTERPRETERS = _SHELLS | {"python", "python3", "perl", "ruby", "node", "php"}
_DOWNLOADS = frozenset(["curl", "wget", "fetch", "aria2c"])
_ESCALATION = frozenset(["sudo", "su", "doas", "pkexec", "runuser"])
_ENDS = frozenset(["shutdown", "reboot", "halt", "poweroff"])
_SYSTEMCTL = frozenset(["reboot", "poweroff", "halt", "kexec", "rescue", "emergency"])

# Programs that run what follows: options with a value, and how many words stand before the command.
_WRAPPERS: dict[str, tuple[str, int]] = {
    "env": ("uSC", 0), "nohup": ("", 0), "nice": ("n", 0), "ionice": ("cnp", 0), "timeout": ("sk", 1),
    "command": ("", 0), "builtin": ("", 0), "exec": ("a", 0), "stdbuf": ("ioe", 0), "setsid": ("", 0),
    "xargs": ("nIPLdsEa", 0), "busybox": ("", 0), "toybox": ("", 0), "watch": ("n", 0), "flock": ("wE", 1),
    "chroot": ("", 1), "unshare": ("", 0), "time": ("fo", 0), "strace": ("eo", 0),
}  # fmt: skip

_CORE = ("etc", "usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32", "boot", "sys", "proc", "dev")
_WHOLE = ("/", "~", "/var", "/var/lib", "/home", "/root", "/opt", "/srv", "/mnt", "/media", "/run")
_HARMLESS = re.compile(
    r"/dev/(null|zero|full|stdin|stdout|stderr|tty|ptmx|fd/\d+|shm/.+)$"
    r"|/proc/(self|\$\$|\d+)/fd/\d+$"
)
_DISK = re.compile(r"/dev/(sd|hd|vd|xvd|nvme|mmcblk|disk|mapper|md|dm-|loop|sr|mem|kmem|port)")
_LONGEST = 32_768  # advice must not take longer than the command
_NOT_A_PATH = ("-", "+")


class CommandAdvisor:
    """Refuses commands that would harm the machine, as far as they can be read.

    Args:
        workspace: What lies in it belongs to the agent.
    """

    def __init__(self, workspace: Path) -> None:
        self._own = (str(workspace), "/tmp", "/var/tmp", "/dev/shm")

    def check(self, command: str) -> BlockedCommand | None:
        """Why the command is refused; None if it is not."""
        try:
            reason = self._script(command[:_LONGEST], 0)
        except (RecursionError, IndexError, ValueError):  # whatever it is, the sandbox will see
            return None
        return BlockedCommand(command, reason) if reason else None

    def _script(self, text: str, depth: int) -> str | None:
        if depth > 6:
            return None
        commands, functions = split_script(text)
        cwd = ""
        for command in _flat(commands):
            if reason := self._command(command, cwd, depth):
                return reason
            if command.words and command.words[0] == "cd" and len(command.words) > 1:
                cwd = posixpath.join(cwd, command.words[1])
        return _bomb(commands, functions) or _download(commands)

    def _command(self, command: Simple, cwd: str, depth: int) -> str | None:
        for target in command.writes:
            if reason := self._written(target, cwd):
                return reason
        words = command.words
        for _ in range(8):
            if not words:
                return None
            name = posixpath.basename(words[0])
            if name not in _WRAPPERS:
                break
            words = _unwrapped(name, words[1:])
        name, arguments = posixpath.basename(words[0]), words[1:]
        if name in _ESCALATION:
            return f"{name} is not allowed: privilege escalation"
        if name in _SHELLS or name == "eval":
            return self._shell(name, arguments, command.stdin, depth)
        if name in _ENDS or (name in ("init", "telinit") and arguments[:1] in (["0"], ["6"])):
            return "shutting down or rebooting the system is not allowed"
        if name == "systemctl" and _SYSTEMCTL & set(arguments):
            return "shutting down or rebooting the system is not allowed"
        if name == "kill" and "-1" in arguments[1:]:
            return "killing every process is not allowed"
        if (name.startswith("mkfs") or name in ("mke2fs", "mkswap", "wipefs", "fdisk", "parted", "sfdisk")) and any(
            word.startswith("/dev/") for word in arguments
        ):
            return "making a file system is not allowed"
        return self._files(name, arguments, cwd, depth)

    def _shell(self, name: str, arguments: Sequence[str], stdin: str | None, depth: int) -> str | None:
        if name == "eval":
            return self._script(" ".join(arguments), depth + 1)
        for at, word in enumerate(arguments):
            if word.startswith("-") and not word.startswith("--") and word.endswith("c"):
                return self._script(arguments[at + 1], depth + 1) if at + 1 < len(arguments) else None
        return self._script(stdin, depth + 1) if stdin else None

    def _files(self, name: str, arguments: Sequence[str], cwd: str, depth: int) -> str | None:
        paths = [word for word in arguments if not word.startswith(_NOT_A_PATH)]
        if name in ("rm", "shred", "unlink", "rmdir"):
            if "--no-preserve-root" in arguments:
                return "removing the root directory is not allowed"
            return self._any(paths, cwd, "removing {} is not allowed")
        if name in ("chmod", "chown", "chgrp"):
            return self._any(paths[1:] if len(paths) > 1 else paths, cwd, "changing mode or owner of {} is not allowed")
        if name == "find":
            return self._find(arguments, cwd, depth)
        if name == "dd":
            targets = [word[3:] for word in arguments if word.startswith("of=")]
        elif name in ("tee", "truncate", "touch"):
            targets = paths
        elif name in ("cp", "install", "ln", "rsync"):
            targets = paths[-1:] if len(paths) > 1 else []
        elif name == "mv" or (name == "sed" and any(word.startswith(("-i", "--in-place")) for word in arguments)):
            targets = paths
        else:
            return None
        return next((reason for target in targets if (reason := self._written(target, cwd))), None)

    def _find(self, arguments: Sequence[str], cwd: str, depth: int) -> str | None:
        roots = []
        for word in arguments:
            if word.startswith(("-", "(", "!")):
                break
            roots.append(word)
        if "-delete" in arguments:
            return self._any(roots, cwd, "removing {} is not allowed")
        for at, word in enumerate(arguments):
            if word in ("-exec", "-execdir", "-ok"):
                rest = list(arguments[at + 1 :])
                # As if the command were run on the places where the search begins.
                words = [
                    item for word in rest for item in (roots if word == "{}" else [word]) if item not in (";", "+")
                ]
                return self._command(Simple(words), cwd, depth + 1)
        return None

    def _any(self, paths: Sequence[str], cwd: str, sentence: str) -> str | None:
        for path in paths:
            where = self._where(path, cwd)
            if where in _WHOLE or self._core(where) or (where.startswith("/home/") and where.count("/") == 2):
                return sentence.format(where)
        return None

    def _written(self, path: str, cwd: str) -> str | None:
        where = self._where(path, cwd)
        if _DISK.match(where):
            return f"writing to the device {where} is not allowed"
        if self._core(where) and not where.startswith("/dev/"):
            return f"writing to {where} is not allowed"
        return None

    def _where(self, path: str, cwd: str) -> str:
        """A path in its simplest form; what is left of a pattern is the directory whose content it names."""
        path = posixpath.join(cwd, path) if cwd and not path.startswith("~") else path
        full = path.startswith("/")
        path = posixpath.normpath(re.sub(r"/+", "/", path))
        while posixpath.basename(path) in ("*", ".*", "{*,.*}", "?*") and path.count("/"):
            path = posixpath.dirname(path)
        if any((path == own and own == self._own[0]) or path.startswith(own + "/") for own in self._own):
            return ""  # the agent's own
        return path if full or path == "~" else ""

    def _core(self, path: str) -> bool:
        parts = path.split("/")
        return len(parts) > 1 and parts[0] == "" and parts[1] in _CORE and not _HARMLESS.match(path)


def _unwrapped(name: str, words: list[str]) -> list[str]:
    """The command that a program like `timeout` runs."""
    valued, positional = _WRAPPERS[name]
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            at += 1
            break
        if word.startswith("-") and len(word) > 1:
            if name == "env" and word == "-S" and at + 1 < len(words):
                return words[at + 1].split() + words[at + 2 :]
            at += 2 if not word.startswith("--") and word[-1] in valued and len(word) == 2 else 1
        elif re.match(r"[A-Za-z_]\w*=", word) and name == "env":
            at += 1
        else:
            break
    return words[at + positional :]


def _flat(commands: Sequence[Simple]) -> Iterator[Simple]:
    for command in commands:
        yield from _flat(command.inner)
        yield command


def _bomb(commands: Sequence[Simple], functions: set[str]) -> str | None:
    """A function that calls itself twice in one pipeline."""
    calls: dict[tuple[int, str], int] = {}
    for command in commands:
        if len(command.words) == 1 and command.words[0] in functions:
            key = (command.pipeline, command.words[0])
            calls[key] = calls.get(key, 0) + 1
    return "a fork bomb is not allowed" if any(count > 1 for count in calls.values()) else None


def _download(commands: Sequence[Simple]) -> str | None:
    """Something from the network that is executed unseen."""
    reason = "executing a download without looking at it is not allowed; save it, read it, then run it"
    fetched: set[int] = set()
    for command in commands:
        words = list(command.words)
        for _ in range(4):
            if words and posixpath.basename(words[0]) in _WRAPPERS:
                words = _unwrapped(posixpath.basename(words[0]), words[1:])
        if not words:
            continue
        name = posixpath.basename(words[0])
        if name in _DOWNLOADS:
            fetched.add(command.pipeline)
        reads = not [word for word in words[1:] if not word.startswith("-")] or words[1:2] == ["-s"]
        if name in _INTERPRETERS and reads and command.pipeline in fetched:
            return reason
        inside = {posixpath.basename(item.words[0]) for item in _flat(command.inner) if item.words}
        if inside & _DOWNLOADS and (name in _SHELLS or name in ("eval", "source", ".")):
            return reason
    return None

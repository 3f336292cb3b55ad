"""Learning what is not for the agent."""

from __future__ import annotations

import os

from tests.escape.attack import KIT, Attack, claimed, told
from tests.escape.attacks_write import FIRST_PROCESS
from tests.escape.field import Field

__all__ = ["ATTACKS"]


def _link_outside(field: Field) -> None:
    (field.workspace / f"planted-{field.id}").symlink_to(field.folder)


def _second_name(field: Field) -> None:
    os.link(field.folder / "secret", field.workspace / f"second-{field.id}")


ATTACKS = [
    Attack("a path outside of the workspace", 'cat "$H/secret"', told),
    Attack("a relative path that climbs out", 'cat "../host/$NAME/secret"', told),
    Attack("a new link, then through it", 'ln -s "$H" "l-$ID"; cat "l-$ID/secret"', told),
    Attack("a link that was in the workspace before", 'cat "planted-$ID/secret"', told, prepare=_link_outside),
    Attack("a new second name (hard link)", 'ln "$H/secret" "h-$ID" && cat "h-$ID"', told),
    Attack("a second name that was in the workspace before", 'cat "second-$ID"', told, prepare=_second_name),
    Attack("names of files outside", 'ls -R "$H"', told),
    Attack("a directory for the next command", ('cd "$H"', "cat secret"), told),
    Attack("through /proc/self/root", 'cat "/proc/self/root$H/secret"', told),
    Attack("through /proc/1/root", 'cat "/proc/1/root$H/secret"', told, machine=True, idle=FIRST_PROCESS),
    Attack("through the directory of a process", 'cat "/proc/$VICTIM/cwd/secret"', told, with_victim=True),
    Attack("through the root of a process", 'cat "/proc/$VICTIM/root$H/secret"', told, with_victim=True),
    Attack("through an open file of a process", 'cat "/proc/$VICTIM/fd/3"', told, with_victim=True),
    Attack("an open file taken from a process", f'{KIT} stolen_descriptor "$VICTIM"', told, with_victim=True),
    Attack("the environment of a process", 'tr "\\0" "\\n" < "/proc/$VICTIM/environ"', told, with_victim=True),
    Attack(
        "the words a process was started with",
        "cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | cut -c1-500",
        told,
        with_victim=True,
    ),
    Attack("the memory of a process, as a file", f'{KIT} memory "$VICTIM"', told, with_victim=True),
    Attack("the memory of a process, by a system call", f'{KIT} readv "$VICTIM"', told, with_victim=True),
    Attack(
        "the key of the agent, in any environment", "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -a KEY=", told
    ),
    Attack(
        "the key of the agent, in the own environment",
        "env | grep KEY=",
        told,
        idle="commands get a clean environment, without a sandbox too; here because every backend starts programs "
        "its own way",
    ),
    Attack("a masked file of the workspace", "cat conf/secret.env", told),
    Attack("a masked file under a new name", "mv conf/secret.env s; cat s", told),
    Attack("a masked file by a second name", ("ln conf/secret.env s", "cat s"), told),
    Attack("a masked file, its folder moved away", ("mv conf c", "cat c/secret.env"), told),
    Attack("shared memory of the host", f'{KIT} shared_memory "$SHM"', told),
    Attack("a key in the kernel's keyring", f'{KIT} keyring "$KEY"', told, machine=True),
    Attack("the password file", f"{KIT} readable /etc/shadow /etc/gshadow", claimed, machine=True),
    Attack(
        "raw disks",
        f"{KIT} readable /dev/vda /dev/sda /dev/nvme0n1 /dev/loop0 /dev/dm-0",
        claimed,
        machine=True,
        idle="that machine's root may not read them",
    ),
    Attack(
        "the kernel's memory",
        f"{KIT} readable /proc/kcore /dev/mem /dev/port",
        claimed,
        machine=True,
        idle="that machine has no such files",
    ),
    Attack("the kernel's log", f"{KIT} kernel_log", claimed, machine=True),
    Attack("connections of the host", 'grep -i ":$(printf %04X "$PORT") " /proc/net/tcp && echo "$SAY"', claimed),
]

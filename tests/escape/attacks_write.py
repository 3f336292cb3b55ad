"""Changing what is not the agent's."""

from __future__ import annotations

import os

from tests.escape.attack import KIT, Attack, changed, claimed, heard, planted, spoiled
from tests.escape.field import Field

__all__ = ["ATTACKS", "FIRST_PROCESS"]

FIRST_PROCESS = "the first process of that machine has more rights than its root; elsewhere root may pass"


def _link_outside(field: Field) -> None:
    (field.workspace / f"planted-{field.id}").symlink_to(field.folder)


def _second_name(field: Field) -> None:
    os.link(field.folder / "file", field.workspace / f"second-{field.id}")


ATTACKS = [
    Attack("a path outside of the workspace", 'echo BAD > "$H/file"', changed),
    Attack("a new file outside", 'touch "$H/new"', changed),
    Attack("a relative path that climbs out", 'echo BAD > "../host/$NAME/file"', changed),
    Attack("a new link to a directory, then through it", 'ln -s "$H" "l-$ID"; echo BAD > "l-$ID/file"', changed),
    Attack("a new link to a file, then through it", 'ln -s "$H/file" "f-$ID"; echo BAD > "f-$ID"', changed),
    Attack("a link that was in the workspace before", 'echo BAD > "planted-$ID/file"', changed, prepare=_link_outside),
    Attack("a new second name (hard link) of a file outside", 'ln "$H/file" "h-$ID" && echo BAD >> "h-$ID"', changed),
    Attack(
        "a second name of a file outside, in the workspace before", 'echo BAD >> "second-$ID"', changed, _second_name
    ),
    Attack("through /proc/self/root", 'echo BAD > "/proc/self/root$H/file"', changed),
    Attack("through /proc/self/cwd and up", 'echo BAD > "/proc/self/cwd/../host/$NAME/file"', changed),
    Attack("through /proc/1/root", 'echo BAD > "/proc/1/root$H/file"', changed, machine=True, idle=FIRST_PROCESS),
    Attack("through the directory of a process", 'echo BAD > "/proc/$VICTIM/cwd/new"', changed, with_victim=True),
    Attack("through the root of a process", 'echo BAD > "/proc/$VICTIM/root$H/file"', changed, with_victim=True),
    Attack("through an open file of a process", 'echo BAD > "/proc/$VICTIM/fd/3"', changed, with_victim=True),
    Attack("a race between a directory and a link", f'{KIT} race file "$H"', changed),
    Attack("memory mapped onto a file outside", f'{KIT} mapped "$H/file"', changed),
    Attack("the mode of a file outside", 'chmod 777 "$H/file"', changed),
    Attack("the times of a file outside", 'touch -d 2001-01-01 "$H/file"', changed),
    Attack("an attribute of a file outside", f'{KIT} xattr "$H/file"', changed),
    Attack("renaming a file outside", 'mv "$H/file" "$H/gone"', changed),
    Attack("swapping two files outside", 'mv "$H/file" "$H/dir/" && mv "$H/dir/file" "$H/file"', changed),
    Attack("moving a file outside into the workspace", 'mv "$H/file" "taken-$ID"', changed),
    Attack("removing an empty directory outside", 'rmdir "$H/empty"', changed),
    Attack("a named pipe of a service", "timeout 2 bash -c \"echo $ID > '$FIFO'\"", heard),
    Attack("a start-up file for the next login", 'mkdir -p "$H/.ssh"; echo BAD > "$H/.ssh/authorized_keys"', changed),
    Attack("a file in the /var/tmp of all", 'echo BAD > "/var/tmp/$ID"', changed),
    Attack("a file in the /tmp of all", 'echo BAD > "/tmp/$ID"', changed),
    Attack("a file in the /dev/shm of all", 'echo BAD > "/dev/shm/$ID"', changed),
    Attack(
        "a new control group", 'mkdir "/sys/fs/cgroup/pids/$ID" || mkdir "/sys/fs/cgroup/$ID"', changed, machine=True
    ),
    Attack(
        "links where the platform makes its own files",
        ("true",) * 12,
        changed,
        job=f'{KIT} usurp "$H/file" $PLATFORM',
    ),
    Attack("a git hook that a person would run", "echo BAD > .git/hooks/pre-commit", spoiled),
    Attack("a git setting that runs a command", "git config core.fsmonitor 'touch BAD'", spoiled),
    Attack(
        "the repository moved away and made anew",
        ("mv .git git-away && git init -q . && echo BAD > .git/hooks/pre-commit", "echo BAD >> .git/config"),
        spoiled,
    ),
    Attack("the repository removed and made anew", ("rm -rf .git; git init -q .", "echo BAD >> .git/config"), spoiled),
    Attack("an editor's tasks", "echo BAD > .vscode/tasks.json", spoiled),
    Attack("an editor's folder moved away", ("mv .vscode v; mkdir .vscode", "echo BAD > .vscode/tasks.json"), spoiled),
    Attack("a file that a person's shell reads", "mv .envrc e; echo BAD > .envrc", spoiled),
    Attack("a program with the set-user-id bit", 'cp /bin/true "s-$ID"; chmod 4755 "s-$ID"', planted),
    Attack("a program with the set-group-id bit", 'cp /bin/true "g-$ID"; chmod 2755 "g-$ID"', planted),
    Attack("the same bit, set while it is made", f'{KIT} setuid_open "o-$ID"', planted),
    Attack("the same bit, by the newest system call", f'{KIT} setuid_fchmodat2 "n-$ID"', planted, machine=True),
    Attack("a program with capabilities", f'{KIT} capability "c-$ID"', planted, machine=True),
    Attack("a device in the workspace", f'{KIT} device "d-$ID"', planted, machine=True),
    Attack(
        "an open file that the platform forgot to close",
        f"{KIT} descriptors",
        claimed,
        idle="the runner closes everything, without a sandbox too; here because every backend starts programs its "
        "own way",
    ),
]

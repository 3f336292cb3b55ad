"""What gets through although there is a sandbox, and why it is not closed. Nothing else may."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KNOWN", "Known"]


class Known(NamedTuple):
    """One way out that is left open.

    Attributes:
        columns: Where it may work (``backend/user``).
        why: Why it cannot be closed there, and what to do instead.
        varies: Whether it works depends on the machine.
    """

    columns: tuple[str, ...]
    why: str
    varies: bool = False


_BUBBLEWRAP = ("bubblewrap/root", "bubblewrap/user")
_DOCKER = ("docker/root", "docker/user")
_ALL = (*_BUBBLEWRAP, *_DOCKER, "landlock/user")
_LANDLOCK = ("landlock/user",)
_WHOLE = (
    "landlock gives rights to a folder with all that is in it, and cannot take a part of it away; protected and masked "
    "paths hold for the file tools only. Use another backend, and keep secrets out of the workspace"
)
_OWNER = "landlock has no rule for modes, times and attributes, and the file belongs to the same user"
_SAME_USER = "the command is an ordinary process of the same user, in no namespace of its own; see `process.isolation`"
_LINK = (
    "the file in the workspace *is* the file outside: one file with two names, and no mount tells them apart. The "
    "report counts such files (`workspace.hardlinks`); clone with `git clone --no-hardlinks`. The file tools replace "
    "a file instead of writing into it, which leaves the other name alone"
)
_MEMORY = (
    "only a control group limits what all processes use together, and an ordinary user has none to give: see "
    "`limits.memory` in the report; `operator sandbox report` says what helps"
)

KNOWN: dict[str, Known] = {
    "write: a second name of a file outside, in the workspace before": Known(_ALL, _LINK),
    "read: a second name that was in the workspace before": Known(_ALL, _LINK),
    "resources: more memory than the limit, in many processes": Known((*_BUBBLEWRAP, *_LANDLOCK), _MEMORY, varies=True),
    "resources: more memory than the limit, as an unnamed file": Known(
        (*_BUBBLEWRAP, *_LANDLOCK), _MEMORY, varies=True
    ),
    "resources: more processes than the limit": Known(
        ("bubblewrap/root",),
        "where commands keep the kernel's user id 0 (see `user` in the report), the kernel does not count them, and "
        "only a control group does",
        varies=True,
    ),
    "resources: many files that are together larger": Known(
        _ALL, "the limit is one of each file; only a quota of the file system limits all of them (`limits.disk`)"
    ),
    **{
        f"write: {name}": Known(_LANDLOCK, _WHOLE)
        for name in (
            "a git hook that a person would run",
            "a git setting that runs a command",
            "the repository moved away and made anew",
            "the repository removed and made anew",
            "an editor's tasks",
            "an editor's folder moved away",
            "a file that a person's shell reads",
        )
    },
    **{
        f"read: {name}": Known(_LANDLOCK, _WHOLE)
        for name in (
            "a masked file of the workspace",
            "a masked file under a new name",
            "a masked file by a second name",
            "a masked file, its folder moved away",
        )
    },
    **{
        f"write: {name}": Known(_LANDLOCK, _OWNER)
        for name in ("the mode of a file outside", "the times of a file outside", "an attribute of a file outside")
    },
    **{
        name: Known(_LANDLOCK, _SAME_USER)
        for name in (
            "read: the words a process was started with",
            "read: connections of the host",
        )
    },
}

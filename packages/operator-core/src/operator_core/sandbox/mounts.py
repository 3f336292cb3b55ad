"""What a session shows of the host, whatever backend mounts it: the policy's paths, each once, the outer ones first."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from operator_core.errors import SandboxError
from operator_core.sandbox.environment import interpreter_prefixes
from operator_core.sandbox.files import Place
from operator_core.sandbox.layout import HOME, SECRETS, Layout
from operator_core.sandbox.policy import Policy

__all__ = ["NOTHING", "Cover", "Mount", "covers", "followed", "places", "policy_mounts"]

NOTHING = Path("/dev/null")
"""What is shown instead of a masked file."""

Cover = tuple[Path, bool]
"""A path of a writable place that is bound once more over itself, and whether it stays writable."""

_LINKS_MAX = 8


class Mount(NamedTuple):
    """One place that commands see.

    Attributes:
        source: Path on the host; None: an empty folder, which stays empty.
        target: Path for commands.
        writable: Whether they may change it.
    """

    source: Path | None
    target: str
    writable: bool = False


def policy_mounts(policy: Policy, layout: Layout, over: Iterable[Cover] | None = None) -> list[Mount]:
    """The mounts of the session and the policy, for the files that exist now.

    Args:
        policy: The policy.
        layout: The session.
        over: What is bound once more over itself; default: all of :func:`covers`.

    Raises:
        SandboxError: A path that the policy names is gone.
    """

    def bind(path: Path, seen: Path | str | None = None, *, writable: bool = False) -> Mount:
        if not path.exists():
            raise SandboxError(f"`{path}` does not exist, but the sandbox is to show it; create it, or take it off.")
        return Mount(path, str(seen or path), writable)

    over = covers(policy) if over is None else over
    mounts = [bind(layout.tmp, "/tmp", writable=True), bind(layout.home, HOME, writable=True)]
    if any(_within(layout.root, path) for path in (policy.workspace, *policy.writable)):
        mounts.append(Mount(None, str(policy.seen(layout.root))))
    mounts.append(bind(layout.out))
    mounts += [bind(path) for path in (*interpreter_prefixes(), *policy.readable)]
    mounts += [bind(path, policy.seen(path), writable=True) for path in (policy.workspace, *policy.writable)]
    mounts += [bind(path, f"{SECRETS}/{name}") for name, path in policy.secret_files.items()]
    mounts += [bind(path, policy.seen(path), writable=writable) for path, writable in over]
    for path in policy.paths(policy.masked):
        if path.exists():
            mounts.append(Mount(None if path.is_dir() else NOTHING, str(policy.seen(path))))
    # A mount hides what was mounted below it before, so the outer ones come first.
    mounts.sort(key=lambda item: item.target.count("/"))
    return mounts


def covers(policy: Policy) -> list[Cover]:
    """What is to be bound once more over itself: what is protected, and what is above of that and of other mounts.

    Nobody else may be able to replace these paths until that is done: whoever puts a link there chooses what is bound.
    """
    return list(_protected(policy))


def _protected(policy: Policy) -> Iterator[Cover]:
    roots = [policy.workspace, *policy.writable]
    seen: set[Path] = set()
    for path in policy.paths(policy.protected):
        path = followed(policy, path)
        # The agent may have made a link here to what it must not see; only what it can write needs protection.
        if not path.exists() or not any(path.is_relative_to(root) for root in roots):
            continue
        yield from ((directory, True) for directory in _above(path, roots, seen))
        yield path, False
    # What is bound from inside of a writable place must not be replaced between two commands either.
    for path in (*policy.paths(policy.masked), *policy.readable, *policy.writable):
        if path.exists():
            yield from ((directory, True) for directory in _above(path, roots, seen))


def _above(path: Path, roots: Sequence[Path], seen: set[Path]) -> Iterator[Path]:
    """The writable directories above a path, from the top, each once.

    A directory can be renamed away together with the read-only or hidden file in it, unless it is a mount itself.
    """
    for root in roots:
        if not _within(path, root):
            continue
        for parent in reversed(path.relative_to(root).parents[:-1]):
            directory = root / parent
            if directory.is_symlink():
                break  # what is below is somewhere else
            if directory not in seen:
                seen.add(directory)
                yield directory


def followed(policy: Policy, path: Path) -> Path:
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
    if any(_within(layout.root, path) for path in (policy.workspace, *policy.writable)):
        found.append(Place(str(policy.seen(layout.root) if mapped else layout.root), None, "none"))
    if mapped:
        found += [Place("/tmp", layout.tmp, "write"), Place(HOME, layout.home, "write")]
        found += [Place(f"{SECRETS}/{name}", path, "read") for name, path in policy.secret_files.items()]
    else:
        found += [Place(str(path), path, "write") for path in (layout.tmp, layout.home)]
    found += [Place(str(path), path, "read") for path in policy.readable]

    def seen(path: Path) -> str:
        return str(policy.seen(path) if mapped else path)

    found += [Place(seen(path), path, "write") for path in (policy.workspace, *policy.writable)]
    for path in policy.paths(policy.protected):
        found += [Place(seen(item), None, "read") for item in dict.fromkeys((path, followed(policy, path)))]
    found += [Place(seen(path), None, "none") for path in policy.paths(policy.masked)]
    return found

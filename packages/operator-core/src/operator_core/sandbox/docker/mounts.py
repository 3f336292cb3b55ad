"""What a container shows of this machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from operator_core.sandbox.mounts import Mount

__all__ = ["Bind", "binds", "make_points"]


class Bind(NamedTuple):
    """One place of the container.

    Attributes:
        source: Path on the host.
        target: Path in the container.
        writable: Whether commands may write to it.
    """

    source: str
    target: str
    writable: bool

    def option(self) -> list[str]:
        """For ``docker run``. A path may hold a comma or a colon."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target}"]
        if not self.writable:
            # What is mounted below would stay writable with older versions.
            fields += ["readonly", "bind-nonrecursive=true"]
        return [
            "--mount",
            ",".join('"' + item.replace('"', '""') + '"' if set(item) & set(',"') else item for item in fields),
        ]


def binds(mounts: Iterable[Mount], *, empty: Path) -> list[Bind]:
    """The mounts of a policy as those of a container.

    Args:
        mounts: What it shows.
        empty: A folder for folders that are shown instead of hidden ones; they are made, one for each.
    """
    found: list[Bind] = []
    for mount in mounts:
        source = mount.source
        if source is None:
            source = empty / str(len(found))
            source.mkdir(parents=True)
        found.append(Bind(str(source), mount.target, mount.writable))
    return found


def make_points(mounts: Sequence[Bind], own: Iterable[Path]) -> None:
    """Make the places for mounts below others, in folders of ours: the daemon would make them as root, to stay."""
    roots = [item for item in mounts if Path(item.source) in set(own)]
    for item in mounts:
        for root in roots:
            if item.target.startswith(root.target + "/"):
                place = Path(root.source, item.target[len(root.target) + 1 :])
                place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if Path(item.source).is_dir():
                    place.mkdir(mode=0o700, exist_ok=True)
                else:
                    place.touch()

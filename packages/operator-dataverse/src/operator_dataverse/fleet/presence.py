"""Who is alive: the dev boxes of a fleet, by their signs of life, and what each of them has to do.

A box is *alive* while its newest sign is younger than the lease, *gone* when it is older, and *unknown* when there
never was one; what is unknown is shown and left alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field
from datetime import datetime
from typing import Any, Literal

from operator_core import clock
from operator_dataverse.client import Dataverse, field
from operator_dataverse.tables.schema import USERS
from operator_dataverse.tables.task import ACTIVE, TaskCode, TaskRow
from operator_dataverse.tables.user import UserRow

__all__ = ["Box", "Fleet", "Life", "beat_of", "survey"]

Life = Literal["alive", "gone", "unknown"]

_PAGE = 500


@dataclass(frozen=True)
class Box:
    """One dev box.

    Attributes:
        name: Its name, as it stands in the rows.
        life: Whether anything lives there.
        seen: Its newest sign of life.
        users: Addresses of the people whose box it is; first the one whose worker was seen last.
        capacity: So many tasks at once.
        labels: What it offers, in small letters.
        shared: Whether it also works for other people; then only what its configured person says of it counts.
        tasks: Tasks that are on it and have not ended, oldest first.
    """

    name: str
    life: Life
    seen: datetime | None = None
    users: tuple[str, ...] = ()
    capacity: int = 1
    labels: frozenset[str] = frozenset()
    shared: bool = False
    tasks: tuple[TaskRow, ...] = ()

    def count(self, *codes: TaskCode) -> int:
        """How many of its tasks are in one of these states."""
        return sum(task.status in codes for task in self.tasks)

    @property
    def free(self) -> int:
        """How many further tasks it can be given; what waits for a person takes no place."""
        return max(0, self.capacity - self.count(TaskCode.RUNNING, TaskCode.PENDING, TaskCode.QUEUED))

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "name": self.name,
            "life": self.life,
            "seen": clock.iso(self.seen) if self.seen else None,
            "users": list(self.users),
            "capacity": self.capacity,
            "labels": sorted(self.labels),
            "shared": self.shared,
            "running": self.count(TaskCode.RUNNING),
            "waiting_for_input": self.count(TaskCode.WAITING_FOR_INPUT),
            "queued": self.count(TaskCode.QUEUED),
            "pending": self.count(TaskCode.PENDING),
        }


@dataclass(frozen=True)
class Fleet:
    """Everything at one moment.

    Attributes:
        at: The moment.
        boxes: By name.
        unplaced: Tasks that have not ended and are on no box, oldest first.
        users: Everybody.
    """

    at: datetime
    boxes: tuple[Box, ...] = ()
    unplaced: tuple[TaskRow, ...] = ()
    users: tuple[UserRow, ...] = ()
    tasks: tuple[TaskRow, ...] = data_field(default=(), repr=False)

    def box(self, name: str) -> Box | None:
        """The box of that name; None: there is none."""
        return next((box for box in self.boxes if _same(box.name, name)), None)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "at": clock.iso(self.at),
            "boxes": [box.to_dict() for box in self.boxes],
            "unplaced": [task.id for task in self.unplaced],
        }


async def survey(
    dataverse: Dataverse, table: str, *, lease_s: float, now: datetime, shared: Mapping[str, str] | None = None
) -> Fleet:
    """Look at all people and at all tasks that have not ended.

    Args:
        dataverse: Where.
        table: Entity set of the tasks.
        lease_s: How long a sign of life counts.
        now: The moment to judge by.
        shared: Boxes that also work for others -> the person whose worker runs there; default: none.
    """
    users = [UserRow.parse(row) async for row in dataverse.rows(USERS, page_size=_PAGE)]
    columns = tuple(name for name in TaskRow.select(await dataverse.info(table)) if name != "cr_prompt")
    where = field("cr_status").is_in(int(code) for code in sorted(ACTIVE))
    rows = dataverse.rows(table, where, select=columns, orderby=("createdon asc",), page_size=_PAGE)
    tasks = [TaskRow.parse(row) async for row in rows]
    return _fleet(users, tasks, lease_s, now, {box.casefold(): email for box, email in (shared or {}).items()})


def _fleet(
    users: Sequence[UserRow], tasks: Sequence[TaskRow], lease_s: float, now: datetime, shared: Mapping[str, str]
) -> Fleet:
    owners: dict[str, list[UserRow]] = {}
    theirs: dict[str, list[TaskRow]] = {}
    names: dict[str, str] = {}
    for user in users:
        key = user.devbox_name.casefold()
        # Anybody can write into a row of theirs that they are on a box, and then get what is meant for its person.
        if key and _same(user.email, shared.get(key, user.email)):
            names.setdefault(key, user.devbox_name)
            owners.setdefault(key, []).append(user)
    for task in tasks:
        if task.devbox:
            names.setdefault(task.devbox.casefold(), task.devbox)
            theirs.setdefault(task.devbox.casefold(), []).append(task)
    boxes = [
        _box(names[key], owners.get(key, ()), theirs.get(key, ()), lease_s, now, key in shared) for key in sorted(names)
    ]
    unplaced = tuple(task for task in tasks if not task.devbox)
    return Fleet(now, tuple(boxes), unplaced, tuple(users), tuple(tasks))


def _box(
    name: str, users: Iterable[UserRow], tasks: Iterable[TaskRow], lease_s: float, now: datetime, shared: bool
) -> Box:
    # First the one whose worker was seen last: that is who the box works for.
    users = sorted(users, key=lambda user: (user.worker_seen is None, -_stamp(user.worker_seen), user.email))
    tasks = tuple(tasks)
    signs = [sign for user in users for sign in (user.last_seen, user.worker_seen) if sign is not None]
    signs += [beat for task in tasks if (beat := beat_of(task)) is not None]
    seen = max(signs, default=None)
    life: Life = "unknown"
    if seen is not None:
        life = "alive" if (now - seen).total_seconds() <= lease_s else "gone"
    return Box(
        name,
        life,
        seen,
        tuple(user.email for user in users),
        max([user.capacity for user in users if user.capacity is not None], default=1),
        frozenset(label.casefold() for user in users for label in user.labels),
        shared,
        tasks,
    )


def beat_of(task: TaskRow) -> datetime | None:
    """When the worker of a task beat last; None: it never did.

    The box's clock may be fast, but a beat is never later than the last change of its row.
    """
    if task.heartbeat is None or task.modified is None:
        return task.heartbeat
    return min(task.heartbeat, task.modified)


def _stamp(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0.0


def _same(one: str, other: str) -> bool:
    return one.casefold() == other.casefold()

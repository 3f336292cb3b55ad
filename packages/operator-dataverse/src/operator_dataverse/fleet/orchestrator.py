"""Where work goes: to a box that lives, has room and offers what the task needs.

Workers take what names their person and no box, so only three kinds of tasks need a hand here: those with a label,
those of people without a living box of their own, and those that were taken back from a box of which nothing is left.
A task goes to a box of its own person by naming the box. To a *shared* box (one that the settings name) it goes as a
mirror: a row of the box's person that stands for it, because a worker never runs a row of somebody else (D-42).
:mod:`operator_dataverse.fleet.mirrors` keeps the two in agreement.

Every step is one conditional write that can be repeated; several orchestrators do no harm to each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operator_core.text import clip, printable
from operator_dataverse.client import Conflict, Dataverse, clip_units
from operator_dataverse.fleet.devboxes import DevBoxes, next_name
from operator_dataverse.fleet.mirrors import Mirrors
from operator_dataverse.fleet.presence import Box, Fleet
from operator_dataverse.fleet.reclaim import ASSIGNED
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["Orchestrator", "Placed"]


@dataclass(frozen=True)
class Placed:
    """What one round did.

    Attributes:
        assigned: Task and box, of tasks that went to a box of their person.
        handed: Task and box, of tasks that went to a shared box as a mirror.
        waiting: Tasks for which there is no place now.
        synced: Tasks that were brought into agreement with their mirror, or the other way round.
        provisioned: Name of a box that was asked for; None: none.
    """

    assigned: tuple[tuple[str, str], ...] = ()
    handed: tuple[tuple[str, str], ...] = ()
    waiting: tuple[str, ...] = ()
    synced: tuple[str, ...] = ()
    provisioned: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "assigned": [{"task": task, "box": box} for task, box in self.assigned],
            "handed": [{"task": task, "box": box} for task, box in self.handed],
            "waiting": list(self.waiting),
            "synced": list(self.synced),
            "provisioned": self.provisioned,
        }


class Orchestrator:
    """Places tasks.

    Args:
        dataverse: Where.
        table: Entity set of the tasks.
        devboxes: Makes further boxes; None: nobody does.
        provision_above: So many waiting tasks for each box, before another one is made.
    """

    def __init__(
        self, dataverse: Dataverse, table: str, *, devboxes: DevBoxes | None = None, provision_above: int = 5
    ) -> None:
        self._dataverse = dataverse
        self._table = table
        self._devboxes = devboxes
        self._provision_above = provision_above
        self._mirrors = Mirrors(dataverse, table)

    async def round(self, fleet: Fleet) -> Placed:
        """Place what can be placed, by what a survey found; what changed since is left to the next round."""
        # What a person's own workers take soon is not looked at closer.
        open_ones = [
            task for task in fleet.unplaced if task.status is not TaskCode.PENDING or self._needs_a_hand(task, fleet)
        ]
        mirrored, synced = await self._mirrors.agree(fleet, open_ones)
        room = {box.name: box.free for box in fleet.boxes if box.life == "alive"}
        assigned, handed, waiting = [], [], []
        for task in open_ones:
            if task.id in mirrored or not self._needs_a_hand(task, fleet):
                continue
            own, shared = self._places(task, fleet, room)
            box = own or (shared if await self._mirrors.possible() else None)
            if box is None:
                waiting.append(task.id)
            elif own is not None and await self._assign(task, own):
                assigned.append((task.id, own.name))
                room[own.name] -= 1
            elif own is None and await self._hand_over(task, box):
                handed.append((task.id, box.name))
                room[box.name] -= 1
        made = await self._provision(len(waiting), fleet)
        return Placed(tuple(assigned), tuple(handed), tuple(waiting), tuple(synced), made)

    def _needs_a_hand(self, task: TaskRow, fleet: Fleet) -> bool:
        if not (task.user_email or task.is_mirror):
            return False
        if task.status is TaskCode.QUEUED:
            return True
        return task.status is TaskCode.PENDING and not any(
            box.life == "alive" and _belongs(box, task.user_email) for box in fleet.boxes
        )

    def _places(self, task: TaskRow, fleet: Fleet, room: dict[str, int]) -> tuple[Box | None, Box | None]:
        """The own and the shared box with most room that can do it."""
        fitting = [
            box
            for box in fleet.boxes
            if room.get(box.name, 0) > 0 and (not task.label or task.label.strip().casefold() in box.labels)
        ]
        fitting.sort(key=lambda box: (-room[box.name], box.name))
        own = None if task.is_mirror else next((box for box in fitting if _belongs(box, task.user_email)), None)
        return own, next((box for box in fitting if box.shared and box.users), None)

    async def _assign(self, task: TaskRow, box: Box) -> bool:
        return await self._write(task, {"crb3b_devbox": box.name, **_assigned(box)})

    async def _hand_over(self, task: TaskRow, box: Box) -> bool:
        if task.is_mirror:
            values = {"crb3b_devbox": box.name, "crb3b_useremail": box.users[0], **_assigned(box)}
            return await self._write(task, values, heir=box.users[0])
        if task.status is TaskCode.PENDING:
            # Before the mirror is made, so that no worker of the person takes the task meanwhile.
            said = clip_units(f"Handed to the shared dev box {_shown(box.name)}", 200)
            if not await self._write(task, {"cr_status": int(TaskCode.QUEUED), "cr_statusmessage": said}):
                return False
        return await self._mirrors.make(task.id, box, _assigned(box))

    async def _write(self, task: TaskRow, values: dict[str, Any], *, heir: str | None = None) -> bool:
        if task.etag is None:
            return False
        owner = None if heir is None else await self._dataverse.owners.id_of(heir)
        done = await self._dataverse.update(self._table, task.id, values, etag=task.etag, owner=owner)
        return not isinstance(done, Conflict)

    async def _provision(self, waiting: int, fleet: Fleet) -> str | None:
        usable = sum(box.life != "gone" for box in fleet.boxes)
        if self._devboxes is None or waiting <= self._provision_above * max(1, usable):
            return None
        boxes = await self._devboxes.list()
        if any(not box.ready and not box.failed for box in boxes):
            return None  # one is on its way
        # Under a name that every orchestrator finds, so that two of them ask for one box.
        made = await self._devboxes.provision(next_name({box.name for box in boxes}))
        return None if made.existed else made.name


def _assigned(box: Box) -> dict[str, Any]:
    said = clip_units(f"{ASSIGNED}{_shown(box.name)}", 200)
    return {"cr_status": int(TaskCode.PENDING), "cr_statusmessage": said}


def _belongs(box: Box, email: str) -> bool:
    return any(user.strip().casefold() == email.strip().casefold() for user in box.users)


def _shown(name: str) -> str:
    return clip(printable(name), 80)

"""Work whose worker is dead goes back: by its lease, never by the age of its row (D-43).

A running row is judged by its heartbeat. The clock of the box that wrote it may be wrong, so a row is also taken as
alive while anybody writes to it; but where the very same heartbeat stood for longer than a lease while this process
watched, by this process's own clock, nobody beats any more. A row without a heartbeat is *unknown*: it is reported and
not touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from operator_core.clock import Clock
from operator_core.text import clip, printable
from operator_dataverse.client import Conflict, Dataverse, Row, clip_units, field
from operator_dataverse.fleet.presence import Box, Fleet, beat_of
from operator_dataverse.tables.conversation import ConversationStatus, Direction
from operator_dataverse.tables.schema import CONVERSATIONS
from operator_dataverse.tables.task import HEARTBEAT, LEASE_OWNER, TaskCode, TaskRow

__all__ = ["ASSIGNED", "Cleaned", "Judged", "Reclaim", "Verdict", "cleanup"]

Verdict = Literal["alive", "unknown", "doubtful", "expired", "stranded"]
"""``doubtful``: no beat for a lease, but something writes to the row. ``stranded``: it waits for a box that is gone."""

ASSIGNED = "Assigned to "
"""How the status message of a row begins that the fleet manager, and no person, put on its box."""

_SKEW_S = 30.0


@dataclass(frozen=True)
class Judged:
    """One task, and what is thought of it.

    Attributes:
        task: As it was read.
        verdict: What is thought.
        why: One clause.
        taken: Whether it was taken back; None: not tried.
    """

    task: TaskRow
    verdict: Verdict
    why: str
    taken: bool | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "task": self.task.id,
            "name": self.task.name,
            "devbox": self.task.devbox or None,
            "verdict": self.verdict,
            "why": self.why,
            "taken": self.taken,
        }


class Reclaim:
    """Takes work back from dead workers. One object that lives long sees more than many short ones.

    Args:
        dataverse: Where.
        table: Entity set of the tasks.
        lease_s: After so long without a beat a row is given back; some seconds more are left for clocks that differ.
        time: This process's clock.
    """

    def __init__(self, dataverse: Dataverse, table: str, lease_s: float, time: Clock | None = None) -> None:
        self._dataverse = dataverse
        self._table = table
        self._limit_s = lease_s + min(_SKEW_S, lease_s / 2)
        self._time = time or Clock()
        self._watched: dict[str, tuple[datetime, float]] = {}

    def judge(self, fleet: Fleet) -> list[Judged]:
        """What is thought of each task that runs, or waits on a box; those that are well are left out of it."""
        # Such a row is on no box and has no worker of its own: the row that stands for it has.
        elsewhere = {task.mirror_of.lower() for task in fleet.tasks if task.is_mirror}
        running = [
            task
            for task in fleet.tasks
            if task.status is TaskCode.RUNNING and (task.devbox or task.id not in elsewhere)
        ]
        self._watch(running)
        judged = [self._judge(task, fleet.at) for task in running]
        judged += [found for box in fleet.boxes if box.life == "gone" for found in self._stranded(box)]
        return [one for one in judged if one.verdict != "alive"]

    async def take_back(self, judged: Iterable[Judged]) -> list[Judged]:
        """Give back what is expired or stranded, unless its row has changed since it was read: that is a sign of life.

        Returns:
            The same, each with what became of it.
        """
        done = []
        for one in judged:
            if one.verdict in ("expired", "stranded"):
                taken = await self._give_back(one)
                if taken:
                    self._watched.pop(one.task.id, None)
                one = replace(one, taken=taken)
            done.append(one)
        return done

    def _watch(self, running: Iterable[TaskRow]) -> None:
        now = self._time.monotonic()
        kept = {}
        for task in running:
            if task.heartbeat is not None:
                known = self._watched.get(task.id)
                kept[task.id] = known if known is not None and known[0] == task.heartbeat else (task.heartbeat, now)
        self._watched = kept

    def _judge(self, task: TaskRow, now: datetime) -> Judged:
        beat = beat_of(task)
        if beat is None:
            return Judged(task, "unknown", "it shows no signs of life that could end")
        limit = timedelta(seconds=self._limit_s)
        since = f"no sign of life since {beat:%Y-%m-%d %H:%M:%S} UTC"
        stood = self._time.monotonic() - self._watched[task.id][1]
        if stood > self._limit_s:
            return Judged(task, "expired", since)
        if now - beat <= limit:
            return Judged(task, "alive", "")
        if task.modified is not None and now - task.modified <= limit:
            return Judged(task, "doubtful", f"{since}, but something still writes to the row")
        return Judged(task, "expired", since)

    def _stranded(self, box: Box) -> Iterable[Judged]:
        for task in box.tasks:
            # What a person gave to this very box is the person's to move.
            ours = task.status is TaskCode.PENDING and task.status_message.startswith(ASSIGNED)
            if task.status is TaskCode.QUEUED or ours:
                yield Judged(task, "stranded", f"it waits for {_shown(box.name)}, which is gone")

    async def _give_back(self, one: Judged) -> bool:
        task = one.task
        if task.etag is None:
            return False
        said = clip_units(f"Taken back from {_shown(task.devbox) or 'its worker'}: {one.why}", 200)
        # With a label, only the fleet manager may place it again.
        code = TaskCode.QUEUED if task.label else TaskCode.PENDING
        values: dict[str, Any] = {"cr_status": int(code), "cr_statusmessage": said, "crb3b_devbox": None}
        values |= dict.fromkeys((await self._dataverse.info(self._table)).only((HEARTBEAT, LEASE_OWNER)))
        written = await self._dataverse.update(self._table, task.id, values, etag=task.etag)
        if isinstance(written, Conflict):
            # The answer to an own write may have been lost on the way.
            return written.current is not None and _is_written(written.current, values)
        return True


@dataclass(frozen=True)
class Cleaned:
    """Replies that nobody fetched.

    Attributes:
        stale: Ids of those found.
        expired: Ids of those that are expired now; the others were fetched just in time.
    """

    stale: tuple[str, ...]
    expired: tuple[str, ...]


async def cleanup(
    dataverse: Dataverse,
    *,
    older_s: float = 600.0,
    email: str | None = None,
    dry_run: bool = False,
    most: int | None = None,
    time: Clock | None = None,
) -> Cleaned:
    """Expire replies that nobody fetched: the only place where that is done (D-64).

    Args:
        dataverse: Where.
        older_s: Made longer ago than this.
        email: Only replies to this person.
        dry_run: Only look.
        most: At most so many, the oldest ones; None: all.
        time: The clock to judge by.
    """
    before = (time or Clock()).now() - timedelta(seconds=older_s)
    where = (field("cr_direction") == Direction.OUTBOUND) & (field("cr_status") == ConversationStatus.UNCLAIMED)
    where &= field("createdon") < before
    if email is not None:
        where &= field("cr_useremail") == email.strip()
    columns = ("cr_status", "cr_useremail", "createdon")
    oldest = ("createdon asc",)
    found = [row async for row in dataverse.rows(CONVERSATIONS, where, select=columns, orderby=oldest, top=most)]
    if email is not None:
        found = [row for row in found if str(row.get("cr_useremail") or "").casefold() == email.strip().casefold()]
    expired = []
    for row in () if dry_run else found:
        values = {"cr_status": ConversationStatus.EXPIRED.value}
        if row.etag is not None:
            written = await dataverse.update(CONVERSATIONS, row.id, values, etag=row.etag)
            if not isinstance(written, Conflict) or (written.current and _is_written(written.current, values)):
                expired.append(row.id)
    return Cleaned(tuple(row.id for row in found), tuple(expired))


def _is_written(row: Row, values: Mapping[str, Any]) -> bool:
    return all(row.get(name) == value for name, value in values.items())


def _shown(name: str) -> str:
    return clip(printable(name), 80)

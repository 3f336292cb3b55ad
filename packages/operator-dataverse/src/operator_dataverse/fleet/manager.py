"""The fleet manager: looks at all dev boxes and all tasks, and sees to it that no work is left lying."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from operator_core.clock import Clock
from operator_core.text import clip, printable
from operator_dataverse.client import Dataverse
from operator_dataverse.errors import DataverseError, Throttled, Unreachable
from operator_dataverse.fleet.orchestrator import Orchestrator, Placed
from operator_dataverse.fleet.presence import Fleet, survey
from operator_dataverse.fleet.reclaim import Cleaned, Judged, Reclaim, cleanup

__all__ = ["FleetManager", "Round"]

_CLEANUP_S = 60.0
_LONGEST_PAUSE_S = 60.0
_MOST_REPLIES = 500


@dataclass(frozen=True)
class Round:
    """What one look found and did.

    Attributes:
        fleet: Boxes and tasks.
        judged: Tasks that are not well, and what became of them.
        placed: Where tasks went; None: that was not looked at.
        cleaned: Replies that nobody fetched; None: that was not looked at.
    """

    fleet: Fleet
    judged: tuple[Judged, ...] = ()
    placed: Placed | None = None
    cleaned: Cleaned | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            **self.fleet.to_dict(),
            "judged": [one.to_dict() for one in self.judged],
            "placed": self.placed.to_dict() if self.placed else None,
            "expired_replies": list(self.cleaned.expired) if self.cleaned else None,
        }


class FleetManager:
    """Looks, and looks again.

    Args:
        dataverse: The organisation.
        table: Entity set of the tasks.
        lease_s: How long a sign of life counts.
        poll_s: Between two looks.
        reply_s: A reply that nobody fetched for so long is expired.
        orchestrator: Places tasks; None: nobody does.
        shared: Boxes that also work for others -> the person whose worker runs there.
        say: Prints a line for a person.
        time: Time.
    """

    def __init__(
        self,
        dataverse: Dataverse,
        table: str,
        *,
        lease_s: float,
        poll_s: float = 10.0,
        reply_s: float = 600.0,
        orchestrator: Orchestrator | None = None,
        shared: Mapping[str, str] | None = None,
        say: Callable[[str], None] = lambda line: None,
        time: Clock | None = None,
    ) -> None:
        self._dataverse = dataverse
        self._table = table
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._reply_s = reply_s
        self._orchestrator = orchestrator
        self._shared = shared
        self._say = say
        self._time = time or Clock()
        self._reclaim = Reclaim(dataverse, table, lease_s, self._time)
        self._cleaned_at: float | None = None
        self._said: dict[str, str] = {}

    async def look(self) -> Round:
        """What there is; nothing is changed."""
        now = self._time.now()
        fleet = await survey(self._dataverse, self._table, lease_s=self._lease_s, now=now, shared=self._shared)
        return Round(fleet, tuple(self._reclaim.judge(fleet)))

    async def round(self) -> Round:
        """Look once, and do what is to be done."""
        seen = await self.look()
        judged = await self._reclaim.take_back(seen.judged)
        cleaned = None
        now = self._time.monotonic()
        if self._cleaned_at is None or now - self._cleaned_at >= _CLEANUP_S:
            cleaned = await cleanup(self._dataverse, older_s=self._reply_s, most=_MOST_REPLIES, time=self._time)
            self._cleaned_at = now
        placed = await self._orchestrator.round(seen.fleet) if self._orchestrator is not None else None
        done = Round(seen.fleet, tuple(judged), placed, cleaned)
        self._tell(done)
        return done

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until ``stop`` is set; trouble with the service is said once and waited out.

        Raises:
            DataverseError: Already the first look was refused: the account or the tables are not as they must be.
        """
        failures, ever = 0, False
        while not stop.is_set():
            try:
                await self.round()
                if failures:
                    self._say("[Fleet] The service answers again.")
                failures, ever = 0, True
            except DataverseError as error:
                if not ever and not isinstance(error, (Unreachable, Throttled)):
                    raise
                failures += 1
                if failures == 1:
                    self._say(f"[Fleet] {error}")
            await self._time.wait(stop, min(self._poll_s * 2 ** min(failures, 5), max(_LONGEST_PAUSE_S, self._poll_s)))

    def _tell(self, done: Round) -> None:
        """Say what is new; what stays as it is was said."""
        now: dict[str, str] = {}
        for box in done.fleet.boxes:
            now[f"box {box.name}"] = f"[Fleet] {_shown(box.name)} is {box.life}."
        for one in done.judged:
            name = f"Task {one.task.id[:8]} ({_shown(one.task.name)}) on {_shown(one.task.devbox) or 'no box'}"
            if one.taken:
                self._say(f"[Fleet] {name} was taken back: {one.why}.")
            elif one.taken is None:
                now[f"task {one.task.id}"] = f"[Fleet] {name} is {one.verdict}: {one.why}."
        if done.placed is not None:
            for task, place in (*done.placed.assigned, *done.placed.handed):
                self._say(f"[Fleet] Task {task[:8]} goes to {_shown(place)}.")
            if done.placed.waiting:
                now["waiting"] = f"[Fleet] Tasks that wait for a box that can do them: {len(done.placed.waiting)}."
            if done.placed.provisioned:
                self._say(f"[Fleet] The dev box {done.placed.provisioned} was asked for.")
        if done.cleaned is not None and done.cleaned.expired:
            self._say(f"[Fleet] Replies that nobody fetched, now expired: {len(done.cleaned.expired)}.")
        for key, line in now.items():
            if self._said.get(key) != line:
                self._say(line)
        self._said = now


def _shown(name: str) -> str:
    return clip(" ".join(printable(name).split()), 80)

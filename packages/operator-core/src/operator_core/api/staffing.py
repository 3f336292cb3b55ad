"""Whether anybody is there who could take a ticket."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from operator_core.api.models import WorkerView
from operator_core.model.monitor import MONITOR_BLIND
from operator_core.model.ticket import TicketStatus
from operator_core.text import clip, printable

__all__ = ["nobody_for", "takers", "why_stalled"]

_NOBODY = "No worker is running; start one with `operator worker run`."
_WAITS = (TicketStatus.OPEN, TicketStatus.QUEUED)


def takers(workers: Sequence[WorkerView]) -> list[str]:
    """Names of those that live and take tickets."""
    return sorted({worker.name for worker in workers if worker.alive and not worker.draining})


def nobody_for(workers: Sequence[WorkerView], pinned_to: str | None = None) -> str | None:
    """The sentence that says that nobody could take a ticket; None: somebody could, now or when it is free.

    Args:
        workers: All that the store knows.
        pinned_to: Name of the only worker that may take it; None: any may.
    """
    living = [worker for worker in workers if worker.alive]
    if pinned_to is None:
        if not living:
            return _NOBODY
        if takers(living):
            return None
        who = "The only worker that runs is" if len(living) == 1 else f"All {len(living)} workers that run are"
        return f"{who} draining and takes nothing new; start another one, or undrain it with `operator worker undrain`."
    name = clip(" ".join(printable(pinned_to).split()), 80)
    own = [worker for worker in living if worker.name == pinned_to]
    if not own:
        return f"No worker called {name} is running; the ticket waits for it."
    if takers(own):
        return None
    return f"The worker {name} is draining and takes nothing new; the ticket waits for it."


def why_stalled(
    workers: Sequence[WorkerView],
    ticket_id: int,
    status: TicketStatus,
    *,
    name: str,
    pinned_to: str | None,
    held: bool,
) -> str | None:
    """Why nobody works on a ticket, or will, as things are; None: somebody does or can, or it rests for another reason.

    Args:
        workers: All that the store knows.
        name: Of its invariant, or of the task.
    """
    if held:
        return None
    if status in _WAITS:
        if name == MONITOR_BLIND:
            return "No worker takes it: a monitor that cannot see is for a person to mend."
        return nobody_for(workers, pinned_to)
    if status is not TicketStatus.RUNNING or _is_at_work(workers, ticket_id):
        return None
    nobody = nobody_for(workers, pinned_to)
    return f"The worker that had it is gone. {nobody}" if nobody else None


def _is_at_work(workers: Collection[WorkerView], ticket_id: int) -> bool:
    return any(worker.alive and ticket_id in worker.tickets for worker in workers)

"""What the product can be asked for, by whomever."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, Protocol

from operator_core.api.models import (
    ApprovalView,
    AuditView,
    Board,
    CostRow,
    EntryPage,
    InvariantView,
    Page,
    ReportView,
    SessionDetail,
    SessionView,
    Tick,
    TicketDetail,
    TicketView,
    WorkerView,
)
from operator_core.model.digest import Digest

__all__ = ["Api"]


class Api(Protocol):
    """The product, on a store here or on a server elsewhere. Who acts is known from how the object was made.

    Raises (all methods):
        NotFound: What is named does not exist.
        ConfigError: An argument is not usable.
        TransitionRefused: The ticket's state does not allow it.
        StoreError: The store, or the server, cannot be reached or written.
    """

    # ---- reading

    async def board(self) -> Board:
        """Counts of everything that a person may care about."""
        ...

    async def tickets(
        self,
        *,
        status: Collection[str] = (),
        kind: str | None = None,
        severity: str | None = None,
        label: Mapping[str, str] | None = None,
        needs_me: bool = False,
        search: str = "",
        order: Literal["attention", "newest"] = "newest",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[TicketView]:
        """Tickets; ``attention``: what needs a person first, then what runs, then the rest."""
        ...

    async def ticket(self, ticket_id: int) -> TicketDetail:
        """One ticket with its story."""
        ...

    async def report(self, ticket_id: int) -> ReportView:
        """The closure report of a ticket's newest attempt that has one."""
        ...

    async def sessions(
        self, *, ticket_id: int | None = None, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[SessionView]:
        """Sessions, newest first."""
        ...

    async def session(self, session_id: str) -> SessionDetail:
        """One session."""
        ...

    async def entries(
        self,
        session_id: str,
        *,
        after: int = -1,
        limit: int = 200,
        kinds: Collection[str] | None = None,
        phase: str | None = None,
        max_chars: int = 20_000,
        bodies: bool = False,
    ) -> EntryPage:
        """Entries behind sequence ``after``, at most ``limit`` (1 to 1000).

        Args:
            max_chars: Longer texts are cut, and say so.
            bodies: Also the exact messages to and from the model.
        """
        ...

    async def ticks(self, session_id: str, *, limit: int = 2000) -> list[Tick]:
        """What stands out in a journal, in order, at most ``limit`` (1 to 10000): errors, results with an exit code
        other than 0, verdicts, beginnings of phases, what people said.
        """
        ...

    async def workers(self) -> list[WorkerView]:
        """Workers that live, and those that died lately."""
        ...

    async def invariants(self, *, samples: int = 120) -> list[InvariantView]:
        """Everything under watch; those that are red or unknown first."""
        ...

    async def costs(
        self, by: Literal["ticket", "model", "phase", "day"], *, days: int = 30, limit: int = 100
    ) -> list[CostRow]:
        """What was spent in the last days, the largest first (days: the newest first)."""
        ...

    async def digest(self, since: datetime) -> Digest:
        """What happened since then (at most 366 days ago): what was resolved and how it was proved, what needs a
        person, what came most often, and the cost.
        """
        ...

    async def approvals(self, *, pending: bool = True, limit: int = 100) -> list[ApprovalView]:
        """Calls that wait for a person; ``pending=False``: also those that were answered."""
        ...

    async def approval(self, approval_id: str) -> ApprovalView:
        """One call that waits for a person, or did."""
        ...

    async def audit(self, *, session_id: str | None = None) -> AuditView:
        """Check the whole chain now, or that of one session."""
        ...

    # ---- doing

    async def submit(self, prompt: str, *, key: str | None = None, **options: Any) -> TicketDetail:
        """Submit a task; the options are those of :func:`operator_core.work.submit.submit_task`.

        Args:
            key: Idempotency key: a second submission with it opens nothing and is answered with the first ticket.
        """
        ...

    async def open_incident(
        self,
        name: str,
        message: str,
        *,
        severity: str = "warning",
        context: str | None = None,
        invariant: str | None = None,
        subject: str | None = None,
        labels: Mapping[str, str] | None = None,
        priority: int = 0,
        key: str | None = None,
    ) -> TicketDetail:
        """Open an incident by hand; without an invariant its repair cannot be proved."""
        ...

    async def reply(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """Answer the question of a session that waits."""
        ...

    async def steer(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """Say something to a session that works."""
        ...

    async def cancel(self, ticket_id: int, *, now: bool = False) -> TicketDetail:
        """Cancel; it wins over any late result."""
        ...

    async def reopen(self, ticket_id: int) -> TicketDetail:
        """Give it to the workers again."""
        ...

    async def verify(self, ticket_id: int, *, checks_only: bool = False, key: str | None = None) -> TicketDetail:
        """Ask that the finished work be judged again by a worker, in its sandbox; the ticket stays as it is.

        Args:
            checks_only: Without the verifier agent, and so without a model.
        """
        ...

    async def resolve(self, ticket_id: int, reason: str) -> TicketDetail:
        """A person says it is done, and why; recorded as such."""
        ...

    async def hold(self, ticket_id: int, held: bool) -> TicketDetail:
        """Keep workers away from it, or give it back."""
        ...

    async def decide(self, approval_id: str, approve: bool, *, note: str = "") -> ApprovalView:
        """Allow or deny one call."""
        ...

    async def drain(self, worker_id: str, draining: bool) -> Sequence[WorkerView]:
        """Let a worker end what it has and take nothing new, or let it take again."""
        ...

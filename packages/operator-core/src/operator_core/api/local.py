"""``LocalApi``: the product on a store that this process has open."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from operator_core import clock
from operator_core.api import acts
from operator_core.api.approving import approval_view
from operator_core.api.asking import known_session, known_ticket, limited, storable, ticket_filter
from operator_core.api.briefs import read_briefs
from operator_core.api.checking import check_chain
from operator_core.api.costs import read_costs
from operator_core.api.digest import read_digest
from operator_core.api.listing import read_board, read_sessions, read_tickets, read_workers
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
from operator_core.api.sessions import read_entries, read_session, read_ticks
from operator_core.api.story import read_report, read_ticket
from operator_core.api.views import NEEDS_ME
from operator_core.api.watching import read_invariants
from operator_core.config import LoadedSettings, Settings
from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database
from operator_core.db.fleet import set_draining
from operator_core.db.idempotency import principal_of
from operator_core.db.second_looks import SecondLooks
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError
from operator_core.model.approval import Approval
from operator_core.model.digest import Digest
from operator_core.model.person import Actor

__all__ = ["LocalApi"]

_LONGEST_LIST = 500
_ENTRIES = 1000
_CHARS = 20_000_000
_LONGEST_DIGEST = timedelta(days=366)
_BY = ("ticket", "model", "phase", "day")


class LocalApi:
    """:class:`~operator_core.api.protocol.Api` on an open store.

    Args:
        actor: Who reads and acts. What it may do is decided where it came in, not here; the ledger is told its name.
        loaded: The settings with their origins, where they are known.
    """

    def __init__(
        self, database: Database, settings: Settings, actor: Actor, *, loaded: LoadedSettings | None = None
    ) -> None:
        self.database = database
        self.settings = settings
        self.actor = actor
        self.loaded = loaded

    def as_(self, actor: Actor) -> LocalApi:
        """The same for somebody else."""
        return LocalApi(self.database, self.settings, actor, loaded=self.loaded)

    # ---- reading

    async def board(self) -> Board:
        """Counts of everything that a person may care about."""
        return await read_board(self.database)

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
        within_s: float | None = None,
    ) -> Page[TicketView]:
        """A page of at most 500 tickets; see :class:`~operator_core.api.protocol.Api`.

        Args:
            within_s: Look for about so many seconds; then what was not looked at is behind the page's cursor, however
                few tickets are on it. None: as long as it takes.
        """
        if order not in ("attention", "newest"):
            raise ConfigError(f"{str(order)[:40]!r} is no order of tickets; choose attention or newest.")
        limited("limit", limit, _LONGEST_LIST)
        wanted = ticket_filter(status=status, kind=kind, severity=severity, label=label, search=search)
        if needs_me:
            wanted = wanted._replace(status=tuple(s for s in NEEDS_ME if s in wanted.status or not wanted.status))
            if not wanted.status:
                return Page[TicketView](items=[])
        attention = order == "attention"
        return await read_tickets(
            self.database, wanted, attention=attention, limit=limit, cursor=cursor, within_s=within_s
        )

    async def ticket(self, ticket_id: int) -> TicketDetail:
        """One ticket with its story; of a very long one the newest part."""
        known_ticket(ticket_id)
        asked = await Approvals(self.database).listed(pending=False, ticket_id=ticket_id)
        shown = [approval_view(approval, self.database.redactor) for approval in asked]
        return await read_ticket(self.database, ticket_id, shown)

    async def report(self, ticket_id: int) -> ReportView:
        """The closure report of a ticket's newest attempt that has one."""
        return await read_report(self.database, known_ticket(ticket_id))

    async def sessions(
        self, *, ticket_id: int | None = None, status: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> Page[SessionView]:
        """A page of at most 500 sessions, newest first."""
        limited("limit", limit, _LONGEST_LIST)
        if ticket_id is not None:
            known_ticket(ticket_id)
        if status is not None:
            storable("status", status)
        return await read_sessions(self.database, ticket_id=ticket_id, status=status, limit=limit, cursor=cursor)

    async def session(self, session_id: str) -> SessionDetail:
        """One session."""
        return await read_session(self.database, self.settings, known_session(session_id))

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
        """Entries behind sequence ``after``; see :class:`~operator_core.api.protocol.Api`."""
        known_session(session_id)
        limited("limit", limit, _ENTRIES)
        limited("length of texts", max_chars, _CHARS)
        limited("sequence number", after, 2**31 - 1, least=-1)
        if kinds is not None:
            limited("number of kinds", len(kinds), 100, least=0)
            kinds = [storable("kind", kind) for kind in kinds]
        if phase is not None:
            storable("phase", phase)
        return await read_entries(
            self.database,
            session_id,
            after=after,
            limit=limit,
            kinds=kinds,
            phase=phase,
            max_chars=max_chars,
            bodies=bodies,
        )

    async def ticks(self, session_id: str, *, limit: int = 2000) -> list[Tick]:
        """What stands out in a journal, in order."""
        return await read_ticks(self.database, known_session(session_id), limit=limited("limit", limit, 10_000))

    async def workers(self) -> list[WorkerView]:
        """Workers that live, and those that died lately."""
        return await read_workers(self.database)

    async def invariants(self, *, samples: int = 120) -> list[InvariantView]:
        """Everything under watch; those that are red or unknown first."""
        limited("number of samples", samples, 10_000, least=0)
        return await read_invariants(self.database, self.settings, samples=samples)

    async def costs(
        self, by: Literal["ticket", "model", "phase", "day"], *, days: int = 30, limit: int = 100
    ) -> list[CostRow]:
        """What was spent in the last days (1 to 3660), the largest first (days: the newest first)."""
        if by not in _BY:
            raise ConfigError(f"{str(by)[:40]!r} is nothing to add costs up by; choose {', '.join(_BY)}.")
        limited("number of days", days, 3660)
        limited("limit", limit, 1000)
        return await read_costs(self.database, by, days=days, limit=limit)

    async def digest(self, since: datetime) -> Digest:
        """As :meth:`~operator_core.api.protocol.Api.digest`."""
        now = clock.now()
        if since > now:
            raise ConfigError("The digest begins in the future; give a moment that is over.")
        return await read_digest(self.database, max(since, now - _LONGEST_DIGEST))

    async def approvals(self, *, pending: bool = True, limit: int = 100) -> list[ApprovalView]:
        """Calls that wait for a person; ``pending=False``: also those that were answered."""
        limited("limit", limit, 1000)
        return await self._shown(await Approvals(self.database).listed(pending=pending, limit=limit))

    async def approval(self, approval_id: str) -> ApprovalView:
        """One call that waits for a person, or did."""
        found = await Approvals(self.database).get(storable("id of the approval", approval_id))
        (shown,) = await self._shown([found])
        return shown

    async def audit(self, *, session_id: str | None = None) -> AuditView:
        """Check the whole chain now, or that of one session."""
        if session_id is not None:
            known_session(session_id)
        return await check_chain(self.database, self.settings, session_id)

    # ---- doing

    async def submit(self, prompt: str, *, key: str | None = None, **options: Any) -> TicketDetail:
        """Submit a task; the options are those of :func:`operator_core.work.submit.submit_task`, and ``files``."""
        ticket = await acts.submit(self.database, self.settings, self.actor, prompt, _usable(key), options)
        return await self._detail(ticket.id)

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
        ticket = await acts.open_incident(
            self.database,
            self.settings,
            self.actor,
            name,
            message,
            severity=severity,
            context=context,
            invariant=invariant,
            subject=subject,
            labels=labels,
            priority=priority,
            key=_usable(key),
        )
        return await self._detail(ticket.id)

    async def reply(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """Answer the question of a session that waits."""
        await self._tickets.reply(
            known_ticket(ticket_id), text, actor=str(self.actor), key=self._once(key, "reply", ticket_id)
        )
        return await self._detail(ticket_id)

    async def steer(self, ticket_id: int, text: str, *, key: str | None = None) -> TicketDetail:
        """Say something to a session that works."""
        await self._tickets.steer(
            known_ticket(ticket_id), text, actor=str(self.actor), key=self._once(key, "steer", ticket_id)
        )
        return await self._detail(ticket_id)

    async def cancel(self, ticket_id: int, *, now: bool = False) -> TicketDetail:
        """Cancel; it wins over any late result."""
        await self._tickets.cancel_ticket(known_ticket(ticket_id), now=now, actor=str(self.actor))
        return await self._detail(ticket_id)

    async def reopen(self, ticket_id: int) -> TicketDetail:
        """Give it to the workers again."""
        await self._tickets.reopen_ticket(known_ticket(ticket_id), actor=str(self.actor))
        return await self._detail(ticket_id)

    async def verify(self, ticket_id: int, *, checks_only: bool = False, key: str | None = None) -> TicketDetail:
        """Ask that the finished work be judged again by a worker; see :class:`~operator_core.api.protocol.Api`."""
        once = self._once(key, "verify", known_ticket(ticket_id))
        await SecondLooks(self.database).ask(ticket_id, checks_only=checks_only, actor=str(self.actor), key=once)
        return await self._detail(ticket_id)

    async def resolve(self, ticket_id: int, reason: str) -> TicketDetail:
        """A person says it is done, and why; recorded as such."""
        if not reason.strip():
            raise ConfigError("Say why it is done; whoever reads the ticket later wants to know.")
        await self._tickets.resolve_ticket(known_ticket(ticket_id), note=reason, actor=str(self.actor))
        return await self._detail(ticket_id)

    async def hold(self, ticket_id: int, held: bool) -> TicketDetail:
        """Keep workers away from it, or give it back."""
        known_ticket(ticket_id)
        change = self._tickets.hold_ticket if held else self._tickets.unhold_ticket
        await change(ticket_id, actor=str(self.actor))
        return await self._detail(ticket_id)

    async def decide(self, approval_id: str, approve: bool, *, note: str = "") -> ApprovalView:
        """Allow or deny one call."""
        storable("id of the approval", approval_id)
        done = await Approvals(self.database).decide(approval_id, approve, note=note, actor=str(self.actor))
        (shown,) = await self._shown([done])
        return shown

    async def drain(self, worker_id: str, draining: bool) -> Sequence[WorkerView]:
        """Let a worker end what it has and take nothing new, or let it take again."""
        worker = storable("id of the worker", worker_id)
        await set_draining(self.database, worker, draining, actor=str(self.actor))
        return await self.workers()

    @property
    def _tickets(self) -> TicketDB:
        return TicketDB(self.database)

    def _once(self, key: str | None, act: str, ticket_id: int) -> tuple[str, str] | None:
        """For this act on this ticket: a key that is used again for another one must not swallow it."""
        return None if _usable(key) is None else (principal_of(self.actor), f"{act} {ticket_id} {key}")

    async def _shown(self, found: Sequence[Approval]) -> list[ApprovalView]:
        about = await read_briefs(self.database, [approval.ticket_id for approval in found])
        clean = self.database.redactor
        return [approval_view(approval, clean, about.get(approval.ticket_id)) for approval in found]

    async def _detail(self, ticket_id: int | None) -> TicketDetail:
        assert ticket_id is not None
        return await self.ticket(ticket_id)


def _usable(key: str | None) -> str | None:
    if key is not None and not (0 < len(key) <= 255 and key.isascii() and key.isprintable()):
        raise ConfigError("An idempotency key has 1 to 255 printable ASCII characters; make one with `uuidgen`.")
    return key

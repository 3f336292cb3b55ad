"""Waiting for a ticket that is worked on elsewhere, or, where nobody works, working on it right here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from operator_core.cli.output import Output, style_of
from operator_core.errors import OperatorError, StoreUnavailable
from operator_core.model.ticket import Ticket, TicketStatus

if TYPE_CHECKING:
    from operator_core.api.models import TicketDetail
    from operator_core.cli.remote import ServerJournal
    from operator_core.client import Client
    from operator_core.config import Settings
    from operator_core.db.audit_log import AuditLogDB
    from operator_core.db.engine import Database

__all__ = ["ENDS", "Live", "exit_code", "wait_for", "wait_there"]

_LOOK_S = 0.5
_LOOK_THERE_S = 1.0
ENDS = frozenset({TicketStatus.RESOLVED, TicketStatus.ESCALATED, TicketStatus.CANCELED, TicketStatus.WAITING_FOR_INPUT})
"""States in which there is nothing to wait for."""
_WAITS_FOR_INPUT = 3


def exit_code(status: TicketStatus) -> int:
    """0 resolved, 1 escalated or canceled, 3 waiting for input."""
    if status is TicketStatus.WAITING_FOR_INPUT:
        return _WAITS_FOR_INPUT
    return 0 if status is TicketStatus.RESOLVED else 1


async def wait_for(
    settings: Settings, database: Database, ticket_id: int, out: Output, *, follow: bool, say: Callable[[str], None]
) -> Ticket | None:
    """Wait until the ticket is closed, escalated, or waits for input; None when the person does not want to any more.

    While no worker is alive that could take it, this process works itself.

    Args:
        follow: Print what the session does while it does it.
        say: Prints a line about who works.

    Raises:
        OperatorError: Nobody can work on it.
    """
    from operator_core.cli.people import nobody_works
    from operator_core.cli.until import until_signal
    from operator_core.db.audit_log import AuditLogDB
    from operator_core.db.tickets import TicketDB
    from operator_core.db.wakeup import Wakeup

    tickets, journal = TicketDB(database), Live(AuditLogDB(database), out)
    stop, enough = until_signal(), asyncio.Event()
    helper: asyncio.Task[None] | None = None
    told = ""
    try:
        async with Wakeup(database) as wakeup:
            while True:
                # The state is read before the journal, so that its last lines are not missed.
                ticket = await tickets.get_ticket(ticket_id)
                if follow:
                    await journal.show(ticket_id)
                if ticket.status in ENDS:
                    return ticket
                if stop.is_set():
                    return None
                if helper is None:
                    nobody = await nobody_works(database, ticket)
                    if nobody and ticket.pinned_to in (None, settings.worker.name):
                        nobody = "No worker is running, so this command works on it itself."
                        helper = asyncio.create_task(_work_here(settings, enough))
                    line = nobody or "A worker that is running works on it."
                    if line != told:
                        say(line)
                        told = line
                elif helper.done():
                    await helper
                    raise OperatorError(
                        f"The work ended before ticket #{ticket_id} did; see `operator tickets show {ticket_id}`."
                    )
                out.working(None if follow else f"Ticket #{ticket_id} is {ticket.status.value} …")
                await _first(wakeup, stop, helper)
    finally:
        out.working(None)
        enough.set()
        if helper is not None:
            await asyncio.gather(helper, return_exceptions=True)


async def wait_there(
    client: Client, ticket_id: int, out: Output, *, follow: bool, say: Callable[[str], None]
) -> TicketDetail | None:
    """As :func:`wait_for`, on a server, which may be away for some minutes; nothing is worked on here."""
    from operator_core.cli.away import Away
    from operator_core.cli.remote import ServerJournal, nobody_works_there
    from operator_core.cli.until import until_signal

    journal, stop, told, away = Live(ServerJournal(client), out), until_signal(), "", Away(say)
    try:
        while True:
            try:
                # The state is read before the journal, so that its last lines are not missed.
                ticket = await client.ticket(ticket_id)
                if follow:
                    await journal.show(ticket_id)
                if ticket.status in ENDS:
                    return ticket
                line = await nobody_works_there(client, ticket.pinned_to) or "A worker that is running works on it."
            except StoreUnavailable as error:
                away.met(error)
            else:
                away.over()
                if line != told and not stop.is_set():
                    say(line)
                    told = line
                out.working(None if follow else f"Ticket #{ticket_id} is {ticket.status.value} …")
            if stop.is_set():
                return None
            try:
                async with asyncio.timeout(_LOOK_THERE_S):
                    await stop.wait()
            except TimeoutError:
                continue
    finally:
        out.working(None)


async def _first(wakeup: object, stop: asyncio.Event, helper: asyncio.Task[None] | None) -> None:
    from operator_core.db.wakeup import Wakeup

    assert isinstance(wakeup, Wakeup)
    waits = [asyncio.create_task(wakeup.wait(_LOOK_S)), asyncio.create_task(_until(stop))]
    try:
        await asyncio.wait([*waits, *([helper] if helper else [])], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _until(event: asyncio.Event) -> bool:
    return await event.wait()


async def _work_here(settings: Settings, enough: asyncio.Event) -> None:
    """A worker in this process, until ``enough`` is set; what it has then is given back in good order."""
    from operator_core.agent_lab.engine import open_engine
    from operator_core.cli.doctor import try_sandbox
    from operator_core.db.engine import Database
    from operator_core.monitor.recheck import Recheck
    from operator_core.work.worker import Worker

    engine = open_engine(settings.model)
    try:
        await try_sandbox(settings)
        # A store of its own: two that wait on the same one would take each other's wake-ups.
        async with Database.open(settings.store.url) as database:
            worker = Worker(settings, database, engine, say=lambda line: None, look_with_checker=Recheck().look)
            await worker.run(enough)
    finally:
        await engine.close()


class Live:
    """Prints what the newest session of a ticket writes, each line once."""

    def __init__(self, audit: AuditLogDB | ServerJournal, out: Output) -> None:
        self._audit = audit
        self._out = out
        self._session = ""
        self._seen = -1
        self._phase: str | None = None

    async def show(self, ticket_id: int) -> None:
        """Print what is new."""
        from operator_core.cli.journal_view import entry_lines

        newest = await self._audit.sessions(limit=1, ticket_id=ticket_id)
        if not newest:
            return
        if newest[0].session_id != self._session:
            self._session, self._seen, self._phase = newest[0].session_id, -1, None
        for entry in await self._audit.entries(self._session, after=self._seen):
            self._seen = entry.seq
            lines = list(entry_lines(entry))
            if lines and entry.phase != self._phase:
                self._phase = entry.phase
                self._out.line(f"## {entry.phase}")
            for line in lines:
                self._out.line(line, style=style_of(line[9:] if line[2:3] == ":" else line))

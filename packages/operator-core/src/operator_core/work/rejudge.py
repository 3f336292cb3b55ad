"""Judge a finished ticket once more: after a check, a model or a policy changed, or because somebody doubts it.

The ticket does not change by it; the verdict is a session of its own in the journal, and a person decides what follows.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core.db.claims import Claim
from operator_core.db.journal import Journal
from operator_core.db.second_looks import JUDGED_AGAIN, LookClaim, SecondLooks
from operator_core.db.tickets import TicketDB
from operator_core.errors import TransitionRefused, VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.invariant import CheckSpec
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Ticket, TicketKind
from operator_core.model.verdict import Verdict, VerdictKind
from operator_core.text import clip, printable
from operator_core.verify.checks import CheckSeen
from operator_core.verify.copies import tree_digest
from operator_core.work import asides
from operator_core.work.closing import locate
from operator_core.work.entries import newest
from operator_core.work.incident import IncidentSession
from operator_core.work.judging import Judged
from operator_core.work.left_behind import close_left_behind, hold
from operator_core.work.session import Session, SessionTools, frozen_in
from operator_core.work.task import TaskSession

__all__ = ["Rejudged", "adopt", "not_here", "rejudge"]

# The rest of a journal may be hundreds of thousands of entries.
_NEEDED = (
    EntryKind.SESSION_START.value,
    EntryKind.TASK.value,
    EntryKind.BASELINE.value,
    EntryKind.SNAPSHOT.value,
    EntryKind.OUTCOME.value,
    EntryKind.VERDICT.value,
)


class Rejudged(NamedTuple):
    """What came of it.

    Attributes:
        verdict: The new one.
        before: The one of the session that was judged, if it had one.
        session_id: Where the new one is journaled.
        judged: The session whose work was judged.
        unchanged: Whether the workspace is still what was judged then; None: not known.
        notes: What was restored or taken out for the checks.
    """

    verdict: Verdict
    before: Verdict | None
    session_id: str
    judged: str
    unchanged: bool | None
    notes: tuple[str, ...] = ()


async def rejudge(
    tools: SessionTools,
    ticket_id: int,
    *,
    checks: Sequence[TaskCheck] | None = None,
    model: str | None = None,
    checks_only: bool = False,
    asked: LookClaim | None = None,
) -> Rejudged:
    """Judge the newest work on a ticket again.

    Args:
        checks: Instead of the task's own.
        model: Of the verifier agent, instead of the task's own.
        checks_only: Without the verifier agent.
        asked: The request of a person for it, which this ends together with its session. An error leaves it open.

    Raises:
        TransitionRefused: Somebody may still be working on it.
        VerificationError: Nothing that could be judged is here.
        Fenced: Another worker does now what was asked.
    """
    if asked is None:
        await close_left_behind(tools.audit, tools.state)
    ticket = await TicketDB(tools.audit.database).get_ticket(ticket_id)
    if ticket.status not in JUDGED_AGAIN:
        raise TransitionRefused(
            f"Ticket #{ticket_id} is {ticket.status.value}; it is judged when its work has ended, or cancel it first."
        )
    old, entries = await _newest_work(tools, ticket)
    found = newest(entries, EntryKind.VERDICT)
    before = Verdict.from_dict(found.body) if found else None
    session: _TaskAgain | _IncidentAgain
    if ticket.kind is TicketKind.TASK:
        session = _TaskAgain(tools, ticket, old, entries, asked, checks, model, checks_only)
    else:
        session = _IncidentAgain(tools, ticket, old, entries, asked)
    try:
        verdict, unchanged, notes = await session.again()
        reach("again.judged")
        judged = Rejudged(verdict, before, session.session_id, old, unchanged, notes)
        if asked is None:
            await tools.audit.complete_session(session.session_id, _status(verdict), _summary(verdict))
        else:
            await _end(tools, asked, judged)
        reach("again.ended")
    except BaseException:
        if session.session_id:
            await tools.audit.complete_session(session.session_id, "failed", "judging again did not come to an end")
        raise
    finally:
        if session.session_id:
            tools.state.drop(session.session_id)
        if session.held is not None:
            os.close(session.held)
    return judged


async def adopt(tools: SessionTools, asked: LookClaim) -> bool:
    """Finish what a worker that was lost had judged already; whether there was such a verdict.

    Its session is closed in any case: nothing is added to it any more.

    Raises:
        Fenced: Another worker does now what was asked.
    """
    session_id = asked.look.session_id
    if session_id is None:
        return False
    await asyncio.to_thread(tools.state.drop, session_id)
    found = await tools.audit.entries(session_id, kinds=_NEEDED)
    verdict, start = newest(found, EntryKind.VERDICT), newest(found, EntryKind.SESSION_START)
    if verdict is None or start is None:
        await tools.audit.complete_session(session_id, "failed", "its worker was lost while it judged")
        return False
    old = str(start.body["judges"])
    snapshot = newest(await tools.audit.entries(old, kinds=_NEEDED), EntryKind.SNAPSHOT)
    now = (verdict.meta or {}).get("digest")
    unchanged = now == snapshot.body["digest"] if now and snapshot else None
    await _end(tools, asked, Rejudged(Verdict.from_dict(verdict.body), None, session_id, old, unchanged))
    return True


async def not_here(tools: SessionTools, ticket: Ticket) -> str | None:
    """Why this worker cannot judge the work on a ticket, and another one may be able to; None: it can try."""
    try:
        workspace: Path | None
        if ticket.kind is TicketKind.TASK:
            old, _ = await _newest_work(tools, ticket)
            workspace = (await locate(tools, ticket, frozen_in(ticket, TaskSpec), old)).workspace
        else:
            workspace = frozen_in(ticket, CheckSpec).subject.workspace if ticket.check_spec else None
    except VerificationError:
        return None  # no other worker could, either: whoever takes it says why
    if workspace is None or _is_folder(workspace):
        return None
    return (
        f"No running worker has the workspace {workspace}; start the one that has it, or reopen the ticket for a new "
        "attempt."
    )


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except OSError:
        return False  # it lies where this process may not even look


async def _end(tools: SessionTools, asked: LookClaim, judged: Rejudged) -> None:
    verdict = judged.verdict
    await SecondLooks(tools.audit.database).end(
        asked,
        verdict=verdict.kind.value,
        why=verdict.why,
        unchanged=judged.unchanged,
        session_status=_status(verdict),
        summary=_summary(verdict),
    )


def _status(verdict: Verdict) -> str:
    return "completed" if verdict.kind is VerdictKind.VERIFIED else "escalated"


def _summary(verdict: Verdict) -> str:
    return f"judged again: {verdict.kind}: {verdict.why}"


async def _newest_work(tools: SessionTools, ticket: Ticket) -> tuple[str, list[Entry]]:
    """The newest session of a ticket in which something was prepared, and was worked on by an agent."""
    for session in await tools.audit.sessions(ticket_id=ticket.id, limit=100_000):
        entries = await tools.audit.entries(session.session_id, kinds=_NEEDED)
        if newest(entries, EntryKind.BASELINE) and newest(entries, EntryKind.OUTCOME):
            return session.session_id, entries
    raise VerificationError(f"Nobody has finished any work on ticket #{ticket.id}, so there is nothing to judge.")


class _Again(Session):
    """A session outside of the queue of tickets: the ticket is not touched.

    Each try has a session of its own, so that one who was taken for dead writes into none that another one uses.
    """

    def __init__(
        self, tools: SessionTools, ticket: Ticket, old: str, found: list[Entry], asked: LookClaim | None
    ) -> None:
        super().__init__(tools, Claim(ticket, "again", 0, 0))
        self.old = old
        self.found = found
        self.asked = asked
        self.held: int | None = None
        """What shows that this process is at it, where no worker's lease does."""

    async def open_journal(self) -> Journal:
        if self.journal is None:
            audit = self.tools.audit
            asked = self.asked

            async def tie(c: AsyncConnection, session_id: str) -> None:
                if asked is not None:
                    await SecondLooks(audit.database).tie(c, asked, session_id)
                else:
                    self.held = hold(self.tools.state, session_id)

            self.session_id = await audit.create_session(self.ticket.id, within=tie)
            reach("again.created")
            self.journal = await audit.journal(self.session_id)
            text, body = f"judges the work of session {self.old} again", {"judges": self.old}
            if asked is not None:
                text, body["asked_by"] = f"{text}, because {asked.look.asked_by} asked", asked.look.asked_by
            await self.journal.append(Draft(EntryKind.SESSION_START, clip(printable(text)), body=body, phase="prepare"))
            reach("again.begun")
            await self.refresh()
        return self.journal


class _TaskAgain(_Again, TaskSession):
    def __init__(
        self,
        tools: SessionTools,
        ticket: Ticket,
        old: str,
        found: list[Entry],
        asked: LookClaim | None,
        checks: Sequence[TaskCheck] | None,
        model: str | None,
        checks_only: bool,
    ) -> None:
        super().__init__(tools, ticket, old, found, asked)
        spec = frozen_in(ticket, TaskSpec)
        changes = {
            "checks": spec.checks if checks is None else tuple(checks),
            "model": model or spec.model,
            "profile": "operator" if checks_only else spec.profile,
        }
        self.spec = spec.model_copy(update=changes)
        self._same_checks = self.spec.checks == spec.checks

    async def _checkpoint(self) -> None:
        """Nobody cancels it by the ticket, which has ended already."""

    async def again(self) -> tuple[Verdict, bool | None, tuple[str, ...]]:
        assert self.spec is not None
        self.folder = await locate(self.tools, self.ticket, self.spec, self.old)
        if not _is_folder(self.folder.workspace):
            raise VerificationError(f"The workspace {self.folder.workspace} is not here any more; it cannot be judged.")
        await self.open_journal()
        task, baseline = newest(self.found, EntryKind.TASK), newest(self.found, EntryKind.BASELINE)
        snapshot, claim = newest(self.found, EntryKind.SNAPSHOT), newest(self.found, EntryKind.OUTCOME)
        assert task is not None
        assert baseline is not None
        self._brief = brief = asides.Brief.model_validate(task.body)
        asked = frozen_in(self.ticket, TaskSpec)
        self.folder.write_brief(brief.task_description, brief.success_criteria, asked.prompt, asked.checks)
        await self._export_origin()
        if self._same_checks:
            self._seen = tuple(CheckSeen.from_dict(seen) for seen in baseline.body["seen"])
        elif self.spec.checks:
            self._seen = await self._judging().runner().before()
        words = next(
            (
                e.raw_content or ""
                for e in reversed(self.found)
                if e.entry_type == EntryKind.OUTCOME and (e.meta or {}).get("outcome") == OutcomeKind.PROPOSED
            ),
            claim.raw_content or "" if claim else "",
        )
        judged: Judged = await self._judging().judge(1, Outcome(OutcomeKind.PROPOSED, words).summary)
        now = judged.digest or await tree_digest(self.folder.workspace)
        return judged.verdict, now == snapshot.body["digest"] if snapshot else None, judged.notes


class _IncidentAgain(_Again, IncidentSession):
    async def again(self) -> tuple[Verdict, bool | None, tuple[str, ...]]:
        verdict = await self.look_again(self.found)
        journal = await self.open_journal()
        text = clip(printable(f"{verdict.kind.value}: {verdict.why}"), 400)
        await journal.append(Draft(EntryKind.VERDICT, text, body=verdict.to_dict(), phase="verify"))
        return verdict, None, ()

"""Taking a row: claim it, queue it, promote it, and make it a ticket, so that a crash anywhere is made good later.

    link (claiming) -> PATCH 1 -> 5 with If-Match -> ticket, tied to the link -> link (claimed)

The link comes first and remembers the mark that the claim writes into the row. Whoever finds a link that is still
claiming reads the row: with the mark in it, the claim arrived and the ticket is made; without it, nothing has happened.
"""

from __future__ import annotations

from typing import Any

from operator_core.db.links import Link
from operator_core.errors import OperatorError, StoreError
from operator_core.failpoints import reach
from operator_core.model.ticket import TERMINAL, Ticket, TicketStatus
from operator_core.text import clip, printable
from operator_core.work.submit import submit_task
from operator_dataverse.client import Row
from operator_dataverse.errors import Refused, Unauthorized
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.state import SOURCE, LinkState, changed
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["ENDS", "claim_task", "finish_claim", "promote_task", "queue_task", "release_claim", "take_over"]

ENDS = TERMINAL | {TicketStatus.ESCALATED}
"""States of a ticket in which nothing is done for it any more."""

# Two processes that see to one claim do the same thing with the same mark, so that being wrong about this does no harm.
_HOLD_S = 20.0


async def claim_task(desk: Desk, row: TaskRow) -> bool:
    """Make a pending row the work of this store (rows B-005, B-068).

    Returns:
        False: it is somebody else's, or has nothing to be done for it now.
    """
    if row.status is not TaskCode.PENDING or row.etag is None or not desk.may_take(row):
        return False
    if not await desk.believes(row):
        return False
    link = await _begin(desk, row)
    if link is None:
        return False
    reach("intake.linked")
    return await _patch_and_finish(desk, link, row)


async def take_over(desk: Desk, link: Link) -> Link | None:
    """See to the unfinished claim of a link from now on; None: another living process does."""
    now = await desk.links.now_ms()

    def hold(state: LinkState) -> LinkState | None:
        if not state.claiming or (state.taken_until > now and state.taken_by != desk.me):
            return None
        return state.but(taken_by=desk.me, taken_until=now + _hold_ms(desk))

    held = await desk.links.change(SOURCE, link.external_id, changed(hold))
    if held is None:
        return None
    state = LinkState.model_validate(held.state)
    return held if state.claiming and state.taken_by == desk.me else None


async def finish_claim(desk: Desk, link: Link, row: TaskRow) -> bool:
    """The row is claimed: now there must be a ticket that is worked on.

    Returns:
        False: it cannot become one, and the row says why.
    """
    state = LinkState.model_validate(link.state)
    if link.ticket_id is None:
        ticket = await _submit(desk, row)
        if ticket is None:
            return False
        reach("intake.submitted")
        said = f"ticket #{ticket.id}"
    else:
        ticket = await desk.tickets.get_ticket(link.ticket_id)
        if ticket.status in ENDS:
            await desk.tickets.reopen_ticket(link.ticket_id, actor="dataverse")
            reach("intake.reopened")
        said = f"ticket #{link.ticket_id}, again"
    await desk.remember(
        row.id,
        settled=False,
        claiming=False,
        taken_by="",
        taken_until=0,
        etag=row.etag,
        status=int(TaskCode.RUNNING),
        beat_ms=await desk.links.now_ms(),
        user=row.user_email or (row.user_id if "@" in row.user_id else ""),
        title=row.name,
        attempt=max(1, state.attempt),
    )
    desk.say(f"[Dataverse] Task {row.id[:8]} ({_shown(row.name)}) is {said}.")
    return True


async def release_claim(desk: Desk, link: Link) -> None:
    """The claim did not happen: the link is as if it had never been tried."""
    if link.ticket_id is None:
        await desk.links.forget(SOURCE, link.external_id)
    else:
        await desk.remember(link.external_id, settled=True, claiming=False, taken_by="", taken_until=0)


async def queue_task(desk: Desk, row: TaskRow) -> bool:
    """Say of a row that waits for this box that it does (row B-006); False: it changed meanwhile, and stays so."""
    said = f"Queued on {desk.box} -- waiting for current task to finish"
    values = {"cr_status": int(TaskCode.QUEUED), "cr_statusmessage": said}
    return await desk.write(row, values) is not None


async def promote_task(desk: Desk, row: TaskRow) -> TaskRow | None:
    """Make a queued row pending again (row B-013); None: it changed meanwhile, and stays so."""
    said = "Promoted from Queued -- dev box is now free"
    return await desk.write(row, {"cr_status": int(TaskCode.PENDING), "cr_statusmessage": said})


def _hold_ms(desk: Desk) -> int:
    """How long nobody else sees to a claim."""
    return int(1000 * min(_HOLD_S, desk.mine.lease_s / 4))


async def _begin(desk: Desk, row: TaskRow) -> Link | None:
    """A link in which this process claims; None: the row is not to be claimed now."""
    now = await desk.links.now_ms()
    taken: dict[str, Any] = {
        "claiming": True,
        "taken_by": desk.me,
        "taken_until": now + _hold_ms(desk),
        "etag": row.etag,
        "status": int(TaskCode.PENDING),
    }
    fresh = LinkState(mark=desk.new_mark(), attempt=1, **taken)
    if await desk.links.begin(SOURCE, row.id, desk.box, fresh.model_dump(mode="json")):
        return await desk.links.get(SOURCE, row.id)
    link = await desk.links.get(SOURCE, row.id)
    if link is None:
        return None
    if LinkState.model_validate(link.state).claiming:
        return await take_over(desk, link)
    if link.ticket_id is None or not link.settled:
        return None
    ticket = await desk.tickets.get_ticket(link.ticket_id)
    if ticket.status not in ENDS:
        return None
    # A person wants an ended task to be done again. Asked for anew in other words, it is another ticket.
    whole = await desk.row(row.id)
    if whole is None or whole.etag != row.etag:
        return None
    other_words = desk.database.redactor.column(whole.prompt) != ticket.message

    def again(state: LinkState) -> LinkState | None:
        if state.claiming:
            return None
        return state.but(mark=desk.new_mark(), attempt=state.attempt + 1, lost="", reported="", answering=None, **taken)

    async with desk.database.begin() as c:
        held = await desk.links.change_in(c, SOURCE, row.id, changed(again), owner=desk.box, settled=False)
        if held is None or LinkState.model_validate(held.state).taken_by != desk.me:
            return None
        if other_words:
            await desk.links.tie(c, SOURCE, row.id, None)
    return await desk.links.get(SOURCE, row.id)


async def _patch_and_finish(desk: Desk, link: Link, row: TaskRow) -> bool:
    assert row.etag is not None
    mark = LinkState.model_validate(link.state).mark
    try:
        written = await desk.dataverse.update(desk.table, row.id, desk.claim_values(mark), etag=row.etag, reread=True)
    except (Refused, Unauthorized):
        # This row may not be written; but an attempt before the one that was refused may have been.
        current = await desk.row(row.id)
        if current is None or not desk.is_claim_of(current, mark):
            await release_claim(desk, link)
            raise
        return await finish_claim(desk, link, current)
    reach("intake.claimed")
    if isinstance(written, Row):
        return await finish_claim(desk, link, TaskRow.parse(written))
    # An answer that was lost on the way, or a claim of a process that died here: it is ours all the same.
    now = None if written.current is None else TaskRow.parse(written.current)
    if now is None or not desk.is_claim_of(now, mark):
        await release_claim(desk, link)
        return False
    return await finish_claim(desk, link, now)


async def _submit(desk: Desk, row: TaskRow) -> Ticket | None:
    try:
        return await submit_task(
            desk.database,
            desk.settings,
            row.prompt,
            name=row.name if row.name.strip() else None,
            pinned_to=desk.settings.worker.name,
            actor="dataverse",
            link=(SOURCE, row.id),
            warn=lambda sentence: desk.say(f"[Dataverse] Task {row.id[:8]}: {sentence}"),
        )
    except StoreError:
        raise
    except OperatorError as error:
        await _refuse(desk, row, str(error))
        return None


async def _refuse(desk: Desk, row: TaskRow, why: str) -> None:
    """The row can never become a ticket: it fails, and says why; a person who changes it can set it to pending."""
    clean = desk.database.redactor.column(why)
    values = {"cr_status": int(TaskCode.FAILED), "cr_statusmessage": clip(clean, 200), "cr_result": f"Error: {clean}"}
    await desk.write(row, values)
    reach("intake.refused")
    await desk.links.forget(SOURCE, row.id)
    desk.say(f"[Dataverse] Task {row.id[:8]} ({_shown(row.name)}) is not accepted: {clean}")


def _shown(name: str) -> str:
    return clip(printable(" ".join(name.split())), 60) or "without a name"

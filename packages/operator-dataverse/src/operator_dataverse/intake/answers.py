"""The answer of a person: a message to this worker about the task, and then the row is set from 6 to 1."""

from __future__ import annotations

import contextlib
from uuid import UUID

from operator_core import clock
from operator_core.db.links import LinkedTicket
from operator_core.errors import TransitionRefused
from operator_core.failpoints import reach
from operator_core.model.task import MAX_PROMPT
from operator_core.model.ticket import TicketStatus
from operator_core.text import clip
from operator_dataverse.client import field
from operator_dataverse.intake.desk import Desk, same
from operator_dataverse.intake.state import LinkState
from operator_dataverse.tables import MESSAGES
from operator_dataverse.tables.message import WORKER, MessageRow
from operator_dataverse.tables.task import TaskCode, TaskRow

__all__ = ["find_answers", "pass_answer", "resume"]

_REMEMBERED = 50


async def find_answers(desk: Desk, row: TaskRow, state: LinkState) -> list[MessageRow]:
    """What the person of the task wrote to this worker about it since the question, oldest first."""
    person = row.user_email or row.user_id or state.user
    to = field("cr_to")
    where = field("crb3b_taskid").is_in(_spellings(row.id)) & (to.eq(desk.box) | to.eq(WORKER))
    since = max(state.heard, state.question_at)
    if since:
        # Times have a second's precision: what came in the same second is told apart by its id.
        where &= field("createdon").ge(clock.parse_iso(since))
    found = []
    async for message in desk.dataverse.rows(MESSAGES, where, orderby=("createdon asc",)):
        answer = MessageRow.parse(message)
        if not (person and same(answer.sender, person) and answer.id not in state.heard_ids and answer.content.strip()):
            continue
        # Everybody can write the person's address into a message.
        if await desk.dataverse.owners.believes(answer.owner, desk.people[0]):
            found.append(answer)
    return found


async def resume(desk: Desk, one: LinkedTicket, row: TaskRow, state: LinkState) -> bool:
    """The row went from 6 to 1: with an answer the work goes on; without one the question stands.

    Returns:
        Whether the session goes on.
    """
    if one.status is TicketStatus.WAITING_FOR_INPUT and not await find_answers(desk, row, state):
        await _ask_again(desk, row)
        return False
    # Remembered before the row is claimed: after a crash in between the answer is passed on by the next look.
    await desk.remember(row.id, answering=one.fence)
    reach("intake.answering")
    claimed = await desk.write(row, desk.claim_values(state.mark))
    if claimed is None:
        return False
    reach("intake.answer_claimed")
    return await pass_answer(desk, one, claimed, state)


async def pass_answer(desk: Desk, one: LinkedTicket, row: TaskRow, state: LinkState) -> bool:
    """Give the answer to the session of a row that is claimed again; it goes on where it asked.

    Returns:
        Whether it does.
    """
    waiting = one.status is TicketStatus.WAITING_FOR_INPUT
    answers = await find_answers(desk, row, state)
    if waiting and not answers:
        await _ask_again(desk, row)
        return False
    if answers:
        text = clip("\n\n".join(answer.content.strip() for answer in answers), MAX_PROMPT)
        with contextlib.suppress(TransitionRefused):  # somebody has answered it here, or it has ended meanwhile
            if waiting:
                await desk.tickets.reply(one.ticket_id, text, actor="dataverse")
            else:
                await desk.tickets.steer(one.ticket_id, text, actor="dataverse")
        reach("intake.answered")
        desk.say(f"[Dataverse] Task {row.id[:8]} was answered; ticket #{one.ticket_id} goes on.")
    newest = max((answer.created for answer in answers if answer.created is not None), default=None)
    await desk.remember(
        row.id,
        answering=None,
        heard=state.heard if newest is None else f"{newest:%Y-%m-%dT%H:%M:%SZ}",
        heard_ids=[*state.heard_ids, *(answer.id for answer in answers)][-_REMEMBERED:],
        etag=row.etag,
        status=int(TaskCode.RUNNING),
        beat_ms=await desk.links.now_ms(),
    )
    return True


async def _ask_again(desk: Desk, row: TaskRow) -> None:
    said = "No answer has arrived; write one to the question, and set the task to pending again"
    written = await desk.write(row, {"cr_status": int(TaskCode.WAITING_FOR_INPUT), "cr_statusmessage": said})
    if written is not None:
        # The question stays the one that was asked: an answer from before this moment is still one.
        await desk.remember(row.id, answering=None, etag=written.etag, status=int(TaskCode.WAITING_FOR_INPUT))


def _spellings(row_id: str) -> list[str]:
    """The ways in which flows and people write an id into a column of text."""
    return [row_id, f"{{{row_id}}}", UUID(row_id).hex]

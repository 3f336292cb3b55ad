"""Claims that were begun and not ended, because a process died in them or the service did not answer."""

from __future__ import annotations

from collections.abc import Callable

from operator_core.db.links import Link
from operator_dataverse.errors import Refused, Unauthorized
from operator_dataverse.intake.claims import claim_task, finish_claim, release_claim, take_over
from operator_dataverse.intake.desk import Apart, Desk, together
from operator_dataverse.intake.state import SOURCE, LinkState
from operator_dataverse.tables.task import TaskCode

__all__ = ["recover_claims"]


async def recover_claims(
    desk: Desk, free: int, apart: Apart = together, rests: Callable[[str], bool] = lambda row_id: False
) -> int:
    """End every unfinished claim of this box that no living process sees to: it is adopted, repeated, or released.

    Args:
        free: So many rows may be claimed anew; one whose claim has arrived is adopted in any case.
        apart: Around what is done to one row.
        rests: Whether the row of an id is not to be looked at now.

    Returns:
        How many became work.
    """
    taken = 0
    for link in await desk.links.list(SOURCE, owner=desk.box, unsettled=True):
        if LinkState.model_validate(link.state).claiming and not rests(link.external_id):
            held = await take_over(desk, link)
            if held is not None:
                async with apart(link.external_id, "taken"):
                    try:
                        taken += await _end(desk, held, free - taken)
                    except (Refused, Unauthorized):
                        # What cannot be ended must not keep its slot either.
                        await desk.remember(link.external_id, taken_until=0)
                        raise
    return taken


async def _end(desk: Desk, link: Link, free: int) -> bool:
    state = LinkState.model_validate(link.state)
    row = await desk.row(link.external_id)
    if row is not None and desk.is_claim_of(row, state.mark):
        return await finish_claim(desk, link, row)
    if row is not None and row.status is TaskCode.PENDING and free > 0 and desk.may_take(row):
        # A request of the dead may still be under way. It was made for an older version of the row, so either it
        # arrives first, and this one finds that out, or it never has an effect.
        return await claim_task(desk, row)
    await release_claim(desk, link)
    return False

"""Carrying letters out: changes of a task row under its version, new rows by ids that were chosen before, and cards.

A change is made only while the row is ours and has one of the codes that the letter expects. A row that has changed is
read again and judged anew, so that what a person wrote is never overwritten (D-39).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from operator_core.failpoints import reach
from operator_core.notify.outbox import Delivered, Later, Letter, Never, Outcome
from operator_dataverse.client import Row, fit
from operator_dataverse.errors import Refused, Throttled
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.state import SOURCE, LinkState, changed
from operator_dataverse.reporting.story import ENDS
from operator_dataverse.tables.task import TaskCode, TaskRow
from operator_dataverse.teams.webhook import TeamsWebhook

__all__ = ["Delivery"]

_ROUNDS = 5
_FOR_NOW = frozenset({401, 403, 408, 409, 425, 429})


class Delivery:
    """Delivers letters of the reporting.

    Args:
        desk: Both sides.
        webhook: Where cards are posted; None: nowhere.
        disputed: Called with the id of a row that is not as it was expected: the intake is to look at it.
    """

    def __init__(
        self, desk: Desk, webhook: TeamsWebhook | None = None, disputed: Callable[[str], None] = lambda row_id: None
    ) -> None:
        self._desk = desk
        self._webhook = webhook
        self._disputed = disputed

    async def __call__(self, letter: Letter) -> Outcome:
        """Carry one letter out."""
        body = letter.body
        try:
            match letter.kind:
                case "patch":
                    return await self._patch(letter)
                case "create":
                    return await self._create(str(body["table"]), str(body["id"]), body["values"])
                case "card":
                    return await self._card(body["card"])
                case "settle":
                    return await self._settle(str(body["row"]), int(body["attempt"]))
        except Throttled as error:
            return Later(str(error), error.after_s)
        except Refused as error:
            # What the account may not do, a person can allow; what is wrong with the request will be so for ever.
            forever = 400 <= error.status < 500 and error.status not in _FOR_NOW
            return Never(str(error)) if forever else Later(str(error))
        return Never(f"There are no letters of the kind {letter.kind}; another version of Operator wrote it.")

    # ---- a task row

    async def _patch(self, letter: Letter) -> Outcome:
        row_id, values, expected = str(letter.body["row"]), letter.body["values"], letter.body["expected"]
        state = await self._state(row_id)
        if state is None:
            return Never("The row is no task of this store any more.")
        if state.lost:
            return Never(f"The row is not ours any more: {state.lost}.")
        if state.attempt != letter.body["attempt"]:
            return Never("The row was claimed again since; this belongs to an earlier attempt.")
        cancels = values.get("cr_status") == TaskCode.CANCELED
        if cancels and state.status == TaskCode.CANCELED:
            return Delivered()  # a person did, and said why; a second time would also be told a second time
        fitted = fit(self._desk.info, values).values
        # Not the version that is remembered, if the row may have been changed by an attempt before this one.
        known = letter.attempt == 1 and state.status in expected
        etag = state.etag if known else None
        current: TaskRow | None = None
        for _ in range(_ROUNDS):
            if etag is None:
                found = await self._read(row_id, fitted)
                if found is None:
                    self._disputed(row_id)
                    return Never("The row was deleted.")
                current = TaskRow.parse(found)
                if all(found.get(name) == value for name, value in fitted.items()) and self._desk.is_ours(
                    current, state
                ):
                    await self._remember(current)
                    return Delivered()
                if cancels and current.status is TaskCode.CANCELED:
                    return Delivered()
                if refused := self._why_not(current, state, expected):
                    self._disputed(row_id)
                    return Never(refused)
                etag = found.etag or ""
            reach("delivery.patch")
            answer = await self._desk.dataverse.update(self._desk.table, row_id, fitted, etag=etag)
            reach("delivery.patched")
            if isinstance(answer, Row):
                await self._remember(TaskRow.parse(answer))
                return Delivered()
            etag = None
        return Later("The row changes all the time.")

    async def _read(self, row_id: str, values: dict[str, Any]) -> Row | None:
        columns = dict.fromkeys((*TaskRow.select(self._desk.info), *values))
        return await self._desk.dataverse.row(self._desk.table, row_id, select=tuple(columns))

    def _why_not(self, row: TaskRow, state: LinkState, expected: list[int]) -> str:
        if row.status is TaskCode.CANCELED and TaskCode.CANCELED not in expected:
            return "A person canceled the task."
        if not self._desk.is_ours(row, state):
            return f"The row belongs to {row.lease_owner or row.devbox or 'nobody'} now."
        if row.status is None or int(row.status) not in expected:
            word = "unknown" if row.status is None else row.status.name.lower()
            return f"The row is {word}, and that was not written here."
        return ""

    async def _state(self, row_id: str) -> LinkState | None:
        link = await self._desk.links.get(SOURCE, row_id)
        return None if link is None else LinkState.model_validate(link.state)

    async def _remember(self, row: TaskRow) -> None:
        values: dict[str, Any] = {"etag": row.etag}
        if row.status is not None:
            values["status"] = int(row.status)
            if row.status is TaskCode.WAITING_FOR_INPUT and row.modified is not None:
                values["question_at"] = f"{row.modified:%Y-%m-%dT%H:%M:%SZ}"

        def change(state: LinkState) -> LinkState | None:
            if state.status == TaskCode.WAITING_FOR_INPUT:
                values.pop("question_at", None)
            return state.but(**values)

        await self._desk.links.change(SOURCE, row.id, changed(change))

    # ---- the others

    async def _create(self, table: str, row_id: str, values: dict[str, Any]) -> Outcome:
        # A row with this id is there: an attempt before this one made it.
        await self._desk.dataverse.owners.give(table, values, str(values.get("cr_to") or ""), row_id=row_id)
        return Delivered()

    async def _card(self, card: dict[str, Any]) -> Outcome:
        if self._webhook is None:
            return Never("There is no webhook to post cards to any more.")
        return await self._webhook.post(card)

    async def _settle(self, row_id: str, attempt: int) -> Outcome:
        """Both sides agree now, if the ticket is still where it was."""
        links = self._desk.links
        async with self._desk.database.begin() as c:
            link = await links.lock(c, SOURCE, row_id)
            if link is None or LinkState.model_validate(link.state).attempt != attempt or link.ticket_id is None:
                return Delivered()
            ticket = await self._desk.tickets.get_ticket(link.ticket_id)
            if ticket.status in ENDS:
                await links.change_in(c, SOURCE, row_id, dict, settled=True)
        return Delivered()

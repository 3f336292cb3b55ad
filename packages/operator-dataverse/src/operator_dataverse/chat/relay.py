"""Answering by hand (B-048), and trying the relay: a message is written, claimed, answered, and found (B-051)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from operator_core import clock as clocks
from operator_core.clock import Clock
from operator_dataverse.chat.claims import Claim, Claims, claimant
from operator_dataverse.chat.conversations import Conversations, reply_id
from operator_dataverse.client import Conflict, Dataverse
from operator_dataverse.errors import DataverseError, Refused
from operator_dataverse.fleet.changes import row_id_of
from operator_dataverse.fleet.users import address
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus, Direction
from operator_dataverse.tables.schema import CONVERSATIONS

__all__ = ["STEPS", "RelayTest", "Sent", "Step", "send_message"]

_POLL_S = 0.5
_ANSWER = "The relay works."


class Sent(NamedTuple):
    """An answer that was written.

    Attributes:
        row_id: Its row.
        fresh: False: the same answer was there already.
    """

    row_id: str
    email: str
    conversation: str
    fresh: bool


async def send_message(
    dataverse: Dataverse, reply_to: str, text: str, *, followup: bool = False, dry_run: bool = False
) -> Sent:
    """Answer a message of a person; the same answer again makes no second row.

    Args:
        reply_to: Id of the person's row.
        text: The answer.
        followup: More is to come.
        dry_run: Only look whether it could be written.

    Raises:
        Refused: There is no such message, or the answer says nothing.
    """
    if not text.strip():
        raise Refused("The answer says nothing; give it with `--message TEXT`.")
    conversations = Conversations(dataverse)
    row_id = row_id_of(reply_to)
    message = await conversations.find(row_id) if row_id else None
    if message is None or message.direction != Direction.INBOUND:
        raise Refused(f"There is no message {reply_to!r:.80} of a person; give the id of an inbound row.", status=404)
    part = f"sent/{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()}"
    row_id = reply_id(message, part)
    if dry_run:
        fresh = await conversations.find(row_id) is None
    else:
        fresh = not isinstance(await conversations.reply(message, text, part=part, followup=followup), Conflict)
    return Sent(row_id, message.user_email, message.conversation_id, fresh)


STEPS = (
    "ask who I am",
    "write a message",
    "find it",
    "claim it",
    "answer it",
    "find the answer",
    "remove the rows",
)
"""What a :class:`RelayTest` does, in this order."""


class Step(NamedTuple):
    """One thing that was tried.

    Attributes:
        name: What.
        ok: Whether it is as it must be.
        detail: What was seen.
        seconds: How long it took.
    """

    name: str
    ok: bool
    detail: str
    seconds: float


class RelayTest:
    """Tries the whole way of a message, with rows of its own that it removes again.

    Where a manager is at work it may be faster; then its answer is waited for, and that is the test.

    Args:
        dataverse: The open service.
        email: Whose message it is to be.
        timeout_s: For a manager's answer.
    """

    def __init__(
        self, dataverse: Dataverse, email: str, *, timeout_s: float = 120.0, clock: Clock | None = None
    ) -> None:
        self._dataverse = dataverse
        self._conversations = Conversations(dataverse)
        self._email = address(email)
        self._timeout_s = timeout_s
        self._clock = clock or Clock()
        self._row_id = clocks.new_id()
        self._message: ConversationRow | None = None
        self._claim: Claim | None = None
        self.steps: list[Step] = []

    @property
    def ok(self) -> bool:
        """Whether nothing failed so far."""
        return all(step.ok for step in self.steps)

    async def run(self) -> None:
        """Try it; what comes after a step that failed is not tried."""
        *tries, remove = zip(
            STEPS,
            (self._who, self._write, self._find, self._take, self._reply, self._look, self._remove),
            strict=True,
        )
        try:
            for name, work in tries:
                if not await self._step(name, work):
                    break
        finally:
            await self._step(*remove)

    async def _step(self, name: str, work: Callable[[], Awaitable[str]]) -> bool:
        began = self._clock.monotonic()
        try:
            detail, ok = await work(), True
        except DataverseError as error:
            detail, ok = str(error), False
        self.steps.append(Step(name, ok, detail, round(self._clock.monotonic() - began, 3)))
        return ok

    async def _who(self) -> str:
        return await self._dataverse.whoami()

    async def _write(self) -> str:
        conversation = f"relay-test-{self._row_id[:8]}"
        self._message = await self._conversations.ask(self._email, conversation, "help", row_id=self._row_id)
        return self._message.id

    async def _find(self) -> str:
        message = self._here()
        waiting = await self._conversations.inbound(ConversationStatus.UNCLAIMED, email=self._email, top=500)
        if any(row.id == message.id for row in waiting):
            return "it waits"
        return f"a manager was faster: {await self._taken_by(message)}"

    async def _take(self) -> str:
        message = self._here()
        claims = Claims(self._conversations, claimant("relay-test"), 60.0, self._clock)
        self._claim = await claims.take(message)
        if self._claim is None:
            return f"a manager was faster: {await self._taken_by(message)}"
        if await Claims(self._conversations, claimant("relay-test"), 60.0, self._clock).take(message) is not None:
            raise DataverseError("The service let two claim one message: it does not look at If-Match.")
        return "one claim was taken, and a second one with the old version refused"

    async def _reply(self) -> str:
        if self._claim is None:
            return "left to the manager"
        await self._conversations.reply(self._claim.message, _ANSWER)
        await self._claim.end()
        return "written, and the message is processed"

    async def _look(self) -> str:
        message = self._here()
        deadline = self._clock.monotonic() + self._timeout_s
        while True:
            final = [row for row in await self._conversations.answers(message) if row.id == reply_id(message)]
            if final and (self._claim is None or final[0].message == _ANSWER):
                await self._conversations.move(final[0], ConversationStatus.DELIVERED)
                return "the answer is there, and was delivered"
            if self._clock.monotonic() + _POLL_S > deadline:
                raise DataverseError(f"There was no answer within {self._timeout_s:g} s; look at the manager's output.")
            await self._clock.sleep(_POLL_S)

    async def _remove(self) -> str:
        if self._message is None:
            return "there are none"
        left = 0
        for row_id in [row.id for row in await self._conversations.answers(self._message)] + [self._message.id]:
            row = await self._conversations.find(row_id)
            if row is not None and row.etag is not None:
                with suppress(Refused):
                    left += await self._dataverse.delete(CONVERSATIONS, row.id, etag=row.etag) is not None
        if left:
            raise DataverseError(f"{left} rows of the test could not be removed; `operator-dataverse cleanup` does it.")
        return "removed"

    async def _taken_by(self, message: ConversationRow) -> str:
        found = await self._conversations.find(message.id)
        if found is None or not found.claimed_by:
            raise DataverseError("The message was written, and is not found among those that wait.")
        return found.claimed_by

    def _here(self) -> ConversationRow:
        if self._message is None:
            raise DataverseError("There is no message.")
        return self._message

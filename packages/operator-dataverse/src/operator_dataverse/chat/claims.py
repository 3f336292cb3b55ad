"""Claims on messages: who answers one, shown to be alive by touching the row again and again (D-57)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NoReturn, TypeVar

from operator_core import clock as clocks
from operator_core.clock import Clock
from operator_dataverse.chat.conversations import Conversations
from operator_dataverse.client import Conflict
from operator_dataverse.errors import DataverseError
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus

__all__ = ["Claim", "Claims", "Lost", "claimant"]

T = TypeVar("T")

_BEATS_IN_A_LEASE = 3


class Lost(Exception):
    """The message belongs to somebody else now; nothing more is written about it."""


def claimant(role: str, email: str = "") -> str:
    """The name of this process in ``cr_claimed_by`` (requirements 2.2.11), new with each call."""
    # The column holds 200, and a name that is cut off at its end would be no name any more.
    return ":".join(part for part in (role, email[:150], clocks.new_id()[:8]) if part)


class Claims:
    """Takes messages for one process.

    Args:
        conversations: The table.
        name: Who this is; see :func:`claimant`.
        lease_s: A claim that was not renewed for so long may be taken by others.
    """

    def __init__(self, conversations: Conversations, name: str, lease_s: float, clock: Clock | None = None) -> None:
        self.conversations = conversations
        self.name = name
        self.lease_s = lease_s
        self.clock = clock or Clock()

    async def take(self, message: ConversationRow) -> Claim | None:
        """Claim a message as it was read, unclaimed or of somebody who is dead; None: somebody else was faster."""
        done = await self.conversations.move(message, ConversationStatus.CLAIMED, claimed_by=self.name)
        if isinstance(done, Conflict):
            if done.current is None or not self.owns(current := ConversationRow.parse(done.current)):
                return None
            done = current  # the answer to an earlier try was lost on the way
        return Claim(self, done)

    def owns(self, message: ConversationRow) -> bool:
        """Whether a row says that this process answers it."""
        return message.status == ConversationStatus.CLAIMED and self.named(message)

    def named(self, message: ConversationRow) -> bool:
        """Whether a row names this process, with or without the number of a renewal."""
        return message.claimed_by == self.name or message.claimed_by.startswith(f"{self.name}#")


class Claim:
    """The right to answer one message.

    Attributes:
        message: The row as it is now.
    """

    def __init__(self, claims: Claims, message: ConversationRow) -> None:
        self._claims = claims
        self._beats = 1
        self._turn = asyncio.Lock()
        self.message = message

    async def keep_while(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work and renew the claim meanwhile; the work is cancelled when the claim is lost.

        Raises:
            Lost: It is.
        """
        body, keeper = asyncio.ensure_future(work), asyncio.ensure_future(self._keep())
        try:
            await asyncio.wait({body, keeper}, return_when=asyncio.FIRST_COMPLETED)
            if not body.done():
                keeper.result()
            return await body
        finally:
            body.cancel()
            keeper.cancel()
            await asyncio.gather(body, keeper, return_exceptions=True)

    async def renew(self) -> None:
        """Touch the row.

        Raises:
            Lost: It belongs to somebody else.
        """
        async with self._turn:
            self._beats += 1
            await self._move(ConversationStatus.CLAIMED, f"{self._claims.name}#{self._beats}")

    async def end(self, status: ConversationStatus = ConversationStatus.PROCESSED) -> None:
        """The message is answered.

        Raises:
            Lost: It belongs to somebody else.
        """
        async with self._turn:
            await self._move(status, None)

    async def _move(self, status: ConversationStatus, name: str | None) -> None:
        while True:
            done = await self._claims.conversations.move(self.message, status, claimed_by=name)
            if not isinstance(done, Conflict):
                self.message = done
                return
            current = await self._claims.conversations.find(self.message.id)
            if current is None or not self._claims.named(current):
                raise Lost
            if current.status == status and (name is None or current.claimed_by == name):
                self.message = current  # the answer was lost, the write was not
                return
            if not self._claims.owns(current):
                raise Lost
            self.message = current

    async def _keep(self) -> NoReturn:
        claims = self._claims
        beat = claims.lease_s / _BEATS_IN_A_LEASE
        since = claims.clock.monotonic()
        while True:
            await claims.clock.sleep(beat)
            left = since + claims.lease_s - claims.clock.monotonic()
            try:
                # A service that does not answer must not keep us from seeing that the time is over.
                async with asyncio.timeout(max(0.0, left) / claims.clock.rate):
                    started = claims.clock.monotonic()
                    await self.renew()
                    since = started
            except TimeoutError:
                raise Lost from None  # others may have taken it, and nobody can be asked
            except DataverseError:
                continue

"""The loop of both managers: look for messages, claim them, answer several at once, and each conversation in order."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from operator_core.agent_lab.gateway import Say
from operator_core.clock import Clock
from operator_core.errors import OperatorError
from operator_dataverse.chat.answering import Answering
from operator_dataverse.chat.claims import Claim, Claims
from operator_dataverse.chat.conversations import thread_of
from operator_dataverse.chat.sessions import Sessions
from operator_dataverse.errors import DataverseError, Refused, Unauthorized
from operator_dataverse.tables.conversation import ConversationRow

__all__ = ["ChatLoop", "Desks"]

_log = logging.getLogger(__name__)
_AT_ONCE = 8
_LONGEST_PAUSE_S = 60.0
_LEAVING_S = 30.0
_TIDY_S = 3600.0


class Desks(Protocol):
    """Whose messages a manager answers."""

    async def due(self) -> list[ConversationRow]:
        """The messages that are this manager's to claim now, oldest first."""
        ...

    async def present(self) -> None:
        """After each look that succeeded: show that somebody is there."""
        ...

    async def leave(self) -> None:
        """At the end: say so."""
        ...


class ChatLoop:
    """Runs a manager.

    Args:
        desks: Which messages.
        claims: Takes them.
        answering: Answers them.
        sessions: Tidied now and then.
        poll_s: Time between two looks.
    """

    def __init__(
        self,
        desks: Desks,
        claims: Claims,
        answering: Answering,
        sessions: Sessions,
        *,
        poll_s: float,
        say: Say = print,
        clock: Clock | None = None,
    ) -> None:
        self._desks = desks
        self._claims = claims
        self._answering = answering
        self._sessions = sessions
        self._poll_s = poll_s
        self._say = say
        self._clock = clock or Clock()
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._forbidden: dict[str, str | None] = {}
        self._tidied: float | None = None

    async def once(self) -> int:
        """Answer what is there now; returns how many messages were claimed.

        Raises:
            OperatorError: The service or the store cannot be used.
        """
        total = 0
        try:
            while claimed := await self._look():
                total += claimed
                await asyncio.gather(*self._busy.values())
        finally:
            await self._end()
        return total

    async def run(self, stop: asyncio.Event) -> None:
        """Answer until ``stop`` is set; trouble is said and waited out."""
        failures = 0
        try:
            while not stop.is_set():
                try:
                    await self._look()
                    failures = 0
                except OperatorError as error:
                    failures += 1
                    self._say(f"[Chat] {error}")
                pause = self._poll_s * 2.0 ** min(failures, 10) if failures else self._poll_s
                await self._clock.wait(stop, min(pause, max(self._poll_s, _LONGEST_PAUSE_S)))
        finally:
            await self._end()

    async def _look(self) -> int:
        self._busy = {thread: task for thread, task in self._busy.items() if not task.done()}
        await self._tidy()
        claimed = 0
        for message in await self._desks.due():
            thread = thread_of(message)
            if thread in self._busy:
                continue
            if len(self._busy) >= _AT_ONCE:
                break
            claim = await self._take(message)
            if claim is not None:
                claimed += 1
                self._busy[thread] = asyncio.create_task(self._one(claim))
        await self._desks.present()
        return claimed

    async def _take(self, message: ConversationRow) -> Claim | None:
        """As :meth:`Claims.take`; a row that this account may not write does not keep it from the others."""
        if self._forbidden.get(message.id) == message.etag:
            return None
        try:
            return await self._claims.take(message)
        except (Refused, Unauthorized) as error:
            self._forbidden[message.id] = message.etag
            self._say(f"[Chat] The message {message.id} cannot be claimed: {error}")
            return None

    async def _one(self, claim: Claim) -> None:
        try:
            await self._answering.answer(claim)
        except OperatorError as error:
            self._say(f"[Chat] {error}")
        except Exception as error:  # a mistake of ours about one message must not silence everybody else
            _log.exception("message %s", claim.message.id)
            self._say(f"[Chat] The message {claim.message.id} could not be answered ({type(error).__name__}: {error}).")

    async def _tidy(self) -> None:
        now = self._clock.monotonic()
        if self._tidied is None or now - self._tidied >= _TIDY_S:
            self._tidied = now
            self._forbidden.clear()
            await self._sessions.expire()

    async def _end(self) -> None:
        if self._busy:
            _, left = await asyncio.wait(self._busy.values(), timeout=_LEAVING_S)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
        try:
            await self._desks.leave()
        except DataverseError as error:
            self._say(f"[Chat] {error}")

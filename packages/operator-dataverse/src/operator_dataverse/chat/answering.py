"""Answering one message, from the claim to the end, so that it is answered once wherever a process dies (D-57, D-59).

The order is: claim; find the answer (with the effects of its tools, each recognised when it is repeated); write it down
in the store; send it as a row whose id follows from the message; call the message processed. Whoever finds the message
of a dead process goes on where that one was.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from datetime import timedelta
from typing import Any, NamedTuple

from operator_core.agent_lab.fence import Fence
from operator_core.agent_lab.gateway import Say
from operator_core.clock import Clock
from operator_core.failpoints import reach
from operator_core.text import clip
from operator_dataverse.chat.assistant import Assistant, NoAnswer
from operator_dataverse.chat.claims import Claim, Lost
from operator_dataverse.chat.commands import run_command
from operator_dataverse.chat.conversations import Conversations, is_address, person_of, reply_id
from operator_dataverse.chat.desk import Desk
from operator_dataverse.chat.prompts import FALLBACK, FRESH_START, STILL_WORKING, TOO_OLD, Role, system_prompt
from operator_dataverse.chat.sessions import Exchange, Pending, Sessions, Talk
from operator_dataverse.chat.tools import Tool, Toolbox
from operator_dataverse.errors import DataverseError
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus

__all__ = ["Answering"]

TOO_OLD_S = 3600.0
"""Nobody waits for the answer to a message any more that is so old."""

_REMEMBERED = 4000

MoreTools = Callable[[ConversationRow], Iterable[Tool]]
BoxOf = Callable[[ConversationRow], Awaitable[str | None]]


class _Found(NamedTuple):
    reply: str
    others: bool = False
    pending: Pending | None = None


class Answering:
    """Answers messages in one role.

    Args:
        settings: ``[dataverse]``.
        role: Decides what the model is told.
        conversations: The table.
        sessions: What was said before.
        assistant: The model; a text says why there is none.
        box_of: The dev box for new tasks of the person who wrote a message; None: it is chosen later.
        more: Further tools for a message.
        say: Told what is of interest to whoever runs this.
    """

    def __init__(
        self,
        settings: DataverseSettings,
        role: Role,
        conversations: Conversations,
        sessions: Sessions,
        assistant: Assistant | str,
        *,
        box_of: BoxOf,
        more: MoreTools = lambda _: (),
        say: Say = print,
        clock: Clock | None = None,
    ) -> None:
        self._settings = settings
        self._role = role
        self._conversations = conversations
        self._sessions = sessions
        self._assistant = assistant
        self._box_of = box_of
        self._more = more
        self._say = say
        self._clock = clock or Clock()

    async def answer(self, claim: Claim) -> bool:
        """Answer a message; False: it was not brought to its end, and somebody will go on with it.

        Raises:
            StoreError: The store cannot be used.
        """
        message = claim.message
        try:
            await claim.keep_while(self._answer(claim))
        except Lost:
            self._say(f"[Chat] The message {message.id} of {message.user_email} belongs to somebody else now.")
            return False
        except DataverseError as error:
            self._say(f"[Chat] The message {message.id} of {message.user_email} is not answered yet: {error}")
            return False
        return True

    async def _answer(self, claim: Claim) -> None:
        message = claim.message
        if not is_address(message.user_email):
            await claim.end(ConversationStatus.EXPIRED)  # nobody's, and nobody can be answered
            return
        opened = await self._sessions.open(message)
        exchange = opened.talk.answer_to(message.id)
        if exchange is None and self._too_old(message):
            await self._conversations.reply(message, TOO_OLD)
            await claim.end(ConversationStatus.EXPIRED)
            return
        if exchange is None:
            reach("chat:claimed")
            found = await self._while_telling(message, self._find(message, opened.talk))
            reply = self._sessions.clean(FRESH_START + found.reply if opened.lost else found.reply)
            exchange = Exchange(
                inbound=message.id, asked=clip(message.message, _REMEMBERED), replied=reply, others=found.others
            )
            reach("chat:found")
            await claim.renew()  # what a stalled process found meanwhile is not worth remembering
            await self._sessions.save(message, opened.talk, exchange, found.pending)
        reach("chat:saved")
        await self._withdraw(message)
        await self._conversations.reply(message, exchange.replied)
        reach("chat:replied")
        await claim.end()
        reach("chat:ended")

    async def _find(self, message: ConversationRow, talk: Talk) -> _Found:
        person = message.user_email.strip()
        box = await self._box_of(message)
        desk = Desk(self._conversations.dataverse, self._settings.table, person, message.id, box)
        more = tuple(self._more(message))
        done = await run_command(desk, message.message, talk.pending, more)
        if done is not None:
            return _Found("\n\n".join(filter(None, (done.text, done.show))), others=True)
        if isinstance(self._assistant, str):
            self._say(f"[Chat] {self._assistant}")
            return _Found(FALLBACK)
        others = any(exchange.others for exchange in talk.exchanges)
        tools = Toolbox(desk, message.message, others=others, more=more)
        fence = Fence.new()
        system = system_prompt(self._role, person, self._settings.box, fence)
        user = hashlib.sha256(f"{person_of(message)} {message.conversation_id}".encode()).hexdigest()[:32]
        try:
            said = await self._assistant.answer(system, fence, talk.exchanges, message.message, tools, user=user)
        except NoAnswer as error:
            self._say(f"[Chat] No answer to {person}: {error}")
            said = "\n".join([FALLBACK, *tools.acts])
        reply = "\n\n".join(filter(None, (said, *tools.shown, tools.question)))
        return _Found(reply, tools.others, tools.pending)

    async def _while_telling(self, message: ConversationRow, work: Coroutine[Any, Any, _Found]) -> _Found:
        """Do the work, and tell the person now and then that it is under way."""
        finding, telling = asyncio.ensure_future(work), asyncio.ensure_future(self._tell(message))
        try:
            return await finding
        finally:
            finding.cancel()
            telling.cancel()
            await asyncio.gather(finding, telling, return_exceptions=True)

    async def _tell(self, message: ConversationRow) -> None:
        number = 0
        while True:
            await self._clock.sleep(self._settings.chat_followup_s)
            try:
                last = None if number == 0 else await self._conversations.find(reply_id(message, f"working/{number}"))
                if last is None or last.status == ConversationStatus.DELIVERED:
                    number += 1
                    await self._conversations.reply(message, STILL_WORKING, part=f"working/{number}", followup=True)
            except DataverseError as error:
                self._say(f"[Chat] {message.user_email} could not be told that the answer takes longer: {error}")

    async def _withdraw(self, message: ConversationRow) -> None:
        """What only said that the answer is to come need not be read any more, now that it is there."""
        for row in await self._conversations.answers(message):
            if row.status == ConversationStatus.UNCLAIMED and row.id != reply_id(message):
                await self._conversations.move(row, ConversationStatus.EXPIRED)

    def _too_old(self, message: ConversationRow) -> bool:
        return message.created is not None and self._clock.now() - message.created > timedelta(seconds=TOO_OLD_S)

"""What was said before: one history for each conversation of a person, in the store.

An exchange is written here before it is sent, with the id of the row that it answers. So whoever takes the row of a
dead process sends the same answer, and the model is not asked again for what it has done already.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from operator_core.clock import Clock, iso, parse_iso
from operator_core.db.engine import Database
from operator_core.db.links import Links
from operator_dataverse.chat.conversations import person_of, thread_of
from operator_dataverse.chat.prompts import Role
from operator_dataverse.tables.conversation import ConversationRow

__all__ = ["EXPIRY_S", "Exchange", "Opened", "Pending", "Sessions", "Talk"]

EXPIRY_S = 24 * 3600.0
"""A conversation that was silent for so long begins anew (requirements 2.2.11)."""

_SOURCE = "dataverse-chat"
_EXCHANGES = 30
_CHARACTERS = 40_000


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Pending(_Value):
    """An act that waits for the person's yes.

    Attributes:
        task: Id of the task; empty for a new one.
        text: Of the new task, or of the answer.
    """

    act: Literal["create", "cancel", "answer"]
    task: str = ""
    text: str = ""


class Exchange(_Value):
    """What a person wrote, and what was answered.

    Attributes:
        inbound: Id of the person's row.
        asked: Its beginning, as far as it is worth remembering.
        replied: The answer, whole.
        others: What was answered may hold text that others wrote, such as the name of a task.
    """

    inbound: str
    asked: str
    replied: str
    others: bool = False


class Talk(_Value):
    """One conversation.

    Attributes:
        pending: What the next message may confirm.
    """

    email: str
    exchanges: tuple[Exchange, ...] = ()
    pending: Pending | None = None
    began_at: str = ""

    def answer_to(self, inbound: str) -> Exchange | None:
        """What was answered to this row already."""
        return next((exchange for exchange in reversed(self.exchanges) if exchange.inbound == inbound), None)

    def after(self, exchange: Exchange, pending: Pending | None) -> Talk:
        """With one more exchange; the oldest leave when there is no room for them."""
        kept: list[Exchange] = []
        size = 0
        for old in reversed((*self.exchanges, exchange)):
            size += len(old.asked) + len(old.replied)
            if kept and (size > _CHARACTERS or len(kept) == _EXCHANGES):
                break
            kept.append(old)
        return self.model_copy(update={"exchanges": tuple(reversed(kept)), "pending": pending})


class Opened(NamedTuple):
    """A conversation as it was found.

    Attributes:
        lost: There was one, and it cannot be read any more.
    """

    talk: Talk
    lost: bool


class Sessions:
    """The conversations of one role.

    Args:
        database: The open store.
        role: The two managers do not read each other's.
    """

    def __init__(self, database: Database, role: Role, clock: Clock | None = None) -> None:
        self._database = database
        self._links = Links(database)
        self._role = role
        self._clock = clock or Clock()

    def clean(self, text: str) -> str:
        """A text without the secrets that the store knows."""
        return self._database.redactor.text(text)

    async def open(self, message: ConversationRow) -> Opened:
        """The conversation that a message belongs to; a new one if there is none, or none that is still alive."""
        fresh = Talk(email=person_of(message), began_at=iso(self._clock.now()))
        link = await self._links.get(_SOURCE, self._key(message))
        if link is None:
            return Opened(fresh, False)
        talk = _read(link.state)
        if talk is None:
            return Opened(fresh, True)
        # What was answered stays known, however late the row is found again.
        silent = self._clock.now() - parse_iso(link.updated_at) > timedelta(seconds=EXPIRY_S)
        if talk.email != person_of(message) or (silent and talk.answer_to(message.id) is None):
            return Opened(fresh, False)
        return Opened(talk, False)

    async def save(self, message: ConversationRow, talk: Talk, exchange: Exchange, pending: Pending | None) -> None:
        """Keep one more exchange.

        Args:
            message: What was answered.
            talk: The conversation as it was opened.
            exchange: What is added.
            pending: What the next message may confirm.
        """
        key = self._key(message)

        def add(state: dict[str, Any]) -> dict[str, Any]:
            now = _read(state)
            # Another process may have added to the same conversation meanwhile.
            grown = now if now is not None and now.began_at == talk.began_at else talk
            return grown.after(exchange, pending).model_dump(mode="json")

        if not await self._links.begin(_SOURCE, key, self._role, add({})):
            await self._links.change(_SOURCE, key, add)

    async def expire(self) -> int:
        """Remove what was silent for too long; returns how many."""
        limit = self._clock.now() - timedelta(seconds=EXPIRY_S)
        old = [link for link in await self._links.list(_SOURCE, owner=self._role) if parse_iso(link.updated_at) < limit]
        return sum([await self._links.forget(_SOURCE, link.external_id) for link in old])

    def _key(self, message: ConversationRow) -> str:
        # The person is a part of it: nobody reads a history by naming somebody else's conversation.
        return f"{self._role} {thread_of(message)}"


def _read(state: dict[str, Any]) -> Talk | None:
    try:
        return Talk.model_validate_json(json.dumps(state))
    except ValidationError:
        return None

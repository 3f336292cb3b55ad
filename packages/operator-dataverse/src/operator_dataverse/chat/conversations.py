"""The table of conversations: what people wrote, and what is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from operator_core.agent_lab.gateway import Say
from operator_core.text import clip, first_line, printable
from operator_dataverse.client import Conflict, Dataverse, Row, field
from operator_dataverse.errors import DataverseError, Refused
from operator_dataverse.fleet.changes import derived_id
from operator_dataverse.fleet.users import address
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus, Direction
from operator_dataverse.tables.schema import CONVERSATIONS

__all__ = ["Conversations", "is_address", "person_of", "reply_id", "thread_of"]

_MOST_ANSWERS = 100


def person_of(message: ConversationRow) -> str:
    """The person's address in the form in which two are compared."""
    return message.user_email.strip().casefold()


def is_address(text: str) -> bool:
    """Whether there can be a person behind it."""
    try:
        address(text)
    except Refused:
        return False
    return True


def thread_of(message: ConversationRow) -> str:
    """What is answered in order: the conversation of this person; a row without one stands alone."""
    return f"{person_of(message)} {message.conversation_id or message.id}"


class Conversations:
    """Reads and writes the table.

    Args:
        dataverse: The open service.
        say: Told of messages that are passed over, each once.
    """

    def __init__(self, dataverse: Dataverse, say: Say = lambda line: None) -> None:
        self.dataverse = dataverse
        self._say = say
        self._strangers: set[str] = set()

    async def inbound(
        self,
        status: ConversationStatus,
        *,
        email: str | None = None,
        top: int = 50,
        wanted: Callable[[ConversationRow], Awaitable[bool]] | None = None,
    ) -> list[ConversationRow]:
        """What people wrote, oldest first; not what only calls itself theirs.

        Args:
            status: Only rows that stand there.
            email: Only this person's.
            top: At most so many.
            wanted: Only those; rows that are not wanted keep none of the others from being found.
        """
        where = (field("cr_direction") == Direction.INBOUND) & (field("cr_status") == status)
        if email is not None:
            where &= field("cr_useremail") == email.strip()
        found: list[ConversationRow] = []
        async for row in self.dataverse.rows(CONVERSATIONS, where, orderby=("createdon asc",)):
            message = ConversationRow.parse(row)
            # To the service an accent makes no difference, and two people may differ in nothing else.
            if email is not None and person_of(message) != email.strip().casefold():
                continue
            if await self._believes(message) and (wanted is None or await wanted(message)):
                found.append(message)
            if len(found) >= top:
                break
        return found

    async def _believes(self, message: ConversationRow) -> bool:
        """Whether a row is of the person that it names: everybody can write any address into one."""
        if await self.dataverse.owners.believes(message.owner, message.user_email):
            return True
        if message.id not in self._strangers:
            self._strangers.add(message.id)
            self._say(
                f"[Chat] The message {message.id} is left alone: it belongs to {message.owner or 'nobody'}, and not to "
                f"{clip(printable(message.user_email), 200)}; if that is the account of the flows, add it to "
                "`[dataverse] trusted_owners`."
            )
        return False

    async def find(self, row_id: str) -> ConversationRow | None:
        """One row; None: there is none."""
        row = await self.dataverse.row(CONVERSATIONS, row_id)
        return None if row is None else ConversationRow.parse(row)

    async def answers(self, message: ConversationRow) -> list[ConversationRow]:
        """The rows that answer a message, oldest first."""
        where = (field("cr_in_reply_to") == message.id) & (field("cr_direction") == Direction.OUTBOUND)
        rows = self.dataverse.rows(CONVERSATIONS, where, orderby=("createdon asc",), top=_MOST_ANSWERS)
        return [ConversationRow.parse(row) async for row in rows]

    async def ask(self, email: str, conversation: str, text: str, *, row_id: str) -> ConversationRow:
        """Write a row as a person's message.

        Args:
            email: The person.
            conversation: Its conversation.
            text: The message.
            row_id: The id of the row; a repeat makes no second one.
        """
        values = _values(email, conversation, text, Direction.INBOUND)
        made = await self.dataverse.owners.give(CONVERSATIONS, values, email, row_id=row_id)
        found = await self.find(row_id) if isinstance(made, Conflict) else ConversationRow.parse(made)
        if found is None:
            raise DataverseError("The row of the message was deleted meanwhile; try again.")
        return found

    async def reply(
        self, message: ConversationRow, text: str, *, part: str = "reply", followup: bool = False
    ) -> Row | Conflict:
        """Answer a message; a repeat of the same part changes nothing and is ``Conflict("exists")``.

        Args:
            message: The row of the person.
            text: The answer; cut to what the column holds.
            part: Which of the rows that answer this message; it decides the id of the row.
            followup: More is to come.
        """
        values = _values(message.user_email, message.conversation_id, text, Direction.OUTBOUND)
        values |= {"cr_in_reply_to": message.id, "cr_followup_expected": "true" if followup else ""}
        return await self.dataverse.owners.give(
            CONVERSATIONS, values, message.user_email, row_id=reply_id(message, part)
        )

    async def move(
        self, message: ConversationRow, status: ConversationStatus, *, claimed_by: str | None = None
    ) -> ConversationRow | Conflict:
        """Write a row's status, if the row is still as it was read."""
        if message.etag is None:
            raise DataverseError(f"The row {message.id} came without its version; nothing of it is changed.")
        values: dict[str, str] = {"cr_status": status.value}
        if claimed_by is not None:
            values["cr_claimed_by"] = claimed_by
        done = await self.dataverse.update(CONVERSATIONS, message.id, values, etag=message.etag)
        return done if isinstance(done, Conflict) else ConversationRow.parse(done)


def reply_id(message: ConversationRow, part: str = "reply") -> str:
    """The id of the row that answers a message: the same for whoever writes it."""
    return derived_id("conversation", message.id, part)


def _values(email: str, conversation: str, text: str, direction: Direction) -> dict[str, str]:
    return {
        "cr_name": first_line(text, 100) or "(empty)",
        "cr_useremail": email,
        "cr_mcs_conversation_id": conversation,
        "cr_message": text,
        "cr_direction": direction.value,
        "cr_status": ConversationStatus.UNCLAIMED.value,
    }

"""The global manager: answers those who have no manager of their own, or whose manager is gone (2.2.11)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from operator_core.agent_lab.gateway import Say
from operator_core.clock import Clock, iso
from operator_core.db.engine import Database
from operator_dataverse.chat.answering import Answering
from operator_dataverse.chat.assistant import Assistant
from operator_dataverse.chat.claims import Claims, claimant
from operator_dataverse.chat.conversations import Conversations, is_address, person_of, thread_of
from operator_dataverse.chat.desk import Done
from operator_dataverse.chat.loop import ChatLoop
from operator_dataverse.chat.onboarding import Onboarding
from operator_dataverse.chat.sessions import Sessions
from operator_dataverse.chat.stillness import Stillness
from operator_dataverse.chat.tools import NoInput, Tool
from operator_dataverse.client import Dataverse
from operator_dataverse.fleet.users import Users
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus
from operator_dataverse.tables.user import ManagerStatus, UserRow

__all__ = ["GlobalDesks", "global_manager"]

_LOOKED_AT = 200
_OF_A_THREAD = 10


class GlobalDesks:
    """The messages of everybody whom nobody else answers.

    A person who is not known is answered at once, a known one only when the sign of life of that person's own manager
    stands still (D-58). That a person could not be looked up never means that the person is unknown (D-56).
    """

    def __init__(
        self, settings: DataverseSettings, conversations: Conversations, users: Users, clock: Clock | None = None
    ) -> None:
        self._conversations = conversations
        self._users = users
        self._claimed = Stillness(settings.chat_lease_s, clock)
        self._managers = Stillness(settings.chat_lease_s, clock)
        self._people: dict[str, UserRow | None] = {}

    async def due(self) -> list[ConversationRow]:
        """Unclaimed messages, and those whose claim nobody renews any more, of people without a living manager."""
        self._people = {}
        claimed = await self._conversations.inbound(ConversationStatus.CLAIMED, top=_LOOKED_AT)
        self._claimed.only({row.id for row in claimed})
        dead = [row for row in claimed if self._claimed.still(row.id, row.etag or "", row.modified)]
        due = [row for row in dead if await self._alone(row)]
        threads = Counter[str]()

        async def among_the_next(message: ConversationRow) -> bool:
            # However much waits for a manager that lives, or in one conversation: what others wrote is found behind it.
            if threads[thread_of(message)] >= _OF_A_THREAD or not await self._alone(message):
                return False
            threads[thread_of(message)] += 1
            return True

        due += await self._conversations.inbound(ConversationStatus.UNCLAIMED, top=_LOOKED_AT, wanted=among_the_next)
        self._managers.only(set(self._people))
        return due

    async def present(self) -> None:
        """There may be several, and nobody waits for one of them."""

    async def leave(self) -> None:
        """Nothing is to be said."""

    async def _alone(self, message: ConversationRow) -> bool:
        person = person_of(message)
        if not is_address(person):
            return True  # there is nobody else who could put it aside
        if person not in self._people:
            self._people[person] = await self._users.get(person)
        known = self._people[person]
        if known is None or known.last_seen is None or known.manager_status == ManagerStatus.OFFLINE:
            return True
        return self._managers.still(person, iso(known.last_seen), known.last_seen)


def global_manager(
    settings: DataverseSettings,
    database: Database,
    dataverse: Dataverse,
    assistant: Assistant | str,
    *,
    onboarding: Onboarding | None = None,
    say: Say = print,
    clock: Clock | None = None,
) -> ChatLoop:
    """A global manager, for this process.

    Args:
        onboarding: Sets people up (default: with the dev boxes of the settings).
    """
    clock = clock or Clock()
    conversations = Conversations(dataverse, say)
    sessions = Sessions(database, "global", clock)
    users = Users(dataverse, clock)
    setting_up = onboarding or Onboarding.open(settings, dataverse, users)
    desks = GlobalDesks(settings, conversations, users, clock)
    claims = Claims(conversations, claimant("global"), settings.chat_lease_s, clock)

    def more(message: ConversationRow) -> Iterable[Tool]:
        email = message.user_email.strip()

        async def look(_: NoInput) -> Done:
            return await setting_up.state(email)

        async def advance(_: NoInput) -> Done:
            return await setting_up.advance(email)

        yield Tool("look_at_setup", "How far the person's dev box and sign-in are. Changes nothing.", NoInput, look)
        yield Tool(
            "continue_setup",
            "Do the next step: have the person's dev box made, see whether it is ready, or send the instructions for "
            "signing in. Only when the person wants to be set up.",
            NoInput,
            advance,
            "setup",
            "get a dev box, or see how far it is",
        )

    async def box_of(message: ConversationRow) -> str | None:
        known = await users.get(message.user_email)
        return (known.devbox_name or None) if known else None

    answering = Answering(
        settings,
        "global",
        conversations,
        sessions,
        assistant,
        box_of=box_of,
        more=more,
        say=say,
        clock=clock,
    )
    return ChatLoop(desks, claims, answering, sessions, poll_s=settings.chat_poll_s, say=say, clock=clock)

"""The personal manager: answers one person, on that person's dev box (requirements 2.2.11)."""

from __future__ import annotations

from operator_core.agent_lab.gateway import Say
from operator_core.clock import Clock
from operator_core.db.engine import Database
from operator_dataverse.chat.answering import Answering
from operator_dataverse.chat.assistant import Assistant
from operator_dataverse.chat.claims import Claims, claimant
from operator_dataverse.chat.conversations import Conversations
from operator_dataverse.chat.loop import ChatLoop
from operator_dataverse.chat.sessions import Sessions
from operator_dataverse.chat.stillness import Stillness
from operator_dataverse.client import Dataverse
from operator_dataverse.fleet.users import Users, address
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables.conversation import ConversationRow, ConversationStatus
from operator_dataverse.tables.user import AuthStatus, ManagerStatus, OnboardingStep

__all__ = ["PersonalDesks", "personal_manager"]

_BEATS_IN_A_LEASE = 3
_BEFORE_THE_END = (OnboardingStep.AUTH_PENDING, OnboardingStep.AUTH_CODE_SENT)


class PersonalDesks:
    """The messages of one person.

    While they are looked after, the person's row shows it (the presence lease): so long the global manager leaves them
    alone, however long one answer takes (D-58).

    Args:
        usable: Whether there is a model; then somebody has signed in on this box, and the set-up is complete.
    """

    def __init__(
        self,
        settings: DataverseSettings,
        conversations: Conversations,
        users: Users,
        *,
        usable: bool,
        clock: Clock | None = None,
    ) -> None:
        self._email = address(settings.needs("user").user or "")
        self._box = settings.box
        self._lease_s = settings.chat_lease_s
        self._conversations = conversations
        self._users = users
        self._usable = usable
        self._clock = clock or Clock()
        self._claimed = Stillness(settings.chat_lease_s, self._clock)
        self._shown: float | None = None

    async def due(self) -> list[ConversationRow]:
        """Unclaimed messages, and those whose claim nobody renews any more."""
        inbound = self._conversations.inbound
        claimed = await inbound(ConversationStatus.CLAIMED, email=self._email)
        self._claimed.only({row.id for row in claimed})
        dead = [row for row in claimed if self._claimed.still(row.id, row.etag or "", row.modified)]
        return dead + await inbound(ConversationStatus.UNCLAIMED, email=self._email)

    async def present(self) -> None:
        """Show it, some times in each lease."""
        now = self._clock.monotonic()
        if self._shown is not None and now - self._shown < self._lease_s / _BEATS_IN_A_LEASE:
            return
        values: dict[str, str | None] = {"manager_status": ManagerStatus.RUNNING}
        if self._shown is None:
            values |= await self._arrived()
        await self._users.seen(self._email, values=values)
        self._shown = now

    async def leave(self) -> None:
        """Say that nobody is here any more."""
        if self._shown is not None:
            await self._users.seen(self._email, values={"manager_status": ManagerStatus.OFFLINE})

    async def _arrived(self) -> dict[str, str | None]:
        known = await self._users.get(self._email)
        values: dict[str, str | None] = {}
        if known is None or not known.devbox_name:
            values["devbox_name"] = self._box
        if self._usable and (known is None or known.onboarding_step in (None, *_BEFORE_THE_END)):
            values |= {"claude_auth_status": AuthStatus.AUTHENTICATED, "onboarding_step": OnboardingStep.COMPLETED}
        return values


def personal_manager(
    settings: DataverseSettings,
    database: Database,
    dataverse: Dataverse,
    assistant: Assistant | str,
    *,
    say: Say = print,
    clock: Clock | None = None,
) -> ChatLoop:
    """The manager of ``[dataverse] user``, for this process.

    Raises:
        NotConfigured: ``user`` is missing.
    """
    clock = clock or Clock()
    conversations = Conversations(dataverse, say)
    sessions = Sessions(database, "personal", clock)
    users = Users(dataverse, clock)
    desks = PersonalDesks(settings, conversations, users, usable=isinstance(assistant, Assistant), clock=clock)
    name = claimant("personal", (settings.user or "").strip())
    claims = Claims(conversations, name, settings.chat_lease_s, clock)

    async def this_box(_: ConversationRow) -> str:
        return settings.box

    answering = Answering(
        settings,
        "personal",
        conversations,
        sessions,
        assistant,
        box_of=this_box,
        say=say,
        clock=clock,
    )
    return ChatLoop(desks, claims, answering, sessions, poll_s=settings.chat_poll_s, say=say, clock=clock)

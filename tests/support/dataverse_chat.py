"""A chat on the double: people who write, managers that answer, and a scripted model behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.scripted import Brain, ScriptedServer
from operator_core.scripted.turn import Turn, unfence
from operator_dataverse.chat.assistant import Assistant
from operator_dataverse.chat.global_ import global_manager
from operator_dataverse.chat.loop import ChatLoop
from operator_dataverse.chat.onboarding import Onboarding
from operator_dataverse.chat.personal import personal_manager
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.double import Double
from operator_dataverse.settings import SECTION, DataverseSettings

__all__ = ["ALICE", "BOB", "CHAT", "TASKS", "USERS", "Chat", "open_chat", "running", "said"]

ALICE, BOB = "alice@example.com", "bob.o'neill@example.com"
CHAT, TASKS, USERS = "cr_shraga_conversations", "cr_shraga_tasks", "crb3b_shragausers"


def said(turn: Turn) -> str:
    """What the person wrote last, as the model got it."""
    return next(
        unfence(text).text
        for message in reversed(turn.messages)
        if message["role"] == "user" and isinstance(text := message["content"], str)
    )


@dataclass
class Chat:
    """An organisation, a store, a model, and what the managers said.

    Attributes:
        lines: Everything that managers printed.
    """

    double: Double
    server: ScriptedServer
    database: Database
    dataverse: Dataverse
    settings: Settings
    lines: list[str] = field(default_factory=list)
    assistants: list[Assistant] = field(default_factory=list)

    @property
    def own(self) -> DataverseSettings:
        """The section of this package."""
        return self.settings.extension(SECTION, DataverseSettings)

    def assistant(self, **model: Any) -> Assistant | str:
        """An assistant of the settings."""
        changed = self.settings.model_copy(update={"model": self.settings.model.model_copy(update=model)})
        opened = Assistant.open(changed)
        if isinstance(opened, Assistant):
            self.assistants.append(opened)
        return opened

    def personal(self, user: str = ALICE, *, clock: Clock | None = None, **model: Any) -> ChatLoop:
        """A personal manager."""
        own = self.own.model_copy(update={"user": user})
        return personal_manager(
            own, self.database, self.dataverse, self.assistant(**model), say=self.lines.append, clock=clock
        )

    def overall(self, *, clock: Clock | None = None, onboarding: Onboarding | None = None, **model: Any) -> ChatLoop:
        """A global manager."""
        return global_manager(
            self.own,
            self.database,
            self.dataverse,
            self.assistant(**model),
            onboarding=onboarding,
            say=self.lines.append,
            clock=clock,
        )

    def write(self, text: str, email: str = ALICE, conversation: str = "c1", **more: Any) -> str:
        """A person writes; returns the row's id."""
        values = {
            "cr_name": text[:50] or "(empty)",
            "cr_useremail": email,
            "cr_mcs_conversation_id": conversation,
            "cr_message": text,
            "cr_direction": "Inbound",
            "cr_status": "Unclaimed",
        }
        return self.double.seed(CHAT, **{**values, **more})

    def row(self, row_id: str) -> dict[str, Any]:
        """A row of the conversations as it is."""
        return self.double.tables[CHAT][row_id]

    def answers(self, row_id: str, **more: Any) -> list[dict[str, Any]]:
        """The rows that answer one, oldest first."""
        return self.double.tables[CHAT].where(cr_direction="Outbound", cr_in_reply_to=row_id, **more)

    def answer(self, row_id: str) -> str:
        """The text of the only answer; the message must be processed, too."""
        (row,) = self.answers(row_id)
        assert self.row(row_id)["cr_status"] == "Processed"
        assert row["cr_status"] == "Unclaimed"
        return str(row["cr_message"])

    async def talk(self, manager: ChatLoop, text: str, email: str = ALICE, conversation: str = "c1") -> str:
        """Write, let the manager answer, and return the answer."""
        row_id = self.write(text, email, conversation)
        assert await manager.once() == 1
        return self.answer(row_id)


@asynccontextmanager
async def running(manager: ChatLoop) -> AsyncIterator[None]:
    """A manager at work, which leaves at the end whatever happens."""
    stop = asyncio.Event()
    task = asyncio.create_task(manager.run(stop))
    try:
        yield
    finally:
        stop.set()
        await task


@asynccontextmanager
async def open_chat(double: Double, brain: Brain, folder: Path, **own: Any) -> AsyncIterator[Chat]:
    """Everything, for one test.

    Args:
        own: Settings of ``[dataverse]``.
    """
    values = {"url": double.url, "user": ALICE, "box": "box-1", "retry_s": 20.0, "chat_poll_s": 0.02, **own}
    async with (
        ScriptedServer(brain) as server,
        Database.open(folder / "chat.db") as database,
        Dataverse(double.url, StaticToken(double.token), retry_s=float(values["retry_s"])) as dataverse,
    ):
        model = {"engine": "scripted", "base_url": server.base_url, "retry_deadline_s": 2.0}
        settings = Settings.model_validate({"model": model}).extended(SECTION, DataverseSettings(**values))
        chat = Chat(double, server, database, dataverse, settings)
        try:
            yield chat
        finally:
            for assistant in chat.assistants:
                await assistant.close()

"""One run of an agent: everything its conversation needs, and how it writes its journal."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.context import ContextManager
from operator_core.agent_lab.gateway import Say, ToolGateway
from operator_core.agent_lab.halves import mend_reply
from operator_core.agent_lab.history import Conversation
from operator_core.agent_lab.naming import by_whom, shown_model, speaker
from operator_core.agent_lab.profiles import Profile
from operator_core.agent_lab.resting import Stopping
from operator_core.agent_lab.summaries import Summarizer, summarize_text
from operator_core.agent_lab.toolset import Blocks
from operator_core.config import ModelSettings
from operator_core.db.journal import Journal
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.ticket import Ticket

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["AgentRun", "Pace", "Stopping", "ticket_text"]


class Pace(Protocol):
    """Slows a conversation down, or halts it, between requests."""

    def due(self, run: AgentRun) -> bool:
        """Whether it has to rest before the next request."""
        ...

    async def rest(self, run: AgentRun) -> None:
        """Wait as long as it has to, if at all.

        Raises:
            Stopping: It is to rest until somebody goes on with it.
            LimitReached: It has to end.
        """
        ...


@dataclass
class AgentRun:
    """Everything one conversation needs.

    Attributes:
        context: Keeps it inside of the model's context; None: nothing does.
        pace: Slows it down or halts it between requests.
    """

    client: AsyncAnthropic
    model: ModelSettings
    system: str
    journal: Journal
    conversation: Conversation
    gateway: ToolGateway
    budget: Budget
    profile: Profile
    summarizer: Summarizer | None = None
    say: Say = print
    blocks: Blocks = field(default_factory=Blocks)
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    cut_offs: int = 0
    context: ContextManager | None = None
    pace: Pace | None = None
    _mended: bool = False

    @property
    def max_tokens(self) -> int:
        """The longest reply that there is room for."""
        return self.context.window.reply if self.context else self.model.max_tokens

    async def before_request(self) -> None:
        """What has to be done before a new run of requests.

        Raises:
            Stopping: The worker is about to leave.
            LimitReached: No further request is to be made.
        """
        if self.stopping.is_set():
            raise Stopping
        if self.pace is not None:
            await self.pace.rest(self)
        if self.context is not None:
            await self.context.make_room(self)

    @property
    def interrupted(self) -> bool:
        """Whether a run of requests has to end, because there is something to do before the next."""
        pressed = self.context is not None and self.context.due(self)
        # The runner keeps what it received; a new one begins with what the journal has.
        return pressed or self._mended or (self.pace is not None and self.pace.due(self))

    async def shortened(self, error: BaseException) -> bool:
        """A request failed: whether the same one, shortened, can be tried at once."""
        return self.context is not None and await self.context.overflowed(self, error)

    async def write(self, *drafts: Draft) -> None:
        """Journal entries and let the conversation follow."""
        ids = await self.gateway.record(*drafts)
        for draft, entry_id in zip(drafts, ids, strict=True):
            if draft.kind == EntryKind.REASONING and self.summarizer and draft.raw_content:
                self.summarizer.add(entry_id, draft.raw_content)

    async def tell(self, text: str, **meta: Any) -> None:
        """Add a user message."""
        body = {"role": "user", "content": text}
        await self.write(
            Draft(EntryKind.MESSAGE, summarize_text(self.gateway.clean(text)), text, body=body, meta=meta or None)
        )

    async def reply(self, message: Any) -> None:
        """The reply, its texts and the intents of its calls become durable in one write, before any tool runs."""
        mended = mend_reply(message)
        self.gateway.altered, self._mended = mended.calls, mended.characters > 0
        usage = self.budget.charge(self.model.model, message.usage)
        self.budget.turns += 1
        content = message.to_dict(mode="json")["content"]
        shown, who = shown_model(self.model, message.model), speaker(self.model, message.model)
        meta = {"usage": usage._asdict(), "stop_reason": message.stop_reason, "model": shown}
        if mended.characters:
            meta["replaced"] = mended.characters
            self.say(f"[Note] {mended.characters} character(s) of this reply were no text and were replaced.")
        body = {"role": "assistant", "content": content}
        drafts = [Draft(EntryKind.MESSAGE, f"reply, {message.stop_reason}", body=body, meta=meta)]
        for block in content:
            if block["type"] == "text" and block["text"].strip():
                summary = summarize_text(self.gateway.clean(block["text"]))
                drafts.append(Draft(EntryKind.REASONING, summary, block["text"], meta=by_whom(who)))
                self.say(f"[{who}] {summary}")
            elif block["type"] == "tool_use" and message.stop_reason == "tool_use":
                intent = self.gateway.intent(block)
                drafts.append(intent)
                self.say(f"[Tool Call: {block['name']}] {intent.content.partition(': ')[2]}")
        await self.write(*drafts)


def ticket_text(ticket: Ticket) -> str:
    """The first message (row A-056)."""
    text = f"Ticket #{ticket.id}: {ticket.invariant_name}\n{ticket.message}"
    if ticket.metric_snapshot:
        text += f"\nMetrics: {json.dumps(ticket.metric_snapshot, ensure_ascii=False)}"
    return text

"""The model that answers: a few turns with narrow tools, within a budget, and never a shell (D-55)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.engine import Engine, explain, open_engine
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.config import LimitSettings, ModelSettings, Settings
from operator_core.errors import ConfigError, LimitReached, ModelError, UnknownPrice
from operator_core.model.usage import Usage
from operator_dataverse.chat.sessions import Exchange
from operator_dataverse.chat.tools import Toolbox
from operator_dataverse.settings import settings_of

if TYPE_CHECKING:
    from anthropic.types import Message as Reply

__all__ = ["Assistant", "NoAnswer"]

_MAX_TOKENS = 2048
_RETRIES = 2
_MOST_CALLS = 8


class NoAnswer(Exception):
    """The model has no answer; the text says why, for the log and not for the person."""


class Assistant:
    """Answers with a model.

    Args:
        engine: The model service.
        model: Which model, and how it is reached.
        limits: Of one answer.
    """

    def __init__(self, engine: Engine, model: ModelSettings, limits: LimitSettings) -> None:
        self._engine = engine
        self._model = model
        self._limits = limits

    @classmethod
    def open(cls, settings: Settings) -> Assistant | str:
        """The assistant of the configuration; a text if no model can be asked, which says why."""
        own = settings_of(settings)
        model = settings.model.model_copy(update={"model": own.chat_model} if own.chat_model else {})
        limits = LimitSettings(turns=own.chat_turns, cost_usd=own.chat_cost_usd, wall_clock_s=own.chat_timeout_s)
        try:
            return cls(open_engine(settings.model), model, limits)
        except ConfigError as error:
            return str(error)

    async def close(self) -> None:
        """Give up its connections."""
        await self._engine.close()

    async def answer(
        self, system: str, fence: Fence, history: Sequence[Exchange], text: str, tools: Toolbox, *, user: str
    ) -> str:
        """Answer one message.

        Args:
            system: The system prompt.
            fence: Its marks.
            history: What was said before.
            text: What the person wrote now.
            tools: What can be done, for this person and this message only.
            user: Names the conversation to the model service, without telling who it is.

        Raises:
            NoAnswer: The service cannot be reached or refuses, or a limit was reached.
        """
        messages = _opening(fence, history, text)
        budget = Budget(self._limits, self._model, Usage(cost_usd=0.0), 0)
        try:
            async with asyncio.timeout(self._limits.wall_clock_s or None):
                while True:
                    reply = await self._ask(system, messages, tools, budget, user)
                    said = "\n".join(block.text for block in reply.content if block.type == "text").strip()
                    calls = [block for block in reply.content if block.type == "tool_use"]
                    if reply.stop_reason == "tool_use" and calls:
                        messages.append({"role": "assistant", "content": reply.to_dict(mode="json")["content"]})
                        results = [
                            await _result(tools, fence, call, refused=number >= _MOST_CALLS)
                            for number, call in enumerate(calls)
                        ]
                        messages.append({"role": "user", "content": results})
                    elif said and reply.stop_reason in ("end_turn", "stop_sequence", "max_tokens"):
                        return said
                    else:
                        raise NoAnswer(f"The model's answer ended with {reply.stop_reason}.")
        except TimeoutError:
            raise NoAnswer(f"There was no answer within {self._limits.wall_clock_s:g} s.") from None
        except (LimitReached, UnknownPrice, ModelError) as error:
            raise NoAnswer(str(error)) from error

    async def _ask(self, system: str, messages: list[Any], tools: Toolbox, budget: Budget, user: str) -> Reply:
        size = len(system) + sum(len(str(message["content"])) for message in messages)
        budget.reserve(size, max_tokens=_MAX_TOKENS)
        try:
            reply = await self._engine.client.with_options(max_retries=_RETRIES).messages.create(
                model=self._model.model,
                max_tokens=_MAX_TOKENS,
                system=system,
                tools=tools.schemas(),
                messages=messages,
                metadata={"user_id": user},
            )
        except Exception as error:  # a broken answer is an exception of the HTTP or the JSON library, whichever that is
            raise explain(error, self._model)[0] from error
        budget.charge(self._model.model, reply.usage)
        budget.turns += 1
        return reply


def _opening(fence: Fence, history: Sequence[Exchange], text: str) -> list[Any]:
    messages: list[Any] = []
    for exchange in history:
        messages.append({"role": "user", "content": fence.wrap(Origin.PERSON, exchange.asked)})
        messages.append({"role": "assistant", "content": exchange.replied})
    messages.append({"role": "user", "content": fence.wrap(Origin.PERSON, text)})
    return messages


async def _result(tools: Toolbox, fence: Fence, call: Any, *, refused: bool) -> Any:
    if refused:
        said, failed = f"not done: at most {_MOST_CALLS} calls at once", True
    else:
        said, failed = await tools.call(call.name, call.input)
    return {
        "type": "tool_result",
        "tool_use_id": call.id,
        "content": fence.wrap(Origin.TOOL, said, call.name),
        "is_error": failed,
    }

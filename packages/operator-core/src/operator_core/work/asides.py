"""Single questions to the model, without tools: reading a request, and summing up what was done."""

from __future__ import annotations

import asyncio
import json
import re
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.agent_lab.naming import shown_model
from operator_core.agent_lab.task_prompts import PARSE_PROMPT, SUMMARIZER_PROMPT
from operator_core.config import LimitSettings
from operator_core.errors import LimitReached, UnknownPrice
from operator_core.model.usage import Usage
from operator_core.text import clip, printable
from operator_core.work.entries import spent
from operator_core.work.session import Session

__all__ = ["Answer", "Brief", "ask_once", "parse_request", "read_request", "sum_up"]

_PATIENCE_S = 90.0
_FENCE = re.compile(r"\A```[a-z]*\n(.*)\n```\Z", re.DOTALL)
DEFAULT_CRITERIA = "Review and confirm task is complete"
"""When the request names no criteria and nobody could derive them (requirements 2.2.5)."""


class Answer(NamedTuple):
    """What came of one question.

    Attributes:
        text: The answer; None if there is none, for ``why``.
        usage: What it cost; it was spent even if the answer is of no use.
    """

    text: str | None
    usage: Usage
    model: str
    why: str = ""


class Brief(BaseModel):
    """A request, read (row B-004)."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    task_description: str = Field(min_length=1)
    success_criteria: str = Field(min_length=1)


async def ask_once(session: Session, limits: LimitSettings, system: str, text: str, *, max_tokens: int) -> Answer:
    """One call without tools. It never fails: what is wrong is in the answer, and the caller does without."""
    from anthropic import AnthropicError

    settings = session.tools.settings.model
    model = settings.summary_model
    shown = shown_model(settings, model)
    budget = Budget(limits, settings, spent(session.entries), 0)
    try:
        budget.reserve(len(system) + len(text), model=model, max_tokens=max_tokens)
        async with asyncio.timeout(_PATIENCE_S):
            message = await session.tools.engine.client.with_options(max_retries=2).messages.create(
                model=model,
                max_tokens=max_tokens,
                system=system,
                messages=[{"role": "user", "content": text}],
                metadata={"user_id": session.session_id},
            )
    except TimeoutError:
        return Answer(None, Usage(), shown, f"there was no answer within {_PATIENCE_S:g} s")
    except (LimitReached, UnknownPrice, AnthropicError) as error:
        return Answer(None, Usage(), shown, clip(printable(str(error)), 200))
    except Exception as error:  # a broken stream is an exception of the HTTP library, whichever that is
        return Answer(None, Usage(), shown, clip(printable(f"{type(error).__name__}: {error}"), 200))
    usage = budget.charge(model, message.usage)
    said = "".join(block.text for block in message.content if block.type == "text").strip()
    if message.stop_reason != "end_turn" or not said:
        return Answer(None, usage, shown, f"the answer ended with {message.stop_reason}")
    return Answer(said, usage, shown)


def read_request(answer: Answer, prompt: str) -> tuple[Brief, str]:
    """The brief in an answer, or the request itself.

    Returns:
        The brief, and why it is only the raw request; empty if the model's is used.
    """
    raw = Brief(task_description=prompt, success_criteria=DEFAULT_CRITERIA)
    if answer.text is None:
        return raw, answer.why
    match = _FENCE.match(answer.text)
    try:
        return Brief.model_validate(json.loads(match[1] if match else answer.text)), ""
    except (ValueError, ValidationError, RecursionError):
        return raw, "the answer was not the JSON that was asked for"


async def parse_request(session: Session, limits: LimitSettings, prompt: str) -> Answer:
    """Ask what a request means. The request is untrusted text, and the model that reads it can do nothing."""
    return await ask_once(session, limits, PARSE_PROMPT, Fence.new().wrap(Origin.MATERIAL, prompt), max_tokens=4096)


async def sum_up(session: Session, limits: LimitSettings, material: str) -> Answer:
    """Ask for the text of ``SUMMARY.md`` (row B-025)."""
    text = Fence.new().wrap(Origin.MATERIAL, material)
    return await ask_once(session, limits, SUMMARIZER_PROMPT, text, max_tokens=1024)

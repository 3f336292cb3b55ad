"""The model that works: how it is reached, what it may use up, and what its context holds."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from operator_core.config.section import Section

__all__ = ["ContextSettings", "LimitSettings", "ModelSettings", "Price"]

# Ids of the seed documents that are retired or never existed, and what replaces them.
_RETIRED_MODELS = {
    "claude-opus-4-20250514": "claude-opus-5-5",
    "claude-haiku-4-5-20250929": "claude-haiku-4-5",
}


class Price(Section):
    """USD per million tokens of a model that the price table does not know."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float = Field(default=0.0, ge=0)
    cache_write: float = Field(default=0.0, ge=0)


class ModelSettings(Section):
    """Which model works, and how to reach it."""

    engine: Literal["anthropic", "scripted"] = "anthropic"
    """``scripted`` is the deterministic server of this package; it is labelled as such wherever it shows."""
    base_url: str | None = None
    """Any server that speaks the Anthropic Messages API. None: the SDK's own default, or ``ANTHROPIC_BASE_URL``."""
    api_key_env: str = "ANTHROPIC_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never configuration."""
    model: str = "claude-opus-5-5"
    """Model of the agent."""
    summary_model: str = "claude-haiku-4-5"
    """Model of the one-line summaries in the journal."""
    summaries: Literal["model", "deterministic"] = "model"
    """``deterministic`` never calls a model for them."""
    max_tokens: int = Field(default=8192, ge=1, le=21333)
    """Longest answer, in tokens; above 21,333 the API insists on streaming."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Limit of one request."""
    retry_deadline_s: float = Field(default=300.0, ge=0)
    """How long a failing request is repeated, with growing pauses, before the session ends with an error."""
    prices: dict[str, Price] = Field(default={})
    """Prices by model id, for models that the built-in table does not know."""
    allow_unknown_price: bool = False
    """Work with a model whose price is unknown; its cost then counts as unknown, not as zero."""

    @model_validator(mode="before")
    @classmethod
    def _replace_retired(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in ("model", "summary_model"):
                if data.get(key) in _RETIRED_MODELS:
                    data = {**data, key: _RETIRED_MODELS[data[key]]}
        return data


class LimitSettings(Section):
    """Limits of one attempt at a ticket, over every worker that has a part in it; 0 means no limit."""

    turns: int = Field(default=100, ge=0)
    """Model calls of the agent; of a task: in each of its phases."""
    wall_clock_s: float = Field(default=3600.0, ge=0)
    """Working time, in seconds; begins again when another worker goes on, and in each phase of a task."""
    tokens: int = Field(default=0, ge=0)
    """Tokens in and out."""
    cost_usd: float = Field(default=5.0, ge=0)
    """Money; reserved before each call, so that it is never exceeded by more than the estimate of one call is wrong."""
    command_timeout_s: float = Field(default=120.0, gt=0)
    """Default limit of one shell command."""


class ContextSettings(Section):
    """What happens when a conversation outgrows the model's context."""

    limit_tokens: int = Field(default=200_000, ge=4096)
    """Size of the model's context; set it for a local model, whose server may cut a longer one silently."""
    soft: float = Field(default=0.7, gt=0, lt=1)
    """Above this part of it the oldest observations are masked."""
    hard: float = Field(default=0.9, gt=0, lt=1)
    """Above this part the agent is told to wind down, and then begins anew with what it carries over."""
    carryover_turns: int = Field(default=5, ge=0, le=100)
    """How many of the last turns are carried over."""

    @model_validator(mode="after")
    def _soft_below_hard(self) -> ContextSettings:
        if self.soft >= self.hard:
            raise ValueError(f"soft ({self.soft:g}) must be below hard ({self.hard:g})")
        return self

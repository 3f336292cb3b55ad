"""What a session may use, checked before each model call, and what it has used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from operator_core import clock
from operator_core.config import LimitSettings, ModelSettings
from operator_core.errors import LimitReached, UnknownPrice
from operator_core.model.usage import Usage

if TYPE_CHECKING:
    from anthropic.types import Usage as ApiUsage

__all__ = ["Budget", "price"]

# A rough and deliberately high estimate, for the reservation only: what a call really used comes from its answer.
_CHARACTERS_PER_TOKEN = 3


def price(settings: ModelSettings, model: str, usage: Usage) -> float | None:
    """USD for these tokens; None when nobody knows the price of the model.

    Overrides of the configuration come first, then the table of ``genai-prices``. The scripted engine costs nothing.
    """
    if settings.engine == "scripted":
        return 0.0
    if model in settings.prices:
        p = settings.prices[model]
        return (
            usage.input_tokens * p.input
            + usage.output_tokens * p.output
            + usage.cache_read_tokens * p.cache_read
            + usage.cache_write_tokens * p.cache_write
        ) / 1e6
    from genai_prices import Usage as PriceUsage
    from genai_prices import calc_price

    try:
        total = calc_price(
            PriceUsage(
                # The table counts cached tokens as a part of the input; the API counts them beside it.
                input_tokens=usage.input_tokens + usage.cache_read_tokens + usage.cache_write_tokens,
                output_tokens=usage.output_tokens,
                cache_read_tokens=usage.cache_read_tokens,
                cache_write_tokens=usage.cache_write_tokens,
            ),
            model_ref=model,
            provider_id="anthropic",
        ).total_price
    except LookupError:
        return None
    return float(total)


class Budget:
    """The limits of one attempt at a ticket; survives a crash, because it is filled from the journal.

    Args:
        limits: 0 means no limit.
        settings: For prices and the longest answer.
        used: What the journal says was used already.
        turns: Model replies that the journal has already.

    Attributes:
        fixed: Characters of what goes with every request of the agent, beside its messages.
    """

    def __init__(self, limits: LimitSettings, settings: ModelSettings, used: Usage, turns: int) -> None:
        self.limits = limits
        self.settings = settings
        self.used = used
        self.turns = turns
        self.fixed = 0
        self._started = clock.monotonic()

    def reserve(self, characters: int, *, model: str | None = None, max_tokens: int | None = None) -> None:
        """Make sure that one more call fits, before it is made.

        Args:
            characters: Size of the request.

        Raises:
            LimitReached: It does not; the message says which limit.
            UnknownPrice: A cost limit is set and the price of the model is not known.
        """
        limits = self.limits
        if limits.turns and self.turns >= limits.turns:
            raise LimitReached(f"The limit of {limits.turns} turns is reached ([limits] turns).")
        if limits.wall_clock_s and self.seconds_left() <= 0:
            raise LimitReached(f"The limit of {limits.wall_clock_s:g} s is reached ([limits] wall_clock_s).")
        if model is None:
            model, characters = self.settings.model, characters + self.fixed
        expected = Usage(characters // _CHARACTERS_PER_TOKEN, max_tokens or self.settings.max_tokens)
        if limits.tokens and self.used.tokens + expected.tokens > limits.tokens:
            raise LimitReached(
                f"The next call could exceed the limit of {limits.tokens} tokens; {self.used.tokens} are used."
            )
        cost = price(self.settings, model, expected)
        if cost is None:
            if self.settings.allow_unknown_price:
                return
            raise UnknownPrice(
                f"The price of {model} is not known, so no budget can be kept; set [model.prices.{model!r}], "
                "or allow it with [model] allow_unknown_price = true."
            )
        spent = self.used.cost_usd or 0.0
        if limits.cost_usd and spent + cost > limits.cost_usd:
            raise LimitReached(
                f"The next call could exceed the budget of {limits.cost_usd:g} USD; {spent:.4f} USD are spent."
            )

    def room_for(self, characters: int, *, model: str, max_tokens: int) -> bool:
        """Whether a call that is not essential fits."""
        try:
            self.reserve(characters, model=model, max_tokens=max_tokens)
        except (LimitReached, UnknownPrice):
            return False
        return True

    def charge(self, model: str, usage: ApiUsage) -> Usage:
        """Count a call that was made; returns what it used."""
        counted = Usage(
            usage.input_tokens,
            usage.output_tokens,
            usage.cache_read_input_tokens or 0,
            usage.cache_creation_input_tokens or 0,
        )
        counted = counted._replace(cost_usd=price(self.settings, model, counted))
        self.used = self.used.plus(counted)
        return counted

    def seconds_left(self) -> float:
        """Working time that is left; infinite without a limit."""
        if not self.limits.wall_clock_s:
            return float("inf")
        return self.limits.wall_clock_s - (clock.monotonic() - self._started)

"""What a model call cost."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Usage"]


class Usage(NamedTuple):
    """Tokens (counts) and money (USD) of one or more model calls.

    ``cost_usd`` is None when the price of a model is not known: unknown is not zero.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = 0.0

    @property
    def tokens(self) -> int:
        """All tokens that went in and out."""
        return self.input_tokens + self.output_tokens + self.cache_read_tokens + self.cache_write_tokens

    def plus(self, other: Usage) -> Usage:
        """The sum; its cost is unknown when one of the costs is."""
        known = self.cost_usd is not None and other.cost_usd is not None
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cache_read_tokens + other.cache_read_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            (self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
        )

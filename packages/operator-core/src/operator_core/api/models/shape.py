"""What all shapes of the API have in common, and those that several of them use."""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, ConfigDict

__all__ = ["Page", "Shape", "Spent"]

T = TypeVar("T")


class Shape(BaseModel):
    """A frozen value whose fields are described by what stands under them."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Page(Shape, Generic[T]):
    """A part of a list."""

    items: list[T]
    next: str | None = None
    """Cursor of the next part; None: this is the last one."""


class Spent(Shape):
    """Tokens (counts) and money (USD) of model calls."""

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float = 0.0
    """Of the calls whose price is known."""
    unpriced: int = 0
    """Calls whose price is not known; with any, the cost is at least ``cost_usd``."""

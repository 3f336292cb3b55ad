"""Whole cents of an amount."""

from __future__ import annotations

from decimal import Decimal

__all__ = ["cents"]


def cents(amount: str) -> int:
    """Whole cents; what is smaller than a cent is cut off."""
    return int(Decimal(amount) * 100)

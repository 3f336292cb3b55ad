"""What it costs to send an order, in cents."""

from __future__ import annotations

__all__ = ["abroad", "domestic"]

ZONES = {"AT": 1, "CH": 1, "FR": 1, "NO": 2, "US": 3}


def by_weight(kilograms: float) -> int:
    """Standard shipping within the country.

    Raises:
        ValueError: A parcel cannot weigh this.
    """
    if kilograms <= 0:
        raise ValueError("a parcel weighs something")
    if kilograms > 30:
        raise ValueError("a parcel weighs at most 30 kg")
    if kilograms <= 2:
        return 390
    if kilograms <= 10:
        return 690
    return 690 + round((kilograms - 10) * 45)


def with_express(price: int) -> int:
    """A standard price with the surcharge for express."""
    return price + 500 + price // 2


def domestic(kilograms: float, cents: int, express: bool = False) -> int:
    """Within the country.

    Args:
        kilograms: Weight of the parcel, at most 30.
        cents: Value of the order; from 50.00 on, standard shipping costs nothing.
        express: By tomorrow.

    Raises:
        ValueError: It cannot be sent.
    """
    price = by_weight(kilograms)
    if express:
        return with_express(price)
    return 0 if cents >= 5_000 else price


def abroad(kilograms: float, cents: int, express: bool = False, country: str = "FR") -> int:
    """To another country.

    Args:
        kilograms: Weight of the parcel, at most 30.
        cents: Value of the order; from 150.00 on, standard shipping to zone 1 costs nothing.
        express: As fast as it goes; not to zone 3.
        country: Two letters.

    Raises:
        ValueError: It cannot be sent.
    """
    if country not in ZONES:
        raise ValueError(f"nothing is sent to {country}")
    zone = ZONES[country]
    price = by_weight(kilograms) * (zone + 1)
    if express and zone == 3:
        raise ValueError(f"there is no express to {country}")
    if express:
        return with_express(price)
    return 0 if cents >= 15_000 and zone == 1 else price

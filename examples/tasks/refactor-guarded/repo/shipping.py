"""What it costs to send an order, in cents."""

from __future__ import annotations

__all__ = ["abroad", "domestic"]

ZONES = {"AT": 1, "CH": 1, "FR": 1, "NO": 2, "US": 3}


def domestic(kilograms: float, cents: int, express: bool = False) -> int:
    """Within the country.

    Args:
        kilograms: Weight of the parcel, at most 30.
        cents: Value of the order; from 50.00 on, standard shipping costs nothing.
        express: By tomorrow.

    Raises:
        ValueError: It cannot be sent.
    """
    if kilograms <= 0:
        raise ValueError("a parcel weighs something")
    if kilograms > 30:
        raise ValueError("a parcel weighs at most 30 kg")
    if kilograms <= 2:
        price = 390
    elif kilograms <= 10:
        price = 690
    else:
        price = 690 + round((kilograms - 10) * 45)
    if cents >= 5_000 and not express:
        price = 0
    if express:
        price = price + 500 + price // 2
    return price


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
    if kilograms <= 0:
        raise ValueError("a parcel weighs something")
    if kilograms > 30:
        raise ValueError("a parcel weighs at most 30 kg")
    if kilograms <= 2:
        price = 390
    elif kilograms <= 10:
        price = 690
    else:
        price = 690 + round((kilograms - 10) * 45)
    price = price * (zone + 1)
    if cents >= 15_000 and zone == 1 and not express:
        price = 0
    if express and zone == 3:
        raise ValueError(f"there is no express to {country}")
    if express:
        price = price + 500 + price // 2
    return price

"""Bills and who pays them."""

from bills.split import split

__all__ = ["split"]

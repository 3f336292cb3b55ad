"""How often somebody may try to sign in."""

from __future__ import annotations

import ipaddress
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from operator_core import clock

__all__ = ["LoginLimit"]

_PER_ADDRESS = 10
_TOGETHER = 200
_WINDOW_S = 300.0
_ADDRESSES = 10_000


class LoginLimit:
    """Counts failed sign-ins, by address and together; those that succeed cost nothing.

    Args:
        per_address: So many may fail within ``window_s`` seconds, those included that are being looked at ...
        together: ... or so many from anywhere: then those wait that have failed too. Whoever has not may still try, so
            that nobody who guesses from many addresses keeps everybody out.
        window_s: See above.
        time: The clock.
    """

    def __init__(
        self,
        per_address: int = _PER_ADDRESS,
        together: int = _TOGETHER,
        window_s: float = _WINDOW_S,
        time: clock.Clock | None = None,
    ) -> None:
        self._per_address = per_address
        self._together = together
        self._window_s = window_s
        self._time = time or clock.Clock()
        self._all: deque[float] = deque()
        self._by: OrderedDict[str, deque[float]] = OrderedDict()
        self._trying: Counter[str] = Counter()

    def wait_s(self, address: str) -> int:
        """Seconds until the next try is allowed; 0: now."""
        now = self._time.monotonic()
        network = _network(address)
        mine, under_way = self._by.get(network, ()), self._trying[network]
        recent = sum(moment + self._window_s > now for moment in mine)
        # Those that are being looked at may fail, too: else any number that comes at once gets through.
        soon = 1 if under_way and recent + under_way >= self._per_address else 0
        if not recent:
            return soon
        left = max(self._left(mine, self._per_address, now), self._left(self._all, self._together, now))
        return max(soon, math.ceil(left))

    @contextmanager
    def trying(self, address: str) -> Iterator[None]:
        """A try is being looked at."""
        network = _network(address)
        self._trying[network] += 1
        try:
            yield
        finally:
            self._trying[network] -= 1
            if not self._trying[network]:
                del self._trying[network]

    def failed(self, address: str) -> None:
        """A try failed."""
        now, network = self._time.monotonic(), _network(address)
        mine = self._by.setdefault(network, deque(maxlen=self._per_address))
        self._by.move_to_end(network)
        mine.append(now)
        self._all.append(now)
        while len(self._all) > self._together:
            self._all.popleft()
        while len(self._by) > _ADDRESSES:
            self._by.popitem(last=False)

    def _left(self, tries: Sequence[float], most: int, now: float) -> float:
        if len(tries) < most:
            return 0.0
        return max(0.0, tries[-most] + self._window_s - now)


def _network(address: str) -> str:
    """What one person has: an IPv4 address, or a /64 of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address[:64]
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)

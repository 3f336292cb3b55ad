"""Bad days of the service, on order: throttling, outages, slow answers, lost answers, tokens that are refused."""

from __future__ import annotations

import random
import re
import threading
from dataclasses import dataclass, field
from typing import Literal

from operator_dataverse.double.problems import Problem

__all__ = ["Fault", "Faults", "Kind"]

Kind = Literal["throttle", "busy", "gateway", "unauthorized", "forbidden", "drop_request", "drop_answer", "delay"]

_LIMITS = (
    ("0x80072322", "Number of requests exceeded the limit of 6000 over the time window of 300 seconds."),
    (
        "0x80072321",
        "Combined execution time of incoming requests exceeded limit of 1,200,000 milliseconds over time window of "
        "300 seconds. Decrease number of concurrent requests or reduce the duration of requests and try again later.",
    ),
    ("0x80072326", "Number of concurrent requests exceeded the limit of 52."),
)


@dataclass
class Fault:
    """What goes wrong, and when.

    Attributes:
        kind: ``throttle`` 429, ``busy`` 503, ``gateway`` 502, ``unauthorized`` 401, ``forbidden`` 403; ``drop_request``
            closes the connection before the effect, ``drop_answer`` after it; ``delay`` answers later.
        rate: Share of the requests that it meets.
        times: How often at most; None: always.
        method: Only these requests.
        path: A regular expression that is sought in the path with its query.
        retry_after: Value of that header, seconds or a date; None: none is sent.
        seconds: Of a delay.
        hits: How often it happened.
    """

    kind: Kind
    rate: float = 1.0
    times: int | None = None
    method: str | None = None
    path: str = ""
    retry_after: str | None = "0"
    seconds: float = 0.0
    hits: int = field(default=0, compare=False)

    def problem(self, chance: random.Random) -> Problem | None:
        """The answer of this fault; None when it is another kind of disturbance."""
        headers = {} if self.retry_after is None else {"Retry-After": self.retry_after}
        match self.kind:
            case "throttle":
                code, message = chance.choice(_LIMITS)
                headers |= {
                    "x-ms-ratelimit-burst-remaining-xrm-requests": "0",
                    "x-ms-ratelimit-time-remaining-xrm-requests": "0",
                }
                return Problem(429, code, message, headers)
            case "busy":
                return Problem(503, "0x80072ee2", "The service is temporarily unavailable.", headers)
            case "gateway":
                return Problem(502, "", "Bad Gateway")
            case "unauthorized":
                return Problem(401, "", "", {"WWW-Authenticate": "Bearer"})
            case "forbidden":
                return Problem(403, "0x80040220", "Principal user is missing a privilege.")
            case _:
                return None


class Faults:
    """The faults in force. Safe to change from another thread than the one that serves.

    Args:
        seed: Of the random choices, so that a storm can be repeated.
    """

    def __init__(self, seed: int = 0) -> None:
        self._faults: list[Fault] = []
        self._chance = random.Random(seed)
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        """Put a fault in force; it comes after those that already are."""
        with self._lock:
            self._faults.append(fault)
        return fault

    def storm(self, rate: float = 0.3, *, retry_after: str = "0", path: str = "") -> None:
        """So many of all requests are throttled or find the service busy."""
        self.add(Fault("throttle", rate / 2, retry_after=retry_after, path=path))
        self.add(Fault("busy", rate / 2 / (1 - rate / 2), retry_after=retry_after, path=path))

    def drop_answer(self, times: int | None = 1, method: str | None = None, path: str = "", rate: float = 1.0) -> Fault:
        """The request takes effect, and its answer is lost."""
        return self.add(Fault("drop_answer", rate, times, method, path))

    def clear(self) -> None:
        """The service is well again."""
        with self._lock:
            self._faults.clear()

    def meet(self, method: str, path: str) -> list[Fault]:
        """The faults that this request meets: any delays, and at most one other."""
        met: list[Fault] = []
        with self._lock:
            for fault in self._faults:
                if fault.kind != "delay" and any(other.kind != "delay" for other in met):
                    continue
                if fault.times is not None and fault.hits >= fault.times:
                    continue
                if fault.method not in (None, method) or not re.search(fault.path, path):
                    continue
                if fault.rate < 1 and self._chance.random() >= fault.rate:
                    continue
                fault.hits += 1
                met.append(fault)
        return met

    def problem(self, fault: Fault) -> Problem | None:
        """The answer of this fault; None when it is another kind of disturbance."""
        with self._lock:
            return fault.problem(self._chance)

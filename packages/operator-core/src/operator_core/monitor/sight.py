"""One look at a subject through its observer and its checker, which may raise, hang or answer nonsense."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from operator_core.errors import MonitorError
from operator_core.model.ticket import InvariantViolation, make_violation_key
from operator_core.monitor.configured import ConfiguredChecker
from operator_core.monitor.guard import in_thread
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol
from operator_core.monitor.snapshot import cut_out

__all__ = ["Looker", "Sight", "Stopped"]

T = TypeVar("T")

_ABANDON_S = 6.0
"""How long something that was cancelled is waited for; killing a command takes up to five seconds."""


class Stopped(Exception):
    """The monitor is to end; what was being looked at no longer matters."""


@dataclass(frozen=True)
class Sight:
    """What one look said.

    Attributes:
        violations: By key; their times are UTC-aware and not in the future.
        unknown: Keys that could not be looked at, each with the reason.
        snapshots: By key of a violation: the part of the observation that shows it.
        values: By key: what was seen, as text.
        failure: Why nothing at all could be seen; then the others are empty.
    """

    violations: dict[str, InvariantViolation] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    snapshots: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)
    failure: str | None = None


class Looker:
    """Looks through one subject and one checker, each call with a deadline.

    Args:
        deadline_s: Real seconds that ``observe()``, and then ``check()``, may take.
    """

    def __init__(
        self, subject: SubjectProtocol, checker: InvariantCheckerProtocol, name: str, deadline_s: float
    ) -> None:
        self._subject = subject
        self._checker = checker
        self._name = name
        self._deadline_s = deadline_s
        self._running: asyncio.Future[Any] | None = None

    async def look(self, now: Callable[[], datetime], stop: asyncio.Event | None) -> Sight:
        """Look once; whatever goes wrong becomes ``failure``.

        Raises:
            Stopped: ``stop`` was set meanwhile.
        """
        try:
            observation = await self._call("observe()", lambda: asyncio.ensure_future(self._subject.observe()), stop)
            if not isinstance(observation, dict):
                raise MonitorError(f"observe() gave a {type(observation).__name__} instead of a dict")
            check = functools.partial(self._read, observation, now)
            if isinstance(self._checker, ConfiguredChecker):
                return check()
            return await self._call("check()", lambda: in_thread(check, f"checker-{self._name}"), stop)
        except (Stopped, asyncio.CancelledError):
            raise
        except Exception as error:
            text = str(error) if isinstance(error, MonitorError) else f"{type(error).__name__}: {error}"
            return Sight(failure=" ".join(text.split())[:500])

    async def restore(self, first_seen: Mapping[str, datetime]) -> None:
        """Tell a checker that wants to know when the running episodes began.

        Raises:
            MonitorError: It did not take it.
        """
        restore = getattr(self._checker, "restore", None)
        if callable(restore):
            try:
                await self._call("restore()", lambda: in_thread(lambda: restore(first_seen), self._name), None)
            except Exception as error:
                raise MonitorError(f"restore() failed ({type(error).__name__}: {error})") from error

    async def _call(self, what: str, start: Callable[[], asyncio.Future[T]], stop: asyncio.Event | None) -> T:
        if self._running is not None and not self._running.done():
            raise MonitorError("the last look has not come back yet")
        future = self._running = start()
        stopped = asyncio.ensure_future(stop.wait()) if stop is not None else None
        try:
            waiting: set[asyncio.Future[Any]] = {future} if stopped is None else {future, stopped}
            await asyncio.wait(waiting, timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            future.cancel()
            raise
        finally:
            if stopped is not None:
                stopped.cancel()
        if future.done():
            if future.cancelled():
                raise MonitorError(f"{what} was cancelled")
            return future.result()
        if isinstance(future, asyncio.Task):
            # A thread cannot be ended, so its future stays and says that it is still at work.
            future.cancel()
            await asyncio.wait({future}, timeout=_ABANDON_S)
        future.add_done_callback(_forget)
        if stop is not None and stop.is_set():
            raise Stopped
        raise MonitorError(f"{what} did not come back within {self._deadline_s:g} s")

    def _read(self, observation: dict[str, Any], now: Callable[[], datetime]) -> Sight:
        found = self._checker.check(observation)
        if not _are_violations(found):
            raise MonitorError(f"check() gave {_name(found)} instead of a list of InvariantViolation")
        violations: dict[str, InvariantViolation] = {}
        for violation in found:
            violations.setdefault(make_violation_key(violation), _in_utc(violation, now()))
        ask = getattr(self._checker, "unknown", None)
        unknown = ask(observation) if callable(ask) else {}
        if not isinstance(unknown, Mapping):
            raise MonitorError(f"unknown() gave {_name(unknown)} instead of a mapping of keys to reasons")
        if isinstance(self._checker, ConfiguredChecker):
            cut = {k: self._checker.snapshot(observation, v) for k, v in violations.items()}
            values = self._checker.values(observation)
        else:
            cut = {k: cut_out(observation, v.store_id) for k, v in violations.items()}
            values = {k: v.message for k, v in violations.items()}
        blind = {str(k): str(why) for k, why in unknown.items() if k not in violations}
        return Sight(violations, blind, cut, values)


def _in_utc(violation: InvariantViolation, now: datetime) -> InvariantViolation:
    # `datetime.now()` is what a plug-in without zones writes, and that is local time (D-17).
    first, last = (min(t.astimezone(UTC), now) for t in (violation.first_seen, violation.last_seen))
    return replace(violation, first_seen=min(first, last), last_seen=last)


def _are_violations(found: object) -> bool:
    return isinstance(found, list | tuple) and all(isinstance(v, InvariantViolation) for v in found)


def _name(value: object) -> str:
    return f"a {type(value).__name__}" if value is not None else "nothing"


def _forget(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()

"""The monitor's loop over one subject: look, remember, open and clear tickets, and never mistake blind for healthy."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from operator_core.clock import Clock, iso
from operator_core.config import MonitorSettings
from operator_core.db.samples import drop_forgotten
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, MonitorError, OperatorError, StoreError
from operator_core.model.invariant import CheckSpec, Invariant, Subject
from operator_core.model.monitor import Light, MonitorState
from operator_core.model.ticket import InvariantViolation, Ticket, TicketStatus
from operator_core.monitor.configured import ConfiguredSubject
from operator_core.monitor.guard import ThreadSubject
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol
from operator_core.monitor.report import CycleReport
from operator_core.monitor.sight import Looker, Sight, Stopped
from operator_core.monitor.tracker import advance, is_due, is_flapping

__all__ = ["BLIND", "MonitorLoop", "blind_key"]

BLIND = "monitor-blind"
"""Name of the invariant "the monitor can look"."""

_HANG_S = 60.0
_FIRST_PAUSE_S = 1.0
_log = logging.getLogger(__name__)


def blind_key(key: str) -> str:
    """Violation key of the incident that ``key`` (or the subject of that name) cannot be looked at."""
    return f"{BLIND}:{key}"


class MonitorLoop:
    """Watches one subject.

    Args:
        subject: What to observe.
        checker: What has to hold of an observation.
        tickets: An open store.
        interval_s: Seconds of ``clock`` from the beginning of one cycle to that of the next.
        settings: Blindness, flapping and clearing.
        spec: The configured subject: grace periods and checks of its invariants. None: violations open tickets at once,
            and these carry no check.
        clock: Time of day and pauses; deadlines are real seconds.
        subject_context: For the agent (default: that of ``spec``).
        on_cycle: Called with the report of each cycle; a failure that stays the same is reported once.
        wake: When it is set the next cycle begins at once; it is cleared then.
        deadline_s: Real seconds that ``observe()``, and then ``check()``, may take (default: the interval, but at least
            60; with built-in probes what these may take together).
    """

    def __init__(
        self,
        subject: SubjectProtocol,
        checker: InvariantCheckerProtocol,
        tickets: TicketDB,
        *,
        interval_s: float = 30.0,
        settings: MonitorSettings | None = None,
        spec: Subject | None = None,
        clock: Clock | None = None,
        subject_context: str | None = None,
        on_cycle: Callable[[CycleReport], None] | None = None,
        wake: asyncio.Event | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.name = spec.name if spec else type(subject).__name__
        self._subject = subject
        self._tickets = tickets
        self._interval_s = interval_s
        self._settings = settings or MonitorSettings()
        self._spec = spec
        self._clock = clock or Clock()
        self._context = subject_context or (spec.context if spec else None) or None
        self._on_cycle = on_cycle
        self._wake = wake
        configured = subject if isinstance(subject, ConfiguredSubject) else None
        deadline = deadline_s or (configured.deadline_s if configured else max(interval_s, _HANG_S))
        self._looker = Looker(subject, checker, self.name, deadline)
        self._invariants = {i.name: i for i in spec.invariant} if spec else {}
        # Exactly these are looked at in every cycle; a plug-in's are known only as it reports them.
        self._fixed = frozenset(i.name for i in configured.invariants) if configured else None
        self._stored: dict[str, MonitorState] | None = None
        self._states: dict[str, MonitorState] = {}
        self._green_looks: dict[str, deque[datetime]] = {}
        self._restored = False
        self._stop: asyncio.Event | None = None
        self._last_error: str | None = None

    # ---- running

    async def run(self, stop: asyncio.Event) -> None:
        """Run cycles until ``stop`` is set. What one cycle raises is reported, and the next one comes.

        A store that fails is tried again after 1 s, 2 s, 4 s, … up to the interval.

        Raises:
            ConfigError: Trying again would not help.
        """
        self._stop = stop
        pause = min(_FIRST_PAUSE_S, self._interval_s)
        try:
            while not stop.is_set():
                next_at = self._clock.monotonic() + self._interval_s
                try:
                    await self.cycle()
                    pause = min(_FIRST_PAUSE_S, self._interval_s)
                except Stopped:
                    return
                except ConfigError:
                    raise
                except Exception as error:
                    self._report_error(error)
                    if isinstance(error, StoreError):
                        next_at = self._clock.monotonic() + pause
                        pause = min(2 * pause, self._interval_s)
                await self._pause(stop, next_at - self._clock.monotonic())
        finally:
            self._stop = None
            self.close()

    async def cycle(self) -> CycleReport:
        """Look once and write down what that means.

        Raises:
            StoreError: Nothing, or not everything, could be written; what was seen is remembered for the next cycle.
        """
        at, began = self._clock.now(), self._clock.monotonic()
        batch_key = f"batch-{iso(at)}"
        await self._load()
        sight = await self._see()
        now = self._clock.now()
        self._remember(sight, at, now)
        # Always in one order, so that two monitors never wait for each other's rows.
        await self._tickets.save_monitor_states([self._states[key] for key in sorted(self._states)])
        due, pending = self._due(sight, now)
        written = [await self._write(key, sight, batch_key, now) for key in due]
        blind = [await self._write_blind(key, sight, batch_key, now) for key in self._blind(now)]
        cleared = await self._clear(now)
        report = CycleReport(
            subject=self.name,
            batch_key=batch_key,
            at=at,
            violations=tuple(due),
            pending=tuple(pending),
            unknown=self._unknown(sight),
            tickets=(*written, *blind),
            cleared=cleared,
            duration_s=self._clock.monotonic() - began,
        )
        self._last_error = None
        self._emit(report)
        return report

    def close(self) -> None:
        """End the thread of a plug-in; another cycle would start one again."""
        if isinstance(self._subject, ThreadSubject):
            self._subject.close()

    async def _pause(self, stop: asyncio.Event, seconds: float) -> None:
        if self._wake is None:
            await self._clock.wait(stop, seconds)
            return
        waits = {asyncio.ensure_future(event.wait()) for event in (stop, self._wake)}
        try:
            real = max(0.0, seconds) / self._clock.rate
            await asyncio.wait(waits, timeout=real, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._wake.clear()

    def _report_error(self, error: Exception) -> None:
        text = str(error) if isinstance(error, OperatorError) else f"{type(error).__name__}: {error}".splitlines()[0]
        if text == self._last_error:
            return
        self._last_error = text
        if not isinstance(error, OperatorError):
            _log.error("the monitor of %s failed in a way nobody foresaw", self.name, exc_info=error)
        at = self._clock.now()
        self._emit(CycleReport(subject=self.name, batch_key=f"batch-{iso(at)}", at=at, error=text))

    def _emit(self, report: CycleReport) -> None:
        if self._on_cycle is None:
            return
        try:
            self._on_cycle(report)
        except Exception:
            # Watching goes on, also when nobody can be told on this way.
            _log.exception("the report of a cycle of %s could not be shown", self.name)

    # ---- looking

    async def _see(self) -> Sight:
        if not self._restored:
            assert self._stored is not None
            began = {k: s.first_seen for k, s in self._stored.items() if s.first_seen and s.invariant_name != BLIND}
            try:
                await self._looker.restore(began)
            except MonitorError as error:
                return Sight(failure=str(error))
            self._restored = True
        return await self._looker.look(self._clock.now, self._stop)

    # ---- remembering

    async def _load(self) -> None:
        """Once: what this loop, or another one before it, knew of this subject's keys."""
        if self._stored is not None:
            return
        await drop_forgotten(self._tickets.database)
        stored = await self._tickets.monitor_states()
        mine = {blind_key(self.name)} if self._fixed is None else set()
        names = self._fixed if self._fixed is not None else {n for n, i in self._invariants.items() if i.probe is None}
        mine |= {key for key, state in stored.items() if state.invariant_name in names}
        mine |= {blind_key(key) for key in mine | set(names)}
        if self._fixed is None and self._spec is not None:
            for status in (TicketStatus.OPEN, TicketStatus.QUEUED):
                mine |= {t.violation_key for t in await self._tickets.list_tickets(status) if self._opened(t)}
        for key in mine:
            if key in stored:
                self._states[key] = stored[key]
        self._stored = stored

    def _opened(self, ticket: Ticket) -> bool:
        """Whether a ticket was opened by a loop over this plug-in, perhaps in another process."""
        probed = {n for n, i in self._invariants.items() if i.probe is not None}
        if ticket.invariant_name == BLIND:
            snapshot = ticket.metric_snapshot or {}
            return snapshot.get("subject") == self.name and snapshot.get("invariant") not in probed
        spec = ticket.check_spec or {}
        return (spec.get("subject") or {}).get("name") == self.name and ticket.invariant_name not in probed

    def _remember(self, sight: Sight, at: datetime, now: datetime) -> None:
        """Move every light of this subject on by one look, which took from ``at`` to ``now``."""
        own = set(self._fixed or ()) | {key for key, s in self._states.items() if s.invariant_name != BLIND}
        for key in own | set(sight.violations) | set(sight.unknown):
            violation = sight.violations.get(key)
            light: Light = "green"
            if violation is not None:
                light = "red"
            elif sight.failure is not None or key in sight.unknown:
                light = "unknown"
            before = self._state(key)
            name = violation.invariant_name if violation else before.invariant_name if before else key.partition(":")[0]
            self._advance(key, name, light, now, sight.values.get(key), violation.first_seen if violation else None)
        # While nothing can be seen, nothing is known of the single invariants' visibility either.
        blind = {blind_key(self.name): sight.failure} if sight.failure is not None else {}
        if sight.failure is None:
            blind = {blind_key(key): why for key, why in sight.unknown.items()}
            for key in [k for k, s in self._states.items() if s.invariant_name == BLIND and k not in blind]:
                self._advance(key, BLIND, "green", now, None, None)
        for key, why in blind.items():
            self._advance(key, BLIND, "red", now, why, None)
        for key, state in self._states.items():
            looks = self._green_looks.setdefault(key, deque(maxlen=self._settings.clear_after))
            if state.light != "green":
                looks.clear()
            elif state.updated_at == now:
                looks.append(at)

    def _advance(
        self, key: str, name: str, light: Light, now: datetime, value: str | None, began: datetime | None
    ) -> None:
        before = self._state(key)
        window = self._settings.flap_window_s
        short = value if value is None or len(value) <= 500 else f"{value[:499]}…"
        self._states[key] = advance(before, key, name, light, now, window_s=window, value=short, began=began)

    def _state(self, key: str) -> MonitorState | None:
        return self._states.get(key) or (self._stored or {}).get(key)

    def _flapping(self, key: str, now: datetime) -> bool:
        limit, window = self._settings.flap_changes, self._settings.flap_window_s
        return is_flapping(self._states[key], now, changes=limit, window_s=window)

    # ---- writing

    def _due(self, sight: Sight, now: datetime) -> tuple[list[str], list[str]]:
        due: list[str] = []
        pending: list[str] = []
        for key, violation in sorted(sight.violations.items()):
            invariant = self._invariants.get(violation.invariant_name)
            grace = invariant.grace_s if invariant else 0.0
            (due if is_due(self._states[key], now, grace) else pending).append(key)
        return due, pending

    async def _write(self, key: str, sight: Sight, batch_key: str, now: datetime) -> Ticket:
        violation, state = sight.violations[key], self._states[key]
        return await self._tickets.create_or_update_ticket(
            replace(violation, first_seen=state.first_seen or violation.first_seen),
            sight.snapshots.get(key),
            batch_key,
            self._context,
            check=self._check(violation),
            flapping=self._flapping(key, now),
        )

    def _check(self, violation: InvariantViolation) -> CheckSpec | None:
        if self._spec is None:
            return None
        invariant = self._invariants.get(violation.invariant_name)
        if invariant is None:
            severity = violation.severity if violation.severity in ("critical", "warning", "info") else "warning"
            # One that only the plug-in knows; its name is whatever the plug-in's author chose.
            invariant = Invariant.model_construct(name=violation.invariant_name, severity=severity)
        return CheckSpec.of(self._spec, invariant)

    def _blind(self, now: datetime) -> list[str]:
        """Keys of the invariants that could not be looked at for too long."""
        grace = self._settings.blind_after_s
        return sorted(k for k, s in self._states.items() if s.invariant_name == BLIND and is_due(s, now, grace))

    async def _write_blind(self, key: str, sight: Sight, batch_key: str, now: datetime) -> Ticket:
        state = self._states[key]
        assert state.first_seen is not None
        what = key.removeprefix(f"{BLIND}:")
        everything = sight.failure is not None and what == self.name
        thing = f"anything of the subject {self.name!r}" if everything else f"{what!r} of the subject {self.name!r}"
        message = (
            f"The monitor cannot look at {thing} since {iso(state.first_seen)}: {state.last_value}. "
            "Nothing is known about it, neither that it holds nor that it does not."
        )
        return await self._tickets.create_or_update_ticket(
            InvariantViolation(BLIND, message, state.first_seen, state.updated_at, store_id=what, severity="critical"),
            {"subject": self.name, "invariant": what, "reason": state.last_value, "since": iso(state.first_seen)},
            batch_key,
            self._context,
            check=None,
            flapping=self._flapping(key, now),
        )

    async def _clear(self, now: datetime) -> int:
        """Close what has been green in enough looks, none of which began before any monitor last saw it red."""
        since = {
            key: looks[0]
            for key, looks in self._green_looks.items()
            if len(looks) == self._settings.clear_after and not self._flapping(key, now)
        }
        if not since:
            return 0
        candidates = set()
        for status in (TicketStatus.OPEN, TicketStatus.QUEUED):
            for ticket in await self._tickets.list_tickets(status):
                began = since.get(ticket.violation_key)
                # Another monitor may have seen it break after our look began: then ours is too old to speak.
                if began is not None and ticket.last_seen_at < began:
                    candidates.add(ticket.violation_key)
        return await self._tickets.auto_resolve_cleared(set(), only_keys=candidates) if candidates else 0

    def _unknown(self, sight: Sight) -> dict[str, str]:
        return {self.name: sight.failure} if sight.failure is not None else dict(sorted(sight.unknown.items()))

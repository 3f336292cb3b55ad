"""Numbers about the server and the work, as Prometheus reads them."""

from __future__ import annotations

from operator_core.db.numbers import Numbers
from operator_core.model.ticket import TicketStatus

__all__ = ["Metrics"]

_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class Metrics:
    """The numbers of one app, in a registry of its own."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self._registry = registry = CollectorRegistry()
        self._requests = Histogram(
            "operator_http_request_duration_seconds",
            "Time until an answer was complete; of streams: how long they were.",
            ["method", "route", "status"],
            registry=registry,
            buckets=_BUCKETS,
        )
        self._logins = Counter("operator_logins_total", "Sign-ins, by how they ended.", ["result"], registry=registry)
        self.streams = Gauge("operator_stream_clients", "Clients that listen to a live stream.", registry=registry)
        self._tickets = Gauge("operator_tickets", "Tickets by state.", ["state"], registry=registry)
        self._sessions = Gauge("operator_sessions_running", "Sessions that have not ended.", registry=registry)
        self._workers = Gauge("operator_workers_alive", "Workers with a live lease.", registry=registry)
        self._outbox = Gauge("operator_outbox_waiting", "Letters that have not gone out.", registry=registry)
        self._approvals = Gauge("operator_approvals_pending", "Calls that wait for a person.", registry=registry)

    def answered(self, method: str, route: str | None, status: int | None, seconds: float) -> None:
        """A request is over.

        Args:
            route: The path of its route with placeholders; None: it found none, and its path is not told.
            status: None: nothing was answered, because the client was gone.
        """
        self._requests.labels(
            method if method in _METHODS else "other", route or "none", "none" if status is None else str(status)
        ).observe(seconds)

    def signed_in(self, result: str) -> None:
        """Somebody tried to sign in: ``ok``, ``refused`` or ``limited``."""
        self._logins.labels(result).inc()

    def text(self, numbers: Numbers) -> bytes:
        """Everything, with these numbers of the store."""
        from prometheus_client import generate_latest

        for status in TicketStatus:
            self._tickets.labels(status.value).set(numbers.tickets.get(status.value, 0))
        self._sessions.set(numbers.sessions)
        self._workers.set(numbers.workers)
        self._outbox.set(numbers.outbox)
        self._approvals.set(numbers.approvals)
        return generate_latest(self._registry)

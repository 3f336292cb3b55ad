"""The shapes of the API. Times are UTC; what agents and alerts wrote is text that nobody may trust."""

from __future__ import annotations

from operator_core.api.models.platform import AuditView, Board, CostRow, InvariantView, Mark, Sample, WorkerView
from operator_core.api.models.sessions import EntryPage, EntryView, LiveOutput, SessionDetail, SessionView, Tick
from operator_core.api.models.shape import Page, Spent
from operator_core.api.models.tickets import (
    ApprovalView,
    Before,
    HistoryEvent,
    Needs,
    Observed,
    ReportView,
    SecondLookView,
    TicketBrief,
    TicketDetail,
    TicketView,
    VerdictView,
)

__all__ = [
    "ApprovalView",
    "AuditView",
    "Before",
    "Board",
    "CostRow",
    "EntryPage",
    "EntryView",
    "HistoryEvent",
    "InvariantView",
    "LiveOutput",
    "Mark",
    "Needs",
    "Observed",
    "Page",
    "ReportView",
    "Sample",
    "SecondLookView",
    "SessionDetail",
    "SessionView",
    "Spent",
    "Tick",
    "TicketBrief",
    "TicketDetail",
    "TicketView",
    "VerdictView",
    "WorkerView",
]

"""Everything that can be configured, as one frozen tree."""

from __future__ import annotations

from typing import TypeVar

from pydantic import PrivateAttr, model_validator

from operator_core.config.extension import Extension
from operator_core.config.face import ApprovalSettings, NotifySettings, WebSettings
from operator_core.config.model import ContextSettings, LimitSettings, ModelSettings
from operator_core.config.monitor import MonitorSettings
from operator_core.config.sandbox import Credential, SandboxSettings
from operator_core.config.section import Section
from operator_core.config.work import ClaudeCodeSettings, ExploreSettings, IncidentSettings, TaskSettings
from operator_core.config.worker import StoreSettings, WorkerSettings
from operator_core.model.intake import Intake
from operator_core.model.invariant import Subject
from operator_core.model.mcp import McpServer

__all__ = ["LISTS", "Settings"]

LISTS = ("credential", "intake", "mcp_server", "subject")
"""Sections that are lists of tables: no variable can name one of them."""

E = TypeVar("E", bound=Extension)


class Settings(Section):
    """Everything that can be configured."""

    store: StoreSettings = StoreSettings()
    model: ModelSettings = ModelSettings()
    limits: LimitSettings = LimitSettings()
    sandbox: SandboxSettings = SandboxSettings()
    worker: WorkerSettings = WorkerSettings()
    tasks: TaskSettings = TaskSettings()
    incidents: IncidentSettings = IncidentSettings()
    claude_code: ClaudeCodeSettings = ClaudeCodeSettings()
    context: ContextSettings = ContextSettings()
    explore: ExploreSettings = ExploreSettings()
    monitor: MonitorSettings = MonitorSettings()
    web: WebSettings = WebSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    notify: NotifySettings = NotifySettings()
    intake: tuple[Intake, ...] = ()
    """Doors for alerts and other webhooks."""
    mcp_server: tuple[McpServer, ...] = ()
    """MCP servers whose tools agents may use."""
    credential: tuple[Credential, ...] = ()
    """Secrets that agents may use without seeing them."""
    subject: tuple[Subject, ...] = ()
    """Systems under watch."""
    _extensions: dict[str, Extension] = PrivateAttr(default_factory=dict)

    def extension(self, section: str, model: type[E]) -> E:
        """The section that another package brings; its defaults when these settings were not loaded from anywhere."""
        found = self._extensions.get(section)
        return found if isinstance(found, model) else model()

    def extended(self, section: str, values: Extension) -> Settings:
        """These settings with another section of a package."""
        copy = self.model_copy()
        copy._extensions = {**self._extensions, section: values}
        return copy

    @model_validator(mode="after")
    def _names_are_unique(self) -> Settings:
        names = [i.name for s in self.subject for i in s.invariant]
        for kind, values in (
            ("subject", [s.name for s in self.subject]),
            ("invariant", names),
            ("credential", [c.name for c in self.credential]),
            ("intake", [i.name for i in self.intake]),
            ("MCP server", [m.name for m in self.mcp_server]),
            ("channel", [c.name for c in self.notify.channel]),
        ):
            double = {v for v in values if values.count(v) > 1}
            if double:
                raise ValueError(f"two {kind}s are called {sorted(double)[0]!r}; names must be unique")
        return self

"""``operator.toml`` and the environment, as one frozen tree of settings.

Order of precedence: command line, environment (``OPERATOR_<SECTION>__<KEY>``, e.g. ``OPERATOR_MODEL__BASE_URL``),
``operator.toml``, default. An unknown key is an error. ``operator config show`` prints each value with its origin.

Packages beside this one may bring sections of their own: an entry point of the group ``operator_core.settings``, whose
name is the section and whose object is its model. Such a model may name variables of its own in ``ENVIRONMENT``.
"""

from __future__ import annotations

from operator_core.config.extension import Extension, extension_models
from operator_core.config.face import ApprovalSettings, NotifySettings, WebSettings
from operator_core.config.loading import CONFIG_NAME, LoadedSettings, load_settings
from operator_core.config.model import ContextSettings, LimitSettings, ModelSettings, Price
from operator_core.config.monitor import MonitorSettings
from operator_core.config.sandbox import Credential, SandboxSettings
from operator_core.config.settings import LISTS, Settings
from operator_core.config.work import (
    BlockedPattern,
    ClaudeCodeSettings,
    ExploreSettings,
    IncidentSettings,
    TaskSettings,
)
from operator_core.config.worker import StoreSettings, WorkerSettings

__all__ = [
    "CONFIG_NAME",
    "LISTS",
    "ApprovalSettings",
    "BlockedPattern",
    "ClaudeCodeSettings",
    "ContextSettings",
    "Credential",
    "ExploreSettings",
    "Extension",
    "IncidentSettings",
    "LimitSettings",
    "LoadedSettings",
    "ModelSettings",
    "MonitorSettings",
    "NotifySettings",
    "Price",
    "SandboxSettings",
    "Settings",
    "StoreSettings",
    "TaskSettings",
    "WebSettings",
    "WorkerSettings",
    "extension_models",
    "load_settings",
]

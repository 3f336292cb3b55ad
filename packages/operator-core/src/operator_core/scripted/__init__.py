"""The scripted model server: an Anthropic-compatible HTTP server that is driven by small Python brains, not by a model.

Demo without a key, tests and benchmarks run the real SDK against it. It says that it is scripted wherever it shows: in
the response header ``x-operator-engine: scripted``, in its model list and in its banner.

Start it in the running event loop (:class:`ScriptedServer`), in a thread (``ScriptedServer(...).start_in_thread()``)
or as its own process (:class:`ScriptedProcess`, ``python -m operator_core.scripted``); the web stack is imported then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from operator_core.scripted.brain import (
    Answer,
    Brain,
    Call,
    Failure,
    FunctionBrain,
    Reply,
    Router,
    ScriptBrain,
    SummaryBrain,
)
from operator_core.scripted.turn import Result, Turn, unfence

if TYPE_CHECKING:
    from operator_core.scripted.log import LoggedRequest, RequestLog
    from operator_core.scripted.process import ScriptedProcess
    from operator_core.scripted.serve import ScriptedServer, ServerThread
    from operator_core.scripted.server import make_app

__all__ = [
    "Answer",
    "Brain",
    "Call",
    "Failure",
    "FunctionBrain",
    "LoggedRequest",
    "Reply",
    "RequestLog",
    "Result",
    "Router",
    "ScriptBrain",
    "ScriptedProcess",
    "ScriptedServer",
    "ServerThread",
    "SummaryBrain",
    "Turn",
    "make_app",
    "unfence",
]

_LAZY = {
    "LoggedRequest": "log",
    "RequestLog": "log",
    "ScriptedProcess": "process",
    "ScriptedServer": "serve",
    "ServerThread": "serve",
    "make_app": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)

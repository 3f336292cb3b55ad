"""The demo: a real small service that is broken for real, and what works on it when there is no model.

``service``, ``supervisor`` and ``checks`` are programs of their own that :func:`write_demo` copies out; they import
nothing of Operator. ``brains`` is loaded by the scripted model server.
"""

from operator_core.demo.files import DemoFiles, open_demo, write_demo
from operator_core.demo.running import RunningService, break_service, restart_service

__all__ = ["DemoFiles", "RunningService", "break_service", "open_demo", "restart_service", "write_demo"]

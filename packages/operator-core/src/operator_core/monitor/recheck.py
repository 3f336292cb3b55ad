"""Looks at one violation of a plug-in again: how the verifier sees an invariant that only a checker knows."""

from __future__ import annotations

import asyncio
from datetime import datetime

from operator_core.clock import monotonic, now
from operator_core.model.invariant import Subject
from operator_core.model.monitor import Light
from operator_core.model.ticket import make_violation_key
from operator_core.monitor.guard import ThreadSubject, in_thread
from operator_core.monitor.plugins import Plugin, load_plugin
from operator_core.probes import Observation
from operator_core.probes.observation import excerpt

__all__ = ["Recheck"]

_DEADLINE_S = 60.0


class Recheck:
    """Plug-ins of configured subjects, loaded when they are first needed and kept."""

    def __init__(self) -> None:
        self._plugins: dict[str, tuple[Plugin, ThreadSubject]] = {}

    async def look(self, spec: Subject, key: str, since: datetime) -> Observation:
        """Whether the checker still reports a violation.

        Args:
            spec: The subject, with ``plugin`` and ``checker``.
            key: The violation's key.
            since: Start of the episode; told to a checker with ``restore``, so that its own grace does not hide it.

        Returns:
            ``unknown`` when the plug-in raises or does not answer within a minute.

        Raises:
            ConfigError: The plug-in cannot be loaded.
        """
        if spec.name not in self._plugins:
            plugin = load_plugin(spec)
            self._plugins[spec.name] = plugin, ThreadSubject(plugin.subject, f"recheck-{spec.name}")
        plugin, subject = self._plugins[spec.name]
        at, began = now(), monotonic()
        light: Light
        try:
            async with asyncio.timeout(_DEADLINE_S):
                observation = await subject.observe()
                restore = getattr(plugin.checker, "restore", None)
                if restore is not None:
                    await in_thread(lambda: restore({key: since}), f"recheck-{spec.name}")
                found = await in_thread(lambda: plugin.checker.check(observation), f"recheck-{spec.name}")
        except Exception as error:
            light, detail, raw = "unknown", f"the plug-in could not look ({type(error).__name__}: {error})", ""
        else:
            still = next((v for v in found if make_violation_key(v) == key), None)
            light, detail = ("red", still.message) if still else ("green", "the checker reports no violation")
            raw = excerpt(str(observation))
        how = f"{spec.plugin} and {spec.checker or 'its check()'}"
        return Observation(light, light == "green", excerpt(detail), raw, at, monotonic() - began, how)

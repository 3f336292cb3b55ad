"""One look at one invariant, in a bounded time: the monitor and the verifier see through the same probes."""

from __future__ import annotations

from operator_core.model.json_path import lookup, parse_path
from operator_core.probes.look import look_at, observe
from operator_core.probes.observation import Observation

__all__ = ["Observation", "look_at", "lookup", "observe", "parse_path"]

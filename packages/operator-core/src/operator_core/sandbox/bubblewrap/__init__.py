"""The default backend on Linux: one bubblewrap for each command, inside of one session."""

from operator_core.sandbox.bubblewrap.backend import BubblewrapSandbox

__all__ = ["BubblewrapSandbox"]

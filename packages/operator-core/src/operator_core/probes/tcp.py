"""Looking whether a TCP port accepts connections."""

from __future__ import annotations

import asyncio
import shlex

from operator_core.model.invariant import TcpProbe
from operator_core.probes.http import is_ours
from operator_core.probes.observation import LookFailed, Seen

__all__ = ["look_tcp", "say_tcp"]


async def look_tcp(probe: TcpProbe) -> Seen:
    """One connection, closed at once; its value is True.

    Raises:
        LookFailed: The connection was not accepted.
    """
    try:
        transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, probe.host, probe.port)
    except (OSError, UnicodeError) as error:
        raise LookFailed(f"no connection ({error})", ours=is_ours(error) or isinstance(error, UnicodeError)) from None
    transport.abort()
    return Seen(True)


def say_tcp(probe: TcpProbe) -> str:
    """The ``nc`` line of the same connection."""
    return shlex.join(["nc", "-zv", "-w", str(max(1, round(probe.timeout_s))), probe.host, str(probe.port)])

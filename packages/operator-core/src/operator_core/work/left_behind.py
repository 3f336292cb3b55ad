"""What is left of `operator verify` when its process was killed: a session that says it runs.

It has no lease, so nobody would go on with it. Its process holds a lock on a file in the session's folder, which the
kernel lets go whatever the process dies of; whoever finds it free closes the session.
"""

from __future__ import annotations

import asyncio
import fcntl
import os

from operator_core.db.audit_log import AuditLogDB
from operator_core.work.state import StateFolder

__all__ = ["close_left_behind", "hold"]

_NAME = "judging"
_WHY = "judging again did not come to an end: its process was killed"


def hold(state: StateFolder, session_id: str) -> int:
    """Show that this process judges in that session; before others can see the session.

    Returns:
        A file descriptor; the lock goes with it.
    """
    held = os.open(state.session(session_id) / _NAME, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(held, fcntl.LOCK_EX)
    return held


async def close_left_behind(audit: AuditLogDB, state: StateFolder) -> list[str]:
    """Close the sessions of processes on this machine that are no more.

    Returns:
        Their ids.
    """
    closed = []
    for session_id in await asyncio.to_thread(_without_process, state):
        found = await audit.sessions(session_id=session_id)
        # Its process may have been about to lock it: a session that others can see is locked as long as it lives.
        if found and not await asyncio.to_thread(_is_free, state, session_id):
            continue
        if found and found[0].status == "running":
            await audit.complete_session(session_id, "failed", _WHY)
            closed.append(session_id)
        if found:
            await asyncio.to_thread(state.drop, session_id)
    return closed


def _without_process(state: StateFolder) -> list[str]:
    return [name for name in state.names() if _is_free(state, name)]


def _is_free(state: StateFolder, session_id: str) -> bool:
    try:
        found = os.open(state.root / "sessions" / session_id / _NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False  # another kind of session
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(found)
    return True

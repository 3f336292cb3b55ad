"""What people want of an explorer is in the store, and only as long as it is not over."""

from __future__ import annotations

import pytest

from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.explorers import Explorers, Wanted
from operator_core.db.integrity import verify
from operator_core.errors import NotFound, TransitionRefused
from operator_core.model.entry import Draft


async def test_what_is_wanted_of_an_explorer(store_url: str) -> None:
    async with Database.open(store_url) as database:
        audit, explorers = AuditLogDB(database), Explorers(database)
        plain = await audit.create_session(None)
        first = await audit.create_session(None, wanted="running")
        second = await audit.create_session(None, wanted="running")
        # A session that is no explorer is none of this.
        assert [info.session_id for info in await explorers.list()] == [second, first]
        with pytest.raises(NotFound):
            await explorers.find(plain)
        with pytest.raises(NotFound):
            await explorers.want(plain, Wanted.PAUSED)
        for wanted in (Wanted.PAUSED, Wanted.PAUSED, Wanted.RUNNING, Wanted.STOPPED, Wanted.STOPPED):
            await explorers.want(first, wanted)
            assert await explorers.wanted(first) is wanted
        # Who was told to stop is not told to go on again.
        with pytest.raises(TransitionRefused, match="told to stop"):
            await explorers.want(first, Wanted.RUNNING)
        assert await explorers.wanted(second) is Wanted.RUNNING
        await (await audit.journal(second)).append(Draft("session_end", "over"))
        await audit.complete_session(second, "completed", "over")
        with pytest.raises(TransitionRefused, match="is completed"):
            await explorers.want(second, Wanted.STOPPED)
        assert [info.session_id for info in await explorers.list(running=True)] == [first]
        assert await explorers.wanted("nobody") is Wanted.STOPPED
        assert (await verify(database)).ok

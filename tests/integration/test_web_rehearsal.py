"""A server has done what its first visitors would wait for, and starts also when that fails."""

from __future__ import annotations

from pathlib import Path

from operator_core.model.person import Role
from operator_core.web.rehearsal import rehearse
from operator_core.web.templates import environment
from tests.support.scene import furnish
from tests.support.store import column_of
from tests.support.web import open_web


async def test_all_templates_are_compiled(tmp_path: Path) -> None:
    environment.cache_clear()
    async with open_web(tmp_path / "operator.db") as web:
        await furnish(web.database)
        await rehearse(web.site)
        jinja = environment()
        assert jinja.cache is not None
        compiled = {name for _, name in jinja.cache}
        assert compiled == set(jinja.list_templates())


async def test_a_store_that_cannot_be_read_is_told_where_it_is_asked(tmp_path: Path) -> None:
    store = tmp_path / "operator.db"
    async with open_web(store) as web:
        await column_of(str(store), "DROP TABLE monitor_states")
        await rehearse(web.site)
        assert (await web.client(Role.VIEWER).get("/api/v1/invariants")).status_code >= 500
        assert (await web.client(Role.VIEWER).get("/api/v1/tickets")).status_code == 200

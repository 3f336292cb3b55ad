"""Tokens and logins in the store, on both engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from sqlalchemy import select, update

from operator_core import clock
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.logins import Logins
from operator_core.db.schema import ledger, logins, tokens
from operator_core.db.tokens import Tokens
from operator_core.errors import ConfigError, NotFound
from operator_core.model.person import Role


@pytest.fixture
async def database(store_url: str) -> AsyncIterator[Database]:
    async with Database.open(store_url) as opened:
        yield opened


async def test_a_token_is_known_by_its_text_alone(database: Database) -> None:
    store = Tokens(database)
    made = await store.create("ci", Role.OPERATOR, by="person")
    found = await store.check(made.text)
    assert found == made.info
    assert (made.info.role, made.info.state, made.info.expires_at) == (Role.OPERATOR, "valid", None)
    kind, token_id, secret = made.text.split("_", 2)
    assert (kind, token_id) == ("op", made.info.id)
    other = await store.create("other", Role.ADMIN, by="person")
    for text in (
        "",
        made.text[:-1],
        made.text + "A",
        made.text.upper(),
        f" {made.text}",
        f"{made.text}\n",
        f"op_{other.info.id}_{secret}",
        f"op_{token_id}_{'A' * 43}",
        f"op_' OR 1=1 --_{secret}",
        "\ud800",
    ):
        assert await store.check(text) is None, text


async def test_only_digests_are_stored(database: Database) -> None:
    made = await Tokens(database).create("ci", Role.VIEWER, by="person")
    opened = await Logins(database).open(made.info, 1, by="ci")
    secret = made.text.split("_", 2)[2]
    stored = [str(row) for table in (tokens, logins, ledger) for row in await database.fetch(select(table))]
    assert stored
    assert not [row for row in stored if secret in row or opened.cookie in row]
    assert not [row for row in stored if opened.login.csrf in row and "signed_in" in row]


async def test_expired_and_revoked_tokens_are_of_no_use(database: Database) -> None:
    store = Tokens(database)
    short = await store.create("short", Role.ADMIN, by="person", expires_s=0.001)
    ended = await store.create("ended", Role.ADMIN, by="person", expires_s=3600)
    login = await Logins(database).open(ended.info, 1, by="ended")
    assert await store.check(ended.text) is not None
    assert await store.still_valid(ended.info.id)
    revoked = await store.revoke("ended", by="somebody (api)")
    assert revoked.state == "revoked"
    assert await store.check(short.text) is None
    assert await store.check(ended.text) is None
    assert not await store.still_valid(ended.info.id)
    assert await Logins(database).find(login.cookie) is None
    assert {info.name: info.state for info in await store.list()} == {"short": "expired", "ended": "revoked"}
    assert await store.revoke(ended.info.id, by="person") == revoked
    rows = await database.fetch(select(ledger.c.body).where(ledger.c.kind == "token").order_by(ledger.c.seq))
    assert len(rows) == 3, "to revoke it again is no act"
    assert '"actor":"somebody (api)"' in rows[2].body


async def test_a_name_is_free_again_when_its_token_is_not_valid_any_more(database: Database) -> None:
    store = Tokens(database)
    first = await store.create("ci", Role.VIEWER, by="person")
    with pytest.raises(ConfigError, match="already"):
        await store.create("ci", Role.ADMIN, by="person")
    await store.revoke("ci", by="person")
    second = await store.create("ci", Role.ADMIN, by="person")
    assert (await store.revoke("ci", by="person")).id == second.info.id
    assert first.info.id != second.info.id
    with pytest.raises(NotFound):
        await store.revoke("nobody", by="person")


async def test_the_same_name_at_the_same_moment(database: Database) -> None:
    made = await asyncio.gather(
        *(Tokens(database).create("ci", Role.VIEWER, by="person") for _ in range(5)), return_exceptions=True
    )
    assert sorted(type(one).__name__ for one in made) == ["ConfigError"] * 4 + ["Minted"]


@pytest.mark.parametrize("name", ["", " ci", "ci ", "-ci", "a" * 65, "a\nb", "a\u202eb", "<b>", "a\x00"])
async def test_names_that_cannot_be_used(database: Database, name: str) -> None:
    with pytest.raises(ConfigError):
        await Tokens(database).create(name, Role.VIEWER, by="person")


@pytest.mark.parametrize("seconds", [0, -1, 1e30, float("nan"), float("inf")])
async def test_times_that_cannot_be_used(database: Database, seconds: float) -> None:
    with pytest.raises(ConfigError):
        await Tokens(database).create("ci", Role.VIEWER, by="person", expires_s=seconds)


async def test_the_first_token_is_made_once(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as other:
        made = await asyncio.gather(*(Tokens(database).first() for database in (one, other) * 4))
        (first,) = [minted for minted in made if minted is not None]
        assert (first.info.name, first.info.role) == ("first", Role.ADMIN)
        await Tokens(one).revoke("first", by="person")
        assert await Tokens(one).first() is None, "who revoked all tokens did not ask for another"
        assert (await verify(one)).ok


async def test_a_login_ends_with_its_time_and_with_its_token(database: Database) -> None:
    store, browsers = Tokens(database), Logins(database)
    long = await store.create("long", Role.VIEWER, by="person")
    short = await store.create("short", Role.VIEWER, by="person", expires_s=60)
    opened = await browsers.open(long.info, 2, by="long")
    assert 7100 < (opened.login.ends_at - clock.now()).total_seconds() <= 7200
    assert (await browsers.open(short.info, 2, by="short")).login.ends_at == short.info.expires_at
    found = await browsers.find(opened.cookie)
    assert found == opened.login
    for cookie in ("", "x", opened.cookie + "x", "x" * 10_000, "\ud800"):
        assert await browsers.find(cookie) is None
    past = clock.iso(clock.parse_iso("2020-01-01T00:00:00+00:00"))
    async with database.begin() as connection:
        await connection.execute(update(logins).values(expires_at=past))
    assert await browsers.find(opened.cookie) is None
    await browsers.open(long.info, 1, by="long")
    assert len(await database.fetch(select(logins))) == 1, "ended logins are taken away with the next one"


async def test_signing_out_twice(database: Database) -> None:
    browsers = Logins(database)
    made = await Tokens(database).create("ci", Role.VIEWER, by="person")
    opened = await browsers.open(made.info, 1, by="ci")
    assert await browsers.close(opened.cookie, by="ci")
    assert not await browsers.close(opened.cookie, by="ci")
    assert await browsers.find(opened.cookie) is None
    assert (await verify(database)).ok


async def test_use_is_noted_to_the_minute(database: Database) -> None:
    store = Tokens(database)
    made = await store.create("ci", Role.VIEWER, by="person")
    await store.used(made.info.id)
    first = (await store.list())[0].last_used_at
    await store.used(made.info.id)
    assert first is not None
    assert (await store.list())[0].last_used_at == first

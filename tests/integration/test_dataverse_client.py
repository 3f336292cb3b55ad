"""The client against a Dataverse organisation over HTTP: conditions on every write, lost answers, bad days, paging."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
import pytest_asyncio

from operator_core.clock import Clock
from operator_core.errors import ConfigError
from operator_dataverse.client import AccessToken, Conflict, Dataverse, Row, StaticToken, field
from operator_dataverse.double import Double
from operator_dataverse.double.faults import Fault
from operator_dataverse.errors import NotConfigured, Refused, SchemaProblem, Throttled, Unauthorized, Unreachable
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.tables import CONVERSATIONS, MESSAGES, TASKS
from operator_dataverse.tables.task import TaskCode, TaskRow
from tests.support.dataverse import double, plain_double

__all__ = ["double", "plain_double"]

# Pauses between attempts pass a hundred times as fast.
FAST = 100.0


def opened(double: Double, *, retry_s: float = 120.0, token: str | None = None) -> Dataverse:
    return Dataverse(double.url, StaticToken(token or double.token), retry_s=retry_s, clock=Clock(FAST))


@pytest_asyncio.fixture
async def client(double: Double) -> AsyncIterator[Dataverse]:
    async with opened(double) as dataverse:
        yield dataverse


def sent(double: Double, method: str) -> list[str]:
    return [str(r) for r in double.history.requests() if r.method == method]


# -- rows --------------------------------------------------------------------------------------------------------


async def test_a_row_is_made_read_changed_and_deleted(client: Dataverse, double: Double) -> None:
    made = await client.create(TASKS, {"cr_name": "Try", "cr_status": TaskCode.PENDING, "crb3b_heartbeat": NOON})
    assert isinstance(made, Row)
    assert made.formatted("cr_status") == "Pending"
    assert made.formatted("cr_name") == "Try"
    assert TaskRow.parse(made).heartbeat == NOON

    changed = await client.update(TASKS, made.id, {"cr_status": 5}, etag=made.etag or "")
    assert isinstance(changed, Row)
    assert changed.etag != made.etag
    assert changed.etag == double.tables[TASKS].etag(made.id)
    assert TaskRow.parse(changed).status is TaskCode.RUNNING

    again = await client.row(TASKS, made.id.upper(), select=["cr_status"])
    assert again is not None
    assert again.id == made.id
    assert again["cr_status"] == 5
    assert "cr_name" not in again

    assert await client.delete(TASKS, made.id, etag=changed.etag or "") is None
    assert await client.row(TASKS, made.id) is None
    assert await client.delete(TASKS, made.id, etag=changed.etag or "") == Conflict("missing")


async def test_only_the_columns_that_are_wanted_come_back(client: Dataverse, double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=5, cr_transcript="x" * 1_000_000)
    beat = {"crb3b_heartbeat": NOON}
    etag = double.tables[TASKS].etag(row_id)
    done = await client.update(TASKS, row_id, beat, etag=etag, select=["cr_status"])
    assert isinstance(done, Row)
    assert dict(done) == {"cr_status": 5, "cr_shraga_taskid": row_id}
    assert done.etag == double.tables[TASKS].etag(row_id) != etag
    for chosen in (None, "0b5e1f9e-0000-4000-8000-00000000000d"):
        made = await client.create(MESSAGES, {"cr_name": "x"}, row_id=chosen, select=["cr_name"])
        assert isinstance(made, Row)
        assert dict(made) == {"cr_name": "x", "cr_shragamessageid": made.id}


async def test_a_change_of_an_old_version_is_an_answer(client: Dataverse, double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    old = double.tables[TASKS].etag(row_id)
    double.change(TASKS, row_id, cr_status=9)

    assert await client.update(TASKS, row_id, {"cr_status": 5}, etag=old) == Conflict("changed")
    told = await client.update(TASKS, row_id, {"cr_status": 5}, etag=old, reread=True)
    assert isinstance(told, Conflict)
    assert told.current is not None
    assert told.current["cr_status"] == 9
    assert await client.delete(TASKS, row_id, etag=old) == Conflict("changed")
    assert double.tables[TASKS][row_id]["cr_status"] == 9


async def test_a_row_that_is_gone_is_never_made_again_by_a_change(client: Dataverse, double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    etag = double.tables[TASKS].etag(row_id)
    double.store.delete(TASKS, row_id, double.admin, None)
    assert await client.update(TASKS, row_id, {"cr_status": 5}, etag=etag) == Conflict("missing")
    assert len(double.tables[TASKS]) == 0


@pytest.mark.parametrize("etag", ["", "*", 'W/"1"\r\nX: y', "ü"])
async def test_no_write_is_without_its_version(client: Dataverse, double: Double, etag: str) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    with pytest.raises(Refused, match="version"):
        await client.update(TASKS, row_id, {"cr_status": 5}, etag=etag)
    with pytest.raises(Refused, match="version"):
        await client.delete(TASKS, row_id, etag=etag)
    assert sent(double, "PATCH") == sent(double, "DELETE") == []


async def test_a_row_with_a_chosen_id_is_made_once(client: Dataverse, double: Double) -> None:
    chosen = "0B5E1F9E-0000-4000-8000-00000000000A"
    assert isinstance(await client.create(MESSAGES, {"cr_name": "one"}, row_id=chosen), Row)
    assert await client.create(MESSAGES, {"cr_name": "two"}, row_id=chosen) == Conflict("exists")
    assert [row["cr_name"] for row in double.tables[MESSAGES].values()] == ["one"]


@pytest.mark.parametrize("row_id", ["1) or (true", "", "../x", "00000000-0000-0000-0000-00000000000g"])
async def test_what_is_no_id_never_reaches_an_address(client: Dataverse, double: Double, row_id: str) -> None:
    with pytest.raises(Refused, match="GUID"):
        await client.row(TASKS, row_id)
    assert not [r for r in double.history.requests() if r.table]


async def test_pages_are_followed_and_a_limit_is_kept(client: Dataverse, double: Double) -> None:
    for number in range(25):
        double.seed(MESSAGES, cr_name=f"m{number:02}", crb3b_taskid="a'b" if number % 2 else "c")
    where = field("crb3b_taskid") == "a'b"
    found = [row["cr_name"] async for row in client.rows(MESSAGES, where, orderby=["cr_name desc"], page_size=4)]
    assert found == [f"m{number:02}" for number in range(23, 0, -2)]
    assert len([r for r in double.history.requests() if r.table == MESSAGES]) == 3

    few = [row["cr_name"] async for row in client.rows(MESSAGES, orderby=["cr_name"], top=3)]
    assert few == ["m00", "m01", "m02"]
    first = await client.first(MESSAGES, field("cr_name") > "m10", orderby=["cr_name"], select=["cr_name"])
    assert first is not None
    assert dict(first) == {"cr_name": "m11", "cr_shragamessageid": first.id}
    assert await client.first(MESSAGES, field("cr_name") == "no") is None


async def test_a_page_elsewhere_does_not_get_the_token(double: Double) -> None:
    class Elsewhere(Dataverse):
        pass

    async with opened(double) as client:
        with pytest.raises(Refused, match="does not go"):
            await client.http.request("GET", "https://other.example.com/api/data/v9.2/x")
        with pytest.raises(Refused, match="does not go"):
            await client.http.request("GET", client.url.replace("127.0.0.1", "127.0.0.2") + "/x")
        with pytest.raises(ConfigError, match="holds a login"):
            await client.http.request("GET", "https://example.com:secret@127.0.0.1/x")


NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)


async def test_conditions_find_what_they_say(client: Dataverse, double: Double) -> None:
    hostile = "o'neil' or cr_status eq 9 or '@example.com"
    mine = double.seed(TASKS, cr_name="mine", cr_status=1, crb3b_useremail=hostile, createdon="2026-01-31T11:00:00Z")
    nobody = double.seed(TASKS, cr_name="100% [x]_", cr_status=3, createdon="2026-01-31T13:00:00Z")
    double.seed(TASKS, cr_name="other", cr_status=9, crb3b_useremail="bob@example.com", cr_ismirror=True)

    async def ids(where: object) -> list[str]:
        return [row.id async for row in client.rows(TASKS, where)]  # type: ignore[arg-type]

    email, status, name = field("crb3b_useremail"), field("cr_status"), field("cr_name")
    assert await ids(email == hostile) == [mine]
    assert await ids(email.eq(None)) == [nobody]
    assert await ids((email == hostile) | email.eq(None)) == [mine, nobody]
    assert await ids((status == 1) & ((email == hostile) | email.eq(None))) == [mine]
    assert await ids(~((status == 9) | email.eq(None))) == [mine]
    assert await ids(status.is_in([TaskCode.PENDING, TaskCode.QUEUED]) & (field("createdon") < NOON)) == [mine]
    assert await ids(name.contains("% [x")) == [nobody]
    assert await ids(name.startswith("1_0")) == []
    assert await ids(name.endswith("]_")) == [nobody]
    assert len(await ids(field("cr_ismirror") == True)) == 1  # noqa: E712


# -- values that fit ---------------------------------------------------------------------------------------------


async def test_texts_are_cut_to_their_columns_in_the_units_of_the_service(client: Dataverse, double: Double) -> None:
    made = await client.create(
        TASKS,
        {"cr_name": "😀" * 80, "cr_status": 1, "cr_result": "x" * 100_001, "cr_transcript": "\x1b[31mred\x00\ud800"},
        pointer="C:\\sessions\\result.md",
    )
    assert isinstance(made, Row)
    stored = double.tables[TASKS][made.id]
    assert stored["cr_result"].endswith("x… (truncated; the whole text is in C:\\sessions\\result.md)")
    assert len(stored["cr_result"]) == 100_000
    assert stored["cr_name"].startswith("😀" * 20)
    assert stored["cr_transcript"] == "\ufffd[31mred\ufffd\ufffd"


async def test_columns_that_are_not_there_are_left_out_and_named_once(
    plain_double: Double, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened(plain_double) as client:
        for _ in range(2):
            values = {"cr_name": "Try", "cr_status": 1, "crb3b_shortdescription": "x", "crb3b_heartbeat": NOON}
            made = await client.create(TASKS, values)
            assert isinstance(made, Row)
            assert made.dropped == ("crb3b_shortdescription", "crb3b_heartbeat")
        assert not (await client.info(TASKS)).has("crb3b_heartbeat")
    named = [r.getMessage() for r in caplog.records if r.name.startswith("operator_dataverse")]
    assert len(named) == 1
    assert "crb3b_shortdescription, crb3b_heartbeat" in named[0]


async def test_a_column_that_goes_away_while_the_client_lives(client: Dataverse, double: Double) -> None:
    await client.info(TASKS)
    double.store.drop_column(TASKS, "crb3b_shortdescription")
    row_id = double.seed(TASKS, cr_name="Try", cr_status=5)
    etag = double.tables[TASKS].etag(row_id)
    done = await client.update(TASKS, row_id, {"cr_status": 7, "crb3b_shortdescription": "x"}, etag=etag)
    assert isinstance(done, Row)
    assert done.dropped == ("crb3b_shortdescription",)
    assert double.tables[TASKS][row_id]["cr_status"] == 7


@pytest.mark.parametrize("value", ["Pending", 2, True, 1.0])
async def test_a_status_is_one_of_its_integers(client: Dataverse, double: Double, value: object) -> None:
    with pytest.raises(SchemaProblem, match="cr_status"):
        await client.create(TASKS, {"cr_name": "Try", "cr_status": value})
    assert len(double.tables[TASKS]) == 0


async def test_a_conversation_has_words(client: Dataverse) -> None:
    with pytest.raises(SchemaProblem, match="cr_direction"):
        await client.create(CONVERSATIONS, {"cr_name": "Hi", "cr_direction": 2})


async def test_the_columns_are_read_once(client: Dataverse, double: Double) -> None:
    await asyncio.gather(*(client.info(TASKS) for _ in range(20)))
    assert len([r for r in double.history.requests() if "EntityDefinitions" in r.path]) == 3
    info = await client.info(TASKS)
    assert (info.key, info.logical_name, info.primary_name) == ("cr_shraga_taskid", "cr_shraga_task", "cr_name")
    assert info.columns["cr_statusmessage"].max_length == 200
    assert info.columns["cr_status"].options[9] == "Canceled"
    assert not info.columns["modifiedon"].writable


async def test_a_table_that_is_not_there(client: Dataverse) -> None:
    with pytest.raises(SchemaProblem, match="no table 'cr_nothings'"):
        await client.first("cr_nothings", None)
    with pytest.raises(SchemaProblem):
        await client.first("x' or EntitySetName eq 'cr_shraga_tasks", None)


# -- answers that are lost ---------------------------------------------------------------------------------------


async def test_a_lost_answer_of_a_new_row_makes_no_second_one(client: Dataverse, double: Double) -> None:
    lost = double.faults.drop_answer(times=1, method="POST")
    made = await client.create(MESSAGES, {"cr_name": "once"})
    assert lost.hits == 1
    assert isinstance(made, Row)
    assert [row["cr_name"] for row in double.tables[MESSAGES].values()] == ["once"]

    chosen = "0b5e1f9e-0000-4000-8000-00000000000b"
    double.faults.drop_answer(times=1, method="PATCH")
    again = await client.create(MESSAGES, {"cr_name": "chosen"}, row_id=chosen)
    assert isinstance(again, Conflict)
    assert again.reason == "exists"
    assert again.current is not None
    assert again.current["cr_name"] == "chosen"
    assert len(double.tables[MESSAGES]) == 2


async def test_a_lost_answer_of_a_change_shows_the_row_as_it_is(client: Dataverse, double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    double.faults.drop_answer(times=1, method="PATCH")
    told = await client.update(TASKS, row_id, {"cr_status": 5}, etag=double.tables[TASKS].etag(row_id))
    assert isinstance(told, Conflict)
    assert told.current is not None
    assert told.current["cr_status"] == 5
    assert double.history.values(TASKS, row_id, "cr_status") == [5]


async def test_a_lost_answer_of_a_deletion_is_a_deletion(client: Dataverse, double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    double.faults.drop_answer(times=1, method="DELETE")
    assert await client.delete(TASKS, row_id, etag=double.tables[TASKS].etag(row_id)) is None


async def test_what_may_not_be_repeated_is_not(client: Dataverse, double: Double) -> None:
    double.faults.drop_answer(times=1, method="POST")
    with pytest.raises(Unreachable):
        await client.http.request("POST", MESSAGES, body={"cr_name": "x"}, idempotent=False)
    assert len(sent(double, "POST")) == 1


# -- bad days ----------------------------------------------------------------------------------------------------


async def test_a_storm_loses_and_doubles_nothing(client: Dataverse, double: Double) -> None:
    double.faults.storm(0.3)
    double.faults.drop_answer(times=None, rate=0.1)
    made = await asyncio.gather(*(client.create(MESSAGES, {"cr_name": f"m{n}"}) for n in range(60)))
    double.faults.clear()
    assert all(isinstance(one, Row) for one in made)
    assert sorted(row["cr_name"] for row in double.tables[MESSAGES].values()) == sorted(f"m{n}" for n in range(60))


async def test_the_service_says_how_long_to_wait(double: Double) -> None:
    clock = Clock(FAST)
    async with Dataverse(double.url, StaticToken(double.token), clock=clock) as client:
        await client.whoami()
        double.faults.add(Fault("throttle", times=1, retry_after="20"))
        begin = clock.monotonic()
        await client.whoami()
        assert 20.0 <= clock.monotonic() - begin < 60.0
        date = format_datetime(clock.now() + timedelta(seconds=30), usegmt=True)
        double.faults.add(Fault("busy", times=1, retry_after=date))
        begin = clock.monotonic()
        await client.whoami()
        assert 25.0 <= clock.monotonic() - begin < 70.0


@pytest.mark.parametrize("retry_after", ["900", "1e99", "99999999999999999999"])
async def test_a_pause_that_is_too_long_is_said_at_once(double: Double, retry_after: str) -> None:
    clock = Clock()
    async with Dataverse(double.url, StaticToken(double.token), retry_s=5.0, clock=clock) as client:
        double.faults.add(Fault("throttle", retry_after=retry_after))
        begin = clock.monotonic()
        with pytest.raises(Throttled, match="asks for a pause") as told:
            await client.whoami()
    assert clock.monotonic() - begin < 3.0
    assert 900.0 <= told.value.after_s <= 3700.0


@pytest.mark.parametrize("retry_after", ["", "soon", "nan", "-5", "Thu, 99 Foo 2026 99:00:00 GMT"])
async def test_a_pause_that_is_nonsense_is_no_reason_to_stop(
    client: Dataverse, double: Double, retry_after: str
) -> None:
    double.faults.add(Fault("throttle", times=2, retry_after=retry_after))
    assert await client.whoami() == double.admin.user_id


async def test_a_service_that_is_away(double: Double) -> None:
    url = double.url
    double.stop()
    async with Dataverse(url, StaticToken("x" * 20), retry_s=30.0, clock=Clock(FAST)) as client:
        with pytest.raises(Unreachable, match="network"):
            await client.whoami()


# -- who asks ----------------------------------------------------------------------------------------------------


class Renewing:
    def __init__(self, *tokens: str, life_s: float = 3600.0, clock: Clock | None = None) -> None:
        self.tokens = list(tokens)
        self.asked: list[str] = []
        self.life_s = life_s
        self.clock = clock or Clock()

    async def get(self, resource: str) -> AccessToken:
        self.asked.append(resource)
        token = self.tokens.pop(0) if len(self.tokens) > 1 else self.tokens[0]
        return AccessToken(token, self.clock.now().timestamp() + self.life_s)


async def test_a_token_that_is_refused_is_asked_for_once_more(double: Double) -> None:
    credential = Renewing("s3cret-and-expired-token", double.token)
    async with Dataverse(double.url, credential, clock=Clock(FAST)) as client:
        await asyncio.gather(*(client.whoami() for _ in range(10)))
        assert credential.asked == [double.url] * 2


async def test_a_token_that_stays_refused_is_the_end_and_is_nowhere_shown(double: Double) -> None:
    secret = "s3cret-and-expired-token"
    async with Dataverse(double.url, Renewing(secret), clock=Clock(FAST)) as client:
        with pytest.raises(Unauthorized, match="authenticate") as told:
            await client.whoami()
    assert secret not in str(told.value)
    assert secret not in repr(AccessToken(secret))
    assert secret not in repr(StaticToken(secret))
    assert len(sent(double, "GET")) <= 2


async def test_one_new_token_is_tried_and_no_more(double: Double) -> None:
    credential = Renewing(*(f"s3cret-and-expired-{number}" for number in range(9)))
    async with Dataverse(double.url, credential, clock=Clock(FAST)) as client:
        with pytest.raises(Unauthorized):
            await client.whoami()
    assert len(credential.asked) == 2


async def test_every_token_is_told_to_who_hides_it(double: Double) -> None:
    learned: list[str] = []
    async with Dataverse(double.url, Renewing(double.token), learn=learned.extend) as client:
        await client.whoami()
        await client.whoami()
    assert learned == [double.token]


async def test_what_this_account_may_not_do(double: Double) -> None:
    row_id = double.seed(TASKS, cr_name="Try", cr_status=1)
    bob = double.add_account("bob@example.com", reach="own")
    async with opened(double, token=bob.token) as client:
        assert await client.first(TASKS, None) is None
        with pytest.raises(Unauthorized, match="security role"):
            await client.update(TASKS, row_id, {"cr_status": 9}, etag=double.tables[TASKS].etag(row_id))


async def test_a_refusal_says_what_the_service_said(client: Dataverse) -> None:
    with pytest.raises(Refused, match="cr_nothing") as told:
        await client.first(TASKS, field("cr_nothing") == 1)
    assert told.value.status == 400
    assert told.value.code
    with pytest.raises(Refused, match="incompatible types"):
        await client.first(TASKS, field("cr_status") == "Pending")


def test_nothing_is_contacted_before_it_is_configured() -> None:
    with pytest.raises(NotConfigured, match="DATAVERSE_URL"):
        Dataverse.open(DataverseSettings())


@pytest.mark.parametrize(
    "url",
    [
        "http://example.com",
        "ftp://example.com",
        "example.com",
        "https://",
        "https://a:b@example.com",
        "https://[::1",
        "",
    ],
)
def test_an_address_that_would_give_the_token_away_is_none(url: str) -> None:
    with pytest.raises(ConfigError) as told:
        Dataverse(url, StaticToken("x" * 20))
    assert "a:b" not in str(told.value)


def test_only_the_origin_of_an_address_counts() -> None:
    assert Dataverse("https://Example.com:443/main.aspx?x=1", StaticToken("x" * 20)).url == "https://example.com"


@pytest.mark.parametrize("token", ["", "a b", "a\nb", "tökén"])
def test_a_token_that_no_header_can_carry(token: str) -> None:
    with pytest.raises(Unauthorized) as told:
        StaticToken(token)
    assert not token or token not in str(told.value)

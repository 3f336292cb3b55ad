"""Live streams: every entry once and in order, over restarts, for many readers, none in the way of the others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from operator_core import clock
from operator_core.api.local import LocalApi
from operator_core.client import Client, StreamEvent
from operator_core.config import Settings, WebSettings
from operator_core.db.engine import Database
from operator_core.db.schema import live_output
from operator_core.db.tickets import TicketDB
from operator_core.db.tokens import Tokens
from operator_core.errors import ConfigError, NotFound, StoreUnavailable
from operator_core.model.entry import Draft
from operator_core.model.person import Actor, Role
from operator_core.web.event_stream import HEARTBEAT, EventStream, event
from operator_core.web.live import Feeds
from tests.support import free_port, wait_until_async
from tests.support.store import Work, column_of, finish, start_work
from tests.support.web import open_web, served


async def add(work: Work, count: int, text: str = "step") -> None:
    for _ in range(count):
        await work.journal.append(Draft("reasoning", text, text, phase="worker_1"))


@asynccontextmanager
async def feeds_of(database: Database, **options: Any) -> AsyncIterator[Feeds]:
    feeds = Feeds(database, LocalApi(database, Settings(), Actor("test", Role.ADMIN)), pulse_s=0.02, **options)
    try:
        yield feeds
    finally:
        await feeds.close()


def parsed(data: bytes) -> list[tuple[int | None, str, Any]]:
    """Number, kind and data of the events in a piece of a stream."""
    found = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if ": " in line)
        if "data" in fields:
            number = int(fields["id"]) if "id" in fields else None
            found.append((number, fields["event"], json.loads(fields["data"])))
    return found


async def read(source: Any, until: Any, limit_s: float = 20) -> list[tuple[int | None, str, Any]]:
    """Events of a source until a condition on all of them holds."""
    events: list[tuple[int | None, str, Any]] = []
    async with asyncio.timeout(limit_s):
        while not until(events):
            data = await source.next(1.0)
            if data is None:
                break
            events += parsed(data)
    return events


def numbers(events: list[tuple[int | None, str, Any]]) -> list[int | None]:
    return [number for number, kind, _ in events if kind == "entry"]


async def test_a_session_from_the_beginning_and_while_it_goes_on(store_url: str) -> None:
    async with Database.open(store_url) as database, feeds_of(database) as feeds:
        work = await start_work(database, entries=7)
        source = await feeds.session(work.session_id)
        events = await read(source, lambda found: len(numbers(found)) == 7)
        await add(work, 5)
        events += await read(source, lambda found: len(numbers(found)) == 5)
        await finish(work)
        events += await read(source, lambda found: False)
        entries = [data for _, kind, data in events if kind == "entry"]
        last = entries[-1]["seq"]
        assert numbers(events) == [entry["seq"] for entry in entries] == list(range(last + 1))
        assert last >= 11
        kinds = [kind for _, kind, _ in events]
        assert kinds[-1] == "end"
        assert kinds.count("end") == 1
        states = [data for _, kind, data in events if kind == "state"]
        assert (states[0]["status"], states[-1]["status"]) == ("running", "completed")
        # What is streamed is what is read: the same shape with the same texts.
        page = await feeds.api.entries(work.session_id)
        assert entries == [entry.model_dump(mode="json") for entry in page.items]
        assert await source.next(0.1) is None
        source.close()
        source.close()
        assert feeds.clients == 0


async def test_a_reader_resumes_exactly(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        work = await start_work(database, entries=450)
        for after in (-1, 0, 3, 198, 199, 200, 448, 449):
            source = await feeds.session(work.session_id, after)
            left = 449 - after
            events = await read(source, lambda found, left=left: len(numbers(found)) >= left)
            assert numbers(events) == list(range(after + 1, 450)), after
            source.close()
        # Beside a reader who is at the head, one who comes late.
        head = await feeds.session(work.session_id, 449)
        await add(work, 30)
        assert numbers(await read(head, lambda found: len(numbers(found)) == 30)) == list(range(450, 480))
        late = await feeds.session(work.session_id, 100)
        await add(work, 3)
        assert numbers(await read(late, lambda found: len(numbers(found)) == 382)) == list(range(101, 483))


async def test_what_the_ring_has_lost_is_read_from_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from operator_core.web import live

    monkeypatch.setattr(live, "_RING_ITEMS", 10)
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        work = await start_work(database, entries=1)
        slow, quick = await feeds.session(work.session_id), await feeds.session(work.session_id)
        for _ in range(6):
            await add(work, 25)
            await read(quick, lambda found: len(numbers(found)) >= 25)
        assert numbers(await read(slow, lambda found: len(numbers(found)) == 151)) == list(range(151))


async def test_long_texts_come_in_small_pieces(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        work = await start_work(database)
        source = await feeds.session(work.session_id)
        await add(work, 60, "\u2028\x1b[31m<b>" + "x" * 30_000)
        pieces: list[bytes] = []
        async with asyncio.timeout(20):
            while sum(len(numbers(parsed(piece))) for piece in pieces) < 60:
                piece = await source.next(1.0)
                assert piece is not None
                pieces.append(piece)
        assert max(map(len, pieces)) < 300_000
        entries = [data for piece in pieces for _, kind, data in parsed(piece) if kind == "entry"]
        assert [entry["seq"] for entry in entries] == list(range(60))
        assert all(len(entry["raw_content"]) == 20_000 and entry["cut"] > 10_000 for entry in entries)


async def test_output_of_the_running_command(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        work = await start_work(database, entries=1)
        source = await feeds.session(work.session_id)
        for n in (1, 2):
            async with database.begin() as c:
                await c.execute(live_output.delete())
                await c.execute(
                    live_output.insert().values(
                        session_id=work.session_id,
                        tool_use_id="t1",
                        tail=f"line {n}\n<script>",
                        total=n,
                        updated_at=clock.iso(),
                    )
                )
            events = await read(source, lambda found: any(kind == "output" for _, kind, _ in found))
            (output,) = [(number, data) for number, kind, data in events if kind == "output"]
            assert output[0] is None
            assert (output[1]["tail"], output[1]["total"]) == (f"line {n}\n<script>", n)


async def test_one_look_at_the_store_for_fifty_readers(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "o.db") as database:
        api = _Counting(database)
        feeds = Feeds(database, api, pulse_s=0.02)
        work = await start_work(database, entries=20)
        sources = [await feeds.session(work.session_id, 19) for _ in range(50)]
        asked = api.asked
        waiting = [asyncio.create_task(read(s, lambda found: len(numbers(found)) == 40)) for s in sources]
        await add(work, 40)
        for events in await asyncio.gather(*waiting):
            assert numbers(events) == list(range(20, 60))
        assert api.asked - asked <= 41, "once per news, not once per reader"
        assert feeds.clients == 50
        await feeds.close()
        assert [await source.next(5) for source in sources] == [None] * 50


class _Counting(LocalApi):
    def __init__(self, database: Database) -> None:
        super().__init__(database, Settings(), Actor("test", Role.ADMIN))
        self.asked = 0

    async def entries(self, session_id: str, **options: Any) -> Any:
        self.asked += 1
        return await super().entries(session_id, **options)


async def test_a_session_that_cannot_be_read_is_in_nobody_else_s_way(tmp_path: Path) -> None:
    store = str(tmp_path / "o.db")
    async with Database.open(store) as database, feeds_of(database) as feeds:
        broken, whole = await start_work(database), await start_work(database)
        board = await feeds.board()
        await board.next(1.0)
        sources = [await feeds.session(work.session_id) for work in (broken, whole)]
        await column_of(store, "DROP TRIGGER agent_log_entries_frozen")
        await column_of(
            store,
            "CREATE TRIGGER forger AFTER INSERT ON agent_log_entries "
            f"WHEN NEW.session_id = '{broken.session_id}' "
            "BEGIN UPDATE agent_log_entries SET timestamp = 'never' WHERE id = NEW.id; END",
        )
        await add(broken, 1)
        await add(whole, 3)
        assert numbers(await read(sources[1], lambda found: len(numbers(found)) == 3)) == [0, 1, 2]
        ticket = await TicketDB(database).open_ticket("a", "A")
        changed = await read(board, lambda found: any(data["id"] == ticket.id for _, _, data in found))
        assert changed, "the board has ended"


async def test_the_board(store_url: str) -> None:
    async with Database.open(store_url) as database, feeds_of(database) as feeds:
        tickets = TicketDB(database)
        first = await tickets.open_ticket("a", "A")
        source = await feeds.board()
        await tickets.cancel_ticket(first.id or 0)
        second = await tickets.open_ticket("b", "B")
        events = await read(source, lambda found: len(found) >= 2)
        assert [(kind, data["id"]) for _, kind, data in events] == [("ticket", first.id), ("ticket", second.id)]
        places = [number for number, _, _ in events if number is not None]
        assert places == sorted(places)
        assert len(places) == 2
        # Who comes back is told what changed meanwhile, and nothing twice.
        source.close()
        await tickets.hold_ticket(second.id or 0)
        again = await feeds.board(events[-1][0])
        (missed,) = await read(again, lambda found: len(found) >= 1)
        assert (missed[1], missed[2]) == ("ticket", {"id": second.id, "kind": "held"})
        # A number of another store: from now on.
        strange = await feeds.board(2**31 - 1)
        await tickets.unhold_ticket(second.id or 0)
        (news,) = await read(strange, lambda found: len(found) >= 1)
        assert news[2] == {"id": second.id, "kind": "unheld"}


async def test_too_much_was_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from operator_core.web import readers

    monkeypatch.setattr(readers, "FAR_BEHIND", 3)
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        for n in range(6):
            await TicketDB(database).open_ticket(f"t{n}", "T")
        source = await feeds.board(0)
        assert (await read(source, lambda found: len(found) >= 1)) == [(5, "reset", {})]


async def test_a_session_that_goes_on_is_a_change_of_its_ticket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from operator_core.web import live

    monkeypatch.setattr(live, "_ACTIVITY_S", 0.05)
    async with Database.open(tmp_path / "o.db") as database, feeds_of(database) as feeds:
        work = await start_work(database, entries=1)
        source = await feeds.board()
        await source.next(0.2)
        await asyncio.sleep(0.2)
        await add(work, 1)
        events = await read(source, lambda found: len(found) >= 1)
        assert events == [(None, "ticket", {"id": work.claim.ticket_id, "kind": "activity"})]


async def test_readers_have_a_bound_and_sessions_must_exist(tmp_path: Path) -> None:
    from starlette.exceptions import HTTPException

    async with Database.open(tmp_path / "o.db") as database, feeds_of(database, max_streams=2) as feeds:
        work = await start_work(database, entries=1)
        with pytest.raises(NotFound):
            await feeds.session("2026-01-01T00-00-00-deadbeef")
        one, _ = await feeds.session(work.session_id), await feeds.board()
        with pytest.raises(HTTPException) as refused:
            await feeds.board()
        assert refused.value.status_code == 503
        one.close()
        (await feeds.board()).close()


async def test_one_token_cannot_take_the_streams_of_the_others(tmp_path: Path) -> None:
    settings = Settings(web=WebSettings(port=0, streams_per_token=2))
    with served(tmp_path / "o.db", settings) as server:
        async with Database.open(tmp_path / "o.db") as database:
            work = await start_work(database, entries=1)
        paths = ["/api/v1/stream", f"/api/v1/sessions/{work.session_id}/stream"]

        async def opened(client: httpx2.AsyncClient, path: str, role: Role, stack: AsyncExitStack) -> httpx2.Response:
            headers = {"Authorization": f"Bearer {server.tokens[role]}"}
            return await stack.enter_async_context(client.stream("GET", server.url + path, headers=headers))

        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=20))
            # All at once: none of them may slip in while the others are being looked at.
            many = await asyncio.gather(*(opened(client, paths[n % 2], Role.VIEWER, stack) for n in range(12)))
            refused = [answer for answer in many if answer.status_code != 200]
            assert [answer.status_code for answer in refused] == [429] * 10
            assert int(refused[0].headers["retry-after"]) > 0
            assert "streams_per_token" in json.loads(await refused[0].aread())["detail"]
            assert (await opened(client, paths[0], Role.OPERATOR, stack)).status_code == 200
            for answer in many:
                await answer.aclose()
            assert server.site is not None
            feeds = server.site.feeds
            await wait_until_async(lambda: feeds.clients == 1, what="the streams are noticed to be gone")
            assert (await opened(client, paths[1], Role.VIEWER, stack)).status_code == 200


async def test_a_store_that_is_away_for_a_moment_ends_nothing(tmp_path: Path) -> None:
    class Flaky(_Counting):
        away = False

        async def entries(self, session_id: str, **options: Any) -> Any:
            if self.away:
                raise StoreUnavailable
            return await super().entries(session_id, **options)

    async with Database.open(tmp_path / "o.db") as database:
        api = Flaky(database)
        feeds = Feeds(database, api, pulse_s=0.02)
        work = await start_work(database, entries=1)
        source = await feeds.session(work.session_id, 0)
        await read(source, lambda found: len(found) >= 1)
        api.away = True
        await add(work, 2)
        assert await source.next(0.3) == HEARTBEAT
        api.away = False
        assert numbers(await read(source, lambda found: len(numbers(found)) == 2)) == [1, 2]
        await feeds.close()


# ---- over HTTP


class _Endless:
    """A source that always has something."""

    def __init__(self) -> None:
        self.given = 0
        self.closed = False

    async def next(self, timeout_s: float) -> bytes | None:
        self.given += 1
        await asyncio.sleep(0)
        return event("entry", json.dumps("x" * 60_000))

    def close(self) -> None:
        self.closed = True


async def test_a_reader_who_takes_nothing_is_dropped_and_costs_nothing() -> None:
    source, taken = _Endless(), asyncio.Event()

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and source.given > 3:
            await taken.wait()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def valid() -> bool:
        return True

    async with asyncio.timeout(10):
        await EventStream(source, still_valid=valid, stuck_s=0.2)({"type": "http"}, receive, send)
    assert source.closed
    assert source.given == 4, "nothing is made for a reader who has not taken the last piece"


async def test_a_reader_whose_right_ends_is_sent_away() -> None:
    source, asked, sent = _Endless(), 0, []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def valid() -> bool:
        nonlocal asked
        asked += 1
        return asked < 3

    async with asyncio.timeout(10):
        await EventStream(source, still_valid=valid, recheck_s=0.05)({"type": "http"}, receive, send)
    assert asked == 3
    assert source.closed
    assert sent[-1] == {"type": "http.response.body", "body": b"", "more_body": False}


async def test_a_client_sees_every_entry_once_over_a_restart_of_the_server(tmp_path: Path) -> None:
    store, port = tmp_path / "o.db", free_port()
    async with Database.open(store) as database:
        work = await start_work(database, entries=30)
        events: list[StreamEvent] = []

        async def follow(client: Client) -> None:
            async for found in client.stream(work.session_id):
                events.append(found)

        def seen() -> list[int]:
            return [found.number for found in events if found.number is not None]

        with served(store, port=port) as first:
            tokens = first.tokens
            client = Client(first.url, tokens[Role.VIEWER])
            await client.__aenter__()
            following = asyncio.create_task(follow(client))
            await wait_until_async(lambda: len(seen()) == 30)
        await add(work, 11)
        with served(store, port=port, tokens=tokens):
            await wait_until_async(lambda: len(seen()) >= 41, timeout=30)
            await add(work, 9)
            await finish(work)
            await asyncio.wait_for(following, 30)
        await client.__aexit__(None, None, None)
        assert seen() == list(range(len(seen())))
        assert len(seen()) >= 50
        assert events[-1].kind == "end"
        entries = [found.entry for found in events if found.entry is not None]
        assert [entry.seq for entry in entries] == seen()


async def test_a_revoked_token_ends_its_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from operator_core.web import event_stream

    monkeypatch.setattr(
        event_stream.EventStream.__init__,
        "__kwdefaults__",
        {
            "heartbeat_s": 0.1,
            "stuck_s": 5.0,
            "recheck_s": 0.1,
        },
    )
    store = tmp_path / "o.db"
    async with Database.open(store) as database:
        work = await start_work(database, entries=1)
        with served(store) as server:
            async with Client(server.url, server.tokens[Role.VIEWER]) as client:
                stream = client.stream(work.session_id)
                assert (await anext(stream)).number == 0
                tokens = Tokens(database)
                (mine,) = [t for t in await tokens.list() if t.role is Role.VIEWER]
                await tokens.revoke(mine.id, by="test")

                async def rest() -> int:
                    return len([found async for found in stream])

                with pytest.raises(ConfigError, match="token"):
                    await asyncio.wait_for(rest(), 20)


def raw_stream(url: str, token: str, path: str) -> socket.socket:
    """A reader of a stream who reads nothing."""
    host, _, port = url.removeprefix("http://").partition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
    return connection


async def test_fifty_readers_and_slow_ones_among_them(tmp_path: Path) -> None:
    store = tmp_path / "o.db"
    async with Database.open(store) as database:
        work = await start_work(database, entries=5)
        with served(store) as server:
            token = server.tokens[Role.VIEWER]
            deaf = [raw_stream(server.url, token, f"/api/v1/sessions/{work.session_id}/stream") for _ in range(5)]
            async with Client(server.url, token) as client:

                async def follow() -> list[int]:
                    return [e.number async for e in client.stream(work.session_id) if e.number is not None]

                readers = [asyncio.create_task(follow()) for _ in range(50)]
                assert server.site is not None
                feeds = server.site.feeds
                await wait_until_async(lambda: feeds.clients == 55, timeout=30)
                await add(work, 60, "y" * 15_000)
                await finish(work)
                async with asyncio.timeout(60):
                    for found in await asyncio.gather(*readers):
                        assert found == list(range(len(found)))
                        assert len(found) >= 65
            for connection in deaf:
                connection.close()
            await wait_until_async(lambda: feeds.clients == 0, timeout=30)


async def test_the_stream_as_a_browser_asks_for_it(tmp_path: Path) -> None:
    async with open_web(tmp_path / "o.db") as web:
        work = await start_work(web.database, entries=4)
        await finish(work)
        client = web.client(Role.VIEWER)
        path = f"/api/v1/sessions/{work.session_id}/stream"
        whole = await client.get(path)
        assert whole.headers["content-type"].startswith("text/event-stream")
        assert whole.headers["cache-control"] == "no-store"
        assert "content-length" not in whole.headers
        count = len(numbers(parsed(whole.content)))
        resumed = await client.get(path, params={"after": -1}, headers={"Last-Event-ID": "1"})
        assert numbers(parsed(resumed.content)) == list(range(2, count))
        assert parsed(resumed.content)[-1][1] == "end"
        for wrong in ({"Last-Event-ID": "x"}, {"Last-Event-ID": "99999999999999999999"}):
            assert (await client.get(path, headers=wrong)).status_code == 422
        assert (await web.client().get(path)).status_code == 401
        assert (await client.get("/api/v1/sessions/nothing/stream")).status_code == 404

"""From a ticket to the people: over real HTTP and SMTP, on both databases, by any number of servers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from operator_core import clock
from operator_core.announce.announcer import Announcer
from operator_core.announce.by_apprise import send
from operator_core.announce.digest_words import digest_words
from operator_core.announce.neutral import neutral
from operator_core.announce.projection import CHANNELS, Projection
from operator_core.announce.webhook import post
from operator_core.announce.words import Words
from operator_core.api.approval_links import ApprovalLinks
from operator_core.api.digest import make_digest
from operator_core.cli.app import app
from operator_core.config import Settings
from operator_core.db.approvals import Approvals, Question
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.errors import OperatorError
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.notify.outbox import Delivered, Later, Never, slips
from operator_core.redaction import Redactor
from tests.support import processes_of, wait_until_async
from tests.support.posts import HttpSink, http_sink, smtp_sink
from tests.support.store import column_of, finish, start_work, violation

SECRET = "a-secret-for-webhooks"
HOSTILE = "@here <!channel> [x](https://evil.example) <b onclick=x>&amp;</b> ```\n\n# APPROVED \x1b[2J\u202e"


def hook(sink: HttpSink | str, name: str = "hook", **values: Any) -> dict[str, Any]:
    url = sink if isinstance(sink, str) else f"{sink.url}/{name}"
    return {"name": name, "kind": "webhook", "url": url, "secret_env": "HOOK_SECRET", **values}


def settings_of(*channels: dict[str, Any], rules: Any = None, digest: Any = None, **others: Any) -> Settings:
    names = [channel["name"] for channel in channels]
    rules = [{"channels": names}] if rules is None else rules
    return Settings.model_validate({"notify": {"channel": channels, "rule": rules, "digest": digest}, **others})


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


def told(sink: HttpSink, name: str = "hook") -> list[tuple[int, str, str | None]]:
    """Ticket, state and reason of what came to one channel, in order."""
    news = [post.json()["ticket"] for post in sink.posts if post.path == f"/{name}"]
    return [(n["ticket_id"], n["state"], n["reason"]) for n in news]


async def test_what_a_rule_wants_told_arrives_signed_in_order_and_nothing_older(store_url: str) -> None:
    async with Database.open(store_url) as database, http_sink() as sink:
        tickets = TicketDB(database)
        await tickets.cancel_ticket((await tickets.open_ticket("old", "before anybody listened")).id or 0)
        settings = settings_of(hook(sink), rules=[{"channels": ["hook"], "states": ["open", "escalated", "canceled"]}])
        announcer = Announcer(settings, database, base_url="https://ops.example.com")
        assert await announcer.drain(10) == 0
        assert sink.posts == []
        work = await start_work(database)
        report = Draft(EntryKind.REPORT, "Nobody knows who fills the disk.", "# Report", body={"headline": "x"})
        await work.journal.append(report)
        await finish(work, TicketStatus.ESCALATED)
        await tickets.reopen_ticket(work.claim.ticket_id, actor="alice (console)")
        assert await announcer.drain(10) == 0
        n = work.claim.ticket_id
        assert told(sink) == [(n, "open", "opened"), (n, "escalated", "gave_up"), (n, "open", "by_hand")]
        last = sink.posts[1]
        assert last.json()["type"] == "ticket.escalated"
        assert last.json()["ticket"]["why"] == "Nobody knows who fills the disk."
        assert last.json()["ticket"]["url"] == f"https://ops.example.com/tickets/{n}"
        assert last.headers["webhook-id"] in await column_of(store_url, "SELECT hash FROM ledger"), "unique everywhere"
        signed = f"{last.headers['webhook-id']}.{last.headers['webhook-timestamp']}.".encode() + last.body
        expected = base64.b64encode(hmac.new(SECRET.encode(), signed, hashlib.sha256).digest()).decode()
        assert last.headers["webhook-signature"] == f"v1,{expected}"
        assert await announcer.drain(10) == 0
        assert len(sink.posts) == 3, "nothing is told twice"
        assert SECRET not in json.dumps(await column_of(store_url, "SELECT body FROM ledger"))


async def test_a_row_that_somebody_has_changed_keeps_nobody_from_being_told(tmp_path: Path) -> None:
    store, begin = str(tmp_path / "x.db"), clock.now()
    async with Database.open(store) as database, http_sink() as sink:
        announcer = Announcer(settings_of(hook(sink), rules=[{"channels": ["hook"], "states": ["open"]}]), database)
        await announcer.step()
        await TicketDB(database).open_ticket("n1", "wrong")
        await column_of(store, "DROP TRIGGER ledger_frozen")
        await column_of(store, "UPDATE ledger SET body = 'no json'")
        second = await TicketDB(database).open_ticket("n2", "wrong")
        assert await announcer.drain(10) == 0
        assert [n for n, _, _ in told(sink)] == [second.id]
        assert (await make_digest(database, begin)).opened == 1


async def test_several_servers_tell_everything_once(store_url: str) -> None:
    async with Database.open(store_url) as one, Database.open(store_url) as two, http_sink() as sink:
        settings = settings_of(hook(sink, "a"), hook(sink, "b"), rules=[{"channels": ["a", "b"], "states": ["open"]}])
        stop = asyncio.Event()
        announcers = [Announcer(settings, database, look_s=0.01) for database in (one, one, two)]
        for announcer in announcers:
            await announcer.step()
        running = [asyncio.create_task(announcer.run(stop)) for announcer in announcers]
        opened = [(await TicketDB(two).open_ticket(f"n{n}", "wrong")).id for n in range(12)]
        await wait_until_async(lambda: len(sink.posts) >= 24, 20)
        stop.set()
        await asyncio.gather(*running)
        for name in "ab":
            assert [n for n, _, _ in told(sink, name)] == opened
        assert await slips(one) == []


async def test_a_dead_channel_holds_up_no_other_and_catches_up(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as good, http_sink() as bad:
        bad.answers = [503, 500]
        bad.headers = {"Retry-After": "0"}
        settings = settings_of(
            hook(good, "good"), hook(bad, "bad"), rules=[{"channels": ["bad", "good"], "states": ["open"]}]
        )
        said: list[str] = []
        announcer = Announcer(settings, database, say=said.append, look_s=0.02)
        await announcer.step()
        stop = asyncio.Event()
        running = asyncio.create_task(announcer.run(stop))
        for n in range(3):
            await TicketDB(database).open_ticket(f"n{n}", "wrong")
        await wait_until_async(lambda: len(good.posts) == 3)
        assert len(bad.posts) == 1
        await wait_until_async(lambda: len(bad.posts) == 5, 20)
        stop.set()
        await running
        ids = [post.headers["webhook-id"] for post in bad.posts]
        assert ids[0] == ids[1] == ids[2], "a repetition can be known by its id"
        assert len(set(ids)) == 3
        assert [n for n, _, _ in told(bad, "bad")] == [1, 1, 1, 2, 3]
        assert len([line for line in said if "has to wait" in line]) == 1


@pytest.mark.parametrize(
    ("status", "kind"),
    [(200, Delivered), (204, Delivered), (302, Later), (401, Later), (404, Later), (422, Never), (429, Later)],
)
async def test_what_the_answer_of_a_webhook_means(status: int, kind: type) -> None:
    async with http_sink() as sink, http_sink() as elsewhere:
        sink.status = status
        sink.headers = {"Retry-After": "7", "Location": elsewhere.url}
        outcome = await post(sink.url, b"k" * 16, "id-1", {"x": "\ud800"})
        assert isinstance(outcome, kind)
        if isinstance(outcome, Later):
            assert outcome.after_s == 7
        assert elsewhere.posts == [], "a redirect is not followed"


async def test_a_webhook_that_cannot_be_reached_or_answers_nonsense_waits() -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"\x00\xff" * 100_000)
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    assert isinstance(await post(f"http://127.0.0.1:{port}/", b"k" * 16, "i", {}), Later)
    server.close()
    await server.wait_closed()
    assert isinstance(await post(f"http://127.0.0.1:{port}/", b"k" * 16, "i", {}), Later)
    assert isinstance(await post("http://[::bad", b"k" * 16, "i", {}), Later)


async def test_what_cannot_be_delivered_for_too_long_is_given_up_and_the_channel_goes_on(tmp_path: Path) -> None:
    store = str(tmp_path / "x.db")
    async with Database.open(store) as database, http_sink() as sink:
        sink.answers = [503]
        said: list[str] = []
        settings = settings_of(hook(sink, give_up_hours=0.0001), rules=[{"channels": ["hook"], "states": ["open"]}])
        projection, announcer = Projection(settings.notify, database), Announcer(settings, database, say=said.append)
        await projection.step()
        for n in range(2):
            await TicketDB(database).open_ticket(f"n{n}", "wrong")
        assert (await projection.step()).letters == 2
        await asyncio.sleep(0.4)
        assert await announcer.drain(10) == 0
        assert [n for n, _, _ in told(sink)] == [1, 2]
        assert "is given up: it could not be delivered for 0.0001 hours: it was answered with status 503" in said[0]
        # What happened so long ago that it would be given up is no news either.
        await TicketDB(database).open_ticket("n3", "wrong")
        await asyncio.sleep(0.4)
        assert (await projection.step()).letters == 0


async def test_a_channel_that_is_gone_or_not_usable_costs_nothing(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as sink:
        rules = [{"channels": ["gone", "wrong", "hook"], "states": ["open"]}]
        wrong = hook(sink, "wrong", secret_env="NOT_SET")
        before = settings_of(hook(sink, "gone"), wrong, hook(sink), rules=rules)
        projection = Projection(before.notify, database)
        await projection.step()
        await TicketDB(database).open_ticket("n", "wrong")
        await projection.step()
        after = settings_of(wrong, hook(sink), rules=[{"channels": ["wrong", "hook"], "states": ["open"]}])
        assert await Announcer(after, database).drain(1) == 1
        assert [(s.channel, s.error) for s in await slips(database)] == [
            (f"{CHANNELS}wrong", "The secret of channel wrong is missing; set the variable NOT_SET of the server."),
            (f"{CHANNELS}gone", "there is no such channel any more"),
        ]
        assert len(told(sink)) == 1


async def test_a_storm_becomes_one_message_for_people_and_every_one_for_programs(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as sink:
        people = {"name": "people", "kind": "apprise", "url_file": str(tmp_path / "address")}
        (tmp_path / "address").write_text(f"ntfy://127.0.0.1:{sink.port}/topic12")
        settings = settings_of(people, hook(sink), rules=[{"channels": ["people", "hook"], "states": ["open"]}])
        announcer = Announcer(settings, database, base_url="http://c")
        await announcer.step()
        for n in range(30):
            await TicketDB(database).create_or_update_ticket(violation(f"n{n}"))
        assert await announcer.step() > 10, "the next look is not at once"
        assert await announcer.drain(30) == 0
        assert len(told(sink)) == 30
        (message,) = [post.json() for post in sink.posts if post.path == "/"]
        assert message["title"] == "30 changes: 30 opened"
        assert message["message"].endswith("- and 20 more\nhttp://c/")


# ---- apprise


async def test_mail_is_sent_and_its_html_holds_no_markup_of_others() -> None:
    async with smtp_sink() as sink:
        url = f"mailto://alice:secret12@127.0.0.1:{sink.port}?to=bob@example.com&from=ops@example.com"
        words = Words(f"#1 {neutral(HOSTILE)}", f"{neutral(HOSTILE)}\nhttps://ops.example.com/tickets/1")
        assert await send(url, words) == Delivered()
        assert await send(f"{url}&format=html", words) == Delivered()
        assert sink.recipients == ["bob@example.com"] * 2
        plain, html = sink.mails
        assert plain["Subject"].startswith("#1 @\u2060here ‹!channel›")
        assert "https://ops.example.com/tickets/1" in plain.get_content()
        body = html.get_body(("html",))
        assert body is not None
        assert "onclick" in body.get_content()
        assert "<b " not in body.get_content()
        assert "https://ops.example.com/tickets/1" in body.get_content()
        sink.refuse = "550 nobody here, secret12"
        refused = await send(url, words)
        assert isinstance(refused, Later)
        assert "secret12" not in refused.why


async def test_a_chat_gets_no_mention_and_no_link_of_others() -> None:
    async with http_sink() as sink:
        words = Words(neutral(HOSTILE), f"{neutral(HOSTILE)}\nhttps://ops.example.com/tickets/1")
        assert await send(f"mmost://127.0.0.1:{sink.port}/tokentoken12", words) == Delivered()
        text = sink.posts[0].json()["text"]
        assert "@here" not in text
        assert "](" not in text
        assert "https://evil" not in text
        assert "`" not in text
        assert text.endswith("https://ops.example.com/tickets/1")
        assert "icon_url" not in sink.posts[0].json(), "no picture of a stranger's server"


async def test_a_service_that_hangs_is_left_at_the_deadline_and_nothing_stays(tmp_path: Path) -> None:
    async with http_sink() as sink:
        sink.hang = True
        url = f"ntfy://127.0.0.1:{sink.port}/topic{tmp_path.name}?rto=60"
        began = clock.monotonic()
        assert isinstance(await send(url, Words("t", "b"), deadline_s=4), Later)
        assert clock.monotonic() - began < 20
        before = len(sink.posts)
        waiting = asyncio.create_task(send(url, Words("t", "b")))
        await wait_until_async(lambda: len(sink.posts) > before, 25)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert processes_of("operator_core.announce.apprise_child") == []


async def test_an_endless_answer_is_not_read_to_its_end() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * (1 << 20))
                await writer.drain()
        except ConnectionError:
            writer.close()

    server = await asyncio.start_server(endless, "127.0.0.1", 0)
    url = f"ntfy://127.0.0.1:{server.sockets[0].getsockname()[1]}/topic12"
    outcome = await send(url, Words("t", "b"), deadline_s=20)
    assert isinstance(outcome, Later)
    server.close()


async def test_a_password_reaches_neither_the_outbox_nor_a_log_nor_a_command_line(tmp_path: Path) -> None:
    store, password = str(tmp_path / "x.db"), "correct-horse-battery"
    (tmp_path / "address").write_text(f"ntfy://user:{password}@127.0.0.1:1/topic-of-mine")
    people = {"name": "people", "kind": "apprise", "url_file": str(tmp_path / "address")}
    said: list[str] = []
    async with Database.open(store, redactor=Redactor()) as database:
        announcer = Announcer(
            settings_of(people, rules=[{"channels": ["people"], "states": ["open"]}]), database, say=said.append
        )
        await announcer.step()
        await TicketDB(database).open_ticket("n", "wrong")
        assert await announcer.drain(2) == 1
        (slip,) = await slips(database)
    assert slip.error
    assert said
    assert password not in f"{slip} {said}"
    for path in tmp_path.glob("x.db*"):
        assert password.encode() not in path.read_bytes()


# ---- approvals


async def ask(database: Database, n: int = 1) -> list[str]:
    """A session that rests because calls of it wait for a person; their ids."""
    work = await start_work(database)
    approvals = Approvals(database)
    questions = [Question(f"t{i}", "shell", {"command": f"rm {i}"}, "rm is asked for") for i in range(n)]
    held = [question.call_id for question in questions]
    await approvals.ask(work.journal, questions, held, 60)
    asked = await approvals.listed(ticket_id=work.claim.ticket_id)
    assert await approvals.park(work.claim, asked[0].id)
    return sorted(approval.id for approval in asked)


@pytest.mark.parametrize("links", [True, False])
async def test_each_question_for_approval_is_told_with_its_link_where_that_is_wanted(
    store_url: str, tmp_path: Path, links: bool
) -> None:
    async with Database.open(store_url) as database, http_sink() as sink:
        settings = settings_of(hook(sink, approval_links=links), worker={"state_dir": str(tmp_path)})
        announcer = Announcer(settings, database, base_url="https://ops.example.com")
        await announcer.step()
        ids = await ask(database, 2)
        assert await announcer.drain(10) == 0
        messages = [post.json()["ticket"] for post in sink.posts]
        assert sorted(message["approval_id"] for message in messages) == ids
        reader = ApprovalLinks(database)
        for message in messages:
            assert (message["state"], message["reason"]) == ("waiting_for_input", "needs_approval")
            assert (message["tool"], message["why"]) == ("shell", "rm is asked for")
            if links:
                begin, _, token = message["approval_url"].rpartition("/")
                assert begin == "https://ops.example.com/a"
                assert await reader.read(token) == message["approval_id"]
                # Whoever can read the store can answer nothing with it.
                for table in ("outbox", "ledger"):
                    assert token not in json.dumps(await column_of(store_url, f"SELECT body FROM {table}"))
            else:
                assert message["approval_url"] is None


async def test_a_question_that_was_answered_meanwhile_is_asked_nobody(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as sink:
        announcer = Announcer(settings_of(hook(sink)), database)
        await announcer.step()
        (approval,) = await ask(database)
        await announcer.step()
        await Approvals(database).decide(approval, False)
        assert await announcer.drain(10) == 0
        assert sink.posts == []


async def test_a_question_of_the_agent_is_in_the_message(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as sink:
        announcer = Announcer(settings_of(hook(sink)), database)
        await announcer.step()
        work = await start_work(database)
        await work.journal.append(
            Draft(EntryKind.OUTCOME, "It asks.", "Which disk is it?", meta={"outcome": "blocked"})
        )
        assert await work.queue.park(work.claim, 0)
        assert await announcer.drain(10) == 0
        assert told(sink) == [(1, "waiting_for_input", "asked_a_person")]
        assert sink.posts[0].json()["ticket"]["why"] == "Which disk is it?"


# ---- the digest


async def night(database: Database) -> None:
    """One proved, one escalated, one by hand, one that went away and came back, one canceled, one that waits."""
    tickets = TicketDB(database)
    done = await start_work(database)
    await done.journal.append(Draft(EntryKind.REPORT, "Log rotation was off; it is on.", "# Report", body={}))
    await finish(done)
    await finish(await start_work(database), TicketStatus.ESCALATED)
    await tickets.resolve_ticket((await tickets.open_ticket("cert", "expires")).id or 0, actor="alice")
    for _ in range(2):
        await tickets.create_or_update_ticket(violation("cpu"))
        await tickets.auto_resolve_cleared(set(), only_keys={"cpu"})
    await tickets.cancel_ticket((await tickets.open_ticket("x", "y")).id or 0)
    waiting = await start_work(database)
    assert await waiting.queue.park(waiting.claim, 0)


async def test_the_digest_tells_what_happened_in_its_time(store_url: str) -> None:
    async with Database.open(store_url) as database:
        begin = clock.now()
        await night(database)
        end = clock.now()
        await TicketDB(database).open_ticket("later", "not in it")
        made = await make_digest(database, begin, end)
        counts = (made.proved, made.by_hand, made.escalated, made.canceled, made.cleared, made.waiting)
        assert counts == (1, 1, 1, 1, 2, 1)
        assert made.opened == 7
        assert [(line.ticket_id, line.reason) for line in made.resolved_lines] == [(1, "verified"), (3, "by_hand")]
        assert made.resolved_lines[0].why == "Log rotation was off; it is on."
        assert made.escalated_lines[0].why == "found"
        assert [line.name for line in made.waiting_lines] == ["disk"]
        assert (made.untaken, [line.name for line in made.untaken_lines]) == (1, ["later"]), "that is as of now"
        assert made.stalled is None, "a worker lives"
        assert [(often.name, often.times) for often in made.top] == [("disk", 3), ("cpu", 2)]
        assert made.sessions == 3
        before = await make_digest(database, begin - timedelta(days=1), begin)
        assert (before.opened, before.proved, before.resolved_lines) == (0, 0, [])


async def test_the_digest_lists_what_ended_last_at_the_end(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database:
        tickets = TicketDB(database)
        numbers = [(await tickets.open_ticket(f"n{n}", "wrong")).id or 0 for n in range(40)]
        for number in reversed(numbers):
            await tickets.resolve_ticket(number)
        made = await make_digest(database, clock.now() - timedelta(hours=1))
        assert made.by_hand == 40
        assert [line.ticket_id for line in made.resolved_lines] == list(range(15, 0, -1))
        assert (made.untaken, made.stalled) == (0, None)


async def test_the_digest_says_that_nobody_is_there(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database:
        await TicketDB(database).open_ticket("disk", "full")
        made = await make_digest(database, clock.now() - timedelta(hours=1))
        assert (made.untaken, made.escalated_now, made.waiting) == (1, 0, 0)
        words = digest_words(made, None)
        assert words.title == "Operator: 1 open that no worker has"
        assert "No worker is running; start one with" in words.body


async def test_the_daily_digest_is_sent_once_by_however_many_servers(tmp_path: Path) -> None:
    async with Database.open(tmp_path / "x.db") as database, http_sink() as sink:
        await night(database)
        at = f"{clock.now() - timedelta(minutes=1):%H:%M}"
        settings = settings_of(hook(sink), rules=[], digest={"channels": ["hook"], "at": at})
        for _ in range(3):
            announcer = Announcer(settings, database)
            await announcer.step()
            assert await announcer.drain(10) == 0
        (message,) = [post.json() for post in sink.posts]
        assert message["type"] == "digest"
        assert message["digest"]["waiting"] == 1


# ---- the command line


async def test_the_commands(tmp_path: Path) -> None:
    store, config = tmp_path / "x.db", tmp_path / "operator.toml"
    async with http_sink() as sink, Database.open(store) as database:
        await night(database)
        config.write_text(f"""
[[notify.channel]]
name = "hook"
kind = "webhook"
url = "{sink.url}/hook"
secret_file = "secret"

[[notify.channel]]
name = "wrong"
kind = "apprise"
url_env = "NOT_SET"

[[notify.rule]]
channels = ["hook"]
""")
        (tmp_path / "secret").write_text(SECRET)

        async def operator(*words: str) -> tuple[int, str]:
            command = ["--config", str(config), "--db", str(store), *words]
            done = await asyncio.to_thread(CliRunner().invoke, app, command)
            refused = isinstance(done.exception, OperatorError)
            return done.exit_code, f"Error: {done.exception}\n" if refused else done.output

        code, out = await operator("notify", "list")
        assert (code, "set the variable NOT_SET" in out) == (0, True)
        assert SECRET not in out
        assert await operator("notify", "test", "hook") == (0, "Channel hook took the message.\n")
        assert sink.posts[-1].json()["type"] == "test"
        sink.status = 500
        code, out = await operator("notify", "test", "hook")
        assert (code, out) == (
            1,
            "Error: Channel hook did not take the message: it was answered with status 500.\n",
        )
        sink.status = 200
        code, out = await operator("digest", "--since", "12h", "--send", "hook")
        assert code == 0
        assert out.startswith("Operator: 1 resolved and proved, 1 resolved by hand, 1 needs a person, 1 waiting for an")
        assert "Channel hook took the message." in out
        assert sink.posts[-1].json()["digest"]["proved"] == 1
        code, out = await operator("digest", "--json")
        assert json.loads(out)["escalated"] == 1
        code, out = await operator("digest", "--since", "yesterday")
        assert (code, out[:23]) == (1, "Error: 'yesterday' is n")
        # A letter that waits, and one that is asked to go again.
        sink.status = 503
        announcer = Announcer(settings_of(hook(sink)), database)
        await announcer.step()
        await finish(await start_work(database))
        assert await announcer.drain(1) == 1
        code, out = await operator("notify", "outbox")
        assert "it was answered with status 503" in out
        assert "NEXT TRY" in out
        letter = (await slips(database))[0].id
        assert (await operator("notify", "again", str(letter)))[0] == 0
        sink.status = 200
        assert await announcer.drain(10) == 0
        assert await operator("notify", "outbox") == (0, "Everything has gone out.\n")


async def test_the_verification_of_the_documentation_knows_what_is_genuine() -> None:
    page = (Path(__file__).parents[2] / "docs" / "notifications.md").read_text("utf-8")
    names: dict[str, Any] = {}
    exec(page.partition("```python\n")[2].partition("```")[0], names)  # our own documentation
    async with http_sink() as sink:
        await post(sink.url, SECRET.encode(), "id-1", {"type": "test"})
        (got,) = sink.posts
        genuine = names["genuine"]
        assert genuine(got.headers, got.body, SECRET)
        assert not genuine(got.headers, got.body + b" ", SECRET)
        assert not genuine({**got.headers, "webhook-id": "id-2"}, got.body, SECRET)
        assert not genuine({**got.headers, "webhook-timestamp": "1"}, got.body, SECRET)
        assert not genuine(got.headers, got.body, SECRET + "x")

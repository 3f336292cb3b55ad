"""`operator --server URL`: the same commands, on a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from operator_core.client import Client
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.db.tokens import Tokens
from operator_core.model.entry import Draft
from operator_core.model.person import Role
from operator_core.model.ticket import TicketKind, TicketStatus
from tests.support import free_port, wait_until_async
from tests.support.processes import operator_environment
from tests.support.store import Work, finish, start_work
from tests.support.web import Served, served

HOSTILE = "\x1b]0;owned\x07\x1b[2J[bold red]stop[/bold red]\u202e\x9b1A"
RAW = ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07")


class There(NamedTuple):
    """A server with tickets #1 (escalated, with session) and #2 (open, hostile), and the folder one calls it from."""

    server: Served
    store: Path
    session: str
    folder: Path

    def call(self, *words: str, role: Role = Role.OPERATOR, **environment: str) -> subprocess.CompletedProcess[str]:
        env = {**operator_environment(), "OPERATOR_TOKEN": self.server.tokens[role], **environment}
        command = [sys.executable, "-m", "operator_core", "--server", self.server.url, *words]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=self.folder
        )

    def said(self, *words: str) -> str:
        done = self.call(*words)
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout

    def document(self, *words: str) -> Any:
        text = self.said(*words, "--json")
        assert text.isascii()
        return json.loads(text)

    def refused(self, *words: str, code: int = 2, role: Role = Role.OPERATOR, **environment: str) -> str:
        done = self.call(*words, role=role, **environment)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.count("\n") == 1
        assert "Traceback" not in done.stderr
        return done.stderr


@pytest.fixture
def there(tmp_path: Path) -> Iterator[There]:
    store, folder = tmp_path / "store" / "operator.db", tmp_path / "elsewhere"
    store.parent.mkdir()
    folder.mkdir()

    async def fill() -> str:
        async with Database.open(store) as database:
            work = await start_work(database, entries=4)
            await finish(work, TicketStatus.ESCALATED)
            await TicketDB(database).open_ticket("hostile", HOSTILE)
            return work.session_id

    session = asyncio.run(fill())
    with served(store) as server:
        yield There(server, store, session, folder)


def test_a_ticket_s_life(there: There) -> None:
    listed = there.document("tickets", "list")
    assert [(t["id"], t["status"]) for t in listed] == [(2, "open"), (1, "escalated")]
    assert [t["id"] for t in there.document("tickets", "list", "-s", "escalated", "-n", "1")] == [1]
    text = there.said("tickets", "list") + there.said("tickets", "show", "2")
    assert not any(raw in text for raw in RAW)
    for words, state, held in (
        (("hold", "2"), "open", True),
        (("unhold", "2"), "open", False),
        (("resolve", "2", "--note", "by hand"), "resolved", False),
        (("reopen", "2"), "open", False),
        (("cancel", "2"), "canceled", False),
    ):
        ticket = there.document("tickets", *words)
        assert (ticket["status"], ticket["held"]) == (state, held)
    shown = there.document("tickets", "show", "2")
    moves = [(h["old"], h["new"], h["actor"]) for h in shown["history"] if h["kind"] == "transition"][1:]
    assert moves == [
        (a, b, "test operator (api)") for a, b in (("open", "resolved"), ("resolved", "open"), ("open", "canceled"))
    ]
    assert "is open; it has no check" in there.said("tickets", "open", "disk", "It is full.")


def test_a_hint_can_be_typed_as_it_stands(there: There) -> None:
    text = there.said("submit", "Do it.", "--name", "hinted")
    hint = re.search(r"`operator ([^`]*)`", text)
    assert hint is not None
    env = {**operator_environment(), "OPERATOR_TOKEN": there.server.tokens[Role.VIEWER]}
    command = [sys.executable, "-m", "operator_core", *shlex.split(hint[1])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env, cwd=there.folder)
    assert (done.returncode, "hinted" in done.stdout) == (0, True), done
    assert f"list them with `operator --server {there.server.url} tickets list`." in there.refused(
        "tickets", "show", "99", code=1
    )


def test_the_digest_of_a_server(there: There) -> None:
    text = there.said("digest", "--since", "12h")
    assert "1 needs a person" in text
    assert f"{there.server.url}/tickets/1" in text
    assert there.document("digest")["escalated"] == 1
    assert "--send uses the channels of this machine" in there.refused("digest", "--send", "hook")
    assert json.loads(there.call("digest", "--json", role=Role.VIEWER).stdout)["escalated"] == 1


@pytest.mark.deep
def test_a_ticket_is_shown_as_on_its_own_machine(there: There) -> None:
    env = operator_environment()
    command = [sys.executable, "-m", "operator_core", "--db", str(there.store)]
    # A report is exported where the store is.
    for words in (
        ("tickets", "list"),
        ("tickets", "list", "--status", "escalated"),
        ("approvals", "list"),
        ("digest",),
    ):
        here = subprocess.run(
            [*command, *words, "--json"], capture_output=True, text=True, timeout=60, check=True, env=env
        )
        mine, theirs = json.loads(here.stdout), there.document(*words)
        if words == ("digest",):  # each has its own end
            assert [set(mine), mine["escalated_lines"]] == [set(theirs), theirs["escalated_lines"]]
        else:
            assert mine == theirs
        assert not re.search(r"[0-9]Z\"", here.stdout), "one form of times"
    proof = re.compile(r"^The proof, or what is missing: .*\n", re.M)
    for words in (
        ("tickets", "show", "1"),
        ("sessions", "show", there.session, "--full"),
        ("sessions", "show", there.session, "--json"),
        ("sessions", "list"),
        ("sessions", "tail", there.session, "-n", "3", "--json"),
    ):
        here = subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=True, env=env)
        as_there = proof.sub("", here.stdout).replace(f"--db {there.store} ", f"--server {there.server.url} ")
        assert there.said(*words) == as_there, words


def test_a_task(there: There) -> None:
    (there.folder / "check.sh").write_text("test -f done\n")
    (there.folder / "check.sh").chmod(0o755)
    task = there.document("submit", "Do it.", "--check", "./check.sh", "--check-file", "check.sh=tools/check.sh")
    (file,) = task["check_spec"]["check_files"]
    assert (file["path"], file["executable"]) == ("tools/check.sh", True)
    assert "No worker called far is running" in there.said("submit", "Do it.", "--check", "test -f x", "--on", "far")
    assert "which only an admin may name" in there.refused("submit", "Do it.", "--repo", str(there.folder))
    assert "no plain file" in there.refused("submit", "x", "--check-file", str(there.folder))
    assert "nobody reads a message" in there.refused("steer", "1", "Go on.", code=1)
    asked = there.call("submit", "-", "--json", "--check", "test -f y")
    assert asked.returncode == 2, "standard input is empty"


def test_the_journal(there: There) -> None:
    assert "is intact" in there.said("audit", "verify")
    assert there.document("audit", "verify", "--session", there.session)["ok"]

    async def break_it() -> None:
        async with Database.open(there.store) as database, database.begin() as c:
            await c.exec_driver_sql("DROP TRIGGER agent_log_entries_frozen")
            await c.exec_driver_sql("UPDATE agent_log_entries SET raw_content = 'x' WHERE seq = 2")

    asyncio.run(break_it())
    assert "not what was written" in there.refused("audit", "verify", code=1)


def test_what_does_not_work_says_so(there: There, tmp_path: Path) -> None:
    assert "only" in there.refused("doctor")
    assert "works on the store itself" in there.refused("audit", "export", there.session)
    assert "give one of them" in there.refused("tickets", "list", "--db", str(there.store))
    assert "OPERATOR_TOKEN" in there.refused("tickets", "list", OPERATOR_TOKEN="")
    assert "does not know this token" in there.refused("tickets", "list", OPERATOR_TOKEN="op_0_0")
    assert "role operator" in there.refused("cancel", "2", role=Role.VIEWER)
    assert "no ticket #77" in there.refused("tickets", "show", "77", code=1)
    assert "no approval '77'" in there.refused("approvals", "approve", "77", code=1)
    assert "name the invariant" in there.refused("tickets", "open", "x", "y", "--subject", "z")
    assert "--token-file" in there.refused("tickets", "list", "--token-file", str(tmp_path / "none"))
    assert "holds no token" in there.refused("tickets", "list", "--token-file", os.devnull)
    assert "must say something" in there.refused("reply", "1", " ")
    assert "must say what is to be done" in there.refused("submit", "")
    file = tmp_path / "token"
    file.write_text(there.server.tokens[Role.VIEWER] + "\n")
    done = there.call("tickets", "list", "--token-file", str(file), OPERATOR_TOKEN="")
    assert (done.returncode, done.stderr) == (0, "")
    env = {**operator_environment(), "OPERATOR_TOKEN": "op_a_b"}
    for url, said in (
        (f"http://127.0.0.1:{free_port()}", "cannot be reached"),
        ("http://operator.example.com", "in the clear"),
        ("nonsense", "not the address"),
    ):
        command = [sys.executable, "-m", "operator_core", "tickets", "hold", "1", "--server", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=env)
        assert done.returncode in (1, 2), done
        assert said in done.stderr
        assert "op_a_b" not in done.stderr


def test_waiting_for_a_task_on_a_server(there: There) -> None:
    """The command waits and shows every step; the exit code says how it ended."""
    command = [sys.executable, "-m", "operator_core", "submit", "Do it.", "--follow", "--check", "test -f x"]
    env = {**operator_environment(), "OPERATOR_TOKEN": there.server.tokens[Role.OPERATOR]}
    waiting = subprocess.Popen(
        [*command, "--priority", "9", "--server", there.server.url], stdout=subprocess.PIPE, text=True, env=env
    )

    async def work() -> None:
        async with Database.open(there.store) as database:
            tickets, queue, audit = TicketDB(database), WorkQueue(database), AuditLogDB(database)
            await queue.register("w", 60)
            claims: list[Claim] = []
            async with asyncio.timeout(40):
                while not claims:
                    if any(t.kind is TicketKind.TASK for t in await tickets.list_tickets("open")):
                        claims = await queue.claim("w")
                    await asyncio.sleep(0.1)
            claim = claims[0]
            session = await audit.create_session(claim.ticket_id, claim=claim)
            journal = await audit.journal(session, claim)
            await journal.append(Draft("reasoning", HOSTILE, HOSTILE, phase="worker_1"))
            await asyncio.sleep(1.5)
            await journal.append(Draft("reasoning", "the last step", "the last step", phase="verifier_1"))
            await finish(Work(tickets, audit, queue, claim, session, journal), TicketStatus.ESCALATED)

    try:
        asyncio.run(work())
        said, _ = waiting.communicate(timeout=40)
    finally:
        waiting.kill()
        waiting.wait()
    assert waiting.returncode == 1
    lines = said.splitlines()
    assert lines[0] == "Ticket #3 is open."
    assert [line for line in lines if line.startswith("## ")] == ["## worker_1", "## verifier_1"]
    assert said.count("the last step") == 1
    assert "Ticket #3 is escalated: gave_up." in said
    assert not any(raw in said for raw in RAW)


@pytest.mark.deep
def test_a_command_that_waits_outlives_a_restart_of_the_server(there: There) -> None:
    env = {**operator_environment(), "OPERATOR_TOKEN": there.server.tokens[Role.OPERATOR]}
    port = int(there.server.url.rpartition(":")[2])

    def begun(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "operator_core", "--server", there.server.url, *words]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env)

    async def canceled() -> None:
        async with Database.open(there.store) as database:
            await TicketDB(database).cancel_ticket(3)

    with begun("submit", "Do it.", "--wait") as waiting:
        assert waiting.stdout is not None
        try:
            for said in waiting.stdout:
                if "No worker is running" in said:
                    break
            there.server.stop()
            assert "cannot be reached" in (line := waiting.stdout.readline()), line
            assert "What was asked for stays there" in line
            with served(there.store, tokens=there.server.tokens, port=port):
                assert waiting.stdout.readline() == "The server answers again.\n"
                asyncio.run(canceled())
                rest = waiting.communicate(timeout=40)[0]
        finally:
            waiting.kill()
    assert waiting.returncode == 1
    assert "Ticket #3 is canceled" in rest


async def test_a_stream_goes_on_where_it_was_when_the_server_was_killed(tmp_path: Path) -> None:
    """Real processes, ended without a word: no entry is missing, and none comes twice."""
    store, port = tmp_path / "operator.db", free_port()
    command = [sys.executable, "-m", "operator_core", "serve", "--db", str(store), "--port", str(port)]

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=operator_environment()
        )

    async with Database.open(store) as database:
        token = (await Tokens(database).create("reader", Role.VIEWER, by="test")).text
        work = await start_work(database, entries=20)
        seen: list[int] = []

        async def read(client: Client) -> None:
            async for event in client.stream(work.session_id):
                if event.number is not None:
                    seen.append(event.number)

        server = start()
        try:
            await wait_until_async(lambda: answers(port), timeout=60)
            async with Client(f"http://127.0.0.1:{port}", token) as client:
                reading = asyncio.create_task(read(client))
                for count in (20, 30):
                    await wait_until_async(partial(has, seen, count), timeout=30)
                    server.kill()
                    server.wait()
                    for n in range(10):
                        await work.journal.append(Draft("reasoning", f"while nobody serves {n}", "x"))
                    server = start()
                await finish(work)
                await asyncio.wait_for(reading, 60)
        finally:
            server.kill()
            server.wait()
    assert seen == list(range(len(seen)))
    assert len(seen) >= 40


def has(found: list[int], count: int) -> bool:
    return len(found) >= count


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0

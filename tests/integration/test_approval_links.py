"""Approvals over HTTP: the API, and a link that answers one question without signing in."""

from __future__ import annotations

import asyncio
import base64
import re
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest

from operator_core import clock
from operator_core.api.approval_links import ApprovalLinks
from operator_core.config import Settings
from operator_core.db.approvals import Approvals, Question
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.ledger import ticket_history
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.approval import Approval
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from tests.support import run_operator
from tests.support.web import BASE, WebSite, open_web, served

HOSTILE = "<script>alert(1)</script> \x1b[31m \u202e{{7*7}}"


@asynccontextmanager
async def asked(folder: Path, *, expire_s: float = 60.0) -> AsyncIterator[tuple[WebSite, Approval]]:
    """A site, and a question about a hostile call whose ticket waits."""
    settings = Settings.model_validate({"worker": {"state_dir": folder / "state"}, "approvals": {"expire_s": expire_s}})
    async with open_web(folder / "operator.db", settings) as web:
        yield web, await question(web, expire_s)


async def question(web: WebSite, expire_s: float = 60.0) -> Approval:
    tickets, queue, audit = TicketDB(web.database), WorkQueue(web.database), AuditLogDB(web.database)
    ticket = await tickets.open_ticket("disk-full", "The disk is full.")
    worker = clock.new_id()
    await queue.register(worker, 600)
    (claim,) = await queue.claim(worker)
    assert claim.ticket_id == ticket.id
    journal = await audit.journal(await audit.create_session(ticket.id, claim=claim), claim)
    journal.phase = "worker_1"
    approvals = Approvals(web.database)
    call = Question(f"toolu_{ticket.id}", "shell", {"command": HOSTILE, "reasoning": "r"}, HOSTILE)
    await approvals.ask(journal, [call], [call.call_id], expire_s)
    (found,) = await approvals.listed(ticket_id=ticket.id)
    assert await approvals.park(claim, found.id)
    return found


async def link(web: WebSite, found: Approval) -> str:
    url = await ApprovalLinks(web.database).make(found.id, BASE, "ops")
    assert url is not None
    return url


async def state(web: WebSite, found: Approval) -> str:
    return (await Approvals(web.database).get(found.id)).state


async def test_a_link_shows_and_answers_one_question(tmp_path: Path) -> None:
    async with asked(tmp_path) as (web, found):
        url, anybody = await link(web, found), web.client()
        page = await anybody.get(url)
        assert page.status_code == 200
        # Whoever only looks, as a program that previews links does, has said nothing.
        assert await state(web, found) == "pending"
        assert not [bad for bad in ("<script>alert", "\x1b", "\u202e") if bad in page.text]
        assert "49" not in page.text.split("{{7*7}}")[0][-5:]
        assert page.headers["cache-control"] == "no-store"
        assert page.headers["referrer-policy"] in ("no-referrer", "same-origin")
        done = await anybody.post(url, data={"answer": "approve", "note": "fine"})
        assert done.status_code == 200
        assert await state(web, found) == "approved"
        assert (await TicketDB(web.database).get_ticket(found.ticket_id)).status is TicketStatus.OPEN
        story = await ticket_history(web.database, found.ticket_id)
        assert [r.body["actor"] for r in story if r.kind == "approval_approved"] == ["somebody (link)"]
        again = await anybody.post(url, data={"answer": "deny"})
        assert again.status_code == 409
        assert "approved this call already" in again.text
        assert await state(web, found) == "approved"


async def test_a_link_is_for_nothing_else(tmp_path: Path) -> None:
    async with asked(tmp_path) as (web, found):
        other = await question(web)
        url, anybody = await link(web, found), web.client()
        head, _, token = url.rpartition("/")
        data = bytearray(base64.urlsafe_b64decode(token))
        data[:16] = bytes.fromhex(other.id)
        swapped = base64.urlsafe_b64encode(bytes(data)).decode()
        wrong = [swapped, token[:-1] + ("A" if token[-1] != "A" else "B"), token[::-1], "A" * 64]
        for text in wrong:
            posted = await anybody.post(f"{head}/{text}", data={"answer": "approve"})
            assert ((await anybody.get(f"{head}/{text}")).status_code, posted.status_code) == (404, 404), text
        for text in ("A" * 63, token[:40], token + ".", "é" * 64, "A" * 5000, "..%2f..%2fetc", "%00" * 64):
            assert (await anybody.get(f"{head}/{text}")).status_code in (404, 414), text
        # A program that cut a link is nothing that its reader could understand.
        cut = await anybody.get(f"{head}/{token[:40]}", headers={"Accept": "text/html"})
        assert "This link is not good, or not any more" in cut.text
        assert (await state(web, found), await state(web, other)) == ("pending", "pending")
        # It opens no other door.
        for path in ("/api/v1/approvals", f"/api/v1/approvals/{found.id}", f"/tickets/{found.ticket_id}"):
            assert (await anybody.get(path, headers={"Authorization": f"Bearer {token}"})).status_code in (303, 401)


async def test_a_link_ends(tmp_path: Path) -> None:
    async with asked(tmp_path, expire_s=2.0) as (web, found):
        url, anybody = await link(web, found), web.client()
        assert (await anybody.get(url)).status_code == 200
        await asyncio.sleep(max(0.0, (found.expires_at - clock.now()).total_seconds()) + 0.05)
        assert (await anybody.post(url, data={"answer": "approve"})).status_code == 404
        assert await state(web, found) == "expired"
        # Nor does an old message show for ever what was asked, and how its ticket fares.
        page = await anybody.get(url)
        assert page.status_code == 404
        assert "disk-full" not in page.text


async def test_a_form_of_another_site_answers_nothing(tmp_path: Path) -> None:
    async with asked(tmp_path) as (web, found):
        headers = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
        answer = await web.client().post(await link(web, found), data={"answer": "approve"}, headers=headers)
        assert answer.status_code == 403
        nothing = await web.client().post(await link(web, found), data={"answer": "perhaps"})
        assert nothing.status_code == 422
        assert await state(web, found) == "pending"


async def test_only_what_was_made_is_read(tmp_path: Path) -> None:
    async with asked(tmp_path) as (web, found):
        links = ApprovalLinks(web.database)
        token = (await link(web, found)).rpartition("/")[2]
        assert re.fullmatch(r"[A-Za-z0-9_-]{64}", token)
        assert await links.read(token) == found.id
        same = string.ascii_letters + string.digits + "-_"
        for at in range(64):
            for other in (same[(same.index(token[at]) + 1) % 64], "=", "\u00e9", ""):
                assert await links.read(token[:at] + other + token[at + 1 :]) is None
        # Of what is on record nothing can be made that answers: only the hash of a link is.
        row, *_ = [r for r in await ticket_history(web.database, found.ticket_id) if r.kind == "approval_link"]
        assert (row.body["reason"], row.body["approval"]) == ("sent to ops", found.id)
        assert token not in str(row.body)
        forged = bytes.fromhex(found.id) + bytes.fromhex(row.body["digest"])
        assert await links.read(base64.urlsafe_b64encode(forged).decode()) is None
        while not set(token) & set("-_"):
            token = (await link(web, found)).rpartition("/")[2]
        assert await links.read(token) == found.id
        assert await links.read(token.replace("-", "+").replace("_", "/")) is None, "one link has one form"
        for strange in ("../../etc", found.id.upper(), "0" * 32, ""):
            assert await links.make(strange, BASE, "ops") is None


async def test_a_question_that_is_over_gets_no_link(tmp_path: Path) -> None:
    async with asked(tmp_path) as (web, found):
        await Approvals(web.database).decide(found.id, False)
        assert await ApprovalLinks(web.database).make(found.id, BASE, "ops") is None
        assert "approval_link" not in [r.kind for r in await ticket_history(web.database, found.ticket_id)]


@pytest.mark.parametrize("approve", [True, False])
async def test_a_link_is_good_on_every_server_of_the_store_and_on_no_other(
    store_url: str, tmp_path: Path, approve: bool
) -> None:
    """No file is shared: each of the servers has a state folder of its own, on a machine of its own."""
    one, two = (Settings.model_validate({"worker": {"state_dir": tmp_path / name}}) for name in ("one", "two"))
    async with open_web(store_url, one) as web, open_web(tmp_path / "other.db") as stranger:
        found = await question(web)
        path = (await link(web, found)).removeprefix(BASE)
        assert (await stranger.client().get(path)).status_code == 404
        with served(store_url, two, tokens=web.tokens) as second:
            async with httpx2.AsyncClient(base_url=second.url) as anybody:
                assert (await anybody.get(path)).status_code == 200
                done = await anybody.post(path, data={"answer": "approve" if approve else "deny"})
                assert done.status_code == 200
        assert await state(web, found) == ("approved" if approve else "denied")
        assert list(tmp_path.rglob("*.key")) == []


@pytest.mark.parametrize("approve", [True, False])
async def test_the_api_answers_with_the_name_of_the_token(tmp_path: Path, approve: bool) -> None:
    async with asked(tmp_path) as (web, found):
        viewer, operator = web.client(Role.VIEWER), web.client(Role.OPERATOR)
        path = f"/api/v1/approvals/{found.id}"
        listed = (await viewer.get("/api/v1/approvals")).json()
        assert [one["id"] for one in listed] == [found.id]
        assert (await viewer.get(path)).json() == listed[0]
        assert listed[0]["arguments"]["command"] == HOSTILE
        body = {"approve": approve, "note": "why not"}
        assert (await viewer.post(f"{path}/decision", json=body)).status_code == 403
        assert await state(web, found) == "pending"
        for _ in range(2):  # the answer may have been lost on its way
            done = await operator.post(f"{path}/decision", json=body)
            assert done.status_code == 200
            assert done.json()["answered_by"] == "test operator (api)"
        changed = await operator.post(f"{path}/decision", json={**body, "approve": not approve})
        assert changed.status_code == 409
        assert (await viewer.get("/api/v1/approvals")).json() == []
        (kept,) = (await viewer.get("/api/v1/approvals", params={"pending": "false"})).json()
        assert (kept["state"], kept["note"]) == ("approved" if approve else "denied", "why not")
        assert (await viewer.get(f"/api/v1/approvals/{'0' * 32}")).status_code == 404
        for bad in ({"approve": "perhaps"}, {"approve": True, "note": "x" * 2001}, {"approve": True, "more": 1}, {}):
            assert (await operator.post(f"{path}/decision", json=bad)).status_code == 422


@pytest.mark.deep
async def test_the_command_line_answers_on_a_server(tmp_path: Path) -> None:
    settings = Settings.model_validate({"worker": {"state_dir": tmp_path / "state"}})
    async with open_web(tmp_path / "operator.db", settings) as web:
        found = await question(web)
        with served(tmp_path / "operator.db", settings, tokens=web.tokens) as server:
            show = ("--server", server.url, "tickets", "show", str(found.ticket_id))
            asks = await asyncio.to_thread(run_operator, *show, env={"OPERATOR_TOKEN": web.tokens[Role.VIEWER]})
            assert f"`operator --server {server.url} approvals approve {found.id[:8]}`" in asks.stdout
            for role, code in ((Role.VIEWER, 2), (Role.OPERATOR, 0)):
                words = ("--server", server.url, "approvals", "approve", found.id[:6], "--note", "fine")
                done = await asyncio.to_thread(run_operator, *words, env={"OPERATOR_TOKEN": web.tokens[role]})
                assert done.returncode == code, done
                assert await state(web, found) == ("pending" if code else "approved")
        assert (await Approvals(web.database).get(found.id)).answered_by == "test operator (api)"

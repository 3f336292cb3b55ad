"""What people need in order to decide: what was said since, what it is about, what was red before, who could work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.cli.people import nobody_works
from operator_core.config import load_settings
from operator_core.db.approvals import Approvals, Question
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.fleet import set_draining
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.person import Role
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, VerdictKind
from tests.integration.test_console_pages import get
from tests.support.processes import run_operator
from tests.support.scene import HOSTILE, Attempt, attempt, judged
from tests.support.store import start_work
from tests.support.web import WebSite, open_web
from tests.support.webhooks import SAMPLES, SECRETS, alerts, bearer

HOST = {"host": "web-3", "team": "shop"}


@pytest.fixture
async def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WebSite]:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(SAMPLES / "operator.toml", environ={}).settings
    async with open_web(tmp_path / "store.db", settings) as site:
        yield site


async def post(web: WebSite, **alert: object) -> int:
    """An alert of Alertmanager; returns its ticket's number."""
    answer = await web.client().post("/api/v1/intake/alerts", content=alerts(alert), headers=bearer())
    assert answer.status_code == 200, answer.text
    (item,) = answer.json()["items"]
    return int(item["ticket_id"])


async def ask(database: Database, number: int, text: str = "rm -rf /var/cache/app") -> tuple[Attempt, str]:
    """Its agent asks for a call."""
    work = await attempt(database, number)
    question = Question("call-1", "shell", {"command": text}, "It lasts.")
    (draft,) = await Approvals(database).ask(work.journal, [question], ["call-1"], 3600.0)
    approval = str(draft.body["approval"])
    assert await Approvals(database).park(work.claim, approval)
    return work, approval


async def before(work: Attempt, *checks: tuple[str, str], **body: object) -> None:
    """What the platform saw before the work."""
    seen = [
        {"command": command, "state": "green" if was == "vacuous" else was, "exit": 1, "tail": "",
         "vacuous": was == "vacuous"}
        for command, was in checks
    ]  # fmt: skip
    await work.journal.append(
        Draft(EntryKind.BASELINE, "before the work", body={**({"seen": seen} if checks else {}), **body})
    )


async def task(web: WebSite, *checks: str) -> int:
    spec = TaskSpec(name="Mend it", prompt="Mend it.", checks=tuple(TaskCheck(command=c) for c in checks))
    return (await TicketDB(web.database).submit_task(spec)).id or 0


# ---- what a sender said since


async def test_a_resolved_alert_is_seen_by_whoever_decides(web: WebSite, tmp_path: Path) -> None:
    number = await post(web, labels=HOST)
    _, approval = await ask(web.database, number)
    client = await web.browser(Role.OPERATOR)
    for path in (f"/tickets/{number}", "/approvals"):
        assert "proves nothing" not in (await get(client, path)).text
    assert await post(web, labels=HOST, status="resolved", endsAt="2026-01-28T09:40:00Z") == number

    page = await get(client, f"/tickets/{number}")
    assert "resolved, says alerts (intake), just now ended at: 2026-01-28 09:40:00 UTC" in page.text
    assert "An observation proves nothing" in page.text
    assert "observation · resolved (ended at: 2026-01-28 09:40:00 UTC)" in page.text, "the history says what was seen"
    assert "approval asked · shell: It lasts." in page.text, "the history says which call, and why"
    assert "resolved, says alerts (intake)" in (await get(client, "/approvals")).text
    api = web.client(Role.VIEWER)
    found = (await api.get(f"/api/v1/tickets/{number}")).json()["observed"]
    assert (found["said"], found["by"]) == ("resolved", "alerts (intake)")
    found = (await api.get(f"/api/v1/approvals/{approval}")).json()["ticket"]["observed"]
    assert found["said"] == "resolved"

    show = ("tickets", "show", str(number))
    for words in (("approvals", "list"), ("approvals", "show", approval), show):
        done = await asyncio.to_thread(run_operator, *words, db=tmp_path / "store.db")
        assert done.returncode == 0, done
        line = next(line for line in done.stdout.splitlines() if "that proves nothing" in line)
        assert "resolved (ended at: 2026-01-28 09:40:00 UTC)" in line, words
        if words == show:
            (row,) = [line for line in done.stdout.splitlines() if "observation" in line]
            assert "resolved (ended at" in row, "the history on the command line says what was seen"

    await post(web, labels=HOST, startsAt="2026-01-28T10:00:00Z")
    page = await get(client, f"/tickets/{number}")
    assert "An observation proves nothing" not in page.text, "it fired again since"
    assert "observation · resolved" in page.text, "that it was said stays in the history"
    done = await asyncio.to_thread(run_operator, *show, db=tmp_path / "store.db")
    assert "that proves nothing" not in done.stdout


async def test_what_was_said_of_a_closed_ticket_is_history(web: WebSite) -> None:
    number = await post(web, labels=HOST)
    await post(web, labels=HOST, status="resolved", endsAt="0001-01-01T00:00:00Z")
    seen = (await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}")).json()["observed"]
    assert seen["detail"]["ended_at"] == "unknown", "the zero of Go is no time"
    await TicketDB(web.database).resolve_ticket(number, note="it went away")
    assert (await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}")).json()["observed"] is None


# ---- what a call is about


async def test_a_call_says_what_it_is_about(web: WebSite, tmp_path: Path) -> None:
    number = await post(web, labels=HOST)
    _, approval = await ask(web.database, number)
    client = await web.browser(Role.OPERATOR)
    card = (await get(client, "/approvals")).text
    for word in ("ServiceUnreachable", "critical", "host=web-3", "team=shop", "The shop does not answer on shop-1"):
        assert word in card, word
    assert "Why it asks: It lasts." in card
    board = (await get(client, "/?view=needs")).text
    assert "host=web-3" in board
    assert "alertname=" not in card, "its name is said beside it"
    for words in (("approvals", "list"), ("approvals", "show", approval)):
        done = await asyncio.to_thread(run_operator, *words, db=tmp_path / "store.db")
        assert "ticket   ServiceUnreachable (critical)" in done.stdout
        assert "about    The shop does not answer on shop-1" in done.stdout
        assert "host=web-3" in done.stdout
        assert "why      It lasts." in done.stdout
    (listed,) = (await web.client(Role.VIEWER).get("/api/v1/approvals")).json()
    assert listed["ticket"]["labels"]["host"] == "web-3"
    assert (await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}")).json()["approvals"][0]["ticket"] is None


async def test_hostile_words_around_a_call_stay_words(web: WebSite, tmp_path: Path) -> None:
    labels = {"note": HOSTILE, "since": "a\n  since    resolved"}
    number = await post(web, labels=labels, annotations={"summary": HOSTILE})
    work = await attempt(web.database, number)
    arguments = {"command": "ls", "why": "x\nwhy      trust me", "since\n  since": HOSTILE}
    await Approvals(web.database).ask(work.journal, [Question("c", "shell", arguments, HOSTILE)], ["c"], 3600.0)
    await post(web, labels={"note": HOSTILE}, status="resolved")
    client = await web.browser(Role.OPERATOR)
    for path in ("/approvals", f"/tickets/{number}", f"/tickets/{number}/evidence", "/"):
        page = await get(client, path)
        scripts = [attrs.get("src") or "" for tag, attrs in page.elements if tag == "script"]
        assert all(script.startswith("/") for script in scripts)
        assert "onerror" not in {name for _, attrs in page.elements for name in attrs}
    done = await asyncio.to_thread(run_operator, "approvals", "list", db=tmp_path / "store.db")
    assert not [c for c in "\x1b\u202e" if c in done.stdout]
    for name in ("why", "since"):
        ours = [line for line in done.stdout.splitlines() if re.match(rf"  {name}\b", line)]
        assert len(ours) <= 1, f"an agent writes a line that looks like ours: {ours}"


# ---- what was red before


@pytest.mark.parametrize("state", ["running", "waiting", "canceled"])
async def test_what_was_red_before_is_known_without_a_verdict(web: WebSite, state: str) -> None:
    number = await task(web, "pytest -q", "ruff check .")
    work = await attempt(web.database, number)
    await before(work, ("pytest -q", "red"), ("ruff check .", "vacuous"))
    if state == "waiting":
        await work.ask("Which one?")
    if state == "canceled":
        await work.end(TicketStatus.CANCELED, Reason.BY_HAND)
    page = await get(await web.browser(Role.VIEWER), f"/tickets/{number}/evidence")
    assert "failed pytest -q as it should" in page.text
    assert "passed ruff check . passes even in an empty folder: it proves nothing" in page.text
    assert ("Canceled before it was judged" if state == "canceled" else "Not judged yet") in page.text
    assert "Nothing was judged yet" not in page.text
    (told,) = (await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}")).json()["before"]
    assert [check["was"] for check in told["checks"]] == ["red", "vacuous"]
    assert told["session_id"] == work.session_id


async def test_a_verdict_without_a_report_knows_what_was_red_before(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    work = await attempt(web.database, number)
    await before(work, ("pytest -q", "red"))
    verdict = judged(VerdictKind.REFUTED)
    await work.journal.append(Draft(EntryKind.VERDICT, verdict.why, verdict.why, body=verdict.to_dict()))
    page = await get(await web.browser(Role.VIEWER), f"/tickets/{number}/evidence")
    assert "failed pytest -q as it should" in page.text
    assert "No check was seen to fail" not in page.text
    assert page.text.count("Before the work") == 1, "the attempt that was judged is not shown as one that was not"


async def test_the_next_attempt_has_its_own_before(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    work = await attempt(web.database, number)
    await before(work, ("pytest -q", "red"))
    await work.judge(judged(VerdictKind.REFUTED))
    await work.end(TicketStatus.ESCALATED, Reason.ITERATIONS)
    await TicketDB(web.database).reopen_ticket(number)
    again = await attempt(web.database, number, "box-2")
    await before(again, ("pytest -q", "green"))
    page = await get(await web.browser(Role.VIEWER), f"/tickets/{number}/evidence")
    newest, earlier = page.text.split("newest verdict")
    assert "was already green" in newest
    assert again.session_id in newest
    assert "failed pytest -q as it should" in earlier


async def test_an_incident_without_a_snapshot_shows_what_the_platform_saw(web: WebSite) -> None:
    work = await start_work(web.database)
    await work.journal.append(
        Draft(EntryKind.BASELINE, "x", body={"seen_red": True, "observation": {"light": "red", "detail": "97 % full",
              "how": "df /var"}})
    )  # fmt: skip
    page = await get(await web.browser(Role.VIEWER), f"/tickets/{work.claim.ticket_id}/evidence")
    assert "97 % full" in page.text
    assert "df /var" in page.text
    assert "was not recorded" not in page.text


# ---- who could work


async def said(web: WebSite, number: int) -> tuple[str, str, str | None]:
    """What page, board and API say of who could take it."""
    client = await web.browser(Role.OPERATOR)
    ticket = await get(client, f"/tickets/{number}")
    board = await get(client, "/")
    return ticket.text, board.text, (await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}")).json()["stalled"]


async def test_a_task_that_nobody_takes_says_so(web: WebSite) -> None:
    nobody = "No worker is running; start one with operator worker run."
    number = await task(web, "pytest -q")
    page, board, stalled = await said(web, number)
    assert nobody in page
    assert nobody in board
    assert stalled == "No worker is running; start one with `operator worker run`."
    queue, worker = WorkQueue(web.database), clock.new_id()
    await queue.register(worker, 3600.0, "box-1")
    page, board, stalled = await said(web, number)
    assert (nobody in page, nobody in board, stalled) == (False, False, None)
    await set_draining(web.database, worker, True)
    page, board, stalled = await said(web, number)
    assert "The only worker that runs is draining and takes nothing new" in page
    assert "draining and takes nothing new" in board
    on_the_command_line = await nobody_works(web.database, await TicketDB(web.database).get_ticket(number))
    assert on_the_command_line == stalled
    await TicketDB(web.database).hold_ticket(number)
    assert (await said(web, number))[2] is None, "it waits for a person, who holds it"


async def test_a_pinned_one_waits_for_its_own_worker(web: WebSite) -> None:
    spec = TaskSpec(name="There", prompt="There.", checks=(TaskCheck(command="test -f x"),))
    number = (await TicketDB(web.database).submit_task(spec, pinned_to="far\u202e")).id or 0
    await WorkQueue(web.database).register(clock.new_id(), 3600.0, "near")
    page, board, stalled = await said(web, number)
    assert "No worker called far is running; the ticket waits for it." in page
    assert stalled is not None
    assert "is not there to take it" in board
    assert "No worker is running" not in board, "others can be taken"
    await WorkQueue(web.database).register(clock.new_id(), 3600.0, "far\u202e")
    page, board, stalled = await said(web, number)
    assert (stalled, "is not there to take it" in board) == (None, False)


async def test_one_whose_worker_died_alone_says_so(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    queue, worker = WorkQueue(web.database), clock.new_id()
    await queue.register(worker, 0.0001, "box-1")
    (claim,) = await queue.claim(worker, name="box-1")
    assert claim.ticket_id == number
    page, _, stalled = await said(web, number)
    assert (stalled or "").startswith("The worker that had it is gone. No worker is running")
    assert "The worker that had it is gone" in page
    await queue.register(clock.new_id(), 3600.0, "box-2")
    assert (await said(web, number))[2] is None, "another one takes it over"


async def test_a_reopened_one_says_so_on_the_page_that_follows(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    await TicketDB(web.database).cancel_ticket(number)
    client = await web.browser(Role.OPERATOR)
    assert "No worker is running" not in (await get(client, f"/tickets/{number}")).text
    answer = await client.post(f"/tickets/{number}/reopen", data={"csrf": await web.csrf(client)})
    assert "No worker is running" in (await get(client, answer.headers["location"])).text


# ---- words


async def test_a_cancellation_says_whether_it_waits(web: WebSite) -> None:
    client = await web.browser(Role.OPERATOR)
    csrf = await web.csrf(client)
    for fields, words in (({}, "stops at its next step"), ({"now": "1"}, "kills what runs, now")):
        number = await task(web, "pytest -q")
        await attempt(web.database, number, clock.new_id())
        answer = await client.post(f"/tickets/{number}/cancel", data={"csrf": csrf, **fields})
        assert words in (await get(client, answer.headers["location"])).text
    number = await task(web, "pytest -q")
    answer = await client.post(f"/tickets/{number}/cancel", data={"csrf": csrf, "now": "1"})
    assert "The ticket is canceled." in (await get(client, answer.headers["location"])).text, "nothing ran"


async def test_each_thing_is_said_once(web: WebSite) -> None:
    work = await start_work(web.database)
    number = work.claim.ticket_id
    verdict = Verdict(VerdictKind.REFUTED, "it fell again", ())
    await work.journal.append(Draft(EntryKind.VERDICT, verdict.why, verdict.why, body=verdict.to_dict()))
    await work.queue.finish(
        work.claim,
        TicketStatus.ESCALATED,
        Reason.REFUTED,
        diagnosis="ESCALATED: refuted: it fell again",
        session_id=work.session_id,
        session_status="escalated",
    )
    client = await web.browser(Role.VIEWER)
    page = await get(client, f"/tickets/{number}")
    assert "ESCALATED" not in page.text
    assert "Diagnosis" not in page.text, "it would say again what stands above"
    await TicketDB(web.database).resolve_ticket(number, note="Done by me.")
    page = await get(client, f"/tickets/{number}")
    assert "by hand by hand" not in page.text
    assert "Why it was resolved by hand" in page.text
    assert "Done by me." in page.text


async def test_a_long_reason_is_said_once(web: WebSite) -> None:
    work = await start_work(web.database)
    path = f"/tickets/{work.claim.ticket_id}"
    why = "durability step 2 failed (exit 1: 30 requests were allowed, then 429; 1.2 s later: 429; agreed were 200)"
    how = "python3 -B checks/checks.py again"
    seen = Evidence(f"durability step 2: {how}", "exit 0", "exit 1", False, clock.iso(), how)
    clauses = (ClauseResult(Clause.DURABLE, ClauseState.FAILED, True, why, (seen,)),)
    verdict = Verdict(VerdictKind.REFUTED, why, clauses, None, ("durable",))
    await work.journal.append(Draft(EntryKind.VERDICT, why, why, body=verdict.to_dict()))
    await work.journal.append(Draft(EntryKind.REPORT, why, f"# Closure report\n\n{why}", body={"headline": why}))
    await work.queue.finish(
        work.claim,
        TicketStatus.ESCALATED,
        Reason.REFUTED,
        diagnosis=why,
        session_id=work.session_id,
        session_status="escalated",
    )
    later = Verdict(VerdictKind.REFUTED, "it does not answer", ())
    audit = AuditLogDB(web.database)
    again = await audit.journal(await audit.create_session(work.claim.ticket_id))
    await again.append(
        Draft(EntryKind.SESSION_START, "again", body={"judges": work.session_id}),
        Draft(EntryKind.VERDICT, later.why, later.why, body=later.to_dict()),
    )
    client = await web.browser(Role.VIEWER)
    page = await get(client, path)
    assert "as said above" in page.text
    assert "Diagnosis" not in page.text, "a later look at the work does not make it new"
    assert page.text.count(why) == 3, "above, in the report, and in the history"
    assert "<details><summary>The whole report" in (await client.get(path)).text, "what it says stands above it"
    page = await get(client, f"{path}/evidence")
    assert page.text.count(why) == 2, "in the line that unfolds it, and above"
    assert "durable: as said above" in page.text
    assert page.text.count(how) == 1, "what can be copied is not written beside it too"


async def test_the_checks_alone_are_no_other_check(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    spec = TaskSpec.model_validate((await TicketDB(web.database).get_ticket(number)).check_spec)
    work = await attempt(web.database, number)
    alone = spec.model_copy(update={"profile": "operator"})
    await work.judge(judged(check_hash=alone.digest))
    client = await web.browser(Role.VIEWER)
    assert "another check" not in (await get(client, f"/tickets/{number}/evidence")).text
    await work.judge(judged(check_hash=alone.model_copy(update={"checks": ()}).digest))
    assert "judged by another check" in (await get(client, f"/tickets/{number}/evidence")).text


async def test_commands_of_a_report_work_where_it_is_read(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    work = await attempt(web.database, number)
    lines = [
        "# Closure report",
        "An agent said \\`operator audit verify\\`, and ran:",
        "      operator `operator audit verify`",
        f"- All of it: `operator verify {number}` (`--checks-only` needs no model)",
        f"- The whole session: `operator sessions show {work.session_id}`; its integrity: `operator audit verify`.",
    ]
    await work.journal.append(Draft(EntryKind.REPORT, "done", "\n\n".join(lines), body={"headline": "done"}))
    await work.end(TicketStatus.ESCALATED, Reason.GAVE_UP)
    page = (await (await web.browser(Role.VIEWER)).get(f"/tickets/{number}")).text
    here = f"<code>operator --server {web.site.url}"
    assert f"{here} verify {number}</code>" in page
    assert f"{here} sessions show {work.session_id}</code>" in page
    assert f"{here} audit verify</code>." in page
    assert "said `operator audit verify`, and" in page, "what others wrote stays as it is"
    assert "<pre><code>operator `operator audit verify`" in page


async def test_an_address_with_a_wrong_number_is_nowhere(web: WebSite) -> None:
    client = await web.browser(Role.VIEWER)
    answer = await client.get("/tickets/abc", headers={"Accept": "text/html"})
    assert answer.status_code == 404
    assert "There is nothing at this address" in answer.text
    assert (await client.get("/api/v1/tickets/abc")).status_code == 422


async def test_pages_have_no_words_of_a_command_line(web: WebSite) -> None:
    client = await web.browser(Role.ADMIN)
    page = await get(client, "/tickets/4711", 404)
    assert "There is no ticket #4711." in page.text
    assert "operator tickets" not in page.text
    assert "`" not in page.text
    api = await web.client(Role.ADMIN).get("/api/v1/tickets/4711")
    assert "operator tickets list" in api.json()["detail"], "a program's user has one"
    fields = {"csrf": await web.csrf(client), "prompt": "x", "checks": "pytest -q", "repo": "/nonexistent"}
    answer = await client.post("/submit", data=fields)
    assert answer.status_code == 422
    assert "--repo" not in answer.text
    settings = await get(client, "/settings")
    assert "``" not in settings.text
    audit = await get(client, "/audit")
    assert re.search(r"\d\d:\d\d:\d\d UTC", audit.text), "a time without its zone is half a time"


async def test_a_canceled_one_says_that_nothing_was_proved(web: WebSite) -> None:
    number = await task(web, "pytest -q")
    await TicketDB(web.database).cancel_ticket(number)
    page = await get(await web.browser(Role.VIEWER), f"/tickets/{number}")
    assert "canceled before anybody worked on it; nothing was proved" in page.text
    answer = await web.client(Role.VIEWER).get(f"/api/v1/tickets/{number}/report")
    assert answer.status_code == 404
    assert "nobody worked on it" in answer.json()["detail"]
    assert "yet" not in answer.json()["detail"]

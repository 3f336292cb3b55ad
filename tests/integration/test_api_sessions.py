"""One session on the screen: a window of a journal of any size, with everything hostile that may be in it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from operator_core.api.local import LocalApi
from operator_core.errors import ConfigError, NotFound
from operator_core.model.entry import Draft
from operator_core.model.ticket import Reason, TicketStatus
from tests.support.api import open_api
from tests.support.crowd import make_crowd
from tests.support.store import column_of, finish, start_work


@pytest.fixture
async def api(store_url: str) -> AsyncIterator[LocalApi]:
    async with open_api(store_url) as found:
        yield found


async def test_windows_together_are_the_whole_journal(store_url: str) -> None:
    crowd = await make_crowd(store_url, count=3, entries=1003)
    async with open_api(store_url) as api:
        session, seen, after = crowd.long_session, list[int](), -1
        while True:
            page = await api.entries(session, after=after, limit=100)
            assert (page.head, page.ended) == (1002, False)
            if not page.items:
                break
            seen += [entry.seq for entry in page.items]
            after = seen[-1]
        assert seen == list(range(1003))
        verdicts = await api.entries(session, kinds=["verdict", "phase_start", "no-such-kind"], limit=1000)
        assert [e.seq for e in verdicts.items] == sorted(
            [
                *(seq for name, seq in crowd.phases.items() if name.startswith("worker")),
                *await seqs(store_url, "verdict"),
            ]
        )
        two = await api.entries(session, kinds=["verdict", "phase_start"], limit=2, after=0)
        assert [e.seq for e in two.items] == [e.seq for e in verdicts.items if e.seq > 0][:2]
        assert (await api.entries(session, kinds=[])).items == []
        third = await api.entries(session, phase="worker_3", limit=1000)
        assert [e.seq for e in third.items] == await seqs(store_url, "worker_3", "phase")
        rest = await api.entries(session, phase="worker_3", limit=2, after=crowd.phases["worker_3"] + 1)
        assert [e.seq for e in rest.items] == [crowd.phases["worker_3"] + n for n in (2, 3)]
        assert (await api.entries(session, phase="no such phase")).items == []


async def seqs(store: str, value: str, column: str = "entry_type") -> list[int]:
    statement = f"SELECT seq FROM agent_log_entries WHERE {column} = $1 AND session_id LIKE '%-00000003' ORDER BY seq"
    return [int(seq) for seq in await column_of(store, statement, value)]


async def test_a_session_says_where_it_stands(store_url: str) -> None:
    crowd = await make_crowd(store_url, count=3, entries=1003)
    async with open_api(store_url) as api:
        found = await api.session(crowd.long_session)
        assert [(p["phase"], p["seq"]) for p in found.phases] == list(crowd.phases.items())
        assert [p["state"] for p in found.phases] == ["done"] * (len(found.phases) - 1) + ["running"]
        assert (found.engine, found.model) == ("scripted", "claude-opus-5-5")
        assert found.context_tokens == 5070
        assert found.commands == len(await seqs(store_url, "tool_call"))
        assert found.turns == len(await seqs(store_url, "message"))
        assert found.marks["first_error"] == crowd.failed[0]
        assert found.marks["verdict"] == (await seqs(store_url, "verdict"))[-1]
        assert found.marks["first_change"] == (await seqs(store_url, "snapshot"))[0]
        ticks = await api.ticks(crowd.long_session)
        assert [t.seq for t in ticks if t.exit_code] == crowd.failed
        assert [t.seq for t in ticks if t.entry_type == "phase_start"] == await seqs(store_url, "phase_start")
        few = await api.ticks(crowd.long_session, limit=3)
        assert few == ticks[:3]


async def test_marks_and_phases_of_a_session_that_our_own_loop_wrote(api: LocalApi) -> None:
    work = await start_work(api.database)
    begin = {"engine": "anthropic", "model": "m", "system": "s"}
    sandbox = {"backend": "b", "level": "isolated", "controls": {}}
    worker: dict[str, Any] = {"tool_name": "file_write", "phase": "worker_1"}
    await work.journal.append(
        Draft("sandbox_report", "b, isolated", body=sandbox, phase="prepare"),
        Draft("session_start", "engine anthropic", body=begin, phase="prepare"),
        Draft("message", "hello", "hello", body={"role": "user", "content": "hello"}, phase="worker_1"),
        Draft("tool_call", "file_write: a", tool_params={"path": "a"}, tool_use_id="1", **worker),
        Draft("tool_result", "failed", "no", exit_code=1, tool_use_id="1", **worker),
        Draft("tool_result", "wrote", "yes", exit_code=0, tool_use_id="2", **worker),
    )
    found = await api.session(work.session_id)
    phases = [(p["phase"], p["seq"], p["state"]) for p in found.phases]
    assert phases == [("prepare", 1, "done"), ("worker_1", 2, "running")]
    assert found.marks == {"first_change": 5, "first_error": 4}
    assert found.sandbox == {"backend": "b", "level": "isolated", "controls": {}}
    assert (found.engine, found.question, found.live) == ("anthropic", None, None)
    await work.journal.append(Draft("resumed", "resumed", phase="prepare"))
    assert [p["phase"] for p in (await api.session(work.session_id)).phases] == ["prepare", "worker_1"]
    await finish(work)
    ended = await api.session(work.session_id)
    assert [p["state"] for p in ended.phases] == ["done", "done"]
    assert ended.phases[-1]["ended_at"] == ended.ended_at is not None
    assert (await api.entries(work.session_id)).ended


async def test_a_question_is_there_as_long_as_it_is_open(api: LocalApi) -> None:
    work = await start_work(api.database)
    await work.journal.append(Draft("outcome", "blocked: may I?", "May I?", meta={"outcome": "blocked"}))
    assert (await api.session(work.session_id)).question is None, "it still runs, so it asks nobody"
    assert await work.queue.park(work.claim, work.claim.wake)
    assert (await api.session(work.session_id)).question == "May I?"
    await api.reply(1, "yes")
    assert (await api.session(work.session_id)).question is None


async def test_an_earlier_attempt_asks_nothing_any_more(api: LocalApi) -> None:
    first = await start_work(api.database)
    await first.journal.append(Draft("outcome", "blocked", "May I?", meta={"outcome": "blocked"}))
    await finish(first, TicketStatus.ESCALATED)
    await api.reopen(1)
    (claim,) = await first.queue.claim(first.claim.worker)
    session = await first.audit.create_session(1, claim=claim)
    journal = await first.audit.journal(session, claim)
    begin = Draft("phase_start", "engine", body={"engine": "anthropic"}, phase="worker_1")
    await journal.append(begin, Draft("outcome", "blocked", "And now?", meta={"outcome": "blocked"}, phase="worker_1"))
    await journal.append(Draft("resumed", "resumed", phase="prepare"))
    assert await first.queue.park(claim, claim.wake)
    assert (await api.session(first.session_id)).question is None
    found = await api.session(session)
    assert found.question == "And now?"
    assert [phase["phase"] for phase in found.phases] == ["worker_1"], "to go on is no phase"


async def test_long_and_hostile_texts_are_cut_and_say_so(api: LocalApi) -> None:
    work = await start_work(api.database)
    line = "<script>\x1b[31m\u202e" + "\U0001f600" * 3_000_000
    body = {"type": "tool_result", "tool_use_id": "t", "content": line}
    arguments = {"path": "a", "content": line, "deep": [{"more": line}]}
    await work.journal.append(Draft("tool_call", "write", tool_name="w", tool_params=arguments, tool_use_id="t"))
    await work.journal.append(Draft("tool_result", "s" * 5000, line, tool_name="w", tool_use_id="t", body=body))
    await work.journal.append(Draft("note", "n", "short", body={"kept": True}))
    page = await api.entries(work.session_id, max_chars=1000)
    assert len(page.model_dump_json()) < 40_000
    call, result, note = page.items
    assert call.tool_params == {"path": "a", "content": line[:999], "deep": [{"more": ""}]}
    assert call.cut == 2 * len(line) + 1 - 1000
    assert result.raw_content == line[:1000]
    assert result.cut == len(line) - 1000
    assert len(result.content) == 1000
    assert (result.body, note.body, note.cut) == (None, {"kept": True}, 0)
    (whole,) = (await api.entries(work.session_id, after=0, limit=1, max_chars=20_000_000, bodies=True)).items
    assert (whole.raw_content, whole.body, whole.cut) == (line, body, 0)
    row = (await api.tickets()).items[0]
    assert row.doing is not None
    assert len(row.doing) <= 200


async def test_what_cannot_be_asked_for_is_refused(api: LocalApi) -> None:
    work = await start_work(api.database, entries=1)
    for wanted in (
        {"limit": 0},
        {"limit": 1001},
        {"after": -2},
        {"after": 2**31},
        {"max_chars": 0},
        {"max_chars": 10**9},
        {"kinds": ["\0"]},
        {"kinds": ["x" * 1000]},
        {"kinds": [str(n) for n in range(1000)]},
        {"phase": "\ud800"},
    ):
        with pytest.raises(ConfigError):
            await api.entries(work.session_id, **wanted)
    assert len((await api.entries(work.session_id, kinds=[str(n) for n in range(100)])).items) == 0


async def test_the_story_of_a_ticket_has_all_its_attempts(api: LocalApi) -> None:
    first = await start_work(api.database)
    evidence = [{"clause": "checks", "state": "failed", "required": True, "why": "no", "evidence": []}]
    refuted = {"kind": "refuted", "why": "it fell", "clauses": evidence, "check_hash": "h", "failed": ["checks"]}
    await first.journal.append(
        Draft("baseline", "before", body={"folder": "/srv/one"}),
        Draft("verdict", "refuted: it fell", body=refuted, phase="verifier_1"),
        Draft("report", "Not done", "# Not done", body={"headline": "Not done."}),
    )
    await first.queue.finish(
        first.claim,
        TicketStatus.ESCALATED,
        Reason.REFUTED,
        diagnosis="no",
        session_id=first.session_id,
        session_status="escalated",
    )
    await api.reopen(1)
    (claim,) = await first.queue.claim(first.claim.worker)
    session = await first.audit.create_session(1, claim=claim)
    journal = await first.audit.journal(session, claim)
    await journal.append(Draft("verdict", "verified: seen", body={"kind": "verified", "why": "seen", "clauses": None}))
    found = await api.ticket(1)
    assert [s.session_id for s in found.sessions] == [session, first.session_id]
    assert [(v.session_id, v.kind, v.phase, v.failed) for v in found.verdicts] == [
        (session, "verified", None, []),
        (first.session_id, "refuted", "verifier_1", ["checks"]),
    ]
    assert found.verdicts[1].clauses == evidence
    assert (found.verdict, found.report, found.folder) == ("verified", None, None)
    assert [(h.old, h.new) for h in found.history if h.kind == "transition"] == [
        (None, "open"),
        ("open", "running"),
        ("running", "escalated"),
        ("escalated", "open"),
        ("open", "running"),
    ]
    assert [h.actor for h in found.history if h.new == "open"] == ["person", "ann (api)"]
    report = await api.report(1)
    assert (report.session_id, report.headline, report.markdown) == (first.session_id, "Not done.", "# Not done")
    await api.open_incident("a", "b")
    with pytest.raises(NotFound, match="no closure report"):
        await api.report(2)


async def test_rows_that_somebody_else_wrote_do_not_take_the_page_down(api: LocalApi) -> None:
    """Columns of JSON may hold anything in a store that others wrote into; the audit is what complains."""
    work = await start_work(api.database)
    for body in ("[1]", '"text"', "null", '{"kind":7,"clauses":7,"failed":7}'):
        await work.journal.append(*(Draft(k, "x", "y", body=json.loads(body)) for k in KINDS))
    found = await api.ticket(1)
    assert len(found.verdicts) == 4
    assert found.report is not None
    await api.session(work.session_id)
    await api.ticks(work.session_id)
    assert len((await api.entries(work.session_id)).items) == 4 * len(KINDS)


KINDS = ("verdict", "report", "baseline", "outcome", "session_start", "phase_start", "sandbox_report", "message")


async def test_a_session_without_a_ticket_is_one(api: LocalApi) -> None:
    from operator_core.db.audit_log import AuditLogDB

    audit = AuditLogDB(api.database)
    session = await audit.create_session(None, wanted="running")
    await audit.log_entry(session, "reasoning", "hello")
    assert (await api.sessions()).items[0].ticket_id is None
    assert (await api.session(session)).entries == 1
    await (await audit.journal(session)).append(Draft("message", "x", meta={"usage": {"cost_usd": 1.0}}))
    rows: list[Any] = [(row.key, row.label) for row in await api.costs("ticket")]
    assert rows == [("", "without a ticket")]

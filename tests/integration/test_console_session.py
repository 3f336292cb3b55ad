"""The pages of a session at the level of HTML: windows of a journal, hostile text, exports, and the audit."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text

from operator_core.db.live_output import LiveOutputs
from operator_core.db.retention import prune
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.person import Role
from tests.support.store import Work, finish, start_work
from tests.support.web import WebSite, open_web

EVIL = "<x-evil onmouseover=alert(1)>\"'><script>alert(1)</script>{{7777*7}}{% x %}&lt;\u202e\x1b[31m\x1b]0;t\x07"
KINDS = [kind.value for kind in EntryKind]


class Page(HTMLParser):
    """What a browser would make of a page: its tags, attributes and text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.texts: list[str] = []
        self.sequence: list[int] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}
        values = dict(attrs)
        if tag == "li" and values.get("data-seq"):
            self.sequence.append(int(values["data-seq"] or ""))
        if tag == "script":
            assert values.get("src"), "a script in the page itself"

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return "".join(self.texts)


def harmless(html: str) -> Page:
    """The page, in which nothing that an agent wrote became markup."""
    page = Page(html)
    assert "x-evil" not in page.tags
    assert not [name for name in page.attributes if name.startswith("on") or name == "style"], page.attributes
    assert "54439" not in page.text, "a template was evaluated"
    assert not re.search("[\u202e\x1b\x07]", html)
    return page


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebSite]:
    async with open_web(tmp_path / "operator.db") as site:
        yield site


async def page(client: httpx2.AsyncClient, path: str, status: int = 200) -> Page:
    answer = await client.get(path, headers={"Accept": "text/html"})
    assert answer.status_code == status, answer.text[:2000]
    return harmless(answer.text)


def call(n: int, **values: Any) -> Draft:
    return Draft(
        "tool_call",
        f"shell: {n}",
        tool_name="shell",
        tool_params={"command": f"echo {n}", "reasoning": "to see"},
        tool_use_id=f"t{n}",
        phase="worker_1",
        **values,
    )


def result(n: int, stdout: str = "", code: int = 0, **values: Any) -> Draft:
    raw = json.dumps({"stdout": stdout or f"line {n}\n", "stderr": "", "exit_code": code, "timed_out": False})
    fields: dict[str, Any] = {"tool_name": "shell", "exit_code": code, "tool_use_id": f"t{n}", "phase": "worker_1"}
    return Draft("tool_result", f"exit {code}", raw, **{**fields, **values})


async def every_page(web: WebSite, work: Work, seqs: range) -> None:
    """Each page that shows something of a session is there, and harmless."""
    client = web.client(Role.OPERATOR)
    sid = work.session_id
    last = seqs[-1]
    for path in (
        f"/sessions/{sid}",
        f"/sessions/{sid}/rows",
        f"/sessions/{sid}/side",
        f"/sessions/{sid}/output",
        f"/sessions/{sid}/replay?at={last}",
        f"/sessions/{sid}/replay/ticks",
        "/audit",
        *(f"/sessions/{sid}/entries/{seq}" for seq in seqs),
    ):
        await page(client, path)


# ---- hostile text


async def test_a_hostile_transcript_is_text(web: WebSite) -> None:
    work = await start_work(web.database)
    evil = {"kind": EVIL, "why": EVIL, "clauses": [{"clause": EVIL, "state": EVIL, "required": EVIL, "why": EVIL}]}
    report = {"backend": EVIL, "level": EVIL, "warnings": [EVIL], "controls": {EVIL: {"state": EVIL, "how": EVIL}}}
    drafts = [
        Draft(
            kind,
            EVIL,
            EVIL,
            tool_name=EVIL,
            tool_params={"command": EVIL, "reasoning": EVIL, EVIL: {EVIL: [EVIL]}},
            exit_code=3,
            tool_use_id=EVIL,
            phase=EVIL,
            body=report if kind == "sandbox_report" else evil,
            meta={"actor": EVIL, "usage": {EVIL: EVIL}, "stdout_blob": EVIL, f"{EVIL}_blob": EVIL},
        )
        for kind in [*KINDS, EVIL]
    ]
    await work.journal.append(*drafts)
    await LiveOutputs(web.database).write(work.session_id, EVIL, EVIL * 9, 99, work.claim)
    await every_page(web, work, range(len(drafts)))
    html = (await web.client(Role.VIEWER).get(f"/sessions/{work.session_id}")).text
    assert "&lt;x-evil onmouseover=alert(1)&gt;" in html
    assert 'title="U+202E right-to-left override"' in html


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["kind", "clauses", "controls", "state", "how", "warnings", "level", "usage", "stdout", "why"]
            )
            | st.text(max_size=4),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from(KINDS), JSON, JSON, st.text(max_size=20)), min_size=1, max_size=6))
async def test_entries_of_any_shape_can_be_read(web: WebSite, shapes: list[tuple[str, Any, Any, str]]) -> None:
    """Whoever can write to the store can write anything there; the audit says so, and the pages must not fail."""
    from operator_core.db.audit_log import AuditLogDB

    audit = AuditLogDB(web.database)
    session_id = await audit.create_session(None)
    journal = await audit.journal(session_id)
    await journal.append(
        *(
            Draft(kind, words, words, body=body, meta=meta if isinstance(meta, dict) else None)
            for kind, body, meta, words in shapes
        )
    )
    client = web.client(Role.OPERATOR)
    paths = [f"/sessions/{session_id}", f"/sessions/{session_id}/rows", f"/sessions/{session_id}/replay?at=99"]
    paths += [f"/sessions/{session_id}/entries/{seq}" for seq in range(len(shapes))]
    for path in paths:
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text[:500]


async def test_a_line_of_ten_megabytes_is_cut_in_lists_and_whole_in_parts(web: WebSite) -> None:
    work = await start_work(web.database)
    line = "".join(f"{n:09}|" for n in range(1_000_000))
    await work.journal.append(call(1), result(1, line), Draft("reasoning", "long", line))
    client = web.client(Role.VIEWER)
    answer = await client.get(f"/sessions/{work.session_id}")
    assert len(answer.text) < 60_000
    assert "more characters" in answer.text
    seen = Page((await client.get(f"/sessions/{work.session_id}/entries/1")).text).text
    assert "10,000,000 characters, part 1 of 200" in seen
    end = Page((await client.get(f"/sessions/{work.session_id}/entries/1?part=199")).text).text
    assert "000999999|" in end
    assert "000994999|" not in end
    saved = await client.get(f"/sessions/{work.session_id}/entries/2/text")
    assert saved.text == line
    assert saved.headers["content-disposition"].startswith("attachment;")


# ---- windows


async def test_a_page_is_a_window_and_every_entry_is_in_one(web: WebSite) -> None:
    work = await start_work(web.database)
    for n in range(0, 120, 40):
        await work.journal.append(*(draft for k in range(n, n + 40) for draft in (call(k), result(k))))
    client = web.client(Role.VIEWER)
    base = f"/sessions/{work.session_id}"
    newest = await page(client, base)
    assert newest.sequence == list(range(140, 240))
    assert "140 earlier entries" in newest.text
    seen: list[int] = []
    while len(seen) < 240:
        part = await page(client, f"{base}?at={len(seen)}")
        assert part.sequence
        seen += part.sequence
    assert seen == list(range(240))
    rows = await page(client, f"{base}/rows?after=97&limit=5")
    assert rows.sequence == [98, 99, 100, 101, 102]
    assert (await page(client, f"{base}/rows?after=239")).sequence == []


async def test_a_result_is_timed_though_its_call_is_on_the_page_before(web: WebSite) -> None:
    work = await start_work(web.database)
    await work.journal.append(call(1))
    await work.journal.append(result(1))
    rows = await page(web.client(Role.VIEWER), f"/sessions/{work.session_id}/rows?after=0")
    assert re.search(r"exit 0\s+\d+ ms", rows.text), rows.text


async def test_what_was_just_said_is_not_said_again(web: WebSite) -> None:
    work = await start_work(web.database)
    params = {"command": "ls", "reasoning": "I look first."}
    ran = Draft("tool_call", "shell: ls", tool_name="shell", tool_params=params, tool_use_id="t1", phase="worker_1")
    usage = {"input_tokens": 2900, "output_tokens": 29, "cost_usd": 0.0}
    await work.journal.append(
        Draft("message", "reply, tool_use", meta={"usage": usage}, phase="worker_1"),
        Draft("reasoning", "I look first.", "I look first.", phase="worker_1"),
        ran,
        Draft("tool_result", "exit 0, no output", '{"stdout": ""}', tool_name="shell", exit_code=0, tool_use_id="t1"),
        replace(ran, tool_use_id="t2"),
    )
    text = (await page(web.client(Role.VIEWER), f"/sessions/{work.session_id}")).text
    assert text.count("I look first.") == 2, "by the first call as what was said, by the other as why"
    assert "exit 0, no output" not in text
    assert "no output" in text
    assert "reply, 2,900 tokens in, 29 out, $0.00" in " ".join(text.split())


async def test_replay_shows_nothing_that_was_not_yet(web: WebSite) -> None:
    work = await start_work(web.database)
    await work.journal.append(*(draft for k in range(50) for draft in (call(k), result(k, code=int(k == 7)))))
    client = web.client(Role.VIEWER)
    shown = await page(client, f"/sessions/{work.session_id}/replay?at=60")
    assert shown.sequence == list(range(21, 61))
    assert (await page(client, f"/sessions/{work.session_id}/replay?at=3")).sequence == [0, 1, 2, 3]
    assert (await page(client, f"/sessions/{work.session_id}/replay?at=100000")).sequence[-1] == 99
    ticks = (await client.get(f"/sessions/{work.session_id}/replay/ticks")).text
    assert ticks.count("t-fail") == 1
    assert 'x="151"' in ticks


async def test_an_empty_journal_has_its_pages(web: WebSite) -> None:
    work = await start_work(web.database)
    client = web.client(Role.VIEWER)
    assert "Nothing yet" in (await page(client, f"/sessions/{work.session_id}")).text
    assert "Nothing to replay" in (await page(client, f"/sessions/{work.session_id}/replay")).text
    await page(client, f"/sessions/{work.session_id}/replay/ticks")
    await page(client, f"/sessions/{work.session_id}/entries/0", 404)
    await page(client, "/sessions/2026-01-01T00-00-00-abcdef12", 404)


async def test_a_journal_that_was_deleted_by_rule_says_so(web: WebSite, tmp_path: Path) -> None:
    work = await start_work(web.database, entries=150)
    await finish(work)
    await prune(web.database, older_than=None, keep=0, state_dir=tmp_path / "state")
    client = web.client(Role.VIEWER)
    path = f"/sessions/{work.session_id}"
    assert "The journal is gone" in (await page(client, path)).text
    assert "Nothing to replay" in (await page(client, f"{path}/replay?at=5")).text
    await page(client, f"{path}/entries/5", 404)


# ---- acting


async def test_only_those_who_may_are_offered_the_buttons(web: WebSite) -> None:
    work = await start_work(web.database, entries=1)
    path = f"/sessions/{work.session_id}"
    assert "Send" not in (await page(web.client(Role.VIEWER), path)).text
    browser = await web.browser(Role.OPERATOR)
    assert "Send" in (await page(browser, path)).text
    sent = {"text": "look at the disk", "csrf": await web.csrf(browser)}
    answer = await browser.post(f"{path}/steer", data=sent)
    assert (answer.status_code, answer.headers["location"]) == (303, f"{path}?said=steered")
    (message,) = (await work.journal.drain())[0]
    assert (message.text, message.actor) == ("look at the disk", "test operator (console)")
    answer = await browser.post(f"{path}/cancel", data={"csrf": sent["csrf"]})
    assert answer.status_code == 303
    assert (await work.tickets.get_ticket(work.claim.ticket_id)).cancel_requested


async def test_what_was_typed_is_there_again_when_it_is_refused(web: WebSite) -> None:
    work = await start_work(web.database, entries=1)
    await finish(work)
    browser = await web.browser(Role.OPERATOR)
    sent = {"text": "too late", "csrf": await web.csrf(browser)}
    answer = await browser.post(f"/sessions/{work.session_id}/steer", data=sent)
    assert answer.status_code == 409
    assert "has ended" in Page(answer.text).text


# ---- audit and export


async def test_the_first_broken_link_is_named_and_linked(web: WebSite) -> None:
    work = await start_work(web.database, entries=5)
    browser = await web.browser(Role.VIEWER)
    csrf = {"csrf": await web.csrf(browser)}
    assert "The journal is intact" in Page((await browser.post("/audit/verify", data=csrf)).text).text
    async with web.database.begin() as c:
        await c.execute(text("DROP TRIGGER agent_log_entries_frozen"))
        await c.execute(text("UPDATE agent_log_entries SET raw_content = 'never happened' WHERE seq = 3"))
    answer = await browser.post("/audit/verify", data={**csrf, "session": work.session_id})
    found = harmless(answer.text)
    assert "broken" in found.text
    assert "altered" in found.text
    assert f'href="/sessions/{work.session_id}/entries/3"' in answer.text
    answer = await browser.post("/audit/verify", data={**csrf, "session": "no-such-session"})
    assert answer.status_code == 404
    assert "There is no session" in Page(answer.text).text


async def test_the_audit_can_be_read_when_the_ledger_is_broken(web: WebSite) -> None:
    await start_work(web.database)
    async with web.database.begin() as c:
        await c.execute(text("DROP TRIGGER ledger_frozen"))
        await c.execute(text("UPDATE ledger SET body = 'no json' WHERE seq = 0"))
        await c.execute(
            text("UPDATE ledger SET body = '[1]', kind = '<x-evil>', session_id = '\"><x-evil>' WHERE seq = 1")
        )
        await c.execute(text("UPDATE ledger SET body = 'no json' WHERE ticket_id = 1 AND kind = 'transition'"))
    client = web.client(Role.VIEWER)
    assert "Ledger" in (await page(client, "/audit")).text
    assert "the disk is full" in (await page(client, "/tickets/1")).text


async def test_the_ledger_is_shown_in_parts(web: WebSite) -> None:
    for n in range(60):
        await web.site.tokens.create(f"token {n}", Role.VIEWER, by="a person")
    client = web.client(Role.VIEWER)
    first = await page(client, "/audit")
    assert "token 59" in first.text
    assert "token 9 " not in first.text
    assert "a person" in first.text
    older = await page(client, "/audit?before=13")
    assert "token 9 " in older.text
    assert "token 59" not in older.text


async def test_exports_are_what_the_command_line_exports(web: WebSite, tmp_path: Path) -> None:
    from operator_core.cli.journal_view import entry_dict, transcript

    work = await start_work(web.database, entries=3)
    await work.journal.append(call(1), result(1, "a\n" * 300), Draft("report", "closed", "# Closure\n\nall good"))
    client = web.client(Role.VIEWER)
    base = f"/sessions/{work.session_id}/export"
    entries = await work.audit.entries(work.session_id)
    lines = (await client.get(f"{base}/jsonl")).text.splitlines()
    assert [json.loads(line) for line in lines] == [entry_dict(entry) for entry in entries]
    session = await work.audit.session(work.session_id)
    markdown = (await client.get(f"{base}/markdown")).text
    assert markdown.split("\n## 0.")[1] == transcript(session, entries).split("\n## 0.")[1]
    assert (await client.get(f"{base}/report")).text == "# Closure\n\nall good"
    document = (await client.get(f"{base}/json")).json()
    assert document["session_id"] == work.session_id
    assert (await client.get(f"{base}/exe")).status_code == 422
    assert (await client.get("/sessions/none/export/jsonl")).status_code == 404


async def test_a_long_output_can_be_saved_whole_and_nothing_else(web: WebSite, tmp_path: Path) -> None:
    work = await start_work(web.database)
    data = bytes(range(256)) * 10_000
    (tmp_path / "out").write_bytes(data)
    digest = await work.audit.store_blob(tmp_path / "out")
    meta = {"stdout_blob": digest, "stdout_bytes": len(data), "other_blob": "../../etc/passwd"}
    await work.journal.append(result(1, meta=meta))
    client = web.client(Role.VIEWER)
    base = f"/sessions/{work.session_id}/entries/0"
    assert "Save the whole stdout (2.4 MB)" in (await page(client, base)).text
    answer = await client.get(f"{base}/files/stdout")
    assert answer.content == data
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert answer.headers["x-content-type-options"] == "nosniff"
    for name in ("stderr", "other"):
        assert (await client.get(f"{base}/files/{name}")).status_code == 404


@pytest.mark.parametrize(
    ("beginning", "shown"),
    [
        ({"engine": "scripted", "model": "claude-opus-5-5"}, "scripted, in place of claude-opus-5-5"),
        ({"engine": "scripted", "model": "scripted-tasks"}, "scripted, scripted-tasks"),
        (
            {"engine": "claude-code", "model": "claude-opus-5-5", "scripted": True},
            "claude-code (scripted model), in place of claude-opus-5-5",
        ),
        ({"engine": "anthropic", "model": "claude-opus-5-5"}, "anthropic, claude-opus-5-5"),
    ],
)
async def test_what_a_program_played_is_not_shown_as_a_model(
    web: WebSite, beginning: dict[str, Any], shown: str
) -> None:
    work = await start_work(web.database)
    await work.journal.append(Draft(EntryKind.PHASE_START, "worker_1", body=beginning, phase="worker_1"))
    found = await page(web.client(Role.VIEWER), f"/sessions/{work.session_id}")
    assert shown in " ".join(found.text.split())

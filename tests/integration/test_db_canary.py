"""A secret that reaches any write path of the store is in no byte of the database."""

from __future__ import annotations

import json
from pathlib import Path

import asyncpg
import pytest

from operator_core import clock
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.model.entry import Draft
from operator_core.model.monitor import MonitorState
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.redaction import MASK, Redactor
from tests.support.store import column_of, start_work, violation

CANARY = 'canary-5f3c"9e1b\\0x'
# As it would look in each place: raw, and inside JSON text.
FORMS = {CANARY, json.dumps(CANARY)[1:-1], "canary-5f3c"}


async def dump(store_url: str) -> bytes:
    """Every byte that is stored: the raw files with their logs, or every column of every row."""
    if "://" not in store_url:
        path = Path(store_url)
        return b"".join(file.read_bytes() for file in sorted(path.parent.glob(path.name + "*")))
    other = await asyncpg.connect(store_url.replace("+asyncpg", ""))
    tables = await other.fetch("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    rows = [await other.fetch(f'SELECT t::text FROM "{table[0]}" t') for table in tables]
    await other.close()
    return "\n".join(r[0] for table in rows for r in table).encode()


async def write_everywhere(database: Database, text: str, folder: Path) -> None:
    work = await start_work(database)
    tickets, audit, now = work.tickets, work.audit, clock.now()
    await tickets.create_or_update_ticket(violation("cpu", message=text), {"value": text, text: [text]}, None, text)
    await tickets.create_or_update_ticket(violation("cpu", message=text + " again"), {"value": text})
    await tickets.open_ticket("by-hand", text, subject_context=text)
    await tickets.send(work.claim.ticket_id, text, actor="person")
    await tickets.update_diagnosis(work.claim.ticket_id, text)
    await work.journal.append(
        Draft("reasoning", text, text, "shell", {"command": text, "deep": [{text: text}]}, 0, meta={"note": [text]}),
        Draft(
            "message", "x", body={"role": "user", "content": [{"type": "text", "text": text}, {"input": {"c": text}}]}
        ),
    )
    call = {"type": "tool_use", "id": "t", "name": "shell", "input": {"data": text, "signature": text}}
    await work.journal.append(Draft("message", "x", body={"role": "assistant", "content": [call]}))
    await work.journal.drain()
    await tickets.send(work.claim.ticket_id, text)
    await audit.update_summary((await audit.entries(work.session_id))[0].id, text)
    alone = await audit.create_session(None)
    await audit.log_entry(alone, "tool_result", text, text, "shell", {"c": text}, 1)
    await audit.complete_session(alone, "failed", text)
    state = MonitorState("cpu", "cpu", "red", now, now, (now,), 0, text, now)
    await tickets.save_monitor_states([state])
    await tickets.save_monitor_states([state._replace(last_value=text * 2)])
    held = await tickets.open_ticket("held", "x")
    await tickets.resolve_ticket(held.id or 0, note=text)
    await work.queue.finish(
        work.claim,
        TicketStatus.ESCALATED,
        Reason.ERROR,
        diagnosis=text,
        session_id=work.session_id,
        session_status="failed",
    )


async def test_the_secret_is_in_no_byte_of_the_store(store_url: str, tmp_path: Path) -> None:
    async with Database.open(store_url, redactor=Redactor([CANARY])) as database:
        await write_everywhere(database, f"before {CANARY} after", tmp_path)
        stored = await dump(store_url)
    stored += await dump(store_url)
    assert not [form for form in FORMS if form.encode() in stored]
    assert stored.count(MASK.encode()) > 15, "the texts themselves must be there"


async def test_without_the_redactor_the_test_would_see_it(store_url: str, tmp_path: Path) -> None:
    async with Database.open(store_url, redactor=Redactor()) as database:
        await write_everywhere(database, f"before {CANARY} after", tmp_path)
        assert b"canary-5f3c" in await dump(store_url)


async def test_the_environment_is_known_without_being_told(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", CANARY)
    async with Database.open(store_url) as database:
        await write_everywhere(database, CANARY, tmp_path)
        assert b"canary-5f3c" not in await dump(store_url)


async def test_opaque_blocks_are_kept_word_for_word(store_url: str) -> None:
    """A thinking block whose signature changed would end the conversation; nothing readable is in it."""
    signature = "sk-ant-" + "A1b2" * 20
    hidden = {"type": "redacted_thinking", "data": signature}
    body = {
        "role": "assistant",
        "content": [{"type": "thinking", "thinking": CANARY, "signature": signature}, hidden],
    }
    async with Database.open(store_url, redactor=Redactor([CANARY])) as database:
        work = await start_work(database)
        await work.journal.append(Draft("message", "x", body=body))
        (entry,) = await AuditLogDB(database).entries(work.session_id)
    assert entry.body["content"] == [
        {"type": "thinking", "thinking": MASK, "signature": signature},
        hidden,
    ]
    assert await column_of(store_url, "SELECT count(*) FROM agent_log_entries") == [1]

"""Commands that show and change tickets, sessions and the journal: what they print, and that it is harmless."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.config import LISTS, Settings, extension_models, load_settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft, EntryKind
from tests.support import run_operator, wait_until
from tests.support.processes import operator_environment

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x1b[31m[bold red]stop[/bold red]\u202e\x9b1A\x7f\rdone"
"""Escapes for the terminal, markup of rich, a bidirectional override, an 8-bit escape and a carriage return."""
RAW = ("\x1b]0;", "\x1b[2J", "\x9b", "\u202e", "\x07", "\x7f", "\rdone")


class Store(str):
    """The path of a database with one ticket (#1, hostile) and its session."""

    session: str


@pytest.fixture
def store(tmp_path: Path) -> Store:
    async def fill(path: str) -> str:
        async with Database.open(path) as database:
            ticket = await TicketDB(database).open_ticket("disk-full", HOSTILE)
            audit = AuditLogDB(database)
            session = await audit.create_session(ticket.id)
            journal = await audit.journal(session)
            result = {"stdout": HOSTILE, "stderr": "", "exit_code": 3, "timed_out": False}
            call = {"command": f"echo {HOSTILE}", "reasoning": HOSTILE}
            await journal.append(
                Draft(EntryKind.REASONING, HOSTILE, HOSTILE, phase="worker_1"),
                Draft(EntryKind.TOOL_CALL, "shell: echo", None, "shell", call, tool_use_id="t1", phase="worker_1"),
                Draft(EntryKind.TOOL_RESULT, HOSTILE, json.dumps(result), "shell", None, 3, "t1", "worker_1"),
            )
            return session

    found = Store(tmp_path / "operator.db")
    found.session = asyncio.run(fill(found))
    return found


def document(*words: str, db: str, code: int = 0) -> Any:
    done = run_operator(*words, "--json", db=db)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout.isascii()
    return json.loads(done.stdout)


def said(*words: str, db: str) -> str:
    done = run_operator(*words, db=db)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout


def test_a_ticket_s_life_by_hand(tmp_path: Path) -> None:
    db = str(tmp_path / "new" / "operator.db")
    assert "no check" in said("tickets", "open", "disk-full", "The disk is full.", "--severity", "critical", db=db)
    opened = document("tickets", "list", "--status", "open", db=db)
    assert [(t["id"], t["invariant_name"], t["severity"], t["status"]) for t in opened] == [
        (1, "disk-full", "critical", "open")
    ]
    for words, state, held in (
        (("hold", "1"), "open", True),
        (("unhold", "1"), "open", False),
        (("resolve", "1", "--note", "made room"), "resolved", False),
        (("reopen", "1"), "open", False),
        (("cancel", "1"), "canceled", False),
    ):
        ticket = document("tickets", *words, db=db)
        assert (ticket["status"], ticket["held"]) == (state, held)
    shown = document("tickets", "show", "1", db=db)
    moves = [(h["old"], h["new"], h["reason"]) for h in shown["history"] if h["kind"] == "transition"]
    assert moves == [
        (None, "open", moves[0][2]),
        ("open", "resolved", "by_hand"),
        ("resolved", "open", "by_hand"),
        ("open", "canceled", "by_hand"),
    ]
    assert "made room" in said("tickets", "show", "1", db=db)
    assert document("tickets", "list", "--status", "open", db=db) == []
    assert said("tickets", "list", "--status", "open", db=db) == "There are no tickets.\n"


def test_a_ticket_with_a_check(tmp_path: Path) -> None:
    (tmp_path / "operator.toml").write_text(
        f"""
        [store]
        url = "{tmp_path}/operator.db"
        [[subject]]
        name = "shop"
        context = "About the shop."
        [[subject.invariant]]
        name = "shop-is-up"
        probe = {{ type = "command", command = "false" }}
        """
    )
    words = ("tickets", "open", "slow", "It is slow.", "--invariant", "shop-is-up", "--json")
    ticket = json.loads(run_operator(*words, cwd=tmp_path).stdout)
    assert ticket["check_spec"]["invariant"]["name"] == "shop-is-up"
    assert len(ticket["check_hash"]) == 64
    assert ticket["subject_context"] == "About the shop."
    # Two tickets about one invariant would be two agents in one workspace.
    again = run_operator(*words, cwd=tmp_path)
    assert (again.returncode, again.stdout) == (1, "")
    for wrong in (("--invariant", "nope"), ("--subject", "shop"), ("--invariant", "shop-is-up", "--subject", "x")):
        done = run_operator("tickets", "open", "slow", "It is slow.", *wrong, cwd=tmp_path)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_sessions_and_audit(store: Store) -> None:
    for group in ("sessions", "audit"):
        (listed,) = document(group, "list", db=store)
        assert (listed["session_id"], listed["status"], listed["entries"]) == (store.session, "running", 3)
        assert store.session in said(group, "list", "-n", "5", db=store)
        shown = document(group, "show", store.session, db=store)
        assert [e["entry_type"] for e in shown["journal"]] == ["reasoning", "tool_call", "tool_result"]
        text = said(group, "show", store.session, db=store)
        for label in ("[Claude]", "[Tool Call: shell] echo", "[Result (exit 3)]"):
            assert label in text
    assert document("sessions", "list", "--ticket", "7", db=store) == []
    assert len(said("sessions", "tail", store.session, "-n", "1", db=store).splitlines()) == 1
    rows = said("sessions", "tail", store.session, "--json", db=store).splitlines()
    assert [json.loads(row)["seq"] for row in rows] == [0, 1, 2]


def test_exports(store: Store, tmp_path: Path) -> None:
    auditor = json.loads(said("audit", "export", store.session, db=store))
    assert auditor["session_id"] == store.session
    assert auditor["messages"][-1]["result"]["exit_code"] == 3
    rows = [json.loads(row) for row in said("audit", "export", store.session, "-f", "jsonl", db=store).splitlines()]
    assert auditor["ended_at"] == rows[-1]["timestamp"], "when the session ended, not when it was exported"
    assert [row["prev_hash"] for row in rows[1:]] == [row["hash"] for row in rows[:-1]]
    page = tmp_path / "page.md"
    assert said("audit", "export", store.session, "-f", "markdown", "-o", str(page), db=store) == f"Wrote {page}.\n"
    assert page.read_text().startswith(f"# Session {store.session}")
    assert not any(raw in page.read_text() for raw in RAW)
    report = run_operator("audit", "export", store.session, "--format", "report", db=store)
    assert (report.returncode, report.stderr.count("\n")) == (1, 1)
    assert "no closure report" in report.stderr


def test_audit_verify_names_the_row_that_was_changed(store: Store) -> None:
    assert said("audit", "verify", db=store).startswith("The journal is intact: 1 session(s) with 3 entries")
    assert document("audit", "verify", "--session", store.session, db=store)["ok"] is True

    async def forge() -> None:
        from sqlalchemy import text

        async with Database.open(store) as database, database.begin() as connection:
            for trigger in await connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")):
                await connection.execute(text(f"DROP TRIGGER {trigger.name}"))
            await connection.execute(text("UPDATE agent_log_entries SET exit_code = 0 WHERE seq = 2"))

    asyncio.run(forge())
    done = run_operator("audit", "verify", db=store)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert "entry 2" in done.stderr
    report = document("audit", "verify", db=store, code=1)
    assert (report["ok"], report["problem"]["seq"], report["problem"]["what"]) == (False, 2, "altered")


def test_prune_leaves_a_tombstone_that_verify_knows(store: Store) -> None:
    async def close() -> None:
        async with Database.open(store) as database:
            await AuditLogDB(database).complete_session(store.session, "completed", "done")
            await TicketDB(database).cancel_ticket(1)

    asyncio.run(close())
    assert document("audit", "prune", "--keep", "0", "--dry-run", db=store)["sessions"] == [store.session]
    assert document("sessions", "show", store.session, db=store)["journal"] != []
    assert "1 session(s)" in said("audit", "prune", "--keep", "0", "--older-than", "0d", db=store)
    report = document("audit", "verify", db=store)
    assert (report["ok"], report["pruned"], report["signatures_checked"]) == (True, 1, True)
    for wrong in ((), ("--older-than", "soon")):
        assert run_operator("audit", "prune", *wrong, db=store).returncode == 2


@pytest.mark.parametrize(
    "words",
    [
        ("tickets", "list"),
        ("tickets", "show", "1"),
        ("sessions", "show", "SESSION", "--full"),
        ("sessions", "tail", "SESSION"),
        ("audit", "export", "SESSION", "--format", "markdown"),
        ("audit", "export", "SESSION", "--format", "jsonl"),
        ("sessions", "show", "SESSION", "--json"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("terminal", [False, True], ids=["plain", "terminal"])
def test_hostile_text_is_shown_and_harmless(store: Store, words: tuple[str, ...], terminal: bool) -> None:
    real = [store.session if word == "SESSION" else word for word in words]
    shown = on_a_terminal(*real, db=store) if terminal else said(*real, db=store)
    assert not [raw for raw in RAW if raw in shown]
    assert "[bold" in shown, "markup in data was read as markup"
    if not terminal:
        assert not set(shown) & set("─│┃━┏╭"), "boxes are for terminals"
        assert "\x1b" not in shown


def test_a_terminal_gets_colours_unless_it_does_not_want_them(store: Store) -> None:
    assert "\x1b[" in on_a_terminal("sessions", "show", store.session, db=store)
    plain = on_a_terminal("sessions", "show", store.session, db=store, NO_COLOR="1")
    assert "\x1b[3" not in plain
    assert "\x1b" not in on_a_terminal("sessions", "show", store.session, db=store, TERM="dumb")


def on_a_terminal(*words: str, db: str, **env: str) -> str:
    """What a person sees: everything that the command writes to a pseudo-terminal."""
    ours, theirs = pty.openpty()
    environment = {**operator_environment(), "TERM": "xterm-256color", **env}
    if "NO_COLOR" not in env:
        environment.pop("NO_COLOR")
    with subprocess.Popen(
        [sys.executable, "-m", "operator_core", "--db", db, *words],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as child:
        os.close(theirs)
        parts = []
        while select.select([ours], [], [], 60)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            parts.append(data)
        os.close(ours)
        assert child.wait(30) == 0
    return b"".join(parts).decode()


def test_tail_follows_until_the_session_ends(store: Store, tmp_path: Path) -> None:
    async def more(change: Callable[[AuditLogDB], Any]) -> None:
        async with Database.open(store) as database:
            await change(AuditLogDB(database))

    command = [sys.executable, "-m", "operator_core", "--db", store, "sessions", "tail", store.session, "-f"]
    output = tmp_path / "output"
    with output.open("w") as file, subprocess.Popen(command, env=operator_environment(), stdout=file) as child:
        wait_until(lambda: "[Result (exit 3)]" in output.read_text(), timeout=30)
        asyncio.run(more(lambda audit: audit.log_entry(store.session, "reasoning", "one more thought")))
        wait_until(lambda: "one more thought" in output.read_text(), timeout=30)
        assert child.poll() is None
        asyncio.run(more(lambda audit: audit.complete_session(store.session, "completed", "done")))
        assert child.wait(30) == 0


def test_init_writes_what_it_says(tmp_path: Path) -> None:
    done = run_operator("init", "there", "--db", "there/o.db", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "`operator --db there/o.db --config there/operator.toml doctor`" in done.stdout
    path = tmp_path / "there" / "operator.toml"
    text = path.read_text()
    assert (tmp_path / "there" / "o.db").is_file()
    assert load_settings(path, environ={}).settings.store.url == str(tmp_path / "there" / "o.db")
    shown = re.sub(r"(?m)^# ([a-z_]+ = )", r"\1", text.split("# A system under watch")[0])
    data = tomllib.loads(shown)
    data["store"]["url"] = Settings().store.url
    for section, model in extension_models().items():
        assert model.model_validate(data.pop(section)) == model(), "the comments show the defaults of packages too"
    assert Settings.model_validate(data) == Settings(), "the comments show the defaults"
    example = re.sub(r"(?m)^# ?", "", text[text.index("# [[subject]]") :])
    examples = Settings.model_validate(tomllib.loads(example))
    assert [s.name for s in examples.subject] == ["shop"]
    assert {name for name in LISTS if not getattr(examples, name)} == set(), "there is an example of each"
    assert examples.approvals.rule
    assert examples.notify.rule
    again = run_operator("init", "there", cwd=tmp_path)
    assert (again.returncode, again.stderr, path.read_text()) == (0, "", text)
    assert "stays as it is" in again.stdout
    assert "o.db is ready." in again.stdout
    store = tmp_path / "there" / "o.db"
    assert run_operator("tickets", "open", "disk", "full", db=str(store)).returncode == 0
    assert "o.db was there already, with its tickets." in run_operator("init", "there", cwd=tmp_path).stdout
    path.write_text('[store]\nurl = "other.db"\n')
    missing = run_operator("tickets", "list", "--config", "there/operator.toml", cwd=tmp_path)
    assert (missing.returncode, "`operator --config there/operator.toml init`" in missing.stderr) == (1, True)
    assert run_operator("init", "there", cwd=tmp_path).returncode == 0
    assert (tmp_path / "there" / "other.db").is_file(), "beside the file that names it"
    assert run_operator("tickets", "list", "--config", "there/operator.toml", cwd=tmp_path).returncode == 0
    forced = run_operator("init", "there", "--force", "--json", "--db", "there/o.db", cwd=tmp_path)
    assert json.loads(forced.stdout)["database"] == str(tmp_path / "there" / "o.db")


def test_config_show_tells_where_values_come_from_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "operator.toml").write_text(
        '[limits]\nturns = 7\n[[subject]]\nname = "shop"\nenv = { SHOP_TOKEN = "very-secret-value", LEVEL = "3" }\n'
    )
    env = {"OPERATOR_MONITOR__INTERVAL_S": "5"}
    url = "postgresql://me:hidden-word@localhost/x"
    done = run_operator("config", "show", "--json", "--db", url, cwd=tmp_path, env=env)
    settings = json.loads(done.stdout)["settings"]
    assert settings["limits.turns"] == {"value": 7, "origin": "operator.toml"}
    assert settings["monitor.interval_s"] == {"value": 5.0, "origin": "environment OPERATOR_MONITOR__INTERVAL_S"}
    assert settings["worker.poll_s"] == {"value": 1.0, "origin": "default"}
    assert settings["store.url"]["origin"] == "command line --db"
    assert settings["subject.shop"]["origin"] == "operator.toml"
    text = run_operator("config", "show", "--db", url, cwd=tmp_path, env=env).stdout
    assert "limits.turns" in text
    for shown in (done.stdout, text):
        assert "very-secret-value" not in shown
        assert "hidden-word" not in shown

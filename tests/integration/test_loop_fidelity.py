"""What the model was sent is what the journal folds to, byte for byte, whatever happened in between (A-059, A-074)."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
from pathlib import Path

from operator_core.agent_lab.history import fold
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Call, FunctionBrain, Reply, ScriptBrain, Turn
from tests.support import wait_until_async
from tests.support.rig import PROPOSE, command, open_rig

MANY_KINDS = [
    Reply(
        text="I look at the workspace before I change anything in it, as one should.",
        thinking="Which file is it? „fixed“, says the ticket – let me look. \N{SLEUTH OR SPY}",
        calls=(command("ls -la; pwd"), Call("nonsense", {"a": [1, None]}), command("echo 'grüße \"x\" \\ y'")),
    ),
    Reply(calls=(command(""), Call("shell", {"command": "echo hi"}), command("echo late; exit 3"))),
    Reply(calls=(command("x", timeout=-1), command("x", timeout="soon"), command("x", colour="red"))),
    Reply(calls=(command("echo\0nul"), command("printf '\\xff\\xfe\\n'"), Call("give_up", {}))),
    Reply(text="First words, then nothing."),
    Reply(thinking="only thoughts", calls=(command("touch fixed"),)),
    PROPOSE,
]


async def test_requests_are_the_fold_of_the_journal(tmp_path: Path, store_url: str) -> None:
    async with open_rig(ScriptBrain(MANY_KINDS), tmp_path, store=store_url) as rig:
        ticket = await rig.solve()
        assert ticket.status is TicketStatus.RESOLVED
        assert len(rig.sent()) == len(MANY_KINDS)
        await rig.assert_faithful()

        # Byte for byte also means: the same order of keys, and nothing that only compares equal.
        messages = fold(await rig.journal(), "worker_1").messages
        last = rig.sent()[-1]
        assert json.dumps(last) == json.dumps(messages[: len(last)])
        signatures = [b["signature"] for m in last for b in m["content"] if isinstance(b, dict) and "signature" in b]
        assert len(signatures) == 2
        assert all(signatures)


async def test_every_call_has_one_intent_before_and_one_result_after(tmp_path: Path) -> None:
    async with open_rig(ScriptBrain(MANY_KINDS), tmp_path) as rig:
        await rig.solve()
        entries = await rig.journal()
        calls = [e for e in entries if e.entry_type == EntryKind.TOOL_CALL]
        results = [e for e in entries if e.entry_type == EntryKind.TOOL_RESULT]
        assert len(calls) == sum(len(r.calls) for r in MANY_KINDS) == 14
        assert sorted(c.tool_use_id or "" for c in calls) == sorted(r.tool_use_id or "" for r in results)
        seq = {(e.entry_type, e.tool_use_id): e.seq for e in entries}
        for call in calls:
            assert seq["tool_call", call.tool_use_id] < seq["tool_result", call.tool_use_id]
        by_id = {r.tool_use_id: r for r in results}
        told = {
            c.tool_params.get("command"): by_id[c.tool_use_id]
            for c in calls
            if c.tool_params and c.tool_name == "shell"
        }
        assert told["echo late; exit 3"].exit_code == 3
        assert json.loads(told["printf '\\xff\\xfe\\n'"].raw_content or "")["stdout"] == "\ufffd\ufffd\n"
        for refused in ("", "echo hi", "x", "echo\0nul"):
            assert told.get(refused, told.get(refused.replace("\0", "\ufffd"))) is not None
        # What the model has to change is in the words that it gets.
        words = "\n".join(str(r.body["content"]) for r in results if r.body.get("is_error"))
        for word in (
            "Tool 'nonsense' not found",
            "`command` is required",
            "`reasoning` is required",
            "`timeout` must",
            "colour",
            "NUL",
        ):
            assert word in words


async def test_intents_of_parallel_calls_are_durable_before_the_first_effect(tmp_path: Path) -> None:
    """The command itself looks into the database file for its own intent, and for that of its neighbour (A-059)."""
    look = (
        f"{sys.executable} -c \"import sqlite3; print([r[0] for r in sqlite3.connect('{tmp_path}/operator.db').execute("
        "'select entry_type from agent_log_entries order by id')])\""
    )
    brain = ScriptBrain([Reply(calls=(command(look), command(look), command("touch fixed"))), PROPOSE])
    async with open_rig(brain, tmp_path) as rig:
        await rig.solve()
        results = [e for e in await rig.journal() if e.entry_type == "tool_result" and e.tool_name == "shell"]
        seen = [json.loads(e.raw_content or "")["stdout"] for e in results[:2]]
        assert seen[0].count("'tool_call'") == 3
        assert seen[0].count("'tool_result'") == 0
        assert seen[1].count("'tool_result'") == 1


async def test_a_note_of_a_person_reaches_the_next_request_once(tmp_path: Path) -> None:
    database = tmp_path / "operator.db"

    def speak(turn: Turn) -> Reply:
        if turn.step == 0:
            return Reply(calls=(command("touch go; until test -e said; do sleep 0.02; done"), command("echo two")))
        if turn.step == 1:
            marked = re.fullmatch(r"<<<(\w+) person\n(.*)\n\1>>>\n<<<\1 person\n(.*)\n\1>>>", turn.last_text)
            assert marked
            assert marked.groups()[1:] == ("Careful with the `disk`.", "And hurry.")
            assert f"<<<{marked[1]} ORIGIN" in turn.system
            return Reply(calls=(command("touch fixed"),))
        assert turn.last_text == ""
        return PROPOSE

    async with open_rig(FunctionBrain(speak), tmp_path) as rig:
        number = await rig.incident()

        async def person() -> None:
            await wait_until_async(lambda: (rig.workspace / "go").exists())
            await rig.tickets.send(number, "Careful with the `disk`.")
            await rig.tickets.send(number, "And hurry.")
            (rig.workspace / "said").touch()

        await asyncio.gather(rig.work(), person())
        assert (await rig.tickets.get_ticket(number)).status is TicketStatus.RESOLVED
        assert [e.raw_content for e in await rig.journal() if e.entry_type == "note"] == [
            "Careful with the `disk`.",
            "And hurry.",
        ]
        await rig.assert_faithful()
    with sqlite3.connect(database) as c:
        assert c.execute("select count(*) from inbox").fetchone() == (0,)

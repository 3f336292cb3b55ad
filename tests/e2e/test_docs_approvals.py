"""``docs/approvals.md`` is tried: its rules load and rule, its commands run, its table is what a rule has."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path

import pytest

from operator_core.config import Settings, load_settings
from operator_core.db.approvals import Approvals
from operator_core.model.approval import ApprovalRule
from operator_core.model.person import Role
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.safety.approvals import Circumstances, decide
from operator_core.scripted import Brain, FunctionBrain, Reply, Turn
from tests.support import run_operator
from tests.support.processes import operator_environment
from tests.support.rig import PROPOSE, Rig, command, open_rig
from tests.support.web import served

TEXT = (Path(__file__).parents[2] / "docs" / "approvals.md").read_text("utf-8")
ID = "3f2a"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", TEXT, re.M | re.S)


def settings(folder: Path) -> Settings:
    (block,) = blocks("toml")
    (folder / "operator.toml").write_text(block)
    return load_settings(folder / "operator.toml", environ={}).settings


@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ("git status", "allow"),
        ("cat docs/a.md", "allow"),
        ("git push --force origin main", "deny"),
        ("systemctl restart postgresql", "ask"),
        ("ls; systemctl restart postgresql", "ask"),
        ("sudo ls", "ask"),
        ("touch fixed", "allow"),
    ],
)
def test_the_rules_say_what_the_page_says(text: str, decision: str, tmp_path: Path) -> None:
    approvals = settings(tmp_path).approvals
    here = Circumstances("operator", "worker_1", environment=approvals.environment)
    assert decide(approvals.rule, here, "shell", {"command": text, "reasoning": "r"}).decision == decision


def test_the_table_has_every_field() -> None:
    shown = re.findall(r"^\| `(\w+)` \|", TEXT, re.M)
    assert shown == [name for name in ApprovalRule.model_fields if name != "decision"]


@pytest.mark.parametrize("number", [0, 1])
async def test_its_commands_answer_a_question(number: int, tmp_path: Path) -> None:
    restart = command("true || systemctl restart postgresql; touch fixed")

    def agent(turn: Turn) -> Reply:
        return Reply(calls=(restart,)) if turn.step == 0 else PROPOSE

    brain: Brain = FunctionBrain(agent)
    async with open_rig(brain, tmp_path, approvals=settings(tmp_path).approvals.model_dump()) as rig:
        await rig.incident()
        await rig.work()
        ticket = await rig.tickets.get_ticket(1)
        assert (ticket.status, ticket.reason) == (TicketStatus.WAITING_FOR_INPUT, Reason.NEEDS_APPROVAL)
        await run_block(rig, blocks("sh")[number], tmp_path)
        await rig.work()
        ticket = await rig.tickets.get_ticket(1)
        assert ticket.status is (TicketStatus.ESCALATED if number else TicketStatus.RESOLVED)
        assert (rig.workspace / "fixed").exists() is not bool(number)
        assert ("Not before 6 pm" in str(rig.sent()[-1])) is bool(number)


async def test_its_requests_answer_a_question(tmp_path: Path) -> None:
    brain: Brain = FunctionBrain(lambda turn: Reply(calls=(command("systemctl restart postgresql"),)))
    known = settings(tmp_path)
    async with open_rig(brain, tmp_path, approvals=known.approvals.model_dump()) as rig:
        await rig.incident()
        await rig.work()
        (asked,) = await Approvals(rig.database).listed()
        (block,) = blocks("bash")
        with served(rig.database.name, known) as server:
            names = {"OPERATOR_SERVER": server.url, "OPERATOR_TOKEN": server.tokens[Role.OPERATOR]}
            env = operator_environment({**names, "APPROVAL": asked.id})
            done = await asyncio.to_thread(
                subprocess.run, ["bash", "-euc", block], env=env, capture_output=True, text=True, timeout=60, check=True
            )
        answer = json.loads(done.stdout.partition("]{")[2].join(("{", "")))
        assert (answer["id"], answer["state"], answer["answered_by"]) == (asked.id, "approved", "test operator (api)")
        assert answer["note"] == "The replica is in sync, go ahead."


async def run_block(rig: Rig, block: str, folder: Path) -> None:
    (asked,) = await Approvals(rig.database).listed()
    # As on a terminal: a hostile command is shown, and nothing of it is done there.
    script = block.replace(ID, asked.id[:8])
    env = {"OPERATOR_DB": str(folder / "operator.db"), "OPERATOR_CONFIG": str(folder / "operator.toml")}
    said = ""
    for line in script.strip().splitlines():
        words = [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', line)]
        done = await asyncio.to_thread(run_operator, *words[1:], env=env, cwd=folder)
        assert (done.returncode, done.stderr) == (0, ""), done
        said += done.stdout
    if "approve" in block:
        assert "systemctl restart postgresql" in said
        assert "It touches what customers use." in said
        assert asked.arguments_hash in said
        assert "may run this call once" in said
        assert "No worker is running" in said
    listed = await asyncio.to_thread(run_operator, "approvals", "list", "--all", "--json", env=env, cwd=folder)
    (data,) = json.loads(listed.stdout)
    assert (data["id"], data["answered_by"]) == (asked.id, "person")
    again = await asyncio.to_thread(run_operator, "approvals", "deny", asked.id, "--note", "x", env=env, cwd=folder)
    assert (again.returncode, again.stderr.count("\n")) == (1, 1), again
    nothing = await asyncio.to_thread(run_operator, "approvals", "list", env=env, cwd=folder)
    assert "Nothing waits" in nothing.stdout
    unknown = await asyncio.to_thread(run_operator, "approvals", "show", "ffff\x1b[2J", env=env, cwd=folder)
    assert (unknown.returncode, "\x1b" in unknown.stderr) == (1, False), unknown


async def test_hostile_words_of_an_agent_are_shown_as_text(tmp_path: Path) -> None:
    hostile = command("touch fixed # \x1b[2J\x1b]0;owned\x07 \u202e systemctl restart x [bold]y[/bold]")
    brain = FunctionBrain(lambda turn: Reply(calls=(hostile,)) if turn.step == 0 else PROPOSE)
    async with open_rig(brain, tmp_path, approvals=settings(tmp_path).approvals.model_dump()) as rig:
        await rig.incident()
        await rig.work()
        (asked,) = await Approvals(rig.database).listed()
        env = {"OPERATOR_DB": str(tmp_path / "operator.db")}
        for words in (["list"], ["show", asked.id]):
            done = await asyncio.to_thread(run_operator, "approvals", *words, env=env, cwd=tmp_path)
            assert done.returncode == 0
            assert not [c for c in "\x1b\x07\u202e" if c in done.stdout]
            assert "[bold]y[/bold]" in done.stdout

"""What a task may spend, over all of its phases: nothing is free, and it never costs more than one call too much."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operator_core.agent_lab.budget import Budget, price
from operator_core.config import LimitSettings, ModelSettings
from operator_core.errors import LimitReached, UnknownPrice
from operator_core.model.entry import EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_core.model.usage import Usage
from operator_core.scripted import Failure, Reply, Turn
from operator_core.work.entries import spent
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import done, role_of, run, task_brain, verdict
from tests.support.task_sweep import role_of_request

WORKER, SMALL = "claude-opus-5-5", "claude-haiku-4-5"
# A token of the worker's model costs a tenth of a cent, one of the small model a hundredth; what goes in is free.
PRICES = {WORKER: {"input": 0.0, "output": 1000.0}, SMALL: {"input": 0.0, "output": 100.0}}
PARSED = json.dumps({"task_description": "Make hello.", "success_criteria": "It says hello."})
TOKENS = {"worker": 100, "verifier": 100, "parser": 1000, "summarizer": 500}
"""Of each reply, so that a call costs 10, 10, 10 and 5 cents."""


def usd(role: str) -> float:
    return TOKENS[role] / (10_000 if role in ("parser", "summarizer") else 1_000)


def paid(turn: Turn, reply: Reply, tokens: int | None = None) -> Reply:
    usage = {"input_tokens": 10, "output_tokens": TOKENS[role_of(turn)] if tokens is None else tokens}
    return Reply(text=reply.text, calls=reply.calls, usage=usage)


SCRIPTS: dict[str, tuple[Reply, ...]] = {
    "parser": (Reply(text=PARSED),),
    "worker": (run("printf 'echo hello\\n' > hello"), done()),
    "verifier": (run("sh ./hello"), verdict(True)),
    "summarizer": (Reply(text="# Task Summary: hello\n\n- Made."),),
}


def scripts(**others: Any) -> dict[str, Any]:
    def role(script: tuple[Reply, ...]) -> Any:
        return lambda turn: paid(turn, script[min(turn.step, len(script) - 1)])

    return {name: others.get(name) or role(script) for name, script in SCRIPTS.items()}


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "not-a-key-at-all")


def rig_of(tmp_path: Path, roles: dict[str, Any], **model: Any) -> Any:
    sections = {
        "model": {"engine": "anthropic", "max_tokens": 100, "prices": PRICES, "retry_deadline_s": 30.0, **model},
        "tasks": {"root": tmp_path},
    }
    return open_rig(task_brain(**roles), tmp_path, **sections)


async def do(rig: Rig, budget: float) -> tuple[Ticket, float]:
    """Work on the task; what it came to, and what it cost by the journal."""
    check = TaskCheck(command="sh ./hello | grep hello >/dev/null")
    task = TaskSpec(name="hello", prompt="Make hello.", checks=(check,), budget_usd=budget)
    number = (await rig.tickets.submit_task(task)).id or 0
    await rig.work()
    cost = spent(await rig.journal(number)).cost_usd
    assert cost is not None
    return await rig.tickets.get_ticket(number), cost


def billed(rig: Rig) -> float:
    """What the model service would put on the bill: every answer that it gave."""
    rate = {WORKER: 1e-3, SMALL: 1e-4}
    return sum(r.usage["output_tokens"] * rate[r.model or ""] for r in rig.server.model_calls() if r.usage)


def asked(rig: Rig) -> list[str]:
    return [role_of_request(r.body) for r in rig.server.model_calls() if r.body]


async def test_every_phase_is_charged(tmp_path: Path) -> None:
    async with rig_of(tmp_path, scripts()) as rig:
        ticket, cost = await do(rig, 5.0)
        assert ticket.reason == Reason.VERIFIED, ticket.diagnosis
        assert cost == pytest.approx(billed(rig)) == pytest.approx(0.55)
        summary = json.loads(next(tmp_path.glob("Operator Sessions/*/attempt-1/session_summary.json")).read_text())
        assert summary["total_cost_usd"] == pytest.approx(0.55)
        by_phase = {p["phase"]: p["cost_usd"] for p in summary["phases"]}
        assert by_phase == pytest.approx({"worker_1": 0.2, "verifier_1": 0.2, "summarizer": 0.05})


async def test_retries_and_one_line_summaries_are_charged(tmp_path: Path) -> None:
    def worker(turn: Turn) -> Reply | Failure:
        if turn.attempt < 2:
            return Failure(529, headers={"retry-after": "0"})
        return paid(turn, (run("printf 'echo hello\\n' > hello; seq 200"), done("Word for word. " * 20))[turn.step])

    roles = scripts(worker=worker)
    parser = roles["parser"]

    def small(turn: Turn) -> Reply:
        # The one-line summaries come without a system prompt.
        return paid(turn, Reply(text="one line"), 70) if not turn.system else roles["summarizer_"](turn)

    roles["summarizer_"] = roles["summarizer"]
    others = {**roles, "parser": parser, "summarizer": small}
    others.pop("summarizer_")
    async with rig_of(tmp_path, others, summaries="model") as rig:
        ticket, cost = await do(rig, 5.0)
        assert ticket.reason == Reason.VERIFIED, ticket.diagnosis
        entries = await rig.journal(ticket.id or 0)
        assert sum(e.entry_type == EntryKind.RETRY for e in entries) == 4
        assert any(e.entry_type == EntryKind.USAGE and e.phase == "worker_1" for e in entries)
        assert cost == pytest.approx(billed(rig))
        assert cost > 0.55


@pytest.mark.parametrize(
    ("budget", "calls", "status", "reason"),
    [
        # There is not even enough to read the request: the request itself is taken.
        (0.25, ["worker", "worker"], TicketStatus.ESCALATED, Reason.INCONCLUSIVE),
        (0.45, ["parser", "worker", "worker", "verifier"], TicketStatus.ESCALATED, Reason.INCONCLUSIVE),
        # The work is proved; the words about it are the platform's own.
        (0.55, ["parser", "worker", "worker", "verifier", "verifier"], TicketStatus.RESOLVED, Reason.VERIFIED),
    ],
    ids=["parse", "verifier", "summarizer"],
)
async def test_the_budget_ends_in(
    tmp_path: Path, budget: float, calls: list[str], status: TicketStatus, reason: Reason
) -> None:
    async with rig_of(tmp_path, scripts()) as rig:
        ticket, cost = await do(rig, budget)
        assert asked(rig) == calls
        assert (ticket.status, ticket.reason) == (status, reason), ticket.diagnosis
        assert cost == pytest.approx(billed(rig))
        assert cost <= budget
        if status is TicketStatus.ESCALATED:
            assert "budget of" in (ticket.diagnosis or "")
        folder = next(tmp_path.glob("Operator Sessions/*/attempt-1"))
        assert (folder / "SUMMARY.md").read_text().startswith("# Task Summary: hello")


@pytest.mark.parametrize("budget", [0.5, 0.6, 1.05])
async def test_the_budget_ends_in_the_worker(tmp_path: Path, budget: float) -> None:
    roles = scripts(worker=lambda turn: paid(turn, run("true")))
    async with rig_of(tmp_path, roles) as rig:
        ticket, cost = await do(rig, budget)
        assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, Reason.BUDGET)
        assert cost == pytest.approx(billed(rig))
        assert budget - 0.1 < cost <= budget
        assert asked(rig) == ["parser", *["worker"] * round((cost - 0.1) / 0.1)]


@pytest.mark.parametrize("role", ["parser", "worker", "verifier", "summarizer"])
async def test_an_answer_that_costs_more_than_it_may_is_the_last(tmp_path: Path, role: str) -> None:
    """The estimate of one call was wrong: by that much, and by no other call, the budget is exceeded."""
    huge = 20_000 if role in ("parser", "summarizer") else 2_000
    script = SCRIPTS[role]
    roles = scripts(**{role: lambda turn: paid(turn, script[min(turn.step, len(script) - 1)], huge)})
    async with rig_of(tmp_path, roles) as rig:
        ticket, cost = await do(rig, 0.7)
        assert cost == pytest.approx(billed(rig))
        before = {"parser": 0.0, "worker": 0.1, "verifier": 0.3, "summarizer": 0.5}[role]
        assert cost == pytest.approx(before + 2.0)
        assert asked(rig)[-1] == role
        assert asked(rig).count(role) == 1
        assert ticket.status is (TicketStatus.RESOLVED if role == "summarizer" else TicketStatus.ESCALATED)


async def test_ten_rejections_share_one_budget(tmp_path: Path) -> None:
    reject = (run("sh ./hello"), verdict(False, "Not like this."))
    roles = scripts(verifier=lambda turn: paid(turn, reject[min(turn.step, 1)]))
    async with rig_of(tmp_path, roles) as rig:
        ticket, cost = await do(rig, 1.0)
        assert ticket.status is TicketStatus.ESCALATED
        assert 0.85 < cost <= 1.0
        assert cost == pytest.approx(billed(rig))


async def test_a_canceled_phase_has_paid_for_its_summaries(tmp_path: Path) -> None:
    """What was spent before the cancellation is in the journal, the background's calls too."""
    rig: Rig

    async def worker(turn: Turn) -> Reply:
        if turn.step == 0:
            return paid(turn, run("seq 200"))
        return paid(turn, run("sleep 0.5; seq 300", "sleep 30"))

    async def small(turn: Turn) -> Reply:
        if "300" in str(turn.messages):
            await rig.tickets.cancel_ticket(1, now=True)
        return paid(turn, Reply(text="one line"), 70)

    roles = scripts(worker=worker, summarizer=small)
    async with rig_of(tmp_path, roles, summaries="model") as rig:
        ticket, cost = await do(rig, 5.0)
        assert ticket.status is TicketStatus.CANCELED
        entries = await rig.journal()
        assert any(e.entry_type == EntryKind.USAGE for e in entries)
        assert cost == pytest.approx(billed(rig), abs=0.0071), "at most the call that was cut off is missing"


# ---- the arithmetic

MODEL = ModelSettings.model_validate(
    {"engine": "anthropic", "max_tokens": 100, "prices": {"m": {"input": 3.0, "output": 15.0}}, "model": "m"}
)


class Bill(SimpleNamespace):
    """Usage as the API gives it."""


CALLS = st.lists(
    st.tuples(
        st.integers(0, 3_000_000),  # characters
        st.integers(0, 1_500_000),  # tokens in
        st.integers(0, 200_000),  # tokens out
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(calls=CALLS, limit=st.floats(0.01, 30.0), crash_every=st.integers(1, 7))
def test_never_more_than_one_call_too_much(calls: list[tuple[int, int, int]], limit: float, crash_every: int) -> None:
    """However calls, estimates and crashes fall: a call that was begun is the most by which it is exceeded."""
    limits = LimitSettings(cost_usd=limit, turns=0, wall_clock_s=0)
    journal: list[Usage] = []
    budget = Budget(limits, MODEL, Usage(), 0)
    for n, (characters, given_in, given_out) in enumerate(calls):
        if n % crash_every == 0:  # another worker goes on, with what the journal says
            used = Usage()
            for one in journal:
                used = used.plus(one)
            budget = Budget(limits, MODEL, used, 0)
        before = sum(u.cost_usd or 0.0 for u in journal)
        try:
            budget.reserve(characters)
        except LimitReached:
            estimate = price(MODEL, "m", Usage(characters // 3, 100)) or 0.0
            assert before + estimate > limit * (1 - 1e-9)
            continue
        assert before <= limit * (1 + 1e-9), "a call was begun although the budget was spent"
        bill = Bill(
            input_tokens=given_in, output_tokens=given_out, cache_read_input_tokens=None, cache_creation_input_tokens=0
        )
        journal.append(budget.charge("m", bill))  # type: ignore[arg-type]
    costs = [u.cost_usd or 0.0 for u in journal]
    assert sum(costs[:-1]) <= limit * (1 + 1e-9)
    fits = all(i <= c // 3 and o <= 100 for c, i, o in calls)
    assert sum(costs) <= limit * (1 + 1e-9) or not fits


def test_without_a_price_there_is_no_budget() -> None:
    unknown = MODEL.model_copy(update={"model": "nobody-knows-this-model"})
    budget = Budget(LimitSettings(cost_usd=1.0), unknown, Usage(), 0)
    with pytest.raises(UnknownPrice):
        budget.reserve(100)

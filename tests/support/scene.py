"""A store in which something of everything is going on, for tests of what people see."""

from __future__ import annotations

from typing import Any, NamedTuple

from operator_core import clock
from operator_core.db.approvals import Approvals, Question
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.claims import Claim
from operator_core.db.engine import Database
from operator_core.db.journal import Journal
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, VerdictKind

__all__ = ["HOSTILE", "Scene", "attempt", "furnish", "judged"]

HOSTILE = (
    "<script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">"
    "{{ 7*7 }} {% raw %} \x1b[31mred\x1b[0m \u202egnp.exe\u202c a\u200bb javascript:alert(1) "
    "[click](javascript:alert(1))"
)
"""Markup, template, terminal, direction and invisible characters, as an agent or an alert may write them."""


class Scene(NamedTuple):
    """Numbers of the tickets by what they are."""

    waiting: int
    asking: int
    approval: str
    escalated: int
    running: int
    verified: int
    by_hand: int
    canceled: int
    held: int
    hostile: int


class Attempt(NamedTuple):
    """A session that somebody works in."""

    queue: WorkQueue
    claim: Claim
    session_id: str
    journal: Journal

    async def run(self, command: str, output: str = "", code: int = 0, *, done: bool = True) -> None:
        """A command, and its result if it has ended."""
        call = clock.new_id()[:12]
        params = {"command": command}
        await self.journal.append(
            Draft(EntryKind.TOOL_CALL, command, command, "shell", params, tool_use_id=call, phase="worker_1")
        )
        if done:
            await self.journal.append(
                Draft(EntryKind.TOOL_RESULT, f"exit {code}", output, "shell", exit_code=code, tool_use_id=call)
            )

    async def ask(self, question: str) -> None:
        """Let it wait for an answer."""
        await self.journal.append(Draft(EntryKind.OUTCOME, "asks", question, meta={"outcome": "blocked"}))
        _, seen = await self.journal.drain()
        assert await self.queue.park(self.claim, seen)

    async def judge(self, verdict: Verdict, **report: Any) -> None:
        """A verdict of the platform, and the report about it."""
        await self.journal.append(Draft(EntryKind.VERDICT, verdict.why, verdict.why, body=verdict.to_dict()))
        headline = f"{verdict.kind.value}: {verdict.why}"
        page = f"# Closure report\n\n**{headline}**\n\n## What was claimed\n\n    done <b>now</b>\n"
        body = {"headline": headline, "claimed": {"kind": "claimed", "summary": "done <b>now</b>"}, **report}
        await self.journal.append(Draft(EntryKind.REPORT, headline, page, body=body))

    async def end(self, status: TicketStatus, reason: Reason, diagnosis: str = "") -> None:
        """End it."""
        ended = {TicketStatus.RESOLVED: "completed", TicketStatus.CANCELED: "canceled"}.get(status, "escalated")
        await self.queue.finish(
            self.claim, status, reason, diagnosis=diagnosis, session_id=self.session_id, session_status=ended
        )


async def attempt(database: Database, ticket_id: int, worker: str = "box-1") -> Attempt:
    """A worker takes that ticket, which must be the next one, and begins a session."""
    queue, audit = WorkQueue(database), AuditLogDB(database)
    incarnation = clock.new_id()
    await queue.register(incarnation, 3600.0, worker)
    (claim,) = await queue.claim(incarnation, name=worker)
    assert claim.ticket_id == ticket_id, f"#{claim.ticket_id} came before #{ticket_id}"
    session_id = await audit.create_session(ticket_id, claim=claim)
    return Attempt(queue, claim, session_id, await audit.journal(session_id, claim))


def judged(kind: VerdictKind = VerdictKind.VERIFIED, *, check_hash: str | None = None, text: str = "") -> Verdict:
    """A verdict with two clauses, one of which has failed unless it is ``verified``."""
    good = kind is VerdictKind.VERIFIED
    at = clock.iso()
    looked = Evidence("GET /healthz", "200", f"200 {text}".strip(), True, at, "curl -fsS http://127.0.0.1:8080/healthz")
    failed = Evidence(
        "the limiter's database",
        "unchanged",
        f"4 rows fewer than before\n{text}",
        False,
        at,
        "sqlite3 limiter.db .dump",
    )
    clauses = (
        ClauseResult(Clause.RESTORED, ClauseState.PROVED, True, "3 observations were green", (looked, looked, looked)),
        ClauseResult(
            Clause.NO_COLLATERAL,
            ClauseState.PROVED if good else ClauseState.FAILED,
            True,
            "nothing else changed" if good else f"protected data changed {text}".strip(),
            () if good else (failed,),
        ),
        ClauseResult(Clause.DURABLE, ClauseState.NOT_PROVED, False, "it is not configured"),
    )
    why = "every required clause was observed by the platform" if good else f"protected data changed {text}".strip()
    return Verdict(kind, why, clauses, check_hash, () if good else ("no_collateral",))


async def furnish(database: Database) -> Scene:
    """One ticket of each kind of situation."""
    tickets = TicketDB(database)

    async def incident(name: str, message: str, **more: Any) -> int:
        return (await tickets.open_ticket(name, message, **more)).id or 0

    verified = await incident("checkout-latency", "p99 is 4.2 s, and should be below 0.8 s", severity="critical")
    work = await attempt(database, verified)
    await work.run("kubectl rollout undo deploy/checkout", "deployment.apps/checkout rolled back\n")
    await work.judge(judged())
    await work.end(TicketStatus.RESOLVED, Reason.VERIFIED, "a bad build; rolled back")

    escalated = await incident("queue-depth", "12,400 messages wait, and should be below 500", severity="critical")
    work = await attempt(database, escalated)
    await work.run("redis-cli flushall", "OK\n")
    await work.judge(judged(VerdictKind.REFUTED))
    await work.end(TicketStatus.ESCALATED, Reason.REFUTED, "the queue is empty, and so are the orders of today")

    waiting = await incident("disk", "/var is 97 % full", labels={"team": "storage", "region": "eu-1"})
    work = await attempt(database, waiting)
    await work.run("du -xsh /var/* | sort -h | tail -3", "1.2G /var/lib\n31G /var/log\n")
    await work.ask("May I delete the logs of before October?\nThey are 29 GB, and nobody has read them since.")

    asking = await incident("certificate", "expires in 6 hours", severity="critical")
    work = await attempt(database, asking)
    question = Question("call-1", "shell", {"command": "certbot renew --force-renewal"}, "certificates are shared")
    await Approvals(database).ask(work.journal, [question], ["call-1"], 86_400.0)
    ((approval,)) = [a for a in await Approvals(database).listed() if a.ticket_id == asking]
    assert await Approvals(database).park(work.claim, approval.id)

    hostile = await incident(HOSTILE, HOSTILE * 3, labels={"note": HOSTILE[:60]})
    work = await attempt(database, hostile, "box-2")
    await work.run(HOSTILE)
    await work.judge(judged(VerdictKind.REFUTED, text=HOSTILE))
    await work.end(TicketStatus.ESCALATED, Reason.GAVE_UP, HOSTILE)

    spec = TaskSpec(
        name="Make the tests pass",
        prompt="Make the tests pass.\n\nThe one in tests/test_split.py fails since last week; do not change it.",
        checks=(TaskCheck(command="pytest -q"), TaskCheck(command="ruff check .")),
    )
    running = (await tickets.submit_task(spec)).id or 0
    work = await attempt(database, running, "box-2")
    await work.run("pytest -q", "1 failed, 41 passed in 2.11s\n", 1)
    await work.run("python -m pytest -q tests/test_split.py -x --tb=short", done=False)

    by_hand = await incident("backup", "the last one is 40 h old", severity="info")
    await tickets.resolve_ticket(by_hand, note="the job was paused on purpose")
    canceled = await incident("load", "load is 41")
    await tickets.cancel_ticket(canceled)
    held = await incident("ntp", "the clock is 3 s ahead")
    await tickets.hold_ticket(held)
    await incident("replication", "the replica is 12 min behind")
    return Scene(
        waiting, asking, approval.id, escalated, running, verified, by_hand, canceled, held, hostile
    )  # fmt: skip

"""One session on an incident: prepare, let the agent work, verify, conclude."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from operator_core.agent_lab.agent_run import ticket_text
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.agent_lab.history import fold
from operator_core.agent_lab.profiles import OPERATOR
from operator_core.agent_lab.prompts import system_prompt
from operator_core.agent_lab.task_prompts import review_opening, review_system
from operator_core.db.claims import Claim
from operator_core.db.journal import Journal
from operator_core.errors import VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.invariant import CheckSpec
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.model.verdict import ClauseState, Verdict, VerdictKind
from operator_core.probes import Observation, look_at
from operator_core.sandbox import Policy
from operator_core.sandbox.removal import remove_tree
from operator_core.text import clip
from operator_core.verify.copies import copy_tree
from operator_core.verify.incident import IncidentCheck, verify_incident
from operator_core.verify.protect import Fingerprint, Snapshot
from operator_core.verify.report import ClosureReport
from operator_core.verify.review import Executed, judge_review
from operator_core.verify.verifier import executed_commands, make_verifier, review_of
from operator_core.work.boxes import session_policy
from operator_core.work.conversation import AgentPhase, Beginning, hold_conversation
from operator_core.work.entries import newest, outcome_of, report_draft, spent, verdict_of
from operator_core.work.session import (
    PREPARE,
    REASON_OF_OUTCOME,
    REASON_OF_VERDICT,
    Conclusion,
    Session,
    SessionTools,
    frozen_in,
)

__all__ = ["IncidentSession"]

WORKER, VERIFIER, VERIFY = "worker_1", "verifier_1", "verify"


class IncidentSession(Session):
    """See the module."""

    def __init__(self, tools: SessionTools, claim: Claim) -> None:
        super().__init__(tools, claim)
        self.spec: CheckSpec | None = None

    async def run(self) -> Conclusion:
        self.spec = frozen_in(self.ticket, CheckSpec) if self.ticket.check_spec else None
        journal = await self.open_journal()
        reach("session.opened")
        snapshot, seen_red = await self._prepare(journal)
        outcome = self.find(EntryKind.OUTCOME, WORKER)
        ended = outcome_of(outcome) if outcome else await self._work()
        reach("session.worked")
        verdict = await self._verify(journal, ended, snapshot, seen_red)
        return await self._conclude(journal, ended, verdict)

    @property
    def ends_in(self) -> str:
        if self.find(EntryKind.PHASE_START, VERIFY):
            return VERIFY
        return WORKER if self.find(EntryKind.SESSION_START) else PREPARE

    async def canceled_report(self) -> ClosureReport | None:
        return await self._report(Outcome(OutcomeKind.CANCELED, ""), None)

    # ---- phases

    async def _prepare(self, journal: Journal) -> tuple[Snapshot, bool]:
        found = self.find(EntryKind.BASELINE)
        if found is not None:
            return _snapshot_of(found), bool(found.body["seen_red"])
        snapshot: Snapshot = {}
        first: Observation | None = None
        if self.spec is not None:
            async with self.platform_box() as run:
                check = self._check(self.spec, run)
                first = await check.look()
                snapshot = await self._standing_baseline() or await check.snapshot()
        # A plug-in's checker is one of our own here. Its own grace may hide what the monitor's has seen, and would hide
        # it from the verification too: so it must have seen red itself.
        has_probe = self.spec is not None and self.spec.invariant.probe is not None
        by_monitor = self.ticket.metric_snapshot is not None and has_probe
        seen_red = by_monitor or (first is not None and first.light == "red")
        detail = first.detail if first else "the ticket has no check: nothing can be proved"
        body = {
            "snapshot": {k: list(v) for k, v in snapshot.items()},
            "seen_red": seen_red,
            "observation": first.to_dict() if first else None,
            "check_hash": self.ticket.check_hash,
        }
        await journal.append(
            Draft(EntryKind.BASELINE, clip(f"before the work: {detail}"), detail, body=body, phase=PREPARE)
        )
        reach("session.prepared")
        return snapshot, seen_red

    async def _standing_baseline(self) -> Snapshot | None:
        """That of an earlier attempt that was not verified: the damage it may have done must not become normal."""
        for session in await self.tools.audit.sessions(ticket_id=self.ticket.id, limit=1000):
            if session.status == "completed":
                break
            if session.session_id != self.session_id:
                found = newest(await self.tools.audit.entries(session.session_id), EntryKind.BASELINE)
                if found is not None:
                    return _snapshot_of(found)
        return None

    async def _work(self) -> Outcome:
        def system(sandbox: str, fence: Fence) -> str:
            return system_prompt(self.ticket.variant_system_prompt, self.ticket.subject_context, sandbox, fence)

        return await hold_conversation(
            self,
            AgentPhase(
                WORKER,
                OPERATOR,
                lambda fence: fence.wrap(Origin.TICKET, ticket_text(self.ticket)),
                system,
                self.policy(self.calls),  # readable, because the markers in long output point there
                self.ticket.variant_model,
                self.tools.settings.limits,
                Beginning(EntryKind.SESSION_START, PREPARE, {"check_hash": self.ticket.check_hash}),
                hears=True,
            ),
        )

    async def _verify(self, journal: Journal, outcome: Outcome, snapshot: Snapshot, seen_red: bool) -> Verdict | None:
        if outcome.kind is not OutcomeKind.PROPOSED:
            return None
        found = self.find(EntryKind.VERDICT)
        if found is not None:
            return verdict_of(found)
        journal.phase = VERIFY
        if self.find(EntryKind.PHASE_START, VERIFY) is None:
            # Before the looks, which take most of the time: else it would be the worker's.
            await journal.append(Draft(EntryKind.PHASE_START, "the platform looks for itself", body={}))
            await self.refresh()
        self.tools.say("[Verify] The agent claims a repair; the platform looks for itself.")
        verdict = await self._look(snapshot, seen_red=seen_red)
        if verdict.kind is VerdictKind.VERIFIED and self.tools.settings.incidents.verifier:
            verdict = await self._review(verdict, outcome)
            journal.phase = VERIFY
        drafts = [
            Draft(
                EntryKind.EVIDENCE,
                clip(f"{c.clause.value}: {c.state.value}: {c.why}"),
                c.why,
                body={"clause": c.clause.value, "state": c.state.value, "evidence": [vars(e) for e in c.evidence]},
            )
            for c in verdict.clauses
        ]
        drafts.append(Draft(EntryKind.VERDICT, clip(f"{verdict.kind.value}: {verdict.why}"), body=verdict.to_dict()))
        await journal.append(*drafts)
        reach("session.judged")
        return verdict

    async def _look(self, snapshot: Snapshot, *, seen_red: bool) -> Verdict:
        if self.spec is None:
            return Verdict(VerdictKind.UNPROVEN, "the ticket has no check, so nothing can prove a repair")
        try:
            async with self.platform_box() as run:
                return await verify_incident(self._check(self.spec, run), snapshot, seen_red=seen_red)
        except VerificationError as error:
            return Verdict(VerdictKind.INCONCLUSIVE, str(error), check_hash=self.spec.digest)

    async def look_again(self, entries: list[Entry]) -> Verdict:
        """Verify the repair of an earlier session, whose journal this is, once more."""
        self.spec = frozen_in(self.ticket, CheckSpec) if self.ticket.check_spec else None
        baseline = newest(entries, EntryKind.BASELINE)
        assert baseline is not None
        await self.open_journal()
        return await self._look(_snapshot_of(baseline), seen_red=bool(baseline.body["seen_red"]))

    async def _review(self, verdict: Verdict, outcome: Outcome) -> Verdict:
        """Let a verifier agent read what was changed, and try to refute the repair."""
        assert self.spec is not None
        tasks = self.tools.settings.tasks
        policy = self.policy(self.calls)
        room = self.tools.state.session(self.session_id) / "copies" / "agent"
        try:
            if not room.is_dir():
                draft = room.with_suffix(".partial")
                await asyncio.to_thread(remove_tree, draft)
                draft.parent.mkdir(exist_ok=True)
                limits = {"max_bytes": tasks.max_workspace_bytes, "max_files": tasks.max_workspace_files}
                await copy_tree(policy.workspace, draft, **limits)
                draft.rename(room)
            ticket, changes = ticket_text(self.ticket), self._changes()
            profile = make_verifier(self._executed)
            said = await hold_conversation(
                self,
                AgentPhase(
                    VERIFIER,
                    profile,
                    lambda fence: review_opening(fence, ticket, outcome.summary, changes),
                    lambda sandbox, fence: review_system(sandbox),
                    replace(policy, workspace=room, shown_at=policy.workspace),
                    tasks.verifier_model or self.ticket.variant_model,
                    self.tools.settings.limits,
                    Beginning(EntryKind.PHASE_START, VERIFIER, {}),
                ),
            )
        except VerificationError as error:
            return replace(verdict, kind=VerdictKind.INCONCLUSIVE, why=str(error))
        clause = judge_review(review_of(said), await self._executed())
        verdict = replace(verdict, clauses=(*verdict.clauses, clause))
        if clause.state is ClauseState.PROVED:
            return verdict
        kind = VerdictKind.REFUTED if clause.state is ClauseState.FAILED else VerdictKind.INCONCLUSIVE
        return replace(verdict, kind=kind, why=clause.why, failed=(clause.clause.value,))

    def _changes(self) -> list[str]:
        """What the agent ran, with its exit codes."""
        ran = executed_commands(e for e in self.entries if e.phase == WORKER)
        return [f"(exit {command.exit_code}) {command.command}" for command in ran]

    async def _executed(self) -> list[Executed]:
        return executed_commands(e for e in await self.refresh() if e.phase == VERIFIER)

    async def _conclude(self, journal: Journal, outcome: Outcome, verdict: Verdict | None) -> Conclusion:
        report = await self._report(outcome, verdict)
        reason = REASON_OF_VERDICT[verdict.kind] if verdict else REASON_OF_OUTCOME[outcome.kind]
        verified = reason is Reason.VERIFIED
        status = TicketStatus.RESOLVED if verified else TicketStatus.ESCALATED
        session_status = "completed" if verified else "escalated"
        why = verdict.why if verdict else outcome.summary
        diagnosis = outcome.summary if verified else f"ESCALATED: {reason.value}: {why}"
        if not self.find(EntryKind.SESSION_END):
            journal.phase = self.ends_in
            await journal.append(
                report_draft(report),
                Draft(EntryKind.SESSION_END, f"{session_status}: {reason.value}", meta={"status": session_status}),
            )
        reach("session.reported")
        status_now = await self.finish(status, reason, diagnosis, session_status)
        return Conclusion(status_now, reason if status_now is status else Reason.BY_HAND, report)

    # ---- what the phases need

    def policy(self, *readable: Path) -> Policy:
        subject = self.spec.subject if self.spec else None
        workspace = subject.workspace if subject and subject.workspace else None
        if workspace is None:
            workspace = self.tools.state.session(self.session_id) / "workspace"
            workspace.mkdir(exist_ok=True)
        shown = (*(subject.readable if subject else ()), *readable)
        self.keep_apart((workspace, *self.tools.settings.sandbox.readable, *shown))
        policy = session_policy(
            self.tools.settings,
            workspace,
            readable=shown,
            network=subject.network if subject else "none",
            allow_hosts=subject.allow_hosts if subject else (),
        )
        return replace(policy, env=subject.env) if subject else policy

    @property
    def watch_s(self) -> float:
        return self.spec.invariant.watch_s if self.spec else 0.0

    def _check(self, spec: CheckSpec, run: Callable[[str, float], Any]) -> IncidentCheck:
        workspace = spec.subject.workspace or self.tools.state.session(self.session_id) / "workspace"

        async def look() -> Observation:
            if spec.invariant.probe is not None:
                return await look_at(spec.subject, spec.invariant)
            if self.tools.look_with_checker is None:
                raise VerificationError("The check belongs to a plug-in that this worker does not have; install it.")
            return await self.tools.look_with_checker(
                spec.subject, self.ticket.violation_key, self.ticket.first_seen_at
            )

        return IncidentCheck(spec, workspace, look, run, self.tools.clock)

    async def _report(self, outcome: Outcome, verdict: Verdict | None) -> ClosureReport:
        entries = await self.refresh()
        conversation = fold(entries, WORKER)
        start = next((e for e in entries if e.entry_type == EntryKind.SESSION_START), None)
        sandbox = next((e for e in reversed(entries) if e.entry_type == EntryKind.SANDBOX_REPORT), None)
        clean = self.tools.audit.database.redactor
        return ClosureReport(
            ticket=self.ticket,
            session_id=self.session_id,
            outcome=outcome._replace(summary=clean.text(outcome.summary)),
            verdict=Verdict.from_dict(clean.tree(verdict.to_dict())) if verdict else None,
            engine=self.tools.engine.name,
            model=str(start.body["model"]) if start else self.tools.settings.model.model,
            usage=spent(entries),
            turns=conversation.turns,
            commands=sum(e.entry_type == EntryKind.TOOL_RESULT and e.tool_name == "shell" for e in entries),
            sandbox=sandbox.content if sandbox else "not started",
        )


def _snapshot_of(baseline: Entry) -> Snapshot:
    return {name: Fingerprint(*value) for name, value in baseline.body["snapshot"].items()}

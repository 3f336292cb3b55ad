"""One session on a task: prepare, then worker and verifier in turn, then the summary and the delivery.

    prepare → worker_1 → verifier_1 → worker_2 → … → summarizer → deliver

A person may be asked in between: the session then rests in the journal, and goes on in the same conversation.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from operator_core.agent_lab.profiles import WORKER, Profile
from operator_core.agent_lab.resting import AwaitingApproval, Stopping
from operator_core.agent_lab.task_prompts import verifier_opening, verifier_system, worker_opening, worker_system
from operator_core.config import LimitSettings
from operator_core.db.claims import Claim
from operator_core.errors import OperatorError, VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.model.verdict import VerdictKind
from operator_core.sandbox import Policy
from operator_core.text import clip, printable
from operator_core.verify.checks import CheckSeen
from operator_core.verify.copies import tree_digest
from operator_core.verify.markup import inline
from operator_core.verify.report import ClosureReport
from operator_core.work import asides
from operator_core.work.boxes import session_policy
from operator_core.work.cli_agent import run_cli_agent
from operator_core.work.closing import CANCELED, locate, task_report, task_result, write_files
from operator_core.work.conversation import AgentPhase, Beginning, hold_conversation
from operator_core.work.entries import report_draft
from operator_core.work.folder import SessionFolder, brief_files
from operator_core.work.folder.material import deliverables
from operator_core.work.judging import Judged, Judging
from operator_core.work.repository import source
from operator_core.work.repository.delivery import commit_result
from operator_core.work.session import (
    PREPARE,
    REASON_OF_OUTCOME,
    REASON_OF_VERDICT,
    Conclusion,
    Session,
    SessionTools,
    frozen_in,
)

__all__ = ["TaskSession"]

SUMMARIZER, DELIVER = "summarizer", "deliver"
_TERMINAL = {
    TicketStatus.RESOLVED: "completed",
    TicketStatus.CANCELED: "canceled",
    TicketStatus.WAITING_FOR_INPUT: "waiting",
}


class _Canceled(Exception):
    """A person canceled, and this is a good moment to stop."""


class _Parked(Exception):
    """A person is asked; nothing of the session runs any more."""

    def __init__(self, conclusion: Conclusion) -> None:
        super().__init__(conclusion.report.headline)
        self.conclusion = conclusion


class TaskSession(Session):
    """See the module."""

    cancels_at_once = False

    def __init__(self, tools: SessionTools, claim: Claim) -> None:
        super().__init__(tools, claim)
        self.spec: TaskSpec | None = None
        self.folder: SessionFolder | None = None
        self._brief = asides.Brief(task_description="?", success_criteria="?")
        self._digests: dict[str, str] = {}
        self._seen: tuple[CheckSeen, ...] = ()

    async def run(self) -> Conclusion:
        self.spec = spec = frozen_in(self.ticket, TaskSpec)
        await self.open_journal()
        self.folder = await locate(self.tools, self.ticket, spec, self.session_id)
        reach("session.opened")
        claimed = Outcome(OutcomeKind.NO_OUTCOME, "")
        try:
            await self._prepare()
            judged: Judged | None = None
            for number in range(1, spec.max_iterations + 1):
                await self._checkpoint()
                claimed = await self._work(number, judged.feedback if judged else None)
                if claimed.kind is not OutcomeKind.PROPOSED:
                    return await self._conclude(claimed, None, REASON_OF_OUTCOME[claimed.kind])
                await self._checkpoint()
                judged = await self._judge(number, claimed)
                said = number < spec.max_iterations and await self._said_since(number)
                if judged.verdict.kind is not VerdictKind.REFUTED and not said:
                    break
            assert judged is not None
            if judged.verdict.kind is not VerdictKind.VERIFIED:
                reason = REASON_OF_VERDICT[judged.verdict.kind]
                if judged.verdict.kind is VerdictKind.REFUTED:
                    reason = Reason.ITERATIONS
                return await self._conclude(claimed, judged, reason)
            await self._checkpoint()
            await self._summarize(judged)
            await self._checkpoint()
            await self._deliver(judged)
            return await self._conclude(claimed, judged, Reason.VERIFIED)
        except _Parked as parked:
            return parked.conclusion
        except AwaitingApproval as asked:
            await self._export("waiting", str(asked), None)
            raise
        except _Canceled:
            status = await self.abandon(CANCELED)
            report = self._report(Outcome(OutcomeKind.CANCELED, ""), None)
            return await self._conclusion(status, Reason.BY_HAND, report, CANCELED)

    @property
    def ends_in(self) -> str:
        return DELIVER

    async def abandon(self, why: str) -> TicketStatus:
        await self._export("canceled", CANCELED, await self.canceled_report())
        return await super().abandon(why)

    async def canceled_report(self) -> ClosureReport | None:
        await self._locate()
        if self.folder is None or self.spec is None:
            return None
        await self.refresh()
        return self._report(Outcome(OutcomeKind.CANCELED, ""), None)

    async def fail(self, reason: Reason, why: str) -> TicketStatus:
        await self._export("failed", f"Error: {why}", None)
        return await super().fail(reason, why)

    async def overruled(self) -> None:
        await self._export("canceled", CANCELED, None)

    # ---- phases

    async def _prepare(self) -> None:
        """Read the request, lay out the folder, and see how the checks are before the work."""
        spec, folder = self._known()
        self._enter(PREPARE)
        journal = await self.open_journal()
        task = self.find(EntryKind.TASK)
        if task is None:
            answer = await asides.parse_request(self, self._limits(), spec.prompt)
            brief, why = asides.read_request(answer, spec.prompt)
            meta: dict[str, Any] = {"by": "the raw request" if why else answer.model, "why": why}
            if answer.usage.tokens:
                meta |= {"usage": answer.usage._asdict(), "model": answer.model}
            note = f"the request as it is ({why})" if why else f"the request, read by {answer.model}"
            await journal.append(Draft(EntryKind.TASK, clip(note), body=brief.model_dump(), meta=meta))
            await self.refresh()
            reach("task.parsed")
            self._brief = brief
        else:
            self._brief = asides.Brief.model_validate(task.body)
        found = self.find(EntryKind.BASELINE)
        if found is not None and not folder.workspace.is_dir():
            raise OperatorError(
                f"The workspace {folder.workspace} of this session is not on this machine; give all workers the same "
                "[tasks] root, or reopen the ticket for a new attempt."
            )
        audit = self.tools.audit
        if found is None:
            self.tools.say(f"[Task] {folder.path}")
            folder.create()
            self._digests = self._write_brief()
            base = self._origin / "base"
            self._origin.mkdir(parents=True, exist_ok=True)
            prepared = await source.prepare_workspace(
                spec, folder.workspace, branch=folder.branch, audit=audit, base=base
            )
            reach("task.workspace")
            await self._export_origin()
            self._seen = await self._judging().runner().before() if spec.checks else ()
            body = {
                "seen": [seen.to_dict() for seen in self._seen],
                "commit": prepared.commit,
                "folder": str(folder.path),
                "brief": self._digests,
                "check_hash": spec.digest,
            }
            states = ", ".join(f"`{seen.command}` {seen.state}" for seen in self._seen) or "there is no check"
            text = clip(printable(f"before the work: {states}; {prepared.note}"), 400)
            await journal.append(Draft(EntryKind.BASELINE, text, body=body))
            await self.refresh()
            reach("session.prepared")
        else:
            self._seen = tuple(CheckSeen.from_dict(seen) for seen in found.body["seen"])
            self._digests = found.body["brief"]
            await self._export_origin()

    async def _work(self, number: int, feedback: str | None) -> Outcome:
        """One worker phase, until it says how the task stands; while it is blocked the session rests."""
        spec, folder = self._known()
        name = f"worker_{number}"
        journal = await self.open_journal()
        paths = {
            "task": str(folder.path / "TASK.md"),
            "criteria": str(folder.path / "VERIFICATION.md"),
            "workspace": str(folder.workspace),
        }
        task, criteria = self._read("TASK.md"), self._read("VERIFICATION.md")
        journal.phase = name
        if self.find(EntryKind.PHASE_START, name) is None:
            await journal.drain()  # what was said meanwhile comes before the task, or behind it
        while True:
            outcome = await self._agent(
                AgentPhase(
                    name,
                    WORKER,
                    lambda fence: worker_opening(fence, task, criteria, feedback),
                    lambda sandbox, fence: worker_system(**paths, sandbox=sandbox),
                    self.policy(*self._shown()),
                    spec.model,
                    self._limits(),
                    Beginning(EntryKind.PHASE_START, name, {}),
                    hears=True,
                )
            )
            reach("task.worked")
            if outcome.kind is not OutcomeKind.BLOCKED:
                return outcome
            journal.phase = name
            messages, wake = await journal.drain()
            if messages:
                continue
            conclusion = await self._resting(outcome)
            if await self.tools.queue.park(self.claim, wake):
                raise _Parked(conclusion)
            await self._checkpoint()

    async def _judge(self, number: int, claimed: Outcome) -> Judged:
        _, folder = self._known()
        objection = ""
        if changed := folder.changed(self._digests):
            objection = f"{', '.join(changed)} is read-only and was changed; it has been restored."
        judged = await self._judging().judge(number, claimed.summary, objection=objection)
        # Not before it is in the journal: whoever resumes has to see it too. What a verifier changed, where nothing
        # keeps it from that, the worker is not to blame for.
        self._write_brief()
        return judged

    async def _verifier(
        self, phase: str, profile: Profile, policy: Policy, claim: str, notes: Sequence[str]
    ) -> Outcome:
        await self._checkpoint()
        spec, folder = self._known()
        settings = self.tools.settings
        paths = {
            "task": str(folder.path / "TASK.md"),
            "criteria": str(folder.path / "VERIFICATION.md"),
            "workspace": str(folder.workspace if settings.sandbox.backend != "none" else policy.workspace),
        }
        checks = [check.command for check in spec.checks]
        task, criteria = self._read("TASK.md"), self._read("VERIFICATION.md")
        return await self._agent(
            AgentPhase(
                phase,
                profile,
                lambda fence: verifier_opening(fence, task, criteria, claim, checks, notes),
                lambda sandbox, fence: verifier_system(**paths, sandbox=sandbox),
                policy,
                settings.tasks.verifier_model or spec.model,
                self._limits(),
                Beginning(EntryKind.PHASE_START, phase, {}),
            )
        )

    async def _agent(self, phase: AgentPhase) -> Outcome:
        spec, _ = self._known()
        if spec.engine == "claude-code":
            return await run_cli_agent(self, phase, untrusted=phase.profile is not WORKER)
        return await hold_conversation(self, phase)

    async def _said_since(self, number: int) -> bool:
        """Whether people said something that the next worker is to hear, or has heard already."""
        following = f"worker_{number + 1}"
        return any(e.phase == following for e in self.entries) or await self.tools.queue.has_letters(self.claim)

    def _is_done(self, kind: EntryKind) -> bool:
        """Whether there is such an entry about the work that was judged last."""
        found, verdict = self.find(kind), self.find(EntryKind.VERDICT)
        return found is not None and (verdict is None or found.seq > verdict.seq)

    async def _summarize(self, judged: Judged) -> None:
        spec, folder = self._known()
        if self._is_done(EntryKind.SUMMARY):
            return
        self._enter(SUMMARIZER)
        journal = await self.open_journal()
        material = await asyncio.to_thread(deliverables, folder.workspace)
        answer = await asides.sum_up(
            self,
            self._limits(),
            f"Task: {spec.name}\n\n{self._brief.task_description}\n\nVerdict: {judged.verdict.why}\n\n{material}",
        )
        own = f"# Task Summary: {inline(spec.name)}\n\n- {inline(judged.verdict.why)}\n- Files: {folder.workspace}\n"
        text = answer.text or own
        meta: dict[str, Any] = {"why": answer.why} if answer.why else {}
        if answer.usage.tokens:
            meta |= {"usage": answer.usage._asdict(), "model": answer.model}
        await journal.append(Draft(EntryKind.SUMMARY, clip(printable(text)), clip(text, 4000), meta=meta))
        await self.refresh()
        reach("task.summarized")

    async def _deliver(self, judged: Judged) -> None:
        """Commit exactly what was verified, in the task's own repository."""
        spec, folder = self._known()
        if self._is_done(EntryKind.DELIVERED):
            return
        self._enter(DELIVER)
        journal = await self.open_journal()
        if await tree_digest(folder.workspace) != judged.digest:
            raise VerificationError(
                f"The workspace {folder.workspace} is not what was verified any more; reopen the ticket for a new "
                "attempt."
            )
        message = f"{clip(' '.join(spec.name.split()), 60)}\n\nTicket {self.ticket.id}, verified: {judged.digest}"
        async with self.platform_box() as run:
            committed = await commit_result(run, branch=folder.branch, message=message)
        reach("task.committed")
        text = f"commit {committed.commit} on {folder.branch}" if committed.commit else committed.note
        body = {**committed._asdict(), "branch": folder.branch, "digest": judged.digest}
        await journal.append(Draft(EntryKind.DELIVERED, text, body=body))
        await self.refresh()
        reach("task.delivered")

    async def _conclude(self, claimed: Outcome, judged: Judged | None, reason: Reason) -> Conclusion:
        verified = reason is Reason.VERIFIED
        report = self._report(claimed, judged)
        status = TicketStatus.RESOLVED if verified else TicketStatus.ESCALATED
        session_status = "completed" if verified else "escalated"
        why = judged.verdict.why if judged else claimed.summary
        text = claimed.summary if verified else f"ESCALATED: {reason.value}: {why}"
        if not self.find(EntryKind.SESSION_END):
            self._enter(DELIVER)
            journal = await self.open_journal()
            await journal.append(
                report_draft(report),
                Draft(EntryKind.SESSION_END, f"{session_status}: {reason.value}", meta={"status": session_status}),
            )
            await self.refresh()
        reach("session.reported")
        # Before the ticket is closed: whoever resumes after a crash in between writes them again.
        await self._export("completed" if verified else "failed", text, report)
        status_now = await self.finish(status, reason, text, session_status)
        if status_now is not status:
            reason = Reason.BY_HAND
            text = CANCELED
        return await self._conclusion(status_now, reason, report, text)

    async def _resting(self, blocked: Outcome) -> Conclusion:
        report = self._report(blocked, None)
        self.tools.say(f"[Waiting] a person is asked: {clip(printable(blocked.summary), 300)}")
        await self._export("waiting", f"Blocked: {blocked.summary}", report)
        why = f"Blocked: {blocked.summary}"
        return await self._conclusion(TicketStatus.WAITING_FOR_INPUT, Reason.ASKED_A_PERSON, report, why)

    # ---- what the phases need

    def policy(self, *readable: Path) -> Policy:
        spec, folder = self._known()
        settings = self.tools.settings
        self.keep_apart((folder.workspace, *settings.sandbox.readable))
        return session_policy(
            settings, folder.workspace, readable=readable, network=spec.network, allow_hosts=spec.allow_hosts
        )

    def _judging(self) -> Judging:
        spec, folder = self._known()
        return Judging(
            self,
            spec,
            folder.workspace,
            self.policy(*self._shown()),
            self._origin / "base",
            self._origin / "files",
            self._seen,
            self._verifier if spec.profile == "shraga" else None,
        )

    async def _export_origin(self) -> None:
        """The pristine tree and the check files, in a private place of this machine."""
        spec, _ = self._known()
        self._origin.mkdir(parents=True, exist_ok=True)
        await source.export_base(spec, self._origin / "base", audit=self.tools.audit)
        await source.export_check_files(spec, self._origin / "files", self.tools.audit)

    @property
    def _origin(self) -> Path:
        return self.tools.state.session(self.session_id) / "origin"

    def _shown(self) -> tuple[Path, ...]:
        """The read-only files of the agents: the brief, and what the markers in long output point to."""
        _, folder = self._known()
        return (folder.path / "TASK.md", folder.path / "VERIFICATION.md", self.calls)

    def _limits(self) -> LimitSettings:
        spec, _ = self._known()
        limits = self.tools.settings.limits
        return limits if spec.budget_usd is None else limits.model_copy(update={"cost_usd": spec.budget_usd})

    def _write_brief(self) -> dict[str, str]:
        spec, folder = self._known()
        return folder.write_brief(self._brief.task_description, self._brief.success_criteria, spec.prompt, spec.checks)

    def _read(self, name: str) -> str:
        """What a file of the brief says, whatever became of it."""
        brief = self._brief
        spec, _ = self._known()
        return brief_files(brief.task_description, brief.success_criteria, spec.prompt, spec.checks)[name]

    def _known(self) -> tuple[TaskSpec, SessionFolder]:
        assert self.spec is not None
        assert self.folder is not None
        return self.spec, self.folder

    def _enter(self, phase: str) -> None:
        assert self.journal is not None
        self.journal.phase = phase

    async def _checkpoint(self) -> None:
        """The moments at which a cancellation takes effect (rows B-027, B-028), and at which a worker may leave."""
        if self.canceling.is_set() or await self.tools.queue.canceled(self.claim):
            raise _Canceled
        if self.stopping.is_set():
            raise Stopping

    def _report(self, claimed: Outcome, judged: Judged | None) -> ClosureReport:
        spec, folder = self._known()
        return task_report(self.tools, self.ticket, spec, folder, self.session_id, self.entries, claimed, judged)

    async def _conclusion(
        self, status: TicketStatus, reason: Reason, report: ClosureReport, message: str
    ) -> Conclusion:
        _, folder = self._known()
        entries = await self.refresh()
        terminal = _TERMINAL.get(status, "failed")
        result = await asyncio.to_thread(
            task_result, self.tools, self.ticket, folder, entries, terminal, status is TicketStatus.RESOLVED, message
        )
        return Conclusion(status, reason, report, result)

    async def _locate(self) -> None:
        """Find the folder, also of a session that ends before it has come so far."""
        if self.folder is None:
            with contextlib.suppress(VerificationError):  # then it has no name, and so no folder
                self.spec = frozen_in(self.ticket, TaskSpec)
                await self.open_journal()
                self.folder = await locate(self.tools, self.ticket, self.spec, self.session_id)

    async def _export(self, terminal: str, text: str, report: ClosureReport | None) -> None:
        await self._locate()
        if self.folder is not None and self.spec is not None:
            entries = await self.refresh()
            await write_files(self.tools, self.ticket, self.spec, self.folder, entries, report, terminal, text)

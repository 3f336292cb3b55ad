"""One session on an incident: prepare, let the agent work, verify, conclude.

Each phase leaves its mark in the journal, and a phase whose mark is there is not repeated: that is all a resumed
session needs to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from operator_core.agent_lab.agent_run import AgentRun
from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.engine import Engine
from operator_core.agent_lab.gateway import Say, ToolGateway
from operator_core.agent_lab.history import Conversation, fold
from operator_core.agent_lab.loop import process_ticket
from operator_core.agent_lab.prompts import system_prompt
from operator_core.agent_lab.summaries import Summarizer, summarize_with_haiku
from operator_core.agent_lab.toolset import tool_names
from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB, Journal
from operator_core.db.queue import Claim, WorkQueue
from operator_core.errors import ModelRefused, VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.invariant import CheckSpec, Subject
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Reason, Ticket, TicketStatus
from operator_core.model.usage import Usage
from operator_core.model.verdict import Verdict, VerdictKind
from operator_core.probes import Observation, look_at
from operator_core.sandbox import ExecResult, Limits, Policy, Sandbox, open_sandbox
from operator_core.text import clip, printable
from operator_core.verify.incident import IncidentCheck, verify_incident
from operator_core.verify.protect import Fingerprint, Snapshot
from operator_core.verify.report import ClosureReport
from operator_core.work.state import StateFolder

__all__ = ["Conclusion", "IncidentSession", "LookWithChecker", "SessionTools"]

LookWithChecker = Callable[[Subject, str, datetime], Awaitable[Observation]]
"""Looks through a plug-in's checker: subject, violation key, start of the episode."""

PREPARE, WORKER, VERIFY = "prepare", "worker_1", "verify"

_REASON_OF_VERDICT = {
    VerdictKind.VERIFIED: Reason.VERIFIED,
    VerdictKind.REFUTED: Reason.REFUTED,
    VerdictKind.INCONCLUSIVE: Reason.INCONCLUSIVE,
    VerdictKind.UNPROVEN: Reason.UNPROVEN,
}
_REASON_OF_OUTCOME = {
    OutcomeKind.GAVE_UP: Reason.GAVE_UP,
    OutcomeKind.NO_OUTCOME: Reason.UNPROVEN,
    OutcomeKind.LIMIT: Reason.BUDGET,
    OutcomeKind.REFUSED: Reason.ERROR,
    OutcomeKind.ERROR: Reason.ERROR,
}


class SessionTools(NamedTuple):
    """What every session of a worker shares."""

    settings: Settings
    audit: AuditLogDB
    queue: WorkQueue
    engine: Engine
    state: StateFolder
    clock: Clock
    say: Say
    look_with_checker: LookWithChecker | None = None


class Conclusion(NamedTuple):
    """How a session ended: the ticket's state now, why, and the closure report."""

    status: TicketStatus
    reason: Reason
    report: ClosureReport


class IncidentSession:
    """Runs, or goes on with, the session of one claim.

    Args:
        tools: What the worker provides.
        claim: The claim; its ticket's ``session_id`` is the session to resume, if there is one.
    """

    def __init__(self, tools: SessionTools, claim: Claim) -> None:
        self.tools = tools
        self.claim = claim
        self.ticket: Ticket = claim.ticket
        self.spec: CheckSpec | None = None
        self.gateway: ToolGateway | None = None
        self.stopping = asyncio.Event()
        self.session_id = ""
        self._journal: Journal | None = None
        self._entries: list[Entry] = []
        self._sandbox_line = "not started"
        self._used = Usage()
        self._boxes = 0

    async def run(self) -> Conclusion:
        """All phases, from wherever the journal says.

        Raises:
            Fenced: The ticket belongs to another worker now.
            StoreError: The journal cannot be written; another worker goes on later.
            ModelNotUsable: The model service refuses this worker's key or model; the ticket can be released.
            ModelUnreachable: It did not answer for ``retry_deadline_s``; likewise.
            SandboxUnavailable: No sandbox can be started here; the ticket is untouched and can be released.
            VerificationError: The ticket's check cannot be read.
        """
        self.spec = _spec_of(self.ticket)
        journal = await self._open_journal()
        reach("session.opened")
        snapshot, seen_red = await self._prepare(journal)
        outcome = self._find(EntryKind.OUTCOME)
        ended = _outcome_of(outcome) if outcome else await self._work(journal)
        reach("session.worked")
        verdict = await self._verify(journal, ended, snapshot, seen_red)
        return await self._conclude(journal, ended, verdict)

    async def abandon(self, why: str) -> TicketStatus:
        """A person canceled: close the session as that."""
        journal = self._journal or await self._open_journal()
        if self.gateway is not None:
            await self.gateway.recover()
        ended = Draft(EntryKind.SESSION_END, why, why, phase=VERIFY, meta={"status": "canceled"})
        await journal.append(ended)
        return await self._finish(TicketStatus.CANCELED, Reason.BY_HAND, why, "canceled")

    async def fail(self, reason: Reason, why: str) -> TicketStatus:
        """Something that is neither the agent's nor the verification's: escalate with its sentence."""
        journal = self._journal or await self._open_journal()
        sentence = clip(printable(self.tools.audit.database.redactor.text(why)), 2000)
        await journal.append(Draft(EntryKind.ERROR, clip(sentence, 200), sentence, phase=VERIFY))
        diagnosis = f"ESCALATED: {reason.value}: {sentence}"
        return await self._finish(TicketStatus.ESCALATED, reason, diagnosis, "failed")

    # ---- phases

    async def _open_journal(self) -> Journal:
        audit = self.tools.audit
        resumed = self.ticket.session_id is not None
        if self.ticket.session_id is not None:
            self.session_id = self.ticket.session_id
        elif not self.session_id:
            self.session_id = await audit.create_session(self.ticket.id, claim=self.claim)
            reach("session.created")
        journal = self._journal = await audit.journal(self.session_id, self.claim)
        self._entries = await audit.entries(self.session_id)
        if resumed:
            text = f"resumed by worker {self.claim.worker[:8]} with fence {self.claim.fence}"
            await journal.append(Draft(EntryKind.RESUMED, text, phase=PREPARE))
            self.tools.say(f"[Resumed] session {self.session_id} goes on where its journal ends")
        return journal

    async def _prepare(self, journal: Journal) -> tuple[Snapshot, bool]:
        found = self._find(EntryKind.BASELINE)
        if found is not None:
            return _snapshot_of(found), bool(found.body["seen_red"])
        snapshot: Snapshot = {}
        first: Observation | None = None
        if self.spec is not None:
            async with self._platform_box() as run:
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
                found = _newest(await self.tools.audit.entries(session.session_id), EntryKind.BASELINE)
                if found is not None:
                    return _snapshot_of(found)
        return None

    async def _work(self, journal: Journal) -> Outcome:
        settings = self.tools.settings
        folder = self.tools.state.session(self.session_id)
        calls = folder / "calls"
        calls.mkdir(exist_ok=True)
        # Readable, because the markers in long output point there.
        sandbox = self._open_box(folder, calls)
        summarizer: Summarizer | None = None
        try:
            report = await sandbox.start()
            self._sandbox_line = f"{report.backend}, {report.level}"
            for warning in report.warnings:
                self.tools.say(f"[Sandbox] {warning}")
            note = Draft(EntryKind.SANDBOX_REPORT, self._sandbox_line, body=report.to_dict(), phase=PREPARE)
            conversation = fold(self._entries, WORKER)
            model, system = await self._begin(journal, note, "\n".join(report.summary()))
            journal.phase = WORKER
            gateway = self.gateway = ToolGateway(
                journal,
                sandbox,
                calls=calls,
                place=self.tools.state.place,
                conversation=conversation,
                say=self.tools.say,
                timeout_s=settings.limits.command_timeout_s,
            )
            gateway.mail = True
            budget = Budget(settings.limits, model, conversation.usage, conversation.turns)
            summarizer = self._summarizer(budget)
            if summarizer:
                gateway.on_entry = summarizer.add
            run = AgentRun(
                self.tools.engine.client,
                model,
                system,
                journal,
                conversation,
                gateway,
                budget,
                summarizer=summarizer,
                say=self.tools.say,
                stopping=self.stopping,
            )
            try:
                outcome = await process_ticket(run, self.ticket)
            except ModelRefused as error:
                outcome = Outcome(OutcomeKind.ERROR, str(error))
            if conversation.outcome is None:
                text = f"{outcome.kind.value}: {clip(printable(gateway.clean(outcome.summary)), 200)}"
                await gateway.record(
                    Draft(EntryKind.OUTCOME, text, outcome.summary, meta={"outcome": outcome.kind.value})
                )
            if summarizer:
                await summarizer.close()
            self._used = budget.used
            return outcome
        finally:
            if summarizer:
                await summarizer.close(0.0)
            await sandbox.close()  # from here on nothing of the agent runs any more

    async def _begin(self, journal: Journal, report: Draft, sandbox_summary: str) -> tuple[Any, str]:
        """The model and the system prompt: those of the journal if the session has begun, else today's."""
        settings = self.tools.settings.model
        found = self._find(EntryKind.SESSION_START)
        if found is not None:
            await journal.append(report)
            return settings.model_copy(update={"model": found.body["model"]}), str(found.body["system"])
        model = self.ticket.variant_model or settings.model
        system = system_prompt(self.ticket.variant_system_prompt, self.ticket.subject_context, sandbox_summary)
        body = {
            "profile": "operator",
            "engine": self.tools.engine.name,
            "model": model,
            "system": system,
            "tools": list(tool_names()),
            "check_hash": self.ticket.check_hash,
        }
        text = f"engine {self.tools.engine.name}, model {model}"
        await journal.append(report, Draft(EntryKind.SESSION_START, text, body=body, phase=PREPARE))
        reach("session.begun")
        return settings.model_copy(update={"model": model}), system

    async def _verify(self, journal: Journal, outcome: Outcome, snapshot: Snapshot, seen_red: bool) -> Verdict | None:
        if outcome.kind is not OutcomeKind.PROPOSED:
            return None
        found = self._find(EntryKind.VERDICT)
        if found is not None:
            return Verdict.from_dict(found.body)
        journal.phase = VERIFY
        self.tools.say("[Verify] The agent claims a repair; the platform looks for itself.")
        if self.spec is None:
            verdict = Verdict(VerdictKind.UNPROVEN, "the ticket has no check, so nothing can prove a repair")
        else:
            try:
                async with self._platform_box() as run:
                    verdict = await verify_incident(self._check(self.spec, run), snapshot, seen_red=seen_red)
            except VerificationError as error:
                verdict = Verdict(VerdictKind.INCONCLUSIVE, str(error), check_hash=self.spec.digest)
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

    async def _conclude(self, journal: Journal, outcome: Outcome, verdict: Verdict | None) -> Conclusion:
        report = await self._report(outcome, verdict)
        reason = _REASON_OF_VERDICT[verdict.kind] if verdict else _REASON_OF_OUTCOME[outcome.kind]
        verified = reason is Reason.VERIFIED
        status = TicketStatus.RESOLVED if verified else TicketStatus.ESCALATED
        session_status = "completed" if verified else "escalated"
        why = verdict.why if verdict else outcome.summary
        diagnosis = outcome.summary if verified else f"ESCALATED: {reason.value}: {why}"
        if not self._find(EntryKind.SESSION_END):
            journal.phase = VERIFY
            await journal.append(
                Draft(EntryKind.REPORT, clip(report.headline), report.markdown(), body=report.to_dict()),
                Draft(EntryKind.SESSION_END, f"{session_status}: {reason.value}", meta={"status": session_status}),
            )
        reach("session.reported")
        status_now = await self._finish(status, reason, diagnosis, session_status)
        return Conclusion(status_now, reason if status_now is status else Reason.BY_HAND, report)

    async def _finish(self, status: TicketStatus, reason: Reason, diagnosis: str, session_status: str) -> TicketStatus:
        status_now = await self.tools.queue.finish(
            self.claim,
            status,
            reason,
            diagnosis=diagnosis,
            session_id=self.session_id,
            session_status=session_status,
            watch_s=self.spec.invariant.watch_s if self.spec else 0.0,
        )
        reach("session.finished")
        self.tools.state.drop(self.session_id)
        return status_now

    # ---- what the phases need

    def _find(self, kind: EntryKind) -> Entry | None:
        return _newest(self._entries, kind)

    def _policy(self, *readable: Path) -> Policy:
        settings = self.tools.settings
        subject = self.spec.subject if self.spec else None
        workspace = subject.workspace if subject and subject.workspace else None
        if workspace is None:
            workspace = self.tools.state.session(self.session_id) / "workspace"
            workspace.mkdir(exist_ok=True)
        shown = (*settings.sandbox.readable, *(subject.readable if subject else ()), *readable)
        self.tools.state.keep_from((workspace, *shown))
        return Policy(
            workspace=workspace,
            readable=shown,
            network=subject.network if subject else "none",
            env=subject.env if subject else {},
            env_passthrough=settings.sandbox.env_passthrough,
            limits=Limits(timeout_s=settings.limits.command_timeout_s),
        )

    def _open_box(self, folder: Path, *readable: Path) -> Sandbox:
        self._boxes += 1
        return open_sandbox(
            self.tools.settings.sandbox.backend,
            self._policy(*readable),
            session_dir=folder / f"box-{self.claim.fence}-{self._boxes}",
            redact=self.tools.audit.database.redactor.filter,
        )

    @asynccontextmanager
    async def _platform_box(self) -> AsyncIterator[Callable[[str, float], Any]]:
        """A fresh sandbox for the platform's own commands; nothing of the agent lives in it."""
        box = self._open_box(self.tools.state.session(self.session_id))
        started = False

        async def run(command: str, timeout: float) -> ExecResult:
            nonlocal started
            if not started:
                await box.start()
                started = True
            # Always in the workspace: a `cd` in one check must not decide where the next one looks.
            return await box.exec(command, timeout=timeout, cwd=".")

        try:
            yield run
        finally:
            await box.close()

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

    def _summarizer(self, budget: Budget) -> Summarizer | None:
        settings = self.tools.settings.model
        if settings.summaries == "deterministic":
            return None

        async def ask(text: str) -> str:
            return await summarize_with_haiku(
                self.tools.engine.client,
                text,
                settings.summary_model,
                charge=lambda message: void(budget.charge(settings.summary_model, message.usage)),
            )

        return Summarizer(
            ask,
            self.tools.audit.update_summary,
            lambda: budget.room_for(4000, model=settings.summary_model, max_tokens=150),
        )

    async def _report(self, outcome: Outcome, verdict: Verdict | None) -> ClosureReport:
        entries = await self.tools.audit.entries(self.session_id)
        conversation: Conversation = fold(entries, WORKER)
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
            usage=max(self._used, conversation.usage, key=lambda used: used.tokens),
            turns=conversation.turns,
            commands=sum(e.entry_type == EntryKind.TOOL_RESULT and e.tool_name == "shell" for e in entries),
            sandbox=sandbox.content if sandbox else self._sandbox_line,
        )


def void(value: object) -> None:
    """Throw a result away."""


def _spec_of(ticket: Ticket) -> CheckSpec | None:
    if not ticket.check_spec:
        return None
    try:
        return CheckSpec.model_validate(ticket.check_spec)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise VerificationError(
            f"The check of ticket #{ticket.id} cannot be read ({where}: {first['msg']}); another version of Operator "
            "wrote it, so update this worker and reopen the ticket."
        ) from None


def _newest(entries: list[Entry], kind: EntryKind) -> Entry | None:
    return next((e for e in reversed(entries) if e.entry_type == kind), None)


def _snapshot_of(baseline: Entry) -> Snapshot:
    return {name: Fingerprint(*value) for name, value in baseline.body["snapshot"].items()}


def _outcome_of(entry: Entry) -> Outcome:
    return Outcome(OutcomeKind((entry.meta or {})["outcome"]), entry.raw_content or "")

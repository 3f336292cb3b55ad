"""One iteration's work is judged: a copy after the worker is gone, the frozen checks, then the verifier agent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from operator_core.agent_lab.profiles import Profile
from operator_core.errors import VerificationError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.task import TaskSpec
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence, Verdict, VerdictKind
from operator_core.sandbox import Policy
from operator_core.sandbox.removal import remove_tree
from operator_core.text import clip, printable
from operator_core.verify.checks import CheckRunner, CheckSeen
from operator_core.verify.copies import copy_tree
from operator_core.verify.frozen import restore, without_hooks
from operator_core.verify.review import judge_review
from operator_core.verify.task import judge_task
from operator_core.verify.verifier import executed_commands, make_verifier, review_of
from operator_core.work.session import Session

__all__ = ["Judged", "Judging", "Verifier"]

Verifier = Callable[[str, Profile, Policy, str, Sequence[str]], Awaitable[Outcome]]
"""Lets a verifier agent work: phase, profile, policy, the claim that it is to test, and what the platform noticed."""


@dataclass(frozen=True)
class Judged:
    """What came of it.

    Attributes:
        verdict: The platform's.
        feedback: For the next worker.
        digest: Of the content that was judged; None if it could not be copied.
        notes: What was restored or taken out for the checks.
    """

    verdict: Verdict
    feedback: str
    digest: str | None
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Judging:
    """Judges the work of one session.

    Attributes:
        session: Whose work.
        spec: The task.
        workspace: Where the work is.
        policy: What commands in it may see; the workspace of the policy is the real one.
        base: The pristine tree before the work.
        explicit: The check files of the task.
        seen: How the checks were before the work.
        verifier: None: checks alone decide.
    """

    session: Session
    spec: TaskSpec
    workspace: Path
    policy: Policy
    base: Path
    explicit: Path
    seen: Sequence[CheckSeen]
    verifier: Verifier | None

    @property
    def _folder(self) -> Path:
        return self.session.tools.state.session(self.session.session_id) / "copies"

    def runner(self) -> CheckRunner:
        """What runs the checks."""
        settings = self.session.tools.settings.tasks

        def open_box(copy: Path, protected: tuple[str, ...]) -> Any:
            policy = replace(
                self.policy,
                workspace=copy,
                shown_at=self.workspace,
                protected=(*self.policy.protected, *protected),
                env={},
                env_passthrough=(),
            )
            return self.session.box(policy)

        return CheckRunner(
            self.spec,
            self.base,
            self.explicit,
            self.workspace,
            open_box,
            self._folder / "checks",
            max_bytes=settings.max_workspace_bytes,
            max_files=settings.max_workspace_files,
        )

    async def judge(self, number: int, claim: str, *, objection: str = "") -> Judged:
        """Judge iteration ``number``; what the journal has already is not done again.

        Args:
            claim: What the worker says.
            objection: Something that refutes the work whatever the checks say.
        """
        phase = f"verifier_{number}"
        session = self.session
        journal = await session.open_journal()
        found = session.find(EntryKind.VERDICT, phase)
        if found is not None:
            return _judged(found.body, found.meta or {})
        journal.phase = phase
        session.tools.say(f"[Verify] {phase}: the platform looks for itself.")
        digest: str | None = None
        feedback, notes = "", tuple[str, ...]()
        checks: ClauseResult | None = None
        review: ClauseResult | None = None
        try:
            work, digest = await self._snapshot(phase)
            reach("task.copied")
            checks, feedback, notes = await self._checks(phase, work)
            reach("task.checked")
            if self.verifier is not None and not objection and (checks is None or checks.state is ClauseState.PROVED):
                review = await self._review(phase, work, claim, notes)
                feedback = review.why if review.state is ClauseState.FAILED else feedback
            require = session.tools.settings.tasks.require_checks
            verdict = judge_task(checks, review, self.seen, self.spec, require_checks=require, digest=digest)
        except VerificationError as error:
            clauses = tuple(clause for clause in (checks, review) if clause)
            verdict = Verdict(VerdictKind.INCONCLUSIVE, str(error), clauses, self.spec.digest)
        if objection:
            verdict = Verdict(VerdictKind.REFUTED, objection, verdict.clauses, self.spec.digest, ("integrity",))
            feedback = f"{objection}\n{feedback}".strip()
        meta = {"feedback": feedback, "digest": digest, "notes": list(notes)}
        text = clip(printable(f"{verdict.kind.value}: {verdict.why}"), 400)
        await journal.append(Draft(EntryKind.VERDICT, text, feedback or None, body=verdict.to_dict(), meta=meta))
        reach("task.judged")
        session.tools.say(f"[Verify] {phase}: {text}")
        await session.refresh()
        # What was judged is known by its digest, and delivered from the workspace.
        await asyncio.to_thread(remove_tree, self._folder)
        return Judged(verdict, feedback, digest, notes)

    async def _snapshot(self, phase: str) -> tuple[Path, str]:
        """The work as it was when the worker's last process had ended."""
        session = self.session
        work = self._folder / phase / "work"
        found = session.find(EntryKind.SNAPSHOT, phase)
        if found is not None and work.is_dir():
            return work, str(found.body["digest"])
        await asyncio.to_thread(remove_tree, work)
        work.parent.mkdir(parents=True, exist_ok=True)
        copied = await self._copy(self.workspace, work)
        if found is not None and copied.digest != found.body["digest"]:
            raise VerificationError(
                f"The workspace {self.workspace} changed while it was judged; leave it alone and reopen the ticket."
            )
        if found is None:
            note = f"content {copied.digest[:16]}, {copied.files} files, {copied.bytes} bytes"
            body = {**copied._asdict(), "skipped": list(copied.skipped)}
            journal = await session.open_journal()
            await journal.append(Draft(EntryKind.SNAPSHOT, note, body=body))
            await session.refresh()
        return work, copied.digest

    async def _copy(self, source: Path, target: Path) -> Any:
        settings = self.session.tools.settings.tasks
        return await copy_tree(
            source, target, max_bytes=settings.max_workspace_bytes, max_files=settings.max_workspace_files
        )

    async def _checks(self, phase: str, work: Path) -> tuple[ClauseResult | None, str, tuple[str, ...]]:
        if not self.spec.checks:
            return None, "", ()
        session = self.session
        for entry in session.entries:
            if entry.entry_type == EntryKind.EVIDENCE and entry.phase == phase and (entry.meta or {}).get("checks"):
                meta = entry.meta or {}
                return _clause(entry.body), str(meta["feedback"]), tuple(meta["notes"])
        judged = await self.runner().judge(work, self.seen)
        notes = (
            *(f"{name} was changed by the work, and restored for the check" for name in judged.restored),
            *(f"{name} was added by the work, and taken out for the check" for name in judged.removed),
        )
        await self._evidence(judged.clause, {"checks": True, "feedback": judged.feedback, "notes": list(notes)})
        return judged.clause, judged.feedback, notes

    async def _review(self, phase: str, work: Path, claim: str, notes: Sequence[str]) -> ClauseResult:
        assert self.verifier is not None
        session = self.session
        room = self._folder / phase / "agent"
        # One that has begun goes on in its own copy; before that, what it is told has to be found out.
        if session.find(EntryKind.MESSAGE, phase) is None or not room.is_dir():
            notes = await self._furnish(room, work, notes)

        async def executed() -> list[Any]:
            return executed_commands(e for e in await session.refresh() if e.phase == phase)

        policy = replace(self.policy, workspace=room, shown_at=self.workspace)
        outcome = await self.verifier(phase, make_verifier(executed), policy, claim, notes)
        if outcome.kind in (OutcomeKind.LIMIT, OutcomeKind.ERROR, OutcomeKind.REFUSED):
            raise VerificationError(f"The verifier could not finish: {clip(printable(outcome.summary), 300)}")
        clause = judge_review(review_of(outcome), await executed())
        await self._evidence(clause, {})
        return clause

    async def _furnish(self, room: Path, work: Path, notes: Sequence[str]) -> tuple[str, ...]:
        """Make the verifier's copy of the work, which it may change as it likes; returns what it should know of it."""
        draft = room.with_suffix(".partial")
        frozen = await self.runner().frozen()
        for folder in (room, draft):
            await asyncio.to_thread(remove_tree, folder)
        await self._copy(work, draft)
        if not self.spec.checks:  # nothing was restored for a check, so nobody has noted yet what is changed
            found = await asyncio.to_thread(restore, draft, self.base, self.explicit, frozen)
            notes = (
                *(f"{name} was changed by the work" for name in found.restored),
                *(f"{name} was added by the work" for name in found.removed),
            )
            await asyncio.to_thread(remove_tree, draft)
            await self._copy(work, draft)
        hooks = await asyncio.to_thread(without_hooks, draft, self.base, frozen)
        draft.rename(room)
        return (*notes, *(f"{name} is not in the copy: Python would load it unasked" for name in hooks))

    async def _evidence(self, clause: ClauseResult, meta: Mapping[str, Any]) -> None:
        journal = await self.session.open_journal()
        body = {
            "clause": clause.clause.value,
            "state": clause.state.value,
            "required": clause.required,
            "why": clause.why,
            "evidence": [vars(e) for e in clause.evidence],
        }
        text = clip(printable(f"{clause.clause.value}: {clause.state.value}: {clause.why}"), 400)
        await journal.append(Draft(EntryKind.EVIDENCE, text, clause.why, body=body, meta=dict(meta) or None))
        await self.session.refresh()


def _clause(body: Mapping[str, Any]) -> ClauseResult:
    return ClauseResult(
        Clause(body["clause"]),
        ClauseState(body["state"]),
        body["required"],
        body["why"],
        tuple(Evidence(**e) for e in body["evidence"]),
    )


def _judged(body: Mapping[str, Any], meta: Mapping[str, Any]) -> Judged:
    return Judged(
        Verdict.from_dict(dict(body)), str(meta.get("feedback", "")), meta.get("digest"), tuple(meta.get("notes", ()))
    )

"""The frozen checks of a task: each on a copy of its own, in a sandbox of its own, judged by its exit status alone."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from operator_core import clock
from operator_core.errors import SandboxError, VerificationError
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, Evidence
from operator_core.sandbox.protocol import Sandbox
from operator_core.sandbox.removal import remove_tree
from operator_core.text import clip, printable
from operator_core.verify.canary import Canary
from operator_core.verify.check_run import CheckRun, Light, read_run
from operator_core.verify.copies import copy_tree, plain_name
from operator_core.verify.endings import Ending, endings
from operator_core.verify.frozen import Frozen, altered, frozen_paths, restore
from operator_core.verify.refusal import PRELUDE

__all__ = ["CheckJudgement", "CheckRunner", "CheckSeen", "OpenBox"]

OpenBox = Callable[[Path, tuple[str, ...]], Sandbox]
"""Makes a fresh sandbox, not started, whose workspace is this copy (shown at the original path), with these relative
paths read-only. Its longest time limit must not be below that of a check."""

_FEEDBACK_MAX = 12_000
_ENV = {"PYTHONDONTWRITEBYTECODE": "1"}
# Each is a mount; what is beyond is compared when the check has ended.
_PROTECTED_MAX = 200
_PROTECTED_BYTES = 40_000
_TESTS_MAX = 300
_SOME = "*"


class CheckSeen(NamedTuple):
    """How a check was before the work.

    Attributes:
        command: The check.
        state: ``red`` (it failed), ``green``, or ``could_not_look``.
        exit: Its exit status; None if it had none.
        tail: The end of its output, printable, at most 4000 characters.
        vacuous: Whether it passes even in an empty folder, and so proves nothing.
        canary: The frozen tests that it reports as failing when the platform makes them fail, one a line
            (``tests/test_a.py::test_b``), or ``*`` where only its failure is known. None: it does not react to them.
        ending: Whether it is decided by Python scripts, which the platform can make fail at their end.
    """

    command: str
    state: Light
    exit: int | None
    tail: str
    vacuous: bool = False
    canary: str | None = None
    ending: bool = False

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return self._asdict()

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> CheckSeen:
        """What :meth:`to_dict` wrote."""
        return cls(**data)


@dataclass(frozen=True)
class CheckJudgement:
    """What the checks say about the work.

    Attributes:
        clause: The clause "checks", with a piece of evidence for each run.
        feedback: What failed, with the end of its output, for whoever works on it next; empty if nothing did.
        restored: Frozen paths that the work had changed or deleted, and that were put back for the checks.
        removed: Paths that the work had added to steer its checks, and that were taken out for them.
        digest: Content digest of the judged work; empty if it could not be copied.
    """

    clause: ClauseResult
    feedback: str
    restored: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    digest: str = ""

    @property
    def state(self) -> ClauseState:
        """State of the clause."""
        return self.clause.state


@dataclass(frozen=True)
class CheckRunner:
    """Runs the checks of one task.

    Attributes:
        spec: The task.
        base: The workspace as it was before the work.
        explicit: A folder with the task's check files.
        workspace: Where the workspace is, and where commands see each copy of it.
        open_box: See :data:`OpenBox`.
        scratch: Folder for copies; each is removed after its run.
        max_bytes: The largest workspace that is copied.
        max_files: Likewise.
    """

    spec: TaskSpec
    base: Path
    explicit: Path
    workspace: Path
    open_box: OpenBox
    scratch: Path
    max_bytes: int = 4 << 30
    max_files: int = 500_000

    async def frozen(self) -> Frozen:
        """What is frozen for the checks.

        Raises:
            VerificationError: The base cannot be read.
        """
        return await asyncio.to_thread(frozen_paths, self.base, self.spec)

    async def before(self) -> tuple[CheckSeen, ...]:
        """How each check is before the work, in the order of the spec.

        Raises:
            VerificationError: The base cannot be read.
        """
        frozen = await self.frozen()
        return tuple([await self._see(check, frozen) for check in self.spec.checks])

    async def judge(self, work: Path, seen: Sequence[CheckSeen]) -> CheckJudgement:
        """Run every check on the work.

        Args:
            work: The work, in which nothing may be running any more.
            seen: What :meth:`before` returned.
        """
        if not self.spec.checks:
            return CheckJudgement(_clause(ClauseState.NOT_PROVED, "the task has no check", []), "")
        try:
            frozen = await self.frozen()
            known = {s.command: s for s in seen}
            runs = [
                await self._judge_one(check, number, work, frozen, known.get(check.command))
                for number, check in enumerate(self.spec.checks, 1)
            ]
        except VerificationError as error:
            why = str(error).rstrip(".")
            return CheckJudgement(_clause(ClauseState.COULD_NOT_LOOK, why, []), f"No check could be run: {why}.")
        return self._conclude(runs)

    # One check.

    async def _see(self, check: TaskCheck, frozen: Frozen) -> CheckSeen:
        run = await self._run(check, self.base, frozen)
        vacuous = run.light == "green" and await self._passes_on_nothing(check, frozen)
        canary = await self._try_canary(check, frozen, run) if not vacuous else None
        ending = canary is None and not vacuous and run.light != "could_not_look" and await self._ends(check, frozen)
        return CheckSeen(check.command, run.light, run.exit, run.tail, vacuous, canary, ending)

    async def _ends(self, check: TaskCheck, frozen: Frozen) -> bool:
        """Whether the only thing that decides the check is how its Python script ends."""
        places = endings(check, frozen)
        if len(places) != 1:
            return False
        for mode, light in (("passes", "green"), ("fails", "red")):
            place = places[0]._replace(mode=mode)  # type: ignore[arg-type]
            if (await self._run(place.of(check), self.base, frozen, place)).light != light:
                return False
        return True

    async def _passes_on_nothing(self, check: TaskCheck, frozen: Frozen) -> bool:
        """Whether it is green in a folder that holds nothing but the files that are the check itself."""
        empty = self.scratch / clock.new_id()
        empty.mkdir(parents=True)
        try:
            only = frozen._replace(tests=(), runners=(), configs=())
            return (await self._run(check, empty, only)).light == "green"
        finally:
            await _discard(empty)

    async def _try_canary(self, check: TaskCheck, frozen: Frozen, run: CheckRun) -> str | None:
        """See :attr:`CheckSeen.canary`."""
        canary = Canary.of(check, frozen)
        if canary is None or run.light == "could_not_look":
            return None
        tried = await self._run(check, self.base, frozen, canary)
        if tried.light != "red":
            return None
        if tried.tests:
            return "\n".join(sorted(tried.tests)) if tried.complete and len(tried.tests) <= _TESTS_MAX else _SOME
        if run.light == "green":
            # Its output does not say what failed; a check that fails now and then would look like this too.
            again = [await self._run(check, self.base, frozen, c) for c in (canary, None)]
            return _SOME if [r.light for r in again] == ["red", "green"] else None
        # It is red anyway, perhaps because the tests import what is not written yet.
        bare = await self._run(check, self.base, frozen, canary._replace(mode="skeletons"))
        return _SOME if bare.light == "red" and bare.tests else None

    async def _judge_one(
        self, check: TaskCheck, number: int, work: Path, frozen: Frozen, before: CheckSeen | None
    ) -> tuple[CheckRun, Evidence, str]:
        """A run, its evidence, and why it does not count although it is green (else empty)."""
        run = await self._run(check, work, frozen)
        disarmed, expected = "", before.canary if before else None
        canary = Canary.of(check, frozen) if expected is not None and run.light == "green" else None
        if canary is not None:
            again = await self._run(check, work, frozen, canary)
            if again.light == "could_not_look":
                run, canary = again, None
            elif again.light == "green":
                disarmed = (
                    "it passes even when the frozen tests are made to fail, which it did not before the work: "
                    "something in the work switches the tests off"
                )
            elif expected != _SOME and again.complete:
                missing = sorted(set((expected or "").splitlines()) - again.tests)
                if missing:
                    disarmed = (
                        f"it no longer fails because of {_names(missing)} when that is made to fail, as it did before "
                        "the work: something in the work switches tests off"
                    )
        if before and before.ending and run.light == "green":
            (place,) = endings(check, frozen)
            if (await self._run(place.of(check), work, frozen, place)).light == "green":
                disarmed = (
                    "it passes even when its script is told to fail at its end: something in the work ends the script "
                    "before"
                )
        return run, self._evidence(check, number, run, canary is not None, disarmed), disarmed

    async def _run(
        self, check: TaskCheck, source: Path, frozen: Frozen, canary: Canary | Ending | None = None
    ) -> CheckRun:
        """One run on a fresh copy.

        Raises:
            VerificationError: The copy could not be made.
        """
        copy = self.scratch / clock.new_id()
        try:
            copied = await copy_tree(source, copy, max_bytes=self.max_bytes, max_files=self.max_files)
            restored = await asyncio.to_thread(restore, copy, self.base, self.explicit, frozen)
            marks = await asyncio.to_thread(canary.put, copy) if canary is not None else {}
            if canary is not None and not marks:
                return CheckRun("could_not_look", None, "there is no test that could be made to fail", "")
            run = await self._execute(check, copy, _bounded(restored.protected), marks)
            if canary is None and run.light == "green":
                wrong = await asyncio.to_thread(altered, copy, self.base, self.explicit, frozen)
                if wrong:
                    why = f"exit 0, but it changed what it checks with while it ran: {_names(wrong)}"
                    run = run._replace(light="red", seen=why)
            return run._replace(restored=restored, digest=copied.digest)
        finally:
            await _discard(copy)

    async def _execute(
        self, check: TaskCheck, copy: Path, protected: tuple[str, ...], marks: dict[str, str]
    ) -> CheckRun:
        try:
            box = self.open_box(copy, protected)
            try:
                await box.start()
                result = await box.exec(PRELUDE + check.command, env=_ENV, timeout=check.timeout_s)
            finally:
                await box.close()
        except (SandboxError, OSError) as error:
            why = f"the sandbox could not run it: {str(error).rstrip('.')}"
            return CheckRun("could_not_look", None, why, "")
        return read_run(result, marks)

    # What it means.

    def _evidence(self, check: TaskCheck, number: int, run: CheckRun, canary: bool, disarmed: str) -> Evidence:
        content = f" on the content {run.digest[:12]}" if run.digest else ""
        observed = f"{run.seen}{content}"
        if disarmed:
            observed += f"; {disarmed}"
        elif canary:
            observed += "; it failed when the frozen tests were made to fail, as it must"
        ok = None if run.light == "could_not_look" else run.light == "green" and not disarmed
        return Evidence(
            f"check {number}: {clip(_line(check.command), 400)}",
            "exit 0",
            f"{observed}\n{run.tail}" if run.tail else observed,
            ok,
            clock.iso(),
            f"cd {shlex.quote(plain_name(str(self.workspace)))} && bash -o pipefail -c {shlex.quote(check.command)}",
        )

    def _conclude(self, runs: list[tuple[CheckRun, Evidence, str]]) -> CheckJudgement:
        restored = tuple(dict.fromkeys(p for run, _, _ in runs for p in run.restored.restored))
        removed = tuple(dict.fromkeys(p for run, _, _ in runs for p in run.restored.removed))
        evidence = [item for _, item, _ in runs]
        digests = {run.digest for run, _, _ in runs}
        digest = digests.pop() if len(digests) == 1 else ""
        failed, blind, said = [], [], []
        for number, (check, (run, _, disarmed)) in enumerate(zip(self.spec.checks, runs, strict=True), 1):
            what = f"check {number} (`{clip(_line(check.command), 160)}`)"
            if run.light == "red" or disarmed:
                why = f"{what} failed: {disarmed or run.seen}"
                failed.append(f"{why}{_last_line(run.tail)}" if not disarmed else why)
            elif run.light == "could_not_look":
                why = f"{what} could not look: {run.seen}"
                blind.append(why)
            else:
                continue
            said.append(f"{why[0].upper()}{why[1:]}.\n{run.tail}".rstrip() + "\n")
        if failed:
            state, sentence = ClauseState.FAILED, failed[0]
        elif blind:
            state, sentence = ClauseState.COULD_NOT_LOOK, blind[0]
        elif not digest:
            state, sentence = ClauseState.COULD_NOT_LOOK, "the work changed between two checks; something still runs"
        else:
            count = "the check passed" if len(runs) == 1 else f"all {len(runs)} checks passed"
            state, sentence = ClauseState.PROVED, count
        feedback = ""
        if state is not ClauseState.PROVED:
            feedback = _feedback(said or [f"{sentence[0].upper()}{sentence[1:]}.\n"], restored, removed)
        return CheckJudgement(_clause(state, sentence, evidence), feedback, restored, removed, digest)


def _bounded(paths: tuple[str, ...]) -> tuple[str, ...]:
    kept: list[str] = []
    size = 0
    for path in paths:
        size += len(path)
        if len(kept) == _PROTECTED_MAX or size > _PROTECTED_BYTES:
            break
        # The sandbox tries each of them, one a line.
        if "\n" not in path:
            kept.append(path)
    return tuple(kept)


def _clause(state: ClauseState, why: str, evidence: list[Evidence]) -> ClauseResult:
    return ClauseResult(Clause.CHECKS, state, True, why, tuple(evidence))


def _line(command: str) -> str:
    return " ".join(printable(command).split())


def _last_line(tail: str) -> str:
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    return f": {clip(lines[-1], 200)}" if lines else ""


def _names(paths: Sequence[str]) -> str:
    return ", ".join(paths[:20]) + (f" and {len(paths) - 20} more" if len(paths) > 20 else "")


def _feedback(said: list[str], restored: tuple[str, ...], removed: tuple[str, ...]) -> str:
    each = max(800, _FEEDBACK_MAX // len(said))
    text = "\n".join(part if len(part) <= each else f"{part[:400]}\n…\n{part[401 - each :]}" for part in said[:12])
    if restored:
        text += (
            f"\nThese files belong to the checks, so they were put back as they were before the checks ran: "
            f"{_names(restored)}. Make the work pass without changing them.\n"
        )
    if removed:
        text += (
            f"\nThese files would steer how the checks run, so they were taken out before the checks ran: "
            f"{_names(removed)}. Do without them.\n"
        )
    if restored or removed:
        text += "If the task cannot be done without changing them, say that you are blocked and name the files.\n"
    return text


async def _discard(folder: Path) -> None:
    await asyncio.to_thread(remove_tree, folder)

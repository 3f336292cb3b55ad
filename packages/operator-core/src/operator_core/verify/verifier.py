"""The verifier agent: its verdict tool, and what the platform counts as having tested something."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from anthropic import beta_async_tool

from operator_core.agent_lab.gateway import ToolRefused
from operator_core.agent_lab.profiles import ONLY_A_SCHEMA, OutcomeTool, Profile
from operator_core.agent_lab.task_prompts import VERDICT_NUDGE
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.verdict import ClauseState
from operator_core.verify.review import Executed, ReviewVerdict, judge_review, read_review

__all__ = ["executed_commands", "make_verifier", "review_of", "submit_verdict"]

_SHELLS = frozenset({"shell", "Bash"})


@beta_async_tool
async def submit_verdict(
    approved: bool,
    feedback: str,
    testing_done: str,
    results: str,
    criteria_met: list[str],
    criteria_failed: list[str],
    expert_comparison: str,
) -> str:
    """Give your verdict on the work. An approval counts only if you have executed something that tests it.

    Args:
        approved: Whether every criterion is met, without any error.
        feedback: If not approved: what you ran, what happened and what has to change. Else empty.
        testing_done: What you executed.
        results: What came out.
        criteria_met: The criteria that are met.
        criteria_failed: Those that are not; empty if approved.
        expert_comparison: How the work compares to what experts would deliver.
    """
    raise AssertionError(ONLY_A_SCHEMA)


def make_verifier(executed: Callable[[], Awaitable[list[Executed]]]) -> Profile:
    """The profile of a verifier.

    Args:
        executed: What it has executed so far, by the journal.
    """

    async def read(arguments: dict[str, Any]) -> Outcome:
        try:
            review = read_review(arguments)
        except ValueError as error:
            raise ToolRefused(str(error)) from None
        if review.approved:
            judged = judge_review(review, await executed())
            if judged.state is not ClauseState.PROVED:
                raise ToolRefused(f"This verdict is not taken: {judged.why}. Test the work, then give your verdict.")
        return Outcome(OutcomeKind.JUDGED, review.feedback or review.results, review.model_dump())

    return Profile(
        "verifier",
        (OutcomeTool(submit_verdict, read, "Noted."),),
        VERDICT_NUDGE,
        lambda text: None,
        Outcome(OutcomeKind.NO_OUTCOME, "The verifier stopped twice without a verdict."),
    )


def executed_commands(entries: Iterable[Entry]) -> list[Executed]:
    """The commands of one phase that really ended, from its journal: not what an agent says that it ran."""
    asked: dict[str, str] = {}
    done: list[Executed] = []
    for entry in entries:
        if entry.tool_use_id is None or entry.tool_name not in _SHELLS:
            continue
        if entry.entry_type == EntryKind.TOOL_CALL:
            asked[entry.tool_use_id] = str((entry.tool_params or {}).get("command", ""))
        elif entry.entry_type == EntryKind.TOOL_RESULT and entry.exit_code is not None:
            command = asked.pop(entry.tool_use_id, None)
            if command is not None:
                timed_out = _timed_out(entry)
                done.append(Executed(command, None if timed_out else entry.exit_code, timed_out, entry.content))
    return done


def review_of(outcome: Outcome) -> ReviewVerdict | None:
    """The verdict in the outcome of a verifier's conversation, if it gave one."""
    return ReviewVerdict.model_validate(outcome.body) if outcome.kind is OutcomeKind.JUDGED else None


def _timed_out(entry: Entry) -> bool:
    try:
        return bool(json.loads(entry.raw_content or "{}").get("timed_out"))
    except (ValueError, AttributeError):
        return False

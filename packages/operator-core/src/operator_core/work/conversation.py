"""One phase in which an agent works: a sandbox, the tools, the budget, and the conversation through our own loop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from operator_core.agent_lab.agent_run import AgentRun
from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.gateway import ToolGateway, outcome_draft
from operator_core.agent_lab.history import fold
from operator_core.agent_lab.loop import converse
from operator_core.agent_lab.profiles import Profile
from operator_core.agent_lab.summaries import Summarizer, summarize_with_haiku
from operator_core.config import LimitSettings, ModelSettings
from operator_core.errors import ModelRefused, StoreError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.sandbox import Policy
from operator_core.work.session import Session, spent

__all__ = ["AgentPhase", "Beginning", "hold_conversation"]


class Beginning(NamedTuple):
    """The entry that fixes model and prompt of a conversation, whoever goes on with it.

    Attributes:
        kind: Its kind.
        phase: Its phase.
        body: What it says beside ``model`` and ``system``.
    """

    kind: EntryKind
    phase: str
    body: Mapping[str, Any]


class AgentPhase(NamedTuple):
    """What one agent is to do.

    Attributes:
        name: The phase, ``worker_1``.
        profile: Its tools and how its conversation ends.
        opening: The first message.
        system: Makes the system prompt of what is known about the sandbox.
        policy: What its commands may see and change; the call files are added.
        model: None: the configured one.
        limits: Of this session.
        beginning: See :class:`Beginning`.
        hears: Whether people may speak to this agent while it works. A verifier is not to be talked to.
    """

    name: str
    profile: Profile
    opening: str
    system: Callable[[str], str]
    policy: Policy
    model: str | None
    limits: LimitSettings
    beginning: Beginning
    hears: bool = False


async def hold_conversation(session: Session, phase: AgentPhase) -> Outcome:
    """Let the agent work until it says how it ends; afterwards nothing of it runs any more.

    The outcome is in the journal, and ``session.entries`` are up to date.
    """
    tools = session.tools
    journal = await session.open_journal()
    conversation = fold(await session.refresh(), phase.name)
    if conversation.outcome is not None:
        return conversation.outcome
    calls = tools.state.session(session.session_id) / "calls"
    calls.mkdir(exist_ok=True)
    sandbox = session.box(phase.policy)
    summarizer: Summarizer | None = None
    try:
        report = await sandbox.start()
        for warning in report.warnings:
            tools.say(f"[Sandbox] {warning}")
        note = Draft(
            EntryKind.SANDBOX_REPORT,
            f"{report.backend}, {report.level}",
            body=report.to_dict(),
            phase=phase.beginning.phase,
        )
        model, system = await _begin(session, phase, note, "\n".join(report.summary()))
        journal.phase = phase.name
        gateway = session.gateway = ToolGateway(
            journal,
            sandbox,
            calls=calls,
            place=tools.state.place,
            conversation=conversation,
            say=tools.say,
            timeout_s=tools.settings.limits.command_timeout_s,
        )
        gateway.hears = gateway.mail = phase.hears
        budget = Budget(phase.limits, model, spent(session.entries), conversation.turns)
        summarizer = _summarizer(session, budget)
        if summarizer:
            gateway.on_entry = summarizer.add
        run = AgentRun(
            tools.engine.client,
            model,
            system,
            journal,
            conversation,
            gateway,
            budget,
            phase.profile,
            summarizer=summarizer,
            say=tools.say,
            stopping=session.stopping,
        )
        try:
            outcome = await converse(run, phase.opening)
        except ModelRefused as error:
            outcome = Outcome(OutcomeKind.ERROR, str(error))
        if conversation.outcome is None:
            await gateway.record(outcome_draft(outcome, gateway.clean))
        if summarizer:
            await summarizer.close()
        return outcome
    finally:
        if summarizer:
            await summarizer.close(0.0)
        await sandbox.close()  # from here on nothing of the agent runs any more
        with contextlib.suppress(StoreError):
            if summarizer and summarizer.used.tokens:  # paid, however the phase ended
                meta = {"usage": summarizer.used._asdict(), "model": tools.settings.model.summary_model}
                await journal.append(Draft(EntryKind.USAGE, "one-line summaries", meta=meta))
            await session.refresh()


async def _begin(session: Session, phase: AgentPhase, report: Draft, summary: str) -> tuple[ModelSettings, str]:
    """The model and the system prompt: those of the journal if the conversation has begun, else today's."""
    settings = session.tools.settings.model
    journal = await session.open_journal()
    found: Entry | None = session.find(phase.beginning.kind, phase.beginning.phase)
    if found is not None:
        await journal.append(report)
        return settings.model_copy(update={"model": found.body["model"]}), str(found.body["system"])
    model = phase.model or settings.model
    system = phase.system(summary)
    body = {
        "profile": phase.profile.name,
        "engine": session.tools.engine.name,
        "model": model,
        "system": system,
        "tools": list(phase.profile.tools),
        **phase.beginning.body,
    }
    text = f"engine {session.tools.engine.name}, model {model}"
    await journal.append(report, Draft(phase.beginning.kind, text, body=body, phase=phase.beginning.phase))
    reach("session.begun")
    return settings.model_copy(update={"model": model}), system


def _summarizer(session: Session, budget: Budget) -> Summarizer | None:
    settings = session.tools.settings.model
    if settings.summaries == "deterministic":
        return None

    async def ask(text: str) -> str:
        def charge(message: Any) -> None:
            summarizer.used = summarizer.used.plus(budget.charge(settings.summary_model, message.usage))

        return await summarize_with_haiku(session.tools.engine.client, text, settings.summary_model, charge=charge)

    summarizer = Summarizer(
        ask,
        session.tools.audit.update_summary,
        lambda: budget.room_for(4000, model=settings.summary_model, max_tokens=150),
    )
    return summarizer

"""One phase in which an agent works: a sandbox, the tools, the budget, and the conversation through our own loop."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from operator_core.agent_lab.agent_run import AgentRun, Pace
from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.context import ContextManager, Standing
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.agent_lab.gateway import ToolGateway, outcome_draft
from operator_core.agent_lab.history import fold
from operator_core.agent_lab.loop import converse
from operator_core.agent_lab.naming import shown_model
from operator_core.agent_lab.permission import Permission
from operator_core.agent_lab.profiles import Profile
from operator_core.agent_lab.summaries import Summarizer, summarize_with_haiku
from operator_core.agent_lab.toolbox.mcp import Offer, offer_words
from operator_core.agent_lab.toolbox.tool import Tool
from operator_core.config import LimitSettings, ModelSettings
from operator_core.errors import ModelRefused, StoreError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.safety.approvals import Circumstances
from operator_core.sandbox import Policy
from operator_core.work.boxes import network_words
from operator_core.work.entries import spent
from operator_core.work.mcp_servers import Servers, policy_with, servers_of
from operator_core.work.session import Session, SessionBase

__all__ = ["AgentPhase", "Beginning", "circumstances_of", "hold_conversation"]


class Beginning(NamedTuple):
    """The entry that fixes model and prompt of a conversation, whoever goes on with it.

    Attributes:
        kind: Its kind.
        phase: Its phase.
        body: What it says beside ``model``, ``system`` and the mark of the fence.
    """

    kind: EntryKind
    phase: str
    body: Mapping[str, Any]


class AgentPhase(NamedTuple):
    """What one agent is to do.

    Attributes:
        name: The phase, ``worker_1``.
        profile: Its tools and how its conversation ends.
        opening: Makes the first message; what others wrote is fenced in it.
        system: Makes the system prompt of what is known about the sandbox; what a fence means is added.
        policy: What its commands may see and change; the call files are added.
        model: None: the configured one.
        limits: Of this session.
        beginning: See :class:`Beginning`.
        hears: Whether people may speak to this agent while it works. A verifier is not to be talked to.
        standing: Makes the system prompt when the context begins anew, of the new one's number and what is known about
            the sandbox; None: it stays.
        pace: See :class:`Pace`.
    """

    name: str
    profile: Profile
    opening: Callable[[Fence], str]
    system: Callable[[str, Fence], str]
    policy: Policy
    model: str | None
    limits: LimitSettings
    beginning: Beginning
    hears: bool = False
    standing: Callable[[int, str], Awaitable[str]] | None = None
    pace: Pace | None = None

    def offering(self, offers: Sequence[Offer], kit: Sequence[Tool]) -> AgentPhase:
        """The same with the tools of MCP servers."""
        if not offers:
            return self
        body = {**self.beginning.body, "mcp": [offer.body for offer in offers]}
        profile = replace(self.profile, kit=(*self.profile.kit, *kit))
        return self._replace(profile=profile, beginning=self.beginning._replace(body=body))


async def hold_conversation(session: SessionBase, phase: AgentPhase) -> Outcome:
    """Let the agent work until it says how it ends; afterwards nothing of it runs any more.

    The outcome is in the journal, and ``session.entries`` are up to date.
    """
    tools = session.tools
    journal = await session.open_journal()
    entries = await session.refresh()
    begun = session.find(phase.beginning.kind, phase.beginning.phase)
    conversation = fold(entries, phase.name, None if begun else Fence.new())
    if conversation.outcome is not None:
        return conversation.outcome
    mcp = servers_of(tools.settings, phase.profile.name)
    phase = phase._replace(policy=policy_with(phase.policy, mcp))
    sandbox = session.box(phase.policy, phase.name)
    servers = Servers(session, mcp, sandbox, phase.policy, conversation.fence)
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
        offers = await servers.offers(begun)
        phase = phase.offering(offers, servers.kit(offers))
        known = (*report.summary(), *network_words(tools.settings, phase.policy, phase.name), *offer_words(offers))
        model, system = await _begin(session, phase, note, "\n".join(known), conversation.fence)
        journal.phase = phase.name
        gateway = session.gateway = ToolGateway(
            journal,
            sandbox,
            calls=session.calls,
            place=tools.state.place,
            conversation=conversation,
            say=tools.say,
            timeout_s=tools.settings.limits.command_timeout_s,
        )
        gateway.hears = gateway.mail = phase.hears
        gateway.guard = Permission(
            tools.settings.approvals.rule,
            circumstances_of(session, phase),
            tools=[tool.schema.name for tool in phase.profile.kit],
            endings=[tool.schema.name for tool in phase.profile.endings],
            expire_s=tools.settings.approvals.expire_s,
            say=tools.say,
        )
        budget = Budget(phase.limits, model, spent(session.entries), conversation.turns)
        budget.fixed = sum(len(json.dumps(offer.body)) for offer in offers)
        summarizer = _summarizer(session, budget, conversation.fence)
        if summarizer:
            gateway.on_entry = summarizer.add
        run = AgentRun(
            tools.engine.client,
            model,
            conversation.system or system,
            journal,
            conversation,
            gateway,
            budget,
            phase.profile,
            summarizer=summarizer,
            say=tools.say,
            stopping=session.stopping,
            context=ContextManager(
                tools.settings.context, model.max_tokens, _standing(phase, "\n".join(known), conversation.fence)
            ),
            pace=phase.pace,
        )
        try:
            outcome = await converse(run, phase.opening(conversation.fence))
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
        try:
            await servers.close()
        finally:
            await sandbox.close()  # from here on nothing of the agent runs any more
        with contextlib.suppress(StoreError):
            if summarizer and summarizer.used.tokens:  # paid, however the phase ended
                small = shown_model(tools.settings.model, tools.settings.model.summary_model)
                meta = {"usage": summarizer.used._asdict(), "model": small}
                await journal.append(Draft(EntryKind.USAGE, "one-line summaries", meta=meta))
            await session.refresh()


def circumstances_of(session: SessionBase, phase: AgentPhase) -> Circumstances:
    """Who works in a phase, for the rules of ``[approvals]``."""
    ticket = session.ticket if isinstance(session, Session) else None
    return Circumstances(
        phase.profile.name,
        phase.name,
        ticket.kind if ticket else None,
        ticket.labels if ticket else {},
        session.tools.settings.approvals.environment,
        phase.policy.workspace,
    )


async def _begin(
    session: SessionBase, phase: AgentPhase, report: Draft, summary: str, fence: Fence
) -> tuple[ModelSettings, str]:
    """The model and the system prompt: those of the journal if the conversation has begun, else today's."""
    settings = session.tools.settings.model
    journal = await session.open_journal()
    found: Entry | None = session.find(phase.beginning.kind, phase.beginning.phase)
    if found is not None:
        await journal.append(report)
        return settings.model_copy(update={"model": found.body["model"]}), str(found.body["system"])
    model = phase.model or settings.model
    # As the journal will have it, so that whoever resumes sends the same.
    system = session.tools.audit.database.redactor.text(f"{phase.system(summary, fence).strip()}\n\n{fence.notice}")
    body = {
        "profile": phase.profile.name,
        "engine": session.tools.engine.name,
        "model": model,
        "system": system,
        "agent": phase.name,
        "mark": fence.mark,
        "tools": list(phase.profile.tools),
        **phase.beginning.body,
    }
    text = f"engine {session.tools.engine.name}, model {model}"
    await journal.append(report, Draft(phase.beginning.kind, text, body=body, phase=phase.beginning.phase))
    reach("session.begun")
    return settings.model_copy(update={"model": model}), system


def _standing(phase: AgentPhase, sandbox: str, fence: Fence) -> Standing | None:
    again = phase.standing
    if again is None:
        return None

    async def standing(number: int) -> str:
        return f"{(await again(number, sandbox)).strip()}\n\n{fence.notice}"

    return standing


def _summarizer(session: SessionBase, budget: Budget, fence: Fence) -> Summarizer | None:
    settings = session.tools.settings.model
    if settings.summaries == "deterministic":
        return None

    async def ask(text: str) -> str:
        def charge(message: Any) -> None:
            summarizer.used = summarizer.used.plus(budget.charge(settings.summary_model, message.usage))

        text = fence.wrap(Origin.MATERIAL, text)
        return await summarize_with_haiku(session.tools.engine.client, text, settings.summary_model, charge=charge)

    summarizer = Summarizer(
        ask,
        session.tools.audit.update_summary,
        lambda: budget.room_for(4000, model=settings.summary_model, max_tokens=150),
    )
    return summarizer

"""An agent phase with the Claude Code CLI instead of our own loop; the same outcomes, the same journal."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from operator_core.agent_lab.budget import Budget
from operator_core.agent_lab.claude_code.program import find_program
from operator_core.agent_lab.claude_code.run import CliPhase, CliResult, run_claude_code
from operator_core.agent_lab.fence import Fence, Origin
from operator_core.agent_lab.gateway import ToolRefused, outcome_draft
from operator_core.errors import ConfigError, ModelRefused, StoreError
from operator_core.failpoints import reach
from operator_core.model.entry import Draft, Entry, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.safety.approvals import first_in_force
from operator_core.sandbox import Limits, Sandbox
from operator_core.work.boxes import network_words
from operator_core.work.conversation import AgentPhase, circumstances_of
from operator_core.work.entries import newest, outcome_of, spent
from operator_core.work.session import Session

__all__ = ["run_cli_agent"]

_KINDS = {"limit": OutcomeKind.LIMIT, "refused": OutcomeKind.REFUSED, "error": OutcomeKind.ERROR}


async def run_cli_agent(session: Session, phase: AgentPhase, *, untrusted: bool) -> Outcome:
    """Let the CLI work until it says how it ends; afterwards nothing of it runs any more.

    Args:
        untrusted: The workspace is another agent's work.

    Raises:
        ConfigError: The CLI is not installed, there is no sandbox in which its permissions may be skipped, or a person
            wants to be asked about calls.
    """
    settings = session.tools.settings
    if settings.sandbox.backend == "none":
        raise ConfigError(
            "The Claude Code engine runs only in a real sandbox, and [sandbox] backend is none; use bubblewrap, or the "
            "engine anthropic."
        )
    if (rule := first_in_force(settings.approvals.rule, circumstances_of(session, phase))) is not None:
        raise ConfigError(
            f"Rule {rule} of [approvals] could ask about or deny what Claude Code does, whose own tools wait for "
            "nobody; use the engine anthropic, or limit the rule with `kind`, `profile`, `labels` or `environment`."
        )
    program = find_program(settings.claude_code)
    journal = await session.open_journal()
    journal.phase = phase.name
    entries = _of(phase, await session.refresh())
    done = newest(entries, EntryKind.OUTCOME)
    said = _replies(entries)
    if done is not None and not (said and outcome_of(done).kind is OutcomeKind.BLOCKED):
        return outcome_of(done)
    model, system, fence = await _begin(session, phase)
    asked = False
    notes = [fence.wrap(Origin.PERSON, text) for text in said or _early(entries)]
    prompt = "\n\n".join(notes if said else [phase.opening(fence), *notes])
    try:
        while True:
            entries = _of(phase, await session.refresh())
            run = _cli_phase(session, phase, program, entries, model, system, prompt, fence, untrusted)
            try:
                result = await run_claude_code(run)
            except ModelRefused as error:
                result = CliResult("error", str(error), None, 0, "", str(error))
            outcome, again = await _read(phase, result)
            if outcome is None and not asked:
                asked, prompt = True, again
                continue
            outcome = outcome or phase.profile.silent
            clean = session.tools.audit.database.redactor.text
            await journal.append(outcome_draft(outcome, clean))
            return outcome
    finally:
        with contextlib.suppress(StoreError):
            await session.refresh()


async def _begin(session: Session, phase: AgentPhase) -> tuple[str, str, Fence]:
    """Model, system prompt and fence, as the first worker fixed them."""
    journal = await session.open_journal()
    found = session.find(phase.beginning.kind, phase.beginning.phase)
    if found is None:
        model = phase.model or session.tools.settings.model.model
        fence = Fence.new()
        known = network_words(session.tools.settings, phase.policy, phase.name)
        system = "\n\n".join((phase.system("\n".join(known), fence).strip(), fence.notice))
        body = {
            "profile": phase.profile.name,
            "engine": "claude-code",
            "scripted": session.tools.engine.name == "scripted",
            "model": model,
            "system": system,
            "agent": phase.name,
            "mark": fence.mark,
            **phase.beginning.body,
        }
        text = f"engine claude-code, model {model}"
        await journal.append(Draft(phase.beginning.kind, text, body=body, phase=phase.beginning.phase))
        reach("session.begun")
        return model, system, fence
    return str(found.body["model"]), str(found.body["system"]), Fence(str(found.body.get("mark", "")))


def _cli_phase(
    session: Session,
    phase: AgentPhase,
    program: Path,
    entries: list[Entry],
    model: str,
    system: str,
    prompt: str,
    fence: Fence,
    untrusted: bool,
) -> CliPhase:
    tools = session.tools
    settings = tools.settings
    policy = phase.policy

    def open_box(
        readable: tuple[Path, ...], writable: tuple[Path, ...], env: Mapping[str, str], limits: Limits | None
    ) -> Sandbox:
        return session.box(
            replace(
                policy,
                readable=(*policy.readable, *readable),
                writable=(*policy.writable, *writable),
                env={**policy.env, **env},
                limits=limits or policy.limits,
            ),
            phase.name,
        )

    async def mail() -> list[str]:
        if not (session.mail and phase.hears):
            return []
        session.mail = False
        journal = await session.open_journal()
        messages, _ = await journal.drain()
        return [fence.wrap(Origin.PERSON, message.text) for message in messages]

    assert session.journal is not None
    key = tools.engine.client.api_key
    schema = phase.profile.endings[0].schema.input_schema if phase.profile.name == "verifier" else None
    turns = sum(e.entry_type == EntryKind.MESSAGE and (e.body or {}).get("role") == "assistant" for e in entries)
    return CliPhase(
        program=program,
        settings=settings,
        journal=session.journal,
        entries=entries,
        open_box=open_box,
        folder=tools.state.session(session.session_id) / "claude-code" / phase.name,
        model=model,
        prompt=prompt,
        budget=Budget(phase.limits, settings.model.model_copy(update={"model": model}), spent(session.entries), turns),
        api_key=key or "",
        base_url=settings.model.base_url,
        system=system,
        schema=dict(schema) if schema is not None else None,
        say=tools.say,
        stopping=session.stopping,
        mail=mail,
        untrusted=untrusted,
    )


async def _read(phase: AgentPhase, result: CliResult) -> tuple[Outcome | None, str]:
    """The outcome in a result, or what to ask for."""
    if result.kind != "done":
        return Outcome(_KINDS.get(result.kind, OutcomeKind.ERROR), result.detail or result.text), ""
    if phase.profile.name != "verifier":
        return phase.profile.ending(result.text), phase.profile.nudge
    if not isinstance(result.structured, dict):
        return None, phase.profile.nudge
    try:
        return await phase.profile.endings[0].read(result.structured), ""
    except ToolRefused as error:
        return None, str(error)


def _of(phase: AgentPhase, entries: list[Entry]) -> list[Entry]:
    return [entry for entry in entries if entry.phase == phase.name]


def _early(entries: list[Entry]) -> list[str]:
    """What people said before the agent began."""
    texts: list[str] = []
    for entry in entries:
        if entry.entry_type == EntryKind.PHASE_START:
            break
        if entry.entry_type == EntryKind.NOTE and entry.raw_content:
            texts.append(entry.raw_content)
    return texts


def _replies(entries: list[Entry]) -> list[str]:
    """What a person said since the agent was blocked."""
    texts: list[str] = []
    for entry in entries:
        if entry.entry_type == EntryKind.OUTCOME:
            texts = []
        elif entry.entry_type == EntryKind.NOTE and entry.raw_content:
            texts.append(entry.raw_content)
    return texts if any(entry.entry_type == EntryKind.OUTCOME for entry in entries) else []

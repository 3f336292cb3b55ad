"""The conversation loop: ticket in, shell commands, one outcome out.

The model is driven by ``client.beta.messages.tool_runner(thread=False)`` with ``@beta_tool`` functions (in their async
form), the journal is an ``AuditLogDB``, tickets come from a ``TicketDB`` through the work queue, and one-line summaries
from a ``claude-haiku`` class model, in the background. The rule of the loop: a reply is durable before its tools run,
a result is durable before the next request, and whatever broke in between is rebuilt from the journal.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

from operator_core import clock
from operator_core.agent_lab.agent_run import AgentRun, Stopping, ticket_text
from operator_core.agent_lab.engine import TruncatedReply, explain, retry_after
from operator_core.agent_lab.fence import Origin
from operator_core.agent_lab.held import run_held
from operator_core.agent_lab.toolset import make_tools, run_tools
from operator_core.errors import LimitReached, OperatorError, UnknownPrice
from operator_core.model.entry import Draft, EntryKind
from operator_core.model.outcome import Outcome, OutcomeKind
from operator_core.model.ticket import Ticket

__all__ = ["converse", "process_ticket", "run_agent_loop"]

_CUT_OFF = "not executed: your reply was cut off by the length limit; make the call again, shorter"
_NOT_ASKED = "not executed: your turn ended without waiting for this call; make it again"
_MAX_CUT_OFFS = 3
_NO_ROOM = "model_context_window_exceeded"
_LONGEST_PAUSE_S = 60.0


async def process_ticket(run: AgentRun, ticket: Ticket) -> Outcome:
    """Work on a ticket; see :func:`converse`."""
    return await converse(run, run.conversation.fence.wrap(Origin.TICKET, ticket_text(ticket)))


async def converse(run: AgentRun, opening: str) -> Outcome:
    """Hold a conversation until the agent says how it ends, or a limit does.

    Called again after a crash it goes on where the journal ends; what was interrupted is answered first.

    Raises:
        ModelError: The model service refuses, or stayed unreachable for ``retry_deadline_s``.
        StoreError: The journal cannot be written, or the ticket belongs to another worker now.
        Stopping: The worker leaves, or a person is asked; the session goes on later or elsewhere.
    """
    conversation = run.conversation
    ended: Outcome | None = None
    try:
        async with asyncio.timeout(None if run.budget.seconds_left() == float("inf") else run.budget.seconds_left()):
            if not conversation.messages:
                await run.tell(opening)
            await run.gateway.recover(held=False)
            await run_held(run)
            if conversation.unanswered:  # interrupted before anybody reacted to the last reply
                ended = await _after(run, conversation.stop_reason, "")
            while ended is None and conversation.outcome is None:
                ended = await _until_pause(run)
    except TimeoutError:
        await run.gateway.recover()
        # The last word may have been written at the very moment.
        why = f"The limit of {run.budget.limits.wall_clock_s:g} s is reached."
        return conversation.outcome or Outcome(OutcomeKind.LIMIT, why)
    except (LimitReached, UnknownPrice) as error:
        return Outcome(OutcomeKind.LIMIT, str(error))
    return ended or conversation.outcome or Outcome(OutcomeKind.NO_OUTCOME, "")


async def _until_pause(run: AgentRun) -> Outcome | None:
    """One run of the SDK's runner, repeated while the service fails; None: go on."""
    started, attempt = clock.monotonic(), 0
    while True:
        turns = run.conversation.turns
        try:
            return await _after(run, *await _drive(run))
        except (OperatorError, Stopping):
            raise
        except Exception as error:
            meaning, again = explain(error, run.model)
            if await run.shortened(error):
                continue
            if run.conversation.turns > turns:
                started, attempt = clock.monotonic(), 0  # it worked in between: a new trouble, not the old one
            pause = retry_after(error) or random.uniform(0.5, 1.0) * min(0.5 * 2**attempt, _LONGEST_PAUSE_S)
            if not again or clock.monotonic() + pause - started > run.model.retry_deadline_s:
                raise meaning from error
            attempt += 1
            run.say(f"[Retry] {meaning} Trying again in {pause:.1f} s.")
            await run.write(Draft(EntryKind.RETRY, f"attempt {attempt}: {meaning}", meta={"pause_s": round(pause, 3)}))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(run.stopping.wait(), pause)


async def _drive(run: AgentRun) -> tuple[str | None, str]:
    """Let the runner take turns; returns the last stop reason and what was said."""
    await run.before_request()
    conversation, tools = run.conversation, make_tools(run.gateway, run.blocks, run.profile)
    run.budget.reserve(conversation.size + len(run.system))
    runner = run.client.beta.messages.tool_runner(
        model=run.model.model,
        max_tokens=run.max_tokens,
        system=run.system,
        tools=tools,
        messages=conversation.ready(),
        cache_control={"type": "ephemeral"},
        metadata={"user_id": run.journal.session_id},
        thread=False,
    )
    try:
        return await _turns(run, runner)
    finally:
        await runner.close()  # left to the end of the event loop, its generators fail there, loudly


async def _turns(run: AgentRun, runner: Any) -> tuple[str | None, str]:
    conversation = run.conversation
    stop: str | None = None
    detail = ""
    async for message in runner:
        stop = message.stop_reason
        if stop is None:
            raise TruncatedReply
        detail = getattr(message.stop_details, "explanation", None) or ""
        blocks = [b for b in message.content if b.type == "tool_use"]
        run.blocks.expect(blocks)
        await run.reply(message)
        if stop == "tool_use":
            run.cut_offs = 0
            answers = await run_tools(runner, blocks, run.profile)
            if run.gateway.failure is not None:
                raise run.gateway.failure
            for answer in answers["content"] if answers else []:
                asked = answer["tool_use_id"]
                if asked not in conversation.held and any(call["id"] == asked for call in conversation.open_calls):
                    await run.gateway.answer(dict(answer))
            if run.gateway.waiting is not None:
                raise run.gateway.waiting
            if conversation.outcome is not None or answers is None:
                break
            if run.stopping.is_set():
                raise Stopping
            # Editing this very dict is the one way to add something to a running runner's next request.
            answers["content"] += [{"type": "text", "text": note} for note in await run.gateway.notes()]
            if run.interrupted:
                break  # what was sent changes, so a new runner begins with it
        if stop in ("tool_use", "pause_turn"):  # else this was the last one: nothing more needs to fit
            run.budget.reserve(conversation.size + len(run.system))
    return stop, detail


async def _after(run: AgentRun, reason: str | None, detail: str) -> Outcome | None:
    """What a stop reason means once the runner has stopped."""
    if run.conversation.outcome is not None or reason in ("pause_turn", "compaction"):
        return None
    if reason == "tool_use" and not run.conversation.unanswered:
        return None
    if reason in ("max_tokens", _NO_ROOM):
        run.cut_offs += 1
        if run.cut_offs > _MAX_CUT_OFFS:
            return Outcome(OutcomeKind.LIMIT, f"The model's replies were cut off {run.cut_offs} times ({reason}).")
        await _refuse_calls(run, _CUT_OFF)
        if run.conversation.unanswered:
            await run.tell("Your reply was cut off by the length limit; go on.")
        if reason == _NO_ROOM and run.context is not None:
            await run.context.begin_anew(run)
        return None
    if reason in ("end_turn", "stop_sequence", "tool_use"):  # `tool_use` without a call asks for nothing
        await _refuse_calls(run, _NOT_ASKED)
        if (status := run.profile.ending(run.conversation.last_text)) is not None:
            return status
        if run.conversation.nudges and not run.profile.tireless:
            return run.profile.silent
        await run.tell(run.profile.nudge, nudge=True)
        return None
    said = f": {detail}" if detail else ""
    return Outcome(OutcomeKind.REFUSED, f"Session ended with stop_reason: {reason}{said}")


async def _refuse_calls(run: AgentRun, why: str) -> None:
    for call in list(run.conversation.open_calls):
        await run.gateway.answer({"type": "tool_result", "tool_use_id": call["id"], "content": why, "is_error": True})


def run_agent_loop(db_path: Path | str, audit_dir: Path | None = None) -> None:
    """Work on open tickets, one by one, until interrupted; blocks (rows A-061, A-063).

    Args:
        db_path: The store.
        audit_dir: Also write one ``SessionAuditor`` file per session there.
    """
    from operator_core.work.process import serve  # the seed's entry point lives here, the worker one floor up

    asyncio.run(serve(str(db_path), audit_dir=audit_dir, concurrency=1))

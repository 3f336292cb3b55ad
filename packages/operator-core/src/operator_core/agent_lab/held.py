"""Calls of the last reply that waited for a person's word, and those behind them: run from the journal, in order."""

from __future__ import annotations

from typing import Any, NamedTuple

from anthropic.lib.tools import ToolError

from operator_core.agent_lab.agent_run import AgentRun
from operator_core.agent_lab.toolset import JournaledTool, make_tools

__all__ = ["run_held"]


class _Block(NamedTuple):
    id: str
    input: Any


async def run_held(run: AgentRun) -> None:
    """Answer the calls that wait, until one of them has to wait on.

    Raises:
        AwaitingApproval: Nobody has answered yet.
        OperatorError: What a tool of a live reply would end the session with.
    """
    gateway, conversation = run.gateway, run.conversation
    calls = [block for block in conversation.open_calls if block["id"] in conversation.held]
    tools = {tool.name: tool for tool in make_tools(gateway, run.blocks, run.profile)} if calls else {}
    for call in calls:
        answer = await _answer(run, tools.get(call["name"]), call)
        if gateway.failure is not None:
            raise gateway.failure
        if gateway.waiting is not None:
            raise gateway.waiting
        if answer is not None:
            await gateway.answer(answer)


async def _answer(run: AgentRun, tool: JournaledTool | None, call: dict[str, Any]) -> dict[str, Any] | None:
    """Run one call; None if its result is in the journal, else what the model has to be told."""
    said = f"Error: Tool '{call['name']}' not found"
    if tool is not None:
        run.blocks.expect([_Block(call["id"], call["input"])])
        try:
            await tool.call(call["input"])
        except ToolError as error:
            said = str(error)
        else:
            return None
    return {"type": "tool_result", "tool_use_id": call["id"], "content": said, "is_error": True}

"""``discovery``: an autonomous agent says that it found something a person should see."""

from __future__ import annotations

from typing import Any

from anthropic import beta_async_tool

from operator_core.agent_lab.gateway import ToolGateway, text_of
from operator_core.agent_lab.toolbox.tool import ONLY_A_SCHEMA, Tool, check_names, sendable
from operator_core.model.entry import Draft, EntryKind
from operator_core.text import clip, first_line, printable

__all__ = ["DISCOVERY"]

_SAID = "Noted. People find it in the list of discoveries."


@beta_async_tool
async def discovery(title: str, description: str) -> str:
    """Report something that you found and that people should see; your work goes on.

    Args:
        title: One line.
        description: What it is, how you found it, and how somebody else can see it.
    """
    raise AssertionError(ONLY_A_SCHEMA)


async def _discover(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    check_names("discovery", arguments, ("title", "description"))
    title = first_line(sendable(text_of(arguments, "title"), "title", nul=True))
    description = sendable(text_of(arguments, "description"), "description", nul=True)
    await gateway.journal.check()
    result = Draft(
        EntryKind.TOOL_RESULT,
        _SAID,
        _SAID,
        tool_name="discovery",
        tool_use_id=tool_use_id,
        exit_code=0,
        body={"type": "tool_result", "tool_use_id": tool_use_id, "content": _SAID},
    )
    body = {"title": title, "description": description}
    # Both or neither: a discovery that is told twice was made twice.
    found = Draft(EntryKind.DISCOVERY, clip(printable(gateway.clean(title))), description, body=body)
    await gateway.record(result, found)
    return _SAID


DISCOVERY = Tool(discovery, _discover)

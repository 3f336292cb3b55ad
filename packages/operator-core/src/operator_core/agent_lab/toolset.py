"""The gateway's tools in the form in which the SDK's tool runner wants them."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from anthropic.lib.tools import BetaAsyncFunctionTool, ToolError

from operator_core.agent_lab.gateway import ToolGateway, ToolRefused
from operator_core.agent_lab.profiles import OutcomeTool, Profile
from operator_core.agent_lab.toolbox.tool import Tool
from operator_core.errors import OperatorError

__all__ = ["Blocks", "JournaledTool", "make_tools", "run_tools"]

# The runner logs a traceback for every exception of a tool; ours are journaled and told to the model already.
logging.getLogger("anthropic.lib.tools").setLevel(logging.CRITICAL)

_ALTERED = (
    "not executed: its arguments had half of a surrogate pair, which is no character; it is shown as \ufffd now. Make "
    "the call again with whole characters."
)


class JournaledTool(BetaAsyncFunctionTool[Any]):
    """A tool whose calls go through the gateway, with the id of the block that asked for them."""

    def __init__(
        self,
        schema: BetaAsyncFunctionTool[Any],
        run: Callable[[str, dict[str, Any]], Awaitable[Any]],
        id_of: Callable[[object], str],
        fail: Callable[[OperatorError], None],
    ) -> None:
        super().__init__(
            schema.func, name=schema.name, description=schema.description, input_schema=schema.input_schema
        )
        self._run, self._id_of, self._fail = run, id_of, fail

    async def call(self, input: object) -> str:
        """Run one call.

        Raises:
            ToolError: The arguments are not usable; the text tells the model what to change.
        """
        if not isinstance(input, dict):
            raise ToolError(f"{self.name} takes an object of named arguments.")
        try:
            result = await self._run(self._id_of(input), input)
        except ToolRefused as error:
            raise ToolError(str(error)) from None
        except OperatorError as error:
            # The runner would tell the model and go on; a store that cannot be written must end the session instead.
            self._fail(error)
            raise
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False)


class Blocks:
    """The ``tool_use`` blocks of the present reply; a call is matched to its block by the identity of its input."""

    def __init__(self) -> None:
        self._blocks: list[Any] = []

    def expect(self, blocks: Sequence[Any]) -> None:
        """A new reply came."""
        self._blocks = list(blocks)

    def id_of(self, arguments: object) -> str:
        """The id of the block with this very input object (equal inputs: in the order of the blocks)."""
        for test in (lambda b: b.input is arguments, lambda b: b.input == arguments):
            for block in self._blocks:
                if test(block):
                    self._blocks.remove(block)
                    return str(block.id)
        raise ToolRefused("This call does not belong to the present reply.")


def make_tools(gateway: ToolGateway, blocks: Blocks, profile: Profile) -> list[JournaledTool]:
    """The tools of a profile."""

    def fail(error: OperatorError) -> None:
        gateway.failure = error

    def ending(tool: OutcomeTool) -> Callable[[str, dict[str, Any]], Awaitable[Any]]:
        async def run(tool_use_id: str, arguments: dict[str, Any]) -> str:
            await gateway.admit(tool_use_id, tool.schema.name, arguments)
            return await gateway.end(tool_use_id, tool.schema.name, await tool.read(arguments), tool.said)

        return run

    def working(tool: Tool) -> Callable[[str, dict[str, Any]], Awaitable[Any]]:
        async def run(tool_use_id: str, arguments: dict[str, Any]) -> str:
            if tool_use_id in gateway.altered:
                raise ToolRefused(_ALTERED)
            await gateway.admit(tool_use_id, tool.schema.name, arguments)
            return await tool.run(gateway, tool_use_id, arguments)

        return run

    return [
        *(JournaledTool(tool.schema, working(tool), blocks.id_of, fail) for tool in profile.kit),
        *(JournaledTool(tool.schema, ending(tool), blocks.id_of, fail) for tool in profile.endings),
    ]


async def run_tools(runner: Any, blocks: Sequence[Any], profile: Profile) -> dict[str, Any] | None:
    """Run the calls of the present reply, once and in order; the user message that the runner sends next.

    A result may be edited in place, and a block may be appended: the runner sends this very object.
    """
    if {block.name for block in blocks} <= set(profile.tools):
        return cast("dict[str, Any] | None", await runner.generate_tool_call_response())
    with warnings.catch_warnings():
        # The runner warns its developer about a tool that the model made up; the model is told in the result.
        warnings.simplefilter("ignore", UserWarning)
        return cast("dict[str, Any] | None", await runner.generate_tool_call_response())

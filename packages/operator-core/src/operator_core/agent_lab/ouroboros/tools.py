"""Ouroboros' three tools: their schemas, a description for the system prompt, and a dispatch that never raises.

The rows are C-008 to C-026. Where the seed lets a model read every file of the machine and follow a link out of the
workspace with a write, this does not: reads go through the sandbox's table of mounts, so that ``file_read`` sees what
``cat`` sees, and writes through the :class:`~operator_core.safety.guard.WorkspaceGuard`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from operator_core.safety.layer import SafetyLayer

__all__ = [
    "READ_LIMIT",
    "ToolAnswer",
    "ToolCall",
    "call_tool",
    "define_tools",
    "dispatch_tool_call",
    "tool_descriptions",
]

READ_LIMIT = 32 << 20
"""Bytes of the largest file that is read as a whole."""


class ToolCall(NamedTuple):
    """What a model asks for.

    Attributes:
        call_id: Identity of the call.
        fn_name: Name of the tool.
        fn_arguments: Its arguments, decoded from JSON; whatever the model has sent.
    """

    call_id: str
    fn_name: str
    fn_arguments: Any


class ToolAnswer(NamedTuple):
    """What the model is told, and whether it is an error.

    The text of a file may look like an error; whoever needs to know asks ``is_error`` (defect D-86).

    Attributes:
        text: For the model.
        is_error: Whether the call failed; then the text is a JSON object with the one key ``error``.
    """

    text: str
    is_error: bool = False


class _Refused(Exception):
    """The call is not usable; the text tells the model why."""


def define_tools() -> list[dict[str, Any]]:
    """The three tools as the Messages API takes them: ``name``, ``description`` and ``input_schema`` (JSON Schema)."""
    return [
        {
            "name": "shell_exec",
            "description": (
                "Execute a shell command in the workspace directory. Returns a JSON object with stdout, stderr, "
                "exit_code (null after a timeout or a signal, 126 if the command was blocked) and timed_out."
            ),
            "input_schema": _schema(command="The shell command to execute"),
        },
        {
            "name": "file_read",
            "description": (
                "Read the contents of a file. The path may be relative to the workspace or absolute; read access is "
                "unrestricted, as far as shell commands can read."
            ),
            "input_schema": _schema(path="File path, relative to the workspace or absolute"),
        },
        {
            "name": "file_write",
            "description": (
                "Write content to a file within the workspace and create the directories on the way. Writes are "
                "restricted to the workspace directory. Returns a JSON object with written_bytes and path."
            ),
            "input_schema": _schema(
                path="File path, relative to the workspace root", content="Content to write; replaces what is there"
            ),
        },
    ]


def tool_descriptions() -> str:
    """All tools with their parameters, for people and for the system prompt; no JSON."""
    parts = []
    for tool in define_tools():
        parameters = "\n".join(
            f"  - {name} ({value['type']}, required): {value['description']}"
            for name, value in tool["input_schema"]["properties"].items()
        )
        parts.append(f"### {tool['name']}\n{tool['description']}\nParameters:\n{parameters}")
    return "\n\n".join(parts)


def _schema(**parameters: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {name: {"type": "string", "description": text} for name, text in parameters.items()},
        "required": list(parameters),
        "additionalProperties": False,
    }


async def dispatch_tool_call(call: ToolCall, safety: SafetyLayer, workspace: Path | str) -> str:
    """Do what a model asks for; the text for the model, whatever happens (row C-015).

    ``shell_exec`` gives the :class:`~operator_core.safety.layer.ExecResult` as JSON, ``file_read`` the text of the
    file, ``file_write`` the object ``{"written_bytes": N, "path": "..."}``, and every failure ``{"error": "..."}``.
    Nothing is shortened.

    Args:
        call: See :class:`ToolCall`; any object with these attributes will do.
        safety: Through which every command and every write goes.
        workspace: From where relative paths are read.
    """
    return (await call_tool(call, safety, workspace)).text


async def call_tool(call: ToolCall, safety: SafetyLayer, workspace: Path | str) -> ToolAnswer:
    """As :func:`dispatch_tool_call`; also says whether it failed."""
    try:
        name = call.fn_name
        if name == "shell_exec":
            result = await safety.execute(_text(call.fn_arguments, "shell_exec", "command"))
            return ToolAnswer(result.to_json())
        if name == "file_read":
            return ToolAnswer(await _file_read(_text(call.fn_arguments, "file_read", "path"), safety, workspace))
        if name == "file_write":
            path = _text(call.fn_arguments, "file_write", "path")
            content = _text(call.fn_arguments, "file_write", "content", empty=True)
            return ToolAnswer(_file_write(path, content, safety))
        return _error(f"Unknown tool: {name}")
    except _Refused as error:
        return _error(str(error))
    # Whatever went wrong is something that the model can react to; a cancellation is none of these.
    except Exception as error:
        return _error(f"{getattr(call, 'fn_name', 'tool')}: {str(error) or type(error).__name__}")


async def _file_read(path: str, safety: SafetyLayer, workspace: Path | str) -> str:
    sandbox = await safety.sandbox()
    view = await sandbox.read_file(str(Path(workspace, path)), limit=READ_LIMIT)
    if not view.complete:
        raise _Refused(f"file_read: '{path}' has {view.size} bytes; read parts of it with shell_exec, e.g. `head -c`")
    if b"\0" in view.data[:8192]:
        raise _Refused(f"file_read: '{path}' is a binary file of {view.size} bytes; look at it with shell_exec")
    return view.data.decode("utf-8", "replace")


def _file_write(path: str, content: str, safety: SafetyLayer) -> str:
    try:
        data = content.encode()
    except UnicodeEncodeError:
        raise _Refused("file_write: `content` holds half of a surrogate pair, which no file can hold as text") from None
    safety.guard.write(path, data)
    return json.dumps({"written_bytes": len(data), "path": path}, ensure_ascii=False)


def _text(arguments: Any, tool: str, name: str, *, empty: bool = False) -> str:
    value = arguments.get(name) if isinstance(arguments, Mapping) else None
    if not isinstance(value, str):
        raise _Refused(f"{tool}: the argument `{name}` is required and must be a string")
    if not value and not empty:
        raise _Refused(f"{tool}: the argument `{name}` is empty")
    return value


def _error(message: str) -> ToolAnswer:
    # Half characters would make the whole conversation unusable for the next request.
    safe = message.encode("utf-8", "replace").decode()
    return ToolAnswer(json.dumps({"error": safe}, ensure_ascii=False), is_error=True)

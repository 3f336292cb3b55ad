"""Files, as an agent's commands see them: read a part, write, and replace one exact piece of text."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from anthropic import beta_async_tool

from operator_core.agent_lab.calls import Started
from operator_core.agent_lab.gateway import ToolGateway, ToolOutput, ToolRefused, text_of
from operator_core.agent_lab.toolbox.tool import ONLY_A_SCHEMA, Tool, check_names, number_of, sendable
from operator_core.errors import SandboxError
from operator_core.redaction import MASK
from operator_core.text import clip, printable

__all__ = ["FILE_EDIT", "FILE_READ", "FILE_WRITE"]

_LARGEST = 16 << 20
_SHOWN = 48_000
_LINES = 2000


@beta_async_tool
async def file_read(path: str, offset: int = 1, limit: int = 2000) -> str:
    """Read a text file, as a command would see it.

    The answer is the text of the file. If it is longer than what one answer holds, a last line in brackets says which
    lines these are and where to go on.

    Args:
        path: Absolute, or relative to the directory of the shell.
        offset: First line, counted from 1.
        limit: How many lines.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def file_write(path: str, content: str) -> str:
    """Write a text file; what was there is replaced, and directories on the way are made.

    The answer is JSON: written_bytes and path. To change a part of a file, use file_edit.

    Args:
        path: Absolute, or relative to the directory of the shell; in the workspace.
        content: The whole content.
    """
    raise AssertionError(ONLY_A_SCHEMA)


@beta_async_tool
async def file_edit(path: str, old: str, new: str) -> str:
    """Replace one piece of text in a file.

    The answer is JSON: path, and the line where the change begins.

    Args:
        path: Absolute, or relative to the directory of the shell; in the workspace.
        old: The text to replace, exactly as it is in the file, with so much around it that it occurs only once.
        new: What takes its place; empty to remove it.
    """
    raise AssertionError(ONLY_A_SCHEMA)


async def _read(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    path = _path("file_read", arguments, ("path", "offset", "limit"))
    offset = int(number_of(arguments, "offset", 1, least=1))
    limit = int(number_of(arguments, "limit", _LINES, least=1))

    async def work() -> ToolOutput:
        data = await _bytes(gateway, path)
        # The whole before a part: half of a secret is not recognised any more.
        text = await asyncio.to_thread(gateway.clean, data.decode("utf-8", "replace"))
        shown, summary = _part(text, offset, limit)
        return ToolOutput(shown, shown, f"{_short(path)}: {summary}")

    return await _once(gateway, tool_use_id, "file_read", work)


async def _write(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    path = _path("file_write", arguments, ("path", "content"))
    content = arguments.get("content")
    if not isinstance(content, str):
        raise ToolRefused("`content` is required and must be a text; give an empty one for an empty file.")
    data = sendable(content, "content", nul=True).encode()

    async def work() -> ToolOutput:
        if MASK in content:
            await _keep_secrets(gateway, path)
        await gateway.sandbox.write_file(path, data)
        answer = {"written_bytes": len(data), "path": path}
        return ToolOutput(answer, answer, f"{len(data)} bytes written to {_short(path)}")

    return await _once(gateway, tool_use_id, "file_write", work)


async def _edit(gateway: ToolGateway, tool_use_id: str, arguments: dict[str, Any]) -> str:
    path = _path("file_edit", arguments, ("path", "old", "new"))
    old, new = (_piece(arguments, name) for name in ("old", "new"))
    if not old:
        raise ToolRefused("`old` is empty; give the text to replace, or use file_write for a new file.")
    if old == new:
        raise ToolRefused("`old` and `new` are the same, so there is nothing to change.")

    async def work() -> ToolOutput:
        data = await _bytes(gateway, path)
        at = _find(data, old.encode(), path)
        await gateway.sandbox.write_file(path, data[:at] + new.encode() + data[at + len(old.encode()) :])
        answer = {"path": path, "line": data.count(b"\n", 0, at) + 1}
        return ToolOutput(answer, answer, f"{_short(path)} changed at line {answer['line']}")

    return await _once(gateway, tool_use_id, "file_edit", work)


FILE_READ = Tool(file_read, _read)
FILE_WRITE = Tool(file_write, _write)
FILE_EDIT = Tool(file_edit, _edit)


async def _once(gateway: ToolGateway, tool_use_id: str, name: str, work: Callable[[], Awaitable[ToolOutput]]) -> str:
    async def refusing(started: Started, spool: Path) -> ToolOutput:
        try:
            return await work()
        except SandboxError as error:  # no such file, not writable: something for the agent to react to
            raise ToolRefused(gateway.clean(str(error))) from None

    return await gateway.once(tool_use_id, name, refusing)


def _path(tool: str, arguments: dict[str, Any], names: tuple[str, ...]) -> str:
    check_names(tool, arguments, names)
    return sendable(text_of(arguments, "path"), "path")


def _piece(arguments: dict[str, Any], name: str) -> str:
    value = arguments.get(name)
    if not isinstance(value, str):
        raise ToolRefused(f"`{name}` is required and must be a text.")
    return sendable(value, name, nul=True)


def _short(path: str) -> str:
    return clip(printable(path), 80)


async def _bytes(gateway: ToolGateway, path: str) -> bytes:
    view = await gateway.sandbox.read_file(path, limit=_LARGEST)
    if not view.complete:
        raise ToolRefused(
            f"{path} has {view.size} bytes, which is too much for the file tools; use the shell, e.g. `sed -n 1,200p`."
        )
    if b"\0" in view.data[:8192]:
        raise ToolRefused(f"{path} is a binary file of {view.size} bytes; look at it with the shell, e.g. `xxd`.")
    return view.data


async def _keep_secrets(gateway: ToolGateway, path: str) -> None:
    """Refuse to write the mask of a secret over the secret."""
    try:
        before = (await _bytes(gateway, path)).decode("utf-8", "replace")
    except (SandboxError, ToolRefused):
        return
    if MASK not in before and gateway.clean(before) != before:
        raise ToolRefused(
            f"`content` holds {MASK}, which is shown to you in place of a secret that is in {path}; writing it would "
            "destroy the secret. Use file_edit for the parts around it."
        )


def _part(text: str, offset: int, limit: int) -> tuple[str, str]:
    """Some lines of a text, with a note if there are more; and a summary."""
    lines = text.split("\n")
    # A line break ends a line; behind the last one there is no further line.
    count = len(lines) - (lines[-1] == "")
    if offset > max(1, count):
        raise ToolRefused(f"The file has {count} lines, so there is none at offset {offset}.")
    chosen: list[str] = []
    room = _SHOWN
    for line in lines[offset - 1 : offset - 1 + limit]:
        if chosen and room < len(line) + 1:
            break
        chosen.append(line)
        room -= len(line) + 1
    if room < 0 and len(chosen) == 1:
        note = f"[line {offset} of {count} has {len(chosen[0])} characters; these are the first {_SHOWN}]"
        return f"{chosen[0][:_SHOWN]}\n{note}", f"a part of line {offset} of {count}"
    last = offset - 1 + len(chosen)
    if last >= count:
        shown = "\n".join([*chosen, *([""] if last == count and len(lines) > count else [])])
        return (shown if offset > 1 or shown else text), f"lines {offset}-{min(last, count)} of {count}"
    note = f"[lines {offset}-{last} of {count}; go on with offset={last + 1}]"
    return "\n".join([*chosen, note]), f"lines {offset}-{last} of {count}"


def _find(data: bytes, old: bytes, path: str) -> int:
    """Where ``old`` is, if it is there exactly once.

    Raises:
        ToolRefused: It is not, or more than once; the text says what is near.
    """
    at = data.find(old)
    if at >= 0:
        places = [at]
        while len(places) < 6 and (at := data.find(old, at + 1)) >= 0:
            places.append(at)
        if len(places) == 1:
            return places[0]
        lines = ", ".join(str(data.count(b"\n", 0, place) + 1) for place in places[:5])
        more = " and more" if len(places) > 5 else ""
        raise ToolRefused(
            f"`old` occurs {len(places)} times in {path} (lines {lines}{more}); take in more of the text around it."
            if not more
            else f"`old` occurs often in {path} (lines {lines}{more}); take in more of the text around it."
        )
    if MASK.encode() in old:
        why = f"{MASK} stands for a secret that you cannot see; choose a piece without it"
    elif b"\r\n" in data and b"\n" in old and data.replace(b"\r\n", b"\n").count(old.replace(b"\r\n", b"\n")):
        why = "the file's lines end in CR LF; write `\\r\\n` where `old` has a line break"
    elif line := _but_for_blanks(data, old):
        why = f"there is one at line {line} that differs in blanks or tabs only; read it and copy it exactly"
    elif (first := _line_of(data, old)) is not None:
        why = f"its first line is at line {first}, but what follows differs; read it and copy it exactly"
    else:
        why = "read the file and copy the text exactly, without anything around it"
    raise ToolRefused(f"`old` is not in {path}: {why}.")


def _but_for_blanks(data: bytes, old: bytes) -> int | None:
    wanted = [b" ".join(line.split()) for line in old.strip().split(b"\n")]
    lines = [b" ".join(line.split()) for line in data.split(b"\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number : number + len(wanted)] == wanted:
            return number + 1
    return None


def _line_of(data: bytes, old: bytes) -> int | None:
    first = next((line for line in old.split(b"\n") if line.strip()), b"")
    at = data.find(first.strip()) if first.strip() else -1
    return None if at < 0 else data.count(b"\n", 0, at) + 1

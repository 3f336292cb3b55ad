"""What a tool of an MCP server answered, as the model, the journal and people are told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from operator_core.agent_lab.gateway import ToolOutput
from operator_core.agent_lab.summaries import summarize_text
from operator_core.text import clip, printable

if TYPE_CHECKING:
    from mcp.types import CallToolResult

__all__ = ["failed", "output_of"]

_SHOWN = 32 * 1024
_INLINE = 64 * 1024


def output_of(result: CallToolResult, spool: Path, clean: Callable[[str], str]) -> ToolOutput:
    """The result of a call.

    Args:
        spool: Folder for what is too long to be shown; it is made only then.
        clean: Takes secrets out, before anything is shortened.
    """
    text = clean(_text(result).encode("utf-8", "replace").decode())
    data = text.encode()
    files: dict[str, Path] = {}
    shown = text
    if len(data) > _SHOWN:
        spool.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = files["result"] = spool / "result"
        path.write_bytes(data)
        half = _SHOWN // 2
        head, tail = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
        marker = f"[... {len(data) - 2 * half} bytes omitted of {len(data)}; the whole is in {path} ...]"
        shown = f"{head}\n{marker}\n{tail}"
    whole = text if len(data) <= _INLINE else shown
    key = "error" if result.is_error else "result"
    summary = summarize_text(printable(shown)) or "an empty result"
    return ToolOutput(
        {key: shown},
        {key: whole},
        f"error: {summary}" if result.is_error else summary,
        1 if result.is_error else 0,
        files,
        shown,
    )


def failed(why: str, clean: Callable[[str], str]) -> ToolOutput:
    """A call without a result."""
    value = {"error": clip(printable(clean(why)), 2000)}
    return ToolOutput(value, value, summarize_text(value["error"]), 1)


def _text(result: CallToolResult) -> str:
    parts = [_part(block) for block in result.content]
    if not any(parts) and result.structured_content is not None:
        parts = [json.dumps(result.structured_content, ensure_ascii=False)]
    return "\n".join(parts)


def _part(block: Any) -> str:
    """One block of a result; of what is no text only what it is."""
    match block.type:
        case "text":
            return str(block.text)
        case "resource" if getattr(block.resource, "text", None) is not None:
            return str(block.resource.text)
        case "resource":
            size = len(getattr(block.resource, "blob", "")) * 3 // 4
            return (
                f"[a resource, about {size} bytes of {_plain(block.resource.mime_type)}: {_plain(block.resource.uri)}]"
            )
        case "resource_link":
            return f"[a link to a resource: {_plain(block.uri)}]"
        case kind:
            size = len(getattr(block, "data", "")) * 3 // 4
            return f"[{_plain(kind)}, about {size} bytes of {_plain(getattr(block, 'mime_type', None))}; not shown]"


def _plain(value: object) -> str:
    return clip(" ".join(printable(str(value or "an unknown kind")).split()), 200)

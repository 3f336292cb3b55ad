"""What is asked of the model service, and what its errors mean."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from operator_core.config import ModelSettings
from operator_core.errors import ModelError, ModelNotUsable, ModelRefused, ModelUnreachable
from operator_core.text import clip, first_line, printable

__all__ = ["blocks_of", "meaning_of", "reaches_out", "said_in"]

# Tools that the service runs itself, with a network that the sandbox does not have.
_SERVER_TOOLS = ("web_", "code_execution", "mcp")


def meaning_of(status: int, detail: str, settings: ModelSettings, base_url: str | None) -> ModelError:
    """What an error status of the model service means."""
    place = f" at {base_url}" if base_url else ""
    detail = clip(first_line(printable(detail)) or "no reason given", 300)
    if status in (401, 403):
        return ModelNotUsable(
            f"The model service{place} refused the key in {settings.api_key_env} ({status}: {detail}); set a valid one "
            "and start again."
        )
    if status == 404:
        return ModelNotUsable(f"The model service{place} does not know the model ({detail}); set [model] model.")
    if status in (408, 409, 429) or status >= 500:
        return ModelUnreachable(f"The model service{place} is overloaded or failing ({status}: {detail}).")
    return ModelRefused(f"The model service{place} refused the request ({status}: {detail}).")


def reaches_out(body: Mapping[str, Any]) -> bool:
    """Whether the service is asked to fetch or run something itself: a way around the sandbox's network."""
    if body.get("mcp_servers") or body.get("container"):
        return True
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list) else []:
        if isinstance(tool, dict) and str(tool.get("type") or "").startswith(_SERVER_TOOLS):
            return True
    return any(
        isinstance(source, dict) and source.get("type") == "url"
        for block in blocks_of(body.get("messages"))
        if (source := block.get("source")) is not None
    )


def blocks_of(value: Any) -> Iterator[dict[str, Any]]:
    """Every message and content block in order, those inside of tool results included."""
    rest = value[::-1] if isinstance(value, list) else []
    while rest:
        item = rest.pop()
        if isinstance(item, dict):
            yield item
            if isinstance(item.get("content"), list):
                rest += item["content"][::-1]


def said_in(data: bytes) -> str:
    """The service's own words in an error body."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return data.decode("utf-8", "replace")
    error = value.get("error") if isinstance(value, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return str(message or "")

"""The model service: one shared client per process, and what its errors mean."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from operator_core.config import ModelSettings
from operator_core.errors import ConfigError, ModelError, ModelNotUsable, ModelRefused, ModelUnreachable
from operator_core.text import clip, first_line

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

__all__ = ["Engine", "TruncatedReply", "explain", "open_engine", "retry_after", "unused_engine"]


class Engine(Protocol):
    """The model service. Tasks may be driven by the Claude Code CLI instead of our loop, through the same service."""

    name: str
    client: AsyncAnthropic

    async def close(self) -> None:
        """Give up its connections."""
        ...


class TruncatedReply(Exception):
    """The connection closed before the reply was complete, and nobody said so."""


class AnthropicEngine:
    """Any server that speaks the Anthropic Messages API."""

    def __init__(self, settings: ModelSettings, api_key: str) -> None:
        from anthropic import AsyncAnthropic

        self.name: str = settings.engine
        # The SDK's own retries obey Retry-After without a cap and do not cover broken streams: the loop retries itself.
        self.client = AsyncAnthropic(
            api_key=api_key, base_url=settings.base_url, max_retries=0, timeout=settings.request_timeout_s
        )

    async def close(self) -> None:
        """Give up its connections."""
        await self.client.close()


def open_engine(settings: ModelSettings, environ: Mapping[str, str] | None = None) -> Engine:
    """The engine of the configuration.

    Raises:
        ConfigError: There is no API key, or the scripted engine has no server to talk to.
    """
    env = os.environ if environ is None else environ
    if settings.engine == "scripted":
        if not settings.base_url:
            raise ConfigError(
                "The scripted engine needs the address of its server: set [model] base_url, "
                "e.g. from `python -m operator_core.scripted`."
            )
        return AnthropicEngine(settings, "scripted")
    key = env.get(settings.api_key_env, "")
    if not key:
        raise ConfigError(
            f"There is no API key: set the environment variable {settings.api_key_env}, "
            "or try Operator without one with `operator demo`."
        )
    return AnthropicEngine(settings, key)


def unused_engine(settings: ModelSettings) -> Engine:
    """An engine for work that calls no model; a call with it is refused by the service."""
    return AnthropicEngine(settings, "unused")


def explain(error: BaseException, settings: ModelSettings) -> tuple[ModelError, bool]:
    """What an exception of a model call means, and whether the same call may succeed later."""
    import anthropic
    import httpx2

    place = f" at {settings.base_url}" if settings.base_url else ""
    endpoint = f"endpoint {settings.base_url}" if settings.base_url else "service"
    detail = clip(first_line(_said(error)) or type(error).__name__, 300)
    if isinstance(error, anthropic.APIStatusError):
        kind = str(getattr(error, "type", "") or "")
        status = error.status_code
        if status in (408, 409, 429) or status >= 500 or kind in ("overloaded_error", "api_error", "timeout_error"):
            failing = f"The model service{place} is overloaded or failing ({status}: {detail})."
            return ModelUnreachable(failing), True
        if status in (401, 403):
            return ModelNotUsable(
                f"The model service{place} refused the key in {settings.api_key_env} ({status}: {detail}); set a "
                "valid one and start again."
            ), False
        if status == 404:
            return ModelNotUsable(
                f"The model service{place} does not know {settings.model!r} ({detail}); set [model] model."
            ), False
        return ModelRefused(f"The model service{place} refused the request ({status}: {detail})."), False
    if isinstance(error, (anthropic.APIResponseValidationError, json.JSONDecodeError, TruncatedReply)):
        return ModelUnreachable(
            f"The reply of the model service{place} was cut short or is not JSON; check what stands between."
        ), True
    if isinstance(error, (anthropic.APIConnectionError, httpx2.TransportError, TimeoutError)):
        cause = clip(first_line(str(error.__cause__ or error)) or type(error).__name__, 200)
        return ModelUnreachable(
            f"The model {endpoint} cannot be reached ({cause}); check [model] base_url and the network."
        ), True
    return ModelRefused(f"The model client failed ({type(error).__name__}: {detail})."), False


def _said(error: BaseException) -> str:
    """What the service itself said, without the SDK's wrapping."""
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, dict) else None
    said = inner.get("message") if isinstance(inner, dict) else None
    return str(said or getattr(error, "message", None) or error)


def retry_after(error: BaseException) -> float | None:
    """Seconds that the service asked us to wait, if it did."""
    headers = getattr(getattr(error, "response", None), "headers", None)
    try:
        return max(0.0, float(headers["retry-after"])) if headers is not None else None
    except (KeyError, ValueError):
        return None

"""Posts cards to a workflow webhook of Teams.

The address of such a webhook is a secret: whoever has it can post. It is in no log, no error and no ``repr``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from operator_core.clock import Clock
from operator_core.errors import ConfigError
from operator_core.notify.outbox import Delivered, Later, Never, Outcome
from operator_dataverse import __version__
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.teams.check import problems_of
from operator_dataverse.teams.elements import Card

if TYPE_CHECKING:
    import httpx2

__all__ = ["TeamsWebhook", "envelope", "webhook_of"]

_LONGEST_PAUSE_S = 3600.0
_MOST_READ = 4096


class TeamsWebhook:
    """One webhook.

    Args:
        url: Its address: ``https``, or ``http`` on this machine.
        timeout_s: Limit of one post, in seconds.
        clock: For pauses that the service names by a date.

    Raises:
        ConfigError: The address is none.
    """

    def __init__(self, url: str, *, timeout_s: float = 30.0, clock: Clock | None = None) -> None:
        if not _usable(url):
            raise ConfigError(
                "The address of the Teams webhook is not usable; copy it whole from the workflow, it begins with https."
            )
        self._url = url.strip()
        self._timeout_s = timeout_s
        self._clock = clock or Clock()

    async def post(self, card: Card) -> Outcome:
        """Post one card.

        Returns:
            ``Delivered``; ``Later`` when Teams is not there or asks for a pause (after a lost answer the card may then
            appear twice, because a webhook cannot be asked what it did); ``Never`` when it refuses for good.
        """
        import httpx2

        if problems := problems_of(card):
            return Never(f"This card is none that Teams shows: {problems[0]}.")
        body = json.dumps(envelope(card), ensure_ascii=False, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json", "User-Agent": f"operator-dataverse/{__version__}"}
        try:
            async with (
                # The client limits each step; an answer that comes drop by drop must end as well.
                asyncio.timeout(2 * self._timeout_s),
                httpx2.AsyncClient(timeout=self._timeout_s, follow_redirects=False) as client,
                client.stream("POST", self._url, content=body, headers=headers) as reply,
            ):
                return await self._judged(reply)
        except (httpx2.HTTPError, TimeoutError) as error:
            return Later(f"Teams got no card ({type(error).__name__}); check the network.")
        except httpx2.InvalidURL:
            return Never("The address of the Teams webhook is not usable; copy it again from the workflow.")

    async def _judged(self, reply: httpx2.Response) -> Outcome:
        status = reply.status_code
        if status in (408, 425, 429) or status >= 500:
            asked = _pause(reply.headers.get("Retry-After"), self._clock)
            return Later(f"Teams answers with HTTP {status} for now.", asked)
        if 200 <= status < 300:
            said = b""
            async for part in reply.aiter_bytes():
                said += part
                if len(said) > _MOST_READ:
                    break
            # The older connectors answer 200, and say in the text what went wrong.
            if b"HTTP error 429" in said:
                return Later("Teams answers that there were too many cards.")
            if b"HTTP error 4" in said or b"HTTP error 5" in said:
                return Never("Teams answers that the card could not be delivered; post one by hand to see why.")
            return Delivered()
        if status == 413:
            return Never("Teams answers that the card is too large.")
        if status in (401, 403, 404, 410) or 300 <= status < 400:
            return Never(
                f"The Teams webhook is gone or closed to us (HTTP {status}); make a new one and give its address."
            )
        return Never(f"Teams refuses the card (HTTP {status}).")


def webhook_of(settings: DataverseSettings) -> TeamsWebhook | None:
    """The webhook that is configured; None: there is none, and no cards are posted by the worker.

    Raises:
        ConfigError: Its address is none.
    """
    url = settings.secret(settings.teams_webhook_env)
    return None if url is None else TeamsWebhook(url, timeout_s=settings.timeout_s)


def envelope(card: Card) -> dict[str, object]:
    """The message around a card, as workflow webhooks want it."""
    attachment = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [attachment]}


def _usable(url: str) -> bool:
    try:
        parts = urlsplit(url.strip())
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        return False
    if not host or parts.username or parts.password or any(c <= " " for c in url.strip()):
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and _is_here(host))


def _is_here(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _pause(value: str | None, clock: Clock) -> float | None:
    if not value:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(value) - clock.now()).total_seconds()
        except (ValueError, TypeError):
            return None
    return min(max(0.0, seconds), _LONGEST_PAUSE_S) if seconds == seconds else None

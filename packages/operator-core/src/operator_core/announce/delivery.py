"""Carrying one letter to its channel."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pydantic import ValidationError

from operator_core import __version__, clock
from operator_core.announce.by_apprise import send
from operator_core.announce.digest_words import digest_words
from operator_core.announce.news import News
from operator_core.announce.projection import CHANNELS
from operator_core.announce.secret import access_of
from operator_core.announce.webhook import post
from operator_core.announce.words import Words, address, crowd_words, ticket_words
from operator_core.api.approval_links import ApprovalLinks
from operator_core.config import Settings
from operator_core.db.approvals import Approvals
from operator_core.db.engine import Database
from operator_core.errors import ConfigError, NotFound
from operator_core.model.digest import Digest
from operator_core.model.notification import Channel
from operator_core.notify.outbox import Delivered, Later, Letter, Never, Outcome

__all__ = ["Delivery", "base_url_of"]


def base_url_of(settings: Settings) -> str | None:
    """How people reach the console; None: nobody knows, because the port is any free one."""
    web = settings.web
    if web.public_url is not None:
        return web.public_url.rstrip("/")
    host = f"[{web.host}]" if ":" in web.host else web.host
    return f"http://{host}:{web.port}" if web.port else None


class Delivery:
    """Carries letters to the channels of these settings.

    Args:
        settings: Channels.
        database: An open store.
        base_url: How people reach the console; None: messages have no links.
    """

    def __init__(self, settings: Settings, database: Database, *, base_url: str | None = None) -> None:
        self._settings = settings
        self._channels = {channel.name: channel for channel in settings.notify.channel}
        self._database = database
        self._base = base_url

    async def __call__(self, letter: Letter) -> Outcome:
        """Carry one letter out; it may arrive twice, when an earlier attempt broke off."""
        channel = self._channels.get(letter.channel.removeprefix(CHANNELS))
        if channel is None:
            return Never("there is no such channel any more")
        try:
            outcome = await self._carry(channel, letter)
        except ConfigError as error:
            # A person may set it right, and nothing is lost until then.
            outcome = Later(str(error))
        if isinstance(outcome, Later) and _too_old(letter, channel):
            return Never(f"it could not be delivered for {channel.give_up_hours:g} hours: {outcome.why}")
        return outcome

    async def send_now(self, channel: Channel, kind: str, body: Mapping[str, Any]) -> Outcome:
        """Send something at once, without the outbox.

        Raises:
            ConfigError: The channel is not usable.
        """
        return await self._carry(channel, Letter(0, f"{CHANNELS}{channel.name}", kind, dict(body), 1))

    async def _carry(self, channel: Channel, letter: Letter) -> Outcome:
        if not await self._still_matters(letter):
            return Delivered()
        access = access_of(channel, self._database.redactor)
        link = await self._link(channel, letter)
        try:
            if channel.kind == "webhook":
                return await post(access.url, access.key, str(letter.body["id"]), self._message(letter, link))
            return await send(access.url, self._words(letter, link))
        except (ValidationError, KeyError, ValueError) as error:
            return Never(f"another version of Operator wrote it ({type(error).__name__})")

    async def _still_matters(self, letter: Letter) -> bool:
        """A question that somebody has answered meanwhile is asked nobody any more."""
        approval = letter.body.get("approval_id") if letter.kind == "ticket" else None
        if approval is None:
            return True
        try:
            return (await Approvals(self._database).get(str(approval))).state == "pending"
        except NotFound:
            return False

    async def _link(self, channel: Channel, letter: Letter) -> str | None:
        """A link that answers the question of the letter; of each attempt its own, because none is kept."""
        approval = letter.body.get("approval_id") if letter.kind == "ticket" else None
        if approval is None or self._base is None or not channel.approval_links:
            return None
        return await ApprovalLinks(self._database).make(str(approval), self._base, channel.name)

    def _words(self, letter: Letter, link: str | None) -> Words:
        match letter.kind:
            case "ticket":
                return ticket_words(News.of(letter.body), self._base, link)
            case "crowd":
                return crowd_words(letter.body, self._base)
            case "digest":
                return digest_words(Digest.of(letter.body["digest"]), self._base)
            case "test":
                return Words("Operator: a test", f"This channel works.\n{self._base or ''}".strip())
        raise ValueError(letter.kind)

    def _message(self, letter: Letter, link: str | None) -> dict[str, Any]:
        """What a program is told; its texts are exact, and as little to be trusted."""
        message: dict[str, Any] = {"type": letter.kind, "sender": f"operator/{__version__}", "sent_at": clock.iso()}
        match letter.kind:
            case "ticket":
                news = News.of(letter.body)
                data = news.to_json()
                data["url"] = address(self._base, news.ticket_id) if self._base else None
                data["approval_url"] = link
                return {**message, "type": f"ticket.{news.state.value}", "ticket": data}
            case "digest":
                return {**message, "digest": Digest.of(letter.body["digest"]).model_dump(mode="json")}
            case "test":
                return message
        raise ValueError(letter.kind)


def _too_old(letter: Letter, channel: Channel) -> bool:
    """Since it was put, or, of news, since it happened: a message is not told for ever."""
    put = letter.body.get("put_at") or letter.body.get("at")
    return put is not None and clock.now() - clock.parse_iso(put) > timedelta(hours=channel.give_up_hours)

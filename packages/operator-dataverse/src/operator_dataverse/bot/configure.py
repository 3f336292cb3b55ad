"""Gives a bot of Copilot Studio its topic (row B-044)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from operator_core.errors import ConfigError
from operator_dataverse.bot.topic import topic_text
from operator_dataverse.client import Conflict, Dataverse, Row, field
from operator_dataverse.errors import DataverseError, Refused

__all__ = ["Step", "configure_bot"]

_TABLE = "botcomponents"
_TOPIC = 9
_OFF = {"statecode": 1, "statuscode": 2}


class Step(NamedTuple):
    """One change.

    Attributes:
        topic: Schema name of the topic.
        what: What it is to be.
        outcome: ``changed`` also for what would be changed.
    """

    topic: str
    what: str
    outcome: Literal["unchanged", "changed", "missing"]


async def configure_bot(dataverse: Dataverse, bot: str, flow_id: str, *, dry_run: bool = False) -> list[Step]:
    """Put the topic into the bot's fallback, and switch its answers from the web off. A person publishes the bot.

    Args:
        dataverse: The organisation.
        bot: Schema name of the bot, e.g. ``cr123_helper``.
        flow_id: Of the flow ``SendMessage``.
        dry_run: Change nothing.

    Raises:
        Refused: The bot has no fallback topic.
        ConfigError: ``bot`` is no schema name, or ``flow_id`` is no id.
        DataverseError: Somebody else changes the bot at the same time.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{1,99}", bot):
        raise ConfigError("A bot is named by its schema name, such as cr123_helper; its details show it.")
    text = topic_text(flow_id)
    fallback = await _topic(dataverse, f"{bot}.topic.Fallback")
    if fallback is None:
        raise Refused(f"There is no topic {bot}.topic.Fallback; check the schema name of the bot.", status=404)
    steps = [await _set(dataverse, fallback, {"data": text}, "asks the flow SendMessage", dry_run)]
    # It would answer from the web before the fallback has its turn.
    boosting = await _topic(dataverse, f"{bot}.topic.Search")
    if boosting is None:
        steps.append(Step(f"{bot}.topic.Search", "is switched off", "missing"))
    else:
        steps.append(await _set(dataverse, boosting, _OFF, "is switched off", dry_run))
    return steps


async def _topic(dataverse: Dataverse, schema_name: str) -> Row | None:
    where = (field("schemaname") == schema_name) & (field("componenttype") == _TOPIC)
    return await dataverse.first(_TABLE, where)


async def _set(dataverse: Dataverse, row: Row, values: Mapping[str, Any], what: str, dry_run: bool) -> Step:
    name = str(row.get("schemaname"))
    if all(row.get(key) == value for key, value in values.items()):
        return Step(name, what, "unchanged")
    if not dry_run and isinstance(await dataverse.update(_TABLE, row.id, values, etag=row.etag or ""), Conflict):
        raise DataverseError(f"Somebody else changes the topic {name} just now; look at it and try again.")
    return Step(name, what, "changed")

"""The bot of Copilot Studio: the topic that hands everything said to it to the relay flow."""

from __future__ import annotations

from operator_dataverse.bot.topic import topic_problems, topic_text

__all__ = ["topic_problems", "topic_text"]

"""Signed webhooks of anything that can send JSON, read as the configuration says."""

from __future__ import annotations

from collections.abc import Mapping

from operator_core import clock
from operator_core.config import Settings
from operator_core.errors import IntakeRefused
from operator_core.intake.items import (
    Asked,
    Delivery,
    Firing,
    Ignored,
    Item,
    Observed,
    find_check,
    harmless_labels,
    of_severity,
    one_line,
    short_key,
    too_many,
)
from operator_core.model.intake import IncidentWords, Intake, TaskWords, WebhookRules
from operator_core.model.json_path import lookup
from operator_core.model.task import MAX_PROMPT
from operator_core.model.template import Template
from operator_core.model.ticket import InvariantViolation
from operator_core.text import clip

__all__ = ["read_webhook"]

_MESSAGE = 20_000


def read_webhook(intake: Intake, rules: WebhookRules, document: object, settings: Settings, signature: str) -> Delivery:
    """What the messages in a document say.

    Args:
        signature: It covers the time and every byte, so that the same one is the same request, sent again by whom
            ever.

    Raises:
        IntakeRefused: One of them lacks what its texts need; then none is taken.
    """
    messages = [document] if rules.each is None else _list(document, rules.each)
    too_many(len(messages), "send them in several")
    items = tuple(_item(intake, rules, message, settings) for message in messages)
    return Delivery(items, delivery_id=signature, refuse_replay=True)


def _list(document: object, path: str) -> list[object]:
    try:
        found = lookup(document, path)
    except LookupError:
        found = None
    if not isinstance(found, list):
        raise IntakeRefused(422, f"There is no list at {path!r} of the document; nothing of it was taken.")
    return found


def _item(intake: Intake, rules: WebhookRules, message: object, settings: Settings) -> Item:
    try:
        key_words = rules.incident.key if rules.incident else rules.task.key if rules.task else ""
        if rules.observe and _fits(rules.observe, message):
            return Observed(_key(rules, message, key_words), "reported as over")
        if not _fits(rules.when, message):
            return Ignored("it does not meet `when`")
        if rules.incident is not None:
            return _firing(intake, rules, rules.incident, message, settings)
        assert rules.task is not None
        return _asked(rules, rules.task, message)
    except LookupError as error:
        raise IntakeRefused(
            422, f"The message lacks what is needed of it: {one_line(str(error.args[0]))}; nothing of it was taken."
        ) from None


def _fits(conditions: Mapping[str, tuple[str, ...]], message: object) -> bool:
    return all(_text(f"{{{path}|}}", message) in allowed for path, allowed in conditions.items())


def _text(words: str, message: object) -> str:
    return Template.parse(words).fill(message)


def _key(rules: WebhookRules, message: object, key_words: str) -> str:
    """Of an incident without a key of its own, its name."""
    key = _text(key_words, message)
    if not key.strip():
        if rules.incident is None:
            raise LookupError("its key is empty")
        key = "name:" + _name(rules.incident, message)
    return short_key(key)


def _name(words: IncidentWords, message: object) -> str:
    name = one_line(_text(words.name, message), 120)
    if not name:
        raise LookupError("its name is empty")
    return name


def _labels(words: Mapping[str, str], message: object) -> dict[str, str]:
    return harmless_labels({name: _text(value, message) for name, value in words.items()})


def _firing(intake: Intake, rules: WebhookRules, words: IncidentWords, message: object, settings: Settings) -> Firing:
    now = clock.now()
    name, key = _name(words, message), _key(rules, message, words.key)
    told = _text(words.severity, message)
    severity = of_severity(told, words.severities)
    wanted = _text(words.invariant, message).strip()
    check = find_check(settings, wanted) if wanted else None
    notes = []
    if wanted and check is None:
        notes.append(
            f"The invariant {one_line(wanted, 80)!r} is not configured, so that no repair of it can be proved."
        )
    if severity is None:
        notes.append(f"The severity {one_line(told, 80)!r} is not known; it was taken for a warning.")
    return Firing(
        key,
        InvariantViolation(
            name,
            clip(_text(words.message, message), _MESSAGE) or name,
            now,
            now,
            store_id=f"{intake.name}/{key}",
            severity=severity or "warning",
        ),
        context=(check.subject.context or None) if check else None,
        check=check,
        labels=_labels(words.labels, message),
        note=" ".join(notes) or None,
    )


def _asked(rules: WebhookRules, words: TaskWords, message: object) -> Asked:
    prompt = _text(words.prompt, message)
    if not prompt.strip():
        raise LookupError("its prompt is empty")
    return Asked(
        _key(rules, message, words.key) if words.key else None,
        clip(prompt, MAX_PROMPT),
        words,
        name=one_line(_text(words.name, message), 80) or None,
        repo=words.repo,
        ref=_text(words.ref, message).strip() or None,
        labels=_labels(words.labels, message),
    )

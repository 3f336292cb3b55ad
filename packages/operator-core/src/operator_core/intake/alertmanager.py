"""Webhooks of Alertmanager (payload version 4), and of what speaks like it (Grafana, vmalert)."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from operator_core import clock
from operator_core.config import Settings
from operator_core.errors import IntakeRefused
from operator_core.intake.items import (
    Delivery,
    Firing,
    Item,
    Observed,
    find_check,
    harmless_labels,
    missing_labels,
    of_severity,
    one_line,
    short_key,
    too_many,
)
from operator_core.model.entry import canonical
from operator_core.model.intake import AlertRules, Intake
from operator_core.model.ticket import InvariantViolation
from operator_core.text import clip

__all__ = ["read_alerts"]

_FINGERPRINT = re.compile(r"[0-9A-Za-z_-]{1,128}\Z")
_MESSAGE = 8000
_VERSIONS = ("4", "1")  # Grafana counts from 1 again, and sends the same
_OLDEST = datetime(1971, 1, 1, tzinfo=UTC)


class _Alert(BaseModel):
    model_config = ConfigDict(strict=True)

    status: str = Field(pattern=r"^(firing|resolved)$")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    startsAt: str = Field(max_length=64)
    endsAt: str = Field(default="", max_length=64)
    generatorURL: str = ""
    fingerprint: str = ""


class _Group(BaseModel):
    model_config = ConfigDict(strict=True)

    version: str | int | None = None
    groupKey: str | None = None
    truncatedAlerts: int = 0
    receiver: str = ""
    externalURL: str = ""
    alerts: list[_Alert]


def read_alerts(intake: Intake, document: Any, settings: Settings) -> Delivery:
    """What a group of alerts says.

    Raises:
        IntakeRefused: It is not of that form; then nothing of the group is taken.
    """
    if isinstance(document, dict) and isinstance(document.get("alerts"), list):
        too_many(len(document["alerts"]), "set `max_alerts` of Alertmanager's webhook, or group by more labels")
    try:
        group = _Group.model_validate(document)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the body"
        raise IntakeRefused(
            422,
            f"This is no webhook of Alertmanager ({one_line(where, 80)}: {one_line(first['msg'], 120)}); nothing of it "
            "was taken.",
        ) from None
    if str(group.version or "4") not in _VERSIONS:
        raise IntakeRefused(422, f"Version {one_line(str(group.version), 40)!r} of the payload is not known, only 4.")
    rules = intake.alertmanager or AlertRules()
    now = clock.now()
    batch = None if group.groupKey is None else short_key(f"{intake.name}:{group.groupKey}")
    items: dict[str, Item] = {}
    for alert in group.alerts:
        item = _item(intake, rules, group, alert, settings, now)
        # One alert twice in a group: what still fires counts.
        if not isinstance(items.get(item.key or ""), Firing):
            items[item.key or ""] = item
    note = None
    if group.truncatedAlerts > 0:
        note = f"{group.truncatedAlerts} more alert(s) of the group were left out by the sender."
    return Delivery(tuple(items.values()), batch_key=batch, note=note)


def _item(
    intake: Intake, rules: AlertRules, group: _Group, alert: _Alert, settings: Settings, now: datetime
) -> Firing | Observed:
    began = _moment(alert.startsAt, now)
    key = _fingerprint(alert)
    if alert.status == "resolved":
        # Go's zero time is no time.
        ended = "" if alert.endsAt.startswith("0001-01-01T") else alert.endsAt
        at = clock.iso(_moment(ended, now)) if ended else None
        return Observed(key, "resolved", f"{clock.iso(began)} {at or ''}".strip(), {"ended_at": at or "unknown"})
    name = one_line(alert.labels.get("alertname", ""), 120) or "alert"
    wanted = alert.labels.get(rules.invariant_label) or alert.annotations.get(rules.invariant_label) or ""
    check = find_check(settings, wanted) if wanted else None
    notes = [missing_labels(alert.labels)]
    if wanted and check is None:
        notes.append(
            f"The invariant {one_line(wanted, 80)!r} is not configured, so that no repair of it can be proved."
        )
    return Firing(
        key,
        InvariantViolation(
            name,
            _message(alert, name),
            began,
            now,
            store_id=f"{intake.name}/{key}",
            severity=of_severity(alert.labels.get(rules.severity_label, ""), rules.severity) or rules.default_severity,
        ),
        episode=clock.iso(began),
        snapshot={"alert": _snapshot(group, alert)},
        context=(check.subject.context or None) if check else None,
        check=check,
        labels=harmless_labels(alert.labels),
        note=" ".join(note for note in notes if note) or None,
    )


def _fingerprint(alert: _Alert) -> str:
    """Alertmanager's own, or a hash of what it is computed from."""
    if _FINGERPRINT.match(alert.fingerprint):
        return alert.fingerprint
    return "labels-" + hashlib.sha256(canonical(alert.labels).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _message(alert: _Alert, name: str) -> str:
    told = [alert.annotations.get(key, "").strip() for key in ("summary", "title", "description", "message")]
    lines = list(dict.fromkeys(text for text in told if text)) or [f"The alert {name} is firing."]
    if runbook := alert.annotations.get("runbook_url", "").strip():
        lines.append(f"Runbook: {one_line(runbook, 500)}")
    return clip("\n".join(lines), _MESSAGE)


def _snapshot(group: _Group, alert: _Alert) -> dict[str, Any]:
    return {
        "starts_at": one_line(alert.startsAt, 64),
        "fingerprint": one_line(alert.fingerprint, 128),
        "labels": harmless_labels(alert.labels),
        **({"labels_left_out": left_out} if (left_out := missing_labels(alert.labels)) else {}),
        "annotations": _clipped(alert.annotations),
        "generator_url": clip(alert.generatorURL, 1000),
        "alertmanager": clip(group.externalURL, 1000),
        "receiver": one_line(group.receiver, 200),
    }


def _clipped(annotations: Mapping[str, str]) -> dict[str, str]:
    return {one_line(key, 128): clip(value, 2000) for key, value in list(annotations.items())[:32]}


def _moment(text: str, now: datetime) -> datetime:
    """A time of the sender, whose clock may go wrong: never in the future."""
    try:
        moment = clock.parse_iso(text)
    except (ValueError, OverflowError):
        raise IntakeRefused(
            422, f"{one_line(text, 64)!r} is no time such as 2026-01-28T10:30:45Z; nothing of it was taken."
        ) from None
    return min(max(moment, _OLDEST), now)

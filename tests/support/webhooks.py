"""Webhooks as their senders make them, with the sample payloads of ``examples/intake``."""

from __future__ import annotations

import copy
import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

from operator_core import clock
from operator_core.intake.signature import sign

__all__ = ["SAMPLES", "SECRET", "SECRETS", "alerts", "bearer", "from_github", "sample", "signed"]

SAMPLES = Path(__file__).parents[2] / "examples" / "intake"
SECRET = "between-you-and-me"
SECRETS = {"ALERTS_SECRET": SECRET, "BUILDS_SECRET": SECRET, "GITHUB_WEBHOOK_SECRET": SECRET}


def sample(name: str) -> Any:
    """A sample payload."""
    return json.loads((SAMPLES / f"{name}.json").read_text())


def alerts(*changes: dict[str, Any], **group: Any) -> bytes:
    """The sample group of Alertmanager with one alert for each of the changes (``labels`` are added to its own)."""
    document = sample("alertmanager-firing")
    made = []
    for change in changes or ({},):
        alert = copy.deepcopy(document["alerts"][0])
        alert["labels"] |= change.get("labels", {})
        made.append(alert | {key: value for key, value in change.items() if key != "labels"})
    return json.dumps({**document, **group, "alerts": made}).encode()


def bearer(secret: str = SECRET) -> dict[str, str]:
    """The header of Alertmanager's ``authorization``."""
    return {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}


def signed(body: bytes, *, secret: str = SECRET, ago_s: float = 0.0) -> dict[str, str]:
    """The headers of a signed webhook."""
    timestamp = int(clock.now().timestamp() - ago_s)
    return {
        "X-Operator-Timestamp": str(timestamp),
        "X-Operator-Signature": sign(secret.encode(), timestamp, body),
        "Content-Type": "application/json",
    }


def from_github(
    body: bytes, *, event: str = "issues", delivery: str | None = None, secret: str = SECRET
) -> dict[str, str]:
    """The headers of a webhook of GitHub."""
    return {
        "X-GitHub-Event": event,
        "X-GitHub-Delivery": delivery or clock.new_id(),
        "X-Hub-Signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
        "Content-Type": "application/json",
    }

"""The program that speaks to one service, once: an order on standard input, an answer on standard output.

It ends by itself at its deadline, also when the server that started it is gone.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from typing import Any

__all__ = ["main"]

_MEMORY_BYTES = 1 << 30
_WHY_LENGTH = 500


def main() -> None:
    """Read the order, carry it out, answer."""
    order = json.load(sys.stdin)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, float(order["deadline_s"]))
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    # What apprise itself prints is no answer.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    json.dump(_send(order), out)
    out.flush()
    os._exit(0)  # without waiting for threads that still speak to somebody


def _send(order: dict[str, Any]) -> dict[str, Any]:
    from apprise import Apprise, AppriseAsset, NotifyFormat, PersistentStoreMode

    asset = AppriseAsset(
        app_id="Operator",
        app_desc="Operator",
        app_url="",
        image_url_mask="",
        image_path_mask="",
        async_mode=False,
        http_redirects=False,
        interpret_emojis=False,
        interpret_escapes=False,
        pgp_autogen=False,
        pem_autogen=False,
        storage_mode=PersistentStoreMode.MEMORY,
        allow_templates=False,
        service_timeout=float(order["deadline_s"]),
    )
    services = Apprise(asset=asset)
    if not services.add(order["url"]):
        return {"ok": False, "why": "its address is not complete; compare it with the documentation of apprise"}
    done = services.notify(
        title=order["title"], body=order["body"], body_format=NotifyFormat.TEXT, interpret_escapes=False
    )
    lines = [entry.message for service in done for attempt in service for entry in attempt]
    return {"ok": bool(done), "why": " ".join(" ".join(lines[-1:]).split())[:_WHY_LENGTH]}


if __name__ == "__main__":
    main()

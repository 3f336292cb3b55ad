"""The digest as people read it."""

from __future__ import annotations

from collections.abc import Sequence

from operator_core.announce.neutral import neutral
from operator_core.announce.words import Words, address
from operator_core.model.digest import Digest, Line

__all__ = ["digest_words"]


def digest_words(digest: Digest, base: str | None) -> Words:
    """A title and one page, what needs somebody first; without any markup."""
    since, until = (f"{moment:%Y-%m-%d %H:%M}" for moment in (digest.since, digest.until))
    title = f"Operator: {_title(digest)}"
    blocks = [
        f"From {since} to {until} UTC.",
        _block("Waiting for an answer", digest.waiting, digest.waiting_lines, base, why=False),
        _block("Open, and no worker has them", digest.untaken, digest.untaken_lines, base, why=False),
        neutral(digest.stalled) if digest.stalled else "",
        _block("Came to need a person", digest.escalated, digest.escalated_lines, base),
        _block("Resolved", digest.proved + digest.by_hand, digest.resolved_lines, base),
        _numbers(digest),
        f"{base.rstrip('/')}/" if base else "",
    ]
    return Words(title, "\n\n".join(block for block in blocks if block))


def _title(digest: Digest) -> str:
    parts = [
        f"{digest.proved} resolved and proved" if digest.proved else "",
        f"{digest.by_hand} resolved by hand" if digest.by_hand else "",
        f"{digest.escalated_now} {_need(digest.escalated_now)} a person" if digest.escalated_now else "",
        f"{digest.waiting} waiting for an answer" if digest.waiting else "",
        f"{digest.untaken} open that no worker has" if digest.untaken else "",
    ]
    said = ", ".join(part for part in parts if part)
    if said:
        return said
    return "nothing was resolved, and nothing needs you" if digest.opened else "all quiet"


def _need(n: int) -> str:
    return "needs" if n == 1 else "need"


def _block(name: str, count: int, lines: Sequence[Line], base: str | None, *, why: bool = True) -> str:
    if not count:
        return ""
    out = [f"{name} ({count}):"]
    for line in lines:
        severity = f"[{neutral(line.severity, 20)}] " if line.kind == "incident" else ""
        reason = f" ({neutral(line.reason.replace('_', ' '), 30)})" if line.reason and why else ""
        out.append(f"- {severity}#{line.ticket_id} {neutral(line.name, 60)}{reason}")
        if why and line.why:
            out[-1] += f": {neutral(line.why, 160)}"
        if base:
            out.append(f"  {address(base, line.ticket_id)}")
    if count > len(lines):
        out.append(f"- and {count - len(lines)} more")
    return "\n".join(out)


def _numbers(digest: Digest) -> str:
    parts = [
        f"{digest.opened} opened",
        f"{digest.reopened} reopened" if digest.reopened else "",
        f"{digest.canceled} canceled" if digest.canceled else "",
        f"{digest.cleared} went away by themselves" if digest.cleared else "",
    ]
    lines = [f"Tickets: {', '.join(part for part in parts if part)}."]
    if digest.top:
        lines.append("Most often: " + ", ".join(f"{neutral(o.name, 60)} {o.times} times" for o in digest.top) + ".")
    if digest.sessions:
        least = "at least " if digest.unpriced else ""
        what = "1 attempt that worked" if digest.sessions == 1 else f"{digest.sessions} attempts that worked"
        lines.append(f"Cost of the {what} in this time: {least}${digest.cost_usd:.2f}.")
    return "\n".join(lines)

"""From the ledger into the outbox: each change that a rule wants told becomes a letter to each of its channels, once.

The position in the ledger moves in the same transaction that puts the letters, so that a process may die anywhere, and
several servers may look at the same time.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Integer, Text, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Row

from operator_core import clock
from operator_core.announce.news import LONGEST, News
from operator_core.announce.rules import channels_for, may_matter
from operator_core.config import NotifySettings
from operator_core.db.engine import Database
from operator_core.db.ledger import body_of
from operator_core.db.schema import agent_log_entries, cursors, ledger, ledger_head, tickets
from operator_core.failpoints import reach
from operator_core.model.entry import EntryKind
from operator_core.model.notification import Channel
from operator_core.model.ticket import Reason, TicketKind, TicketStatus, plain_diagnosis
from operator_core.notify.outbox import put
from operator_core.text import clip

__all__ = ["CHANNELS", "CURSOR", "Projection", "Step"]

CHANNELS = "announce:"
"""The outbox calls a channel so, and then by its name."""
CURSOR = "announce"
_KINDS = ("transition", "approval_asked")
_AT_ONCE = 500
_CROWD = 8
_LISTED = 10

_POSITION = select(cursors.c.position).where(cursors.c.name == CURSOR)
_HEAD = select(ledger_head.c.seq).where(ledger_head.c.id == 1)
_BEGIN = {
    "sqlite": sqlite.insert(cursors).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(cursors).on_conflict_do_nothing(),
}
_ADVANCE = (
    update(cursors)
    .where(cursors.c.name == CURSOR, cursors.c.position == bindparam("old", type_=BigInteger))
    .values(position=bindparam("new", type_=BigInteger))
    .returning(cursors.c.position)
)
_ROWS = (
    select(ledger)
    .where(ledger.c.seq > bindparam("position", type_=BigInteger))
    .order_by(ledger.c.seq)
    .limit(bindparam("limit", type_=Integer))
)
_TICKETS = select(
    tickets.c.id,
    tickets.c.kind,
    tickets.c.invariant_name,
    tickets.c.severity,
    tickets.c.labels,
    func.substr(tickets.c.message, 1, LONGEST).label("message"),
    func.substr(tickets.c.diagnosis, 1, LONGEST).label("diagnosis"),
).where(tickets.c.id.in_(bindparam("ids", expanding=True)))
_SAID = (
    select(agent_log_entries.c.content, func.substr(agent_log_entries.c.raw_content, 1, LONGEST).label("raw"))
    .where(
        agent_log_entries.c.session_id == bindparam("session", type_=Text),
        agent_log_entries.c.entry_type == bindparam("entry", type_=Text),
    )
    .order_by(agent_log_entries.c.seq.desc())
    .limit(1)
)


class Step(NamedTuple):
    """What one look did.

    Attributes:
        letters: How many were put.
        more: Whether there may be more to see at once.
        crowded: Whether so much happened that it was put together.
    """

    letters: int = 0
    more: bool = False
    crowded: bool = False


class Projection:
    """Puts letters about what is new.

    Args:
        settings: Channels and rules.
        database: An open store.
    """

    def __init__(self, settings: NotifySettings, database: Database) -> None:
        self._rules = settings.rule
        self._channels = {channel.name: channel for channel in settings.channel}
        self._database = database
        self._begun = False

    async def step(self) -> Step:
        """One look at what is new; the first one ever only remembers where it is.

        Raises:
            StoreError: The store cannot be read or written; nothing was put.
        """
        position = await self._position()
        rows = await self._database.fetch(_ROWS, position=position, limit=_AT_ONCE)
        if not rows:
            return Step()
        news = await self._news(rows)
        letters, crowded = self._letters(news)
        reach("announce.read")
        async with self._database.begin() as c:
            moved = (await c.execute(_ADVANCE, {"old": position, "new": rows[-1].seq})).first()
            if moved is None:
                return Step(more=True)  # another server did it
            for letter in letters:
                await put(c, f"{CHANNELS}{letter.channel}", letter.kind, letter.body, dedupe_key=letter.key)
            reach("announce.put")
        reach("announce.told")
        return Step(len(letters), len(rows) == _AT_ONCE, crowded)

    async def _position(self) -> int:
        found = await self._database.fetch(_POSITION)
        if found:
            return int(found[0].position)
        async with self._database.begin() as c:
            # What happened before anybody wanted to be told is no news.
            head = (await c.execute(_HEAD)).scalar_one()
            await c.execute(_BEGIN[c.dialect.name], {"name": CURSOR, "position": head})
        return int((await self._database.fetch(_POSITION))[0].position)

    async def _news(self, rows: Sequence[Row[Any]]) -> list[News]:
        changes = [(row, _change(row)) for row in rows if row.kind in _KINDS and row.ticket_id is not None]
        changes = [(row, body) for row, body in changes if may_matter(self._rules, body.get("new"), body.get("reason"))]
        ids = sorted({row.ticket_id for row, _ in changes})
        found = {t.id: t for t in await self._database.fetch(_TICKETS, ids=ids)} if ids else {}
        out = []
        for row, body in changes:
            ticket = found.get(row.ticket_id)
            if ticket is None:
                continue
            try:
                news = _news_of(row, body, ticket)
            except (ValueError, TypeError):
                continue  # no row of ours: `operator audit verify` says which; the others are told
            if channels_for(self._rules, news):
                out.append(await self._with_why(news, ticket.diagnosis))
        return out

    async def _with_why(self, news: News, diagnosis: str | None) -> News:
        if news.state is TicketStatus.WAITING_FOR_INPUT:
            if news.approval_id is not None:
                return news
            return news.model_copy(update={"why": await self._said(news.session_id, EntryKind.OUTCOME)})
        if news.state in (TicketStatus.ESCALATED, TicketStatus.RESOLVED):
            why = await self._said(news.session_id, EntryKind.REPORT, headline=True) or plain_diagnosis(diagnosis)
            return news.model_copy(update={"why": why})
        return news

    async def _said(self, session_id: str | None, kind: EntryKind, *, headline: bool = False) -> str | None:
        if session_id is None:
            return None
        for row in await self._database.fetch(_SAID, session=session_id, entry=kind.value):
            text = row.content if headline or not row.raw else row.raw
            return clip(str(text), LONGEST)
        return None

    def _letters(self, news: Sequence[News]) -> tuple[list[_Put], bool]:
        by_channel: dict[str, list[News]] = defaultdict(list)
        for piece in news:
            for name in channels_for(self._rules, piece):
                if _is_news(piece.at, self._channels[name]):
                    by_channel[name].append(piece)
        letters: list[_Put] = []
        crowded = False
        for name, pieces in by_channel.items():
            if len(pieces) > _CROWD and self._channels[name].kind == "apprise":
                crowded = True
                letters.append(_together(name, pieces))
            else:
                letters += [_Put(name, "ticket", p.to_json(), f"announce:{p.seq}:{name}") for p in pieces]
        return letters, crowded


class _Put(NamedTuple):
    channel: str
    kind: str
    body: dict[str, Any]
    key: str


def _together(channel: str, pieces: Sequence[News]) -> _Put:
    """One message instead of many: nobody reads a hundred at once, and a chat would refuse them."""
    counts: dict[str, int] = defaultdict(int)
    for piece in pieces:
        counts[piece.state.value] += 1
    # What needs somebody first.
    first = sorted(pieces, key=lambda p: (_URGENCY.index(p.state) if p.state in _URGENCY else len(_URGENCY), p.seq))
    body = {
        "first": pieces[0].seq,
        "at": pieces[-1].at.isoformat(),
        "counts": counts,
        "news": [piece.to_json() for piece in first[:_LISTED]],
        "more": max(0, len(pieces) - _LISTED),
    }
    return _Put(channel, "crowd", body, f"announce:{pieces[0].seq}-{pieces[-1].seq}:{channel}")


_URGENCY = (TicketStatus.WAITING_FOR_INPUT, TicketStatus.ESCALATED, TicketStatus.OPEN)


def _is_news(at: datetime, channel: Channel) -> bool:
    """What is older than a message may become is not told any more."""
    return clock.now() - at <= timedelta(hours=channel.give_up_hours)


def _change(row: Row[Any]) -> dict[str, Any]:
    """What a row of the ledger says, as a change of state."""
    body = body_of(row)
    if row.kind == "approval_asked":
        # One for each question; that its session then rests is no news of its own.
        asked = {"new": TicketStatus.WAITING_FOR_INPUT.value, "reason": Reason.NEEDS_APPROVAL.value}
        return {"approval": body.get("approval"), "tool": body.get("tool"), "detail": body.get("why"), **asked}
    return {} if body.get("reason") == Reason.NEEDS_APPROVAL else body


def _news_of(row: Row[Any], body: dict[str, Any], ticket: Row[Any]) -> News:
    return News(
        id=row.hash,
        seq=row.seq,
        at=clock.parse_iso(row.at),
        ticket_id=row.ticket_id,
        kind=TicketKind(ticket.kind),
        name=clip(ticket.invariant_name, LONGEST),
        severity=ticket.severity,
        labels=json.loads(ticket.labels) if ticket.labels else {},
        message=ticket.message,
        old=body.get("old"),
        state=TicketStatus(body["new"]),
        reason=body.get("reason"),
        actor=str(body.get("actor") or ""),
        session_id=row.session_id,
        why=_short(body.get("detail")),
        approval_id=body.get("approval"),
        tool=_short(body.get("tool")),
    )


def _short(text: str | None) -> str | None:
    return None if text is None else clip(text, LONGEST)

"""What was spent, by ticket, model, phase or day.

In a large store adding it up takes longer than people wait for a page. The answers to what they ask are kept there: one
serves for a time that is long in comparison, then for a while it still does while a newer one is made beside it.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import NamedTuple
from weakref import WeakKeyDictionary

from operator_core import clock
from operator_core.api.listing import count_soon
from operator_core.api.models import CostRow
from operator_core.api.views import spent_of
from operator_core.db.engine import Database
from operator_core.db.usage import CostTotal, UsageTotals

__all__ = ["expect_costs", "read_costs"]

_SERVES = 20.0
"""An answer serves for so many times what it took."""
_STALE_S = 120.0
"""... and then for so long while a newer one is made."""
_EXPECTED = (("day", 30, 30), ("ticket", 30, 100), ("model", 30, 100), ("phase", 30, 100))
"""What the console's page asks first: by what, how many days, at most how many rows."""


class _Question(NamedTuple):
    by: str
    since: str
    limit: int


class _Answer(NamedTuple):
    rows: list[CostRow]
    until: float


class _Answers:
    def __init__(self) -> None:
        self.known: dict[_Question, _Answer] = {}
        self.asking: dict[_Question, asyncio.Task[list[CostRow]]] = {}


_OF: WeakKeyDictionary[Database, _Answers] = WeakKeyDictionary()


async def read_costs(database: Database, by: str, *, days: int, limit: int) -> list[CostRow]:
    """What was spent in the last ``days`` days, today included."""
    answers, question = _OF.setdefault(database, _Answers()), _question(by, days, limit)
    known, now = answers.known.get(question), clock.monotonic()
    if known is not None and now < known.until:
        return known.rows
    asked = _asked(database, answers, question)
    if known is not None and now < known.until + _STALE_S:
        return known.rows
    # Who goes away does not take it from the others.
    return await asyncio.shield(asked)


async def expect_costs(database: Database) -> None:
    """Keep what the console asks first at hand, so that nobody waits for it; in a small store nobody does anyway."""
    if not await UsageTotals(database).is_large():
        return
    answers = _OF.setdefault(database, _Answers())
    for by, days, limit in _EXPECTED:
        question = _question(by, days, limit)
        known = answers.known.get(question)
        if known is None or clock.monotonic() > known.until + _STALE_S / 2:
            await asyncio.shield(_asked(database, answers, question))


def _asked(database: Database, answers: _Answers, question: _Question) -> asyncio.Task[list[CostRow]]:
    """A newer answer, the same one for all who wait for it."""
    asked = answers.asking.get(question)
    if asked is None or asked.done():
        asked = answers.asking[question] = database.beside(_ask(database, answers, question))
        asked.add_done_callback(lambda done: _answered(answers, question, done))
    return asked


def _question(by: str, days: int, limit: int) -> _Question:
    return _Question(by, clock.iso(clock.now() - timedelta(days=days - 1))[:10], limit)


async def _ask(database: Database, answers: _Answers, question: _Question) -> list[CostRow]:
    began = clock.monotonic()
    await count_soon(database, within_s=2.0, every_s=0.0)
    found = await UsageTotals(database).by(question.by, since=question.since, limit=question.limit)
    rows = [_cost_row(question.by, total) for total in found]
    ended = clock.monotonic()
    answers.known = {old: answer for old, answer in answers.known.items() if answer.until + _STALE_S > ended}
    if await UsageTotals(database).is_large():
        answers.known[question] = _Answer(rows, ended + _SERVES * (ended - began))
    return rows


def _answered(answers: _Answers, question: _Question, done: asyncio.Task[list[CostRow]]) -> None:
    if answers.asking.get(question) is done:
        del answers.asking[question]
    if not done.cancelled():
        done.exception()  # whoever waits for it is told; without anybody the next one asks again


def _cost_row(by: str, found: CostTotal) -> CostRow:
    label = found.key or ("no phase" if by == "phase" else "without a ticket")
    if by == "ticket" and found.key:
        label = f"#{found.key} {found.name or ''}".rstrip()
    return CostRow(
        key=found.key, label=label, spent=spent_of(found.total), sessions=found.sessions, verified=found.verified
    )

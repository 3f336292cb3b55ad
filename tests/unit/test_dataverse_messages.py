"""What becomes of journal entries as messages, and of events in their order; nothing is left out or too long."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.db.ledger import LedgerRow
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.ticket import TicketStatus
from operator_dataverse.client import units
from operator_dataverse.reporting.events import Move, in_order, moves_of
from operator_dataverse.reporting.messages import line_of, message, pack
from operator_dataverse.reporting.results import ending_of, expected_after, expected_before, shown_by
from operator_dataverse.reporting.story import old_part

TEXT = st.text(st.characters(codec="utf-16", exclude_characters="\n"), max_size=40)


def entry(seq: int = 0, kind: str = "reasoning", at: str = "2026-01-01T00:00:00.000000+00:00", **values: Any) -> Entry:
    fields: dict[str, Any] = dict.fromkeys(Entry.__dataclass_fields__)
    fields |= {"id": seq, "session_id": "s", "seq": seq, "entry_type": kind, "content": "", "timestamp": at}
    return Entry(**(fields | values))


def move(seq: int, new: str, old: str | None, at: str = "2026-01-01T00:00:00.000000+00:00") -> Move:
    row = LedgerRow(seq, "transition", 1, None, {"old": old, "new": new, "reason": "x"}, at)
    (found,) = moves_of([row], seq - 1)
    return found


@given(st.lists(TEXT, max_size=12), st.integers(min_value=2, max_value=60))
def test_packs_hold_every_line_in_order_and_are_never_too_long(lines: list[str], room: int) -> None:
    packs = pack(lines, room)
    assert sum(part.lines for part in packs) == len(lines)
    assert all(units(part.text) <= room for part in packs)
    fitting = [line for line in lines if units(line) <= room]
    told = "\n".join(part.text for part in packs).split("\n")
    assert [line for line in told if line in fitting] == [line for line in told if line in set(fitting)]
    if len(fitting) == len(lines) and lines:
        assert told == lines


def test_packs_are_as_few_as_possible() -> None:
    assert [part.lines for part in pack(["a" * 4, "b" * 5, "c"], 10)] == [2, 1]
    assert pack([], 10) == []


@pytest.mark.parametrize("kind", [*EntryKind, "of a later version"])
def test_no_entry_of_any_kind_breaks_it(kind: str) -> None:
    for values in (
        {},
        {"content": "c", "raw_content": "r", "phase": "worker_1", "body": {"kind": "refuted"}},
        {"content": "c", "body": ["odd"], "meta": None, "phase": "odd", "tool_params": {"command": 7}},
        {"content": "c", "body": {"role": "user", "content": ["x"]}, "tool_name": "shell"},
    ):
        said = line_of(entry(kind=kind, **values), title="t", row_id="r", iterations=10)
        assert said is None or said.text.strip()


def test_what_agents_say_is_made_harmless_and_short() -> None:
    said = line_of(entry(raw_content="\x1b[2J\u202edanger\x00" + "x" * 50_000), title="t", row_id="r", iterations=10)
    assert said is not None
    assert said.progress
    assert said.text.startswith("danger\\x00x")
    assert len(said.text) <= 20_000


@given(st.text(max_size=600))
def test_the_name_of_a_message_is_its_first_line(text: str) -> None:
    values = message(text, user="alice@example.com")
    assert values["cr_name"]
    assert units(values["cr_name"]) <= 450
    assert "crb3b_taskid" not in values


def test_events_are_in_order_of_time_and_those_of_a_journal_stay_in_their_own() -> None:
    early, late = "2026-01-01T00:00:01.000000+00:00", "2026-01-01T00:00:09.000000+00:00"
    journal = [entry(0, at=early), entry(1, at=late), entry(2, at=early)]  # the clock was set back
    found = in_order([move(7, "running", "open", early), move(8, "resolved", "running", late)], [journal])
    assert [(type(event).__name__, event.seq) for event in found] == [
        ("Entry", 0), ("Move", 7), ("Entry", 1), ("Entry", 2), ("Move", 8),
    ]  # fmt: skip


def test_the_part_before_the_newest_reopening_is_old() -> None:
    events = [move(1, "resolved", "running"), move(2, "open", "resolved"), move(3, "running", "open")]
    assert old_part(events) == 2
    assert old_part([move(1, "open", None), move(2, "running", "open"), move(3, "open", "running")]) == 0


def test_a_row_shows_what_a_person_may_rely_on() -> None:
    s = TicketStatus
    assert shown_by(s.OPEN, s.RUNNING) is None, "another worker goes on; the row is still ours"
    assert shown_by(s.OPEN, s.WAITING_FOR_INPUT) is s.RUNNING
    assert shown_by(s.OPEN, s.ESCALATED) is s.RUNNING
    assert shown_by(s.QUEUED, s.OPEN) is None
    assert shown_by(s.RESOLVED, s.RUNNING) is s.RESOLVED


def test_nothing_overwrites_what_a_person_wrote() -> None:
    for status in (TicketStatus.RUNNING, TicketStatus.WAITING_FOR_INPUT, TicketStatus.RESOLVED, TicketStatus.ESCALATED):
        for reported in (None, TicketStatus.RUNNING, TicketStatus.WAITING_FOR_INPUT):
            assert not {1, 3, 9} & set(expected_before(status, reported))
    assert 7 not in expected_before(TicketStatus.CANCELED, TicketStatus.RUNNING)
    assert expected_after(TicketStatus.RESOLVED) == [7, 9]


@given(st.sampled_from([s for s in TicketStatus if s not in ("open", "queued")]), st.text(max_size=500))
def test_every_state_has_words_that_fit(status: TicketStatus, said: str) -> None:
    entries = [
        entry(0, EntryKind.BASELINE, body={"folder": "/srv/x"}),
        entry(1, EntryKind.OUTCOME, raw_content=said, meta={"outcome": "blocked"}, phase="worker_1"),
        entry(2, EntryKind.SUMMARY, raw_content=f"# A\n\n[a]({said})"),
    ]
    for journal in (entries, []):
        ending = ending_of(
            status,
            "r",
            box="b",
            title="t",
            diagnosis=said,
            entries=journal,
            urls=lambda path: f"https://x.example{path}",
        )
        assert ending.status_message
        assert units(ending.status_message) <= 200
        assert "\n" not in ending.status_message


@pytest.mark.parametrize("target", ["http://[x", "//[x", "https://[::1", "http://x]y"])
def test_a_link_that_is_no_address_stays_as_it_is(target: str) -> None:
    entries = [
        entry(0, EntryKind.BASELINE, body={"folder": "/srv/x"}),
        entry(1, EntryKind.SUMMARY, raw_content=f"# A\n\nSee [a]({target})."),
    ]
    ending = ending_of(
        TicketStatus.RESOLVED, "r", box="b", title="t", diagnosis="", entries=entries, urls=lambda path: None
    )
    assert f"[a]({target})" in ending.text

"""The one table of transitions, verdicts, invariants and the canonical forms that are hashed."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import hypothesis.strategies as st
import pytest
from hypothesis import given

from operator_core.errors import TransitionRefused
from operator_core.model.entry import GENESIS, canonical, chain_hash, stored_json
from operator_core.model.invariant import CheckSpec, Invariant, Subject
from operator_core.model.ticket import (
    DATAVERSE_CODES,
    TERMINAL,
    TRANSITIONS,
    InvariantViolation,
    Ticket,
    TicketStatus,
    check_transition,
    make_violation_key,
)
from operator_core.model.usage import Usage
from operator_core.model.verdict import Clause, ClauseResult, ClauseState, VerdictKind, decide

S = TicketStatus
NOW = datetime(2026, 1, 28, tzinfo=UTC)


def test_the_table_is_the_design() -> None:
    assert set(TRANSITIONS) == set(S) == set(DATAVERSE_CODES)
    assert DATAVERSE_CODES == {
        S.OPEN: 1, S.QUEUED: 3, S.RUNNING: 5, S.WAITING_FOR_INPUT: 6, S.RESOLVED: 7, S.ESCALATED: 8, S.CANCELED: 9
    }  # fmt: skip
    assert {s for s in S if TRANSITIONS[s] == {S.OPEN}} == TERMINAL == {S.RESOLVED, S.CANCELED}
    assert {s for s in S if S.ESCALATED in TRANSITIONS[s]} == {S.RUNNING}, "only work ends in an escalation"
    assert {s for s in S if S.RUNNING in TRANSITIONS[s]} == {S.OPEN, S.QUEUED}, "only what is open is claimed"
    for old in S:
        for new in S:
            if new in TRANSITIONS[old]:
                check_transition(1, old, new)
            else:
                why = f"{old} already" if old is new else f"{old} and cannot become {new}"
                with pytest.raises(TransitionRefused, match=f"Ticket #1 is {why}"):
                    check_transition(1, old, new)


def test_violation_keys() -> None:
    assert make_violation_key(InvariantViolation("disk", "m", NOW, NOW)) == "disk"
    assert make_violation_key(InvariantViolation("disk", "m", NOW, NOW, store_id="a:b")) == "disk:a:b"


def test_a_ticket_is_json_ready() -> None:
    ticket = Ticket(1, "k", "disk", "m", "warning", NOW, NOW)
    assert json.loads(json.dumps(ticket.to_dict()))["status"] == "open"
    assert ticket.to_dict()["first_seen_at"] == "2026-01-28T00:00:00+00:00"


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4), st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_no_field_can_run_into_the_next(a: list[str], b: list[str]) -> None:
    assert (chain_hash(GENESIS, *a) == chain_hash(GENESIS, *b)) == (a == b)


def test_nothing_and_an_empty_text_and_zero_are_different() -> None:
    assert len({chain_hash(GENESIS, value) for value in (None, "", 0, False, "0", "null")}) == 6


def test_canonical_json_is_one_text_for_one_value() -> None:
    assert canonical({"b": 1, "a": [1, "é"]}) == '{"a":[1,"é"],"b":1}'
    assert stored_json({"b": 1, "a": "é"}) == '{"b":1,"a":"é"}', "what goes back to the model keeps its order"
    assert json.loads(stored_json("\ud83d")) == "\ud83d"
    with pytest.raises(TypeError):
        stored_json({1, 2})
    assert stored_json(NOW, str) == '"2026-01-28 00:00:00+00:00"'


def test_the_check_is_frozen_by_its_content() -> None:
    subject = Subject(name="shop", invariant=(Invariant(name="a"), Invariant(name="b")))
    first = CheckSpec.of(subject, subject.invariant[0])
    assert first.subject.invariant == ()
    assert first.digest == CheckSpec.model_validate(json.loads(json.dumps(first.model_dump(mode="json")))).digest
    changed = subject.invariant[0].model_copy(update={"settle_s": 6.0})
    assert first.digest != CheckSpec.of(subject, changed).digest
    patient = subject.invariant[0].model_copy(update={"patience_s": 60.0})
    assert first.digest != CheckSpec.of(subject, patient).digest
    assert "patience_s" not in first.model_dump(mode="json")["invariant"], (
        "it came later than the tickets of some stores"
    )
    other = subject.model_copy(update={"invariant": ()})
    assert first.digest == CheckSpec.of(other, subject.invariant[0]).digest, "other invariants are not part of it"


@pytest.mark.parametrize(
    ("expect", "value", "holds"),
    [
        ("== 10", "10.0", True), ("== 10", 11, False), ("!= ok", "bad", True), ("< 0.5", 0.4, True),
        ("<= 5", "5", True), (">= 5", 4.9, False), ("=~ ^ok", "ok then", True), ("=~ ^ok", "not ok", False),
        ("== true", True, True), ("== open", "open", True), (None, "anything", True),
    ],
)  # fmt: skip
def test_expectations(expect: str | None, value: object, holds: bool) -> None:
    assert Invariant(name="i", expect=expect).holds(value) is holds


@pytest.mark.parametrize("value", ["word", float("nan"), "NaN"])
def test_what_cannot_be_compared_is_unknown(value: object) -> None:
    with pytest.raises(ValueError, match=r"not a number|NaN"):
        Invariant(name="i", expect="< 3").holds(value)


def clause(kind: Clause, state: ClauseState, *, required: bool = True) -> ClauseResult:
    return ClauseResult(kind, state, required, f"{kind} {state}")


def test_verdicts() -> None:
    good, c = ClauseState.PROVED, Clause
    all_good = tuple(clause(kind, good) for kind in Clause)
    assert decide(all_good, seen_red=True, check_hash="h").kind is VerdictKind.VERIFIED
    assert decide(all_good, seen_red=False, check_hash="h").kind is VerdictKind.UNPROVEN
    assert decide((), seen_red=True, check_hash=None).kind is VerdictKind.UNPROVEN
    table = {
        ClauseState.FAILED: VerdictKind.REFUTED,
        ClauseState.COULD_NOT_LOOK: VerdictKind.INCONCLUSIVE,
        ClauseState.NOT_PROVED: VerdictKind.UNPROVEN,
    }
    for state, kind in table.items():
        verdict = decide((clause(c.RESTORED, good), clause(c.DURABLE, state)), seen_red=True, check_hash="h")
        assert (verdict.kind, verdict.failed) == (kind, ("durable",))
        optional = (clause(c.RESTORED, good), clause(c.DURABLE, state, required=False))
        assert decide(optional, seen_red=True, check_hash="h").kind is VerdictKind.VERIFIED
    both = (clause(c.RESTORED, ClauseState.COULD_NOT_LOOK), clause(c.DURABLE, ClauseState.FAILED))
    assert decide(both, seen_red=False, check_hash="h").kind is VerdictKind.REFUTED


def test_unknown_cost_is_not_zero() -> None:
    known, unknown = Usage(1, 2, 3, 4, 0.5), Usage(1, 1, 1, 1, None)
    assert known.plus(known) == Usage(2, 4, 6, 8, 1.0)
    assert known.plus(unknown).cost_usd is None
    assert unknown.plus(known).tokens == 14

"""The table in the documentation is the table of the suite, and what it says is explained."""

from __future__ import annotations

import csv

import pytest

from tests.escape.corpus import ATTACKS, BENIGN
from tests.escape.fight import COLUMNS
from tests.escape.known import KNOWN
from tests.escape.table import EXPECTED, PAGE, expected, page

SANDBOXES = [column for column in COLUMNS if not column.startswith("none/")]


def test_every_attack_has_a_row() -> None:
    with EXPECTED.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["attack"] for row in rows] == list(ATTACKS), "run `python -m tests.escape.table COLUMN...`"
    assert {value for row in rows for value in list(row.values())[1:]} <= {"escaped", "held", "not run"}
    assert set(rows[0]) == {"attack", *COLUMNS}


def test_the_page_shows_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text == page(text), "run `python -m tests.escape.table`"


@pytest.mark.parametrize("column", SANDBOXES)
def test_what_gets_through_is_explained(column: str) -> None:
    through = {name for name, outcome in expected()[column].items() if outcome == "escaped"}
    assert through <= {name for name, known in KNOWN.items() if column in known.columns}


@pytest.mark.parametrize("column", SANDBOXES)
def test_what_is_explained_gets_through(column: str) -> None:
    through = {name for name, outcome in expected()[column].items() if outcome == "escaped"}
    assert {n for n, known in KNOWN.items() if column in known.columns and not known.varies} <= through


def test_no_attack_is_harmless_everywhere() -> None:
    table = expected()
    harmless = {n for n in ATTACKS if "escaped" not in (table["none/root"][n], table["none/user"][n])}
    explained = {name for name, attack in ATTACKS.items() if attack.idle or attack.unsafe}
    assert harmless == explained


def test_the_corpus_is_large_enough() -> None:
    assert sum(not attack.idle for attack in ATTACKS.values()) >= 80
    assert len(BENIGN) >= 10

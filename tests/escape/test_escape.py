"""Every attack in every sandbox ends as the table says, and honest work goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from tests.conftest import REQUIRE_SERVICES
from tests.escape.attack import AREAS
from tests.escape.corpus import ATTACKS, BENIGN, PROXY_ATTACKS
from tests.escape.fight import COLUMNS, Missing, NotRoot, fight
from tests.escape.known import KNOWN
from tests.escape.table import expected
from tests.support.depth import DEEP

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

AT_ONCE = 3  # they mostly wait
TRIED = COLUMNS if DEEP else ("bubblewrap/user",)

Look = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def fights(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[dict[str, Any]]]]:
    """Every column that a test of this run asks for is under way, some at a time."""
    asked = [item.callspec.params.get("column") for item in request.session.items if hasattr(item, "callspec")]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {column: pool.submit(fight, column) for column in COLUMNS if column in asked}


@pytest.fixture
def seen_in(fights: dict[str, Future[dict[str, Any]]]) -> Look:
    """What was seen in a column; the test is skipped where that cannot be."""

    def look(column: str) -> dict[str, Any]:
        try:
            return fights[column].result()
        except Missing as missing:
            if REQUIRE_SERVICES and not isinstance(missing, NotRoot):
                pytest.fail(str(missing), pytrace=False)
            pytest.skip(str(missing))

    return look


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("column", TRIED)
def test_attacks_end_as_the_table_says(column: str, area: str, seen_in: Look) -> None:
    seen, table = seen_in(column)["attacks"], expected()[column]
    wrong = []
    for name, attack in ATTACKS.items():
        outcome, details, _ = seen[name]
        if not name.startswith(f"{area}: ") or outcome == table[name]:
            continue
        if column.startswith("none/"):
            allowed = attack.machine
        else:
            allowed = name in KNOWN and KNOWN[name].varies and column in KNOWN[name].columns
        if not allowed:
            wrong.append(f"{name}: {outcome}, not {table[name]}: {details!r}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("column", TRIED)
def test_honest_work_is_done(column: str, seen_in: Look) -> None:
    seen = seen_in(column)["benign"]
    broken = {name: details for name, (outcome, details, _) in seen.items() if outcome != "works"}
    impossible = {n for n, item in BENIGN.items() if item.not_in and column.startswith(f"{item.not_in[0]}/")}
    assert {name: details for name, details in broken.items() if name not in impossible} == {}


def test_doing_nothing_is_not_taken_for_an_escape() -> None:
    """The witnesses can say no."""
    try:
        seen = fight("none/user", idle=True)["attacks"]
    except Missing as missing:
        pytest.skip(str(missing))
    assert {name for name, (outcome, *_) in seen.items() if outcome == "escaped"} == set()


@pytest.mark.parametrize(
    "place", ["bubblewrap/root", "bubblewrap/user", "docker/root"] if DEEP else ["bubblewrap/user"]
)
def test_the_proxy_is_the_only_way_out(place: str) -> None:
    """All attacks on the network, and some on the proxy, where one service of the host is allowed."""
    try:
        seen = fight(place, proxy=True)
    except Missing as missing:
        if REQUIRE_SERVICES and not isinstance(missing, NotRoot):
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    assert [outcome for outcome, *_ in seen["benign"].values()] == ["works"], seen["benign"]
    assert {name: details for name, (outcome, details, _) in seen["attacks"].items() if outcome != "held"} == {}
    assert seen["attacks"].keys() >= PROXY_ATTACKS.keys()

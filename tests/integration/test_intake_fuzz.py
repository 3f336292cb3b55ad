"""Whatever comes to a door is taken as a whole or refused: no crash, and never half a ticket."""

from __future__ import annotations

import copy
import json
import unicodedata
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from operator_core.config import Settings, load_settings
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.ledger import ticket_history
from operator_core.db.tickets import TicketDB
from operator_core.errors import IntakeRefused
from operator_core.intake.items import Receipt
from operator_core.intake.reception import Reception
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import TicketKind
from tests.support.webhooks import SAMPLES, SECRETS, bearer, from_github, sample, signed

FUZZ = settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture], derandomize=True)

TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["\0", "\ud800", "{a}", "<script>", "\x1b[2J", "‮", "x" * 3000, "firing", "labeled", "failed", ""]),
)
LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS, st.just(10**400)
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
DOORS = {
    "alerts": ("alertmanager-firing", "alertmanager-resolved"),
    "builds": ("build-failed",),
    "github": ("github-labeled", "github-closed", "github-ping"),
}


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where something could be changed in a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for key, item in inner for place in places(item, (*here, key)))]


@st.composite
def mutated(draw: st.DrawFn, name: str) -> Any:
    """A sample with up to three of its values replaced, removed or doubled."""
    document = copy.deepcopy(sample(draw(st.sampled_from(DOORS[name]))))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places(document)))
        if not place:
            return draw(VALUES)
        around = document
        for key in place[:-1]:
            around = around[key]
        match draw(st.sampled_from(["replace", "replace", "remove", "double"])):
            case "replace":
                around[place[-1]] = draw(VALUES)
            case "remove":
                del around[place[-1]]
            case _ if isinstance(around, list):
                around.append(copy.deepcopy(around[place[-1]]))
    return document


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Database]:
    async with Database.open(tmp_path / "operator.db") as database:
        yield database


@pytest.fixture
def reception(store: Database) -> Reception:
    """All doors of the example; the repository is not fetched from anywhere."""
    examples = load_settings(SAMPLES / "operator.toml", environ={}).settings
    doors = json.loads(json.dumps([door.model_dump(mode="json", exclude_none=True) for door in examples.intake]))
    doors[2]["github"]["repository"][0] |= {"url": "https://git.example.com/shop.git", "ref": "a" * 40}
    return Reception(store, Settings.model_validate({"intake": doors}), environ=SECRETS)


def is_harmless(text: str) -> bool:
    """One line without control characters; what is only unusual is left to who shows it."""
    return all(unicodedata.category(c) not in ("Cc", "Cs", "Zl", "Zp") for c in text)


def headers(name: str, body: bytes) -> dict[str, str]:
    """Those that the door believes."""
    return bearer() if name == "alerts" else signed(body) if name == "builds" else from_github(body)


async def count(store: Database) -> tuple[int, int]:
    async with store.read() as c:
        rows = (await c.exec_driver_sql("SELECT count(*) FROM tickets")).scalar_one()
        events = (await c.exec_driver_sql("SELECT count(*) FROM ledger")).scalar_one()
    return int(rows), int(events)


async def send(store: Database, reception: Reception, name: str, body: bytes) -> None:
    """Take it or refuse it; what was refused has left nothing, and what was taken is there as a whole."""
    before = await count(store)
    refused, receipt = None, Receipt(intake=name)
    try:
        receipt = await reception.receive(name, headers(name, body), body)
    except IntakeRefused as error:
        refused = error
    if refused is not None:
        assert 400 <= refused.status < 500
        assert is_harmless(str(refused))
        assert len(str(refused)) < 500
        assert await count(store) == before
    opened = [item for item in receipt.items if item.what == "opened"]
    assert (await count(store))[0] == before[0] + len(opened)
    for item in opened:
        assert item.ticket_id is not None
        ticket = await TicketDB(store).get_ticket(item.ticket_id)
        assert is_harmless(ticket.invariant_name)
        assert ticket.message.strip()
        assert (await ticket_history(store, item.ticket_id))[0].kind == "transition"
        if ticket.kind is TicketKind.TASK:
            assert TaskSpec.model_validate(ticket.check_spec).digest == ticket.check_hash


@pytest.mark.parametrize("name", list(DOORS))
async def test_samples_with_changes(store: Database, reception: Reception, name: str) -> None:
    found: list[bytes] = []

    @FUZZ
    @given(mutated(name))
    def collect(document: Any) -> None:
        found.append(json.dumps(document).encode())

    collect()
    for body in found:
        await send(store, reception, name, body)
    assert (await verify(store)).ok
    assert (await count(store))[0] > 0, "some of it was good"


@pytest.mark.parametrize("name", list(DOORS))
async def test_anything(store: Database, reception: Reception, name: str) -> None:
    found: list[bytes] = []

    @FUZZ
    @given(st.one_of(st.binary(max_size=200), VALUES.map(lambda value: json.dumps(value).encode())))
    def collect(body: bytes) -> None:
        found.append(body)

    collect()
    for body in found:
        await send(store, reception, name, body)
    assert await count(store) == (0, 0)


HEADERS = st.dictionaries(
    st.sampled_from(
        ["authorization", "x-operator-timestamp", "x-operator-signature", "x-github-event", "x-github-delivery",
         "x-hub-signature-256"]
    ),
    st.one_of(st.text(max_size=80), st.sampled_from(["Bearer ", "v1=", "sha256=", "1800000000", "-1", "1e9"])),
)  # fmt: skip


async def test_any_headers_without_the_secret(store: Database, reception: Reception) -> None:
    found: list[dict[str, str]] = []

    @FUZZ
    @given(HEADERS)
    def collect(given: dict[str, str]) -> None:
        found.append(given)

    collect()
    body = (SAMPLES / "alertmanager-firing.json").read_bytes()
    for given_headers in found:
        for name in DOORS:
            with pytest.raises(IntakeRefused) as caught:
                await reception.receive(name, given_headers, body)
            assert caught.value.status == 401
    assert await count(store) == (0, 0)

"""The monitor's memory, its look at plug-ins that misbehave, and the lines people read. No server and no process."""

from __future__ import annotations

import asyncio
import json
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core import clock
from operator_core.errors import ConfigError
from operator_core.model.invariant import Invariant, Subject
from operator_core.model.monitor import Light, MonitorState
from operator_core.monitor.guard import ThreadSubject
from operator_core.monitor.plugins import load_plugin
from operator_core.monitor.protocols import InvariantCheckerProtocol, SubjectProtocol
from operator_core.monitor.report import CycleReport
from operator_core.monitor.sight import Looker, Stopped
from operator_core.monitor.snapshot import SNAPSHOT_LIMIT, cut_out
from operator_core.monitor.tracker import advance, is_due, is_flapping
from operator_core.monitor.types import InvariantViolation, Ticket, TicketStatus, make_violation_key

T0 = datetime(2026, 1, 1, tzinfo=UTC)
LIGHTS: st.SearchStrategy[Light] = st.sampled_from(["green", "red", "unknown"])
WINDOW = 100.0


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def follow(lights: list[Light], step: float = 10.0, before: MonitorState | None = None) -> list[MonitorState]:
    out = []
    for number, light in enumerate(lights):
        before = advance(before, "k", "n", light, at(number * step), window_s=WINDOW, value=light)
        out.append(before)
    return out


# ---- memory


@given(st.lists(LIGHTS, min_size=1, max_size=30))
def test_memory_agrees_with_the_whole_history(lights: list[Light]) -> None:
    """The state is kept step by step; here each field is computed again from everything that was ever seen."""
    state = follow(lights)[-1]
    now = at((len(lights) - 1) * 10)
    run = len(lights)
    while run > 1 and lights[run - 2] == lights[-1]:
        run -= 1
    assert state.since == at((run - 1) * 10)
    last_green = max((i for i, light in enumerate(lights) if light == "green"), default=-1)
    reds = [i for i, light in enumerate(lights) if light == "red" and i > last_green]
    assert state.first_seen == (at(reds[0] * 10) if reds else None)
    assert state.greens == (len(lights) - run + 1 if lights[-1] == "green" else 0)
    changes = []
    was_red = False
    for i, light in enumerate(lights):
        if light != "unknown":
            if i > 0 and was_red != (light == "red"):
                changes.append(at(i * 10))
            was_red = light == "red"
    assert list(state.changes) == [t for t in changes if t > now - timedelta(seconds=WINDOW)]


@given(st.lists(LIGHTS, max_size=10), st.lists(st.just("unknown"), min_size=1, max_size=10))
def test_unknown_never_clears_and_never_fires(lights: list[Light], blind: list[Light]) -> None:
    state = follow([*lights, *blind])[-1]
    assert state.greens == 0
    assert not is_due(state, at(10_000), 0.0)


@given(st.lists(LIGHTS, min_size=2, max_size=20), st.integers(1, 19))
def test_a_restart_between_two_looks_changes_nothing(lights: list[Light], cut: int) -> None:
    states = follow(lights)
    half = min(cut, len(lights) - 1)
    stored = states[half - 1]
    resumed: MonitorState | None = MonitorState(*stored)
    for number in range(half, len(lights)):
        resumed = advance(resumed, "k", "n", lights[number], at(number * 10), window_s=WINDOW, value=lights[number])
    assert resumed == states[-1]


def test_a_grace_period_counts_from_the_first_red_look_and_ends_on_time() -> None:
    states = follow(["green", "red", "red", "red"])
    assert [is_due(s, s.updated_at, 20.0) for s in states] == [False, False, False, True]


def test_the_older_of_two_beginnings_counts() -> None:
    state = advance(None, "k", "n", "red", at(50), window_s=WINDOW, began=at(20))
    assert state.first_seen == at(20)
    assert advance(state, "k", "n", "red", at(60), window_s=WINDOW, began=at(55)).first_seen == at(20)


def test_a_clock_that_was_set_back_does_not_stop_an_episode_for_ever() -> None:
    ahead = advance(None, "k", "n", "red", at(5000), window_s=WINDOW)
    assert is_due(advance(ahead, "k", "n", "red", at(10), window_s=WINDOW), at(40), 30.0)


def test_flapping_begins_with_the_change_that_is_one_too_many_and_ends_when_it_is_quiet() -> None:
    states = follow(["green", "red", "green", "red", "green", "green"])
    seen = [is_flapping(s, s.updated_at, changes=4, window_s=WINDOW) for s in states]
    assert seen == [False, False, False, False, True, True]
    assert not is_flapping(states[-1], at(110), changes=4, window_s=WINDOW)


# ---- the seed's addresses


def test_the_seed_finds_its_types_where_it_left_them() -> None:
    violation = InvariantViolation("store_down", "m", T0, T0, store_id="4")
    assert make_violation_key(violation) == "store_down:4"
    assert TicketStatus("open") is TicketStatus.OPEN
    assert Ticket(None, "k", "n", "m", "warning", T0, T0).to_dict()["status"] == "open"


# ---- snapshots


def test_a_snapshot_is_the_part_that_belongs_to_the_entity() -> None:
    observation = {
        "stores": [{"id": 1, "state": "Up"}, {"id": 4, "state": "Down"}],
        "store_metrics": {"1": {"qps": 5}, "4": {"qps": 0}},
        "cluster_metrics": {"store_count": 2},
    }
    assert cut_out(observation, "4") == {
        "stores": [{"id": 4, "state": "Down"}],
        "store_metrics": {"4": {"qps": 0}},
        "cluster_metrics": {"store_count": 2},
    }
    assert cut_out(observation, None) == observation


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes()),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(st.one_of(st.text(), st.integers()), inner), st.tuples(inner)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), ANYTHING, max_size=5), st.one_of(st.none(), st.text(min_size=1)))
def test_a_snapshot_can_always_be_stored(observation: dict[str, Any], store_id: str | None) -> None:
    text = json.dumps(cut_out(observation, store_id), allow_nan=False, ensure_ascii=False)
    assert "\\u0000" not in text
    text.encode()


def test_a_snapshot_is_bounded_and_survives_a_circle() -> None:
    assert len(json.dumps(cut_out({"x": "y" * 1_000_000}, None))) < 2 * SNAPSHOT_LIMIT
    circle: dict[str, Any] = {}
    circle["self"] = circle
    assert len(json.dumps(cut_out(circle, None))) < 2 * SNAPSHOT_LIMIT


# ---- lines


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({}, "Check complete: all passing"),
        ({"violations": ("a", "b")}, "2 violation(s) detected"),
        ({"violations": ("a",), "unknown": {"b": "why"}}, "1 violation(s) detected, 1 unknown"),
        ({"unknown": {"b": "why"}}, "Check complete: 1 unknown"),
        ({"pending": ("a",)}, "Check complete: 1 in grace"),
        ({"error": "The disk is full."}, "Check failed: The disk is full."),
    ],
)
def test_all_passing_is_said_only_when_all_was_seen_to_pass(fields: dict[str, Any], line: str) -> None:
    assert CycleReport("s", "batch-x", T0, **fields).line == line


# ---- plug-ins that misbehave


class Plug:
    """A subject and checker in one; each answer is a value or a function to call."""

    def __init__(self, observation: object = None, found: object = None) -> None:
        self.observation = {"a": 1} if observation is None else observation
        self.found = [] if found is None else found

    async def observe(self) -> Any:
        return await self.observation() if callable(self.observation) else self.observation

    def check(self, observation: dict[str, Any]) -> Any:
        return self.found() if callable(self.found) else self.found


async def fail() -> None:
    raise RuntimeError("prometheus is down")


async def hang() -> None:
    await asyncio.sleep(60)


async def stubborn() -> None:
    for _ in range(3):
        try:
            await asyncio.sleep(0.3)
        except asyncio.CancelledError:
            continue


def broken() -> None:
    raise KeyError("stores")


def stop_iteration() -> None:
    raise StopIteration


def look_through(plug: Plug, deadline_s: float = 5.0) -> Looker:
    return Looker(plug, plug, "s", deadline_s)


@pytest.mark.parametrize(
    ("plug", "why"),
    [
        (Plug(observation=fail), "prometheus is down"),
        (Plug(observation=[1]), "list"),
        (Plug(found=broken), "stores"),
        (Plug(found=stop_iteration), "StopIteration"),
        (Plug(found=lambda: None), "nothing"),
        (Plug(found=["violation"]), "InvariantViolation"),
    ],
)
async def test_nonsense_is_a_failure_and_never_no_violations(plug: Plug, why: str) -> None:
    """D-03: an exception used to mean that nothing was wrong."""
    sight = await look_through(plug).look(clock.now, None)
    assert sight.failure is not None
    assert why in sight.failure


@pytest.mark.parametrize("observation", [hang, stubborn])
async def test_an_observation_that_hangs_ends_at_its_deadline(observation: Callable[[], Any]) -> None:
    started = time.monotonic()
    sight = await look_through(Plug(observation), deadline_s=0.2).look(clock.now, None)
    assert sight.failure is not None
    assert "0.2 s" in sight.failure
    assert time.monotonic() - started < 3


async def test_a_check_that_hangs_is_not_started_again_until_it_is_back() -> None:
    release = threading.Event()
    calls: list[int] = []

    def check() -> list[InvariantViolation]:
        calls.append(1)
        release.wait(30)
        return []

    looker = look_through(Plug(found=check), deadline_s=0.2)
    first = await looker.look(clock.now, None)
    second = await looker.look(clock.now, None)
    assert first.failure is not None
    assert "0.2 s" in first.failure
    assert second.failure is not None
    assert "not come back" in second.failure
    assert calls == [1]
    release.set()

    deadline = time.monotonic() + 5
    while (await looker.look(clock.now, None)).failure is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


async def test_a_subject_that_blocks_its_thread_does_not_block_ours() -> None:
    release = threading.Event()

    async def block() -> dict[str, Any]:
        release.wait(30)
        return {"a": 1}

    subject = ThreadSubject(Plug(block), "s")
    looker = Looker(subject, Plug(), "s", 0.3)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    assert (await looker.look(clock.now, None)).failure
    ticking.cancel()
    assert ticks > 5
    again = await looker.look(clock.now, None)
    assert again.failure is not None
    assert "not come back" in again.failure
    release.set()
    deadline = time.monotonic() + 5
    while (await looker.look(clock.now, None)).failure is not None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    subject.close()
    assert (await looker.look(clock.now, None)).failure is None, "a closed thread is replaced"
    subject.close()


async def test_a_stop_ends_a_look_at_once() -> None:
    stop = asyncio.Event()
    look = asyncio.create_task(look_through(Plug(hang), deadline_s=60).look(clock.now, stop))
    await asyncio.sleep(0.05)
    stop.set()
    started = time.monotonic()
    with pytest.raises(Stopped):
        await look
    assert time.monotonic() - started < 2


async def test_times_without_a_zone_are_local_and_never_in_the_future(monkeypatch: pytest.MonkeyPatch) -> None:
    """D-17: naive local time was read as UTC, hours away."""
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        naive = datetime.now()  # noqa: DTZ005 - what a plug-in may well do
        later = naive + timedelta(hours=9)
        sight = await look_through(Plug(found=[InvariantViolation("n", "m", naive, later)])).look(clock.now, None)
    finally:
        monkeypatch.undo()
        time.tzset()
    seen = sight.violations["n"]
    assert abs((seen.first_seen - clock.now()).total_seconds()) < 10
    assert seen.first_seen <= seen.last_seen <= clock.now()


async def test_a_checker_can_say_what_it_does_not_know_and_a_violation_wins() -> None:
    class Careful(Plug):
        def unknown(self, observation: Mapping[str, Any]) -> Mapping[str, str]:
            return {"a": "no series", "b": "no series"}

    plug = Careful(found=[InvariantViolation("a", "m", T0, T0)])
    sight = await look_through(plug).look(clock.now, None)
    assert set(sight.violations) == {"a"}
    assert sight.unknown == {"b": "no series"}


# ---- loading


SOURCE = """
class Subject:
    def __init__(self, endpoint="http://x"):
        self.endpoint = endpoint
    async def observe(self):
        return {"endpoint": self.endpoint}

class Checker:
    def check(self, observation):
        return []

def named(spec):
    subject = Subject()
    subject.endpoint = spec.name
    return subject

class Both(Subject, Checker):
    pass

class Blocking:
    def observe(self):
        return {}

class AsyncChecker:
    async def check(self, observation):
        return []

def refuses():
    raise RuntimeError("no endpoint")

number = 7
"""


@pytest.fixture
def plugin_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"plug_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(SOURCE))
    (tmp_path / f"{name}_broken.py").write_text("import there_is_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    return name


async def test_factories_are_called_as_they_want_to_be(plugin_module: str) -> None:
    def load(plugin: str, checker: str | None = "Checker") -> Any:
        names = {"plugin": f"{plugin_module}:{plugin}", "checker": checker and f"{plugin_module}:{checker}"}
        return load_plugin(Subject.model_validate({"name": "shop", **names}))

    plain, named, both = load("Subject"), load("named"), load("Both", None)
    assert isinstance(plain.subject, SubjectProtocol)
    assert isinstance(plain.checker, InvariantCheckerProtocol)
    assert await plain.subject.observe() == {"endpoint": "http://x"}, "a parameter with a default is left alone"
    assert await named.subject.observe() == {"endpoint": "shop"}
    assert both.subject is both.checker


@pytest.mark.parametrize(
    ("plugin", "checker", "says"),
    [
        ("{m}", None, "module:factory"),
        ("no_such_module_here:x", None, "cannot be imported"),
        ("{m}_broken:x", None, "there_is_no_such_module"),
        ("{m}:Missing", None, "has no 'Missing'"),
        ("{m}:number", None, "could be called"),
        ("{m}:refuses", None, "no endpoint"),
        ("{m}:Blocking", None, "async def observe"),
        ("{m}:Checker", None, "async def observe"),
        ("{m}:Subject", None, "has no checker"),
        ("{m}:Subject", "{m}:AsyncChecker", "def check"),
        ("{m}:Subject", "{m}:Subject", "def check"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_clear_sentence(
    plugin_module: str, plugin: str, checker: str | None, says: str
) -> None:
    spec = Subject(
        name="shop",
        plugin=plugin.format(m=plugin_module),
        checker=checker and checker.format(m=plugin_module),
        invariant=(Invariant(name="i"),),
    )
    with pytest.raises(ConfigError, match=says) as raised:
        load_plugin(spec)
    assert "'shop'" in str(raised.value)
    assert "\n" not in str(raised.value)

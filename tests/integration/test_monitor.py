"""The monitor with real probes, a real service over HTTP and real stores."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import textwrap
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import Clock
from operator_core.config import MonitorSettings, Settings
from operator_core.db.queue import WorkQueue
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, StoreError
from operator_core.model.invariant import Invariant, Subject
from operator_core.model.ticket import InvariantViolation, Reason, Ticket, TicketStatus
from operator_core.monitor import ConfiguredChecker, ConfiguredSubject, CycleReport, MonitorLoop, build_loops
from tests.support import free_port, wait_until_async

HOUR = 3600.0


class Service:
    """A small HTTP service whose answer the test decides: a value, or None for an error, or "hang"."""

    def __init__(self) -> None:
        self.value: object = 10
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Service:
        self._server = await asyncio.start_server(self._answer, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            if self.value == "hang":
                await asyncio.sleep(60)
            status = 500 if self.value is None else 200
            body = f'{{"limit": {self.value}}}'.encode()
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode())
            writer.write(body)
            await writer.drain()
        writer.close()
        self._tasks.discard(task)


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with Service() as running:
        yield running


@pytest.fixture
async def tickets(store_url: str) -> AsyncIterator[TicketDB]:
    async with TicketDB(store_url) as db:
        yield db


def limiter(service: Service, name: str = "limit", *, timeout_s: float = 10.0, **more: object) -> Subject:
    """A subject whose invariant is that the service's limit is 10."""
    probe = {"type": "http", "url": f"http://127.0.0.1:{service.port}/", "value": "limit", "timeout_s": timeout_s}
    invariant = {"name": name, "description": "the limit is wrong", "probe": probe, "expect": "== 10", **more}
    return Subject.model_validate({"name": "limiter", "context": "a rate limiter", "invariant": [invariant]})


def watch(
    spec: Subject, tickets: TicketDB, clock: Clock | None = None, settings: MonitorSettings | None = None, **more: Any
) -> MonitorLoop:
    subject, checker = ConfiguredSubject(spec, clock), ConfiguredChecker(spec)
    return MonitorLoop(subject, checker, tickets, settings=settings, spec=spec, clock=clock, **more)


async def only(tickets: TicketDB, key: str | None = None) -> Ticket:
    found = [t for t in await tickets.list_tickets() if key in (None, t.violation_key)]
    assert len(found) == 1, found
    return found[0]


# ---- opening


async def test_a_violation_opens_one_ticket_with_the_observation_that_fired(
    service: Service, tickets: TicketDB
) -> None:
    spec = limiter(service, severity="critical")
    loop = watch(spec, tickets)
    assert (await loop.cycle()).line == "Check complete: all passing"
    assert await tickets.list_tickets() == []
    service.value = 99
    report = await loop.cycle()
    assert report.line == "1 violation(s) detected"
    service.value = 98
    again = await loop.cycle()
    ticket = await only(tickets)
    assert [t.id for t in (*report.tickets, *again.tickets)] == [ticket.id] * 2
    assert ticket.status is TicketStatus.OPEN
    assert ticket.severity == "critical"
    assert ticket.occurrence_count == 2
    assert ticket.subject_context == "a rate limiter"
    assert "the limit is wrong" in ticket.message
    assert "98" in ticket.message
    assert ticket.batch_key == again.batch_key
    assert again.batch_key == f"batch-{again.at.isoformat(timespec='microseconds')}"
    assert ticket.metric_snapshot is not None, "D-18"
    seen = ticket.metric_snapshot["limit"]
    assert (seen["light"], seen["value"]) == ("red", 99)
    assert "curl" in seen["how"]
    assert ticket.check_spec is not None
    assert ticket.check_spec["invariant"]["expect"] == "== 10"
    assert ticket.first_seen_at < ticket.last_seen_at
    assert abs(ticket.first_seen_at - report.at) < timedelta(seconds=5)


async def test_one_batch_key_for_all_tickets_of_a_cycle(service: Service, tickets: TicketDB) -> None:
    one, two = limiter(service, "one"), limiter(service, "two")
    spec = one.model_copy(update={"invariant": one.invariant + two.invariant})
    service.value = 1
    report = await watch(spec, tickets).cycle()
    assert report.line == "2 violation(s) detected"
    assert {t.batch_key for t in await tickets.list_tickets()} == {report.batch_key}


async def test_a_grace_period_survives_a_restart(service: Service, tickets: TicketDB) -> None:
    """D-27: the beginning of an episode was in memory only, so a restart every minute meant no alert, ever."""
    clock = Clock(rate=HOUR)
    spec = limiter(service, grace_s=HOUR)
    service.value = 1
    first = await watch(spec, tickets, clock).cycle()
    assert first.line == "Check complete: 1 in grace"
    assert await tickets.list_tickets() == []
    await clock.sleep(HOUR)
    second = await watch(spec, tickets, clock).cycle()
    assert second.violations == ("limit",)
    ticket = await only(tickets)
    assert abs((ticket.first_seen_at - first.at).total_seconds()) < HOUR, "the episode began before the restart"
    assert ticket.last_seen_at - ticket.first_seen_at >= timedelta(seconds=HOUR)


async def test_a_green_look_ends_the_grace_period(service: Service, tickets: TicketDB) -> None:
    clock = Clock(rate=HOUR)
    loop = watch(limiter(service, grace_s=HOUR), tickets, clock)
    service.value = 1
    await loop.cycle()
    await clock.sleep(HOUR)
    service.value = 10
    await loop.cycle()
    service.value = 1
    assert (await loop.cycle()).pending == ("limit",)


# ---- clearing


async def test_a_ticket_that_nobody_worked_on_is_cleared_after_enough_green_cycles(
    service: Service, tickets: TicketDB
) -> None:
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=2))
    service.value = 1
    await loop.cycle()
    service.value = 10
    assert (await loop.cycle()).cleared == 0
    assert (await loop.cycle()).cleared == 1
    ticket = await only(tickets)
    assert (ticket.status, ticket.reason) == (TicketStatus.CANCELED, "cleared")


async def test_a_loop_clears_only_the_tickets_of_its_own_subject(service: Service, tickets: TicketDB) -> None:
    other = InvariantViolation("elsewhere", "m", Clock().now(), Clock().now())
    await tickets.create_or_update_ticket(other)
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=1))
    assert [(await loop.cycle()).cleared for _ in range(3)] == [0, 0, 0]
    assert (await only(tickets)).status is TicketStatus.OPEN


async def test_an_older_look_does_not_clear_what_another_monitor_has_just_seen(
    service: Service, tickets: TicketDB
) -> None:
    """Two monitors that see different things must not open and close tickets in turn, one every cycle."""
    spec = limiter(service)
    settings = MonitorSettings(clear_after=2)
    async with Service() as elsewhere:
        here = watch(spec, tickets, settings=settings)
        there = watch(limiter(elsewhere), tickets, settings=settings)
        await here.cycle()
        await here.cycle()
        elsewhere.value = 1
        ticket = (await there.cycle()).tickets[0]
        for _ in range(3):
            assert (await here.cycle()).cleared == 0
            await there.cycle()
        assert (await only(tickets)).id == ticket.id
        # The other one has gone: two looks of ours after its last one are enough.
        assert [(await here.cycle()).cleared for _ in range(2)] == [0, 1]


async def test_a_held_ticket_stays_as_it_is(service: Service, tickets: TicketDB) -> None:
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=1))
    service.value = 1
    held = (await loop.cycle()).tickets[0]
    assert held.id is not None
    await tickets.hold_ticket(held.id)
    service.value = 10
    assert [(await loop.cycle()).cleared for _ in range(3)] == [0, 0, 0]
    await tickets.unhold_ticket(held.id)
    assert (await loop.cycle()).cleared == 1


async def test_an_escalation_is_sticky_and_a_ticket_at_work_is_left_alone(service: Service, tickets: TicketDB) -> None:
    """D-09: the next cycle reopened an escalated ticket and erased its diagnosis, every 30 seconds."""
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=1))
    queue = WorkQueue(tickets.database)
    service.value = 1
    await loop.cycle()
    await queue.register("w", 60.0)
    claim = (await queue.claim("w"))[0]
    service.value = 10
    assert (await loop.cycle()).cleared == 0
    assert (await only(tickets)).status is TicketStatus.RUNNING
    service.value = 1
    await loop.cycle()
    await queue.finish(
        claim,
        TicketStatus.ESCALATED,
        Reason.GAVE_UP,
        diagnosis="the disk is broken",
        session_id=None,
        session_status="escalated",
    )
    for value in (1, 10, 1, 1):
        service.value = value
        assert (await loop.cycle()).cleared == 0
    ticket = await only(tickets)
    assert (ticket.status, ticket.reason) == (TicketStatus.ESCALATED, "gave_up")
    assert ticket.diagnosis == "the disk is broken"
    assert ticket.occurrence_count == 5


async def test_a_service_that_comes_back_by_itself_and_fails_again_opens_a_new_ticket(
    service: Service, tickets: TicketDB
) -> None:
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=1))
    ids = set()
    for _ in range(2):
        service.value = 1
        ids.add((await loop.cycle()).tickets[0].id)
        service.value = 10
        await loop.cycle()
    assert len(ids) == 2


async def test_what_a_person_canceled_stays_canceled_through_the_episode_and_a_restart(
    service: Service, tickets: TicketDB
) -> None:
    spec = limiter(service)
    service.value = 1
    ticket = (await watch(spec, tickets).cycle()).tickets[0]
    assert ticket.id is not None
    await tickets.cancel_ticket(ticket.id)
    loop = watch(spec, tickets, settings=MonitorSettings(clear_after=1))
    await loop.cycle()
    assert (await only(tickets)).status is TicketStatus.CANCELED
    service.value = 10
    await loop.cycle()
    service.value = 1
    assert (await loop.cycle()).tickets[0].id != ticket.id, "another episode"


# ---- blind


async def test_unknown_resolves_nothing(service: Service, tickets: TicketDB) -> None:
    """D-03: one failed look used to close every open incident."""
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=1, blind_after_s=HOUR))
    service.value = 1
    await loop.cycle()
    service.value = None
    for _ in range(4):
        report = await loop.cycle()
        assert report.line == "Check complete: 1 unknown"
        assert report.cleared == 0
    assert (await only(tickets)).status is TicketStatus.OPEN


async def test_an_interrupted_row_of_green_looks_begins_anew(service: Service, tickets: TicketDB) -> None:
    loop = watch(limiter(service), tickets, settings=MonitorSettings(clear_after=2, blind_after_s=HOUR))
    service.value = 1
    await loop.cycle()
    cleared = []
    for value in (10, None, 10, 10):
        service.value = value
        cleared.append((await loop.cycle()).cleared)
    assert cleared == [0, 0, 0, 1]


@pytest.mark.parametrize("value", [None, "hang", '"ten"'])
async def test_blindness_is_an_incident_after_its_own_grace_and_ends_when_looks_succeed(
    service: Service, tickets: TicketDB, value: object
) -> None:
    clock = Clock(rate=HOUR)
    settings = MonitorSettings(clear_after=1, blind_after_s=HOUR)
    expect = "< 11" if value == '"ten"' else "== 10"
    spec = limiter(service, timeout_s=1.5 if value == "hang" else 10.0, expect=expect)
    service.value = value
    first = await watch(spec, tickets, clock, settings).cycle()
    assert first.tickets == ()
    await clock.sleep(HOUR)
    loop = watch(spec, tickets, clock, settings)  # a restart does not make it see again
    report = await loop.cycle()
    assert report.violations == ()
    ticket = await only(tickets)
    assert ticket.violation_key == "monitor-blind:limit"
    assert ticket.severity == "critical"
    assert ticket.check_spec is None, "there is nothing an agent could prove"
    assert "'limit'" in ticket.message
    assert report.unknown["limit"] in ticket.message
    service.value = 50  # red is a successful look
    await loop.cycle()
    assert (await only(tickets, "monitor-blind:limit")).reason == "cleared"
    assert (await only(tickets, "limit")).status is TicketStatus.OPEN


# ---- flapping


async def test_a_flapping_ticket_stays_open_until_it_is_quiet(service: Service, tickets: TicketDB) -> None:
    clock = Clock(rate=5 * HOUR)
    settings = MonitorSettings(clear_after=1, flap_changes=4, flap_window_s=10 * HOUR)
    loop = watch(limiter(service), tickets, clock, settings)
    for value in (10, 1, 10, 1, 10, 1):
        service.value = value
        report = await loop.cycle()
    assert report.tickets[0].flapping
    service.value = 10
    assert (await loop.cycle()).cleared == 0
    await clock.sleep(10 * HOUR)
    report = await loop.cycle()
    assert report.cleared == 1
    assert [t.status for t in await tickets.list_tickets()].count(TicketStatus.OPEN) == 0


# ---- plug-ins


class Cluster:
    """A plug-in in the seed's shape: stores that are up or down, a grace period kept by the checker itself."""

    def __init__(self) -> None:
        self.down: list[str] = []
        self.failure: Exception | None = None
        self.restored: dict[str, datetime] = {}

    async def observe(self) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        return {"stores": [{"id": i, "state": "Down" if i in self.down else "Up"} for i in ("1", "2")]}

    def restore(self, first_seen: dict[str, datetime]) -> None:
        self.restored = dict(first_seen)

    def check(self, observation: dict[str, Any]) -> list[InvariantViolation]:
        now = datetime.now().astimezone()
        down = [s["id"] for s in observation["stores"] if s["state"] == "Down"]
        return [InvariantViolation("store_down", f"store {i} is down", now, now, i, "critical") for i in down]


CLUSTER = Subject(name="tikv", plugin="module:factory", invariant=(Invariant(name="store_down"),))


async def test_a_plugin_reports_one_incident_per_entity(tickets: TicketDB) -> None:
    cluster = Cluster()
    loop = MonitorLoop(cluster, cluster, tickets, spec=CLUSTER, settings=MonitorSettings(clear_after=1))
    cluster.down = ["1", "2"]
    assert (await loop.cycle()).violations == ("store_down:1", "store_down:2")
    cluster.down = ["2"]
    assert (await loop.cycle()).cleared == 1
    assert (await only(tickets, "store_down:1")).reason == "cleared"
    ticket = await only(tickets, "store_down:2")
    assert ticket.metric_snapshot == {"stores": [{"id": "2", "state": "Down"}]}
    assert ticket.check_spec is not None
    assert ticket.check_spec["subject"]["plugin"] == "module:factory"


@pytest.mark.parametrize("listed", [True, False])
async def test_a_restarted_plugin_gets_its_episodes_back_and_still_owns_its_tickets(
    tickets: TicketDB, listed: bool
) -> None:
    spec = CLUSTER if listed else CLUSTER.model_copy(update={"invariant": ()})
    cluster = Cluster()
    cluster.down = ["1", "2"]
    before = await MonitorLoop(cluster, cluster, tickets, spec=spec).cycle()
    began = {t.violation_key: t.first_seen_at for t in before.tickets}
    restarted = Cluster()
    restarted.down = ["2"]
    loop = MonitorLoop(restarted, restarted, tickets, spec=spec, settings=MonitorSettings(clear_after=1))
    report = await loop.cycle()
    assert restarted.restored == began
    assert report.cleared == 1, "store 1 came back while nobody looked"
    states = await tickets.monitor_states()
    assert states["store_down:2"].first_seen == began["store_down:2"], "the older beginning wins"
    assert states["store_down:1"].light == "green"


async def test_a_plugin_that_fails_makes_everything_unknown_and_one_incident(tickets: TicketDB) -> None:
    clock = Clock(rate=HOUR)
    settings = MonitorSettings(clear_after=1, blind_after_s=HOUR)
    cluster = Cluster()
    loop = MonitorLoop(cluster, cluster, tickets, spec=CLUSTER, settings=settings, clock=clock)
    cluster.down = ["1", "2"]
    await loop.cycle()
    cluster.failure = ConnectionError("prometheus is down")
    report = await loop.cycle()
    assert report.line == "Check complete: 1 unknown"
    await clock.sleep(HOUR)
    restarted = MonitorLoop(cluster, cluster, tickets, spec=CLUSTER, settings=settings, clock=clock)
    await restarted.cycle()
    blind = await only(tickets, "monitor-blind:tikv")
    assert "prometheus is down" in blind.message
    assert {t.status for t in await tickets.list_tickets()} == {TicketStatus.OPEN}
    assert len(await tickets.list_tickets()) == 3
    cluster.failure = None
    again = MonitorLoop(cluster, cluster, tickets, spec=CLUSTER, settings=settings, clock=clock)
    await again.cycle()
    assert (await only(tickets, "monitor-blind:tikv")).reason == "cleared"


PLUGIN = """
from datetime import datetime, timezone
from pathlib import Path
from operator_core.monitor.types import InvariantViolation

FLAG = Path(__file__).with_name("flag")

class Lamp:
    async def observe(self):
        return {"text": FLAG.read_text()}

    def check(self, observation):
        now = datetime.now(timezone.utc)
        return [InvariantViolation("lamp", "the lamp is out", now, now)] if observation["text"] == "out" else []
"""


async def test_configured_subjects_and_plugins_run_side_by_side(
    service: Service, tickets: TicketDB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lamp_plugin.py").write_text(textwrap.dedent(PLUGIN))
    (tmp_path / "flag").write_text("on")
    monkeypatch.syspath_prepend(str(tmp_path))
    lamp = Subject(name="lamp", plugin="lamp_plugin:Lamp")
    settings = Settings(
        subject=(limiter(service), lamp, Subject(name="by-hand")), monitor=MonitorSettings(clear_after=1)
    )
    reports: list[CycleReport] = []
    loops = build_loops(settings, tickets, on_cycle=reports.append, interval_s=0.05)
    assert [loop.name for loop in loops] == ["limiter", "lamp"]
    stop = asyncio.Event()
    running = [asyncio.create_task(loop.run(stop)) for loop in loops]
    try:
        await wait_until_async(lambda: {r.subject for r in reports} == {"limiter", "lamp"})
        (tmp_path / "flag").write_text("out")
        service.value = 7
        await wait_until_async(lambda: _keys_open(tickets, {"lamp", "limit"}))
        (tmp_path / "flag").unlink()
        await wait_until_async(lambda: any("FileNotFoundError" in str(r.unknown) for r in reports))
        assert await _keys_open(tickets, {"lamp", "limit"})
        (tmp_path / "flag").write_text("on")
        service.value = 10
        await wait_until_async(lambda: _keys_open(tickets, set()))
    finally:
        stop.set()
        await asyncio.wait_for(asyncio.gather(*running), 10)
        sys.modules.pop("lamp_plugin", None)


async def _keys_open(tickets: TicketDB, keys: set[str]) -> bool:
    return {t.violation_key for t in await tickets.list_tickets(TicketStatus.OPEN)} == keys


async def test_an_invariant_that_nobody_would_look_at_is_a_mistake_in_the_configuration(tmp_path: Path) -> None:
    async with TicketDB(tmp_path / "t.db") as tickets:
        forgotten = Subject(name="shop", invariant=(Invariant(name="till"),))
        with pytest.raises(ConfigError, match="'till' of the subject 'shop'"):
            build_loops(Settings(subject=(forgotten,)), tickets)
        with pytest.raises(ConfigError, match="checker but no plugin"):
            build_loops(Settings(subject=(Subject(name="shop", checker="a:b"),)), tickets)


# ---- running


async def test_it_stops_while_a_look_hangs_and_a_wake_begins_a_cycle_at_once(service: Service, tmp_path: Path) -> None:
    async with TicketDB(tmp_path / "t.db") as tickets:
        reports: list[CycleReport] = []
        wake, stop = asyncio.Event(), asyncio.Event()
        loop = watch(limiter(service), tickets, interval_s=600.0, wake=wake, on_cycle=reports.append)
        running = asyncio.create_task(loop.run(stop))
        await wait_until_async(lambda: len(reports) == 1)
        service.value = 3
        wake.set()
        await wait_until_async(lambda: len(reports) == 2)
        assert reports[1].violations == ("limit",)
        service.value = "hang"
        wake.set()
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.wait_for(running, 3)


async def test_a_listener_that_fails_does_not_stop_the_watch(service: Service, tmp_path: Path) -> None:
    calls: list[int] = []

    def listener(report: CycleReport) -> None:
        calls.append(1)
        raise BrokenPipeError

    async with TicketDB(tmp_path / "t.db") as tickets:
        stop = asyncio.Event()
        running = asyncio.create_task(watch(limiter(service), tickets, interval_s=0.02, on_cycle=listener).run(stop))
        await wait_until_async(lambda: len(calls) >= 3)
        stop.set()
        await running


async def test_a_store_that_fails_is_reported_once_and_tried_again(service: Service, tmp_path: Path) -> None:
    """The table goes away and comes back under a running monitor; the episode that began meanwhile is not lost."""
    path = tmp_path / "t.db"
    reports: list[CycleReport] = []

    # In a thread: on the event loop it would wait for a transaction that waits for the event loop.
    def other(statement: str) -> None:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute(statement)
            connection.commit()

    async with TicketDB(path) as tickets:
        stop = asyncio.Event()
        running = asyncio.create_task(
            watch(limiter(service), tickets, interval_s=0.05, on_cycle=reports.append).run(stop)
        )
        await wait_until_async(lambda: len(reports) >= 2)
        assert not any(r.error for r in reports)
        await asyncio.to_thread(other, "ALTER TABLE monitor_states RENAME TO gone")
        await wait_until_async(lambda: reports[-1].error)
        service.value = 1
        seen = len(reports)
        await asyncio.sleep(0.5)
        assert len(reports) == seen, "the same failure is told once"
        assert not running.done()
        await asyncio.to_thread(other, "ALTER TABLE gone RENAME TO monitor_states")
        back = Clock().now()
        await wait_until_async(lambda: reports[-1].violations)
        ticket = await only(tickets)
        assert ticket.first_seen_at < back, "what was seen while the store was away counts"
        stop.set()
        await running


async def test_a_store_that_is_down_fails_a_single_cycle(service: Service, tmp_path: Path) -> None:
    path = tmp_path / "t.db"
    async with TicketDB(path) as tickets:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("DROP TABLE monitor_states")
            connection.commit()
        with pytest.raises(StoreError):
            await watch(limiter(service), tickets).cycle()


WATCHER = """
import asyncio, sys
from operator_core.db.tickets import TicketDB
from operator_core.model.invariant import Subject
from operator_core.config import Settings
from operator_core.monitor import build_loops

async def main(store, spec):
    async with TicketDB(store) as tickets:
        settings = Settings(subject=(Subject.model_validate_json(spec),))
        def told(report):
            print(report.error or "ok", flush=True)
        loop, = build_loops(settings, tickets, on_cycle=told, interval_s=0.02)
        await loop.run(asyncio.Event())

asyncio.run(main(*sys.argv[1:]))
"""


async def test_two_monitors_in_two_processes_open_one_ticket(service: Service, store_url: str) -> None:
    """D-23: check, then insert, without a unique index."""
    names = [f"limit{i}" for i in range(8)]
    specs = [limiter(service, name) for name in names]
    spec = specs[0].model_copy(update={"invariant": tuple(i for s in specs for i in s.invariant)})
    async with TicketDB(store_url) as tickets:
        processes = [
            await asyncio.create_subprocess_exec(
                sys.executable, "-c", WATCHER, store_url, spec.model_dump_json(), stdout=asyncio.subprocess.PIPE
            )
            for _ in range(2)
        ]
        try:
            for process in processes:
                assert process.stdout is not None
                assert await asyncio.wait_for(process.stdout.readline(), 40) == b"ok\n"
            # Both are at work, so both see it break in the same moment.
            service.value = 1
            await wait_until_async(lambda: _counted(tickets, 10), timeout=40, what="ten occurrences of each")
        finally:
            for process in processes:
                process.kill()
            said = [(await process.communicate())[0].decode().split("\n") for process in processes]
        assert sorted(t.violation_key for t in await tickets.list_tickets()) == names
        assert [line for lines in said for line in lines if line not in ("ok", "")] == []
        assert min(len(lines) for lines in said) > 2, "both saw it"


async def _counted(tickets: TicketDB, times: int) -> bool:
    found = await tickets.list_tickets()
    return len(found) >= 8 and all(t.occurrence_count >= times for t in found)


async def test_a_port_that_nobody_listens_on_is_red_and_a_command_knows_the_workspace(
    tickets: TicketDB, tmp_path: Path
) -> None:
    (tmp_path / "state").write_text(f"{os.getpid()}")
    spec = Subject.model_validate(
        {
            "name": "box",
            "workspace": tmp_path,
            "env": {"WANTED": str(os.getpid())},
            "invariant": [
                {"name": "listens", "probe": {"type": "tcp", "port": free_port()}},
                {"name": "state", "probe": {"type": "command", "command": '[ "$(cat $WORKSPACE/state)" = "$WANTED" ]'}},
            ],
        }
    )
    report = await watch(spec, tickets).cycle()
    assert report.violations == ("listens",)
    (tmp_path / "state").write_text("other")
    assert (await watch(spec, tickets).cycle()).violations == ("listens", "state")

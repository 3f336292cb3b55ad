"""Three workers, eighteen sessions, and for twenty seconds ``kill -9`` and zombies at random; then the invariants."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from operator_core import clock
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.ticket import InvariantViolation, TicketStatus
from operator_core.scripted import ScriptedProcess
from tests.support.crash_checks import check_session
from tests.support.depth import DEEP
from tests.support.forge import DECLARED_DEAD, Forge
from tests.support.rig import spec_of

pytestmark = pytest.mark.slow

BRAIN = str(Path(__file__).parents[1] / "support" / "crash_brain.py")
WORKERS, SESSIONS, CALLS = 3, 18, 6
STORM_S = float(os.environ.get("OPERATOR_STORM_S") or (20 if DEEP else 8))
LEASE_S = 1.0


class _Storm:
    def __init__(self, store: str, folder: Path, seed: int) -> None:
        self.store, self.folder = store, folder
        self.random = random.Random(seed)
        self.faults: Counter[str] = Counter()

    def rage(self) -> tuple[Counter[str], float]:
        """Everything; how many calls had which status, and how long it took after the storm."""
        asyncio.run(self._open())
        with ScriptedProcess(f"{BRAIN}:long") as server, Forge(self.folder / "output") as forge:
            self.forge = forge
            self.settings = Settings.model_validate(
                {
                    "model": {"engine": "scripted", "base_url": server.base_url, "summaries": "deterministic"},
                    "sandbox": {"backend": "none"},
                    "worker": {
                        "lease_s": LEASE_S,
                        "poll_s": 0.1,
                        "concurrency": 2,
                        "lost_after": 10_000,
                        "state_dir": self.folder / "state",
                    },
                }
            )
            workers = [self._start() for _ in range(WORKERS)]
            deadline = time.monotonic() + STORM_S
            while time.monotonic() < deadline and workers:
                self._strike(workers)
            calm = time.monotonic()
            for pid in workers:
                forge.wait(pid, 60)
            forge.finish(self.store, self.settings)
            took = time.monotonic() - calm
            # Without a body: its sender was killed while it sent.
            refused = [r for r in server.requests(bodies=False) if r["status"] not in (200, None) and r["size"]]
            assert refused == [], "a history was sent that no model accepts"
        return asyncio.run(self._check()), took

    def _start(self) -> int:
        return self.forge.start(self.store, self.settings)

    def _strike(self, workers: list[int]) -> None:
        time.sleep(self.random.uniform(0.15, 0.6))
        at = self.random.randrange(len(workers))
        pid = workers[at]
        if (code := self.forge.poll(pid)) is not None:
            if code == 0:
                workers.pop(at)  # it found nothing left to do
                return
            assert code == DECLARED_DEAD, f"a worker ended with {code}"
            self.faults["declared dead"] += 1
        elif self.random.random() < 0.7:
            os.kill(pid, signal.SIGKILL)
            self.forge.wait(pid)
            self.faults["killed"] += 1
        else:
            # It sleeps through its lease, while another one takes over, and wakes up in the middle of what it did.
            os.kill(pid, signal.SIGSTOP)
            workers[at] = self._start()
            time.sleep(1.6 * LEASE_S)
            os.kill(pid, signal.SIGCONT)
            self.faults["zombies"] += 1
            woke = time.monotonic()
            while (code := self.forge.poll(pid)) is None and time.monotonic() < woke + 1.0:
                time.sleep(0.03)
            if code is None:  # nobody had noticed that it was away
                os.kill(pid, signal.SIGKILL)
                self.forge.wait(pid)
            else:
                assert code in (0, DECLARED_DEAD), f"a zombie ended with {code}"
                self.faults["zombies declared dead"] += code == DECLARED_DEAD
            return
        workers[at] = self._start()

    async def _open(self) -> None:
        async with TicketDB(self.store) as tickets:
            for n in range(SESSIONS):
                workspace = self.folder / f"session-{n}"
                workspace.mkdir()
                seen = clock.now()
                violation = InvariantViolation(f"session-{n}", "The file is missing.", seen, seen)
                await tickets.create_or_update_ticket(
                    violation, {"light": "red"}, check=spec_of(workspace, f"session-{n}")
                )

    async def _check(self) -> Counter[str]:
        statuses: Counter[str] = Counter()
        async with Database.open(self.store) as database:
            tickets = await TicketDB(database).list_tickets()
            assert len(tickets) == SESSIONS
            left = [(t.invariant_name, t.status, t.fence) for t in tickets if t.status is not TicketStatus.RESOLVED]
            assert left == [], "lost or stuck"
            audit = AuditLogDB(database)
            for ticket in tickets:
                assert ticket.reason == "verified"
                sessions = await audit.sessions(ticket_id=ticket.id)
                assert [s.status for s in sessions] == ["completed"]
                entries = await audit.entries(sessions[0].session_id)
                statuses += check_session(entries, self.folder / ticket.invariant_name)
            self.faults["takeovers"] = sum(t.fence - 1 for t in tickets)
            report = await verify(database)
            assert report.ok, report.problem
        return statuses


@pytest.mark.timeout(200)
def test_storm(tmp_path: Path, store_url: str) -> None:
    seed = int(os.environ.get("OPERATOR_STORM_SEED") or random.SystemRandom().randrange(10**6))
    storm = _Storm(store_url, tmp_path, seed)
    try:
        statuses, took = storm.rage()
    except Exception as error:
        said = ""
        with contextlib.suppress(OSError):
            said = (tmp_path / "output").read_text("utf-8", "replace")[-3000:]
        raise AssertionError(f"OPERATOR_STORM_SEED={seed}: {dict(storm.faults)}: {error}\n{said}") from error
    print(f"seed {seed}: {dict(storm.faults)}, {dict(statuses)}, {took:.1f} s to finish after the storm")
    assert storm.faults["killed"] + storm.faults["zombies"] >= 5, f"seed {seed}: that was no storm: {storm.faults}"
    assert statuses["ok"] >= SESSIONS * CALLS

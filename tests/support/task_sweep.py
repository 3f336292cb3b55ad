"""What must hold of a task whatever killed its workers, and lanes of workers that are killed at named places."""

from __future__ import annotations

import asyncio
import json
import queue
import random
import re
import signal
import subprocess
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from operator_core.agent_lab.history import fold
from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.db.tickets import TicketDB
from operator_core.model.entry import Entry, EntryKind
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import Reason, TicketStatus
from operator_core.scripted import ScriptedProcess
from operator_core.work.folder import SESSIONS, folder_name, short_id
from tests.support.forge import DECLARED_DEAD, Forge

__all__ = [
    "BRAIN",
    "EXPORTS",
    "LOUD",
    "PHASES",
    "Requests",
    "Swept",
    "check_requests",
    "check_task",
    "random_pairs",
    "role_of_request",
    "sweep",
    "sweep_settings",
]

BRAIN = str(Path(__file__).with_name("task_brain.py"))
PHASES = ["worker_1", "verifier_1", "worker_2", "verifier_2"]
"""Of the task that :func:`tests.support.task_brain.sweep` works on."""
LOUD = TaskSpec(
    name="say hello", prompt="Make a script hello.", checks=(TaskCheck(command="sh ./hello | grep -i hello >&2"),)
)
"""That task; its check passes on what the verifier rejects."""
BRIEF = ("TASK.md", "VERIFICATION.md", "TASK_PROMPT.md", "SUCCESS_CRITERIA.md")
EXPORTS = (
    "VERDICT.json", "SUMMARY.md", "result.md", "transcript.md", "session_summary.json", "SESSION_LOG.md", "REPORT.md",
    "report.json", "GIT_HISTORY.md",
)  # fmt: skip
_EFFECT = re.compile(r"effect-([a-z]+)-\d+")

Requests = Sequence[dict[str, Any]]
"""What :meth:`ScriptedProcess.requests` returns."""


def role_of_request(body: dict[str, Any]) -> str:
    """``parser``, ``worker``, ``verifier`` or ``summarizer``."""
    tools = {tool["name"] for tool in body.get("tools") or ()}
    if "submit_verdict" in tools:
        return "verifier"
    if "report_done" in tools:
        return "worker"
    return "parser" if "task_description" in json.dumps(body["system"]) else "summarizer"


def check_requests(entries: list[Entry], requests: Requests) -> Counter[str]:
    """Nothing was paid twice, and each history that was sent is what the journal says.

    Args:
        entries: The journal of one finished session.
        requests: Those of this session.

    Returns:
        By phase, how many replies were paid and lost: cut off by a kill, before they were in the journal.
    """
    messages = {phase: fold(entries, phase).messages for phase in {e.phase or "" for e in entries}}
    asked: dict[str, Counter[int]] = defaultdict(Counter)
    for request in requests:
        body = request["body"]
        role = role_of_request(body)
        phase = {"parser": "prepare", "summarizer": "summarizer"}.get(role)
        if phase is None:
            sent = body["messages"]
            phase = next(
                (p for p in messages if p.startswith(role) and messages[p][: len(sent)] == sent),
                None,
            )
            assert phase is not None, f"a {role} was sent what is not in the journal: {sent}"
        asked[phase][sum(m["role"] == "assistant" for m in body["messages"])] += 1
    lost: Counter[str] = Counter()
    for phase, steps in asked.items():
        kind = {"prepare": EntryKind.TASK, "summarizer": EntryKind.SUMMARY}.get(phase, EntryKind.MESSAGE)
        answered = sum(
            e.entry_type == kind and e.phase == phase and (kind != EntryKind.MESSAGE or e.body["role"] == "assistant")
            for e in entries
        )
        assert len(steps) == answered, f"{phase}: {answered} replies in the journal, asked for {dict(steps)}"
        lost += Counter({phase: steps.total() - answered})
    return lost


def check_task(entries: list[Entry], folder: Path, *, boxed: bool = False) -> Counter[str]:
    """The invariants of the journal and the files of one finished session; returns how many calls had which status.

    Args:
        folder: The folder of the attempt.
        boxed: Whether there was a sandbox.

    Raises:
        AssertionError: One of them does not hold.
    """
    assert [e.seq for e in entries] == list(range(len(entries))), "the journal has holes"
    fences = [e.fence or 0 for e in entries]
    assert fences == sorted(fences), "an older owner wrote after a newer one"
    assert [e.phase for e in entries if e.entry_type == EntryKind.PHASE_START] == PHASES, "a phase began twice"
    kinds = Counter(e.entry_type for e in entries)
    once = ("task", "baseline", "summary", "delivered", "report", "session_end")
    assert {kind: kinds[kind] for kind in once} == dict.fromkeys(once, 1), kinds
    assert (kinds["verdict"], kinds["snapshot"], kinds["evidence"]) == (2, 2, 4), kinds
    statuses: Counter[str] = Counter()
    for phase in PHASES:
        statuses += _check_calls([e for e in entries if e.phase == phase], phase, folder, boxed)
    assert {name for name in (*BRIEF, *EXPORTS) if not (folder / name).is_file()} == set(), "files are missing"
    left = [p.name for p in folder.iterdir() if p.name.endswith((".tmp", ".partial"))]
    assert left == [], "half of a file was left"
    summary = json.loads((folder / "session_summary.json").read_text())
    assert summary["terminal_status"] == "completed"
    found = [p["phase"] for p in summary["phases"]]
    assert found == [*PHASES, "summarizer"], found
    assert json.loads((folder / "VERDICT.json").read_text())["approved"] is True
    _check_commit(folder / "workspace")
    return statuses


def _check_calls(entries: list[Entry], phase: str, folder: Path, boxed: bool) -> Counter[str]:
    results = [e for e in entries if e.entry_type == EntryKind.TOOL_RESULT]
    by_id = {r.tool_use_id: r for r in results}
    asked = [
        block
        for message in fold(entries, phase).messages
        if message["role"] == "assistant"
        for block in message["content"]
        if block["type"] == "tool_use"
    ]
    ids = {block["id"] for block in asked}
    assert len(results) == len(by_id) == len(ids) == len(asked), f"{phase}: each call has one result"
    assert set(by_id) == ids
    assert {e.tool_use_id for e in entries if e.entry_type == EntryKind.TOOL_CALL} == ids, "each call has one intent"
    assert sum(e.entry_type == EntryKind.OUTCOME for e in entries) == 1, f"{phase} ended twice"
    statuses: Counter[str] = Counter()
    for block in asked:
        if block["name"] != "shell":
            continue
        result = by_id[block["id"]]
        status = (result.meta or {})["status"]
        found = _EFFECT.search(block["input"]["command"])
        assert found, block
        name = found[0]
        if found[1] in ("first", "second") and boxed:
            continue  # a verifier can leave nothing anywhere
        files = [file for file in (folder / name, folder / "workspace" / name) if file.exists()]
        effects = sum(len(file.read_text().split()) for file in files)
        assert effects <= 1, f"EXECUTED TWICE: {name}"
        assert status in ("ok", "not_executed", "unknown")
        assert status != "ok" or effects == 1, f"a lie about {name}: ok, but there was no effect"
        assert status != "not_executed" or effects == 0, f"a lie about {name}: executed"
        if status == "unknown":
            assert "outcome unknown" in (result.raw_content or "")
        statuses[status] += 1
    return statuses


def _check_commit(workspace: Path) -> None:
    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(workspace), *arguments], capture_output=True, text=True, check=True
        ).stdout

    assert git("status", "--porcelain") == "", "the branch is not what was verified"
    assert git("show", "HEAD:hello") == "echo HELLO\n", "that is not the result"
    log = git("log", "--format=%s").splitlines()
    assert len(log) == 2, f"not one commit for the start and one for the result: {log}"


class Swept(NamedTuple):
    """What a sweep found.

    Attributes:
        reached: The names of the places of the kills.
        statuses: Of all calls.
        lost: By phase, how many replies were paid and lost.
        over: Whether the last place was beyond the end.
    """

    reached: list[str]
    statuses: Counter[str]
    lost: Counter[str]
    over: bool


def sweep_settings(server: str, folder: Path, **more: Any) -> Settings:
    """Those of a worker in a sweep: a short lease, and everything in one folder."""
    return Settings.model_validate(
        {
            "model": {"engine": "scripted", "base_url": server, "summaries": "deterministic"},
            "sandbox": {"backend": "none"},
            "tasks": {"root": folder},
            "worker": {"lease_s": 2.0, "poll_s": 0.1, "lost_after": 100, "state_dir": folder / "state"},
            **more,
        }
    )


class _Lane:
    """One store: kills at the places that it is given, one after the other."""

    def __init__(self, number: int, store: str, folder: Path, server: ScriptedProcess, forge: Forge, **more: Any):
        self.forge, self.server = forge, server
        self.store, self.folder = store, folder / f"lane-{number}"
        self.folder.mkdir()
        self.settings = sweep_settings(server.base_url, self.folder, **more)
        self.reached: list[str] = []
        self.statuses: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self.sessions: list[tuple[str, int]] = []
        """Session, and how many workers it lost."""

    def run(self, take: Callable[[], tuple[str, ...] | None], stop: Callable[[], None]) -> None:
        """Take places until there are none.

        Args:
            take: The next ones: each kills one worker more of the same task.
            stop: Called when a worker was not killed, because there is no such place any more.
        """
        while (at := take()) is not None:
            try:
                # On a busy machine a worker may miss its lease, and end before it comes to the place: once more.
                ended = next((e for e in (self._kill_at(at) for _ in range(5)) if e != "too early"), "too early")
                assert ended != "too early", "every worker lost its lease before"
                if ended == "whole":
                    stop()
            except AssertionError as error:
                raise AssertionError(f"killed at {at} {self.reached[-len(at) :]}: {error}") from error
        # One more worker comes and goes, and cleans up what those left that were killed after the end.
        self.forge.finish(self.store, self.settings)
        assert list((self.folder / "state" / "sessions").iterdir()) == []
        asyncio.run(self._check_store())

    def _kill_at(self, at: tuple[str, ...]) -> str:
        """``killed`` there, ``whole`` if there is no such place, or ``too early``."""
        number = asyncio.run(self._submit())
        log = self.folder / "crashes"
        log.touch()
        kills, code, any_reached = 0, 0, False
        for place in at:
            before = len(log.read_text().split())
            pid = self.forge.start(self.store, self.settings, crash_at=place, crash_log=log)
            code = self.forge.wait(pid)
            reached = log.read_text().split()[before:]
            if reached:
                assert code == -signal.SIGKILL
                self.reached += reached
                any_reached = True
            else:
                assert code in (0, DECLARED_DEAD), f"the worker ended with {code}"
            kills += code != 0
            if code == 0:
                break
        while code != 0:
            code = self.forge.wait(self.forge.start(self.store, self.settings))
            assert code in (0, DECLARED_DEAD), f"the worker ended with {code}"
            kills += code != 0
            assert kills < 20, "worker after worker loses its lease"
        asyncio.run(self._check(number, kills))
        return "killed" if any_reached else "too early" if kills else "whole"

    async def _submit(self) -> int:
        async with TicketDB(self.store) as tickets:
            ticket = await tickets.submit_task(LOUD)
            assert ticket.id is not None
            return ticket.id

    async def _check(self, number: int, kills: int) -> None:
        async with Database.open(self.store) as database:
            ticket = await TicketDB(database).get_ticket(number)
            assert (ticket.status, ticket.reason) == (TicketStatus.RESOLVED, Reason.VERIFIED), ticket.diagnosis
            audit = AuditLogDB(database)
            sessions = await audit.sessions(ticket_id=number)
            assert [s.status for s in sessions] == ["completed"], "one session, in one folder"
            entries = await audit.entries(sessions[0].session_id)
            folder = self.folder / SESSIONS / folder_name(LOUD.name, short_id(ticket))
            assert [p.name for p in folder.iterdir()] == ["attempt-1"]
            self.statuses += check_task(entries, folder / "attempt-1", boxed=self.settings.sandbox.backend != "none")
            self.sessions.append((sessions[0].session_id, kills))

    async def _check_store(self) -> None:
        by_session: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for request in self.server.requests():
            if request["model"]:
                by_session[request["body"]["metadata"]["user_id"]].append(request)
        async with Database.open(self.store) as database:
            for session, kills in self.sessions:
                entries = await AuditLogDB(database).entries(session)
                lost = check_requests(entries, by_session[session])
                assert lost.total() <= kills, f"paid twice: {dict(lost)}"
                self.lost += lost
            report = await verify(database)
            assert report.ok, report.problem


def sweep(folder: Path, stores: list[str], places: list[tuple[str, ...]], **more: Any) -> Swept:
    """Kill at each of these places, in as many lanes as there are stores.

    Args:
        folder: For everything.
        stores: Paths or URLs of empty stores.
        places: For each task: where its first worker is killed, and where those that go on.
        **more: Settings, by section.
    """
    for store in stores:
        asyncio.run(_create(store))  # one by one, because the migrations are not for threads
    left: queue.Queue[tuple[str, ...]] = queue.Queue()
    for place in places:
        left.put(place)
    over = threading.Event()
    failures: list[BaseException] = []

    def take() -> tuple[str, ...] | None:
        try:
            return None if over.is_set() or failures else left.get_nowait()
        except queue.Empty:
            return None

    with ScriptedProcess(f"{BRAIN}:sweep") as server, Forge(folder / "output") as forge:
        lanes = [_Lane(n, store, folder, server, forge, **more) for n, store in enumerate(stores)]

        def guarded(lane: _Lane) -> None:
            try:
                lane.run(take, over.set)
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=guarded, args=(lane,)) for lane in lanes]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        # Without a body: its sender was killed while it sent.
        refused = [r for r in server.requests(bodies=False) if r["status"] not in (200, None) and r["size"]]
        assert refused == [], "a history was sent that no model accepts"
    return Swept(
        [name for lane in lanes for name in lane.reached],
        sum((lane.statuses for lane in lanes), Counter()),
        sum((lane.lost for lane in lanes), Counter()),
        over.is_set(),
    )


def random_pairs(seed: int, count: int, most: int) -> list[tuple[str, ...]]:
    """Places for two kills of one task each: of its first worker, and of the one that goes on."""
    dice = random.Random(seed)
    return [(str(dice.randint(1, most)), str(dice.randint(1, most // 2))) for _ in range(count)]


async def _create(store: str) -> None:
    async with Database.open(store):
        pass

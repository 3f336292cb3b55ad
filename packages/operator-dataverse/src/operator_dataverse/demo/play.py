"""The story of the demo: a person, a real worker, and everything of Microsoft played by the double on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from operator_core import clock
from operator_core.cli.audit import say_report
from operator_core.cli.output import Output
from operator_core.cli.staging import ended_by_sigterm
from operator_core.db.engine import Database
from operator_core.db.integrity import verify
from operator_core.errors import OperatorError
from operator_core.scripted import ScriptedServer
from operator_dataverse.client import Dataverse, StaticToken
from operator_dataverse.demo.brain import ANSWER, QUARTER, TOTALS, demo_brain
from operator_dataverse.demo.showing import card_box, change_line, row_lines
from operator_dataverse.double import Double
from operator_dataverse.double.webhook import texts_of
from operator_dataverse.fleet.tasks import Tasks
from operator_dataverse.tables import MESSAGES, TASKS
from operator_dataverse.tables.task import TaskCode

__all__ = ["ALICE", "BOX", "Played", "Told", "play"]

ALICE = "alice@example.com"
BOX = "demo-box"
_LONGEST_S = 180.0
_LOOK_S = 0.1
_END_S = 30.0


@dataclass(frozen=True)
class Told:
    """How one task went.

    Attributes:
        name: Of the task.
        row_id: Of its row.
        codes: Every code that its row had, in order.
        messages: How many messages there are about it.
        cards: Headings of its cards, in order.
        ok: Whether it went as it should.
    """

    name: str
    row_id: str
    codes: tuple[int, ...]
    messages: int
    cards: tuple[str, ...]
    ok: bool


@dataclass(frozen=True)
class Played:
    """How the demo ended."""

    tasks: tuple[Told, ...]
    requests: int
    audit_ok: bool
    audit: str
    folder: Path
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether everything went as it should."""
        return self.audit_ok and all(task.ok for task in self.tasks)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {
            "ok": self.ok,
            "engine": "scripted",
            "tasks": [asdict(task) for task in self.tasks],
            "requests": self.requests,
            "audit": {"ok": self.audit_ok, "result": self.audit},
            "folder": str(self.folder),
            "seconds": round(self.seconds, 1),
        }


async def play(root: Path, out: Output) -> Played:
    """Play the story; nothing that was started is left running.

    Args:
        root: A new folder for the store, the settings and the session folders.
        out: Where it is told.

    Raises:
        OperatorError: It could not be played to its end.
    """
    with ended_by_sigterm(), Double() as double:
        started = clock.monotonic()
        stage = _Stage(root, double, out, started)
        out.line("Nothing here leaves this machine: Dataverse and Teams are played by a stand-in server, and the model")
        out.line("by a script. Worker, sandbox, verifier, journal and every HTTP request are real.")
        async with ScriptedServer(demo_brain()) as model, stage.worker(model.base_url):
            first = await stage.first_task()
            second = await stage.second_task()
        async with Database.open(root / "operator.db") as database:
            report = await verify(database)
        said = say_report(report) if report.problem is None else report.problem.sentence
        careless = double.history.unconditional()
        out.line()
        out.line(
            f"{len(double.history)} requests; {len(careless)} of them could have overwritten somebody else's change."
        )
        seconds = clock.monotonic() - started
        return Played((first, second), len(double.history), report.ok and not careless, said, root, seconds)


class _Stage:
    def __init__(self, root: Path, double: Double, out: Output, started: float) -> None:
        self._root = root
        self._double = double
        self._out = out
        self._started = started
        self._shown_requests = 0
        self._shown_cards = 0
        self._worker: asyncio.subprocess.Process | None = None
        self._said: list[str] = []

    async def first_task(self) -> Told:
        """Done at the second attempt, since the verifier tries the first one."""
        self._title("A task: asked for, claimed, done, tried, refused, done again, verified, written back")
        row_id = self._ask("Totals of customers", TOTALS)
        await self._until(row_id, lambda: self._ended(row_id), "Task completed")
        return self._tell("Totals of customers", row_id, (1, 5, 7), ("Task is running", "Task completed"))

    async def second_task(self) -> Told:
        """Blocked, answered, done."""
        self._title("Another one: only a person can say what is missing")
        row_id = self._ask("Report of the quarter", QUARTER)
        await self._until(row_id, lambda: self._code(row_id) in (6, 7, 8, 9), "waits for your")
        if self._code(row_id) == TaskCode.WAITING_FOR_INPUT:
            for card in self._cards(row_id)[-1:]:
                self._lines(card_box(card))
            self._say(f"Alice answers: {ANSWER}")
            async with Dataverse(self._double.url, StaticToken(self._double.token)) as dataverse:
                await Tasks(dataverse, user=ALICE).answer(row_id, ANSWER, author=ALICE)
            await self._until(row_id, lambda: self._ended(row_id), "Task completed")
        return self._tell("Report of the quarter", row_id, (1, 5, 6, 1, 5, 7), ("Task is running", "waits for your"))

    @asynccontextmanager
    async def worker(self, model_url: str) -> AsyncIterator[None]:
        """`operator worker run` as a process of its own."""
        self._root.joinpath("operator.toml").write_text(_settings(model_url, self._double.url), "utf-8")
        words = ["--config", "operator.toml", "worker", "run"]
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        secret = {"DATAVERSE_TOKEN": self._double.token, "TEAMS_WEBHOOK_URL": self._double.webhook_url}
        self._worker = worker = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "operator_core",
            *words,
            cwd=self._root,
            env=kept | secret,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        reading = asyncio.create_task(self._read(worker))
        try:
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                worker.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(_END_S):
                    await worker.wait()
            except TimeoutError:
                worker.kill()
                await worker.wait()
            await reading

    async def _read(self, worker: asyncio.subprocess.Process) -> None:
        assert worker.stdout is not None
        log = self._root / "worker.log"
        async for raw in worker.stdout:
            self._said.append(raw.decode("utf-8", "replace").rstrip())
            if self._said[-1].startswith(("[Dataverse]", "[Verify]", "[Waiting]")):
                self._say(f"worker: {self._said[-1]}")
        log.write_text("\n".join([*self._said, ""]), "utf-8")

    def _ask(self, name: str, prompt: str) -> str:
        return self._double.seed(
            TASKS, cr_name=name, cr_prompt=prompt, cr_status=1, crb3b_useremail=ALICE, crb3b_devbox=BOX
        )

    async def _until(self, row_id: str, done: Callable[[], bool], heading: str) -> None:
        """Tell what happens until the row is so far, and Teams has the card of it."""
        deadline = clock.monotonic() + _LONGEST_S
        self._out.working("The worker works …")
        try:
            while True:
                self._catch_up()
                if done() and (any(heading in text for text in self._headings(row_id)) or self._failed(row_id)):
                    return
                if self._worker is not None and self._worker.returncode is not None:
                    last = next((line for line in reversed(self._said) if line.strip()), "it said nothing")
                    raise OperatorError(f"The worker of the demo ended: {last.removeprefix('Error: ')}")
                if clock.monotonic() > deadline:
                    raise OperatorError(
                        f"The demo did not come to its end within {_LONGEST_S:.0f} s; what the worker said is in "
                        f"{self._root / 'worker.log'}."
                    )
                await asyncio.sleep(_LOOK_S)
        finally:
            self._out.working(None)

    def _catch_up(self) -> None:
        for request in self._double.history.ended(since=self._shown_requests):
            self._shown_requests = request.seq
            for effect in request.effects:
                if line := change_line(effect):
                    self._say(f"Dataverse: {line}")
        for card in self._double.cards[self._shown_cards :]:
            self._shown_cards += 1
            self._say(f"Teams: a card, {_heading(card)!r}")

    def _tell(self, name: str, row_id: str, codes: tuple[int, ...], headings: tuple[str, ...]) -> Told:
        self._catch_up()
        row = self._double.tables[TASKS][row_id]
        self._out.line()
        self._out.line("## The row now")
        self._lines(row_lines(row))
        cards = self._cards(row_id)
        if cards:
            self._out.line("## The last card")
            self._lines(card_box(cards[-1]))
        seen = (TaskCode.PENDING, *self._double.history.values(TASKS, row_id, "cr_status"))
        shown = tuple(self._headings(row_id))
        messages = len(self._double.tables[MESSAGES].where(crb3b_taskid=row_id))
        ok = tuple(int(code) for code in seen) == codes and messages > 0
        ok = ok and all(any(heading in text for text in shown) for heading in headings)
        return Told(name, row_id, tuple(int(code) for code in seen), messages, shown, ok)

    def _code(self, row_id: str) -> int:
        return int(self._double.tables[TASKS][row_id]["cr_status"])

    def _ended(self, row_id: str) -> bool:
        row = self._double.tables[TASKS][row_id]
        return row["cr_status"] in (7, 8, 9) and row["cr_transcript"] is not None

    def _failed(self, row_id: str) -> bool:
        return self._code(row_id) in (TaskCode.FAILED, TaskCode.CANCELED)

    def _cards(self, row_id: str) -> list[dict[str, Any]]:
        """Those that were posted since the row appeared: one task is worked on at a time."""
        posted = [request for request in self._double.history if request.path.startswith("/teams/")]
        made = [one for one in self._double.history if any(effect.row_id == row_id for effect in one.effects)]
        since = made[0].seq if made else 0
        cards = [request.body["attachments"][0]["content"] for request in posted if request.seq > since]
        return [card for card in cards if _is_about(card, self._double.tables[TASKS][row_id]["cr_name"])]

    def _headings(self, row_id: str) -> list[str]:
        return [_heading(card) for card in self._cards(row_id)]

    def _title(self, text: str) -> None:
        self._out.line()
        self._out.line(f"# {text}")

    def _say(self, text: str) -> None:
        self._out.say(f"[{clock.monotonic() - self._started:5.1f} s] {text}")

    def _lines(self, lines: list[str]) -> None:
        for line in lines:
            self._out.line(line)


def _heading(card: dict[str, Any]) -> str:
    return next(iter(texts_of(card)), "")


def _is_about(card: dict[str, Any], name: str) -> bool:
    return any(name in text for text in texts_of(card))


def _settings(model_url: str, dataverse_url: str) -> str:
    return f"""\
[store]
url = "operator.db"

[model]
engine = "scripted"
base_url = "{model_url}"
model = "scripted-tasks"
summaries = "deterministic"

[worker]
name = "{BOX}"
concurrency = 1

[dataverse]
url = "{dataverse_url}"
user = "{ALICE}"
box = "{BOX}"
poll_s = 1.0
message_s = 1.0
messages_per_minute = 60
onedrive = false
work_dir = "sessions"
"""

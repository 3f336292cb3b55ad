"""Where attacks are fought: one store and one worker for many tickets, real sandboxes, scripted cheaters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from operator_core.db.integrity import verify
from operator_core.model.entry import EntryKind
from operator_core.model.ticket import TicketStatus
from operator_core.scripted import Reply, Turn
from operator_core.work.submit import submit_task
from tests.support.rig import Rig, open_rig
from tests.support.task_brain import Role, done, run, task_brain

__all__ = ["Act", "Attack", "Seen", "Setting", "fight", "files", "write"]

Act = Callable[[Path], object]
"""What somebody outside of the sandbox does; given the folder of the attempt."""


class Setting(NamedTuple):
    """What a task is about.

    Attributes:
        base: The repository, by path.
        checks: Frozen commands.
        check_files: Frozen files, by place.
        honest: What an honest worker changes.
        verifier: None: the profile ``operator``, in which checks alone decide.
        allow_change: As of ``operator submit``.
    """

    base: Mapping[str, str]
    checks: tuple[str, ...]
    honest: Mapping[str, str]
    check_files: Mapping[str, str] = {}
    verifier: Role | None = None
    allow_change: tuple[str, ...] = ()


@dataclass(frozen=True)
class Attack:
    """One cheat, or an honest control.

    Attributes:
        name: For the table, unique.
        setting: Name of the setting.
        work: What the worker's shell runs, or all of its replies.
        happened: For the table: what the platform did about it.
        says: A regular expression that the account of the session must contain.
        verdict: The verdict that it must end with; ``none``: it was never judged.
        verifier: In place of the setting's.
        outside: Role -> what is done on the host when that role is asked first.
        iterations: How often the worker may try.
        after: Looks at the folder of the attempt when all is over.
    """

    name: str
    setting: str
    work: str | Role
    happened: str
    says: str
    verdict: str = "refuted"
    verifier: Role | None = None
    outside: Mapping[str, Act] = field(default_factory=dict)
    iterations: int = 1
    after: Act | None = None


class Seen(NamedTuple):
    """How it ended: state and reason of the ticket, the last verdict, and everything that was said about it."""

    status: TicketStatus
    reason: str
    verdict: str
    account: str
    folder: Path


def write(path: str, text: str) -> str:
    """The command that writes a file."""
    folder = f"mkdir -p {shlex.quote(path.rpartition('/')[0])}\n" if "/" in path else ""
    return f"{folder}printf %s {shlex.quote(text)} > {shlex.quote(path)}\n"


def files(content: Mapping[str, str]) -> str:
    """The commands that write several."""
    return "".join(write(path, text) for path, text in content.items())


async def fight(folder: Path, settings: Mapping[str, Setting], attacks: Sequence[Attack]) -> dict[str, Seen]:
    """Every attack as a ticket of its own; how each of them ended, by name."""
    by_id = {f"n{number:03}": attack for number, attack in enumerate(attacks)}
    acted: set[tuple[str, str]] = set()
    rooms: list[Rig] = []

    def of(turn: Turn) -> tuple[str, Attack]:
        found = re.search(r"\[\[(n\d+)\]\]", turn.first_text)
        assert found, turn.first_text
        return found[1], by_id[found[1]]

    def role(name: str) -> Callable[[Turn], Reply]:
        def reply(turn: Turn) -> Reply:
            number, attack = of(turn)
            if name in attack.outside and (number, name) not in acted:
                acted.add((number, name))
                attack.outside[name](_folder(rooms[0], number))
            script = _script(name, attack, settings[attack.setting])
            return script(turn) if callable(script) else script[min(turn.step, len(script) - 1)]

        return reply

    def parser(turn: Turn) -> Reply:
        return Reply(text=f'{{"task_description": "[[{of(turn)[0]}]] Do it.", "success_criteria": "It is right."}}')

    brain = task_brain(role("worker"), role("verifier"), parser=parser, summarizer=role("summarizer"))
    folder.mkdir(parents=True, exist_ok=True)
    async with open_rig(
        brain,
        folder,
        sandbox={"backend": "bubblewrap"},
        tasks={"root": folder, "max_workspace_files": 3000, "max_workspace_bytes": 64 << 20},
        worker={"concurrency": 3},
        limits={"turns": 6},
    ) as rig:
        rooms.append(rig)
        tickets = {}
        for number, attack in by_id.items():
            tickets[number] = await _submit(rig, folder, number, attack, settings[attack.setting])
        await rig.work(timeout=380)
        report = await verify(rig.database)
        assert report.ok, report.problem
        return {by_id[number].name: await _seen(rig, number, ticket) for number, ticket in tickets.items()}


def _script(name: str, attack: Attack, setting: Setting) -> Role:
    if name == "worker":
        return (run(attack.work), done()) if isinstance(attack.work, str) else attack.work
    if name == "verifier":
        script = attack.verifier or setting.verifier
        assert script is not None
        return script
    return (Reply(text="# Task Summary: it\n\n- It is made."),)


async def _submit(rig: Rig, folder: Path, number: str, attack: Attack, setting: Setting) -> int:
    repo, given = folder / "repos" / attack.setting, folder / "given" / attack.setting
    if not repo.exists():
        for root, content in ((repo, setting.base), (given, setting.check_files)):
            root.mkdir(parents=True)
            for path, text in content.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
    ticket = await submit_task(
        rig.database,
        rig.settings,
        f"[[{number}]] Do it.",
        name=number,
        repo=repo,
        checks=setting.checks,
        check_files=[f"{given / path}={path}" for path in setting.check_files],
        allow_change=setting.allow_change,
        profile="operator" if setting.verifier is None and attack.verifier is None else "shraga",
        max_iterations=attack.iterations,
    )
    assert ticket.id is not None
    return ticket.id


def _folder(rig: Rig, number: str) -> Path:
    (found,) = rig.workspace.parent.glob(f"Operator Sessions/{number}_*/attempt-1")
    return found


async def _seen(rig: Rig, number: str, ticket_id: int) -> Seen:
    ticket = await rig.tickets.get_ticket(ticket_id)
    said = [ticket.diagnosis or ""]
    verdict = "none"
    for entry in await rig.journal(ticket_id):
        if entry.entry_type == EntryKind.VERDICT:
            verdict = str(entry.body["kind"] if "kind" in entry.body else entry.body["verdict"])
            said += [entry.content, entry.raw_content or "", str(entry.body), *(entry.meta or {}).get("notes", ())]
        elif entry.entry_type in (EntryKind.OUTCOME, EntryKind.ERROR, EntryKind.TOOL_RESULT):
            said += [entry.content, entry.raw_content or ""]
    return Seen(ticket.status, str(ticket.reason), verdict, "\n".join(said), _folder(rig, number))

"""What a person asks for becomes a ticket, with everything that its proof needs frozen at that moment.

From Python::

    import asyncio
    from operator_core.config import load_settings
    from operator_core.db.engine import Database
    from operator_core.work.submit import submit_task

    async def main() -> None:
        settings = load_settings().settings
        async with Database.open(settings.store.url) as database:
            ticket = await submit_task(
                database, settings, "Make the tests pass.", repo="~/shop", checks=["pytest -q"], budget_usd=2
            )
            print(ticket.id)

    asyncio.run(main())
"""

from __future__ import annotations

import asyncio
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from operator_core.config import Settings
from operator_core.db.audit_log import AuditLogDB
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError
from operator_core.model.task import (
    MAX_PROMPT,
    CheckFile,
    Source,
    TaskCheck,
    TaskEngine,
    TaskProfile,
    TaskSpec,
)
from operator_core.model.ticket import Ticket
from operator_core.sandbox.egress.rules import Rules
from operator_core.sandbox.policy import Network
from operator_core.text import clip, first_line, printable
from operator_core.work.repository.origin import Warn, find_source, is_remote, is_text
from operator_core.work.repository.packing import read_plain_file

__all__ = ["MAX_CHECK_FILE_BYTES", "prepare_task", "submit_task"]

MAX_CHECK_FILE_BYTES = 10_000_000
_MAX_NAME = 80
_MAX_WORDS = 20_000


async def submit_task(
    database: Database,
    settings: Settings,
    prompt: str,
    *,
    repo: str | os.PathLike[str] | None = None,
    ref: str | None = None,
    checks: Sequence[str] = (),
    check_files: Sequence[str] = (),
    allow_change: Sequence[str] = (),
    engine: str | None = None,
    model: str | None = None,
    budget_usd: float | None = None,
    max_iterations: int | None = None,
    profile: str = "shraga",
    name: str | None = None,
    network: str = "none",
    allow_hosts: Sequence[str] = (),
    priority: int = 0,
    pinned_to: str | None = None,
    actor: str = "person",
    link: tuple[str, str] | None = None,
    warn: Warn = lambda sentence: None,
) -> Ticket:
    """Open a task; nothing is stored unless all of it is right.

    Args:
        prompt: What is to be done. What looks like a secret in it is masked.
        repo: A git URL (``http``, ``https``, ``ssh``, ``file``), the top of a git work tree, or any other folder, of
            which a copy is stored. None: the work begins with nothing.
        ref: Branch, tag or commit of a repository; None: what is checked out.
        checks: Commands that end with 0 when the work is right.
        check_files: Files that the checks need, as ``PATH`` or ``PATH=PLACE``, where ``PLACE`` is relative to the
            workspace. Without it: where the file is in ``repo``; else its relative path as given; else its name.
        allow_change: Test and runner files that the work may change.
        engine: Default: ``[tasks] engine``.
        model: Default: ``[model] model``.
        budget_usd: Default: ``[limits] cost_usd``.
        max_iterations: 1 to 10; default: ``[tasks] max_iterations``.
        name: Short, for people; default: the first line of the prompt.
        network: ``none``, ``allowlist`` or ``host``, for all commands.
        allow_hosts: For ``allowlist``: ``host``, ``host:port``, ``*.example.org``; those of ``[sandbox]`` are added.
        pinned_to: Name of the only worker that may take it.
        actor: Who asks for it, for the ledger.
        link: Source and id of what it stands for elsewhere. A second submission with the same link opens nothing: it is
            answered with the ticket of the first one.
        warn: Called with each sentence about what is not as it may seem.

    Raises:
        ConfigError: Why it is not accepted, in one sentence.
        StoreError: The store cannot be written.
    """
    pinned_to = None if pinned_to is None else _word(pinned_to, "name of a worker")
    if not -(2**31) <= priority < 2**31:
        raise ConfigError("The priority must be a number between -2147483648 and 2147483647.")
    spec = await prepare_task(
        database,
        settings,
        prompt,
        repo=repo,
        ref=ref,
        checks=checks,
        check_files=check_files,
        allow_change=allow_change,
        engine=engine,
        model=model,
        budget_usd=budget_usd,
        max_iterations=max_iterations,
        profile=profile,
        name=name,
        network=network,
        allow_hosts=allow_hosts,
        warn=warn,
    )
    return await TicketDB(database).submit_task(spec, priority=priority, pinned_to=pinned_to, actor=actor, link=link)


async def prepare_task(
    database: Database,
    settings: Settings,
    prompt: str,
    *,
    repo: str | os.PathLike[str] | None = None,
    ref: str | None = None,
    checks: Sequence[str] = (),
    check_files: Sequence[str] = (),
    allow_change: Sequence[str] = (),
    engine: str | None = None,
    model: str | None = None,
    budget_usd: float | None = None,
    max_iterations: int | None = None,
    profile: str = "shraga",
    name: str | None = None,
    network: str = "none",
    allow_hosts: Sequence[str] = (),
    warn: Warn = lambda sentence: None,
) -> TaskSpec:
    """Freeze what a task needs, without opening it; arguments and errors are those of :func:`submit_task`."""
    clean = database.redactor
    given = {
        "allow_change": tuple(_relative(path) for path in allow_change),
        "checks": tuple(TaskCheck(command=command) for command in dict.fromkeys(map(usable_check, checks))),
        "engine": _one_of(engine or settings.tasks.engine, get_args(TaskEngine), "engine"),
        "model": None if model is None else _word(model, "model"),
        "budget_usd": _budget(budget_usd),
        "max_iterations": _iterations(settings.tasks.max_iterations if max_iterations is None else max_iterations),
        "profile": _one_of(profile, get_args(TaskProfile), "profile"),
        "network": _one_of(network, get_args(Network), "network"),
        "allow_hosts": _hosts(allow_hosts, network, settings),
    }
    text = clean.column(_prompt(prompt))
    if clean.text(prompt) != prompt:
        warn("Something in the prompt looks like a secret and was masked.")
    with tempfile.TemporaryDirectory(prefix="operator-submit-") as folder:
        audit, aside = AuditLogDB(database), Path(folder)
        source = await find_source(repo, ref, audit, settings, aside, warn)
        files = await asyncio.to_thread(_read_all, check_files, source)
        frozen = []
        for place, (data, executable) in files.items():
            (aside / "file").write_bytes(data)
            frozen.append(_check_file(place, await audit.store_blob(aside / "file"), executable))
    try:
        return TaskSpec(
            name=_name(clean.column(name if name is not None else text)),
            prompt=text,
            source=source,
            check_files=tuple(frozen),
            **given,
        )
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise ConfigError(f"The task cannot be accepted ({where}: {clip(first['msg'])}); change it.") from None


# ---- words


def _prompt(prompt: str) -> str:
    if not prompt.strip():
        raise ConfigError("The prompt must say what is to be done.")
    if len(prompt) > MAX_PROMPT:
        raise ConfigError(
            f"The prompt has {len(prompt)} characters, and {MAX_PROMPT} is the most; put the details into a file of "
            "the repository."
        )
    return prompt


def _name(text: str) -> str:
    """The first line that says something, harmless and short."""
    line = first_line(printable(text), MAX_PROMPT)
    return clip(" ".join(line.split()), _MAX_NAME) or "task"


def usable_check(command: str) -> str:
    """The command of a check, if it is one that can fail.

    Raises:
        ConfigError: It is not; the message says why.
    """
    from operator_core.verify.refusal import why_it_cannot_fail

    shown = clip(" ".join(printable(command).split()), 80)
    if not command.strip():
        raise ConfigError("A check must be a command that ends with 0 when the work is right.")
    if len(command) > _MAX_WORDS or not is_text(command):
        raise ConfigError(f"The check `{shown}` is too long or is no text; put it into a script and give that one.")
    if why := why_it_cannot_fail(command):
        raise ConfigError(why)
    return command


def _one_of(value: str, choices: Sequence[str], what: str) -> Any:
    if value not in choices:
        raise ConfigError(f"{clip(printable(value), 80)!r} is no {what}; choose {' or '.join(choices)}.")
    return value


def _word(value: str, what: str) -> str:
    if not value.strip() or len(value) > 255 or not value.isprintable():
        raise ConfigError(f"{clip(printable(value), 80)!r} cannot be the {what}; give a short printable text.")
    return value.strip()


def _hosts(hosts: Sequence[str], network: str, settings: Settings) -> tuple[str, ...]:
    """The rules in their usual spelling."""
    if hosts and network != "allowlist":
        raise ConfigError(f"Hosts can be allowed with the network `allowlist` only, not with `{network}`.")
    others = settings.sandbox.allow_hosts or any(credential.hosts for credential in settings.credential)
    if network == "allowlist" and not hosts and not others:
        raise ConfigError("The network `allowlist` needs a host; name at least one that the task may reach.")
    return tuple(rule.text for rule in Rules.parse(hosts).rules)


def _budget(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise ConfigError(f"A budget of {value:g} USD buys nothing; give an amount greater than 0.")
    return value


def _iterations(value: int) -> int:
    if not 1 <= value <= 10:
        raise ConfigError(f"The number of iterations must be from 1 to 10, not {value}.")
    return value


def _relative(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if not parts or path.startswith("/") or ".." in parts or not is_text(path):
        raise ConfigError(
            f"{clip(printable(path), 120)!r} must be the path of a file in the workspace, relative to its top."
        )
    return "/".join(parts)


# ---- check files


def _read_all(given: Sequence[str], source: Source) -> dict[str, tuple[bytes, bool]]:
    files: dict[str, tuple[bytes, bool]] = {}
    for item in given:
        path, place = _places(item, source)
        try:
            content = read_plain_file(path, MAX_CHECK_FILE_BYTES)
        except ValueError as error:
            raise _no_check_file(path, str(error)) from None
        except OSError as error:
            why = "it is a link" if path.is_symlink() else error.strerror or "it cannot be read"
            raise _no_check_file(path, why) from None
        if place in files:
            raise ConfigError(f"Two check files would be at {place!r}; give one of them another place, as PATH=PLACE.")
        files[place] = content
    for place in files:
        if any(other.startswith(f"{place}/") for other in files):
            raise ConfigError(f"{place!r} cannot be a check file and a folder of check files; give it another place.")
    return files


def _places(item: str, source: Source) -> tuple[Path, str]:
    """The file that is meant, and where it goes in the workspace."""
    path, place = item, ""
    if "=" in item and not os.path.lexists(Path(item).expanduser()):
        path, _, place = item.rpartition("=")
    if not path or not is_text(item):
        raise ConfigError(f"{clip(printable(item), 120)!r} names no check file; give PATH or PATH=PLACE.")
    file = Path(path).expanduser()
    if place:
        return file, _relative(place)
    if source.kind in ("git", "folder") and not is_remote(source.location):
        try:
            return file, file.parent.resolve().joinpath(file.name).relative_to(source.location).as_posix()
        except ValueError:
            pass
    plain = not file.is_absolute() and ".." not in file.parts
    return file, _relative(file.as_posix() if plain else file.name)


def _no_check_file(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{clip(printable(str(path)), 120)!r} cannot be a check file ({why}); give a plain file.")


def _check_file(place: str, digest: str, executable: bool) -> CheckFile:
    try:
        return CheckFile(path=place, sha256=digest, executable=executable)
    except ValidationError:
        raise ConfigError(
            f"A check file cannot be at {clip(printable(place), 120)!r}; give it another place, as PATH=PLACE."
        ) from None

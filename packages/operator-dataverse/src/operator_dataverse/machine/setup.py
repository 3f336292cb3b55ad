"""Setting a dev box up: what is missing, and the exact command that brings it (row B-053)."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from operator_core.cli.finding import Finding
from operator_core.config import LoadedSettings, Settings
from operator_core.errors import ConfigError, OperatorError
from operator_dataverse.machine.programs import attend, find, small_environment
from operator_dataverse.machine.tools import Manager, Tool, claude_code_commands, find_manager, tools_for
from operator_dataverse.settings import settings_of

__all__ = ["Setup", "command_line"]

_OURS = ("OPERATOR_", "PIP_", "UV_")

Commands = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class _Part:
    """One thing that a dev box has or lacks."""

    name: str
    look: Callable[[], str | None]
    """What is there; None: it is missing."""
    commands: Commands
    """What brings it; empty: a person must."""
    why: str
    needed: bool = True
    remedy: str = ""
    packaged: bool = False
    """Whether the package manager brings it."""


class Setup:
    """The parts of a dev box.

    Args:
        load: Reads the configuration.
        environ: Has the PATH.
        config: ``--config``, where the configuration is to be.
        manager: Name of the package manager; default: the one of this platform.
        say: Prints a line for a person.
        stdout_free: See :func:`operator_dataverse.machine.programs.attend`.

    Raises:
        ConfigError: There is no such package manager.
    """

    def __init__(
        self,
        load: Callable[[], LoadedSettings],
        environ: Mapping[str, str],
        *,
        config: Path | None = None,
        manager: str | None = None,
        say: Callable[[str], None] = lambda line: None,
        stdout_free: bool = True,
    ) -> None:
        self._load = load
        self._config = config
        self._environ = environ
        self._say = say
        self._stdout_free = stdout_free
        self._manager: Manager | None = find_manager(manager, environ)
        self._refreshed = False

    def look(self) -> list[Finding]:
        """What is there, and what brings the rest; nothing is changed."""
        return [self._finding(part) for part in self._parts()]

    def apply(self) -> list[Finding]:
        """Bring what is missing, one part after the other; a part that fails does not keep the others from coming."""
        return [self._bring(part) for part in self._parts()]

    def _parts(self) -> Iterator[_Part]:
        yield _Part("python", _python, (), "the product", remedy="install Python 3.11, 3.12 or 3.13, and this in it")
        for tool in tools_for(self._manager):
            yield self._tool(tool)
        given = () if self._config is None else ("--config", str(self._config))
        init = (sys.executable, "-m", "operator_core", *given, "init")
        yield _Part("configuration", self._configuration, (init,), "everything that is set")
        claude = claude_code_commands(self._environ)
        yield _Part("claude code", self._claude, claude, "tasks with the engine `claude-code`", needed=False)
        yield _Part("dataverse", self._dataverse, (), "tasks from Dataverse", remedy=self._unset())

    def _tool(self, tool: Tool) -> _Part:
        manager = self._manager
        package = tool.packages.get(manager.name) if manager else None
        commands = (manager.command(package),) if manager and package else ()
        remedy = "install it with the package manager of this machine; none that is known here was found"
        return _Part(
            tool.name,
            lambda: find(tool.program, self._environ),
            commands,
            tool.why,
            needed=tool.needed,
            remedy=remedy,
            packaged=True,
        )

    def _finding(self, part: _Part) -> Finding:
        try:
            there = part.look()
        except OperatorError as error:
            return Finding(part.name, "wrong", str(error))
        if there is not None:
            return Finding(part.name, "ok", there)
        facts = {"commands": [list(command) for command in part.commands]}
        remedy = " && ".join(f"`{command_line(command)}`" for command in part.commands) or part.remedy
        detail = f"missing, for {part.why}; {remedy}"
        return Finding(part.name, "wrong" if part.needed else "warning", detail, facts)

    def _bring(self, part: _Part) -> Finding:
        before = self._finding(part)
        if before.facts is None or not part.commands:  # there, or what is set about it is wrong
            return before
        commands = list(part.commands)
        if self._manager is not None and part.packaged and not self._refreshed:
            # Once is enough; and the list of packages of a new machine is empty.
            self._refreshed = True
            commands[:0] = [first for first in (self._manager.refresh(),) if first]
        ran: list[dict[str, object]] = []
        for command in commands:
            self._say(f"Running `{command_line(command)}` …")
            code = attend(self._whole(command), self._env(part, command), stdout_free=self._stdout_free)
            ran.append({"command": list(command), "exit_code": code})
            if code != 0 and command == commands[-1]:
                detail = f"`{command_line(command)}` failed (exit code {code}); what it printed says why"
                return Finding(part.name, before.state, detail, {"ran": ran})
        after = self._finding(part)
        if after.state == "ok":
            return Finding(part.name, "ok", f"now there: {after.detail}", {"ran": ran})
        detail = "installed, but this terminal does not find it; open a new one and run this again"
        return Finding(part.name, before.state, detail, {"ran": ran})

    def _whole(self, command: Sequence[str]) -> tuple[str, ...]:
        # On Windows a name without its ending starts no `.cmd`.
        return (find(command[0], self._environ) or command[0], *command[1:])

    def _env(self, part: _Part, command: Sequence[str]) -> dict[str, str]:
        env = small_environment(self._environ)
        if not part.packaged:
            # Ours, or an installer of Python's: where its packages come from is often said in such variables.
            mine = {name: value for name, value in self._environ.items() if name.upper().startswith(_OURS)}
            return env | mine
        return {**env, "DEBIAN_FRONTEND": "noninteractive"} if "apt-get" in command else env

    def _settings(self) -> Settings:
        return self._load().settings

    def _claude(self) -> str | None:
        from operator_core.agent_lab.claude_code import find_program, program_version

        settings = self._settings().claude_code
        try:
            program = find_program(settings)
        except ConfigError:
            if settings.program is not None:
                raise  # a wrong name in the configuration; installing something would not help
            return None
        return f"{program} {program_version(program)}".rstrip()

    def _configuration(self) -> str | None:
        if self._config is not None and not self._config.expanduser().exists():
            return None
        path = self._load().path
        return str(Path(path).absolute()) if path else None

    def _dataverse(self) -> str | None:
        mine = settings_of(self._settings())
        return f"tasks of {mine.user} from {mine.url}, box {mine.box}" if mine.url and mine.user else None

    def _unset(self) -> str:
        try:
            settings_of(self._settings()).needs("url", "user")
        except OperatorError as error:
            return str(error)
        return ""


def command_line(command: Sequence[str]) -> str:
    """A command as a person types it on this platform."""
    return subprocess.list2cmdline(command) if sys.platform == "win32" else shlex.join(command)


def _python() -> str | None:
    version = sys.version_info
    good = (3, 11) <= version[:2] < (3, 14)
    return f"{sys.executable} {version.major}.{version.minor}.{version.micro}" if good else None

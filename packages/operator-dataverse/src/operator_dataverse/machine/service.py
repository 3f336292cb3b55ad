"""The worker as a service of this account: a systemd user unit, or a task of the Task Scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from xml.sax.saxutils import escape

from operator_core.errors import ConfigError
from operator_dataverse.machine.programs import ask, find, small_environment

__all__ = ["ENVIRONMENT_FILE", "KINDS", "NAME", "SECRETS_PLACE", "Kind", "Service", "State", "service_of"]

Kind = Literal["systemd", "task-scheduler"]
KINDS: tuple[Kind, ...] = ("systemd", "task-scheduler")

NAME = "operator-worker"
ENVIRONMENT_FILE = "~/.config/operator/worker.env"
"""Where the unit takes secrets from, one ``NAME=value`` a line; only its owner may read it."""
SECRETS_PLACE = (
    "as a variable of your account (`setx`)"
    if sys.platform == "win32"
    else f"as a line NAME=value of {ENVIRONMENT_FILE}"
)
"""The same for people."""

_REFUSED = 2  # exit code of a configuration that a person must correct: starting again would not help
_USED = ("git", "bwrap", "az", "docker")


class State(NamedTuple):
    """Whether the service is there.

    Attributes:
        installed: It is.
        detail: One clause, for people.
    """

    installed: bool
    detail: str


@dataclass(frozen=True)
class Service:
    """The worker, started when its person signs in to the machine, and again whenever it ends.

    After an update of itself it ends with exit code 0, so that is no reason to leave it ended.

    Attributes:
        kind: Whose service.
        python: The interpreter that has the product.
        folder: Where it is started.
        config: The configuration; None: as it is found in ``folder``.
        path: ``PATH`` of the worker.
    """

    kind: Kind
    python: str
    folder: Path
    config: Path | None
    path: str

    @property
    def argv(self) -> tuple[str, ...]:
        """The worker's command."""
        config = () if self.config is None else ("--config", str(self.config))
        return (self.python, "-m", "operator_core", *config, "worker", "run")

    @property
    def file(self) -> Path:
        """Where its description is kept."""
        if self.kind == "systemd":
            home = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
            return Path(home).expanduser() / "systemd" / "user" / f"{NAME}.service"
        return Path("~/.operator").expanduser() / f"{NAME}.xml"

    @property
    def start_command(self) -> str:
        """What starts it now, for people."""
        if self.kind == "systemd":
            return f"systemctl --user start {NAME}"
        return f"schtasks /Run /TN {NAME}"

    def text(self) -> str:
        """Its description.

        Raises:
            ConfigError: A path has characters that no description can carry.
        """
        for value in (*self.argv, str(self.folder), self.path):
            if not value.isprintable():
                raise ConfigError(f"{value!r} has characters that a service description cannot hold; rename it.")
        return self._unit() if self.kind == "systemd" else self._task()

    def write(self) -> None:
        """Put the description where it belongs.

        Raises:
            ConfigError: It cannot be written.
        """
        text = self.text()
        # The Task Scheduler reads XML of its own only in UTF-16.
        data = text.encode("utf-8" if self.kind == "systemd" else "utf-16")
        draft = self.file.with_name(f".{self.file.name}.draft")
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            draft.write_bytes(data)
            draft.replace(self.file)
        except OSError as error:
            raise ConfigError(f"{self.file} cannot be written ({error.strerror}); correct its rights.") from None

    def register_commands(self) -> tuple[tuple[str, ...], ...]:
        """What makes the system know the written description."""
        if self.kind == "systemd":
            return (("systemctl", "--user", "daemon-reload"), ("systemctl", "--user", "enable", NAME))
        return (("schtasks", "/Create", "/TN", NAME, "/XML", str(self.file), "/F"),)

    def state(self) -> State:
        """Whether it is installed."""
        if self.kind == "systemd":
            if not self.file.is_file():
                return State(False, f"there is no {self.file}")
            wanted = self.file.parent / "default.target.wants" / self.file.name
            if not os.path.lexists(wanted):
                return State(False, f"{self.file} is there, but not enabled")
            return State(True, f"{self.file}, started when you sign in")
        answer = ask(("schtasks", "/Query", "/TN", NAME), small_environment())
        return State(answer.code == 0, f"task {NAME}" if answer.code == 0 else f"there is no task {NAME}")

    def _unit(self) -> str:
        words = " ".join(_word(word) for word in self.argv)
        return f"""\
# Written by `operator-dataverse service`. Secrets belong into {ENVIRONMENT_FILE}, not here.
[Unit]
Description=Operator: works on tasks from Dataverse

[Service]
ExecStart={words}
WorkingDirectory={_percent(str(self.folder))}
Environment={_quoted("PATH=" + self.path)}
EnvironmentFile=-%h/.config/operator/worker.env
Restart=always
RestartSec=15
RestartPreventExitStatus={_REFUSED}
KillMode=mixed
TimeoutStopSec=60
UMask=0077

[Install]
WantedBy=default.target
"""

    def _task(self) -> str:
        program, *words = self.argv
        return f"""\
<?xml version="1.0" encoding="UTF-16"?>
<Task version="1.2" xmlns="http://schemas.microsoft.com/windows/2004/02/mit/task">
  <RegistrationInfo>
    <Description>Operator: works on tasks from Dataverse</Description>
  </RegistrationInfo>
  <Triggers>
    <LogonTrigger>
      <Enabled>true</Enabled>
      <Repetition>
        <Interval>PT5M</Interval>
        <StopAtDurationEnd>false</StopAtDurationEnd>
      </Repetition>
    </LogonTrigger>
  </Triggers>
  <Principals>
    <Principal id="Author">
      <LogonType>InteractiveToken</LogonType>
      <RunLevel>LeastPrivilege</RunLevel>
    </Principal>
  </Principals>
  <Settings>
    <MultipleInstancesPolicy>IgnoreNew</MultipleInstancesPolicy>
    <DisallowStartIfOnBatteries>false</DisallowStartIfOnBatteries>
    <StopIfGoingOnBatteries>false</StopIfGoingOnBatteries>
    <AllowHardTerminate>true</AllowHardTerminate>
    <StartWhenAvailable>true</StartWhenAvailable>
    <AllowStartOnDemand>true</AllowStartOnDemand>
    <Enabled>true</Enabled>
    <Hidden>false</Hidden>
    <ExecutionTimeLimit>PT0S</ExecutionTimeLimit>
    <RestartOnFailure>
      <Interval>PT1M</Interval>
      <Count>3</Count>
    </RestartOnFailure>
  </Settings>
  <Actions Context="Author">
    <Exec>
      <Command>{escape(program)}</Command>
      <Arguments>{escape(subprocess.list2cmdline(words))}</Arguments>
      <WorkingDirectory>{escape(str(self.folder))}</WorkingDirectory>
    </Exec>
  </Actions>
</Task>
"""


def service_of(kind: str | None = None, *, folder: Path | None = None, config: Path | None = None) -> Service:
    """The service of this machine.

    Args:
        kind: Whose; default: what this platform has.
        folder: Where the worker is started; default: the configuration's folder, else the current one.
        config: The configuration.

    Raises:
        ConfigError: The kind is unknown, or this platform has none of them.
    """
    if kind is None:
        kind = "task-scheduler" if sys.platform == "win32" else "systemd" if sys.platform == "linux" else "none"
    found = next((known for known in KINDS if known == kind), None)
    if found is None:
        raise ConfigError(
            f"There is no service of the kind `{kind:.40}` here; choose {' or '.join(KINDS)} with --kind, or start "
            "`operator worker run` with a supervisor of your own."
        )
    absolute = config and config.expanduser().absolute()
    place = folder or (absolute.parent if absolute else Path.cwd())
    return Service(found, sys.executable, place.absolute(), absolute, _path(os.environ))


def _path(environ: Mapping[str, str]) -> str:
    """A short ``PATH`` with everything in it that a worker starts."""
    found = (find(program, environ) for program in _USED)
    folders = (os.path.dirname(program) for program in (sys.executable, *found) if program)
    standard = () if sys.platform == "win32" else ("/usr/local/bin", "/usr/bin", "/bin")
    return os.pathsep.join(dict.fromkeys(folder for folder in (*folders, *standard) if folder))


def _percent(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    return '"' + _percent(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _word(text: str) -> str:
    """A word of a command as systemd reads it: it would replace ``$NAME`` and ``%n``."""
    return _quoted(text.replace("$", "$$"))

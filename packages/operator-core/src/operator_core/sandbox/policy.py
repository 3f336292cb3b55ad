"""What a sandbox may do: frozen values, checked when they are made."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

from operator_core.errors import ConfigError

__all__ = ["DEFAULT_PROTECTED", "Limits", "Network", "Policy", "looks_secret"]

Network = Literal["none", "allowlist", "host"]

DEFAULT_PROTECTED = (".git/hooks", ".git/config", ".git/modules", ".vscode", ".idea", ".envrc")
"""Files that run later, outside of the sandbox; write-denied where they exist."""

_SECRET_WORDS = frozenset(
    [
        "KEY",
        "KEYS",
        "TOKEN",
        "TOKENS",
        "SECRET",
        "SECRETS",
        "PASSWORD",
        "PASSWORDS",
        "PASSWD",
        "PASS",
        "PASSPHRASE",
        "PWD",
        "CREDENTIAL",
        "CREDENTIALS",
        "CREDS",
        "AUTH",
        "COOKIE",
        "COOKIES",
        "DSN",
        "APIKEY",
        "ACCESSKEY",
        "PRIVATEKEY",
    ]
)
_SECRET_PARTS = ("SECRET", "PASSWORD", "APIKEY", "DATABASE_URL", "REDIS_URL", "CONNECTION_STRING", "WEBHOOK_URL")
_SECRET_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\Z")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def looks_secret(name: str) -> bool:
    """Whether an environment variable of this name probably holds a secret (``ANTHROPIC_API_KEY``, ``PGPASSWORD``)."""
    upper = name.upper()
    if upper == "PWD":
        return False
    return not _SECRET_WORDS.isdisjoint(upper.split("_")) or any(part in upper for part in _SECRET_PARTS)


@dataclass(frozen=True)
class Limits:
    """How much a command may use.

    Attributes:
        timeout_s: Seconds a command may take when its call names no timeout.
        max_timeout_s: The longest timeout a call may ask for; a longer one is cut to this.
        grace_s: Seconds between SIGTERM and SIGKILL.
        head: Bytes kept from the start of each stream.
        tail: Bytes kept from the end of each stream.
        spill: Bytes of each stream kept on disk when head and tail do not hold it all.
        output_kill: Bytes of both streams together after which the command is stopped.
        procs: Processes of one command, and 64 more for a whole session where control groups can be made.
        memory: Bytes of data per process (RLIMIT_DATA), and of a whole session where control groups can be made.
        file_size: Bytes per file (RLIMIT_FSIZE).
        nofile: Open files per process.
        shm: Bytes of ``/dev/shm``.
        jobs: Background jobs that may run at the same time.
    """

    timeout_s: float = 120.0
    max_timeout_s: float = 1800.0
    grace_s: float = 2.0
    head: int = 16384
    tail: int = 16384
    spill: int = 64 << 20
    output_kill: int = 1 << 30
    procs: int = 512
    memory: int = 2 << 30
    file_size: int = 1 << 30
    nofile: int = 4096
    shm: int = 64 << 20
    jobs: int = 8

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ConfigError(f"The sandbox limit `{item.name}` is {value!r}; give a number that is not negative.")
        for name in ("timeout_s", "max_timeout_s", "procs", "memory", "nofile"):
            if not getattr(self, name):
                raise ConfigError(f"The sandbox limit `{name}` is 0, so that nothing could run; give a larger number.")


@dataclass(frozen=True)
class Policy:
    """What the commands of one session see and may change.

    Attributes:
        workspace: The directory the agent works in: visible at its own path, writable.
        readable: Further paths, visible at their own path, read-only.
        writable: Further paths, visible at their own path, writable.
        protected: Paths that cannot be written although they lie in a writable place; relative ones start at the
            workspace. A path that does not exist when a command starts is not protected from it, and not from
            others as long as it runs.
        masked: Paths that cannot even be read; relative ones start at the workspace.
        network: ``none`` (an own, empty network), ``allowlist`` (the same, with a proxy that reaches
            ``allow_hosts``), or ``host`` (the host's network, with its loopback services).
        allow_hosts: What the proxy of ``allowlist`` reaches: ``host``, ``host:port``, ``*.example.org:443``.
        env: Variables for every command, on top of the small clean environment.
        env_passthrough: Names of variables to copy from this process; a name that looks secret is refused.
        limits: See :class:`Limits`.
        shown_at: Where commands see the workspace, for a copy that has to look like the original (default: at its own
            path). The backend ``none`` cannot do that and shows it at its own path.
        secret_files: By name, files of the host that commands may read at ``/run/secrets/NAME``; in no other phase.
        run_as: The user id of commands when this process is root; None: one that nobody else uses.

    Raises:
        ConfigError: A value cannot be used; the message names it.
    """

    workspace: Path
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    protected: tuple[str, ...] = DEFAULT_PROTECTED
    masked: tuple[str, ...] = ()
    network: Network = "none"
    env: Mapping[str, str] = field(default_factory=dict)
    env_passthrough: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    shown_at: Path | None = None
    allow_hosts: tuple[str, ...] = ()
    secret_files: Mapping[str, Path] = field(default_factory=dict)
    run_as: int | None = None

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "workspace", _directory(self.workspace))
        if self.shown_at is not None:
            set_(self, "shown_at", _place(self.shown_at))
        set_(self, "readable", tuple(_absolute(path, "readable") for path in self.readable))
        set_(self, "writable", tuple(_absolute(path, "writable") for path in self.writable))
        set_(self, "protected", tuple(str(path) for path in self.protected))
        set_(self, "masked", tuple(str(path) for path in self.masked))
        set_(self, "env", MappingProxyType(dict(self.env)))
        set_(self, "secret_files", MappingProxyType({n: _absolute(p, "secret") for n, p in self.secret_files.items()}))
        if self.network not in get_args(Network):
            names = ", ".join(f"`{name}`" for name in get_args(Network))
            raise ConfigError(f"The sandbox network {self.network!r} does not exist; choose one of {names}.")
        for name in self.secret_files:
            if not _SECRET_NAME.match(name):
                raise ConfigError(f"The secret's name {name!r} is not usable; use letters, digits, `.`, `_` and `-`.")
        for name, value in self.env.items():
            check_variable(name, value)
        for name in self.env_passthrough:
            if looks_secret(name):
                raise ConfigError(
                    f"The variable `{name}` looks like a secret and is not passed into the sandbox; remove it from "
                    "`env_passthrough`."
                )
            check_variable(name, "")

    def paths(self, names: tuple[str, ...]) -> list[Path]:
        """The host's paths of ``protected`` or ``masked`` names, in order, without repetition."""
        return list(dict.fromkeys(self.on_host(Path(self.workspace, name)) for name in names))

    def seen(self, path: Path) -> Path:
        """Where commands see a path of the host, if they see it at all."""
        if self.shown_at is not None and path.is_relative_to(self.workspace):
            return self.shown_at / path.relative_to(self.workspace)
        return path

    def on_host(self, path: Path) -> Path:
        """The opposite of :meth:`seen`."""
        if self.shown_at is not None and path.is_relative_to(self.shown_at):
            return self.workspace / path.relative_to(self.shown_at)
        return path


def check_variable(name: str, value: str) -> None:
    """Refuse an environment variable that no process could have.

    Raises:
        ConfigError: The name is not an identifier, or the value holds a NUL character.
    """
    if not _ENV_NAME.match(name):
        raise ConfigError(f"The environment variable name {name!r} is not usable; use letters, digits and `_`.")
    if "\0" in value:
        raise ConfigError(f"The value of the environment variable `{name}` holds a NUL character; remove it.")


def _absolute(path: Path, what: str) -> Path:
    path = Path(path)
    if not path.is_absolute():
        raise ConfigError(f"The {what} sandbox path `{path}` is relative; give an absolute path.")
    return path


def _directory(path: Path) -> Path:
    path = _absolute(path, "workspace")
    if not path.is_dir():
        raise ConfigError(f"The workspace `{path}` is not a directory; create it first.")
    return _place(path)


def _place(path: Path) -> Path:
    resolved = _absolute(path, "workspace").resolve()
    if resolved == Path("/"):
        raise ConfigError("The workspace is `/`, which leaves nothing to protect; choose a directory below it.")
    return resolved

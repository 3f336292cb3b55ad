"""``operator.toml`` and the environment, as one frozen tree of settings.

Order of precedence: command line, environment (``OPERATOR_<SECTION>__<KEY>``, e.g. ``OPERATOR_MODEL__BASE_URL``),
``operator.toml``, default. An unknown key is an error. ``operator config show`` prints each value with its origin.

Packages beside this one may bring sections of their own: an entry point of the group ``operator_core.settings``, whose
name is the section and whose object is its model. Such a model may name variables of its own in ``ENVIRONMENT``.
"""

from __future__ import annotations

import os
import re
import socket
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from operator_core.errors import ConfigError
from operator_core.model.approval import ApprovalRule
from operator_core.model.intake import (
    AlertRules,
    GithubRepository,
    GithubRules,
    IncidentWords,
    Intake,
    TaskWords,
    WebhookRules,
)
from operator_core.model.invariant import (
    CommandProbe,
    Durability,
    HttpProbe,
    Invariant,
    PromQLProbe,
    Protect,
    Subject,
    TcpProbe,
)
from operator_core.model.mcp import McpServer
from operator_core.model.notification import Channel, DigestPlan, NotifyRule

__all__ = [
    "CONFIG_NAME",
    "LISTS",
    "ApprovalSettings",
    "BlockedPattern",
    "ClaudeCodeSettings",
    "ContextSettings",
    "Credential",
    "ExploreSettings",
    "Extension",
    "IncidentSettings",
    "LimitSettings",
    "LoadedSettings",
    "ModelSettings",
    "MonitorSettings",
    "NotifySettings",
    "Price",
    "SandboxSettings",
    "Settings",
    "StoreSettings",
    "TaskSettings",
    "WebSettings",
    "WorkerSettings",
    "extension_models",
    "load_settings",
]

CONFIG_NAME = "operator.toml"
ENV_PREFIX = "OPERATOR_"
LISTS = ("credential", "intake", "mcp_server", "subject")
"""Sections that are lists of tables: no variable can name one of them."""

_ADDRESS = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#@:\[\]]+)(:[0-9]{1,5})?(?P<path>/[^?#]*)?")
# Ids of the seed documents that are retired or never existed, and what replaces them.
_RETIRED_MODELS = {
    "claude-opus-4-20250514": "claude-opus-5-5",
    "claude-haiku-4-5-20250929": "claude-haiku-4-5",
}


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Extension(_Section):
    """Base of a section that another package brings.

    Attributes:
        ENVIRONMENT: Name of a variable -> the key that it sets, beside ``OPERATOR_<SECTION>__<KEY>``.
    """

    ENVIRONMENT: ClassVar[Mapping[str, str]] = {}


E = TypeVar("E", bound=Extension)


@cache
def extension_models() -> Mapping[str, type[Extension]]:
    """The models of the sections that installed packages bring, by section.

    Raises:
        ConfigError: One of them cannot be imported.
    """
    models: dict[str, type[Extension]] = {}
    for point in entry_points(group="operator_core.settings"):
        try:
            models[point.name] = point.load()
        except Exception as error:
            package = point.dist.name if point.dist else point.value
            raise ConfigError(
                f"The package {package} is installed and broken ({type(error).__name__}: {error}); install it again."
            ) from error
    return models


class StoreSettings(_Section):
    """Where the tickets and the journal live."""

    url: str = "~/.operator/operator.db"
    """Path of an SQLite file, or ``postgresql://user@host/name`` (``?sslmode=require`` for an encrypted way there)."""


class Price(_Section):
    """USD per million tokens of a model that the price table does not know."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float = Field(default=0.0, ge=0)
    cache_write: float = Field(default=0.0, ge=0)


class ModelSettings(_Section):
    """Which model works, and how to reach it."""

    engine: Literal["anthropic", "scripted"] = "anthropic"
    """``scripted`` is the deterministic server of this package; it is labelled as such wherever it shows."""
    base_url: str | None = None
    """Any server that speaks the Anthropic Messages API. None: the SDK's own default, or ``ANTHROPIC_BASE_URL``."""
    api_key_env: str = "ANTHROPIC_API_KEY"
    """Name of the environment variable that holds the key; the key itself is never configuration."""
    model: str = "claude-opus-5-5"
    """Model of the agent."""
    summary_model: str = "claude-haiku-4-5"
    """Model of the one-line summaries in the journal."""
    summaries: Literal["model", "deterministic"] = "model"
    """``deterministic`` never calls a model for them."""
    max_tokens: int = Field(default=8192, ge=1, le=21333)
    """Longest answer, in tokens; above 21,333 the API insists on streaming."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """Limit of one request."""
    retry_deadline_s: float = Field(default=300.0, ge=0)
    """How long a failing request is repeated, with growing pauses, before the session ends with an error."""
    prices: dict[str, Price] = {}
    """Prices by model id, for models that the built-in table does not know."""
    allow_unknown_price: bool = False
    """Work with a model whose price is unknown; its cost then counts as unknown, not as zero."""

    @model_validator(mode="before")
    @classmethod
    def _replace_retired(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for key in ("model", "summary_model"):
                if data.get(key) in _RETIRED_MODELS:
                    data = {**data, key: _RETIRED_MODELS[data[key]]}
        return data


class LimitSettings(_Section):
    """Limits of one attempt at a ticket, over every worker that has a part in it; 0 means no limit."""

    turns: int = Field(default=100, ge=0)
    """Model calls of the agent; of a task: in each of its phases."""
    wall_clock_s: float = Field(default=3600.0, ge=0)
    """Working time, in seconds; begins again when another worker goes on, and in each phase of a task."""
    tokens: int = Field(default=0, ge=0)
    """Tokens in and out."""
    cost_usd: float = Field(default=5.0, ge=0)
    """Money; reserved before each call, so that it is never exceeded by more than the estimate of one call is wrong."""
    command_timeout_s: float = Field(default=120.0, gt=0)
    """Default limit of one shell command."""


class SandboxSettings(_Section):
    """Where the agent's commands run."""

    backend: Literal["auto", "bubblewrap", "docker", "landlock", "none"] = "auto"
    """``auto`` never downgrades by itself: it is bubblewrap, else docker where an image is configured, else a refusal.
    ``none`` is no sandbox at all."""
    on_unavailable: Literal["refuse", "degrade"] = "refuse"
    """``degrade`` lets ``auto`` fall back to landlock, which holds less; the report then says ``confined``."""
    run_as: int | None = Field(default=None, ge=1, lt=2**31)
    """User id of the agent's commands when the worker is root. None: one that nobody else uses."""
    docker_image: str | None = Field(default=None, min_length=1)
    """Image for the backend ``docker``; it needs bash and python3. Without one ``auto`` never takes docker."""
    docker_program: str = "docker"
    """``docker`` or ``podman``, or the path of one."""
    allow_hosts: tuple[str, ...] = ()
    """Hosts that every agent with ``network = "allowlist"`` may reach, e.g. ``*.example.org:443``."""
    readable: tuple[Path, ...] = ()
    """Further folders that every agent may read."""
    env_passthrough: tuple[str, ...] = ()
    """Variables of the worker that the agent's commands may see; names that look secret are refused."""


def _sessions_at_once() -> int:
    """Four for each core, as long as there are 256 MiB of memory for each."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(4 * (os.cpu_count() or 1), memory >> 28))


class WorkerSettings(_Section):
    """How a worker claims and works."""

    name: str = Field(default_factory=socket.gethostname, min_length=1)
    """What a ticket is pinned to (`operator submit --on NAME`); default: the name of the host."""
    concurrency: int = Field(default_factory=_sessions_at_once, ge=1, le=1000)
    """Sessions at once in one process; default: four for each core, at most one for each 256 MiB of memory."""
    lease_s: float = Field(default=30.0, gt=0)
    """Without a heartbeat for so long a worker is dead and another one takes over its sessions."""
    poll_s: float = Field(default=1.0, gt=0)
    """Fallback when no notification arrives."""
    state_dir: Path | None = None
    """Folder of session files. None: ``<database>.d`` beside an SQLite file, else ``~/.operator/state``."""
    lost_after: int = Field(default=3, ge=1)
    """Recoveries without any progress after which a ticket is escalated as ``lost_worker``."""


class TaskSettings(_Section):
    """How tasks that people submit are worked on."""

    root: Path | None = None
    """Where ``Operator Sessions`` is. None: beside an SQLite file, else ``~/.operator``."""
    engine: Literal["anthropic", "claude-code"] = "anthropic"
    """Of tasks that name none: our own loop over the Messages API, or the Claude Code CLI."""
    max_iterations: int = Field(default=10, ge=1, le=10)
    """How often a worker may try before the task is escalated."""
    verifier_model: str | None = None
    """Model of the verifier agent; None: the worker's."""
    require_checks: bool = False
    """Without a frozen check a task then ends as unproven, whatever a verifier agent says."""
    max_workspace_bytes: int = Field(default=4 << 30, gt=0)
    """A larger workspace is not copied, so that its work cannot be proved."""
    max_workspace_files: int = Field(default=500_000, gt=0)
    """Likewise."""


class ClaudeCodeSettings(_Section):
    """The Claude Code CLI, for tasks with the engine ``claude-code``."""

    program: Path | None = None
    """The program. None: the one of the package ``claude-agent-sdk`` (`pip install 'operator-core[claude-code]'`)."""
    max_retries: int = Field(default=3, ge=0, le=20)
    """How often the CLI repeats a failing request; then the session rests and goes on later."""
    max_output_tokens: int = Field(default=32_000, ge=1)
    """Longest answer, in tokens; so much is reserved in the budget for each call."""
    memory_bytes: int = Field(default=4 << 30, ge=1 << 30)
    """Most data memory of one process of the agent; the CLI does not start with less than 1 GiB."""


class ContextSettings(_Section):
    """What happens when a conversation outgrows the model's context."""

    limit_tokens: int = Field(default=200_000, ge=4096)
    """Size of the model's context; set it for a local model, whose server may cut a longer one silently."""
    soft: float = Field(default=0.7, gt=0, lt=1)
    """Above this part of it the oldest observations are masked."""
    hard: float = Field(default=0.9, gt=0, lt=1)
    """Above this part the agent is told to wind down, and then begins anew with what it carries over."""
    carryover_turns: int = Field(default=5, ge=0, le=100)
    """How many of the last turns are carried over."""

    @model_validator(mode="after")
    def _soft_below_hard(self) -> ContextSettings:
        if self.soft >= self.hard:
            raise ValueError(f"soft ({self.soft:g}) must be below hard ({self.hard:g})")
        return self


class BlockedPattern(_Section):
    """A command that the advisor refuses."""

    pattern: str
    """A regular expression, searched for in the command."""
    reason: str
    """What the agent is told."""


class ExploreSettings(_Section):
    """``operator explore``: an autonomous session in a workspace of its own."""

    shell_timeout_s: float = Field(default=30.0, gt=0)
    """Limit of one command."""
    blocked: tuple[BlockedPattern, ...] | None = None
    """Commands to refuse; replaces the built-in list. It is advice to the agent and no boundary: the sandbox is."""
    max_restarts: int | None = Field(default=None, ge=0)
    """How often it may begin anew with a fresh context; None: no limit."""
    auto_restart: bool = True
    """Without it, a full context pauses the session until a person says `operator explore resume`."""


class Credential(_Section):
    """A secret that the agent may use and never sees."""

    name: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")
    """What the journal calls it."""
    env: str | None = None
    """Variable of the worker that holds it. Either this or ``file``."""
    file: Path | None = None
    """File that holds it; read at each use, so that a rotated secret is taken up."""
    hosts: tuple[str, ...] = ()
    """Hosts to which the egress proxy adds it as a header; the agent asks for ``http://HOST/...`` and the proxy speaks
    TLS to the host."""
    header: str = Field(default="Authorization", pattern=r"^[A-Za-z0-9-]+$")
    """The header."""
    value: str = "Bearer {}"
    """The header's value; ``{}`` stands for the secret."""
    phases: tuple[Literal["worker", "verifier", "checks"], ...] = ()
    """Phases in which commands may read the ``file`` itself, at ``/run/secrets/NAME``."""

    @model_validator(mode="after")
    def _usable(self) -> Credential:
        if (self.env is None) == (self.file is None):
            raise ValueError("it needs either `env` or `file`")
        if self.value.count("{}") != 1:
            raise ValueError("`value` must hold `{}` once, where the secret goes")
        if self.phases and self.file is None:
            raise ValueError("only a secret in a `file` can be shown in `phases`")
        if not self.hosts and not self.phases:
            raise ValueError("it is of no use without `hosts` or `phases`")
        return self


class IncidentSettings(_Section):
    """How repairs of incidents are judged, beside the clauses of their invariants."""

    verifier: bool = False
    """A verifier agent must also read what was changed, and fail to refute the repair."""


class MonitorSettings(_Section):
    """How the monitor watches."""

    interval_s: float = Field(default=30.0, gt=0)
    """Time between two cycles."""
    blind_after_s: float = Field(default=120.0, ge=0)
    """How long an invariant may be unknown before a "monitor blind" incident opens."""
    flap_changes: int = Field(default=6, ge=2)
    """So many changes between green and red ..."""
    flap_window_s: float = Field(default=600.0, gt=0)
    """... within so many seconds are flapping."""
    clear_after: int = Field(default=2, ge=1)
    """Green cycles after which a ticket that nobody has worked on is closed as cleared."""


class WebSettings(_Section):
    """The HTTP API and the console (`operator serve`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Behind anything but loopback put a server that speaks TLS in front of it."""
    port: int = Field(default=8642, ge=0, le=65535)
    """Port to listen on; 0: any free one."""
    public_url: str | None = None
    """How people reach it, for the links in notifications and for cookies; without a path. None: where it listens."""
    hosts: tuple[str, ...] = ()
    """Further names by which requests come, e.g. of this machine for webhooks; others are refused."""
    login_hours: float = Field(default=12.0, gt=0, le=24 * 90)
    """A browser must sign in again after so many hours."""
    max_body_bytes: int = Field(default=2 << 20, ge=1 << 10)
    """A longer request is refused."""
    streams_per_token: int = Field(default=100, ge=1, le=1000)
    """One token may have so many live streams open; a page that somebody looks at has one."""

    @field_validator("public_url")
    @classmethod
    def _of_a_host(cls, value: str | None) -> str | None:
        found = None if value is None else _ADDRESS.fullmatch(value)
        if value is not None and found is None:
            raise ValueError("it must be an address as https://operator.example.com")
        if found is not None and found["path"] not in (None, "/"):
            path = found["path"][:60]
            raise ValueError(
                f"Operator cannot be served below the path {path!r}; give it a host name or port of its own"
            )
        return value


class ApprovalSettings(_Section):
    """Calls of agents that wait for a person; without a rule nothing does."""

    rule: tuple[ApprovalRule, ...] = ()
    """The first one that matches a call decides; a call that none matches is allowed."""
    expire_s: float = Field(default=86_400.0, gt=0, le=366 * 86_400.0)
    """A question that nobody has answered for so long is denied; an answer, too, is good for no longer."""
    environment: dict[str, str] = {}
    """What this worker's agents can touch, by names of your own, for example ``tier = "production"``."""


class NotifySettings(_Section):
    """Who is told what."""

    channel: tuple[Channel, ...] = ()
    """Ways to reach people and programs."""
    rule: tuple[NotifyRule, ...] = ()
    """What each of them is told."""
    digest: DigestPlan | None = None
    """A summary once a day."""

    @model_validator(mode="after")
    def _channels_exist(self) -> NotifySettings:
        known = [channel.name for channel in self.channel]
        for part in (*self.rule, *((self.digest,) if self.digest else ())):
            for name in part.channels:
                if name not in known:
                    raise ValueError(f"there is no channel {name!r}; the channels are {', '.join(known) or 'none'}")
        return self


class Settings(_Section):
    """Everything that can be configured."""

    store: StoreSettings = StoreSettings()
    model: ModelSettings = ModelSettings()
    limits: LimitSettings = LimitSettings()
    sandbox: SandboxSettings = SandboxSettings()
    worker: WorkerSettings = WorkerSettings()
    tasks: TaskSettings = TaskSettings()
    incidents: IncidentSettings = IncidentSettings()
    claude_code: ClaudeCodeSettings = ClaudeCodeSettings()
    context: ContextSettings = ContextSettings()
    explore: ExploreSettings = ExploreSettings()
    monitor: MonitorSettings = MonitorSettings()
    web: WebSettings = WebSettings()
    approvals: ApprovalSettings = ApprovalSettings()
    notify: NotifySettings = NotifySettings()
    intake: tuple[Intake, ...] = ()
    """Doors for alerts and other webhooks."""
    mcp_server: tuple[McpServer, ...] = ()
    """MCP servers whose tools agents may use."""
    credential: tuple[Credential, ...] = ()
    """Secrets that agents may use without seeing them."""
    subject: tuple[Subject, ...] = ()
    """Systems under watch."""
    _extensions: dict[str, Extension] = PrivateAttr(default_factory=dict)

    def extension(self, section: str, model: type[E]) -> E:
        """The section that another package brings; its defaults when these settings were not loaded from anywhere."""
        found = self._extensions.get(section)
        return found if isinstance(found, model) else model()

    def extended(self, section: str, values: Extension) -> Settings:
        """These settings with another section of a package."""
        copy = self.model_copy()
        copy._extensions = {**self._extensions, section: values}
        return copy

    @model_validator(mode="after")
    def _names_are_unique(self) -> Settings:
        names = [i.name for s in self.subject for i in s.invariant]
        for kind, values in (
            ("subject", [s.name for s in self.subject]),
            ("invariant", names),
            ("credential", [c.name for c in self.credential]),
            ("intake", [i.name for i in self.intake]),
            ("MCP server", [m.name for m in self.mcp_server]),
            ("channel", [c.name for c in self.notify.channel]),
        ):
            double = {v for v in values if values.count(v) > 1}
            if double:
                raise ValueError(f"two {kind}s are called {sorted(double)[0]!r}; names must be unique")
        return self


class LoadedSettings(NamedTuple):
    """Settings and where each came from.

    Attributes:
        settings: The merged, validated tree.
        origins: Dotted key -> ``default``, ``environment NAME`` or the file's path; only keys that were set.
        path: The file that was read, if any.
    """

    settings: Settings
    origins: dict[str, str]
    path: Path | None


def load_settings(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, db: str | None = None
) -> LoadedSettings:
    """Read the configuration.

    Args:
        path: The file; None: ``$OPERATOR_CONFIG``, else ``operator.toml`` in the current folder if there is one.
        environ: The environment (default: this process's).
        db: Database of the command line; wins over everything.

    Raises:
        ConfigError: The file is missing, is not TOML, has an unknown key or a bad value.
    """
    env = os.environ if environ is None else environ
    named = path or (Path(env["OPERATOR_CONFIG"]) if env.get("OPERATOR_CONFIG") else None)
    file = named or (Path(CONFIG_NAME) if Path(CONFIG_NAME).is_file() else None)
    data: dict[str, Any] = {}
    origins: dict[str, str] = {}
    if file is not None:
        data = _read_toml(file)
        origins.update({key: str(file) for key in _leaves(data)})
    models = extension_models()
    sections = [*(s for s in Settings.model_fields if s not in LISTS), *models]
    for extension, model in models.items():
        for name, key in model.ENVIRONMENT.items():
            if env.get(name):
                _put(data, extension, key, env[name])
                origins[f"{extension}.{key}"] = f"environment {name}"
    for name, value in env.items():
        section, _, key = name.removeprefix(ENV_PREFIX).lower().partition("__")
        if name.startswith(ENV_PREFIX) and key:
            if section not in sections:
                raise ConfigError(f"{name} names no setting; the sections are {', '.join(sections)}.")
            _put(data, section, key, value)
            origins[f"{section}.{key}"] = f"environment {name}"
    if "base_url" not in data.get("model", {}) and env.get("ANTHROPIC_BASE_URL"):
        _put(data, "model", "base_url", env["ANTHROPIC_BASE_URL"])
        origins["model.base_url"] = "environment ANTHROPIC_BASE_URL"
    chosen = db or env.get("OPERATOR_DB")
    if chosen:
        _put(data, "store", "url", chosen)
        origins["store.url"] = "command line --db" if db else "environment OPERATOR_DB"
    theirs = {name: data.pop(name) for name in models if name in data}
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise ConfigError(_explain(error, data, file, origins)) from None
    for extension, values in theirs.items():
        try:
            settings = settings.extended(extension, models[extension].model_validate(values))
        except ValidationError as error:
            raise ConfigError(_explain(error, theirs, file, origins, extension)) from None
    return LoadedSettings(settings, origins, file)


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"There is no configuration file {file}; write one with `operator init`.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"The configuration file {file} cannot be read ({error}).") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"The configuration file {file} is not valid TOML: {error}.") from None
    # A path is meant relative to the file that names it, wherever the command is started.
    base = file.resolve().parent
    for section, key in (
        ("subject", "workspace"),
        ("credential", "file"),
        ("intake", "secret_file"),
        ("mcp_server", "token_file"),
    ):
        for table in data[section] if isinstance(data.get(section), list) else []:
            if isinstance(table, dict) and isinstance(table.get(key), str):
                table[key] = str(base / Path(table[key]).expanduser())
    servers = data.get("mcp_server")
    for server in servers if isinstance(servers, list) else []:
        if isinstance(server, dict) and isinstance(server.get("readable"), list):
            server["readable"] = [
                str(base / Path(path).expanduser()) if isinstance(path, str) else path for path in server["readable"]
            ]
    notify = data.get("notify")
    channels = notify.get("channel") if isinstance(notify, dict) else None
    for channel in channels if isinstance(channels, list) else []:
        for key in ("url_file", "secret_file"):
            if isinstance(channel, dict) and isinstance(channel.get(key), str):
                channel[key] = str(base / Path(channel[key]).expanduser())
    for section, key in (("store", "url"), ("worker", "state_dir"), ("tasks", "root"), ("claude_code", "program")):
        table = data.get(section)
        if isinstance(table, dict) and isinstance(table.get(key), str) and "://" not in table[key]:
            table[key] = str(file.parent / Path(table[key]).expanduser())
    for section, model in extension_models().items():
        table = data.get(section)
        if not isinstance(table, dict):
            continue
        for key, field in model.model_fields.items():
            if Path in (field.annotation, *get_args(field.annotation)) and isinstance(table.get(key), str):
                table[key] = str(file.parent / Path(table[key]).expanduser())
    return data


def _leaves(data: Mapping[str, Any], prefix: str = "") -> list[str]:
    out: list[str] = []
    for key, value in data.items():
        name = f"{prefix}{key}"
        out.extend(_leaves(value, f"{name}.") if isinstance(value, Mapping) else [name])
    return out


def _put(data: dict[str, Any], section: str, key: str, value: str) -> None:
    # What is no section is left to the validation, which says so.
    if isinstance(data.setdefault(section, {}), dict):
        data[section][key] = value


def _explain(
    error: ValidationError, data: Mapping[str, Any], file: Path | None, origins: Mapping[str, str], section: str = ""
) -> str:
    first = error.errors()[0]
    full = (section, *first["loc"]) if section else first["loc"]
    # After a probe stands its type, which is no key.
    loc = [part for i, part in enumerate(full) if i == 0 or full[i - 1] != "probe"]
    source = origins.get(".".join(map(str, loc))) or (str(file) if file else "the environment")
    where = _place(loc, data)
    if first["type"] == "extra_forbidden":
        known = _known(full[:-1])
        near = get_close_matches(str(loc[-1]), known, 1)
        rest = f"perhaps '{near[0]}' is meant." if near else f"known here: {', '.join(known)}."
        return f"Unknown key '{where}' in {source}; {rest}"
    if first["type"] == "missing":
        return f"The key '{where}' is missing in {source}."
    if first["type"] == "tuple_type" and len(full) == 1 and isinstance(data.get(str(full[0])), dict):
        return f"'{where}' in {source} is a list of tables; write its head as [[{where}]]."
    what = f"Bad value for '{where}' in" if where else "Bad configuration in"
    return f"{what} {source}: {first['msg'].removeprefix('Value error, ')}."


def _place(loc: Sequence[int | str], data: Any) -> str:
    """Dotted keys; an item of a list is called by its name, or by its number from 1."""
    words = ""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(part, int):
            name = data.get("name") if isinstance(data, dict) else None
            words += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            words += f".{part}" if words else part
    return words


def _known(loc: Sequence[int | str]) -> list[str]:
    """The keys that the innermost of these tables may have."""
    tables: dict[int | str, Any] = {name: field.annotation for name, field in Settings.model_fields.items()}
    tables |= {"credential": Credential, "blocked": BlockedPattern}
    tables |= {"prices": Price, "subject": Subject, "invariant": Invariant, "durability": Durability}
    tables |= {"protect": Protect, "http": HttpProbe, "tcp": TcpProbe, "command": CommandProbe, "promql": PromQLProbe}
    tables |= {"intake": Intake, "mcp_server": McpServer, "channel": Channel, "digest": DigestPlan}
    tables |= {"alertmanager": AlertRules, "webhook": WebhookRules, "incident": IncidentWords, "task": TaskWords}
    tables |= {"github": GithubRules, "repository": GithubRepository}
    tables |= {"rule": ApprovalRule if "approvals" in loc else NotifyRule}
    tables |= dict(extension_models().items())
    model = next((tables[part] for part in reversed(loc) if part in tables), Settings)
    return list(model.model_fields) if loc else [*model.model_fields, *extension_models()]

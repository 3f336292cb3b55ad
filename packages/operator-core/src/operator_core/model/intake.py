"""What comes in from elsewhere: the doors for webhooks (`[[intake]]`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from operator_core.model.json_path import parse_path
from operator_core.model.task import TaskEngine, TaskProfile
from operator_core.model.template import Template

__all__ = [
    "AlertRules",
    "GithubRepository",
    "GithubRules",
    "IncidentWords",
    "Intake",
    "Severity",
    "TaskOptions",
    "TaskWords",
    "WebhookRules",
]

Severity = Literal["critical", "warning", "info"]


def _is_template(text: str) -> str:
    Template.parse(text)
    return text


def _is_path(text: str) -> str:
    parse_path(text)
    return text


Words = Annotated[str, AfterValidator(_is_template)]
"""A :class:`~operator_core.model.template.Template`."""
JsonPath = Annotated[str, AfterValidator(_is_path)]
"""A place in a document, e.g. ``project.tags[0]``."""
Conditions = dict[JsonPath, tuple[str, ...]]
"""Place -> the values that it may have there, as text; all places must fit."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AlertRules(_Frozen):
    """How alerts of Alertmanager become incidents."""

    invariant_label: str = "operator_invariant"
    """Label or annotation that names an invariant of this configuration: what a repair is then proved by."""
    severity_label: str = "severity"
    """Label that says how bad it is."""
    severity: dict[str, Severity] = {}
    """What its values mean, beside the usual ones (``page``, ``critical``, ``error``, ``warning``, ``info`` …)."""
    default_severity: Severity = "warning"
    """Of an alert whose label is missing or means nothing."""


class TaskOptions(_Frozen):
    """What a task is done with. Nothing here comes from a message."""

    checks: tuple[str, ...] = ()
    """Commands that end with 0 when the work is right; without one it can be reviewed, and never proved."""
    allow_change: tuple[str, ...] = ()
    """Test and runner files that the work may change."""
    engine: TaskEngine | None = None
    model: str | None = None
    budget_usd: float | None = Field(default=None, gt=0)
    max_iterations: int | None = Field(default=None, ge=1, le=10)
    profile: TaskProfile = "shraga"
    network: Literal["none", "allowlist", "host"] = "none"
    allow_hosts: tuple[str, ...] = ()
    pinned_to: str | None = None
    """Name of the only worker that may take it."""


class IncidentWords(_Frozen):
    """The incident that a message becomes; the texts are templates."""

    name: Words
    """Short name of what is wrong."""
    message: Words
    """What is wrong, for people and for the agent."""
    key: Words = ""
    """Messages with one key are about one incident; empty: all of one name are."""
    severity: Words = "warning"
    """``critical``, ``warning`` or ``info``, or a word that ``severities`` knows."""
    severities: dict[str, Severity] = {}
    """What other words mean."""
    invariant: Words = ""
    """Name of an invariant of this configuration, by which a repair is proved; empty: none."""
    labels: dict[str, Words] = {}


class TaskWords(TaskOptions):
    """The task that a message becomes; ``prompt``, ``name``, ``key``, ``ref`` and ``labels`` are templates."""

    prompt: Words
    """What is to be done."""
    name: Words = ""
    """Short, for people; empty: the first line of the prompt."""
    key: Words = ""
    """A second message with the same key opens no second task; empty: each message opens one."""
    repo: str | None = None
    """Address of the repository, or a folder of the server. A message cannot change it."""
    ref: Words = ""
    """Branch, tag or commit; empty: what is checked out."""
    labels: dict[str, Words] = {}


class WebhookRules(_Frozen):
    """How the JSON of a signed webhook becomes incidents or tasks."""

    tolerance_s: float = Field(default=300.0, gt=0, le=3600)
    """How far the time of a message may be from the server's clock."""
    each: JsonPath | None = None
    """Place of a list: each of its items is a message. None: the document is one message."""
    when: Conditions = {}
    """Which messages count; the others are ignored."""
    observe: Conditions = {}
    """Which messages only say something about a ticket that is there ("it is over"); noted in its history."""
    incident: IncidentWords | None = None
    """What a message becomes: this ..."""
    task: TaskWords | None = None
    """... or this."""

    @model_validator(mode="after")
    def _becomes_one_thing(self) -> Self:
        if (self.incident is None) == (self.task is None):
            raise ValueError("it needs either `incident` or `task`")
        if self.observe and self.task is not None and not self.task.key:
            raise ValueError("without a `key` of the task nobody knows about which one `observe` is")
        return self


class GithubRepository(TaskOptions):
    """A repository whose labelled issues become tasks."""

    name: str = Field(pattern=r"^[A-Za-z0-9_.-]{1,100}/[A-Za-z0-9_.-]{1,100}$")
    """``owner/name``."""
    url: str | None = None
    """Where it is cloned from. None: ``https://github.com/<name>.git``."""
    ref: str | None = None
    """Branch, tag or commit where the work begins; None: the default branch."""


class GithubRules(_Frozen):
    """Which issues become tasks."""

    label: str = Field(min_length=1, max_length=100)
    """The label that makes an issue a task. Who may set it may have work done."""
    repository: tuple[GithubRepository, ...] = Field(min_length=1)
    """Only issues of these."""
    trusted: tuple[str, ...] = ("OWNER", "MEMBER", "COLLABORATOR")
    """GitHub's ``author_association`` of those whose own issues may carry the label from the start. The label of
    anybody else's issue must be set by another person: templates let every stranger open an issue with a label."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        names = [repository.name.casefold() for repository in self.repository]
        if len(set(names)) < len(names):
            raise ValueError("one repository is named twice")
        return self


class Intake(_Frozen):
    """One door for webhooks, at ``/api/v1/intake/<name>``."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    """Part of its address."""
    kind: Literal["alertmanager", "webhook", "github"]
    """Whose form the messages have."""
    secret_env: str | None = Field(default=None, min_length=1)
    """Variable of the server that holds the secret which senders know. Either this or ``secret_file``."""
    secret_file: Path | None = None
    """File that holds it; read for each message, so that a rotated secret is taken up."""
    priority: int = Field(default=0, ge=-(2**31), lt=2**31)
    """Of the tickets that come in here; the highest is worked on first."""
    alertmanager: AlertRules | None = None
    """For the kind of that name; None: the defaults."""
    webhook: WebhookRules | None = None
    """For the kind of that name."""
    github: GithubRules | None = None
    """For the kind of that name."""

    @property
    def source(self) -> str:
        """How links and keys call it."""
        return f"intake:{self.name}"

    @model_validator(mode="after")
    def _usable(self) -> Self:
        if (self.secret_env is None) == (self.secret_file is None):
            raise ValueError("it needs either `secret_env` or `secret_file`: no door is open to everybody")
        for kind in ("alertmanager", "webhook", "github"):
            if kind != self.kind and getattr(self, kind) is not None:
                raise ValueError(f"`{kind}` has no meaning for the kind {self.kind!r}")
        if self.kind != "alertmanager" and getattr(self, self.kind) is None:
            raise ValueError(f"the kind {self.kind!r} needs a table [intake.{self.kind}]")
        return self

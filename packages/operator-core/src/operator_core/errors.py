"""Every error that Operator raises on purpose, in one tree.

    OperatorError
    ├── ConfigError
    │   └── SystemPromptNotFound
    ├── StoreError
    │   ├── StoreUnavailable
    │   ├── StoreReadOnly
    │   ├── StoreFull
    │   ├── SchemaMismatch
    │   ├── NotFound
    │   ├── TransitionRefused
    │   └── Fenced
    ├── SandboxError
    │   └── SandboxUnavailable
    ├── ModelError
    │   ├── ModelNotUsable
    │   ├── ModelRefused
    │   ├── ModelUnreachable
    │   └── UnknownPrice
    ├── IntakeRefused
    ├── LimitReached
    ├── MonitorError
    │   └── ProbeFailed
    ├── SourceError
    └── VerificationError

A class's docstring is its default message. A message is one sentence that a person can act on: what happened,
and what to do next. The command line prints exactly that sentence and exits with ``exit_code``.
"""

from __future__ import annotations

__all__ = [
    "ConfigError",
    "Fenced",
    "IntakeRefused",
    "LimitReached",
    "ModelError",
    "ModelNotUsable",
    "ModelRefused",
    "ModelUnreachable",
    "MonitorError",
    "NotFound",
    "OperatorError",
    "ProbeFailed",
    "SandboxError",
    "SandboxUnavailable",
    "SchemaMismatch",
    "SourceError",
    "StoreError",
    "StoreFull",
    "StoreReadOnly",
    "StoreUnavailable",
    "SystemPromptNotFound",
    "TransitionRefused",
    "UnknownPrice",
    "VerificationError",
]


class OperatorError(Exception):
    """Operator could not do what was asked."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigError(OperatorError):
    """The configuration is not usable; run `operator config show` to see what was read and from where."""

    exit_code = 2


class SystemPromptNotFound(ConfigError):
    """The workspace holds no `SYSTEM_PROMPT.md`; write into it what the agent is to do.

    Attributes:
        path: Where it is expected.
    """

    def __init__(self, path: object) -> None:
        self.path = str(path)
        super().__init__(f"There is no system prompt at `{path}`; write into it what the agent is to do.")


class StoreError(OperatorError):
    """The database could not do what was asked; run `operator doctor`."""


class StoreUnavailable(StoreError):
    """The database cannot be reached; check `--db` and run `operator doctor`."""


class StoreReadOnly(StoreError):
    """The database is read-only; give its file and folder write permission, or choose another with `--db`."""


class StoreFull(StoreError):
    """The disk under the database is full; free some space and start again, nothing that was stored is lost."""


class SchemaMismatch(StoreError):
    """The database was written by another version of Operator; upgrade Operator, or choose another with `--db`."""


class NotFound(StoreError):
    """There is no such ticket or session; list them with `operator tickets list` or `operator sessions list`."""


class TransitionRefused(StoreError):
    """The ticket is in a state that does not allow this; look at it with `operator tickets show ID`."""


class Fenced(StoreError):
    """Another worker owns this ticket now; this worker stops and writes nothing more about it."""


class SandboxError(OperatorError):
    """The sandbox could not do what was asked; run `operator doctor`."""


class SandboxUnavailable(SandboxError):
    """No sandbox can be started here; run `operator doctor` for the remedy.

    Attributes:
        reason: What is missing or what failed, one clause without a full stop.
        remedy: What a person can do about it, one imperative clause without a full stop.
    """

    def __init__(self, reason: str, remedy: str) -> None:
        self.reason = reason
        self.remedy = remedy
        super().__init__(f"The sandbox cannot start: {reason}. Remedy: {remedy}.")


class ModelError(OperatorError):
    """The model service answered with an error; run `operator doctor`."""


class ModelUnreachable(ModelError):
    """The model endpoint cannot be reached; check `[model] base_url` and the network, then run `operator doctor`."""


class ModelNotUsable(ModelError):
    """The model service does not accept the key or does not know the model; set others and run `operator doctor`."""


class ModelRefused(ModelError):
    """The model service refused this request; the ticket needs a person."""


class UnknownPrice(ModelError):
    """The price of this model is not known; set `[model.prices]`, or allow it with `allow_unknown_price = true`."""


class IntakeRefused(OperatorError):
    """A message from elsewhere was not taken; look at how its door is configured with `operator config show`.

    Attributes:
        status: What an HTTP answer says: 400 no JSON, 401 not from whom it should be, 404 no such door, 409 sent twice,
            413 too much, 422 not of the agreed form, 503 the door has no secret yet or a repository cannot be reached.
    """

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


class LimitReached(OperatorError):
    """A limit of this ticket was reached; raise it in `[limits]`, or reopen the ticket to go on."""


class MonitorError(OperatorError):
    """The monitor could not do what was asked; check `operator.toml`."""


class ProbeFailed(MonitorError):
    """The probe could not look: what it watches is unknown, which is not the same as healthy."""


class SourceError(OperatorError):
    """What the task starts from cannot be had on this machine; give it a repository or folder that is there."""


class VerificationError(OperatorError):
    """The verification could not be carried out; nothing is proved and nothing is refuted."""

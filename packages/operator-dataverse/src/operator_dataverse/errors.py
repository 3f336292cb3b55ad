"""Every error of this package, below the product's own tree.

    OperatorError
    ├── ConfigError
    │   ├── NotConfigured
    │   └── OneDriveNotFound
    └── DataverseError
        ├── Unreachable
        ├── Unauthorized
        ├── Throttled
        ├── Refused
        └── SchemaProblem

A row that somebody else changed is no error but an answer: see :class:`operator_dataverse.client.Conflict`.
"""

from __future__ import annotations

from operator_core.errors import ConfigError, OperatorError

__all__ = [
    "DataverseError",
    "NotConfigured",
    "OneDriveNotFound",
    "Refused",
    "SchemaProblem",
    "Throttled",
    "Unauthorized",
    "Unreachable",
]


class NotConfigured(ConfigError):
    """Dataverse is not configured; see `operator-dataverse doctor`."""


class OneDriveNotFound(ConfigError):
    """No OneDrive folder was found; sign in to OneDrive, or name the folder as `[dataverse] onedrive_dir`."""


class DataverseError(OperatorError):
    """Dataverse could not do what was asked; run `operator-dataverse doctor`."""


class Unreachable(DataverseError):
    """The service does not answer; check `[dataverse] url` and the network."""


class Unauthorized(DataverseError):
    """The service refuses this account; run `operator-dataverse authenticate`."""


class Throttled(DataverseError):
    """The service asks for a pause that is longer than this command waits; try again later.

    Attributes:
        after_s: So many seconds.
    """

    def __init__(self, message: str | None = None, *, after_s: float = 60.0) -> None:
        super().__init__(message or "The service asks for a pause that is longer than this command waits; try later.")
        self.after_s = after_s


class Refused(DataverseError):
    """The service refuses the request; its message says why.

    Attributes:
        status: The HTTP status.
        code: The service's own code, such as ``0x80060888``; may be empty.
    """

    def __init__(self, message: str | None = None, *, status: int = 400, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class SchemaProblem(DataverseError):
    """The tables of this organisation are not as they must be; run `operator-dataverse schema diff`."""

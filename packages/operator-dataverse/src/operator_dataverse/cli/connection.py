"""The organisation that a command works on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import invocation
from operator_dataverse.settings import DataverseSettings, settings_of

if TYPE_CHECKING:
    from operator_dataverse.client import Dataverse

__all__ = ["DryRun", "dataverse_settings", "open_dataverse"]

DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")]


def dataverse_settings(context: typer.Context) -> DataverseSettings:
    """``[dataverse]`` of this call."""
    return settings_of(invocation(context).settings)


@asynccontextmanager
async def open_dataverse(context: typer.Context, *, timeout_s: float = 0.0) -> AsyncIterator[Dataverse]:
    """The organisation of the settings.

    Args:
        context: Of the command.
        timeout_s: At least so much time for one request, in seconds.

    Raises:
        NotConfigured: ``[dataverse] url`` is missing.
    """
    from operator_dataverse.client import Dataverse

    settings = dataverse_settings(context)
    longer = settings.model_copy(update={"timeout_s": max(settings.timeout_s, timeout_s)})
    async with Dataverse.open(longer) as dataverse:
        yield dataverse

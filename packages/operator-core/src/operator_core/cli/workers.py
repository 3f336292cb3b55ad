"""``operator worker list | drain | undrain``: who works, and who takes nothing new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, open_api, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from collections.abc import Sequence

    from operator_core.api.models import WorkerView

__all__ = ["drain", "list_workers", "undrain"]

WorkerId = Annotated[str, typer.Argument(metavar="WORKER", help="Id of the worker, or how it begins.")]

_COLUMNS = ("id", "name", "state", "slots", "tickets", "host", "pid")


def list_workers(context: typer.Context, as_json: AsJson = False) -> None:
    """The workers that live, and those whose work nobody has taken over yet."""

    async def work() -> list[WorkerView]:
        async with open_api(context) as api:
            return await api.workers()

    _show(run(work()), as_json)


def drain(context: typer.Context, worker: WorkerId, as_json: AsJson = False) -> None:
    """Let a worker end what it has and take nothing new."""
    _set(context, worker, True, as_json)


def undrain(context: typer.Context, worker: WorkerId, as_json: AsJson = False) -> None:
    """Let a worker take tickets again."""
    _set(context, worker, False, as_json)


def _set(context: typer.Context, worker: str, draining: bool, as_json: bool) -> None:
    async def work() -> Sequence[WorkerView]:
        async with open_api(context) as api:
            return await api.drain(_named(await api.workers(), worker), draining)

    _show(run(work()), as_json)


def _named(workers: Sequence[WorkerView], word: str) -> str:
    found = [w.id for w in workers if w.id == word] or [w.id for w in workers if word and w.id.startswith(word)]
    if not found:
        raise NotFound("There is no such worker any more; list them with `operator worker list`.")
    if len(found) > 1:
        raise ConfigError(f"{len(found)} workers begin with {word[:40]!r}; give more of the id.")
    return found[0]


def _show(workers: Sequence[WorkerView], as_json: bool) -> None:
    out = Output()
    if as_json:
        from operator_core.cli.remote import plain_data

        out.json(plain_data(list(workers)))
        return
    rows = [
        [
            worker.id,
            worker.name,
            "gone" if not worker.alive else "draining" if worker.draining else "alive",
            f"{len(worker.tickets)} of {worker.concurrency}" if worker.concurrency else len(worker.tickets),
            " ".join(f"#{ticket}" for ticket in worker.tickets),
            worker.host,
            worker.pid,
        ]
        for worker in workers
    ]
    out.table(_COLUMNS, rows, empty="No worker is there; start one with `operator worker run`.")

"""The check of the chain for a server: beside its event loop, and once for all who ask for it at the same time."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from weakref import WeakKeyDictionary

from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError

from operator_core import clock
from operator_core.api.models import AuditView
from operator_core.config import Settings
from operator_core.db.engine import Database, sqlite_reader
from operator_core.db.integrity import AuditReport, audit, verify
from operator_core.db.retention import load_key
from operator_core.errors import StoreUnavailable
from operator_core.redaction import Redactor
from operator_core.work.state import StateFolder

__all__ = ["check_chain"]

_RUNNING: WeakKeyDictionary[Database, dict[str | None, asyncio.Task[AuditView]]] = WeakKeyDictionary()


async def check_chain(database: Database, settings: Settings, session_id: str | None) -> AuditView:
    """Check everything, or one session, as it is now.

    A check of a large store takes minutes of computing, so it has a thread and a connection of its own; who asks for
    the same while it runs waits for the same result.

    Raises:
        NotFound: There is no such session, and the ledger knows of none.
    """
    running = _RUNNING.setdefault(database, {})
    task = running.get(session_id)
    if task is None:
        folder = StateFolder.locate(settings, database)
        task = running[session_id] = asyncio.create_task(_check(database.url, folder, session_id))
        task.add_done_callback(lambda done: running.pop(session_id, None))
    return await asyncio.shield(task)


async def _check(url: URL, state_dir: Path, session_id: str | None) -> AuditView:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[AuditReport] = loop.create_future()

    def tell(result: AuditReport | BaseException) -> None:
        if ended.done():
            return
        if isinstance(result, BaseException):
            ended.set_exception(result)
        else:
            ended.set_result(result)

    def work() -> None:
        result: AuditReport | BaseException
        try:
            result = _verify(url, load_key(state_dir), session_id)
        except BaseException as error:
            result = error
        try:
            loop.call_soon_threadsafe(tell, result)
        except RuntimeError:
            return  # the server ended meanwhile, and nobody waits any more

    # Not of the loop's own pool: a server that ends does not wait for it.
    threading.Thread(target=work, name="operator-audit", daemon=True).start()
    return _view(await ended)


def _verify(url: URL, key: bytes | None, session_id: str | None) -> AuditReport:
    if url.get_backend_name() != "sqlite":
        return asyncio.run(_verify_on_server(url, key, session_id))
    engine = sqlite_reader(url)
    try:
        with engine.connect() as connection:
            return audit(connection, session_id=session_id, key=key)
    except DBAPIError as error:
        raise StoreUnavailable(f"The database {url.database} cannot be read ({error.orig}); check the file.") from error
    finally:
        engine.dispose()


async def _verify_on_server(url: URL, key: bytes | None, session_id: str | None) -> AuditReport:
    where = url.render_as_string(hide_password=False)
    async with Database.open(where, redactor=Redactor(), create=False) as database:
        return await verify(database, session_id=session_id, key=key)


def _view(report: AuditReport) -> AuditView:
    problem = report.problem
    summary = problem.sentence if problem else _intact(report)
    return AuditView(
        ok=report.ok,
        summary=summary,
        sessions=report.sessions,
        entries=report.entries,
        problems=[vars(problem)] if problem else [],
        head_seq=report.ledger_rows - 1,
        head_hash=report.head,
        at=clock.now(),
    )


def _intact(report: AuditReport) -> str:
    pruned = f", {report.pruned} pruned by rule" if report.pruned else ""
    words = (
        f"The journal is intact: {report.sessions} session(s) with {report.entries} entries, {report.blobs} large "
        f"output(s){pruned}, {report.ledger_rows} ledger rows."
    )
    return words if report.append_only else f"{words} But the database no longer refuses to change it."

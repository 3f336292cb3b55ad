"""The worker's source of tickets in Dataverse: rows come in, and what becomes of them goes back."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from operator_core.agent_lab.gateway import Say
from operator_core.clock import Clock
from operator_core.config import Settings
from operator_core.db.engine import Database
from operator_core.errors import ModelNotUsable, OperatorError, StoreError
from operator_core.work.sources import Attached
from operator_dataverse.errors import Throttled, Unreachable
from operator_dataverse.settings import DataverseSettings, settings_of

if TYPE_CHECKING:
    from operator_dataverse.client import Credential, Dataverse
    from operator_dataverse.intake.desk import Desk
    from operator_dataverse.intake.rounds import Rounds
    from operator_dataverse.reporting import Reporter

__all__ = ["DataverseSource", "attach"]

_DRAIN_S, _GOODBYE_S = 30.0, 5.0


def attach(settings: Settings, database: Database, say: Say) -> Attached | None:
    """Dataverse as a source of tickets; None when it is not configured.

    Raises:
        NotConfigured: Only a part of it is configured; the message names the rest.
        ConfigError: The folder of the session folders cannot be used.
    """
    mine = settings_of(settings)
    if mine.url is None and mine.user is None:
        return None
    mine.needs("url", "user")
    from operator_dataverse.onedrive import with_session_root

    settings = with_session_root(settings)
    return Attached(settings, DataverseSource(settings, mine, database, say))


class DataverseSource:
    """Rows of the task table as tickets.

    Args:
        settings: Of the product, as the worker uses them.
        mine: ``[dataverse]``.
        database: The open store.
        say: Prints a line for a person.
        credential: Who asks; default: what :func:`operator_dataverse.client.open_credential` finds.
        checkout: What self-update keeps up to date; default: the checkout that this package is in.
    """

    def __init__(
        self,
        settings: Settings,
        mine: DataverseSettings,
        database: Database,
        say: Say,
        *,
        credential: Credential | None = None,
        checkout: Path | None = None,
    ) -> None:
        self._settings = settings
        self._mine = mine
        self._database = database
        self._say: Say = lambda line: say(database.redactor.text(line))
        self._credential = credential
        self._checkout = checkout
        self._dataverse: Dataverse | None = None
        self._opening = asyncio.Lock()
        self._complaint = ""
        self._parts: tuple[Rounds, Reporter] | None = None
        self._replaced = False

    async def start(self) -> None:
        """Find out who we are, take up what an earlier process left, and look once.

        Raises:
            DataverseError: The service cannot be used as it is configured. One that does not answer is waited for.
        """
        if await self._finish_update():
            return
        try:
            await self.look()
        except (Unreachable, Throttled) as error:
            self._complain(error)
        except BaseException:
            await self._close()
            raise

    async def look(self) -> bool:
        """One round; whether tickets came of it.

        Raises:
            DataverseError: The service does not answer, or not to us.
        """
        if self._replaced:
            return False
        rounds, _ = await self._open()
        return bool(await rounds.look())

    async def run(self, stop: asyncio.Event) -> None:
        """Keep rows and tickets in agreement until ``stop`` is set; then bring away what is still to be said.

        It ends by itself when a new version of the product is in place (row B-064).
        """
        try:
            while not stop.is_set() and not self._replaced:
                try:
                    rounds, reporter = await self._open()
                except OperatorError as error:
                    self._complain(error)
                    await Clock().wait(stop, self._mine.poll_s)
                    continue
                await self._together(stop, rounds, reporter)
                if not await reporter.drain(_DRAIN_S):
                    await reporter.drain(_GOODBYE_S, goodbye=True)
                return
        finally:
            await self._close()

    async def trouble(self, error: OperatorError) -> None:
        """The worker ends because of this: a person who has to sign in again is told so (row B-038)."""
        if isinstance(error, ModelNotUsable) and self._parts is not None:
            await self._parts[1].authentication_required(str(error))

    async def _together(self, stop: asyncio.Event, rounds: Rounds, reporter: Reporter) -> None:
        """All parts until ``stop``, or until the first of them ends; a mistake in one of them is not passed over."""
        over = asyncio.Event()
        parts = [rounds.run(over), reporter.run(over)]
        if self._mine.update_branch is not None:
            parts.append(self._keep_up_to_date(over, rounds, reporter))
        running = [asyncio.create_task(part) for part in parts]
        aside = [asyncio.create_task(self._show_presence(rounds.desk)), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait({aside[1], *running}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.set()
            for task in aside:
                task.cancel()
            ends = await asyncio.gather(*running, return_exceptions=True)
            await asyncio.gather(*aside, return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end

    async def _show_presence(self, desk: Desk) -> None:
        """Say in the users table that the worker of this box is alive, also while it has nothing to do."""
        from operator_dataverse.fleet.users import Users

        users, clock = Users(desk.dataverse), Clock()
        while True:
            # Without the table, or without the right to write it, tasks can be worked on all the same.
            with contextlib.suppress(OperatorError):
                await users.worker_seen(desk.people[0], desk.box)
            await clock.sleep(desk.mine.lease_s / 4)

    async def _finish_update(self) -> bool:
        """Before any work: whether an interrupted update was ended, so that this process must be started again."""
        if self._mine.update_branch is not None:
            from operator_dataverse.update import Updater

            self._replaced = await Updater(self._mine, self._say, self._checkout).finish()
        return self._replaced

    async def _keep_up_to_date(self, over: asyncio.Event, rounds: Rounds, reporter: Reporter) -> None:
        """Until a new version is in place; looked for only while there is nothing to do."""
        from operator_dataverse.update import Updater

        updater, clock = Updater(self._mine, self._say, self._checkout), Clock()
        while not await clock.wait(over, self._mine.poll_s):
            with contextlib.suppress(StoreError):
                if await rounds.when_idle(updater.maybe):
                    await reporter.announce("Updating worker to new version...")
                    return

    async def _open(self) -> tuple[Rounds, Reporter]:
        from operator_dataverse.client import Dataverse
        from operator_dataverse.intake.desk import open_desk
        from operator_dataverse.intake.rounds import Rounds
        from operator_dataverse.reporting import Reporter

        async with self._opening:
            if self._parts is None:
                if self._dataverse is None:
                    self._dataverse = Dataverse.open(self._mine, self._credential, learn=self._database.redactor.learn)
                desk = await open_desk(self._settings, self._mine, self._database, self._dataverse, self._say)
                rounds = Rounds(desk)
                self._parts = rounds, Reporter(desk, disputed=lambda row_id: rounds.wake())
                self._say(f"[Dataverse] Taking tasks of {self._mine.user} on {desk.box} from {self._dataverse.url}.")
            return self._parts

    def _complain(self, error: OperatorError) -> None:
        """Say what is wrong, once for each trouble."""
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._say(f"[Dataverse] {error} It is tried again.")

    async def _close(self) -> None:
        if self._dataverse is not None:
            await self._dataverse.close()

"""Looking for a new version, and taking it."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from operator_core import clock
from operator_core.agent_lab.gateway import Say
from operator_core.errors import OperatorError
from operator_core.failpoints import reach
from operator_core.sandbox import run
from operator_core.sandbox.process import Process, start_process
from operator_core.text import clip, printable
from operator_dataverse.settings import DataverseSettings
from operator_dataverse.update.checkout import VERSION, Checkout, Record
from operator_dataverse.update.trust import why_not_trusted

__all__ = ["Look", "Updater"]

_HEALTH_S, _INSTALL_S = 120.0, 1800.0
_NOT_AGAIN = "again only with `operator-dataverse update apply --again`"
_PASSED_ON = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "HTTPS_PROXY",
    "NO_PROXY",
    "VIRTUAL_ENV",
)


class NotInstalled(OperatorError):
    """`[dataverse] update_install` failed; it may be another time."""


class Look(NamedTuple):
    """What a look at the remote found.

    Attributes:
        here: Version and commit that run here.
        there: Version and commit of the followed branch.
        why_not: Why it is not taken; None: it is newer, and may be.
    """

    here: tuple[str | None, str]
    there: tuple[str | None, str]
    why_not: str | None


class Updater:
    """Follows one branch of the checkout that this program runs from.

    Args:
        mine: ``update_branch``, ``update_s``, and whom to trust.
        say: Prints a line for a person.
        folder: In which checkout; default: that of this package.
    """

    def __init__(self, mine: DataverseSettings, say: Say, folder: Path | None = None) -> None:
        self._mine = mine
        self._say = say
        self._folder = folder
        self._looked = clock.monotonic()
        self._said = ""

    async def maybe(self, idle: bool) -> bool:
        """Update if it is time for it and nothing is being worked on.

        Whatever goes wrong is said, once, and changes nothing.

        Returns:
            True when the new version is in place: this process must end, with exit code 0, and be started again.
        """
        if self._mine.update_branch is None or not idle or clock.monotonic() - self._looked < self._mine.update_s:
            return False
        self._looked = clock.monotonic()
        if await self.finish():
            return True
        try:
            found = await self.look()
            if found.why_not is None:
                await self.apply(found)
                self._say(f"[Update] Version {found.there[0]} is in place; this worker ends so that it is started.")
                return True
            said = found.why_not if found.here[0] != found.there[0] else ""
        except (OperatorError, OSError) as error:
            said = str(error)
        if said and said != self._said:
            self._say(f"[Update] {said}")
        self._said = said
        return False

    async def finish(self) -> bool:
        """End an update that was interrupted: its version is installed and tried now, or left again.

        Whatever goes wrong is said, once. Nothing is done while another process is at it.

        Returns:
            Whether there was one: this process may be of either version, and must be started again.
        """
        try:
            checkout = await self.checkout()
            if not (await checkout.record()).taking:
                return False
            self._install_words()
            async with checkout.alone():
                record = await checkout.record()
                if record.taking:
                    self._say(f"[Update] {await self._finish(checkout, record)}")
                return bool(record.taking)
        except (OperatorError, OSError) as error:
            said = str(error)
        if said != self._said:
            self._say(f"[Update] {said}")
        self._said = said
        return False

    async def _finish(self, checkout: Checkout, record: Record) -> str:
        """Returns: What became of it, for people."""
        old, new = record.leaving, record.taking
        name = f"The update to {new[:12]}, which was interrupted,"
        await checkout.unlock()
        here = await checkout.commit()
        if here not in (old, new):
            await self._forget(checkout)
            return f"{name} is forgotten: somebody has checked out {here[:12]} since."
        if here == old or new in record.failed:
            await self._undo(checkout, old, new, None)
            return f"{name} is undone; {old[:12]} is here."
        try:
            await self._install(checkout)
            await self._healthy(checkout.folder)
        except BaseException as error:
            await asyncio.shield(self._undo(checkout, old, new, error))
            if isinstance(error, OperatorError):
                return f"{name} does not work here ({error}); {old[:12]} is here again."
            raise
        await self._done(checkout)
        return f"{name} is finished."

    async def checkout(self) -> Checkout:
        """The checkout.

        Raises:
            ConfigError: It cannot be followed, or no branch is set.
        """
        return await Checkout.find(self._mine.needs("update_branch").update_branch or "", self._folder)

    async def look(self) -> Look:
        """Ask the remote what its branch has now.

        Raises:
            OperatorError: It does not answer.
        """
        checkout = await self.checkout()
        here = await checkout.commit()
        there = await checkout.fetch()
        look = Look((await checkout.version(here), here), (await checkout.version(there), there), None)
        return look._replace(why_not=await self._why_not(checkout, look))

    async def apply(self, look: Look) -> None:
        """Take exactly the commit that was looked at; when it does not work here, what was there before is back.

        Raises:
            OperatorError: It was not taken; the message says why.
        """
        (_, old), (version, new) = look.here, look.there
        checkout = await self.checkout()
        self._install_words()
        async with checkout.alone():
            if look.why_not is not None or await checkout.commit() != old:
                raise OperatorError(look.why_not or "Another process has changed the checkout; look again.")
            # From its first change on, whoever finds the checkout knows what it was meant to become.
            await checkout.remember(replace(await checkout.record(), taking=new, leaving=old))
            reach("update.begun")
            try:
                if self._mine.update_install is None:  # else what it needs is not here yet
                    async with checkout.staged(new) as folder:
                        reach("update.staged")
                        await self._healthy(folder)
                await checkout.advance(new)
                reach("update.advanced")
                await self._install(checkout)
                reach("update.installed")
                await self._healthy(checkout.folder)
            except BaseException as error:
                await asyncio.shield(self._undo(checkout, old, new, error))
                if isinstance(error, OperatorError):
                    again = "once more later" if new in (await checkout.record()).once else _NOT_AGAIN
                    raise OperatorError(
                        f"Version {version} does not work here ({error}), so {look.here[0]} was kept; it is tried "
                        f"{again}."
                    ) from None
                raise
            reach("update.tried")
            await self._done(checkout)
            reach("update.done")

    async def try_again(self) -> None:
        """Forget what did not work, so that it may be taken."""
        checkout = await self.checkout()
        async with checkout.alone():
            await checkout.remember(replace(await checkout.record(), failed={}, once={}))

    async def _why_not(self, checkout: Checkout, look: Look) -> str | None:
        (here, _), (there, new) = look.here, look.there
        record = await checkout.record()
        if record.taking:
            return (
                f"An update to {record.taking[:12]} is under way, or was interrupted; `operator-dataverse update apply`"
                " ends it."
            )
        if here is None or there is None:
            return (
                f"The file {VERSION} is missing in {checkout.branch if here else 'this checkout'}; nothing is compared."
            )
        if here == there:
            return f"{checkout.branch} has version {there}, which is the one here."
        if failed := record.failed.get(new):
            return (
                f"Version {there} was tried and did not work here ({failed}); {checkout.branch} must move on, or "
                "`operator-dataverse update apply --again` tries it once more."
            )
        if not await checkout.is_clean():
            return f"{checkout.folder} has changes of its own, so version {there} is not taken; commit or drop them."
        if not await checkout.is_ahead(new):
            return f"Version {there} of {checkout.branch} does not follow on what is checked out; check it out by hand."
        refused = await why_not_trusted(checkout, new, self._mine)
        return f"Version {there} is not taken: {refused}." if refused else None

    async def _undo(self, checkout: Checkout, old: str, new: str, error: BaseException | None) -> None:
        record = await checkout.record()
        # First, so that it is known even if what is left to do fails for the same reason.
        if isinstance(error, NotInstalled) and new not in record.once:  # perhaps the network
            await checkout.remember(replace(record, once={**record.once, new: str(error)}))
        elif isinstance(error, OperatorError):  # and not Ctrl-C, or a full disk
            await checkout.remember(replace(record, failed={**record.failed, new: str(error)}))
        reach("update.judged")
        if await checkout.commit() != old or (error is None and not await checkout.is_clean()):
            if await checkout.go_back(old):
                self._say(f"[Update] What was changed in {checkout.folder} meanwhile is in `git stash list`.")
            reach("update.back")
            await self._install_old(checkout)
        elif error is None:  # how far another process went is not known
            await self._install_old(checkout)
        await self._forget(checkout)

    async def _install_old(self, checkout: Checkout) -> None:
        try:
            await self._install(checkout)
        except OperatorError as error:
            self._say(f"[Update] The version that was here before could not be installed again: {error}")

    async def _done(self, checkout: Checkout) -> None:
        record = await checkout.record()
        record = replace(record, previous=record.leaving, updated_at=clock.iso(), taking="", leaving="")
        await checkout.remember(replace(record, once={}))

    async def _forget(self, checkout: Checkout) -> None:
        await checkout.remember(replace(await checkout.record(), taking="", leaving=""))

    async def _install(self, checkout: Checkout) -> None:
        if words := self._install_words():
            try:
                await _succeed(words, checkout.folder, {}, _INSTALL_S)
            except OperatorError as error:
                raise NotInstalled(str(error)) from None

    def _install_words(self) -> list[str]:
        try:
            words = shlex.split(self._mine.update_install or "")
        except ValueError as error:
            raise OperatorError(f"`[dataverse] update_install` is no command ({error}); correct it.") from None
        if self._mine.update_install is not None and not words:
            raise OperatorError("`[dataverse] update_install` is empty; name a command, or leave it out.")
        return words

    async def _healthy(self, folder: Path) -> None:
        """A process of the new version starts, and its parts fit together."""
        sources = os.pathsep.join(str(path) for path in sorted(folder.glob("packages/*/src")))
        for module in ("operator_core", "operator_dataverse"):
            words = [sys.executable, "-B", "-m", module, "--help"]
            await _succeed(words, folder, {"PYTHONPATH": sources}, _HEALTH_S)


async def _succeed(argv: Sequence[str], folder: Path, env: dict[str, str], timeout: float) -> None:
    """Run a program with nothing of this process's secrets.

    Raises:
        OperatorError: It failed; the message has its last words.
    """
    clean = {name: os.environ[name] for name in _PASSED_ON if name in os.environ} | env

    async def spawn(stdout: int, stderr: int) -> Process:
        return await start_process(["env", "-C", str(folder), *argv], stdout=stdout, stderr=stderr, env=clean)

    try:
        done = await run(spawn, timeout=timeout)
    except OSError as error:
        raise OperatorError(f"`{argv[0]}` cannot be started: {error.strerror}") from None
    if done.reason == "timeout":
        raise OperatorError(f"`{argv[0]}` took longer than {timeout:g} s")
    if done.returncode != 0:
        lines = printable(done.stderr.text()).strip().splitlines() or [f"exit code {done.returncode}"]
        raise OperatorError(f"`{clip(shlex.join(argv), 80)}` failed: {clip(lines[-1], 200)}")

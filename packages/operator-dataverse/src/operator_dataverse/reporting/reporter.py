"""The reporting as one thing: it looks for what is new, and carries it out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

from operator_core.errors import ConfigError, OperatorError, StoreError
from operator_core.notify.courier import Courier
from operator_core.notify.outbox import Letter, Outcome, put
from operator_core.text import clip, printable
from operator_dataverse import __version__
from operator_dataverse.errors import DataverseError
from operator_dataverse.intake.desk import Desk
from operator_dataverse.intake.state import SOURCE
from operator_dataverse.onedrive.links import folder_url
from operator_dataverse.reporting.delivery import Delivery
from operator_dataverse.reporting.messages import message
from operator_dataverse.reporting.projection import Projection
from operator_dataverse.reporting.results import UrlOf
from operator_dataverse.reporting.story import CARDS, new_guid, place_of
from operator_dataverse.tables import MESSAGES
from operator_dataverse.teams import authentication_required_card
from operator_dataverse.teams.webhook import webhook_of

__all__ = ["Reporter"]

_LOOK_S = 1.0
_LEASE_S = 30.0


class Reporter:
    """Brings to Dataverse and to Teams what happens to the tickets of this dev box.

    Args:
        desk: Both sides.
        urls: The address of a file or folder on the web; default: what OneDrive knows.
        disputed: Called with the id of a row that was not as it was expected; the intake is to look at it.
        lease_s: After the death of this process another one waits for so long before it carries on.

    Raises:
        ConfigError: The address of the Teams webhook is none.
    """

    def __init__(
        self,
        desk: Desk,
        *,
        urls: UrlOf | None = None,
        disputed: Callable[[str], None] = lambda row_id: None,
        lease_s: float = _LEASE_S,
    ) -> None:
        self._desk = desk
        webhook = webhook_of(desk.mine)
        self._cards = webhook is not None
        self._projection = Projection(desk, cards=self._cards, urls=urls or _urls_of(desk))
        self._delivery = Delivery(desk, webhook, disputed)
        # Teams may be away while Dataverse is not.
        self._couriers = [
            Courier(desk.database, self._carry, channels, lease_s=lease_s, say=desk.say)
            for channels in (f"{SOURCE}:{place_of(desk.box)}", f"{CARDS}{place_of(desk.box)}")
        ]
        self._news = asyncio.Event()
        self._complaint = ""

    def wake(self) -> None:
        """Something happened: look now."""
        self._news.set()

    async def run(self, stop: asyncio.Event) -> None:
        """Tell what happens until ``stop`` is set; :meth:`drain` afterwards brings away what is left."""
        await self.announce(f"Worker started (v{__version__}) on {self._desk.box}")
        over = asyncio.Event()
        couriers = [asyncio.create_task(courier.run(over)) for courier in self._couriers]
        learning = asyncio.create_task(self._learn_room())
        try:
            while not stop.is_set() and not any(courier.done() for courier in couriers):
                await self.step()
                waits = [asyncio.create_task(event.wait()) for event in (self._news, stop)]
                await asyncio.wait([*waits, *couriers], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                for wait in waits:
                    wait.cancel()
                self._news.clear()
        finally:
            over.set()
            learning.cancel()
            ends = await asyncio.gather(learning, *couriers, return_exceptions=True)
        for end in ends[1:]:
            if isinstance(end, BaseException):
                raise end

    async def step(self) -> int:
        """Put into the outbox what is new; trouble is said, and waited out.

        Returns:
            How many letters were put.
        """
        try:
            letters = await self._projection.step()
            self._complaint = ""
        except OperatorError as error:
            self._complain(error)
            return 0
        if letters:
            for courier in self._couriers:
                courier.wake()
        return letters

    async def drain(self, timeout_s: float, *, goodbye: bool = False) -> int:
        """Bring away what is left; not while :meth:`run` is at work.

        Args:
            timeout_s: Give up after so long; what is left then goes out when a worker of this box starts again.
            goodbye: Say that the worker stops.

        Returns:
            How many letters have not ended.
        """
        await self.step()
        if goodbye:
            await self.announce("Task worker stopped")
        left = await asyncio.gather(*(courier.drain(timeout_s) for courier in self._couriers))
        return sum(left)

    async def left(self) -> int:
        """How many letters have not ended."""
        return sum([await courier.left() for courier in self._couriers])

    async def announce(self, text: str) -> None:
        """Tell the person something that is about no task (section 2.2.4), e.g. that the worker started."""
        values = message(
            clip(printable(self._desk.database.redactor.text(text)), 4000), user=self._desk.mine.user or ""
        )
        row_id = new_guid()
        body = {"table": MESSAGES, "id": row_id, "values": values}
        await self._put(f"{SOURCE}:{place_of(self._desk.box)}worker", "create", row_id, body)

    async def authentication_required(self, reason: str) -> None:
        """The model service does not accept this worker: its person has to sign in."""
        await self.announce(f"Authentication required on {self._desk.box}\n{reason}")
        if self._cards:
            card = authentication_required_card(box=self._desk.box, reason=self._desk.database.redactor.text(reason))
            await self._put(f"{CARDS}{place_of(self._desk.box)}worker", "card", new_guid(), {"card": card})

    async def _put(self, channel: str, kind: str, key: str, body: Mapping[str, object]) -> None:
        try:
            async with self._desk.database.begin() as c:
                await put(c, channel, kind, body, dedupe_key=f"{SOURCE}/{self._desk.box}/{key}")
        except StoreError as error:
            self._complain(error)
            return
        for courier in self._couriers:
            courier.wake()

    async def _carry(self, letter: Letter) -> Outcome:
        return await self._delivery(letter)

    async def _learn_room(self) -> None:
        """How much a message holds in this organisation; our own schema says it until that is known."""
        with contextlib.suppress(DataverseError):
            column = (await self._desk.dataverse.info(MESSAGES)).columns.get("cr_content")
            if column is not None and column.max_length:
                self._projection.room = column.max_length

    def _complain(self, error: OperatorError) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            self._desk.say(f"[Dataverse] {error}")


def _urls_of(desk: Desk) -> UrlOf:
    @cache
    def url(path: Path) -> str | None:
        try:
            return folder_url(desk.settings, path)
        except ConfigError:
            return None

    return url

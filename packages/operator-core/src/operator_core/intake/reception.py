"""The reception: who comes in, what is said, and one transaction in which all of it is written or nothing."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from operator_core import clock
from operator_core.config import Settings
from operator_core.db import ledger
from operator_core.db.deliveries import Deliveries
from operator_core.db.engine import Database
from operator_core.db.links import Link, Links
from operator_core.db.schema import tickets
from operator_core.db.tickets import TicketDB
from operator_core.errors import ConfigError, IntakeRefused, StoreError
from operator_core.failpoints import reach
from operator_core.intake.alertmanager import read_alerts
from operator_core.intake.document import parse_document
from operator_core.intake.github import read_github
from operator_core.intake.items import Asked, Delivery, Done, Firing, Item, Observed, Receipt
from operator_core.intake.signature import check_bearer, check_github, check_signed
from operator_core.intake.webhook import read_webhook
from operator_core.model.intake import Intake
from operator_core.model.person import Actor, Role
from operator_core.model.task import TaskSpec
from operator_core.model.ticket import make_violation_key
from operator_core.work.submit import prepare_task

__all__ = ["Reception", "closed_doors", "secret_of"]

_MIN_SECRET = 16
_MAX_SECRET = 4096
_PREPARE_S = 30.0


class Reception:
    """Takes what comes to the doors of a configuration.

    Args:
        environ: Where the secrets named by ``secret_env`` are (default: this process's environment).
    """

    def __init__(self, database: Database, settings: Settings, *, environ: Mapping[str, str] | None = None) -> None:
        self._database = database
        self._settings = settings
        self._environ = os.environ if environ is None else environ
        self._doors = {intake.name: intake for intake in settings.intake}

    async def receive(self, name: str, headers: Mapping[str, str], body: bytes) -> Receipt:
        """Take one delivery: all of it, or nothing.

        Args:
            name: Of the door.
            headers: Of the request; names in any case.

        Raises:
            IntakeRefused: It was not taken; nothing was written.
            StoreError: The store cannot be written; nothing was.
        """
        intake = self._doors.get(name)
        if intake is None:
            raise IntakeRefused(404, "There is no such door; see `[[intake]]` in the configuration of the server.")
        lower = {key.lower(): value for key, value in headers.items()}
        delivery = await self._read(intake, lower, body)
        digest = hashlib.sha256(body).hexdigest()
        if (known := await self._known(intake, delivery, digest)) is not None:
            return known
        specs = await self._prepare(intake, delivery)
        for _ in range(8):
            try:
                async with self._database.begin() as c:
                    receipt = await _Writing(self._database, intake, c, specs).write(delivery, digest)
                    reach("intake.written")
                reach("intake.taken")
                return receipt
            except ConfigError as error:
                raise IntakeRefused(422, f"The task cannot be opened, and nothing was taken: {error}") from None
            except IntegrityError:
                continue  # somebody else opened a ticket with a key of ours between our look and our insert
        raise StoreError("The delivery cannot be written; another process keeps changing its tickets, send it again.")

    async def _read(self, intake: Intake, headers: Mapping[str, str], body: bytes) -> Delivery:
        secret = await asyncio.to_thread(secret_of, intake, self._environ)
        self._database.redactor.learn([secret.decode("utf-8", "replace")])
        match intake.kind:
            case "alertmanager":
                check_bearer(secret, headers)
                return read_alerts(intake, parse_document(body), self._settings)
            case "github":
                assert intake.github is not None
                check_github(secret, headers, body)
                return read_github(intake.github, headers, parse_document(body))
            case "webhook":
                rules = intake.webhook
                assert rules is not None
                now = clock.now().timestamp()
                signature = check_signed(secret, headers, body, now=now, tolerance_s=rules.tolerance_s)
                return read_webhook(intake, rules, parse_document(body), self._settings, signature)

    async def _known(self, intake: Intake, delivery: Delivery, digest: str) -> Receipt | None:
        """The receipt of a delivery that was taken already, without writing anything."""
        if delivery.delivery_id is None:
            return None
        taken = await Deliveries(self._database).find(intake.source, delivery.delivery_id)
        return None if taken is None else replayed(delivery, digest, taken.digest, taken.receipt)

    async def _prepare(self, intake: Intake, delivery: Delivery) -> dict[int, TaskSpec]:
        """The specs of tasks that are new, by the place of their item.

        Repositories are asked here, so that nobody waits for them with a transaction open.
        """
        links = Links(self._database)
        specs: dict[int, TaskSpec] = {}
        try:
            async with asyncio.timeout(_PREPARE_S):
                for place, item in enumerate(delivery.items):
                    if not isinstance(item, Asked):
                        continue
                    link = None if item.key is None else await links.get(intake.source, item.key)
                    if link is None or link.ticket_id is None:
                        specs[place] = await self._spec(item)
        except TimeoutError:
            raise IntakeRefused(
                503, "The repository of the task does not answer; nothing was taken, send it again."
            ) from None
        return specs

    async def _spec(self, item: Asked) -> TaskSpec:
        options = item.options
        try:
            return await prepare_task(
                self._database,
                self._settings,
                item.prompt,
                repo=item.repo,
                ref=item.ref,
                checks=options.checks,
                allow_change=options.allow_change,
                engine=options.engine,
                model=options.model,
                budget_usd=options.budget_usd,
                max_iterations=options.max_iterations,
                profile=options.profile,
                name=item.name,
                network=options.network,
                allow_hosts=options.allow_hosts,
            )
        except ConfigError as error:
            raise IntakeRefused(422, f"The task cannot be opened, and nothing was taken: {error}") from None


class _Writing:
    """One delivery in one transaction.

    Locks are taken in the order of the whole product: links, then tickets (by number), then the ledger.
    """

    def __init__(self, database: Database, intake: Intake, c: AsyncConnection, specs: Mapping[int, TaskSpec]) -> None:
        self._c = c
        self._intake = intake
        self._specs = specs
        self._links = Links(database)
        self._tickets = TicketDB(database)
        self._actor = str(Actor(intake.name, Role.OPERATOR, "intake"))
        self._database = database

    async def write(self, delivery: Delivery, digest: str) -> Receipt:
        deliveries, door = Deliveries(self._database), self._intake.source
        if delivery.delivery_id is not None:
            before = await deliveries.begin_in(self._c, door, delivery.delivery_id, digest)
            if before is not None:
                return replayed(delivery, digest, before.digest, before.receipt)
        links = await self._lock(delivery)
        done = []
        for place, item in enumerate(delivery.items):
            reach("intake.item")
            done.append(await self._one(place, item, links, delivery.batch_key))
        receipt = Receipt(intake=self._intake.name, items=done, note=delivery.note)
        if delivery.delivery_id is not None:
            await deliveries.end_in(self._c, door, delivery.delivery_id, receipt.model_dump_json())
        return receipt

    async def _lock(self, delivery: Delivery) -> dict[str, Link]:
        source = self._intake.source
        opening = {item.key for item in delivery.items if isinstance(item, Firing | Asked) and item.key is not None}
        wanted = opening | {item.key for item in delivery.items if isinstance(item, Observed)}
        links: dict[str, Link] = {}
        for key in sorted(wanted):
            if key in opening:
                await self._links.begin_in(self._c, source, key, owner="", state={})
            link = await self._links.lock(self._c, source, key)
            if link is not None:
                links[key] = link
        keys = [make_violation_key(item.violation) for item in delivery.items if isinstance(item, Firing)]
        if keys and not self._database.sqlite:
            wanted_tickets = select(tickets.c.id).where(tickets.c.violation_key.in_(keys)).order_by(tickets.c.id)
            await self._c.execute(wanted_tickets.with_for_update())
        return links

    async def _one(self, place: int, item: Item, links: dict[str, Link], batch_key: str | None) -> Done:
        match item:
            case Firing():
                return await self._fire(item, links, batch_key)
            case Asked():
                return await self._ask(place, item, links)
            case Observed():
                return await self._observe(item, links)
            case _:
                return Done(what="ignored", note=item.why)

    async def _fire(self, item: Firing, links: dict[str, Link], batch_key: str | None) -> Done:
        link = links[item.key]
        again = item.episode is None or link.state.get("episode") != item.episode
        recorded = await self._tickets.record_in(
            self._c,
            item.violation,
            item.snapshot,
            batch_key,
            item.context,
            check=item.check,
            again=again,
            labels=item.labels,
            priority=self._intake.priority,
            actor=self._actor,
        )
        assert recorded.ticket.id is not None
        if link.ticket_id != recorded.ticket.id:
            await self._links.tie(self._c, link.source, link.external_id, recorded.ticket.id)
        await self._remember(links, item.key, {"episode": item.episode} if item.episode else {})
        return Done(what=recorded.what, ticket_id=recorded.ticket.id, note=item.note)

    async def _ask(self, place: int, item: Asked, links: dict[str, Link]) -> Done:
        link = None if item.key is None else links[item.key]
        if link is not None and link.ticket_id is not None:
            return Done(what="seen", ticket_id=link.ticket_id)
        spec = self._specs.get(place)
        if spec is None:
            raise StoreError("The link of the task has just lost its ticket; send the delivery again.")
        ticket = await self._tickets.submit_task_in(
            self._c,
            spec,
            priority=self._intake.priority,
            pinned_to=item.options.pinned_to,
            labels=item.labels,
            actor=self._actor,
            link=None if link is None else (link.source, link.external_id),
        )
        if link is not None:
            await self._remember(links, link.external_id, {})
        return Done(what="opened", ticket_id=ticket.id)

    async def _observe(self, item: Observed, links: dict[str, Link]) -> Done:
        link = links.get(item.key)
        if link is None or link.ticket_id is None:
            return Done(what="ignored", note="no ticket is known for it")
        said = f"{item.saw} {item.at or ''}".strip()
        if item.at is not None and link.state.get("said") == said:
            return Done(what="seen", ticket_id=link.ticket_id)
        await ledger.append(
            self._database,
            self._c,
            "observation",
            ticket_id=link.ticket_id,
            actor=self._actor,
            saw=item.saw,
            detail={"key": item.key, **item.detail},
        )
        await self._remember(links, item.key, {"said": said})
        return Done(what="observed", ticket_id=link.ticket_id)

    async def _remember(self, links: dict[str, Link], key: str, news: Mapping[str, Any]) -> None:
        """What is new about a link; the links at hand say the same afterwards."""
        changed = await self._links.change_in(
            self._c, self._intake.source, key, lambda state: {**state, **news}, settled=True
        )
        if changed is not None:
            links[key] = changed


def replayed(delivery: Delivery, digest: str, first: str, receipt: str) -> Receipt:
    """The answer to a delivery that was taken before.

    Raises:
        IntakeRefused: It may not come twice, or its number was that of another one.
    """
    if delivery.refuse_replay:
        raise IntakeRefused(409, "This very message was taken before; a new one needs a new time and signature.")
    if digest != first:
        raise IntakeRefused(422, "Another delivery with this number was taken before; nothing of this one was.")
    return Receipt.model_validate_json(receipt).model_copy(update={"replayed": True})


def closed_doors(settings: Settings, environ: Mapping[str, str] | None = None) -> list[str]:
    """Why doors stay closed for now, one sentence for each, for whoever starts the server."""
    out = []
    for intake in settings.intake:
        try:
            secret_of(intake, os.environ if environ is None else environ)
        except IntakeRefused as error:
            where = f"the file {intake.secret_file}" if intake.secret_file else f"the variable {intake.secret_env}"
            out.append(f"{error} It belongs into {where}.")
    return out


def secret_of(intake: Intake, environ: Mapping[str, str]) -> bytes:
    """The secret of a door, as it is now.

    Raises:
        IntakeRefused: There is none, or one that could be guessed.
    """
    if intake.secret_file is not None:
        try:
            with intake.secret_file.open("rb") as file:
                secret = file.read(_MAX_SECRET).strip()
        except OSError:
            secret = b""
    else:
        secret = environ.get(intake.secret_env or "", "").encode("utf-8", "surrogateescape").strip()
    if len(secret) < _MIN_SECRET:
        raise IntakeRefused(
            503,
            f"The door {intake.name!r} has no secret of at least {_MIN_SECRET} characters on the server, and stays "
            "closed until somebody sets it there.",
        )
    return secret

"""Rows of Dataverse over its Web API (OData v4), as section 2.2.1 of the requirements has it.

No write is without its condition: a change and a deletion name the version that they are made for (``If-Match``), a new
row must not be there yet. A row that has changed is an answer, :class:`Conflict`, and no error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from operator_core.clock import Clock, new_id
from operator_dataverse.client.credentials import Credential, open_credential
from operator_dataverse.client.fit import Fitted, fit
from operator_dataverse.client.http import Answer, Http, origin_of
from operator_dataverse.client.metadata import TableInfo, read_table
from operator_dataverse.client.odata import Filter, field
from operator_dataverse.client.owners import Owners, given, not_given
from operator_dataverse.client.row import Conflict, Row
from operator_dataverse.errors import DataverseError, Refused, SchemaProblem

if TYPE_CHECKING:
    from operator_dataverse.settings import DataverseSettings

__all__ = ["API", "Dataverse"]

API = "api/data/v9.2"

_log = logging.getLogger(__name__)
_ODATA = {"OData-MaxVersion": "4.0", "OData-Version": "4.0"}
_ANNOTATIONS = 'odata.include-annotations="OData.Community.Display.V1.FormattedValue"'
_DUPLICATE_KEY = "0x80040237"
_MOST_IN_ONE_PAGE = 5000


class Dataverse:
    """One organisation. It is closed by ``async with`` or :meth:`close`; it may be used by many tasks at once.

    Args:
        url: E.g. ``https://example.crm.dynamics.com``; only its origin counts.
        credential: Who asks.
        timeout_s: Limit of one request, in seconds.
        retry_s: How long a request that fails for now is repeated, in seconds.
        clock: Time.
        learn: Told each access token, e.g. ``Redactor.learn``.
        trusted: Owners whose rows are believed, see :class:`Owners`.

    Attributes:
        owners: Whose a row is.

    Raises:
        ConfigError: The address is none, or would send the token in the clear.

    Every method raises :class:`Unauthorized`, :class:`Throttled`, :class:`Unreachable` and :class:`Refused`, and what
    names a table :class:`SchemaProblem` if there is none of that name.
    """

    def __init__(
        self,
        url: str,
        credential: Credential,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 120.0,
        clock: Clock | None = None,
        learn: Callable[[Iterable[str]], None] | None = None,
        trusted: Collection[str] = (),
    ) -> None:
        self.http = Http(
            f"{origin_of(url)}/{API}",
            credential,
            timeout_s=timeout_s,
            retry_s=retry_s,
            clock=clock,
            headers=_ODATA,
            learn=learn,
        )
        self.url = self.http.origin
        self.owners = Owners(self, trusted)
        self._tables: dict[str, TableInfo] = {}
        self._reading = asyncio.Lock()
        self._named: set[tuple[str, str]] = set()

    @classmethod
    def open(
        cls,
        settings: DataverseSettings,
        credential: Credential | None = None,
        *,
        clock: Clock | None = None,
        learn: Callable[[Iterable[str]], None] | None = None,
    ) -> Dataverse:
        """The organisation of the settings.

        Args:
            settings: ``[dataverse]``.
            credential: Default: what :func:`open_credential` finds.
            clock: Time.
            learn: Told each access token.

        Raises:
            NotConfigured: ``url`` is missing.
        """
        url = settings.needs("url").url or ""
        who = credential if credential is not None else open_credential(settings)
        return cls(
            url,
            who,
            timeout_s=settings.timeout_s,
            retry_s=settings.retry_s,
            clock=clock,
            learn=learn,
            trusted=settings.trusted_owners,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self.http.close()

    async def whoami(self) -> str:
        """The id of this account's user, in lower case."""
        body = (await self.http.request("GET", "WhoAmI")).object("WhoAmI")
        user = body.get("UserId")
        if not isinstance(user, str):
            raise DataverseError("WhoAmI names no user; check the configured address.")
        return user.lower()

    async def info(self, table: str, *, fresh: bool = False) -> TableInfo:
        """What columns a table has; read once, or again with ``fresh``.

        Raises:
            SchemaProblem: There is no such table.
        """
        async with self._reading:
            if fresh or table not in self._tables:
                self._tables[table] = await read_table(self.http, table)
            return self._tables[table]

    async def rows(
        self,
        table: str,
        where: Filter | None = None,
        *,
        select: Sequence[str] = (),
        orderby: Sequence[str] = (),
        top: int | None = None,
        page_size: int = 100,
    ) -> AsyncIterator[Row]:
        """The rows of a table, page by page.

        Args:
            table: Entity set.
            where: Which; None: all.
            select: Columns; none: all.
            orderby: Columns, each with an optional `` asc`` or `` desc``.
            top: At most so many.
            page_size: Rows of one request, up to 5000.
        """
        info = await self.info(table)
        params = _query(info, where, select, orderby, top)
        prefer = _ANNOTATIONS
        if top is None or top > _MOST_IN_ONE_PAGE:
            prefer += f",odata.maxpagesize={max(1, min(page_size, _MOST_IN_ONE_PAGE))}"
        path, query, left, seen = table, params or None, top, set[str]()
        while left is None or left > 0:
            answer = await self.http.request("GET", path, params=query, headers={"Prefer": prefer})
            body = answer.object(table)
            found = body.get("value")
            for one in found if isinstance(found, list) else []:
                yield _row(info, one)
                left = None if left is None else left - 1
                if left == 0:
                    return
            following = body.get("@odata.nextLink")
            if not isinstance(following, str):
                return
            if following in seen:
                raise DataverseError(f"The service repeats a page of {table}; try again later.")
            seen.add(following)
            path, query = following, None

    async def first(
        self,
        table: str,
        where: Filter | None,
        *,
        select: Sequence[str] = (),
        orderby: Sequence[str] = (),
    ) -> Row | None:
        """The first row of :meth:`rows`; None: there is none."""
        async for row in self.rows(table, where, select=select, orderby=orderby, top=1):
            return row
        return None

    async def row(self, table: str, row_id: str, *, select: Sequence[str] = ()) -> Row | None:
        """One row; None: there is none of that id."""
        info = await self.info(table)
        answer = await self.http.request(
            "GET",
            _path(table, row_id),
            params=_query(info, None, select, (), None),
            headers={"Prefer": _ANNOTATIONS},
            accept=(404,),
        )
        return None if answer.status == 404 else _row(info, answer.object(table))

    async def create(
        self,
        table: str,
        values: Mapping[str, Any],
        *,
        row_id: str | None = None,
        owner: str | None = None,
        pointer: str | None = None,
        select: Sequence[str] = (),
    ) -> Row | Conflict:
        """Make a row; exactly one, however often the request had to be repeated.

        Args:
            table: Entity set.
            values: Column -> value, made to fit as :func:`fit` says.
            row_id: Its id, where the caller wants to recognise it: then a row of that id is ``Conflict("exists")``.
                None: a new one.
            owner: Id of the user whose it is to be; None: this account's.
            pointer: For the note in texts that are cut.
            select: The columns that come back; none: all.

        Returns:
            The row as the service has it.

        Raises:
            Refused: 403: This account may not give rows away.
        """
        info = await self.info(table)
        back = _query(info, None, select, (), None)
        chosen = _guid(row_id) if row_id is not None else str(UUID(new_id()))
        refusals = (400, 403, 409, 412) if row_id is None else (400, 403, 412)

        async def send(fitted: dict[str, Any]) -> Answer:
            prefer = {"Prefer": f"return=representation,{_ANNOTATIONS}"}
            if row_id is None:
                body = {**given(fitted, owner), info.key: chosen}
                return await self.http.request("POST", table, params=back, body=body, headers=prefer, accept=refusals)
            path, headers = _path(table, chosen), prefer | {"If-None-Match": "*"}
            body = given(fitted, owner)
            return await self.http.request("PATCH", path, params=back, body=body, headers=headers, accept=refusals)

        answer, fitted = await self._write(table, values, pointer, send)
        if answer.ok:
            return await self._written(info, chosen, answer, fitted)
        if answer.status in (409, 412) or answer.code == _DUPLICATE_KEY:
            mine = answer.uncertain and row_id is None
            current = await self.row(table, chosen) if answer.uncertain else None
            return current if mine and current is not None else Conflict("exists", current)
        raise not_given(answer, table) if owner is not None else answer.refused(f"POST {table}")

    async def update(
        self,
        table: str,
        row_id: str,
        values: Mapping[str, Any],
        *,
        etag: str,
        owner: str | None = None,
        pointer: str | None = None,
        reread: bool = False,
        select: Sequence[str] = (),
    ) -> Row | Conflict:
        """Change a row that still has the version ``etag``.

        Args:
            table: Entity set.
            row_id: Which.
            values: Column -> value, made to fit as :func:`fit` says.
            etag: The version that the caller knows.
            owner: Id of the user whose it is from now on; None: it stays whose it is.
            pointer: For the note in texts that are cut.
            reread: On a conflict, read the row as it is now. It is also read where an answer was lost on the way, since
                the change may be the caller's own.
            select: The columns that come back; none: all, the long ones too.

        Returns:
            The row with its new version, or why it was not changed.
        """
        info = await self.info(table)
        headers = {"Prefer": f"return=representation,{_ANNOTATIONS}", "If-Match": _version(etag)}
        path, back, refusals = _path(table, row_id), _query(info, None, select, (), None), (400, 403, 404, 412)

        async def send(fitted: dict[str, Any]) -> Answer:
            body = given(fitted, owner)
            return await self.http.request("PATCH", path, params=back, body=body, headers=headers, accept=refusals)

        answer, fitted = await self._write(table, values, pointer, send)
        if answer.ok:
            return await self._written(info, _guid(row_id), answer, fitted)
        if answer.status in (404, 412):
            return await self._conflict(table, row_id, answer, reread)
        raise not_given(answer, table) if owner is not None else answer.refused(f"PATCH {table}")

    async def delete(self, table: str, row_id: str, *, etag: str, reread: bool = False) -> Conflict | None:
        """Delete a row that still has the version ``etag``; None: it is gone."""
        answer = await self.http.request(
            "DELETE", _path(table, row_id), headers={"If-Match": _version(etag)}, accept=(404, 412)
        )
        if answer.ok or (answer.status == 404 and answer.uncertain):
            return None
        return await self._conflict(table, row_id, answer, reread)

    async def _write(
        self, table: str, values: Mapping[str, Any], pointer: str | None, send: Callable[[dict[str, Any]], Any]
    ) -> tuple[Answer, Fitted]:
        fitted = fit(await self.info(table), values, pointer=pointer)
        self._say_dropped(table, fitted)
        answer: Answer = await send(fitted.values)
        if answer.status == 400 and answer.code != _DUPLICATE_KEY:
            # The table may have been changed since its columns were read.
            again = fit(await self.info(table, fresh=True), values, pointer=pointer)
            if again.values != fitted.values:
                self._say_dropped(table, again)
                return await send(again.values), again
        return answer, fitted

    async def _written(self, info: TableInfo, row_id: str, answer: Answer, fitted: Fitted) -> Row:
        if isinstance(answer.body, dict) and info.key in answer.body:
            return _row(info, answer.body, fitted.dropped)
        row = await self.row(info.table, row_id)
        if row is None:
            raise DataverseError(f"The row {row_id} of {info.table} was written and is not there any more; look again.")
        row.dropped = fitted.dropped
        return row

    async def _conflict(self, table: str, row_id: str, answer: Answer, reread: bool) -> Conflict:
        if answer.status == 404:
            return Conflict("missing")
        if not (reread or answer.uncertain):
            return Conflict("changed")
        current = await self.row(table, row_id)
        return Conflict("missing") if current is None else Conflict("changed", current)

    def _say_dropped(self, table: str, fitted: Fitted) -> None:
        new = [name for name in fitted.dropped if (table, name) not in self._named]
        self._named.update((table, name) for name in new)
        if new:
            _log.warning("%s has no column to write %s; run `operator-dataverse schema diff`", table, ", ".join(new))


def _query(
    info: TableInfo, where: Filter | None, select: Sequence[str], orderby: Sequence[str], top: int | None
) -> dict[str, str]:
    params: dict[str, str] = {}
    if where is not None:
        params["$filter"] = str(where)
    if select:
        params["$select"] = ",".join(dict.fromkeys([*(field(name).name for name in select), info.key]))
    if orderby:
        params["$orderby"] = ",".join(_order(one) for one in orderby)
    if top is not None:
        params["$top"] = str(max(1, min(top, _MOST_IN_ONE_PAGE)))
    return params


def _order(text: str) -> str:
    name, _, way = text.partition(" ")
    if way not in ("", "asc", "desc"):
        raise ValueError(f"{text!r} is no order; write a column, and asc or desc")
    return f"{field(name).name} {way or 'asc'}"


def _path(table: str, row_id: str) -> str:
    return f"{field(table).name}({_guid(row_id)})"


def _guid(text: str) -> str:
    try:
        return str(UUID(text))
    except (ValueError, TypeError, AttributeError):
        raise Refused(f"{text!r:.80} is no id of a row; give its GUID.", status=404) from None


def _version(etag: str) -> str:
    if not etag or etag == "*" or not etag.isascii() or not etag.isprintable():
        raise Refused("A write needs the version of the row that it is made for; read the row first.", status=428)
    return etag


def _row(info: TableInfo, body: Any, dropped: tuple[str, ...] = ()) -> Row:
    row_id = body.get(info.key) if isinstance(body, dict) else None
    if not isinstance(row_id, str):
        raise SchemaProblem(f"A row of {info.table} came without its {info.key}; run `operator-dataverse schema diff`.")
    return Row(info.table, row_id, body, dropped=dropped)

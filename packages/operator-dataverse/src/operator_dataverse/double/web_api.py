"""The Web API of Dataverse: rows, their versions and conditions, over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from operator_dataverse.double.front import body_of, json_object, options_of
from operator_dataverse.double.history import Request as Noted
from operator_dataverse.double.metadata import Metadata
from operator_dataverse.double.problems import Problem, exists_already, missing_segment, no_privilege
from operator_dataverse.double.query import FORMATTED, Query, shown
from operator_dataverse.double.store import Account, Row, Store
from operator_dataverse.double.values import parse_id

__all__ = ["API", "WebApi"]

API = "/api/data/v9.2"
"""Where the Web API begins."""

_SEGMENT = re.compile(r"^(?P<name>[A-Za-z_]\w*)(?:\((?P<key>[^()]*)\))?$")
_PRIVILEGES = "Microsoft.Dynamics.CRM.RetrieveUserPrivileges"
_DEPTHS = {"organization": "Global", "own": "Basic"}
_ORGANISATION = "00000000-0000-0000-0000-0000000000aa"
_UNIT = "00000000-0000-0000-0000-0000000000bb"


class _Call(NamedTuple):
    """A request that may be served."""

    request: Request
    noted: Noted
    account: Account
    options: Mapping[str, str]
    body: Any

    @property
    def prefer(self) -> str:
        return ",".join(self.request.headers.getlist("prefer"))

    @property
    def root(self) -> str:
        return f"{self.request.url.scheme}://{self.request.url.netloc}{API}"


class WebApi:
    """The Web API of Dataverse over a store.

    Args:
        store: Its tables and rows.
    """

    open = False

    def __init__(self, store: Store) -> None:
        self._store = store
        self._metadata = Metadata(store)

    def answer(self, request: Request, path: str, account: Account | None, noted: Noted, raw: bytes) -> Response:
        """Answer one request; see :class:`operator_dataverse.double.front.Service`."""
        assert account is not None
        call = _Call(request, noted, account, options_of(request), body_of(request, raw))
        noted.body = call.body
        response = self._answer(call, path)
        response.headers["OData-Version"] = "4.0"
        return response

    def _answer(self, call: _Call, path: str) -> Response:
        segments = [part for part in path.split("/") if part]
        found = _SEGMENT.match(segments[0]) if segments else None
        if found is None:
            raise missing_segment(path)
        method, account = call.request.method, call.account
        if found["name"] == "WhoAmI" and method == "GET":
            return JSONResponse(
                {
                    "@odata.context": f"{call.root}/$metadata#Microsoft.Dynamics.CRM.WhoAmIResponse",
                    "BusinessUnitId": _UNIT,
                    "UserId": account.user_id,
                    "OrganizationId": _ORGANISATION,
                }
            )
        if Metadata.answers(found["name"]):
            if account.reach != "organization" and method != "GET":
                raise no_privilege(account.user_id, "CreateEntity", found["name"])
            return self._metadata.answer(method, segments, call.options, call.body, call.root)
        return self._rows(call, found["name"], found["key"], segments[1:])

    def _rows(self, call: _Call, entity_set: str, key: str | None, rest: list[str]) -> Response:
        table = self._store.table(entity_set)
        call.noted.table = entity_set
        method = call.request.method
        if rest == ["$count"] and key is None and method == "GET":
            return Response(str(len(self._store.rows(entity_set, call.account))), media_type="text/plain")
        if entity_set == "systemusers" and rest == [_PRIVILEGES] and key and method == "GET":
            return self._privileges(call, parse_id(table, key))
        if rest:
            raise missing_segment(rest[0])
        match method, key:
            case "GET", None:
                return self._list(call, entity_set)
            case "POST", None:
                return self._create(call, entity_set)
            case "GET", str():
                return self._get(call, entity_set, parse_id(table, key))
            case "PATCH", str():
                return self._patch(call, entity_set, parse_id(table, key))
            case "DELETE", str():
                return self._delete(call, entity_set, parse_id(table, key))
        raise Problem(405, "0x80060888", f"The HTTP method {method} is not supported for this address.")

    def _privileges(self, call: _Call, user_id: str) -> Response:
        account = self._store.account_of(user_id)
        granted = [
            {
                "PrivilegeName": f"prv{verb}{table.logical_name}",
                "Depth": _DEPTHS[account.reach],
                "BusinessUnitId": _UNIT,
            }
            for table in self._store.tables()
            for verb in ("Create", "Read", "Write", "Delete", "Assign")
            if account.may(verb, table)
        ]
        context = f"{call.root}/$metadata#{_PRIVILEGES}Response"
        return JSONResponse({"@odata.context": context, "RolePrivileges": granted})

    def _list(self, call: _Call, entity_set: str) -> Response:
        table = self._store.table(entity_set)
        query = Query(table, call.options)
        wanted = re.search(r"odata\.maxpagesize\s*=\s*(\d+)", call.prefer)
        size = int(wanted[1]) if wanted else None
        page = query.page(self._store.rows(entity_set, call.account), size)
        columns = f"({','.join(query.select)})" if query.select else ""
        answer: dict[str, Any] = {"@odata.context": f"{call.root}/$metadata#{entity_set}{columns}"}
        if page.total is not None:
            answer["@odata.count"] = page.total
        answer["value"] = [shown(row, table, query.select, self._store, _annotated(call)) for row in page.rows]
        if page.token is not None:
            options = {**call.options, "$skiptoken": page.token}
            answer["@odata.nextLink"] = f"{call.root}/{entity_set}?{urlencode(options, quote_via=quote, safe='$,')}"
        return JSONResponse(answer, headers=_applied(call))

    def _get(self, call: _Call, entity_set: str, row_id: str) -> Response:
        query = Query(self._store.table(entity_set), call.options)
        row = self._store.row(entity_set, row_id, call.account)
        if call.request.headers.get("if-none-match") == row.etag:
            return Response(status_code=304)
        return self._one(call, entity_set, row, query.select)

    def _create(self, call: _Call, entity_set: str) -> Response:
        row, effect = self._store.create(entity_set, json_object(call.body), call.account)
        call.noted.effects.append(effect)
        return self._written(call, entity_set, row, 201)

    def _patch(self, call: _Call, entity_set: str, row_id: str) -> Response:
        values = json_object(call.body)
        if_match = call.request.headers.get("if-match")
        create_only = call.request.headers.get("if-none-match") == "*"
        known = self._store.has(entity_set, row_id)
        if known and create_only:
            raise exists_already()
        if known or if_match is not None:
            row, effect = self._store.update(entity_set, row_id, values, call.account, if_match)
        else:
            row, effect = self._store.create(entity_set, values, call.account, row_id)
        call.noted.effects.append(effect)
        return self._written(call, entity_set, row, 201 if effect.kind == "created" else 200)

    def _delete(self, call: _Call, entity_set: str, row_id: str) -> Response:
        effect = self._store.delete(entity_set, row_id, call.account, call.request.headers.get("if-match"))
        call.noted.effects.append(effect)
        return Response(status_code=204)

    def _written(self, call: _Call, entity_set: str, row: Row, status: int) -> Response:
        address = f"{call.root}/{entity_set}({row.id})"
        if "return=representation" in call.prefer:
            query = Query(self._store.table(entity_set), call.options)
            response = self._one(call, entity_set, row, query.select, status)
        else:
            response = Response(status_code=204)
        response.headers["OData-EntityId"] = address
        return response

    def _one(self, call: _Call, entity_set: str, row: Row, select: list[str], status: int = 200) -> Response:
        table = self._store.table(entity_set)
        columns = f"({','.join(select)})" if select else ""
        answer = {"@odata.context": f"{call.root}/$metadata#{entity_set}{columns}/$entity"}
        answer |= shown(row, table, select, self._store, _annotated(call))
        return JSONResponse(answer, status, headers=_applied(call))


def _annotated(call: _Call) -> bool:
    found = re.search(r'odata\.include-annotations\s*=\s*"?([^";]+)', call.prefer)
    return found is not None and any(
        name.strip() == "*" or FORMATTED[1:].startswith(name.strip().rstrip("*")) for name in found[1].split(",")
    )


def _applied(call: _Call) -> dict[str, str]:
    kept = [part.strip() for part in re.split(r",(?=\s*(?:return|odata)\b)", call.prefer) if part.strip()]
    return {"Preference-Applied": ",".join(kept)} if kept else {}

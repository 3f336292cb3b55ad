"""The API of Power Automate, as far as definitions of flows are listed, read, changed and switched by it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from operator_core.clock import iso, new_id
from operator_dataverse.double.front import body_of, json_object, options_of
from operator_dataverse.double.history import Request as Noted
from operator_dataverse.double.problems import Problem
from operator_dataverse.double.store import Account, ServiceClock

__all__ = ["FlowApi"]

_PREFIX = ["providers", "Microsoft.ProcessSimple", "environments"]
_VERSION = "2016-11-01"
_PAGE = 50


class FlowApi:
    """The flows of some environments.

    Args:
        clock: Its time.

    Attributes:
        environments: Id of each environment -> its flows by id, each with its ``properties``.
    """

    open = False

    def __init__(self, clock: ServiceClock) -> None:
        self._clock = clock
        self.environments: dict[str, dict[str, dict[str, Any]]] = {"Default-example": {}}

    def add(self, name: str, definition: Mapping[str, Any] | None = None, environment: str = "Default-example") -> str:
        """Make a flow past HTTP; returns its id."""
        flow_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{environment}.{name}"))
        properties = {"displayName": name, "state": "Started", "definition": dict(definition or _EMPTY)}
        self.environments[environment][flow_id] = self._stamped(properties, created=True)
        return flow_id

    def answer(self, request: Request, path: str, account: Account | None, noted: Noted, raw: bytes) -> Response:
        """Answer one request; see :class:`operator_dataverse.double.front.Service`."""
        noted.body = body_of(request, raw)
        options = options_of(request)
        if options.get("api-version") != _VERSION:
            raise Problem(400, "InvalidApiVersionParameter", f"The api-version must be {_VERSION}.")
        parts = [part for part in path.split("/") if part]
        if parts[:3] != _PREFIX or len(parts) < 5 or parts[4] != "flows":
            raise Problem(404, "InvalidResource", "There is no such address.")
        if parts[3] not in self.environments:
            raise Problem(404, "EnvironmentNotFound", f"The environment '{parts[3]}' could not be found.")
        flows = self.environments[parts[3]]
        match request.method, parts[5:]:
            case "GET", []:
                return self._list(request, flows, options)
            case "POST", []:
                flow_id = str(uuid.UUID(new_id()))
                flows[flow_id] = self._stamped(_properties(noted.body, {"state": "Stopped"}), created=True)
                return JSONResponse(self._shown(flow_id, flows[flow_id], parts[3]), 201)
            case method, [flow_id, *rest]:
                if flow_id not in flows:
                    raise Problem(404, "FlowNotFound", f"Could not find flow '{flow_id}'.")
                match method, rest:
                    case "GET", []:
                        return JSONResponse(self._shown(flow_id, flows[flow_id], parts[3]))
                    case "PATCH", []:
                        flows[flow_id] = self._stamped(_properties(noted.body, flows[flow_id]), created=False)
                        return JSONResponse(self._shown(flow_id, flows[flow_id], parts[3]))
                    case "DELETE", []:
                        del flows[flow_id]
                        return Response(status_code=200)
                    case "POST", ["start" | "stop"]:
                        flows[flow_id]["state"] = "Started" if rest == ["start"] else "Stopped"
                        return Response(status_code=200)
        raise Problem(405, "MethodNotAllowed", "The method is not allowed here.")

    def _list(self, request: Request, flows: Mapping[str, dict[str, Any]], options: Mapping[str, str]) -> Response:
        begin = int(options.get("$skiptoken", "0") or 0)
        chosen = list(flows.items())[begin : begin + _PAGE]
        # The list has no definitions.
        value = [
            {"name": flow_id, "properties": {k: v for k, v in flow.items() if k != "definition"}}
            for flow_id, flow in chosen
        ]
        answer: dict[str, Any] = {"value": value}
        if begin + _PAGE < len(flows):
            where = str(request.url).split("?", 1)[0]
            answer["nextLink"] = f"{where}?api-version={_VERSION}&$skiptoken={begin + _PAGE}"
        return JSONResponse(answer)

    def _shown(self, flow_id: str, flow: Mapping[str, Any], environment: str) -> dict[str, Any]:
        where = f"/providers/Microsoft.ProcessSimple/environments/{environment}/flows/{flow_id}"
        return {"name": flow_id, "id": where, "type": where.rsplit("/", 3)[0], "properties": dict(flow)}

    def _stamped(self, properties: Mapping[str, Any], *, created: bool) -> dict[str, Any]:
        now = iso(self._clock.now())
        return {**properties, "lastModifiedTime": now} | ({"createdTime": now} if created else {})


_EMPTY: Mapping[str, Any] = {
    "$schema": "https://schema.management.azure.com/providers/Microsoft.Logic/schemas/2016-06-01/workflowdefinition.json#",
    "contentVersion": "1.0.0.0",
    "triggers": {"manual": {"type": "Request", "kind": "Button"}},
    "actions": {},
}


def _properties(body: Any, before: Mapping[str, Any]) -> dict[str, Any]:
    given = json_object(body).get("properties")
    if not isinstance(given, dict):
        raise Problem(400, "InvalidRequestContent", "The request has no properties.")
    after = {**before, **given}
    if not isinstance(after.get("displayName"), str) or not after["displayName"]:
        raise Problem(400, "InvalidFlowDisplayName", "A flow needs a display name.")
    if "definition" in given:
        _check(given["definition"])
    return after


def _check(definition: Any) -> None:
    """What the designer would refuse to save: no trigger, or an action that waits for one that is not there."""
    if not isinstance(definition, dict) or "$schema" not in definition:
        raise Problem(400, "InvalidTemplate", "The definition has no $schema.")
    if not isinstance(definition.get("triggers"), dict) or len(definition["triggers"]) != 1:
        raise Problem(400, "InvalidTemplate", "A flow has exactly one trigger.")
    actions = definition.get("actions")
    if not isinstance(actions, dict):
        raise Problem(400, "InvalidTemplate", "The definition has no actions.")
    _check_actions(actions)


def _check_actions(actions: Mapping[str, Any]) -> None:
    for name, action in actions.items():
        if not isinstance(action, dict) or not isinstance(action.get("type"), str):
            raise Problem(400, "InvalidTemplate", f"The action '{name}' has no type.")
        for other in action.get("runAfter") or {}:
            if other not in actions:
                raise Problem(400, "InvalidTemplate", f"'{name}' runs after '{other}', which is not there.")
        inner = [action, action.get("else") or {}, *(action.get("cases") or {}).values(), action.get("default") or {}]
        for part in inner:
            if isinstance(part, dict) and isinstance(part.get("actions"), dict):
                _check_actions(part["actions"])

"""Power Automate's own API: which flows are there, and how ours get there.

A flow there is recognised by its display name, or by an id that is given. What it is connected with stays as it is:
connections belong to the people of that environment. Nothing is changed that is already as it should be.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self
from urllib.parse import quote

from operator_core.clock import Clock
from operator_dataverse.client import Credential, Http, open_credential
from operator_dataverse.errors import DataverseError, Refused
from operator_dataverse.flows.flow import Flow
from operator_dataverse.settings import DataverseSettings

__all__ = ["PUBLIC", "Deployed", "FlowThere", "PowerAutomate"]

PUBLIC = "https://api.flow.microsoft.com"
"""The API of the public cloud; other clouds have others."""

_RESOURCE = "https://service.flow.microsoft.com"
_VERSION = {"api-version": "2016-11-01"}
_API = "/providers/Microsoft.PowerApps/apis/"


class FlowThere(NamedTuple):
    """One flow of an environment.

    Attributes:
        id: Its id.
        name: Its display name.
        state: ``Started``, ``Stopped`` …
        modified: When it was changed last, ISO 8601; empty: unknown.
    """

    id: str
    name: str
    state: str
    modified: str


class Deployed(NamedTuple):
    """What came of one flow.

    Attributes:
        name: The flow.
        id: Its id there; None: it is not there (yet).
        outcome: What was done, or would be done.
    """

    name: str
    id: str | None
    outcome: Literal["unchanged", "changed", "created"]


class PowerAutomate:
    """The flows of one environment. It is closed by ``async with``.

    Args:
        url: Address of the API.
        environment: Id of the environment.
        credential: Who asks.
        timeout_s: Limit of one request, in seconds.
        retry_s: How long a request that fails for now is repeated, in seconds.
        clock: Time.
    """

    def __init__(
        self,
        url: str,
        environment: str,
        credential: Credential,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 120.0,
        clock: Clock | None = None,
    ) -> None:
        self._http = Http(url, credential, resource=_RESOURCE, timeout_s=timeout_s, retry_s=retry_s, clock=clock)
        self._environment = environment
        self._flows = f"providers/Microsoft.ProcessSimple/environments/{quote(environment, safe='')}/flows"

    @classmethod
    def open(cls, settings: DataverseSettings, credential: Credential | None = None) -> PowerAutomate:
        """The environment of the settings.

        Raises:
            NotConfigured: ``flow_environment`` is missing.
        """
        environment = settings.needs("flow_environment").flow_environment or ""
        who = credential or open_credential(settings, token_env=settings.flow_token_env)
        url = settings.flow_url or PUBLIC
        return cls(url, environment, who, timeout_s=settings.timeout_s, retry_s=settings.retry_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.close()

    async def flows(self) -> AsyncIterator[FlowThere]:
        """All flows of the environment that this account sees."""
        path, params = self._flows, dict(_VERSION)
        while path:
            answer = await self._http.request("GET", path, params=params)
            body = answer.body if isinstance(answer.body, dict) else {}
            for item in body.get("value") or ():
                properties = _mapping(item.get("properties") if isinstance(item, dict) else None)
                if isinstance(item, dict) and isinstance(item.get("name"), str):
                    name, state = _text(properties, "displayName"), _text(properties, "state")
                    yield FlowThere(item["name"], name, state, _text(properties, "lastModifiedTime"))
            path, params = _text(body, "nextLink"), {}

    async def named(self, name: str) -> FlowThere | None:
        """The flow with a display name; None: there is none.

        Raises:
            Refused: There are two; say which by its id.
        """
        found = [flow async for flow in self.flows() if flow.name == name]
        if len(found) > 1:
            raise Refused(f"{len(found)} flows are called {name}; say which one with --id.", status=409)
        return found[0] if found else None

    async def read(self, flow_id: str) -> Mapping[str, Any]:
        """The properties of a flow.

        Raises:
            Refused: There is none with that id.
        """
        answer = await self._http.request("GET", self._path(flow_id), params=_VERSION)
        properties = _mapping(_mapping(answer.body).get("properties"))
        if not isinstance(properties.get("definition"), dict):
            raise DataverseError("Power Automate shows no definition of this flow; ask its owner to share it.")
        return properties

    async def export(self, flow_id: str) -> Flow:
        """A flow as it is there, without what it is connected with."""
        properties = await self.read(flow_id)
        connections = tuple(sorted(_connected(properties)))
        name, description = _text(properties, "displayName"), _text(properties, "description")
        return Flow(name, description, connections, properties["definition"])

    async def deploy(
        self,
        flow: Flow,
        *,
        flow_id: str | None = None,
        connections: Mapping[str, str] | None = None,
        start: bool = False,
        dry_run: bool = False,
    ) -> Deployed:
        """Make the flow there as it is here.

        Args:
            flow: The flow.
            flow_id: Its id there; None: it is found by its name, or made.
            connections: Connector -> name of a connection there; needed for those that the flow is not connected with.
            start: Switch it on.
            dry_run: Change nothing.

        Raises:
            Refused: A connection is missing; or there is no flow with that id, or there are two of that name.
        """
        there = None if flow_id else await self.named(flow.name)
        target = flow_id or (there and there.id)
        before: Mapping[str, Any] = await self.read(target) if target else {}
        references = self._references(flow, before, connections or {})
        wanted: dict[str, Any] = {
            "displayName": flow.name,
            "definition": flow.definition,
            "connectionReferences": references,
        }
        if start:
            wanted["state"] = "Started"
        if target and all(before.get(key) == value for key, value in wanted.items()):
            return Deployed(flow.name, target, "unchanged")
        if dry_run:
            return Deployed(flow.name, target, "changed" if target else "created")
        if target:
            await self._http.request("PATCH", self._path(target), params=_VERSION, body={"properties": wanted})
            return Deployed(flow.name, target, "changed")
        new = {"state": "Stopped", **wanted, "environment": {"name": self._environment}}
        made = await self._http.request(
            "POST", self._flows, params=_VERSION, body={"properties": new}, idempotent=False
        )
        return Deployed(flow.name, _text(_mapping(made.body), "name") or None, "created")

    def _references(self, flow: Flow, before: Mapping[str, Any], connections: Mapping[str, str]) -> Mapping[str, Any]:
        references = dict(_connected(before))
        for connector, name in connections.items():
            references[connector] = {"connectionName": name, "source": "Embedded", "id": f"{_API}{connector}"}
        if missing := [connector for connector in flow.connections if connector not in references]:
            given = " ".join(f"--connection {connector}=NAME" for connector in missing)
            raise Refused(f"{flow.name} is not connected yet; give {given}, with a connection of this environment.")
        return {connector: references[connector] for connector in flow.connections}

    def _path(self, flow_id: str) -> str:
        return f"{self._flows}/{quote(flow_id, safe='')}"


def _connected(properties: Mapping[str, Any]) -> Mapping[str, Any]:
    return _mapping(properties.get("connectionReferences"))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    return value if isinstance(value, str) else ""

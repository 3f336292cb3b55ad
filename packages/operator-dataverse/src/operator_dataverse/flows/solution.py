"""A flow as a row of Dataverse: the way to make one where Power Automate's own API is closed to an account (row B-046).

Such a row has category 5 and holds the definition as ``clientdata``. It refers to connections by the logical names of
connection references, which the people of that organisation make.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from operator_dataverse.client import Conflict, Dataverse, Row, field
from operator_dataverse.errors import DataverseError, Refused
from operator_dataverse.flows.flow import Flow

__all__ = ["Created", "clientdata", "create_in_dataverse"]

_TABLE = "workflows"
_MODERN_FLOW, _DEFINITION = 5, 1
_ACTIVATED = {"statecode": 1, "statuscode": 2}
_LOGICAL_NAME = re.compile(r"[a-z][a-z0-9_]{1,99}")


class Created(NamedTuple):
    """What came of it.

    Attributes:
        id: Of the row; None: it would be made.
        outcome: What was done, or would be done.
        active: Whether the flow is switched on.
    """

    id: str | None
    outcome: Literal["unchanged", "changed", "created"]
    active: bool


def clientdata(flow: Flow, references: Mapping[str, str]) -> str:
    """What the row holds.

    Args:
        flow: The flow.
        references: Connector -> logical name of a connection reference.

    Raises:
        Refused: One is missing, or is no logical name.
    """
    missing = [name for name in flow.connections if not _LOGICAL_NAME.fullmatch(references.get(name, ""))]
    if missing:
        given = " ".join(f"--connection {name}=REFERENCE" for name in missing)
        raise Refused(f"{flow.name} needs {given}, with the logical name of a connection reference.")
    connected: dict[str, Any] = {
        name: {
            "runtimeSource": "embedded",
            "connection": {"connectionReferenceLogicalName": references[name]},
            "api": {"name": name},
        }
        for name in flow.connections
    }
    properties = {"connectionReferences": connected, "definition": flow.definition}
    return json.dumps({"properties": properties, "schemaVersion": "1.0.0.0"}, ensure_ascii=False)


async def create_in_dataverse(
    dataverse: Dataverse, flow: Flow, references: Mapping[str, str], *, dry_run: bool = False
) -> Created:
    """Make the flow, or bring it up to date, and switch it on; done twice, it is done once.

    Raises:
        Refused: A connection reference is missing, or there are two flows of that name.
        DataverseError: Somebody else changes it at the same time.
    """
    data = clientdata(flow, references)
    where = (field("name") == flow.name) & (field("category") == _MODERN_FLOW) & (field("type") == _DEFINITION)
    found = [row async for row in dataverse.rows(_TABLE, where)]
    if len(found) > 1:
        raise Refused(f"{len(found)} flows are called {flow.name}; delete the others first.", status=409)
    if not found:
        if dry_run:
            return Created(None, "created", False)
        values = {
            "name": flow.name,
            "category": _MODERN_FLOW,
            "type": _DEFINITION,
            "primaryentity": "none",
            "description": flow.description,
            "clientdata": data,
        }
        made = _row(await dataverse.create(_TABLE, values), flow)
        row = await _changed(dataverse, made, _ACTIVATED, flow)
        return Created(row.id, "created", True)
    row = found[0]
    active = row.get("statecode") == 1
    if _same(row.get("clientdata"), data) and active:
        return Created(row.id, "unchanged", True)
    if dry_run:
        return Created(row.id, "changed", active)
    row = await _changed(dataverse, row, {"clientdata": data}, flow)
    row = await _changed(dataverse, row, _ACTIVATED, flow)
    return Created(row.id, "changed", True)


async def _changed(dataverse: Dataverse, row: Row, values: Mapping[str, Any], flow: Flow) -> Row:
    return _row(await dataverse.update(_TABLE, row.id, values, etag=row.etag or ""), flow)


def _row(answer: Row | Conflict, flow: Flow) -> Row:
    if isinstance(answer, Conflict):
        raise DataverseError(f"Somebody else changes the flow {flow.name} just now; look at it and try again.")
    return answer


def _same(text: object, wanted: str) -> bool:
    try:
        return isinstance(text, str) and json.loads(text) == json.loads(wanted)
    except ValueError:
        return False

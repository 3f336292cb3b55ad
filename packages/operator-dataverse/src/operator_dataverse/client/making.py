"""Making tables and columns that are missing, by ``EntityDefinitions`` (row B-045)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from operator_dataverse.client.comparison import compare
from operator_dataverse.client.dataverse import Dataverse
from operator_dataverse.client.metadata import TableInfo
from operator_dataverse.errors import Refused, SchemaProblem
from operator_dataverse.tables.schema import ColumnSpec, TableSpec, load_schemas

__all__ = ["Step", "make", "plan"]

_CRM = "Microsoft.Dynamics.CRM."
_LANGUAGE = 1033
_LARGEST = 2_147_483_647
_THERE_ALREADY = frozenset({"0x80047013", "0x80044363", "0x8004701e", "0x80048403"})


class Step(NamedTuple):
    """One request that makes something.

    Attributes:
        what: What it makes, for people.
        path: Below the address of the Web API.
        body: What is sent.
    """

    what: str
    path: str
    body: dict[str, Any]


def plan(table: TableSpec, info: TableInfo | None) -> list[Step]:
    """What has to be made so that a table has everything that it needs, in this order.

    Raises:
        SchemaProblem: The table is missing, and is none that the product names.
    """
    missing = {d.column for d in compare(table, info) if d.missing}
    steps = []
    if info is None:
        if table.entity_set not in load_schemas():
            raise SchemaProblem(
                f"The table {table.entity_set} of `[dataverse] table` is missing; make it, or remove the setting."
            )
        steps.append(Step(f"table {table.entity_set}", "EntityDefinitions", _table(table)))
        missing = {c.name for c in table.columns if c.presence != "legacy" and c.name != table.primary_name}
    logical = table.logical_name if info is None else info.logical_name
    path = f"EntityDefinitions(LogicalName='{logical}')/Attributes"
    made = [column for column in table.columns if column.name in missing]
    steps += [Step(f"column {table.entity_set}.{column.name}", path, _column(column)) for column in made]
    return steps


async def make(dataverse: Dataverse, steps: Sequence[Step], *, solution: str | None = None) -> list[str]:
    """Make it; what somebody else made meanwhile is left as it is. A run that breaks off is simply run again.

    Args:
        dataverse: The organisation.
        steps: Of :func:`plan`.
        solution: Unique name of the solution that it belongs to.

    Returns:
        What was made, for people.
    """
    headers = {"MSCRM-SolutionUniqueName": solution} if solution else {}
    made = []
    for step in steps:
        answer = await dataverse.http.request(
            "POST", step.path, body=step.body, headers=headers, accept=(400, 409, 412)
        )
        if answer.ok or (answer.uncertain and answer.code in _THERE_ALREADY):
            made.append(step.what)
        elif answer.code not in _THERE_ALREADY:
            failure = answer.refused(step.what)
            raise Refused(f"{failure} (made before that: {', '.join(made) or 'nothing'}).", code=answer.code)
    return made


def _table(table: TableSpec) -> dict[str, Any]:
    return {
        "@odata.type": f"{_CRM}EntityMetadata",
        "SchemaName": table.logical_name,
        "EntitySetName": table.entity_set,
        "DisplayName": _label(table.display_name),
        "DisplayCollectionName": _label(table.display_name_plural),
        "Description": _label(table.description),
        "OwnershipType": table.ownership,
        "IsActivity": False,
        "HasActivities": False,
        "HasNotes": False,
        "Attributes": [_column(table.column(table.primary_name)) | {"IsPrimaryName": True}],
    }


def _column(column: ColumnSpec) -> dict[str, Any]:
    kind, more = _KINDS[column.type]
    body: dict[str, Any] = {
        "@odata.type": f"{_CRM}{kind}AttributeMetadata",
        "AttributeType": kind,
        "AttributeTypeName": {"Value": f"{kind}Type"},
        "SchemaName": column.name,
        "DisplayName": _label(column.label),
        "Description": _label(column.description),
        "RequiredLevel": {
            "Value": "ApplicationRequired" if column.required else "None",
            "CanBeChanged": True,
            "ManagedPropertyLogicalName": "canmodifyrequirementlevelsettings",
        },
        **more,
    }
    if column.max_length is not None:
        body["MaxLength"] = column.max_length
    if column.type == "choice":
        body["OptionSet"] = {
            "@odata.type": f"{_CRM}OptionSetMetadata",
            "IsGlobal": False,
            "OptionSetType": "Picklist",
            "Options": [{"Value": value, "Label": _label(text)} for value, text in column.options.items()],
        }
    return body


def _label(text: str) -> dict[str, Any]:
    localized = {"@odata.type": f"{_CRM}LocalizedLabel", "Label": text, "LanguageCode": _LANGUAGE}
    return {"@odata.type": f"{_CRM}Label", "LocalizedLabels": [localized]}


_KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "string": ("String", {"FormatName": {"Value": "Text"}}),
    "memo": ("Memo", {"Format": "TextArea", "ImeMode": "Disabled"}),
    "integer": ("Integer", {"Format": "None", "MinValue": 0, "MaxValue": _LARGEST}),
    "datetime": ("DateTime", {"Format": "DateAndTime", "DateTimeBehavior": {"Value": "UserLocal"}}),
    "choice": ("Picklist", {}),
    "boolean": (
        "Boolean",
        {
            "DefaultValue": False,
            "OptionSet": {
                "OptionSetType": "Boolean",
                "TrueOption": {"Value": 1, "Label": _label("Yes")},
                "FalseOption": {"Value": 0, "Label": _label("No")},
            },
        },
    ),
}

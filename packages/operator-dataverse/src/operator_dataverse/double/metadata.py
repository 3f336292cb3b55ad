"""``EntityDefinitions``: what the tables look like, and how new ones are made."""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from operator_dataverse.double.definitions import Column, ColumnType, Table
from operator_dataverse.double.problems import Problem, bad_query, missing_segment
from operator_dataverse.double.store import Store

__all__ = ["Metadata"]

_CRM = "Microsoft.Dynamics.CRM."
_TYPES: Mapping[ColumnType, tuple[str, str]] = {
    "string": ("String", "StringType"),
    "memo": ("Memo", "MemoType"),
    "integer": ("Integer", "IntegerType"),
    "bigint": ("BigInt", "BigIntType"),
    "choice": ("Picklist", "PicklistType"),
    "boolean": ("Boolean", "BooleanType"),
    "datetime": ("DateTime", "DateTimeType"),
    "guid": ("Uniqueidentifier", "UniqueidentifierType"),
}
_CLASSES: Mapping[str, ColumnType] = {
    "StringAttributeMetadata": "string",
    "MemoAttributeMetadata": "memo",
    "IntegerAttributeMetadata": "integer",
    "BigIntAttributeMetadata": "bigint",
    "PicklistAttributeMetadata": "choice",
    "BooleanAttributeMetadata": "boolean",
    "DateTimeAttributeMetadata": "datetime",
    "UniqueIdentifierAttributeMetadata": "guid",
}
_BY_NAME = re.compile(r"^EntityDefinitions\(LogicalName='([^']+)'\)$")
_BY_ID = re.compile(r"^EntityDefinitions\(([0-9a-fA-F-]{36})\)$")
_ATTRIBUTE = re.compile(r"^Attributes\(LogicalName='([^']+)'\)$")
_SIMPLE_FILTER = re.compile(r"^(\w+) eq (?:'((?:[^']|'')*)'|(true|false))$")
_PREFIXED = re.compile(r"^[A-Za-z][A-Za-z0-9]*_\w+$")


class Metadata:
    """Answers what is asked of the definitions of tables.

    Args:
        store: Whose tables they are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @staticmethod
    def answers(name: str) -> bool:
        """Whether addresses that begin so are about definitions."""
        return name in ("EntityDefinitions", "PublishAllXml", "PublishXml")

    def answer(self, method: str, segments: list[str], options: Mapping[str, str], body: Any, root: str) -> Response:
        """Answer one request.

        Raises:
            Problem: As for rows.
        """
        if segments[0] in ("PublishAllXml", "PublishXml"):
            return Response(status_code=204)
        with self._store.lock:
            if segments == ["EntityDefinitions"]:
                if method == "POST":
                    return self._create_table(_object(body), root)
                tables = _filtered([_entity(table) for table in self._store.tables()], options.get("$filter"))
                shown = [self._expanded(entity, options) for entity in tables]
                return JSONResponse({"@odata.context": f"{root}/$metadata#EntityDefinitions", "value": shown})
            table = self._table(segments[0])
            if len(segments) == 1 and method == "GET":
                entity = self._expanded(_entity(table), options)
                return JSONResponse({"@odata.context": f"{root}/$metadata#EntityDefinitions/$entity"} | entity)
            if segments[1:] == ["Attributes"] and method == "POST":
                return self._create_column(table, _object(body), root)
            if method == "GET" and 2 <= len(segments) <= 3:
                return self._attributes(table, segments[1:], options, root)
        raise Problem(405, "0x80060888", f"The HTTP method {method} is not supported for this address.")

    def _table(self, segment: str) -> Table:
        by_name, by_id = _BY_NAME.match(segment), _BY_ID.match(segment)
        for table in self._store.tables():
            if by_name and table.logical_name == by_name[1]:
                return table
            if by_id and _table_id(table) == by_id[1].lower():
                return table
        if by_name or by_id:
            wanted = (by_name or by_id)[1]  # type: ignore[index]
            raise Problem(404, "0x80060888", f"Could not find an entity with name '{wanted}'.")
        raise missing_segment(segment)

    def _attributes(self, table: Table, rest: list[str], options: Mapping[str, str], root: str) -> Response:
        attributes = [_attribute(table, column) for column in table.columns.values()]
        one = _ATTRIBUTE.match(rest[0])
        if one:
            attributes = [attribute for attribute in attributes if attribute["LogicalName"] == one[1]]
            if not attributes:
                raise Problem(404, "0x80060888", f"Could not find an attribute with name '{one[1]}'.")
        elif rest[0] != "Attributes":
            raise missing_segment(rest[0])
        kind = rest[1].removeprefix(_CRM) if len(rest) == 2 else None
        if kind is not None and kind not in _CLASSES:
            raise missing_segment(rest[1])
        if kind is not None:
            attributes = [a for a in attributes if a["@odata.type"] == f"#{_CRM}{kind}"]
        attributes = _filtered(attributes, options.get("$filter"))
        if kind is None and "MaxLength" in options.get("$select", ""):
            raise bad_query(f"Could not find a property named 'MaxLength' on type '{_CRM}AttributeMetadata'.")
        with_options = "OptionSet" in options.get("$expand", "")
        shown = [_selected(a, options.get("$select"), {"OptionSet"} if with_options else set()) for a in attributes]
        if kind is None or not with_options:
            shown = [{k: v for k, v in a.items() if k != "OptionSet"} for a in shown]
        if one:
            return JSONResponse({"@odata.context": f"{root}/$metadata#Attributes/$entity"} | shown[0])
        return JSONResponse({"@odata.context": f"{root}/$metadata#Attributes", "value": shown})

    def _expanded(self, entity: dict[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
        answer = _selected(entity, options.get("$select"), set())
        expand = options.get("$expand", "")
        if expand.startswith("Attributes"):
            table = next(t for t in self._store.tables() if t.logical_name == entity["LogicalName"])
            inner = re.search(r"\$select=([^;)]*)", expand)
            answer["Attributes"] = [
                {
                    k: v
                    for k, v in _selected(_attribute(table, c), inner and inner[1], set()).items()
                    if k != "OptionSet"
                }
                for c in table.columns.values()
            ]
        return answer

    def _create_table(self, body: Mapping[str, Any], root: str) -> Response:
        schema = str(body.get("SchemaName", ""))
        if not _PREFIXED.match(schema):
            raise Problem(400, "0x8004f026", f"The name '{schema}' needs the prefix of a publisher.")
        logical = schema.lower()
        if any(table.logical_name == logical for table in self._store.tables()):
            raise Problem(400, "0x80047013", f"An entity with the specified name {logical} already exists.")
        if body.get("OwnershipType") not in ("UserOwned", "OrganizationOwned"):
            raise Problem(400, "0x80040203", "OwnershipType must be UserOwned or OrganizationOwned.")
        attributes = body.get("Attributes") or []
        primary = [a for a in attributes if a.get("IsPrimaryName") is True]
        if len(primary) != 1 or _class(primary[0]) != "StringAttributeMetadata":
            raise Problem(400, "0x80040203", "Exactly one string attribute must be the primary name.")
        columns = [_column(a) for a in (primary + [a for a in attributes if a is not primary[0]])]
        entity_set = str(body.get("EntitySetName") or f"{logical}s").lower()
        table = Table.of(logical, entity_set, columns, label=_label(body.get("DisplayName"), schema))
        self._store.define(table)
        return Response(status_code=204, headers={"OData-EntityId": f"{root}/EntityDefinitions({_table_id(table)})"})

    def _create_column(self, table: Table, body: Mapping[str, Any], root: str) -> Response:
        column = _column(body)
        if column.name in table.columns:
            raise Problem(
                400, "0x80047013", f"An attribute with the specified name {column.name} already exists for this entity."
            )
        self._store.define(table.with_column(column))
        address = (
            f"{root}/EntityDefinitions({_table_id(table)})/Attributes({uuid.uuid5(uuid.NAMESPACE_URL, column.name)})"
        )
        return Response(status_code=204, headers={"OData-EntityId": address})


def _table_id(table: Table) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, table.logical_name))


def _object(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise Problem(400, "0x80048d19", "Error identified in Payload provided by the user: an object was expected.")
    return body


def _labelled(text: str) -> dict[str, Any]:
    label = {"Label": text, "LanguageCode": 1033}
    return {"LocalizedLabels": [label], "UserLocalizedLabel": label}


def _label(value: Any, otherwise: str) -> str:
    labels = value.get("LocalizedLabels") if isinstance(value, dict) else None
    return str(labels[0].get("Label", otherwise)) if labels else otherwise


def _entity(table: Table) -> dict[str, Any]:
    return {
        "MetadataId": _table_id(table),
        "LogicalName": table.logical_name,
        "SchemaName": table.logical_name,
        "EntitySetName": table.entity_set,
        "LogicalCollectionName": table.entity_set,
        "PrimaryIdAttribute": table.key,
        "PrimaryNameAttribute": table.primary_name,
        "OwnershipType": "UserOwned",
        "IsCustomEntity": table.custom,
        "DisplayName": _labelled(table.label),
    }


def _attribute(table: Table, column: Column) -> dict[str, Any]:
    lookup = column.name.startswith("_") and column.name.endswith("_value")
    kind, type_name = ("Lookup", "LookupType") if lookup else _TYPES[column.type]
    kind_class = {"Uniqueidentifier": "UniqueIdentifier"}.get(kind, kind)
    attribute: dict[str, Any] = {
        "@odata.type": f"#{_CRM}{kind_class}AttributeMetadata",
        "MetadataId": str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{table.logical_name}.{column.name}")),
        "LogicalName": column.name[1:-6] if lookup else column.name,
        "SchemaName": column.name[1:-6] if lookup else column.name,
        "EntityLogicalName": table.logical_name,
        "AttributeType": kind,
        "AttributeTypeName": {"Value": type_name},
        "IsPrimaryId": column.name == table.key,
        "IsPrimaryName": column.name == table.primary_name,
        "IsValidForCreate": column.writable,
        "IsValidForUpdate": column.writable and column.name != table.key,
        "IsValidForRead": True,
        "RequiredLevel": {"Value": "ApplicationRequired" if column.required else "None"},
        "DisplayName": _labelled(column.label or column.name),
    }
    if column.max_length is not None:
        attribute["MaxLength"] = column.max_length
    if column.type == "choice":
        attribute["OptionSet"] = {
            "Options": [{"Value": value, "Label": _labelled(label)} for value, label in column.options.items()]
        }
    return attribute


def _class(body: Mapping[str, Any]) -> str:
    return str(body.get("@odata.type", "")).lstrip("#").removeprefix(_CRM)


def _column(body: Mapping[str, Any]) -> Column:
    name = str(body.get("SchemaName", ""))
    if not _PREFIXED.match(name):
        raise Problem(400, "0x8004f026", f"The name '{name}' needs the prefix of a publisher.")
    kind = _CLASSES.get(_class(body))
    if kind is None:
        raise Problem(
            400, "0x80048d19", f"A type named '{body.get('@odata.type')}' could not be resolved by the model."
        )
    length = body.get("MaxLength")
    if kind in ("string", "memo"):
        most = 4000 if kind == "string" else 1_048_576
        if not isinstance(length, int) or not 1 <= length <= most:
            raise Problem(400, "0x80044331", f"MaxLength of '{name}' must be between 1 and {most}.")
    options: dict[int, str] = {}
    if kind == "choice":
        for option in (body.get("OptionSet") or {}).get("Options", []):
            options[int(option["Value"])] = _label(option.get("Label"), str(option["Value"]))
        if not options:
            raise Problem(400, "0x80040203", f"The choice '{name}' needs options.")
    required = (body.get("RequiredLevel") or {}).get("Value") == "ApplicationRequired"
    return Column(name.lower(), kind, length, options, required, label=_label(body.get("DisplayName"), name))


def _filtered(things: list[dict[str, Any]], text: str | None) -> list[dict[str, Any]]:
    for part in re.split(r"\s+and\s+", text) if text else []:
        found = _SIMPLE_FILTER.match(part.strip())
        if found is None:
            raise bad_query(f"The filter '{text}' is not supported for definitions.")
        name = found[1]
        wanted: Any = found[3] == "true" if found[3] else found[2].replace("''", "'")
        things = [thing for thing in things if thing.get(name) == wanted]
    return things


def _selected(thing: Mapping[str, Any], select: str | None, also: set[str]) -> dict[str, Any]:
    if not select:
        return dict(thing)
    names = {name.strip() for name in select.split(",") if name.strip()} | {"MetadataId", "@odata.type"} | also
    return {name: value for name, value in thing.items() if name in names}

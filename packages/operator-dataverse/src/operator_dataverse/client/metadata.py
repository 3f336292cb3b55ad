"""What columns a table of this organisation has, read once from the service itself (D-51)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field
from typing import Any, Literal

from operator_dataverse.client.http import Http
from operator_dataverse.client.odata import field
from operator_dataverse.errors import SchemaProblem

__all__ = ["Column", "ColumnType", "TableInfo", "read_table"]

ColumnType = Literal["string", "memo", "integer", "number", "boolean", "datetime", "choice", "guid", "other"]

_TYPES: Mapping[str, ColumnType] = {
    "String": "string",
    "Memo": "memo",
    "Integer": "integer",
    "BigInt": "integer",
    "Decimal": "number",
    "Double": "number",
    "Money": "number",
    "Boolean": "boolean",
    "DateTime": "datetime",
    "Picklist": "choice",
    "State": "choice",
    "Status": "choice",
    "Uniqueidentifier": "guid",
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Logical name, which is also the name in a row.
        type: What it holds.
        max_length: Most UTF-16 code units, of texts; None: unknown or no text.
        required: A row cannot be made without it.
        options: Value -> label of a choice; empty: unknown, or no choice.
        writable: Whether a write may name it.
    """

    name: str
    type: ColumnType
    max_length: int | None = None
    required: bool = False
    options: Mapping[int, str] = data_field(default_factory=dict)
    writable: bool = True


@dataclass(frozen=True)
class TableInfo:
    """One table.

    Attributes:
        table: Entity set, the name in addresses.
        logical_name: The name in metadata.
        key: Column of the id.
        primary_name: Column that people see; may be empty.
        columns: Name -> column.
    """

    table: str
    logical_name: str
    key: str
    primary_name: str
    columns: Mapping[str, Column]

    def has(self, *names: str) -> bool:
        """Whether it has all of these columns."""
        return all(name in self.columns for name in names)

    def only(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the names that it has, e.g. for ``select=``; lookups (``_ownerid_value``) are let through."""
        return tuple(name for name in names if name in self.columns or name.startswith("_"))


async def read_table(http: Http, table: str) -> TableInfo:
    """Ask the service for a table.

    Args:
        http: The Web API.
        table: Entity set.

    Raises:
        SchemaProblem: There is no such table.
    """
    query = {
        "$select": "LogicalName,EntitySetName,PrimaryIdAttribute,PrimaryNameAttribute",
        "$filter": str(field("EntitySetName") == table),
    }
    entity = next((e for e in await _values(http, "EntityDefinitions", query) if e.get("EntitySetName") == table), None)
    if entity is None:
        raise SchemaProblem(f"There is no table {table!r:.80} in {http.origin}; run `operator-dataverse schema diff`.")
    logical = str(entity.get("LogicalName"))
    attributes = f"EntityDefinitions(LogicalName='{logical}')/Attributes"
    options = {"$select": "LogicalName", "$expand": "OptionSet($select=Options)"}
    columns = _columns(
        await _values(http, attributes),
        await _values(http, f"{attributes}/Microsoft.Dynamics.CRM.PicklistAttributeMetadata", options),
    )
    key, primary = str(entity.get("PrimaryIdAttribute")), str(entity.get("PrimaryNameAttribute") or "")
    return TableInfo(table, logical, key, primary, columns)


async def _values(http: Http, path: str, params: dict[str, str] | None = None) -> list[dict[str, Any]]:
    answer = await http.request("GET", path, params=params)
    found = answer.object("EntityDefinitions").get("value")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _columns(attributes: list[dict[str, Any]], choices: list[dict[str, Any]]) -> dict[str, Column]:
    options = {c.get("LogicalName"): _options(c) for c in choices}
    columns = {}
    for a in attributes:
        name, of = a.get("LogicalName"), a.get("AttributeOf")
        # What belongs to another column (its formatted name, its base amount) is not for writing.
        if not isinstance(name, str) or of:
            continue
        length = a.get("MaxLength")
        level = a.get("RequiredLevel") or {}
        columns[name] = Column(
            name,
            _TYPES.get(str(a.get("AttributeType")), "other"),
            length if isinstance(length, int) and not isinstance(length, bool) and length > 0 else None,
            isinstance(level, dict) and level.get("Value") in ("ApplicationRequired", "SystemRequired"),
            options.get(name) or {},
            a.get("IsValidForUpdate", True) is not False or a.get("IsValidForCreate", True) is not False,
        )
    return columns


def _options(choice: dict[str, Any]) -> dict[int, str]:
    found: dict[int, str] = {}
    for option in (choice.get("OptionSet") or {}).get("Options") or []:
        if isinstance(option.get("Value"), int):
            label = ((option.get("Label") or {}).get("UserLocalizedLabel") or {}).get("Label")
            found[option["Value"]] = str(label or option["Value"])
    return found

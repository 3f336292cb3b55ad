"""How the tables of an organisation differ from the ones that the product wants (``schemas/``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from operator_dataverse.client.dataverse import Dataverse
from operator_dataverse.client.metadata import ColumnType, TableInfo
from operator_dataverse.errors import SchemaProblem
from operator_dataverse.tables.schema import TASKS, ColumnSpec, TableSpec, load_schemas

__all__ = ["Difference", "compare", "look", "wanted"]

_SAME: Mapping[str, frozenset[ColumnType]] = {
    "string": frozenset({"string", "memo"}),
    "memo": frozenset({"string", "memo"}),
    "choice": frozenset({"choice"}),
    "integer": frozenset({"integer"}),
    "boolean": frozenset({"boolean"}),
    "datetime": frozenset({"datetime"}),
}


class Difference(NamedTuple):
    """One way in which a table is not as it should be.

    Attributes:
        table: Entity set.
        column: Logical name; None: it is about the table.
        blocking: The product does not work with it; otherwise it does without something.
        missing: ``schema create`` can make it; otherwise a person has to.
        detail: What, for people.
    """

    table: str
    column: str | None
    blocking: bool
    missing: bool
    detail: str


def wanted(task_table: str = TASKS) -> tuple[TableSpec, ...]:
    """The four tables; the tasks may be in a table of another name (``[dataverse] table``)."""
    return tuple(
        table.model_copy(update={"entity_set": task_table}) if table.entity_set == TASKS else table
        for table in load_schemas().values()
    )


async def look(dataverse: Dataverse, tables: Sequence[TableSpec]) -> dict[str, TableInfo | None]:
    """The tables as they are now, by entity set; None: it is not there."""
    found: dict[str, TableInfo | None] = {}
    for table in tables:
        try:
            found[table.entity_set] = await dataverse.info(table.entity_set, fresh=True)
        except SchemaProblem:
            found[table.entity_set] = None
    return found


def compare(table: TableSpec, info: TableInfo | None) -> list[Difference]:
    """Every difference between what is wanted and what is there; what is there beyond that is nobody's business."""
    name = table.entity_set
    if info is None:
        return [Difference(name, None, True, True, "the table is missing")]
    found = []
    # A table of another name has a key of another name, which is read from the service.
    if info.logical_name == table.logical_name and info.key != table.key:
        found.append(Difference(name, None, True, False, f"its key is {info.key} and should be {table.key}"))
    for column in table.columns:
        found += _column(name, column, info)
    return found


def _column(table: str, wanted_column: ColumnSpec, info: TableInfo) -> list[Difference]:
    there = info.columns.get(wanted_column.name)
    if there is None:
        if wanted_column.presence == "legacy":
            return []
        blocking = wanted_column.presence == "seed"
        detail = "the column is missing" + ("" if blocking else " (optional: it works without)")
        return [Difference(table, wanted_column.name, blocking, True, detail)]
    if there.type not in _SAME[wanted_column.type]:
        detail = f"it is a {there.type} and should be a {wanted_column.type}"
        return [Difference(table, wanted_column.name, wanted_column.presence != "legacy", False, detail)]
    found = []
    if wanted_column.max_length and there.max_length and there.max_length < wanted_column.max_length:
        detail = f"it takes {there.max_length} characters and should take {wanted_column.max_length}: texts are cut"
        found.append(Difference(table, wanted_column.name, False, False, detail))
    if there.options and (lost := [v for v in wanted_column.options if v not in there.options]):
        said = ", ".join(f"{value} ({wanted_column.options[value]})" for value in lost)
        found.append(Difference(table, wanted_column.name, True, False, f"it lacks the option(s) {said}"))
    return found

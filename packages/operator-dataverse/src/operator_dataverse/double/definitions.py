"""Tables as the service knows them: their columns, and the ones that every table has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from operator_dataverse.tables.schema import load_schemas

__all__ = ["EDM_TYPES", "Column", "ColumnType", "Table", "lookup", "product_tables", "system_tables"]

ColumnType = Literal["string", "memo", "integer", "bigint", "choice", "boolean", "datetime", "guid"]

EDM_TYPES: Mapping[ColumnType, str] = {
    "string": "Edm.String",
    "memo": "Edm.String",
    "integer": "Edm.Int32",
    "bigint": "Edm.Int64",
    "choice": "Edm.Int32",
    "boolean": "Edm.Boolean",
    "datetime": "Edm.DateTimeOffset",
    "guid": "Edm.Guid",
}


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Logical name in lower case; also the name of the property, except for lookups.
        type: What it holds.
        max_length: Most UTF-16 code units of a text; None: it is no text.
        options: Values of a choice with their labels.
        required: A person's form would insist on it; the service itself does not.
        writable: Clients may set it.
        label: What people see.
    """

    name: str
    type: ColumnType
    max_length: int | None = None
    options: Mapping[int, str] = field(default_factory=dict)
    required: bool = False
    writable: bool = True
    label: str = ""

    @property
    def edm(self) -> str:
        """The OData type."""
        return EDM_TYPES[self.type]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        logical_name: Such as ``cr_shraga_task``.
        entity_set: Its plural in addresses, such as ``cr_shraga_tasks``.
        columns: By property name; those of every table are added here.
        primary_name: The column that people see as the name of a row.
        label: What people see.
        custom: Made by a publisher, not part of the platform.
    """

    logical_name: str
    entity_set: str
    columns: Mapping[str, Column]
    primary_name: str
    label: str = ""
    custom: bool = True

    @property
    def key(self) -> str:
        """The column of the row's id."""
        return f"{self.logical_name}id"

    @classmethod
    def of(
        cls, logical_name: str, entity_set: str, columns: Iterable[Column], *, label: str = "", custom: bool = True
    ) -> Table:
        """A table with these columns (the first is its primary name) and those that every table has."""
        own = list(columns)
        everywhere = [
            Column(f"{logical_name}id", "guid", writable=True),
            Column("createdon", "datetime", writable=False),
            Column("modifiedon", "datetime", writable=False),
            Column("statecode", "choice", options={0: "Active", 1: "Inactive"}),
            Column("statuscode", "choice", options={1: "Active", 2: "Inactive"}),
            Column("versionnumber", "bigint", writable=False),
            *(lookup(name) for name in ("ownerid", "createdby", "modifiedby")),
        ]
        named = {column.name: column for column in everywhere}
        named.update({column.name: column for column in own})
        return cls(logical_name, entity_set, named, own[0].name, label or logical_name, custom)

    def with_column(self, column: Column) -> Table:
        """This table with one more column."""
        return Table(
            self.logical_name,
            self.entity_set,
            {**self.columns, column.name: column},
            self.primary_name,
            self.label,
            self.custom,
        )


def lookup(name: str) -> Column:
    """A reference to another table, as it shows in a row: its id, which clients do not write this way."""
    return Column(f"_{name}_value", "guid", writable=False)


def system_tables() -> list[Table]:
    """The tables of the platform itself that the product touches: people, flows and the parts of a bot."""
    return [
        Table.of(
            "systemuser",
            "systemusers",
            [
                Column("fullname", "string", 200),
                Column("internalemailaddress", "string", 100),
                Column("domainname", "string", 1024),
                Column("azureactivedirectoryobjectid", "guid"),
            ],
            custom=False,
        ),
        Table.of(
            "workflow",
            "workflows",
            [
                Column("name", "string", 100, required=True),
                Column("category", "choice", options={0: "Workflow", 5: "Modern Flow", 6: "Desktop Flow"}),
                Column("type", "choice", options={1: "Definition", 2: "Activation", 3: "Template"}),
                Column("description", "memo", 100_000),
                Column("primaryentity", "string", 100),
                Column("clientdata", "memo", 1_073_741_823),
                Column("statecode", "choice", options={0: "Draft", 1: "Activated", 2: "Suspended"}),
                Column("statuscode", "choice", options={1: "Draft", 2: "Activated", 3: "CompanyDLPViolation"}),
            ],
            custom=False,
        ),
        Table.of(
            "botcomponent",
            "botcomponents",
            [
                Column("name", "string", 2000, required=True),
                Column("schemaname", "string", 100),
                Column("componenttype", "choice", options={0: "Topic", 9: "Topic (V2)", 15: "Custom GPT"}),
                Column("description", "memo", 2000),
                Column("content", "memo", 1_048_576),
                Column("data", "memo", 1_048_576),
            ],
            custom=False,
        ),
    ]


def product_tables(*, optional: bool = True) -> list[Table]:
    """The product's own tables, from ``schemas/``.

    Args:
        optional: With the columns that the product can use but need not have, and those of older flows.
    """
    tables = []
    for spec in load_schemas().values():
        columns = [
            Column(
                column.name,
                column.type,
                column.max_length,
                dict(column.options),
                column.required,
                label=column.label,
            )
            for column in spec.columns
            if column.presence == "seed" or optional
        ]
        columns.sort(key=lambda column: column.name != spec.primary_name)
        tables.append(Table.of(spec.logical_name, spec.entity_set, columns, label=spec.display_name))
    return tables

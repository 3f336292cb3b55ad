"""The four tables as the product wants them: the files of ``schemas/``, the one source of truth (D-63).

A column is there for one of three reasons. ``seed``: the tables always had it, and the product needs it. ``optional``:
it came later; it is made by ``schema create`` and used where it is there. ``legacy``: flows of before wrote it; it is
read where it is there, and neither made nor written.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["CONVERSATIONS", "MESSAGES", "TASKS", "USERS", "ColumnSpec", "TableSpec", "load_schemas", "schema_of"]

TASKS = "cr_shraga_tasks"
MESSAGES = "cr_shragamessages"
CONVERSATIONS = "cr_shraga_conversations"
USERS = "crb3b_shragausers"

_FILES = ("tasks", "messages", "conversations", "users")
_Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,99}$")]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ColumnSpec(_Strict):
    """One column.

    Attributes:
        name: Logical name.
        type: What it holds.
        max_length: Most UTF-16 code units, of texts.
        required: A row cannot be made without it.
        options: Value -> label of a choice; integers in filters and writes.
        values: The words that a text column holds; empty: any.
        presence: Why it is there.
        description: For people.
    """

    name: _Name
    type: Literal["string", "memo", "choice", "integer", "boolean", "datetime"]
    max_length: int | None = Field(default=None, ge=1, le=1_048_576)
    required: bool = False
    options: dict[int, str] = {}
    values: tuple[str, ...] = ()
    presence: Literal["seed", "optional", "legacy"] = "seed"
    description: str = Field(min_length=1)

    @property
    def label(self) -> str:
        """The name that people see, e.g. ``Status message`` of ``cr_statusmessage``."""
        return self.name.partition("_")[2].replace("_", " ").capitalize()

    @model_validator(mode="after")
    def _is_whole(self) -> ColumnSpec:
        if (self.type in ("string", "memo")) != (self.max_length is not None):
            raise ValueError(f"{self.name}: texts have a max_length, and nothing else has")
        if (self.type == "choice") != bool(self.options):
            raise ValueError(f"{self.name}: a choice has options, and nothing else has")
        if self.type == "string" and (self.max_length or 0) > 4000:
            raise ValueError(f"{self.name}: a string has at most 4000 characters; make it a memo")
        return self


class TableSpec(_Strict):
    """One table.

    Attributes:
        entity_set: Name in addresses.
        logical_name: Name in metadata.
        key: Column of the id; not among ``columns``.
        primary_name: Column that people see as the name of a row.
        display_name: For people.
        display_name_plural: For people.
        ownership: Who can own a row.
        description: For people.
        columns: In the order of the file, the ones that every table has (``createdon`` …) left out.
    """

    entity_set: _Name
    logical_name: _Name
    key: _Name
    primary_name: _Name
    display_name: str
    display_name_plural: str
    ownership: Literal["UserOwned", "OrganizationOwned"]
    description: str
    columns: tuple[ColumnSpec, ...]

    def column(self, name: str) -> ColumnSpec:
        """The column of that name.

        Raises:
            KeyError: There is none.
        """
        return self.by_name[name]

    @property
    def by_name(self) -> Mapping[str, ColumnSpec]:
        """Name -> column."""
        return {column.name: column for column in self.columns}

    @model_validator(mode="after")
    def _is_whole(self) -> TableSpec:
        names = [column.name for column in self.columns]
        if len(set(names)) != len(names):
            raise ValueError(f"{self.entity_set}: two columns have one name")
        primary = self.by_name.get(self.primary_name)
        if primary is None or primary.type != "string" or primary.presence != "seed":
            raise ValueError(f"{self.entity_set}: the primary name must be a string column of the table")
        if self.key != f"{self.logical_name}id":
            raise ValueError(f"{self.entity_set}: the service names the key after the table")
        return self


@cache
def load_schemas() -> Mapping[str, TableSpec]:
    """Entity set -> table, in the order tasks, messages, conversations, users."""
    folder = files("operator_dataverse") / "schemas"
    tables = [TableSpec.model_validate_json((folder / f"{name}.json").read_bytes()) for name in _FILES]
    return {table.entity_set: table for table in tables}


def schema_of(entity_set: str) -> TableSpec:
    """The table of that entity set; raises KeyError if it is none of the four."""
    return load_schemas()[entity_set]

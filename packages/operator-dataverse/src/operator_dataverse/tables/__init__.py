"""What the four tables hold: their columns (``schemas/``), typed rows, and the codes and words in them."""

from operator_dataverse.tables.schema import CONVERSATIONS, MESSAGES, TASKS, USERS, TableSpec, load_schemas, schema_of

__all__ = ["CONVERSATIONS", "MESSAGES", "TASKS", "USERS", "TableSpec", "load_schemas", "schema_of"]

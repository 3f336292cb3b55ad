"""A second opinion on what the client sends: an OData service by other people (odatapy), over the product's tables."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from odatapy.data import Entity, Property
from odatapy.edm.csdl import (
    CsdlAbstractEdmProvider,
    CsdlEntityContainer,
    CsdlEntitySet,
    CsdlEntityType,
    CsdlProperty,
    CsdlPropertyRef,
    CsdlSchema,
)
from odatapy.server import OData
from odatapy.server.adapters import ODataASGIApp
from odatapy.server.eval import evaluate_filter
from odatapy.server.inmemory import InMemoryDataStore, InMemoryProcessor
from odatapy.server.uri.parser import Parser
from starlette.types import ASGIApp, Receive, Scope, Send

from operator_dataverse.double.definitions import Table

__all__ = ["SecondOpinion"]

_NAMESPACE = "Example"


class _Provider(CsdlAbstractEdmProvider):
    def __init__(self, tables: list[Table]) -> None:
        types, sets = [], []
        for table in tables:
            properties = [CsdlProperty(c.name, c.edm, nullable=c.name != table.key) for c in table.columns.values()]
            types.append(CsdlEntityType(table.logical_name, properties, key=[CsdlPropertyRef(table.key)]))
            sets.append(CsdlEntitySet(table.entity_set, f"{_NAMESPACE}.{table.logical_name}"))
        container = CsdlEntityContainer("Container", entity_sets=sets)
        self._schemas = [CsdlSchema(_NAMESPACE, entity_types=types, entity_container=container)]

    def get_schemas(self) -> list[CsdlSchema]:
        return self._schemas


class SecondOpinion:
    """The service: rows in memory, with ETags; a write of a row without ``If-Match`` is answered by 428.

    Args:
        tables: What it has.
        definitions: Another application, which answers for ``EntityDefinitions``: that is Dataverse's own.
        root: Where the service begins.
    """

    def __init__(self, tables: list[Table], definitions: ASGIApp | None = None, root: str = "/api/data/v9.2") -> None:
        self._tables = {table.entity_set: table for table in tables}
        self._definitions = definitions
        self._root = root
        self.store = InMemoryDataStore()
        odata = OData.new_instance()
        metadata = odata.create_service_metadata(_Provider(tables))
        self._parser = Parser(metadata.edm)
        handler = odata.create_handler(metadata)
        handler.register(InMemoryProcessor(self.store))
        self._app = ODataASGIApp(handler, root)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._definitions is not None and scope["path"].startswith(f"{self._root}/EntityDefinitions"):
            return await self._definitions(scope, receive, send)
        await self._app(dict(scope), receive, send)

    def seed(self, entity_set: str, row_id: str, **values: Any) -> None:
        """Make a row that has an ETag."""
        self.store.data.setdefault(entity_set, []).append(self._entity(entity_set, row_id, values, 'W/"1"'))

    def finds(self, entity_set: str, filter_text: str, row_id: str, **values: Any) -> bool:
        """Whether a condition, as it is sent, holds for such a row."""
        from urllib.parse import quote

        asked = self._parser.parse_uri(entity_set, f"$filter={quote(filter_text)}")
        assert asked.filter is not None
        return evaluate_filter(self._entity(entity_set, row_id, values, None), asked.filter.expression)

    def _entity(self, entity_set: str, row_id: str, values: dict[str, Any], etag: str | None) -> Entity:
        table = self._tables[entity_set]
        every = dict.fromkeys(table.columns) | values | {table.key: UUID(row_id)}
        entity = Entity(type=f"{_NAMESPACE}.{table.logical_name}", etag=etag)
        for name, value in every.items():
            entity.properties.append(Property(name=name, value=value))
        return entity

"""The client of Dataverse's Web API: rows with versions, typed conditions, credentials, what columns there are."""

from operator_dataverse.client.credentials import AccessToken, Credential, StaticToken, open_credential
from operator_dataverse.client.dataverse import API, Dataverse
from operator_dataverse.client.fit import Fitted, clip_units, fit, units
from operator_dataverse.client.http import Answer, Http
from operator_dataverse.client.metadata import Column, TableInfo
from operator_dataverse.client.odata import Field, Filter, field
from operator_dataverse.client.owners import Owners
from operator_dataverse.client.row import Conflict, Row

__all__ = [
    "API",
    "AccessToken",
    "Answer",
    "Column",
    "Conflict",
    "Credential",
    "Dataverse",
    "Field",
    "Filter",
    "Fitted",
    "Http",
    "Owners",
    "Row",
    "StaticToken",
    "TableInfo",
    "clip_units",
    "field",
    "fit",
    "open_credential",
    "units",
]

"""The flows of Power Automate that belong to the product, as they are kept in ``definitions/``.

They hold nothing of any organisation: no address, no person, no connection. What they run on is added when they are
deployed, and stays as it is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from operator_core.errors import ConfigError

__all__ = ["NAMES", "Flow", "flow_named", "load_flows"]

NAMES = (
    "TaskRunner",
    "TaskProgressUpdater",
    "TaskCompleted",
    "TaskFailed",
    "TaskCanceled",
    "SendMessage",
    "CancelTask",
    "AnswerTask",
)
"""All of them."""


@dataclass(frozen=True)
class Flow:
    """One flow.

    Attributes:
        name: Also its display name in Power Automate.
        description: What it does, one sentence.
        connections: Names of the connectors that it uses, e.g. ``shared_teams``.
        definition: In the workflow definition language.
    """

    name: str
    description: str
    connections: tuple[str, ...]
    definition: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> Flow:
        """A flow from the JSON of its file.

        Raises:
            ConfigError: It is no JSON, or has other keys than the four.
        """
        try:
            data = json.loads(text)
            known = {"name", "description", "connections", "definition"}
            if not isinstance(data, dict) or set(data) != known or not isinstance(data["definition"], dict):
                raise ValueError("its keys must be " + ", ".join(sorted(known)))
            connections = tuple(str(name) for name in data["connections"])
            return cls(str(data["name"]), str(data["description"]), connections, data["definition"])
        except (ValueError, TypeError, RecursionError) as error:
            raise ConfigError(f"This is no definition of a flow ({error}); compare it with `flows export`.") from None

    def text(self) -> str:
        """The JSON of its file."""
        data = {
            "name": self.name,
            "description": self.description,
            "connections": list(self.connections),
            "definition": self.definition,
        }
        return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


@cache
def load_flows() -> Mapping[str, Flow]:
    """Name -> flow, in the order of :data:`NAMES`."""
    folder = files("operator_dataverse") / "flows" / "definitions"
    return {name: Flow.parse((folder / f"{name}.json").read_text(encoding="utf-8")) for name in NAMES}


def flow_named(name: str) -> Flow:
    """The flow of that name.

    Raises:
        ConfigError: There is none.
    """
    found = load_flows().get(name)
    if found is None:
        raise ConfigError(f"There is no flow {name!r}; the flows are {', '.join(NAMES)}.")
    return found

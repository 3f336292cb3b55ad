"""Finds what is wrong with a flow before it runs anywhere."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from operator_dataverse.flows.cards import card_problems
from operator_dataverse.flows.columns import (
    OWNER,
    SYSTEM_USERS,
    filter_problems,
    names_problems,
    order_problems,
    value_problem,
)
from operator_dataverse.flows.expressions import (
    columns_of_trigger,
    expressions,
    inputs_of_trigger,
    problems,
    references,
)
from operator_dataverse.flows.flow import Flow
from operator_dataverse.tables.schema import TableSpec, load_schemas

__all__ = ["flow_problems"]

_SCHEMA = "https://schema.management.azure.com/providers/Microsoft.Logic/schemas/2016-06-01/workflowdefinition.json#"
_DATAVERSE, _TEAMS = "shared_commondataserviceforapps", "shared_teams"
_API = "/providers/Microsoft.PowerApps/apis/"
_RESULTS = {"Succeeded", "Failed", "Skipped", "TimedOut"}
# Operation -> parameters that it cannot do without.
_OPERATIONS: Mapping[str, Mapping[str, frozenset[str]]] = {
    _DATAVERSE: {
        "SubscribeWebhookTrigger": frozenset(
            f"subscriptionRequest/{name}" for name in ("message", "entityname", "scope", "filterexpression")
        ),
        "GetItem": frozenset(("entityName", "recordId", "$select")),
        "ListRecords": frozenset(("entityName", "$select", "$filter", "$orderby", "$top")),
        "CreateRecord": frozenset(("entityName",)),
        "UpdateOnlyRecord": frozenset(("entityName", "recordId")),
    },
    _TEAMS: {
        "PostCardToConversation": frozenset(("poster", "location", "body/recipient", "body/messageBody")),
        "UpdateCardInConversation": frozenset(
            ("poster", "location", "body/recipient", "body/messageId", "body/messageBody")
        ),
        "PostCardAndWaitForResponse": frozenset(
            ("poster", "location", "body/body/recipient/to", "body/body/messageBody")
        ),
    },
}
_CONNECTED = ("OpenApiConnection", "OpenApiConnectionWebhook")
_TYPES = frozenset(
    (*_CONNECTED, "Compose", "If", "Until", "Select", "Query", "Wait", "InitializeVariable", "SetVariable", "Response")
)
# What happens twice must not be repeated by the platform on its own.
_NOT_TWICE = frozenset(("PostCardToConversation", "PostCardAndWaitForResponse", "CreateRecord"))
# An organisation, a person, an id: nothing of that belongs into a file of the product.
_SOMEBODYS = re.compile(
    r"[\w.+-]+@[\w-]+\.[a-z]{2,}|[\w-]+\.crm\d*\.dynamics\.com|[\w-]+\.sharepoint\.com"
    r"|\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b",
    re.IGNORECASE,
)


def flow_problems(flow: Flow) -> list[str]:
    """Everything that is wrong with a flow, one sentence each; none if it is good."""
    return [f"{flow.name}: {problem}" for problem in _Check(flow).run()]


class _Check:
    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.actions: dict[str, Mapping[str, Any]] = {}
        self.variables: set[str] = set()
        self.trigger_table: TableSpec | None = None
        self.inputs: set[str] = set()

    def run(self) -> Iterator[str]:
        definition = self.flow.definition
        if definition.get("$schema") != _SCHEMA or not definition.get("contentVersion"):
            yield "the definition has no $schema or contentVersion"
        triggers, actions = definition.get("triggers"), definition.get("actions")
        if not isinstance(triggers, dict) or len(triggers) != 1 or not isinstance(actions, dict) or not actions:
            yield "a flow has exactly one trigger, and actions"
            return
        if found := _SOMEBODYS.search(self.flow.text().replace(OWNER, "")):
            yield f"it names {found[0]!r}, which belongs to somebody"
        [(name, trigger)] = triggers.items()
        yield from self._trigger(name, trigger)
        yield from self._collect(actions)
        yield from self._scope(actions)
        yield from self._texts({"trigger": trigger, "actions": actions})
        used = {api for api in _OPERATIONS if f'"{api}"' in self.flow.text().partition('"definition"')[2]}
        if used != set(self.flow.connections):
            yield f"its connections are {', '.join(sorted(used)) or 'none'}, and it names others"

    def _trigger(self, name: str, trigger: Any) -> Iterator[str]:
        if not isinstance(trigger, dict):
            yield f"trigger {name} is no object"
        elif trigger.get("type") == "OpenApiConnectionWebhook":
            yield from self._connection(f"trigger {name}", trigger)
            parameters = _parameters(trigger)
            logical = parameters.get("subscriptionRequest/entityname")
            table = next((table for table in load_schemas().values() if table.logical_name == logical), None)
            if table is None:
                yield f"trigger {name}: there is no table {logical!r}"
                return
            self.trigger_table = table
            message = parameters.get("subscriptionRequest/message")
            attributes = str(parameters.get("subscriptionRequest/filteringattributes", ""))
            if message not in (1, 3):
                yield f"trigger {name}: it must be told of rows that are added (1) or of rows that change (3)"
            if message == 3 and not attributes:
                yield f"trigger {name}: without filteringattributes any change of a row starts it (D-60)"
            where = f"trigger {name}"
            yield from _at(where, names_problems(table, attributes))
            yield from _at(
                where, filter_problems(table, str(parameters.get("subscriptionRequest/filterexpression", "")))
            )
        elif trigger.get("type") == "Request" and trigger.get("kind") == "Skills":
            schema = _in(trigger, "inputs", "schema")
            self.inputs = set(_in(schema, "properties"))
            required = schema.get("required", [])
            if not isinstance(required, list) or not all(str(name) in self.inputs for name in required):
                yield f"trigger {name}: it requires an input that it does not have"
        else:
            yield f"trigger {name}: it is neither of a row nor of the bot"

    def _collect(self, actions: Mapping[str, Any]) -> Iterator[str]:
        """All actions by name, wherever they are; the names of a flow are unique."""
        for name, action in actions.items():
            if not isinstance(action, dict) or str(action.get("type")) not in _TYPES:
                yield f"{name}: it is of no known type"
                continue
            if name in self.actions:
                yield f"{name}: there are two of that name"
            self.actions[name] = action
            if action["type"] == "InitializeVariable":
                listed = _in(action, "inputs").get("variables")
                found = listed if isinstance(listed, list) else []
                self.variables |= {str(_in(variable).get("name")) for variable in found}
            for inner in _inner(action):
                yield from self._collect(inner)

    def _scope(self, actions: Mapping[str, Any]) -> Iterator[str]:
        after = {name: _in(action, "runAfter") for name, action in actions.items()}
        for name, others in after.items():
            for other, results in others.items():
                if other not in actions:
                    yield f"{name}: it runs after {other}, which is not beside it"
                if not isinstance(results, list) or not results or not all(str(r) in _RESULTS for r in results):
                    yield f"{name}: it runs after {other} with no known result"
        if circle := _circle(after):
            yield f"{circle}: it waits for itself"
        for name, action in actions.items():
            if name not in self.actions:
                continue
            if action["type"] in _CONNECTED:
                yield from self._connection(name, action)
                yield from self._rows(name, action)
            if action["type"] == "Until" and not {"count", "timeout"} <= set(_in(action, "limit")):
                yield f"{name}: it may go on for ever; give it a limit"
            if (
                action["type"] == "SetVariable"
                and (wanted := str(_in(action, "inputs").get("name"))) not in self.variables
            ):
                yield f"{name}: there is no variable {wanted!r}"
            if action["type"] == "Compose":
                yield from _at(name, card_problems(action.get("inputs")))
            for inner in _inner(action):
                yield from self._scope(inner)

    def _connection(self, name: str, action: Mapping[str, Any]) -> Iterator[str]:
        host = _in(action, "inputs", "host")
        connector, operation = host.get("connectionName"), host.get("operationId")
        if connector not in self.flow.connections or host.get("apiId") != f"{_API}{connector}":
            yield f"{name}: {connector!r} is none of its connections"
            return
        wanted = _OPERATIONS.get(str(connector), {}).get(str(operation))
        if wanted is None:
            more = "; it would make a row that is not there" if operation == "UpdateRecord" else ""
            yield f"{name}: {operation!r} is not used here{more}"
            return
        for missing in sorted(wanted - set(_parameters(action))):
            yield f"{name}: {operation} needs {missing!r}"
        if operation in _NOT_TWICE and _in(action, "inputs").get("retryPolicy") != {"type": "none"}:
            yield f"{name}: a repetition by the platform would do it twice; its retryPolicy must be none"
        for key, value in _parameters(action).items():
            if key.endswith("messageBody") and not re.fullmatch(r"@string\(outputs\('[^']+'\)\)", str(value)):
                yield f"{name}: a card is made by a Compose, so that no text can break out of its JSON"

    def _rows(self, name: str, action: Mapping[str, Any]) -> Iterator[str]:
        parameters = _parameters(action)
        if "entityName" not in parameters:
            return
        known = {SYSTEM_USERS.entity_set: SYSTEM_USERS, **load_schemas()}
        table = known.get(str(parameters["entityName"]))
        if table is None:
            yield f"{name}: there is no table {parameters['entityName']!r}"
            return
        yield from _at(name, names_problems(table, str(parameters.get("$select", ""))))
        if "$filter" in parameters:
            yield from _at(name, filter_problems(table, str(parameters["$filter"])))
        if "$orderby" in parameters:
            yield from _at(name, order_problems(table, str(parameters["$orderby"])))
        for key, value in parameters.items():
            if key.startswith("item/") and (problem := value_problem(table, key.removeprefix("item/"), value)):
                yield f"{name}: {problem}"

    def _texts(self, node: Any, where: str = "") -> Iterator[str]:
        """Every expression, wherever it is."""
        if isinstance(node, dict):
            for key, value in node.items():
                yield from self._texts(value, key if key in self.actions else where)
        elif isinstance(node, list):
            for value in node:
                yield from self._texts(value, where)
        elif isinstance(node, str):
            for expression in expressions(node):
                yield from _at(where, self._expression(expression))

    def _expression(self, expression: str) -> Iterator[str]:
        yield from problems(expression)
        for kind, name in references(expression):
            known = {"variables": self.variables, "parameters": _in(self.flow.definition, "parameters")}
            if name not in known.get(kind, self.actions):
                yield f"{kind}('{name}') is of nothing in this flow"
        for name in inputs_of_trigger(expression):
            if name not in self.inputs:
                yield f"its trigger has no input {name!r}"
        columns = columns_of_trigger(expression)
        if columns and self.trigger_table is None:
            yield "its trigger has no row"
        elif self.trigger_table is not None:
            yield from names_problems(self.trigger_table, ",".join(columns))


def _at(where: str, found: Iterator[str]) -> Iterator[str]:
    yield from (f"{where}: {problem}" if where else problem for problem in found)


def _parameters(action: Mapping[str, Any]) -> Mapping[str, Any]:
    return _in(action, "inputs", "parameters")


def _in(node: Any, *keys: str) -> Mapping[str, Any]:
    """What is there below these keys, if it is an object; else an empty one."""
    for key in keys:
        node = node.get(key) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else {}


def _inner(action: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for part in (action, _in(action, "else")):
        yield _in(part, "actions")


def _circle(after: Mapping[str, Mapping[str, Any]]) -> str | None:
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> str | None:
        if name in path:
            return name
        if name in done:
            return None
        done.add(name)
        return next((found for other in after.get(name, {}) if (found := visit(other, (*path, name)))), None)

    return next((found for name in after if (found := visit(name, ()))), None)

"""Runs our flows as Power Automate would, on the Dataverse double and a chat that is only a list.

This is a second opinion on the definitions, not a part of the product: it reads the same JSON as Power Automate, knows
the functions and operations that our flows use, and stops at any other. Waiting costs no time.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

import httpx2

from operator_dataverse.double import Double
from operator_dataverse.flows import Flow

__all__ = ["Chat", "FlowRun", "run_flow"]

_TOKEN = re.compile(r"\s*('(?:[^']|'')*'|-?\d+(?:\.\d+)?|\?\[|[A-Za-z_][A-Za-z0-9_]*|[()\[\],])")


@dataclass
class Chat:
    """The chat of the flow bot.

    Attributes:
        messages: Message id -> the card that it shows now.
        posted: To whom each message went, in order.
        answer: What a person does with a card that asks: it is called with the card, and returns what is submitted and
            the address of who does it.
    """

    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    posted: list[str] = field(default_factory=list)
    answer: Callable[[dict[str, Any]], tuple[dict[str, Any], str]] | None = None

    @property
    def only_card(self) -> dict[str, Any]:
        """The one card in the chat."""
        [card] = self.messages.values()
        return card


@dataclass
class FlowRun:
    """One run: the outcome of each action that was reached, and what was responded."""

    results: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    response: dict[str, Any] | None = None
    pauses: int = 0
    on_pause: Callable[[int], object] | None = None


class _Failed(Exception):
    """An action failed, as actions of flows do."""


def run_flow(
    flow: Flow,
    double: Double,
    chat: Chat,
    trigger: Mapping[str, Any],
    token: str = "",
    *,
    on_pause: Callable[[int], object] | None = None,
) -> FlowRun:
    """Run a flow to its end.

    Args:
        flow: The flow.
        double: The organisation; all requests go to it over HTTP.
        chat: Where its cards go.
        trigger: The row or the inputs that start it.
        token: Of the owner of the flow; default: the administrator's.
        on_pause: Called with the number of each pause, so that somebody else can do something meanwhile.
    """
    run = FlowRun(on_pause=on_pause)
    headers = {"Authorization": f"Bearer {token or double.token}", "Prefer": "return=representation"}
    with httpx2.Client(base_url=f"{double.url}/api/data/v9.2/", headers=headers, timeout=10) as web:
        _Engine(flow, run, web, chat, dict(trigger)).scope(flow.definition["actions"])
    return run


class _Engine:
    def __init__(self, flow: Flow, run: FlowRun, web: httpx2.Client, chat: Chat, trigger: dict[str, Any]) -> None:
        self.flow, self.state, self.web, self.chat, self.trigger = flow, run, web, chat, trigger
        self.items: list[Any] = []

    def scope(self, actions: Mapping[str, Any]) -> bool:
        """Run the actions of one scope in the order of their dependencies; whether none failed unhandled."""
        waiting = dict(actions)
        results: dict[str, str] = {}
        while waiting:
            name = next(name for name, action in waiting.items() if set(action["runAfter"]) <= set(results))
            action = waiting.pop(name)
            wanted = all(results[other] in states for other, states in action["runAfter"].items())
            # What did not succeed has outputs too, with nothing in them that a flow looks for.
            self.state.outputs[name] = None
            results[name] = self._one(name, action) if wanted else "Skipped"
            self.state.results[name] = results[name]
        handled = {other for action in actions.values() for other, s in action["runAfter"].items() if "Failed" in s}
        return not [name for name, result in results.items() if result == "Failed" and name not in handled]

    def _one(self, name: str, action: Mapping[str, Any]) -> str:
        try:
            self.state.outputs[name] = self._act(name, action)
        except _Failed:
            return "Failed"
        return "Succeeded"

    def _act(self, name: str, action: Mapping[str, Any]) -> Any:
        inputs = action.get("inputs", {})
        match action["type"]:
            case "Compose":
                return self._value(inputs)
            case "InitializeVariable":
                for variable in inputs["variables"]:
                    self.state.variables[variable["name"]] = self._value(variable["value"])
            case "SetVariable":
                self.state.variables[inputs["name"]] = self._value(inputs["value"])
            case "Wait":
                self.state.pauses += 1
                if self.state.on_pause:
                    self.state.on_pause(self.state.pauses)
            case "If":
                chosen = action["actions"] if self._condition(action["expression"]) else action["else"]["actions"]
                if not self.scope(chosen):
                    raise _Failed
            case "Until":
                for _ in range(action["limit"]["count"]):
                    if not self.scope(action["actions"]):
                        raise _Failed
                    if self._value(action["expression"]) is True:
                        break
            case "Select":
                return {"body": [self._with(item, inputs["select"]) for item in self._value(inputs["from"])]}
            case "Query":
                return {"body": [i for i in self._value(inputs["from"]) if self._with(i, inputs["where"]) is True]}
            case "Response":
                self.state.response = self._value(inputs["body"])
            case "OpenApiConnection" | "OpenApiConnectionWebhook":
                parameters = self._value(inputs["parameters"])
                return {"body": getattr(self, f"_do_{inputs['host']['operationId']}")(parameters)}
            case other:
                _stop(f"{name} is a {other}")
        return None

    def _with(self, item: Any, template: Any) -> Any:
        self.items.append(item)
        try:
            return self._value(template)
        finally:
            self.items.pop()

    # --- Dataverse

    def _do_GetItem(self, p: dict[str, Any]) -> Any:
        return self._web("GET", f"{p['entityName']}({p['recordId']})", params={"$select": p["$select"]})

    def _do_ListRecords(self, p: dict[str, Any]) -> Any:
        query = {key: str(value) for key, value in p.items() if key.startswith("$")}
        return self._web("GET", p["entityName"], params=query)

    def _do_CreateRecord(self, p: dict[str, Any]) -> Any:
        return self._web("POST", p["entityName"], json=_item(p))

    def _do_UpdateOnlyRecord(self, p: dict[str, Any]) -> Any:
        address = f"{p['entityName']}({p['recordId']})"
        return self._web("PATCH", address, json=_item(p), headers={"If-Match": "*"})

    def _web(self, method: str, address: str, **more: Any) -> Any:
        answer = self.web.request(method, address, **more)
        if answer.status_code >= 400:
            raise _Failed(answer.text)
        return answer.json()

    # --- Teams

    def _do_PostCardToConversation(self, p: dict[str, Any]) -> Any:
        return self._post(p["body/recipient"], p["body/messageBody"])

    def _do_UpdateCardInConversation(self, p: dict[str, Any]) -> Any:
        if p["body/messageId"] not in self.chat.messages:
            raise _Failed("no such message")
        self.chat.messages[p["body/messageId"]] = json.loads(p["body/messageBody"])
        return {}

    def _do_PostCardAndWaitForResponse(self, p: dict[str, Any]) -> Any:
        posted = self._post(p["body/body/recipient/to"], p["body/body/messageBody"])
        assert self.chat.answer is not None, "nobody answers"
        data, who = self.chat.answer(self.chat.messages[posted["id"]])
        return {"data": data, "responder": {"userPrincipalName": who}, "messageId": posted["id"]}

    def _post(self, recipient: str, text: str) -> dict[str, Any]:
        message = str(uuid.uuid5(uuid.NAMESPACE_URL, f"{len(self.chat.posted)}/{text}"))
        self.chat.messages[message] = json.loads(text)
        self.chat.posted.append(recipient)
        return {"id": message, "conversationId": f"chat of {recipient}", "messageLink": "https://teams.example.com/x"}

    # --- conditions and expressions

    def _condition(self, node: Mapping[str, Any]) -> bool:
        [(name, arguments)] = node.items()
        if name in ("and", "or"):
            return (all if name == "and" else any)(self._condition(part) for part in arguments)
        if name == "not":
            return not self._condition(arguments)
        left, right = (self._value(part) for part in arguments)
        return bool(_FUNCTIONS[name](left, right))

    def _value(self, node: Any) -> Any:
        if isinstance(node, dict):
            return {key: self._value(value) for key, value in node.items()}
        if isinstance(node, list):
            return [self._value(value) for value in node]
        if not isinstance(node, str):
            return node
        if node.startswith("@") and not node.startswith(("@@", "@{")):
            return self._evaluate(node[1:])
        out, at = "", 0
        while (begin := node.find("@{", at)) >= 0:
            end = _closing(node, begin + 1)
            out += node[at:begin] + _words(self._evaluate(node[begin + 2 : end]))
            at = end + 1
        return out + node[at:]

    def _evaluate(self, expression: str) -> Any:
        tokens, at = [], 0
        while at < len(expression.rstrip()):
            found = _TOKEN.match(expression, at) or _stop(f"{expression!r} at {at}")
            tokens.append(found[1])
            at = found.end()
        value, rest = self._parse(tokens)
        assert not rest, (expression, rest)
        return value

    def _parse(self, tokens: list[str]) -> tuple[Any, list[str]]:
        head, rest = tokens[0], tokens[1:]
        if head.startswith("'"):
            value: Any = head[1:-1].replace("''", "'")
        elif head[0].isdigit() or head[0] == "-":
            value = int(head)
        elif head == "null":
            value = None
        else:
            assert rest[0] == "(", tokens
            rest, arguments = rest[1:], []
            while rest[0] != ")":
                # All arguments are evaluated, also the branch of an `if` that is not chosen, as there.
                argument, rest = self._parse(rest)
                arguments.append(argument)
                rest = rest[1:] if rest[0] == "," else rest
            rest, value = rest[1:], self._call(head, arguments)
        while rest and rest[0] in ("[", "?["):
            soft = rest[0] == "?["
            key, rest = self._parse(rest[1:])
            assert rest[0] == "]"
            rest = rest[1:]
            value = _member(value, key, soft)
        return value, rest

    def _call(self, name: str, arguments: list[Any]) -> Any:
        match name, arguments:
            case "outputs", [action]:
                found = self.state.outputs[action]
                return _flat(found) if isinstance(found, dict) and set(found) == {"body"} else found
            case "body", [action]:
                return self.state.outputs[action]["body"]
            case "variables", [variable]:
                return self.state.variables[variable]
            case "triggerBody", []:
                return self.trigger
            case "triggerOutputs", []:
                return _flat({"body": self.trigger})
            case "item", []:
                return self.items[-1]
        try:
            return _FUNCTIONS[name](*arguments)
        except (TypeError, AttributeError, IndexError):
            raise _Failed(f"{name}{arguments!r}") from None


_FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "and": lambda *parts: all(parts),
    "or": lambda *parts: any(parts),
    "not": lambda part: not part,
    "coalesce": lambda *parts: next((part for part in parts if part is not None), None),
    "concat": lambda *parts: "".join(_words(part) for part in parts),
    "empty": lambda part: part is None or len(part) == 0,
    "equals": lambda left, right: left == right,
    "first": lambda part: part[0] if part else None,
    "greater": lambda left, right: left > right,
    "greaterOrEquals": lambda left, right: left >= right,
    "if": lambda condition, yes, no: yes if condition else no,
    "json": json.loads,
    "length": len,
    "min": min,
    "replace": lambda text, old, new: text.replace(old, new),
    "reverse": lambda part: part[::-1],
    "startsWith": lambda text, begin: text.lower().startswith(begin.lower()),
    "string": lambda part: part if isinstance(part, str) else json.dumps(part),
    "substring": lambda text, begin, count: text[begin : begin + count],
    "toLower": lambda text: text.lower(),
    "trim": lambda text: text.strip(),
}


def _item(parameters: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("item/"): value for key, value in parameters.items() if key.startswith("item/")}


def _flat(outputs: dict[str, Any]) -> dict[str, Any]:
    body = outputs["body"] if isinstance(outputs["body"], dict) else {}
    return {**outputs, **{f"body/{key}": value for key, value in body.items()}}


def _member(value: Any, key: Any, soft: bool) -> Any:
    if isinstance(value, dict) and (soft or key in value):
        return value.get(key)
    if isinstance(value, list) and isinstance(key, int) and key < len(value):
        return value[key]
    if value is None and soft:
        return None
    raise _Failed(f"no {key!r}")


def _words(value: Any) -> str:
    return "" if value is None else value if isinstance(value, str) else json.dumps(value)


def _closing(text: str, at: int) -> int:
    depth, quoted = 0, False
    for place in range(at, len(text)):
        quoted ^= text[place] == "'"
        if not quoted and text[place] in "{}":
            depth += 1 if text[place] == "{" else -1
            if depth == 0:
                return place
    _stop(text)


def _stop(what: str) -> NoReturn:
    raise AssertionError(f"this runner does not know: {what}")

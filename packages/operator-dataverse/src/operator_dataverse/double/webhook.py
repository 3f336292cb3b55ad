"""A workflow webhook of Teams: takes messages with cards, looks whether Teams would show them, and keeps them."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from operator_dataverse.double.front import body_of, json_object
from operator_dataverse.double.history import Request as Noted
from operator_dataverse.double.problems import Problem
from operator_dataverse.double.store import Account

__all__ = ["Webhook", "card_problem", "texts_of"]

MAX_BYTES = 28 * 1024
"""Of one message; Teams refuses longer ones."""

_CARD = "application/vnd.microsoft.card.adaptive"
# Element -> what it must have, and of which type. What is not named here Teams may not show.
_ELEMENTS: Mapping[str, Mapping[str, type]] = {
    "TextBlock": {"text": str},
    "RichTextBlock": {"inlines": list},
    "Container": {"items": list},
    "ColumnSet": {"columns": list},
    "FactSet": {"facts": list},
    "Image": {"url": str},
    "ActionSet": {"actions": list},
    "Input.Text": {"id": str},
    "Input.ChoiceSet": {"id": str, "choices": list},
    "Input.Toggle": {"id": str, "title": str},
    "Table": {"rows": list},
    "Column": {},
    "TextRun": {"text": str},
}
_ACTIONS: Mapping[str, Mapping[str, type]] = {
    "Action.OpenUrl": {"url": str, "title": str},
    "Action.Submit": {"title": str},
    "Action.Execute": {"title": str},
    "Action.ShowCard": {"card": dict, "title": str},
    "Action.ToggleVisibility": {"targetElements": list},
}


class Webhook:
    """The webhook; its path ends with a word that nobody can guess.

    Attributes:
        cards: What was posted and could be shown, in order.
        refused: Why others were not.
        key: The last part of its address.
    """

    open = True

    def __init__(self) -> None:
        self.key = secrets.token_urlsafe(12)
        self.cards: list[dict[str, Any]] = []
        self.refused: list[str] = []

    def answer(self, request: Request, path: str, account: Account | None, noted: Noted, raw: bytes) -> Response:
        """Answer one request; see :class:`operator_dataverse.double.front.Service`."""
        if path != self.key:
            raise Problem(404, "WorkflowNotFound", "The workflow could not be found.")
        if request.method != "POST":
            raise Problem(405, "MethodNotAllowed", "Post a message here.")
        if len(raw) > MAX_BYTES:
            self.refused.append(f"{len(raw)} bytes")
            raise Problem(413, "MessageSizeTooBig", f"A message has at most {MAX_BYTES} bytes.")
        noted.body = body_of(request, raw)
        message = json_object(noted.body)
        problem, cards = _cards_of(message)
        if problem:
            self.refused.append(problem)
            raise Problem(400, "InvalidCard", problem)
        self.cards += cards
        return Response(status_code=202)


def _cards_of(message: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    attachments = message.get("attachments")
    if message.get("type") != "message" or not isinstance(attachments, list) or not attachments:
        return "it is no message with attachments", []
    cards = []
    for attachment in attachments:
        if not isinstance(attachment, dict) or attachment.get("contentType") != _CARD:
            return "an attachment is no adaptive card", []
        card = attachment.get("content")
        if not isinstance(card, dict) or (problem := card_problem(card)):
            return (problem if isinstance(card, dict) else "an attachment has no card"), []
        cards.append(json.loads(json.dumps(card)))
    return "", cards


def card_problem(card: Mapping[str, Any]) -> str:
    """Why Teams would not show this card; empty: it would."""
    if card.get("type") != "AdaptiveCard":
        return "its type is not AdaptiveCard"
    version = card.get("version")
    if version not in ("1.0", "1.1", "1.2", "1.3", "1.4", "1.5"):
        return f"version {version!r} is not shown by Teams"
    if not isinstance(card.get("body"), list):
        return "it has no body"
    ids: set[str] = set()
    for element in card["body"]:
        if problem := _element_problem(element, _ELEMENTS, ids):
            return problem
    for action in card.get("actions", []):
        if problem := _element_problem(action, _ACTIONS, ids):
            return problem
    return ""


def _element_problem(element: Any, known: Mapping[str, Mapping[str, type]], ids: set[str]) -> str:
    if not isinstance(element, dict):
        return "an element is no object"
    kind = element.get("type")
    if not isinstance(kind, str) or kind not in known:
        return f"there is no element {kind!r}"
    for name, wanted in known[kind].items():
        if not isinstance(element.get(name), wanted):
            return f"{kind} needs {name!r}"
    if element.get("id") in ids:
        return f"the id {element['id']!r} is there twice"
    if "id" in element:
        ids.add(element["id"])
    url = element.get("url")
    if url is not None and not str(url).startswith(("https://", "http://", "data:image/")):
        return f"{kind} goes to {str(url)[:40]!r}"
    if kind == "Action.ShowCard" and (problem := card_problem({"version": "1.5", "body": [], **element["card"]})):
        return problem
    inner = [(name, _ELEMENTS) for name in ("items", "columns", "inlines")] + [("actions", _ACTIONS)]
    for name, kinds in inner:
        for part in element.get(name, []):
            if isinstance(part, str) and name == "inlines":
                continue
            part = {"type": "Column", **part} if name == "columns" and isinstance(part, dict) else part
            if problem := _element_problem(part, kinds, ids):
                return problem
    for fact in element.get("facts", []):
        if not isinstance(fact, dict) or not {"title", "value"} <= fact.keys():
            return "a fact needs 'title' and 'value'"
    return ""


def texts_of(card: Mapping[str, Any]) -> Iterator[str]:
    """What people read on a card, top to bottom."""
    for name in ("body", "items", "columns", "facts", "inlines", "actions"):
        for element in card.get(name, []):
            if isinstance(element, str):
                yield element
                continue
            if "value" in element and "title" in element:
                yield f"{element['title']}: {element['value']}"
            elif text := element.get("text") or element.get("title") or element.get("placeholder"):
                yield str(text)
            yield from texts_of(element)
            if "card" in element:
                yield from texts_of(element["card"])

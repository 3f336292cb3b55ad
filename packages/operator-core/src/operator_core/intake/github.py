"""Issues of GitHub that carry a label become tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from operator_core.errors import IntakeRefused
from operator_core.intake.items import Asked, Delivery, Ignored, Item, Observed, harmless_labels, one_line
from operator_core.model.intake import GithubRepository, GithubRules
from operator_core.model.task import MAX_PROMPT
from operator_core.text import clip

__all__ = ["read_github"]

_DELIVERY = re.compile(r"[0-9A-Za-z-]{8,128}\Z")
_FORM = "nothing of it was taken"


def read_github(rules: GithubRules, headers: Mapping[str, str], document: Any) -> Delivery:
    """What a delivery says.

    Args:
        headers: Names in lower case.

    Raises:
        IntakeRefused: It is not of GitHub's form.
    """
    number = headers.get("x-github-delivery", "")
    event = headers.get("x-github-event", "")
    if not _DELIVERY.match(number) or not event:
        raise IntakeRefused(422, f"The headers X-GitHub-Event and X-GitHub-Delivery are not GitHub's; {_FORM}.")
    if not isinstance(document, dict):
        raise IntakeRefused(422, f"The body is no event of GitHub; {_FORM}.")
    if event == "ping":
        return Delivery((), delivery_id=number, note="pong")
    if event != "issues":
        return Delivery((Ignored(f"events {one_line(event, 40)!r} are not used, only `issues`"),), delivery_id=number)
    return Delivery((_item(rules, document),), delivery_id=number)


def _item(rules: GithubRules, document: dict[str, Any]) -> Item:
    action = _word(document, "action")
    name = _word(document, "repository", "full_name")
    repository = next((r for r in rules.repository if r.name.casefold() == name.casefold()), None)
    if repository is None:
        return Ignored("the repository is not configured")
    issue = _at(document, "issue", dict)
    number = issue.get("number")
    if type(number) is not int or not 0 < number < 2**53:
        raise IntakeRefused(422, f"The issue has no number; {_FORM}.")
    key = f"{repository.name.casefold()}#{number}"
    if action == "closed":
        return Observed(key, "issue closed", _optional(issue, "closed_at") or None, {"by": _login(document, "sender")})
    if action == "opened":
        labels = [label.get("name") for label in issue.get("labels") or [] if isinstance(label, dict)]
        carries = any(isinstance(label, str) and label.casefold() == rules.label.casefold() for label in labels)
        own = True
    elif action == "labeled":
        carries = _word(document, "label", "name").casefold() == rules.label.casefold()
        own = _login(document, "sender") == _login(issue, "user")
    else:
        return Ignored(f"the action {one_line(action, 40)!r} asks for nothing")
    if not carries:
        return Ignored(f"it does not carry the label {rules.label!r}")
    if own and _optional(issue, "author_association") not in rules.trusted:
        return Ignored("its author is not trusted to label it; somebody else has to")
    if "pull_request" in issue:
        return Ignored("it is a pull request")
    return _asked(repository, issue, number, key)


def _asked(repository: GithubRepository, issue: dict[str, Any], number: int, key: str) -> Asked:
    title = one_line(_optional(issue, "title"), 300) or f"Issue {number}"
    where = f"https://github.com/{repository.name}/issues/{number}"
    if repository.url is not None:
        where = one_line(_optional(issue, "html_url"), 500) or where
    body = _optional(issue, "body").strip()
    prompt = f"{title}\n\n{body}\n\n" if body else f"{title}\n\n"
    end = f"(Issue #{number} of {repository.name}, {where}, by {_login(issue, 'user') or 'somebody'})\n"
    return Asked(
        key,
        clip(prompt, MAX_PROMPT - len(end)) + end,
        repository,
        name=f"{repository.name.partition('/')[2]}#{number} {title}",
        repo=repository.url or f"https://github.com/{repository.name}.git",
        ref=repository.ref,
        labels=harmless_labels({"repository": repository.name, "issue": str(number)}),
    )


def _at(document: dict[str, Any], name: str, kind: type[Any]) -> Any:
    value = document.get(name)
    if not isinstance(value, kind):
        raise IntakeRefused(422, f"The event has no {name!r} as GitHub sends it; {_FORM}.")
    return value


def _word(document: dict[str, Any], *path: str) -> str:
    for name in path[:-1]:
        document = _at(document, name, dict)
    word: str = _at(document, path[-1], str)
    return word


def _optional(thing: dict[str, Any], name: str) -> str:
    value = thing.get(name)
    return value if isinstance(value, str) else ""


def _login(thing: dict[str, Any], name: str) -> str:
    person = thing.get(name)
    return one_line(_optional(person, "login"), 100) if isinstance(person, dict) else ""

"""The bot's topic: what it is, and whether it fits the flow that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any
from uuid import UUID

from operator_core.errors import ConfigError
from operator_dataverse.flows.flow import Flow

__all__ = ["PLACEHOLDER", "topic_problems", "topic_text"]

PLACEHOLDER = "FLOW_ID"
"""What stands for the id of the flow in the file."""


def topic_text(flow_id: str | None = None) -> str:
    """The topic.

    Args:
        flow_id: Of the flow ``SendMessage`` in the organisation; None: the placeholder stays.

    Raises:
        ConfigError: That is no id.
    """
    text = (files("operator_dataverse") / "bot" / "topic.yaml").read_text(encoding="utf-8")
    if flow_id is None:
        return text
    try:
        wanted = str(UUID(flow_id))
    except ValueError:
        raise ConfigError("The id of a flow is a GUID; `operator-dataverse flows list` shows it.") from None
    return text.replace(f"flowId: {PLACEHOLDER}", f"flowId: {wanted}")


def topic_problems(text: str, flow: Flow) -> list[str]:
    """What is wrong with a topic; none if it is good.

    Args:
        text: YAML.
        flow: The flow that it calls.
    """
    import yaml

    try:
        topic = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return [f"it is no YAML: {str(error).splitlines()[0]}"]
    if not isinstance(topic, dict) or topic.get("kind") != "AdaptiveDialog":
        return ["it is no AdaptiveDialog"]
    begin = topic.get("beginDialog")
    if not isinstance(begin, dict) or begin.get("kind") != "OnUnknownIntent":
        return ["it does not begin when the bot knows nothing else (OnUnknownIntent)"]
    return list(_problems(begin, flow))


def _problems(begin: Mapping[str, Any], flow: Flow) -> Iterator[str]:
    nodes = list(_nodes(begin.get("actions")))
    ids = [node.get("id") for node in nodes]
    for twice in sorted({str(one) for one in ids if one is None or ids.count(one) > 1}):
        yield f"the id {twice!r} must be there, once"
    calls = [node for node in nodes if node.get("kind") == "InvokeFlowAction"]
    if len(calls) != 1:
        yield "it calls the flow exactly once"
    [(_, trigger)] = flow.definition["triggers"].items()
    wanted = set(trigger["inputs"]["schema"]["properties"])
    [outputs] = [a["inputs"]["body"] for a in flow.definition["actions"].values() if a["type"] == "Response"]
    for call in calls:
        given = set(call.get("input", {}).get("binding", {}))
        if given != wanted:
            yield f"it gives the flow {', '.join(sorted(given))}, and that wants {', '.join(sorted(wanted))}"
        if taken := set(call.get("output", {}).get("binding", {})) - set(outputs):
            yield f"the flow has no output {', '.join(sorted(taken))}"
        who = str(call.get("input", {}).get("binding", {}).get("userEmail", ""))
        if not who.startswith("=System.User."):
            yield "who speaks is what the platform says (System.User), never what was said"
    for node in nodes:
        if node.get("kind") == "GotoAction" and node.get("actionId") not in ids:
            yield f"there is no action {node.get('actionId')!r} to go to"


def _nodes(actions: Any) -> Iterator[Mapping[str, Any]]:
    for action in actions if isinstance(actions, list) else ():
        if isinstance(action, dict):
            yield action
            for condition in action.get("conditions") or ():
                yield from _nodes(condition.get("actions") if isinstance(condition, dict) else None)
            yield from _nodes(action.get("elseActions"))

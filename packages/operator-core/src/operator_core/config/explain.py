"""What is wrong with a configuration, in one sentence: which key, where it was set, and what would be right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from operator_core.config.extension import extension_models
from operator_core.config.model import Price
from operator_core.config.sandbox import Credential
from operator_core.config.settings import Settings
from operator_core.config.work import BlockedPattern
from operator_core.model.approval import ApprovalRule
from operator_core.model.intake import (
    AlertRules,
    GithubRepository,
    GithubRules,
    IncidentWords,
    Intake,
    TaskWords,
    WebhookRules,
)
from operator_core.model.invariant import (
    CommandProbe,
    Durability,
    HttpProbe,
    Invariant,
    PromQLProbe,
    Protect,
    Subject,
    TcpProbe,
)
from operator_core.model.mcp import McpServer
from operator_core.model.notification import Channel, DigestPlan, NotifyRule

__all__ = ["explain"]


def explain(
    error: ValidationError, data: Mapping[str, Any], file: Path | None, origins: Mapping[str, str], section: str = ""
) -> str:
    """One sentence about the first thing that a validation found wrong.

    Args:
        error: What the validation said.
        data: What was validated.
        file: The file that was read, if any.
        origins: Where each key came from (:class:`LoadedSettings`).
        section: The section that ``error`` is about; empty: all of them, whose name then stands in the error.
    """
    first = error.errors()[0]
    full = (section, *first["loc"]) if section else first["loc"]
    # After a probe stands its type, which is no key.
    loc = [part for i, part in enumerate(full) if i == 0 or full[i - 1] != "probe"]
    source = origins.get(".".join(map(str, loc))) or (str(file) if file else "the environment")
    where = _place(loc, data)
    if first["type"] == "extra_forbidden":
        known = _known(full[:-1])
        near = get_close_matches(str(loc[-1]), known, 1)
        rest = f"perhaps '{near[0]}' is meant." if near else f"known here: {', '.join(known)}."
        return f"Unknown key '{where}' in {source}; {rest}"
    if first["type"] == "missing":
        return f"The key '{where}' is missing in {source}."
    if first["type"] == "tuple_type" and len(full) == 1 and isinstance(data.get(str(full[0])), dict):
        return f"'{where}' in {source} is a list of tables; write its head as [[{where}]]."
    what = f"Bad value for '{where}' in" if where else "Bad configuration in"
    return f"{what} {source}: {first['msg'].removeprefix('Value error, ')}."


def _place(loc: Sequence[int | str], data: Any) -> str:
    """Dotted keys; an item of a list is called by its name, or by its number from 1."""
    words = ""
    for part in loc:
        try:
            data = data[part]
        except (KeyError, IndexError, TypeError):
            data = None
        if isinstance(part, int):
            name = data.get("name") if isinstance(data, dict) else None
            words += f"[{name if isinstance(name, str) else part + 1}]"
        else:
            words += f".{part}" if words else part
    return words


def _known(loc: Sequence[int | str]) -> list[str]:
    """The keys that the innermost of these tables may have."""
    tables: dict[int | str, Any] = {name: field.annotation for name, field in Settings.model_fields.items()}
    tables |= {"credential": Credential, "blocked": BlockedPattern}
    tables |= {"prices": Price, "subject": Subject, "invariant": Invariant, "durability": Durability}
    tables |= {"protect": Protect, "http": HttpProbe, "tcp": TcpProbe, "command": CommandProbe, "promql": PromQLProbe}
    tables |= {"intake": Intake, "mcp_server": McpServer, "channel": Channel, "digest": DigestPlan}
    tables |= {"alertmanager": AlertRules, "webhook": WebhookRules, "incident": IncidentWords, "task": TaskWords}
    tables |= {"github": GithubRules, "repository": GithubRepository}
    tables |= {"rule": ApprovalRule if "approvals" in loc else NotifyRule}
    tables |= dict(extension_models().items())
    model = next((tables[part] for part in reversed(loc) if part in tables), Settings)
    return list(model.model_fields) if loc else [*model.model_fields, *extension_models()]

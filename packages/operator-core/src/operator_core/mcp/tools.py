"""The tools: what each of them takes, does and may."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from operator_core.api.protocol import Api
from operator_core.errors import ConfigError
from operator_core.mcp.asked import (
    Asked,
    AuditAsked,
    CancelAsked,
    ListAsked,
    ReplyAsked,
    ReportAsked,
    ShowAsked,
    SubmitAsked,
)
from operator_core.mcp.telling import Answer, tell_audit, tell_list, tell_report, tell_ticket
from operator_core.text import clip, printable
from operator_core.work.repository.origin import is_remote

__all__ = ["TOOLS", "McpTool"]


class McpTool(NamedTuple):
    """One tool.

    Attributes:
        about: For the model.
        takes: Its arguments.
        run: Does it.
        writes: Whether it changes something.
        destroys: Whether what it changes cannot be had back.
    """

    name: str
    about: str
    takes: type[Asked]
    run: Callable[[Api, Any], Awaitable[Answer]]
    writes: bool = False
    destroys: bool = False


async def _list(api: Api, asked: ListAsked) -> Answer:
    page = await api.tickets(
        status=[status.value for status in asked.status],
        kind=asked.kind,
        severity=asked.severity,
        needs_me=asked.needs_me,
        search=asked.search,
        order=asked.order,
        limit=asked.limit,
        cursor=asked.cursor,
    )
    return tell_list(page)


async def _show(api: Api, asked: ShowAsked) -> Answer:
    return tell_ticket(await api.ticket(asked.ticket_id), texts=asked.include_agent_text)


async def _report(api: Api, asked: ReportAsked) -> Answer:
    report = await api.report(asked.ticket_id)
    return tell_report(await api.ticket(asked.ticket_id), report, texts=asked.include_agent_text)


async def _audit(api: Api, asked: AuditAsked) -> Answer:
    return tell_audit(await api.audit(session_id=asked.session_id))


async def _submit(api: Api, asked: SubmitAsked) -> Answer:
    # Also where the token is an administrator's: whoever steers a model must not read folders of the server with it.
    if asked.repo is not None and (not is_remote(asked.repo) or asked.repo.lower().startswith("file:")):
        raise ConfigError(
            f"{clip(printable(asked.repo), 120)!r} is no address of a repository; give one with https:// or ssh://."
        )
    options = asked.model_dump(exclude={"prompt", "key"}, exclude_none=True)
    return tell_ticket(await api.submit(asked.prompt, key=asked.key, **options))


async def _reply(api: Api, asked: ReplyAsked) -> Answer:
    return tell_ticket(await api.reply(asked.ticket_id, asked.text, key=asked.key))


async def _cancel(api: Api, asked: CancelAsked) -> Answer:
    return tell_ticket(await api.cancel(asked.ticket_id, now=asked.now))


TOOLS = (
    McpTool("list", "List tickets (incidents and tasks), and what each of them needs.", ListAsked, _list),
    McpTool(
        "show",
        "Show one ticket: its state and why, its verdicts clause by clause, its sessions and its history.",
        ShowAsked,
        _show,
    ),
    McpTool(
        "report",
        "What was proved about a ticket, and what was not. Only the verdict `verified` means that it is done; what "
        "an agent claims is not a proof.",
        ReportAsked,
        _report,
    ),
    McpTool(
        "audit_verify",
        "Check the chain of hashes of the journal: whether a row was altered, removed or put in another order.",
        AuditAsked,
        _audit,
    ),
    McpTool(
        "submit",
        "Hand over a task. It is worked on by an agent in a sandbox, and done when its checks and a verifier say so; "
        "look for its end with `show`.",
        SubmitAsked,
        _submit,
        writes=True,
    ),
    McpTool(
        "reply",
        "Answer the question of a ticket that needs an answer; read the question first with `show` and "
        "include_agent_text.",
        ReplyAsked,
        _reply,
        writes=True,
    ),
    McpTool("cancel", "Cancel a ticket; what its agent does later counts no more.", CancelAsked, _cancel, True, True),
)
"""All of them; those that write are offered only where that was switched on."""

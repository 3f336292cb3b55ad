"""The console's pages: one environment in which everything is escaped, and how a page or a part of it is answered."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from operator_core import __version__
from operator_core.api.happened import detail_words, event_word
from operator_core.api.telling import telling_labels
from operator_core.clock import now
from operator_core.model.person import Actor, Role
from operator_core.web import words
from operator_core.web.ansi import ansi
from operator_core.web.assets import static_url
from operator_core.web.flash import said
from operator_core.web.site import site_of

__all__ = ["environment", "html", "is_part", "render", "render_part"]


class Place(NamedTuple):
    """One entry of the navigation; ``key`` is typed after ``g``."""

    name: str
    path: str
    key: str


PLACES = (
    Place("Board", "/", "b"),
    Place("Approvals", "/approvals", "a"),
    Place("Monitor", "/monitor", "m"),
    Place("Fleet", "/fleet", "f"),
    Place("Costs", "/costs", "c"),
    Place("Audit", "/audit", "l"),
    Place("Settings", "/settings", "s"),
)
THEMES = ("light", "dark")
# A quoted block, and a backtick that is none of markup: others wrote that.
_OURS = re.compile(
    r"^ {6}.*|(?<!\\)`operator (?P<words>(?:sessions show|audit verify|verify)(?: [^`]*)?)`", re.MULTILINE
)


@cache
def environment() -> Environment:
    """Jinja with autoescape always on; a name that is missing is an error."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        cache_size=-1,
    )
    made.filters.update(
        ago=words.ago,
        ansi=ansi,
        duration=words.duration,
        grouped=words.grouped,
        markdown=words.markdown,
        moment=words.moment,
        money=words.money,
        on_page=words.on_page,
        pretty=words.pretty,
        sentence=words.sentence,
        size=words.size,
        visible=words.visible,
    )
    made.globals.update(
        now=now,
        detail_words=detail_words,
        event_word=event_word,
        telling_labels=telling_labels,
        places=PLACES,
        query=_query,
        static_url=static_url,
        version=__version__,
        Role=Role,
        said=said,
    )
    return made


def render(
    request: Request,
    name: str,
    *,
    status: int = 200,
    block: str | None = None,
    headers: Mapping[str, str] | None = None,
    **values: Any,
) -> HTMLResponse:
    """A page; asked for by htmx (``HX-Request``), only one block of it.

    Args:
        name: The template.
        status: HTTP status.
        block: What htmx gets: a block that this template itself has. None: always the whole page.
        values: For the template. It also has ``ui`` (the macros of ``macros.html``), ``request``, ``actor`` (None:
            nobody is signed in), ``csrf``, ``theme`` (``light``, ``dark`` or empty: as the system is), ``may(role)``,
            ``command_here(words)``, ``report_here(markdown)``.
    """
    if block is not None and is_part(request):
        return html(render_part(request, name, block, **values), status=status, headers=headers)
    text = environment().get_template(name).render(_context(request, status, values))
    return html(text, status=status, headers=headers)


def render_part(request: Request, name: str, block: str, **values: Any) -> str:
    """One block of a template, which this template itself has."""
    template = environment().get_template(name)
    return "".join(template.blocks[block](template.new_context(_context(request, 200, values))))


def html(text: str, *, status: int = 200, headers: Mapping[str, str] | None = None) -> HTMLResponse:
    """A page, or a part of one, as the answer to a request."""
    # Text that came as a lone surrogate has been made visible; this is for what a template forgot.
    return HTMLResponse(
        text.encode("utf-8", "replace"),
        status_code=status,
        headers={"Cache-Control": "no-store", "Vary": "HX-Request, Cookie", **(headers or {})},
    )


def is_part(request: Request) -> bool:
    """Whether htmx, or a script of ours, asks for a part of the page alone."""
    asked = request.headers
    return asked.get("hx-request") == "true" and not {"hx-boosted", "hx-history-restore-request"} & set(asked.keys())


def _context(request: Request, status: int, values: Mapping[str, Any]) -> dict[str, Any]:
    actor: Actor | None = getattr(request.state, "actor", None)
    theme = request.cookies.get("theme", "")
    csrf = getattr(request.state, "csrf", "") or ""
    context = {
        "request": request,
        "status": status,
        "actor": actor,
        "csrf": csrf,
        "csrf_token": csrf,
        "theme": theme if theme in THEMES else "",
        "command_here": lambda words: _command_here(request, words),
        "report_here": lambda markdown: _report_here(request, markdown),
        "may": lambda role: actor is not None and actor.role.allows(Role(role)),
        **values,
    }
    context["ui"] = environment().get_template("macros.html").make_module(context)
    return context


def _command_here(request: Request, words: str) -> str:
    """A command that asks this server, wherever it is typed."""
    return f"operator --server {shlex.quote(site_of(request).url)} {words}"


def _report_here(request: Request, markdown: str) -> Markup:
    """A closure report whose commands work wherever they are typed; it was written without knowing of a server."""

    def complete(found: re.Match[str]) -> str:
        return found[0] if found["words"] is None else f"`{_command_here(request, found['words'])}`"

    return words.markdown(_OURS.sub(complete, markdown))


def _query(request: Request, **changes: Any) -> str:
    """This page's address with other parameters; None takes one away, and a change begins at the first part."""
    kept = [(k, v) for k, v in request.query_params.multi_items() if k not in changes and k not in ("cursor", "said")]
    for key, value in changes.items():
        kept += [(key, str(item)) for item in (value if isinstance(value, (list, tuple)) else (value,)) if item]
    path = request.url.path
    return f"{path}?{urlencode(kept)}" if kept else path

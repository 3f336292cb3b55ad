"""The forms with which a person hands over a task, or opens an incident by hand."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request, Response, UploadFile

from operator_core.clock import new_id
from operator_core.errors import ConfigError, OperatorError
from operator_core.web.flash import see
from operator_core.web.pages.forms import REFUSALS, Key, LongText, Text, Word, lines_of
from operator_core.web.problems import status_of
from operator_core.web.site import api_of, site_of
from operator_core.web.templates import render

__all__ = ["router"]

router = APIRouter(include_in_schema=False)

_MAX_FILE = 1_000_000


@router.get("/submit")
async def form(request: Request) -> Response:
    """Both forms, empty."""
    return _page(request, {})


@router.post("/submit")
async def submit(
    request: Request,
    prompt: LongText,
    name: Word = "",
    repo: Annotated[str, Form(max_length=4000)] = "",
    ref: Word = "",
    checks: LongText = "",
    allow_change: Text = "",
    engine: Word = "",
    model: Word = "",
    budget_usd: Word = "",
    max_iterations: Word = "",
    profile: Word = "shraga",
    network: Word = "none",
    allow_hosts: Text = "",
    pinned_to: Word = "",
    priority: Word = "",
    folder: Word = "",
    files: list[UploadFile] | None = None,
    key: Key = "",
) -> Response:
    """Submit the task and go to its ticket; refused, the page says why, and what was typed is still there."""
    given = {
        "prompt": prompt, "name": name, "repo": repo, "ref": ref, "checks": checks, "allow_change": allow_change,
        "engine": engine, "model": model, "budget_usd": budget_usd, "max_iterations": max_iterations,
        "profile": profile, "network": network, "allow_hosts": allow_hosts, "pinned_to": pinned_to,
        "priority": priority, "folder": folder,
    }  # fmt: skip
    try:
        ticket = await api_of(request).submit(
            prompt.replace("\r\n", "\n"),
            key=key or None,
            name=name.strip() or None,
            repo=repo.strip() or None,
            ref=ref.strip() or None,
            checks=lines_of(checks),
            allow_change=lines_of(allow_change),
            engine=engine or None,
            model=model.strip() or None,
            budget_usd=_number(budget_usd, float, "budget"),
            max_iterations=_number(max_iterations, int, "number of iterations"),
            profile=profile,
            network=network,
            allow_hosts=lines_of(allow_hosts),
            pinned_to=pinned_to.strip() or None,
            priority=_number(priority, int, "priority") or 0,
            files=[await _file(upload, folder.strip()) for upload in files or () if upload.filename],
        )
    except REFUSALS as error:
        return _page(request, given, error=error)
    return see(f"/tickets/{ticket.id}", "submitted")


@router.post("/submit/incident")
async def open_incident(
    request: Request,
    incident: Word,
    message: Text,
    severity: Word = "warning",
    check: Word = "",
    about: Text = "",
    key: Key = "",
) -> Response:
    """Open an incident and go to its ticket.

    Args:
        check: Subject and invariant that a repair must restore, with a blank between them.
    """
    subject, _, invariant = check.partition(" ")
    try:
        ticket = await api_of(request).open_incident(
            incident.strip(),
            message.replace("\r\n", "\n").strip(),
            severity=severity,
            context=about.strip() or None,
            subject=subject or None,
            invariant=invariant or None,
            key=key or None,
        )
    except REFUSALS as error:
        given = {"incident": incident, "message": message, "severity": severity, "check": check, "about": about}
        return _page(request, given, error=error)
    return see(f"/tickets/{ticket.id}", "opened")


def _page(request: Request, given: dict[str, str], *, error: OperatorError | None = None) -> Response:
    settings = site_of(request).settings
    return render(
        request,
        "submit.html",
        status=status_of(error) if error else 200,
        given=given,
        problem=str(error) if error else None,
        key=new_id(),
        invariants=[(s.name, i.name) for s in settings.subject for i in s.invariant],
        tasks=settings.tasks,
        limits=settings.limits,
        default_model=settings.model.model,
    )


def _number(text: str, kind: type[Any], what: str) -> Any:
    if not text.strip():
        return None
    try:
        return kind(text.strip())
    except ValueError:
        raise ConfigError(f"The {what} must be a number; leave it empty for the usual one.") from None


async def _file(upload: UploadFile, folder: str) -> dict[str, str]:
    """A check file as the browser sends it; its name is only the last part of a path."""
    name = (upload.filename or "").replace("\\", "/").rpartition("/")[2]
    data = await upload.read(_MAX_FILE + 1)
    if len(data) > _MAX_FILE:
        raise ConfigError("A check file has more than a million bytes; put it into the repository.")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError("A check file is no text; put it into the repository.") from None
    return {"path": f"{folder.strip('/')}/{name}" if folder.strip("/") else name, "content": text}

"""Signing a person in on a dev box: Azure, then Dataverse as the proof, then Claude Code (row B-053).

Each program signs in by itself, on this terminal, and keeps what it gets; nothing of that passes through here.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from operator_core.cli.finding import Finding
from operator_core.config import Settings
from operator_core.errors import ConfigError, OperatorError
from operator_core.text import clip, printable
from operator_dataverse.machine.programs import ask, attend, find, small_environment
from operator_dataverse.machine.service import SECRETS_PLACE
from operator_dataverse.settings import DataverseSettings, settings_of

__all__ = ["AZ_LOGIN", "TRIES", "ClaudeSignIn", "SignIn", "claude_sign_in", "open_points", "who_am_i"]

TRIES = 3
"""How often a person may try to sign in."""

# A person without a subscription may still have Dataverse; and what it prints about accounts belongs to nobody else.
AZ_LOGIN = ("az", "login", "--allow-no-subscriptions", "--output", "none")

_PATIENCE_S = 20.0
_CLAUDE_S = 60.0


class ClaudeSignIn(NamedTuple):
    """Whether the Claude Code program is signed in.

    Attributes:
        signed_in: None: it could not be found out.
        detail: One clause, for people.
    """

    signed_in: bool | None
    detail: str


class SignIn:
    """What is still to be signed in on this machine.

    Args:
        settings: Of the product.
        environ: What the programs' environment is taken from.
        say: Prints a line for a person.
        stdout_free: See :func:`operator_dataverse.machine.programs.attend`.
    """

    def __init__(
        self,
        settings: Settings,
        environ: Mapping[str, str],
        *,
        say: Callable[[str], None] = lambda line: None,
        stdout_free: bool = True,
    ) -> None:
        self._settings = settings
        self._mine = settings_of(settings)
        self._environ = environ
        self._env = small_environment(environ)
        self._say = say
        self._stdout_free = stdout_free

    def plan(self) -> list[tuple[str, ...]]:
        """The commands that would be run if nothing is signed in yet."""
        commands: list[tuple[str, ...]] = [] if self._mine.secret(self._mine.token_env) else [AZ_LOGIN]
        program = _claude_program(self._settings)
        if isinstance(program, Path):
            commands.append((str(program), "auth", "login"))
        return commands

    def run(self) -> list[Finding]:
        """Sign in where that is needed."""
        azure = self._azure()
        return [azure, self._dataverse(azure), self._claude()]

    def _azure(self) -> Finding:
        mine = self._mine
        if mine.secret(mine.token_env):
            return Finding("azure", "ok", f"the token in ${mine.token_env} is used, so nobody signs in")
        program = find("az", self._environ)
        if program is None:
            detail = f"`az` is missing: run `operator-dataverse setup`, or put a token into ${mine.token_env}"
            return Finding("azure", "warning", detail)
        if self._has_token(program):
            return Finding("azure", "ok", "signed in already")
        code = 0
        for attempt in range(1, TRIES + 1):
            self._say(f"Signing in to Azure (`{' '.join(AZ_LOGIN)}`), try {attempt} of {TRIES} …")
            code = attend((program, *AZ_LOGIN[1:]), self._env, stdout_free=self._stdout_free)
            if code == 0:
                return Finding("azure", "ok", "signed in", {"tries": attempt})
        detail = f"`az login` failed {TRIES} times (exit code {code}); what it printed says why"
        return Finding("azure", "wrong", detail, {"tries": TRIES})

    def _has_token(self, program: str) -> bool:
        resource = ("--resource", self._mine.url.rstrip("/")) if self._mine.url else ()
        # `--output none`: the token itself is not wanted here.
        return ask((program, "account", "get-access-token", *resource, "--output", "none"), self._env).code == 0

    def _dataverse(self, azure: Finding) -> Finding:
        if azure.state == "wrong":
            return Finding("dataverse", "skipped", "not asked, because nobody is signed in to Azure")
        return who_am_i(self._mine)

    def _claude(self) -> Finding:
        program = _claude_program(self._settings)
        if isinstance(program, ConfigError):
            return Finding("claude code", "skipped", str(program))
        before = claude_sign_in(program, self._env)
        if before.signed_in:
            return Finding("claude code", "ok", f"signed in already ({before.detail})")
        self._say(f"Signing in to Claude Code (`{program} auth login`) …")
        code = attend((str(program), "auth", "login"), self._env, stdout_free=self._stdout_free)
        after = claude_sign_in(program, self._env)
        if code == 0 and after.signed_in:
            return Finding("claude code", "ok", f"signed in ({after.detail})")
        why = f"`claude auth login` ended with exit code {code}" if code else after.detail
        return Finding("claude code", "wrong", f"not signed in: {why}; run `operator-dataverse authenticate` again")


def who_am_i(mine: DataverseSettings) -> Finding:
    """Ask the organisation whom it takes this machine for."""
    try:
        mine.needs("url")
        user = asyncio.run(_who_am_i(mine))
    except OperatorError as error:
        return Finding("dataverse", "wrong", str(error))
    return Finding("dataverse", "ok", f"{mine.url} knows this account as user {user}", {"user": user})


async def _who_am_i(mine: DataverseSettings) -> str:
    from operator_dataverse.client import Dataverse

    patient = mine.model_copy(update={"retry_s": min(mine.retry_s, _PATIENCE_S)})
    async with Dataverse.open(patient) as dataverse:
        return await dataverse.whoami()


def claude_sign_in(program: Path, env: Mapping[str, str]) -> ClaudeSignIn:
    """Ask the Claude Code program whether somebody is signed in.

    Args:
        program: Where it is.
        env: Its whole environment.
    """
    answer = ask((str(program), "auth", "status"), env, timeout_s=_CLAUDE_S)
    try:
        # It exits with 1 when nobody is signed in, so the exit code alone says nothing.
        found = json.loads(answer.out)
        signed_in = found["loggedIn"]
    except (ValueError, TypeError, KeyError):
        return ClaudeSignIn(None, f"`claude auth status` could not be read: {clip(answer.said)}")
    if not isinstance(signed_in, bool):
        return ClaudeSignIn(None, "`claude auth status` says neither yes nor no")
    method = clip(" ".join(printable(str(found.get("authMethod") or "unknown")).split()), 40)
    return ClaudeSignIn(signed_in, f"method {method}" if signed_in else "nobody is signed in")


def open_points(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """What a person still has to set before the worker can work, one sentence each.

    Args:
        settings: Of the product.
        environ: Where the key of the model service would be.
    """
    try:
        settings_of(settings).needs("url", "user")
    except OperatorError as error:
        yield str(error)
    model = settings.model
    if model.engine == "anthropic" and not environ.get(model.api_key_env):
        yield f"Set {model.api_key_env}, the key of the model service, for the worker: {SECRETS_PLACE}."


def _claude_program(settings: Settings) -> Path | ConfigError:
    from operator_core.agent_lab.claude_code import find_program

    try:
        return find_program(settings.claude_code)
    except ConfigError as error:
        return error

"""Who the product is to the services of Microsoft.

The order is the one of the seed's helpers: a given token, the variable of ``[dataverse] token_env``, the Azure command
line, whatever else ``azure-identity`` finds. A token is in no log, no error and no ``repr``.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from dataclasses import field as data_field
from typing import TYPE_CHECKING, Any, Protocol

from operator_core.clock import Clock
from operator_core.text import clip, first_line, printable
from operator_dataverse.errors import Unauthorized

if TYPE_CHECKING:
    from operator_dataverse.settings import DataverseSettings

__all__ = ["AccessToken", "Chain", "Credential", "StaticToken", "TokenCache", "open_credential"]

_MARGIN_S = 300.0
_UNKNOWN_LIFE_S = 3000.0
_AZ_S = 60.0


@dataclass(frozen=True)
class AccessToken:
    """A token and when it ends.

    Attributes:
        token: The secret.
        expires_on: Seconds since 1970; None: unknown.
    """

    token: str = data_field(repr=False)
    expires_on: float | None = None


class Credential(Protocol):
    """Gets tokens; whoever has another way to get them writes such a class."""

    async def get(self, resource: str) -> AccessToken:
        """A token for a resource such as ``https://example.crm.dynamics.com``.

        Raises:
            Unauthorized: There is none to be had; the sentence says what to do.
        """
        ...


class StaticToken:
    """A token that somebody gave."""

    def __init__(self, token: str) -> None:
        if not _usable(token):
            raise Unauthorized("The given access token is none (empty, or with blanks in it); give it again.")
        self._token = token

    async def get(self, resource: str) -> AccessToken:
        return AccessToken(self._token)


class _AzureCli:
    """``az account get-access-token``."""

    async def get(self, resource: str) -> AccessToken:
        program = shutil.which("az")
        if program is None:
            raise Unauthorized("the program `az` is not installed")
        argv = (program, "account", "get-access-token", "--resource", resource, "--output", "json")
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), _AZ_S)
        except TimeoutError:
            raise Unauthorized(f"`az` did not answer within {_AZ_S:.0f} s") from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            said = first_line(printable(err.decode(errors="replace"))) or f"exit code {process.returncode}"
            raise Unauthorized(f"`az` says: {said}")
        try:
            answer = json.loads(out)
            token, expires_on = answer["accessToken"], answer.get("expires_on")
        except (ValueError, TypeError, KeyError, AttributeError):
            token = expires_on = None
        if not _usable(token):
            raise Unauthorized("`az` printed no token")
        # `expiresOn` is a local time without its zone, and older programs have only that.
        return AccessToken(token, _number(expires_on))


class _AzureIdentity:
    """Environment, managed identity and the further ways of ``azure-identity``."""

    def __init__(self) -> None:
        self._credential: Any = None

    async def get(self, resource: str) -> AccessToken:
        found = await asyncio.to_thread(self._ask, f"{resource}/.default")
        return AccessToken(found.token, float(found.expires_on))

    def _ask(self, scope: str) -> Any:
        from azure.core.exceptions import ClientAuthenticationError
        from azure.identity import DefaultAzureCredential

        # The failure is told in one sentence; its log is a page.
        logging.getLogger("azure.identity").setLevel(logging.ERROR)
        if self._credential is None:
            # The command line has been asked already, and a window must not open on an unattended machine.
            self._credential = DefaultAzureCredential(
                exclude_cli_credential=True, exclude_interactive_browser_credential=True
            )
        try:
            return self._credential.get_token(scope)
        except ClientAuthenticationError as error:
            raise Unauthorized(f"azure-identity says: {first_line(printable(error.message))}") from None


class Chain:
    """The first of several that has a token.

    Args:
        links: Name for people, and the credential.
        advice: What a person does when none has one.
    """

    def __init__(self, links: Sequence[tuple[str, Credential]], advice: str) -> None:
        self._links = tuple(links)
        self._advice = advice

    async def get(self, resource: str) -> AccessToken:
        failures = []
        for name, credential in self._links:
            try:
                return await credential.get(resource)
            except Unauthorized as error:
                failures.append(f"{name}: {clip(str(error))}")
        raise Unauthorized(f"There is no access token for {resource}; {self._advice} ({'; '.join(failures)}).")


class TokenCache:
    """One token for one resource, kept until five minutes before it ends.

    Args:
        credential: Where tokens come from.
        resource: What they are for.
        clock: Time.
        learn: Told each token, e.g. ``Redactor.learn``.
    """

    def __init__(
        self,
        credential: Credential,
        resource: str,
        *,
        clock: Clock | None = None,
        learn: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._credential = credential
        self._resource = resource
        self._clock = clock or Clock()
        self._learn = learn
        self._lock = asyncio.Lock()
        self._known: AccessToken | None = None
        self._until = 0.0

    async def token(self) -> str:
        """A token that still holds for a while.

        Raises:
            Unauthorized: There is none.
        """
        async with self._lock:
            if self._known is None or self._clock.now().timestamp() >= self._until:
                found = await self._credential.get(self._resource)
                now = self._clock.now().timestamp()
                life = _UNKNOWN_LIFE_S if found.expires_on is None else found.expires_on - now
                # Some never live longer than the margin.
                self._until = now + max(life - _MARGIN_S, life / 2)
                self._known = found
                if self._learn is not None:
                    self._learn([found.token])
            return self._known.token

    async def another(self, refused: str) -> str | None:
        """A token instead of one that was refused; None if there is only that one."""
        async with self._lock:
            if self._known is not None and self._known.token == refused:
                self._known = None
        found = await self.token()
        return None if found == refused else found


def open_credential(
    settings: DataverseSettings, token: str | None = None, *, token_env: str | None = None
) -> Credential:
    """How this machine proves who it is.

    Args:
        settings: ``[dataverse]``.
        token: Given by the caller; goes before all else.
        token_env: Another variable than ``[dataverse] token_env``, e.g. ``PA_TOKEN``.
    """
    variable = token_env or settings.token_env
    given = token or settings.secret(variable)
    if given:
        return StaticToken(given.strip())
    advice = f"run `az login`, or put one into ${variable}"
    return Chain([("az", _AzureCli()), ("other credentials", _AzureIdentity())], advice)


def _usable(token: Any) -> bool:
    """Whether a header can carry it; otherwise the request would fail, with the token in the message."""
    return isinstance(token, str) and token.isascii() and token.isprintable() and bool(token) and " " not in token


def _number(value: Any) -> float | None:
    try:
        return float(value)
    except (TypeError, ValueError):
        return None

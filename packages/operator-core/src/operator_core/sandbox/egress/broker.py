"""Credentials that an agent uses and never sees: added on the way out, taken out of what comes back."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from operator_core.errors import ConfigError
from operator_core.redaction import Redactor
from operator_core.sandbox.egress.host import Host
from operator_core.sandbox.egress.message import Headers
from operator_core.sandbox.egress.rules import Rule, Rules
from operator_core.sandbox.options import Secret

__all__ = ["Broker", "Dressed", "Unusable"]

_SHORTEST = 8
_PLAIN = re.compile(r"[\x20-\x7e]+\Z")
# A compressed answer cannot be looked through, and a part of an answer may hold a part of a secret.
_NOT_SENT = frozenset({"accept-encoding", "range", "if-range"})
# What a login answers with is a credential too.
_NOT_SHOWN = frozenset({"set-cookie", "set-cookie2"})


class Unusable(Exception):
    """A credential cannot be used now.

    Args:
        why: A clause that does not hold the secret.
    """

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the credential {name} {why}")
        self.why = str(self)


class Dressed(NamedTuple):
    """A request with its credentials.

    Attributes:
        headers: To send.
        clean: Takes the credentials out of the answer.
    """

    headers: Headers
    clean: Redactor

    def shown(self, headers: Headers) -> Headers:
        """The headers of the answer, as the agent may see them."""
        return [(name, self.clean.text(value)) for name, value in headers if name.lower() not in _NOT_SHOWN]


class Broker:
    """Knows which host gets which credentials.

    Args:
        secrets: All there are.

    Raises:
        ConfigError: A host of one of them cannot be used.
    """

    def __init__(self, secrets: Sequence[Secret]) -> None:
        self._grants = [(secret, Rules.parse(secret.hosts)) for secret in secrets]
        for secret, rules in self._grants:
            for rule in rules.rules:
                if rule.port == 80:
                    raise ConfigError(
                        f"The credential {secret.name} is sent over TLS only; write `{rule.host.name}` or "
                        f"`{rule.host.name}:443` instead of `{rule.text}`."
                    )

    @property
    def hosts(self) -> Iterator[tuple[Secret, Rules]]:
        """Each credential with its hosts."""
        return iter(self._grants)

    def find(self, host: Host, port: int) -> tuple[tuple[Secret, ...], Rule | None]:
        """The credentials for a host at a TLS port, and the rule that says so."""
        found = [(secret, rule) for secret, rules in self._grants if (rule := rules.find(host, port))]
        return tuple(secret for secret, _ in found), found[0][1] if found else None

    def dress(self, headers: Headers, secrets: Sequence[Secret]) -> Dressed:
        """Add credentials to the headers of a request, in place of what the agent has put there.

        Raises:
            Unusable: One of them cannot be read, or cannot be sent.
        """
        ours = {secret.header.lower() for secret in secrets} | _NOT_SENT
        sent = [(name, value) for name, value in headers if name.lower() not in ours]
        known: list[str] = []
        for secret in secrets:
            value = _read(secret)
            known += (value, *_inside(value))
            sent.append((secret.header, secret.value.replace("{}", value)))
        sent.append(("Accept-Encoding", "identity"))
        return Dressed(sent, Redactor(known, shapes=False))


def _read(secret: Secret) -> str:
    try:
        value = secret.read().strip()
    except Exception:
        # Whatever the error says, it may hold the secret.
        raise Unusable(secret.name, "cannot be read") from None
    if len(value) < _SHORTEST:
        raise Unusable(secret.name, f"is shorter than {_SHORTEST} characters, so it could not be taken out of answers")
    if not _PLAIN.match(secret.value.replace("{}", value)):
        raise Unusable(secret.name, "holds a character that no header can carry")
    return value


def _inside(value: str) -> list[str]:
    """What ``Basic`` carries, and its password alone."""
    try:
        plain = base64.b64decode(value, validate=True).decode()
    except (binascii.Error, ValueError):
        return []
    return [plain, plain.partition(":")[2]] if ":" in plain else []

"""What a person allows: hosts and ports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from operator_core.errors import ConfigError
from operator_core.sandbox.egress.host import Host, parse_host, parse_port
from operator_core.text import clip, printable

__all__ = ["Rule", "Rules"]

_WEB = frozenset({80, 443})


class Rule(NamedTuple):
    """One allowed host.

    Attributes:
        text: As it is shown: ``example.org``, ``*.example.org:8443``, ``127.0.0.1:8080``.
        host: The host; of a wildcard what follows ``*.``.
        wildcard: Whether it means every name below ``host``, and not that name itself.
        port: None: 80 and 443.
    """

    text: str
    host: Host
    wildcard: bool = False
    port: int | None = None

    @property
    def explicit(self) -> bool:
        """Whether a person named this very address and port, so that it may also be one of this machine."""
        return self.host.address is not None and self.port is not None

    def matches(self, host: Host, port: int) -> bool:
        """Whether it allows this."""
        if port not in (_WEB if self.port is None else (self.port,)):
            return False
        if self.wildcard:
            return host.name.endswith(f".{self.host.name}")
        return host == self.host


class Rules(NamedTuple):
    """All that is allowed; nothing else is."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def parse(cls, hosts: Iterable[str]) -> Rules:
        """Read rules: ``host``, ``host:port``, ``*.host``, ``*.host:port``, an address with or without a port.

        Without a port a rule means 80 and 443. An address of this machine or its network link needs a port.

        Raises:
            ConfigError: One of them cannot be used; the message names it and says why.
        """
        found = []
        for text in hosts:
            try:
                found.append(_parse(text.strip()))
            except ValueError as error:
                shown = clip(printable(text), 120)
                raise ConfigError(
                    f"{shown!r} is no host that could be allowed: {error}; see docs/network.md."
                ) from None
        return cls(tuple(dict.fromkeys(found)))

    def find(self, host: Host, port: int) -> Rule | None:
        """The rule that allows this; an explicit one before others."""
        matching = [rule for rule in self.rules if rule.matches(host, port)]
        return next((rule for rule in matching if rule.explicit), matching[0] if matching else None)

    def words(self, most: int = 20) -> str:
        """The rules, for a sentence: ``a.example, *.b.example:8443``; ``nothing`` if there are none."""
        shown = [rule.text for rule in self.rules[:most]]
        if more := len(self.rules) - len(shown):
            shown.append(f"and {more} more")
        return ", ".join(shown) or "nothing"


def _parse(text: str) -> Rule:
    if "://" in text:
        raise ValueError("leave out the scheme; a rule is a host, or host:port")
    if "/" in text:
        raise ValueError("a rule is a host, or host:port, without a path or a network mask")
    wildcard = text.startswith("*.")
    rest = text.removeprefix("*.") if wildcard else text
    if "*" in rest:
        raise ValueError("`*` may only stand for the names below a host, as in `*.example.org`")
    if "@" in rest:
        raise ValueError("leave out the user name")
    if rest.startswith("[") or rest.count(":") == 1:
        name, colon, digits = rest.rpartition(":") if not rest.endswith("]") else (rest, "", "")
        port = parse_port(digits) if colon else None
    else:
        name, port = rest, None
    host = parse_host(name)
    if wildcard and host.address is not None:
        raise ValueError("nothing is below an address")
    if host.name == "localhost" or host.name.endswith(".localhost"):
        raise ValueError("a name of this machine is never followed; write its address and the port, as 127.0.0.1:8080")
    shown = host.name if host.address is None or host.address.version == 4 else f"[{host.name}]"
    return Rule(f"{'*.' if wildcard else ''}{shown}{f':{port}' if port else ''}", host, wildcard, port)

"""No test talks to anything but this machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

import pytest

__all__ = ["NetworkGuard"]


class NetworkGuard:
    """Refuses connections and look-ups of the test process that leave the loopback interface.

    Attributes:
        blocked: What was refused, as ``host`` or ``(host, port)``. A refusal may be swallowed by code that retries, so
            the fixture looks here again when the test is over.
    """

    def __init__(self) -> None:
        self.blocked: list[object] = []

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Put the guard in front of the socket functions, until ``patch`` is undone."""
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, self._guard_connect(getattr(socket.socket, name)))
        look_up = socket.getaddrinfo

        def guarded(host: Any, *args: Any, **kwargs: Any) -> Any:
            self._check(host, host)
            return look_up(host, *args, **kwargs)

        patch.setattr(socket, "getaddrinfo", guarded)

    def _guard_connect(self, connect: Any) -> Any:
        def guarded(sock: socket.socket, address: Any) -> Any:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                self._check(address[0], address)
            return connect(sock, address)

        return guarded

    def _check(self, host: object, seen: object) -> None:
        text = host.decode() if isinstance(host, bytes) else host
        if text in (None, "", "localhost"):
            return
        try:
            if ipaddress.ip_address(str(text)).is_loopback:
                return
        except ValueError:
            pass  # a name: looking it up would already ask the network
        self.blocked.append(seen)
        raise RuntimeError(f"a test tried to reach {seen!r}; tests may use the loopback interface only")

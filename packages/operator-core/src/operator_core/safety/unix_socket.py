"""A listening unix socket that is made safely."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from operator_core.errors import ConfigError

__all__ = ["listen_unix"]

_WAITING = 64


def listen_unix(path: Path, mode: int = 0o600) -> socket.socket:
    """A listening unix socket; one that nobody answers any more is replaced.

    Args:
        path: Where; its folder must be there.
        mode: Who may connect.

    Raises:
        ConfigError: Something else is there, or it cannot be made.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                try:
                    probe.connect(str(path))
                except ConnectionRefusedError:
                    path.unlink()
                else:
                    raise ConfigError(f"Something answers at {path} already; stop it, or choose another path.")
        mask = os.umask(0o777 & ~mode)
        try:
            listener.bind(str(path))
        finally:
            os.umask(mask)
        listener.listen(_WAITING)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"No socket can be made at {path} ({error.strerror or error}); choose another path."
        ) from None
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)
    return listener

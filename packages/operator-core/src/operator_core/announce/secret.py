"""The addresses and secrets of channels: in the environment of the server, or in files; never in the store or a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from operator_core.announce.by_apprise import check_address, secrets_in
from operator_core.announce.webhook import key_of
from operator_core.errors import ConfigError
from operator_core.model.notification import Channel
from operator_core.redaction import Redactor

__all__ = ["Access", "access_of"]

_MOST = 1 << 16


class Access(NamedTuple):
    """How a channel is reached.

    Attributes:
        key: With which a webhook is signed; empty for apprise.
    """

    url: str
    key: bytes = b""


def access_of(channel: Channel, redactor: Redactor) -> Access:
    """Address and key of a channel, as they are now; the redactor learns them.

    Raises:
        ConfigError: Something is missing, or may not be used. The message holds no secret.
    """
    url = channel.url or _read(channel.url_env, channel.url_file, f"The address of channel {channel.name}")
    if channel.kind == "apprise":
        redactor.learn(secrets_in(url, certain=True))
        check_address(url)
        return Access(url)
    if channel.url is None:
        redactor.learn([url])
    if not url.lower().startswith(("https://", "http://")):
        raise ConfigError(f"The address of channel {channel.name} must begin with https:// or http://; correct it.")
    secret = _read(channel.secret_env, channel.secret_file, f"The secret of channel {channel.name}")
    redactor.learn([secret])
    return Access(url, key_of(secret))


def _read(env: str | None, file: Path | None, what: str) -> str:
    if env is not None:
        value = os.environ.get(env, "").strip()
        if not value:
            raise ConfigError(f"{what} is missing; set the variable {env} of the server.")
        return value
    assert file is not None
    try:
        with file.open("rb") as stream:
            value = stream.read(_MOST).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ConfigError(f"{what} cannot be read from {file} ({reason}); correct the file.") from None
    if not value:
        raise ConfigError(f"{what} is missing; write it into {file}.")
    return value

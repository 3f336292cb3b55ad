"""Commands that a person is told to type: they work as they stand, with the options of the command that says them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from contextvars import ContextVar
from typing import NamedTuple

__all__ = ["command", "completed", "remember"]

# A quoted block, and a backtick that is none of markup: others wrote that.
_COMMAND = re.compile(
    r"^ {6}.*|(?<!\\)`(operator(?:-[a-z]+)?) (?P<group>[a-z][a-z-]*)(?P<rest>(?: [^`]*)?)`", re.MULTILINE
)
# A password may have a slash in it, for SQLAlchemy too.
_PASSWORD = re.compile(r"(?<=//)(?P<who>[^:/@]*):[^@]*(?=@)|(?<=[?&])[^=&]*password=[^&]*&?", re.IGNORECASE)
# They begin something of their own, or only say what could be typed.
_ALONE = frozenset({"demo", "config"})
_NEVER_THERE = frozenset({("worker", "run"), ("audit", "export"), ("audit", "prune")})


class _InUse(NamedTuple):
    """What the command of now was given: for a store, or for a server and the commands that can ask one."""

    store: tuple[str, ...] = ()
    server: tuple[str, ...] = ()
    remote: frozenset[str] = frozenset()
    program: str | None = None


_in_use: ContextVar[_InUse | None] = ContextVar("hints", default=None)


def remember(
    *,
    db: str | None = None,
    config: object = None,
    server: str | None = None,
    token_file: object = None,
    remote: Collection[str] = (),
    program: str | None = None,
) -> None:
    """Take note of the global options of this command; they belong to every hint that it gives.

    Args:
        db: A password in it is left out.
        remote: The commands and groups that can ask a server.
        program: How ``operator`` is called here; default: so.
    """
    known = None if db is None else _PASSWORD.sub(lambda found: found["who"] or "", db)
    store = (*_pair("--db", known), *_pair("--config", config))
    there = (*_pair("--server", server), *_pair("--token-file", token_file))
    _in_use.set(_InUse(store, there, frozenset(remote), program))


def command(words: str) -> str:
    """A command of ours as it can be typed here: of ``tickets list``, ``operator --db a.db tickets list``."""
    return completed(f"`operator {words}`").strip("`")


def completed(text: str) -> str:
    """A sentence of ours with the options in use in each of its commands.

    Only for what we say ourselves: what an agent wrote is shown as it is, also where a page of ours quotes it.
    """
    used = _in_use.get()
    if used is None or not (used.store or used.server or used.program):
        return text

    def complete(found: re.Match[str]) -> str:
        if found["group"] is None:
            return found[0]
        options = _options(used, found["group"], found["rest"].split())
        called = used.program if used.program and found[1] == "operator" else found[1]
        return f"`{' '.join([called, *options, found['group']])}{found['rest']}`"

    return _COMMAND.sub(complete, text)


def _options(used: _InUse, group: str, rest: Sequence[str]) -> Sequence[str]:
    if "--help" in rest:
        return ()
    if used.server:
        here = group not in used.remote or (group, rest[0] if rest else "") in _NEVER_THERE
        return () if here else used.server
    if group in _ALONE:
        # Its settings are those of a file, and no store is asked.
        return used.store[used.store.index("--config") :] if "--config" in used.store and group == "config" else ()
    return used.store


def _pair(name: str, value: object) -> tuple[str, ...]:
    return () if value is None else (name, shlex.quote(str(value)))

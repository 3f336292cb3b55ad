"""What of the docker API the filtering proxy understands, and what a person has allowed of it.

A request is *read* into a :class:`Call`, or refused; it is never passed on as it came. What is not in the table below
does not exist: creating containers, building, copying files, networks, volumes, images, plug-ins and whatever later
versions of docker bring. Those who may create a container with a bind mount are root on the host (defect D-22).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode

from operator_core.errors import ConfigError

__all__ = ["VERBS", "Call", "Denied", "Grant", "Rules", "mighty", "read_call", "shown"]

VERBS = ("exec", "inspect", "kill", "logs", "pause", "restart", "start", "stats", "stop", "top", "unpause")
"""What can be allowed, by the names of the docker command's words. The list of the named containers comes with any."""

# The docker command looks at a container before it does these.
_IMPLIED = {"exec": "inspect", "logs": "inspect", "stats": "inspect"}

_REFERENCE = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"
_PATTERN = re.compile(r"[A-Za-z0-9*][A-Za-z0-9_.*-]{0,127}\Z")
_TARGET = re.compile(
    r"(?P<version>/v1\.[0-9]{1,2})?(?P<path>/[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)*)(?:\?(?P<query>[!-~]*))?\Z"
)
_ENVIRONMENT_SHOWN = "[hidden]"

Check = Callable[[str], bool]


class Denied(Exception):
    """The request is refused; the text says why, one clause."""


def _matches(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: compiled.fullmatch(value) is not None


_BOOL = _matches(r"0|1|true|false|True|False|")
_NUMBER = _matches(r"-?[0-9]{1,9}")
_SIGNAL = _matches(r"[A-Z0-9+]{1,12}|")
_TIME = _matches(r"[0-9]{1,19}(\.[0-9]{1,9})?|[0-9TZ:.+-]{1,40}|")
_FILTERS = ("name", "id", "status", "label", "health", "exited")


def _filters(text: str) -> bool:
    try:
        found = json.loads(text)
    except ValueError:
        return False
    return (
        isinstance(found, dict)
        and set(found) <= set(_FILTERS)
        and all(isinstance(v, (dict, list)) for v in found.values())
    )


class _Form(NamedTuple):
    """One request that is understood."""

    verb: str
    method: str
    path: str
    query: Mapping[str, Check] = {}


_STREAMS = dict.fromkeys(("follow", "stdout", "stderr", "timestamps", "details"), _BOOL)
_FORMS = tuple(
    (form, re.compile(form.path.replace("{ref}", f"(?P<ref>{_REFERENCE})").replace("{id}", "(?P<id>[0-9a-f]{64})")))
    for form in (
        _Form("ping", "GET", "/_ping"),
        _Form("ping", "HEAD", "/_ping"),
        _Form("version", "GET", "/version"),
        _Form("list", "GET", "/containers/json", {"all": _BOOL, "limit": _NUMBER, "size": _BOOL, "filters": _filters}),
        _Form("inspect", "GET", "/containers/{ref}/json", {"size": _BOOL}),
        _Form(
            "logs",
            "GET",
            "/containers/{ref}/logs",
            _STREAMS | {"since": _TIME, "until": _TIME, "tail": _matches("all|[0-9]{1,9}|")},
        ),
        # The daemon hands these words to `ps` on the host, which with others shows every process's environment.
        _Form("top", "GET", "/containers/{ref}/top", {"ps_args": _matches("(-ef|-f|aux|ax)?")}),
        _Form("stats", "GET", "/containers/{ref}/stats", {"stream": _BOOL, "one-shot": _BOOL}),
        _Form("start", "POST", "/containers/{ref}/start"),
        _Form("stop", "POST", "/containers/{ref}/stop", {"t": _NUMBER, "signal": _SIGNAL}),
        _Form("restart", "POST", "/containers/{ref}/restart", {"t": _NUMBER, "signal": _SIGNAL}),
        _Form("kill", "POST", "/containers/{ref}/kill", {"signal": _SIGNAL}),
        _Form("pause", "POST", "/containers/{ref}/pause"),
        _Form("unpause", "POST", "/containers/{ref}/unpause"),
        _Form("exec", "POST", "/containers/{ref}/exec"),
        _Form("exec-start", "POST", "/exec/{id}/start"),
        _Form("exec-resize", "POST", "/exec/{id}/resize", {"h": _NUMBER, "w": _NUMBER}),
        _Form("exec-inspect", "GET", "/exec/{id}/json"),
    )
)


@dataclass(frozen=True)
class Call:
    """A request that was understood; only its values go on, never its bytes.

    Attributes:
        verb: One of :data:`VERBS`, or ``ping``, ``version``, ``list``, ``exec-start``, ``exec-resize`` or
            ``exec-inspect``.
        method: ``GET``, ``HEAD`` or ``POST``.
        version: ``/v1.41`` as the caller said it, or empty.
        action: The last word of the path (``restart``, ``json``); the whole path where there is no container.
        reference: The container as the caller named it, or None.
        exec_id: The id of an exec, or None.
        query: The checked query.
        body: The checked document of an exec; empty elsewhere.
    """

    verb: str
    method: str
    version: str
    action: str
    reference: str | None = None
    exec_id: str | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def target(self, container_id: str | None = None) -> str:
        """The path and query to ask the daemon for.

        Args:
            container_id: The full id that ``reference`` stands for.
        """
        if self.reference is not None:
            path = f"/containers/{container_id}/{self.action}"
        elif self.exec_id is not None:
            path = f"/exec/{self.exec_id}/{self.action}"
        else:
            path = self.action
        return f"{self.version}{path}" + (f"?{urlencode(self.query)}" if self.query else "")


def read_call(method: str, target: str, body: bytes = b"", *, upgrade: bool = False) -> Call:
    """Understand a request.

    Args:
        method: As it came.
        target: Path and query as they came.
        body: All of it.
        upgrade: Whether it asks to turn the connection into a stream.

    Raises:
        Denied: It is not one of those that can be allowed, or has something in it that such a one does not have.
    """
    parts = _TARGET.match(target)
    if parts is None:
        raise Denied("its address is not written as docker's own clients write it")
    path = parts["path"]
    for form, pattern in _FORMS:
        found = pattern.fullmatch(path)
        if found is None or form.method != method:
            continue
        if upgrade and form.verb != "exec-start":
            raise Denied("it wants to turn the connection into a stream, which only `exec` may")
        groups = found.groupdict()
        reference, exec_id = groups.get("ref"), groups.get("id")
        return Call(
            form.verb,
            method,
            parts["version"] or "",
            path if reference is None and exec_id is None else path.rpartition("/")[2],
            reference,
            exec_id,
            _read_query(parts["query"] or "", form.query),
            _read_body(form.verb, body, upgrade),
        )
    raise Denied("this part of the docker API is never allowed")


def _read_query(text: str, known: Mapping[str, Check]) -> dict[str, str]:
    try:
        pairs = (
            parse_qsl(text, keep_blank_values=True, strict_parsing=True, max_num_fields=10, errors="strict")
            if text
            else []
        )
    except ValueError:
        raise Denied("its query cannot be read") from None
    query = dict(pairs)
    if len(query) != len(pairs):
        raise Denied("its query says the same thing twice")
    for name, value in pairs:
        if name not in known:
            raise Denied(f"the option `{name[:40]}` is not allowed")
        if not known[name](value):
            raise Denied(f"the value of the option `{name}` is not allowed")
    return query


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


# Anything else in an exec's document is refused, unless it is empty or false.
_EXEC_KEYS: Mapping[str, Callable[[Any], bool]] = {
    "Detach": lambda v: isinstance(v, bool),
    "AttachStdin": lambda v: isinstance(v, bool),
    "AttachStdout": lambda v: isinstance(v, bool),
    "AttachStderr": lambda v: isinstance(v, bool),
    "Tty": lambda v: isinstance(v, bool),
    "Cmd": lambda v: _strings(v) and bool(v),
    "Env": _strings,
    "WorkingDir": lambda v: isinstance(v, str),
    "ConsoleSize": lambda v: isinstance(v, list) and len(v) == 2 and all(type(n) is int for n in v),
}
_START_KEYS = {name: _EXEC_KEYS[name] for name in ("Detach", "Tty", "ConsoleSize")}


def _read_body(verb: str, body: bytes, upgrade: bool) -> dict[str, Any]:
    known = {"exec": _EXEC_KEYS, "exec-start": _START_KEYS}.get(verb)
    if known is None:
        if body:
            raise Denied("it has a body where docker's own clients send none")
        return {}
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise Denied("its body is not a JSON object")
    kept = {}
    for name, value in document.items():
        if name not in known and value in (None, False, "", []):
            continue
        if name not in known:
            raise Denied(f"an exec with `{name[:40]}` is not allowed")
        if value is not None and not known[name](value):
            raise Denied(f"the value of `{name}` is not allowed")
        kept[name] = value
    if verb == "exec" and not kept.get("Cmd"):
        raise Denied("an exec needs a command")
    if verb == "exec-start" and not kept.get("Detach") and not upgrade:
        raise Denied("an exec that is not detached must ask for a stream (`Upgrade: tcp`)")
    return kept


class Grant(NamedTuple):
    """``restart,logs:web,db``: these verbs on these containers.

    Attributes:
        verbs: Of :data:`VERBS`.
        names: Names of containers; ``*`` stands for any characters.
    """

    verbs: frozenset[str]
    names: tuple[str, ...]


class Rules:
    """What a person has allowed.

    Args:
        grants: Each adds to the others.
    """

    def __init__(self, grants: Iterable[Grant]) -> None:
        self.grants = tuple(grants)

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Rules:
        """Read ``VERB,VERB:NAME,NAME``, any number of times.

        Raises:
            ConfigError: One cannot be used, or there is none.
        """
        grants = []
        for text in texts:
            verbs, colon, names = text.partition(":")
            grant = Grant(frozenset(filter(None, verbs.split(","))), tuple(filter(None, names.split(","))))
            if not colon or not grant.verbs or not grant.names:
                raise ConfigError(f"{text!r} is not VERBS:CONTAINERS; say for example `restart,logs:web,db`.")
            for verb in sorted(grant.verbs - set(VERBS)):
                raise ConfigError(f"There is no verb {verb!r} that can be allowed; choose from {', '.join(VERBS)}.")
            for name in grant.names:
                if not _PATTERN.match(name):
                    raise ConfigError(f"{name!r} cannot be the name of a container; use its name, `*` is a wildcard.")
            grants.append(grant)
        if not grants:
            raise ConfigError("Nothing is allowed; say what is, for example with `--allow restart,logs:web,db`.")
        return cls(grants)

    def allows(self, verb: str, name: str) -> bool:
        """Whether that may be done to the container of that name."""
        wanted = {verb} | {maker for maker, made in _IMPLIED.items() if made == verb}
        return any(grant.verbs & wanted and _named(grant, name) for grant in self.grants)

    def lists(self, name: str) -> bool:
        """Whether the container of that name is in any grant, so that a list may show it."""
        return any(_named(grant, name) for grant in self.grants)


def _named(grant: Grant, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in grant.names)


def mighty(container: Mapping[str, Any], own_folder: str = "") -> str:
    """Why a command in this container would be outside of every sandbox, as a clause; empty if nothing says so.

    Args:
        container: The daemon's document of it.
        own_folder: The folder of the proxy's socket: what has that mounted is the agent's own container.
    """
    host = container.get("HostConfig") or {}
    if host.get("Privileged"):
        return "it is privileged"
    if host.get("PidMode") == "host":
        return "it sees the host's processes"
    strong = {str(name).upper().removeprefix("CAP_") for name in host.get("CapAdd") or ()}
    if found := sorted(strong & {"ALL", "SYS_ADMIN", "SYS_MODULE", "SYS_PTRACE", "SYS_RAWIO", "DAC_READ_SEARCH"}):
        return f"it has the capability {found[0]}"
    if host.get("Devices") or host.get("DeviceCgroupRules"):
        return "it has devices of the host"
    for mount in container.get("Mounts") or ():
        source = str(mount.get("Source") or "")
        if own_folder and own_folder in (source, str(mount.get("Destination") or "")):
            return "it is the agent's own, where the worker runs"
        if mount.get("Type") == "bind" and (source in _WHOLE or source.endswith("docker.sock")):
            return f"it has {source} of the host"
    return ""


_TOP = ("boot", "dev", "etc", "home", "lib", "proc", "root", "run", "sys", "usr", "var", "")
_WHOLE = frozenset([*(f"/{name}" for name in _TOP), "/var/lib", "/var/lib/docker", "/var/run"])


def shown(container: dict[str, Any]) -> dict[str, Any]:
    """The daemon's document of a container without the values of its environment, which hold its secrets."""
    config = container.get("Config")
    if isinstance(config, dict) and isinstance(config.get("Env"), list):
        hidden = [f"{str(item).partition('=')[0]}={_ENVIRONMENT_SHOWN}" for item in config["Env"]]
        return {**container, "Config": {**config, "Env": hidden}}
    return container

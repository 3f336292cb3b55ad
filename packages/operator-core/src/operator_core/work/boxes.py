"""Sandboxes for a phase of a session: its network, and the credentials that it may use without seeing them."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path

from operator_core.config import Credential, Settings
from operator_core.db.journal import Journal
from operator_core.errors import ConfigError
from operator_core.model.entry import Draft, EntryKind
from operator_core.redaction import Redactor
from operator_core.sandbox import Limits, Network, Policy, Sandbox, open_sandbox
from operator_core.sandbox.egress.rules import Rules
from operator_core.sandbox.options import Decision, OnEgress, Options, Secret
from operator_core.text import clip, printable

__all__ = ["CHECKS", "check_network", "learn_credentials", "make_box", "network_words", "session_policy"]

CHECKS = "checks"
"""The phase of the platform's own commands."""

_LINE = 20
_MOST = 1 << 16


def session_policy(
    settings: Settings,
    workspace: Path,
    *,
    readable: Iterable[Path],
    network: Network,
    allow_hosts: Iterable[str],
    timeout_s: float | None = None,
) -> Policy:
    """What the commands of a session see and reach: what it says itself, and what the installation says.

    Args:
        readable: Folders, beside those of ``[sandbox] readable``.
        allow_hosts: Hosts, beside those of ``[sandbox] allow_hosts``.
        timeout_s: Default limit of a command; None: ``[limits] command_timeout_s``.
    """
    sandbox = settings.sandbox
    return Policy(
        workspace=workspace,
        readable=(*sandbox.readable, *readable),
        network=network,
        allow_hosts=(*sandbox.allow_hosts, *allow_hosts),
        env_passthrough=sandbox.env_passthrough,
        limits=Limits(timeout_s=timeout_s or settings.limits.command_timeout_s),
    )


def make_box(
    settings: Settings,
    policy: Policy,
    *,
    session_dir: Path,
    redactor: Redactor,
    phase: str,
    journal: Callable[[], Awaitable[Journal]],
) -> Sandbox:
    """A sandbox, not started, whose way out is journaled.

    Args:
        policy: What its commands may see and reach; the secret files of the phase are added.
        phase: ``worker_1``, ``verifier_1``, ..., or :data:`CHECKS`.
        journal: Gives the session's journal, which is open by then.

    Raises:
        ConfigError: Its commands could see a credential that they must not see, or a secret file is missing.
    """
    learn_credentials(redactor, settings)
    _keep_out(settings, policy)
    files = {c.name: _present(c) for c in settings.credential if _role(phase) in c.phases}
    sandbox = settings.sandbox
    options = Options(
        on_unavailable=sandbox.on_unavailable,
        docker_image=sandbox.docker_image,
        docker_program=sandbox.docker_program,
        secrets=tuple(_secret(c, redactor) for c in settings.credential if c.hosts),
        on_egress=_journaling(journal, phase),
    )
    policy = replace(policy, secret_files=files, run_as=sandbox.run_as)
    return open_sandbox(sandbox.backend, policy, session_dir=session_dir, redact=redactor.filter, options=options)


def learn_credentials(redactor: Redactor, settings: Settings) -> None:
    """Let a redactor know the configured credentials; one that cannot be read now is learned when it is used."""
    for credential in settings.credential:
        try:
            value = _read(credential)
        except (OSError, ValueError):
            continue
        _learn(redactor, value)


def check_network(settings: Settings) -> None:
    """Make sure that all configured hosts can be understood, before somebody relies on them.

    Raises:
        ConfigError: One cannot; the message names it.
    """
    from operator_core.sandbox.egress.broker import Broker

    Rules.parse(settings.sandbox.allow_hosts)
    for subject in settings.subject:
        Rules.parse(subject.allow_hosts)
    Broker([_secret(c, Redactor()) for c in settings.credential if c.hosts])


def network_words(settings: Settings, policy: Policy, phase: str) -> list[str]:
    """What an agent has to know about its network and its credentials; nothing where there is nothing to say."""
    rules = Rules.parse(policy.allow_hosts)
    if settings.sandbox.backend == "none":
        if policy.network != "allowlist":
            return []
        return [
            f"Network: you may reach {rules.words(50)}, and nothing else. Nothing enforces that here, so keep to it."
        ]
    lines = []
    if policy.network == "allowlist":
        lines.append(
            f"Network: through the proxy in HTTP_PROXY and HTTPS_PROXY commands reach {rules.words(50)}, and nothing "
            "else; a refusal is a 403 that says why. Nothing in here can change what is allowed: if you need more, say "
            "which host and why when you end."
        )
        if any(rule.explicit for rule in rules.rules):
            lines.append("A server that you start in here is at `localhost`; the addresses above are outside.")
        for credential in settings.credential:
            if credential.hosts:
                lines.append(
                    f"Credential {credential.name}: ask {Rules.parse(credential.hosts).words()} by plain "
                    f"`http://HOST/...`; the proxy adds the header {credential.header} and speaks TLS to the host. You "
                    "need not, and cannot, see its value."
                )
    for credential in settings.credential:
        if _role(phase) in credential.phases:
            lines.append(f"The file /run/secrets/{credential.name} holds a secret; use it there and show it nowhere.")
    return lines


def _role(phase: str) -> str:
    return phase.partition("_")[0]


def _read(credential: Credential) -> str:
    """The secret.

    Raises:
        OSError: Its file cannot be read.
        ValueError: It is no text, or too long for a secret, or its variable is not set.
    """
    place = _place(credential)
    if place is not None:
        if not place.is_file():
            raise OSError("it is no plain file")
        with place.open("rb") as file:
            data = file.read(_MOST + 1)
        if len(data) > _MOST:
            raise ValueError("the file is too long")
        return data.decode()
    value = os.environ.get(credential.env or "")
    if value is None:
        raise ValueError("the variable is not set")
    return value


def _learn(redactor: Redactor, value: str) -> None:
    lines = value.splitlines()
    redactor.learn([value, value.strip(), *(line.strip() for line in lines if len(lines) > 1 and len(line) >= _LINE)])


def _secret(credential: Credential, redactor: Redactor) -> Secret:
    def read() -> str:
        value = _read(credential)
        _learn(redactor, value)
        return value

    return Secret(credential.name, credential.hosts, credential.header, credential.value, read)


def _place(credential: Credential) -> Path | None:
    return Path(os.path.abspath(credential.file.expanduser())) if credential.file else None


def _present(credential: Credential) -> Path:
    place = _place(credential)
    if place is None or not place.is_file():
        raise ConfigError(f"The file {place} of the credential {credential.name} is not there; put it there.")
    return place


def _keep_out(settings: Settings, policy: Policy) -> None:
    shown = [Path(os.path.realpath(path)) for path in (policy.workspace, *policy.readable, *policy.writable)]
    for credential in settings.credential:
        name, place = credential.name, _place(credential)
        if place is not None and any(Path(os.path.realpath(place)).is_relative_to(folder) for folder in shown):
            raise ConfigError(
                f"The file {place} of the credential {name} is in a folder that the agent sees; put it elsewhere."
            )
        if credential.env is not None and credential.env in (*policy.env_passthrough, *policy.env):
            raise ConfigError(
                f"The variable `{credential.env}` holds the credential {name}, which no command may see; take it out "
                "of `env` and `env_passthrough`."
            )
        try:
            value = _read(credential).strip()
        except (OSError, ValueError):
            continue
        found = next((key for key, text in policy.env.items() if value and value in text), None)
        if found is not None:
            raise ConfigError(
                f"The variable `{found}` of the agent's commands holds the credential {name}, which no command may "
                "see; take it out of `env`."
            )


def _journaling(journal: Callable[[], Awaitable[Journal]], phase: str) -> OnEgress:
    async def note(decision: Decision) -> None:
        word = "allowed" if decision.allowed else "refused"
        where = f"{decision.method} {decision.host}:{decision.port}" if decision.host else "a request"
        text = clip(printable(f"{word}: {where}: {decision.why}"), 300)
        draft = Draft(EntryKind.EGRESS, text, body=decision._asdict(), phase=phase)
        await (await journal()).append(draft)

    return note

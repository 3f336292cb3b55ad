"""Is this dev box complete and healthy (row B-053)? Nothing is changed, and nobody is asked to sign in."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path

from operator_core.cli.doctor import try_sandbox
from operator_core.cli.finding import Finding
from operator_core.config import Settings
from operator_core.errors import ConfigError, OperatorError
from operator_core.text import first_line, printable
from operator_dataverse.errors import OneDriveNotFound
from operator_dataverse.machine.programs import ask, find, small_environment
from operator_dataverse.machine.service import ENVIRONMENT_FILE, SECRETS_PLACE, Service
from operator_dataverse.machine.setup import command_line
from operator_dataverse.machine.signin import claude_sign_in, who_am_i
from operator_dataverse.settings import settings_of

__all__ = ["verify"]

_SETUP = "run `operator-dataverse setup`"
_SIGN_IN = "run `operator-dataverse authenticate`"


def verify(settings: Settings, environ: Mapping[str, str], service: Service | None) -> list[Finding]:
    """Look at everything that a worker on this machine uses.

    Args:
        settings: Of the product.
        environ: Of this process.
        service: The worker's service; None: this platform has none that is known here.
    """
    env = small_environment(environ)
    findings = [_python(), _git(environ, env), _sandbox(settings)]
    findings += _claude(settings, env)
    findings += _dataverse(settings, environ)
    findings += [_onedrive(settings), _work_dir(settings), _model(settings, environ), _service(service)]
    return findings + _environment_file()


def _python() -> Finding:
    version = ".".join(str(part) for part in sys.version_info[:3])
    good = (3, 11) <= sys.version_info[:2] < (3, 14)
    detail = f"{version} at {sys.executable}"
    return Finding("python", "ok", detail) if good else Finding("python", "wrong", f"{detail}; use 3.11, 3.12 or 3.13")


def _git(environ: Mapping[str, str], env: Mapping[str, str]) -> Finding:
    program = find("git", environ)
    if program is None:
        return Finding("git", "wrong", f"missing; {_SETUP}")
    answer = ask((program, "--version"), env)
    if answer.code != 0:
        return Finding("git", "wrong", f"{program} does not work: {answer.said}")
    return Finding("git", "ok", f"{first_line(printable(answer.out))} at {program}")


def _sandbox(settings: Settings) -> Finding:
    try:
        report = asyncio.run(try_sandbox(settings))
    except OperatorError as error:
        return Finding("sandbox", "wrong", str(error))
    except ImportError:
        # The agents' sandbox is made of what only Unix has.
        return Finding("sandbox", "wrong", "there is none on this platform; run the worker in WSL or on Linux")
    verified = sum(control.state == "verified" for control in report.controls.values())
    detail = f"{report.backend}, {report.level}: {verified} of {len(report.controls)} controls verified by attack"
    return Finding("sandbox", "ok" if report.level == "isolated" else "warning", detail)


def _claude(settings: Settings, env: Mapping[str, str]) -> list[Finding]:
    from operator_core.agent_lab.claude_code import find_program, program_version

    needed = settings.tasks.engine == "claude-code"
    try:
        program = find_program(settings.claude_code)
    except ConfigError as error:
        return [Finding("claude code", "wrong" if needed else "warning", str(error))]
    found = Finding("claude code", "ok", f"{program_version(program) or 'unknown version'} at {program}")
    answer = claude_sign_in(program, env)
    if answer.signed_in:
        return [found, Finding("claude sign-in", "ok", answer.detail)]
    return [found, Finding("claude sign-in", "warning", f"{answer.detail}; {_SIGN_IN}")]


def _dataverse(settings: Settings, environ: Mapping[str, str]) -> list[Finding]:
    mine = settings_of(settings)
    program = find("az", environ)
    if program is not None:
        azure = Finding("azure", "ok", f"`az` at {program}")
    elif mine.secret(mine.token_env):
        azure = Finding("azure", "ok", f"`az` is missing, and not needed: a token is in ${mine.token_env}")
    else:
        azure = Finding(
            "azure", "warning", f"`az` is missing; {_SETUP}, unless this machine has an identity of its own"
        )
    try:
        mine.needs("url", "user")
    except OperatorError as error:
        return [azure, Finding("dataverse", "wrong", str(error))]
    return [azure, who_am_i(mine)]


def _onedrive(settings: Settings) -> Finding:
    from operator_dataverse.onedrive import find_onedrive

    mine = settings_of(settings)
    if not mine.onedrive:
        return Finding("onedrive", "skipped", "switched off by `[dataverse] onedrive`")
    try:
        found = find_onedrive(mine.onedrive_dir)
    except OneDriveNotFound as error:
        return Finding("onedrive", "warning", str(error))
    except OperatorError as error:
        return Finding("onedrive", "wrong", str(error))
    return Finding("onedrive", "ok", f"{found.path}, found by {found.source}")


def _work_dir(settings: Settings) -> Finding:
    from operator_dataverse.onedrive import find_session_root

    try:
        root = find_session_root(settings)
    except OperatorError as error:
        return Finding("work folder", "wrong", str(error))
    return Finding("work folder", "ok", f"{root.path} can be written" if root.path else root.why)


def _model(settings: Settings, environ: Mapping[str, str]) -> Finding:
    name = settings.model.api_key_env
    if settings.model.engine != "anthropic":
        return Finding("model key", "skipped", f"the engine is `{settings.model.engine}`")
    if environ.get(name):
        return Finding("model key", "ok", f"${name} is set here")
    if name in _names_in(Path(ENVIRONMENT_FILE).expanduser()):
        return Finding("model key", "ok", f"{name} is set in {ENVIRONMENT_FILE}")
    return Finding("model key", "wrong", f"{name}, the key of the model service, is not set; set it {SECRETS_PLACE}")


def _service(service: Service | None) -> Finding:
    if service is None:
        return Finding("service", "skipped", "this platform has none that is known here")
    state = service.state()
    if state.installed:
        return Finding("service", "ok", state.detail)
    command = command_line(("operator-dataverse", "service", "--install"))
    return Finding("service", "warning", f"{state.detail}; the worker starts by hand only: run `{command}`")


def _environment_file() -> list[Finding]:
    path = Path(ENVIRONMENT_FILE).expanduser()
    try:
        mode = path.stat().st_mode
    except OSError:
        return []
    if os.name == "posix" and mode & (stat.S_IRWXG | stat.S_IRWXO):
        detail = f"others can read the secrets in {path}; run `{command_line(('chmod', '600', str(path)))}`"
        return [Finding("secrets", "wrong", detail)]
    return []


def _names_in(path: Path) -> set[str]:
    """The variables that an environment file sets to something."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return set()
    pairs = (line.strip().partition("=") for line in lines if not line.strip().startswith(("#", ";")))
    return {name.strip() for name, _, value in pairs if value.strip().strip("'\"")}

"""Choosing a backend by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from operator_core.errors import ConfigError
from operator_core.sandbox.options import Options
from operator_core.sandbox.policy import Policy
from operator_core.sandbox.protocol import RedactFilter, Sandbox

__all__ = ["BACKENDS", "open_sandbox"]

BACKENDS = ("auto", "bubblewrap", "docker", "landlock", "none")


def open_sandbox(
    backend: str,
    policy: Policy,
    *,
    session_dir: Path,
    redact: Callable[[], RedactFilter] | None = None,
    options: Options = Options(),
) -> Sandbox:
    """Make a sandbox; nothing happens before its ``start``.

    Args:
        backend: ``bubblewrap``, ``docker`` (needs ``options.docker_image``), ``landlock`` (the degraded tier),
            ``none`` (no isolation at all), or ``auto``: bubblewrap, then docker if an image is configured, then
            landlock if ``options.on_unavailable`` is ``degrade``, then a refusal that names every reason. ``auto`` goes
            on only past a backend that cannot start here; one that started and did not hold is a refusal.
        policy: What commands see and may change.
        session_dir: A directory of this session, outside of the workspace; it is made. ``tmp``, ``home``, ``out``,
            ``etc`` and ``state`` below it belong to the sandbox, and ``close`` removes them.
        redact: Makes one filter per output stream; default no filter.
        options: Choices of the installation.

    Raises:
        ConfigError: There is no such backend.
    """
    if backend not in BACKENDS:
        raise ConfigError(f"The sandbox backend {backend!r} does not exist; choose one of {', '.join(BACKENDS)}.")
    if backend != "auto":
        return _make(backend, policy, session_dir, redact, options)
    names = ["bubblewrap"]
    if options.docker_image is not None:
        names.append("docker")
    if options.on_unavailable == "degrade":
        names.append("landlock")
    if len(names) == 1:
        return _make(names[0], policy, session_dir, redact, options)
    from operator_core.sandbox.fallback import FirstThatStarts

    return FirstThatStarts([partial(_make, name, policy, session_dir, redact, options) for name in names])


def _make(
    name: str, policy: Policy, session_dir: Path, redact: Callable[[], RedactFilter] | None, options: Options
) -> Sandbox:
    if name == "bubblewrap":
        from operator_core.sandbox.bubblewrap.backend import BubblewrapSandbox

        return BubblewrapSandbox(policy, session_dir, redact, options)
    if name == "docker":
        from operator_core.sandbox.docker.backend import DockerSandbox

        return DockerSandbox(policy, session_dir, redact, options)
    if name == "landlock":
        from operator_core.sandbox.supervised.landlock import LandlockSandbox

        return LandlockSandbox(policy, session_dir, redact, options)
    from operator_core.sandbox.local import LocalSandbox

    return LocalSandbox(policy, session_dir, redact, options)

"""The backend of one hardened container for each session (docker or podman)."""

from operator_core.sandbox.docker.backend import DockerSandbox

__all__ = ["DockerSandbox"]

"""Asking the docker (or podman) program: its answers, why it does not answer, and containers of dead workers."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
from typing import NamedTuple

from operator_core.errors import SandboxUnavailable
from operator_core.sandbox.owner import is_left_over

__all__ = ["LABEL", "Docker", "explain"]

LABEL = "operator.worker"
"""On each container: the process that it belongs to, as :func:`~operator_core.sandbox.owner.owner` says it."""

_WAIT_S = 60.0
_PASSED = ("PATH", "HOME", "DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "XDG_RUNTIME_DIR")


class _Answer(NamedTuple):
    code: int
    out: str
    error: str


def explain(program: str, image: str, error: str) -> tuple[str, str]:
    """Reason and remedy for what the program said.

    Args:
        program: ``docker`` or ``podman``.
        image: What was to be run.
        error: Its standard error.
    """
    lines = [line.strip() for line in error.splitlines() if line.strip() and not line.startswith(("See '", "Run '"))]
    said = lines[-1] if lines else "nothing"
    for prefix in (f"{program}: ", "Error response from daemon: "):
        said = said.removeprefix(prefix)
    said = said.rstrip(".")
    reason = f"{program} failed with `{said[:300]}`"
    lowered = error.lower()
    if "permission denied" in lowered and (".sock" in lowered or "daemon socket" in lowered):
        return reason, (
            "run Operator as root, or add its user to the group that owns the socket with `usermod -aG docker USER` "
            "and log in again"
        )
    if "cannot connect to the docker daemon" in lowered or "is the docker daemon running" in lowered:
        return reason, "start the daemon with `systemctl start docker`"
    if "no such image" in lowered or "unable to find image" in lowered or "image not known" in lowered:
        return reason, (
            f"build or load the image `{image}`; the one that comes with Operator is made by "
            f"`docker build -f docker/agent/Dockerfile -t {image} docker/agent`"
        )
    if (
        "executable file not found" in lowered
        or "no such file or directory: unknown" in lowered
        or "/bin/bash" in lowered
    ):
        return reason, f"use an image with Python 3.9 or later and bash as `python3` and `/bin/bash`, unlike `{image}`"
    if "bind source path does not exist" in lowered:
        return reason, "let the daemon run on this machine, where it sees the same files"
    return reason, f"run `{program} run --rm {image} true` by hand, and fix what it says"


class Docker:
    """The program.

    Args:
        program: ``docker`` or ``podman``.

    Raises:
        SandboxUnavailable: It is not installed.
    """

    _swept: set[str] = set()  # noqa: RUF012 - once per process and program

    def __init__(self, program: str) -> None:
        found = shutil.which(program)
        if found is None:
            raise SandboxUnavailable(f"{program} is not installed (no `{program}` on PATH)", f"install {program}")
        self.name = os.path.basename(program)
        self._path = found
        # Podman has no server, unless it is somebody else's.
        part = "Client" if self.name == "podman" else "Server"
        self.version_words = ("version", "--format", f"{{{{.{part}.Version}}}}")

    def ask(self, *arguments: str, timeout: float = _WAIT_S) -> _Answer:
        """Run it to its end (blocking)."""
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        try:
            done = subprocess.run(
                [self._path, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
                env=environment,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return _Answer(-1, "", f"it did not answer within {timeout:.0f} s")
        return _Answer(done.returncode, done.stdout.strip(), done.stderr.strip())

    def version(self) -> str:
        """``docker 20.10.24``: that of the daemon, if there is one."""
        return _version(self, self._path)

    def check(self, image: str | None) -> None:
        """Make sure that it answers, and that it has an image.

        Raises:
            SandboxUnavailable: It does not; the error has reason and remedy.
        """
        answer = self.ask(*self.version_words)
        if answer.code == 0 and image is not None:
            answer = self.ask("image", "inspect", "--format", "{{.Id}}", image)
        if answer.code:
            raise SandboxUnavailable(*explain(self.name, image or "an image", answer.error))

    def remove(self, container: str) -> None:
        """Kill and remove a container; harmless if it is gone."""
        self.ask("rm", "--force", "--volumes", container, timeout=20.0)

    def sweep(self) -> list[str]:
        """Remove the containers of dead workers, once per process; their names."""
        if self._path in self._swept:
            return []
        self._swept.add(self._path)
        listed = self.ask(
            "ps", "--all", "--filter", f"label={LABEL}", "--format", f'{{{{.Names}}}} {{{{.Label "{LABEL}"}}}}'
        )
        stale = [
            name
            for name, _, identity in (line.partition(" ") for line in listed.out.splitlines())
            if is_left_over(identity)
        ]
        for name in stale:
            self.remove(name)
        return stale


@functools.lru_cache(maxsize=4)
def _version(docker: Docker, path: str) -> str:
    answer = docker.ask(*docker.version_words)
    with contextlib.suppress(IndexError):
        if answer.code == 0:
            return f"{docker.name} {answer.out.split()[0]}"
    return docker.name

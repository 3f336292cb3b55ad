"""A docker daemon, and the containers that a test makes on it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

__all__ = ["AGENT_IMAGE", "OPERATOR_IMAGE", "docker", "docker_missing", "product_missing", "running_container"]

# `make images` builds them.
AGENT_IMAGE = "operator-agent:test"
OPERATOR_IMAGE = "operator:test"
_INSIDE = (
    "docker", "run", "--rm", "--network", "none", "--entrypoint", "/opt/operator/bin/python", OPERATOR_IMAGE,
)  # fmt: skip


def docker(*words: str, check: bool = True, timeout: float = 60.0, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run the docker command on the machine's own daemon."""
    done = subprocess.run(["docker", *words], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    assert not check or done.returncode == 0, f"docker {' '.join(words)}: {done.stdout}{done.stderr}"
    return done


def docker_missing() -> str:
    """Why tests cannot use docker and the tool base here, as a clause; empty if they can."""
    try:
        done = docker("image", "inspect", "--format", "{{.Id}}", AGENT_IMAGE, check=False, timeout=20)
    except FileNotFoundError:
        return "docker is not installed"
    except subprocess.TimeoutExpired:
        return "the docker daemon does not answer"
    if done.returncode == 0:
        return ""
    if "No such image" in done.stderr:
        return f"the image {AGENT_IMAGE} is not built"
    return f"docker does not work here ({done.stderr.strip().splitlines()[-1]})"


# Run here, and in the image.
_HASH = """
import hashlib, pathlib, operator_core
folder = pathlib.Path(operator_core.__file__).parent
files = sorted(path for path in folder.rglob("*.py") if "fix-failing-test" not in path.parts)
parts = [str(path.relative_to(folder)).encode() + path.read_bytes() for path in files]
print(hashlib.sha256(b"".join(parts)).hexdigest())
"""


def product_missing() -> str:
    """Why tests cannot use the product's image here, as a clause; empty if they can.

    An image of other code counts as missing: what it shows is not about this code.
    """
    if docker("image", "inspect", OPERATOR_IMAGE, check=False, timeout=20).returncode != 0:
        return f"the image {OPERATOR_IMAGE} is not built"
    same = _product(*_INSIDE) == _product(sys.executable)
    return "" if same else f"the image {OPERATOR_IMAGE} was built from other code"


def _product(*program: str) -> str:
    argv = [*program, "-c", _HASH]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False).stdout


@contextlib.contextmanager
def running_container(*options: str, command: tuple[str, ...] = ("sleep", "1000")) -> Iterator[str]:
    """The name of a container that runs until the block ends.

    Args:
        options: For ``docker run``.
        command: What runs in it.
    """
    name = f"operator-test-{os.urandom(4).hex()}"
    docker("run", "-d", "--init", "--name", name, "--network", "none", *options, "python:3.12-slim", *command)
    try:
        yield name
    finally:
        docker("rm", "-f", "-v", name, check=False)

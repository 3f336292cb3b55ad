"""The container files as text: what they install, what they must not have, and what they must not name."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import operator_environment

ROOT = Path(__file__).parents[2]
AGENT = ROOT / "docker/agent/Dockerfile"
OPERATOR = ROOT / "docker/operator/Dockerfile"
TOOLS = "curl wget jq vim git netcat-openbsd dnsutils iputils-ping htop tcpdump traceroute nmap docker.io"
PACKAGES = "anthropic httpx redis pyyaml pandas numpy prometheus-client"
OURS = [
    *sorted((ROOT / "docker").rglob("*")),
    *sorted(ROOT.glob("docker-compose*.yml")),
    *(ROOT / "scripts" / name for name in ("docker-daemon", "base-image")),
    ROOT / ".dockerignore",
]
FILES = [path for path in OURS if path.is_file()]


def instructions(path: Path) -> list[tuple[str, str]]:
    """A Dockerfile's instructions as pairs, in order."""
    text = re.sub(r"^\s*#.*\n", "", path.read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n", " ", text).splitlines()
    pairs = [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]
    return [(pair[0], " ".join(pair[1].split())) for pair in pairs]


def runs(path: Path) -> list[str]:
    return [words for name, words in instructions(path) if name == "RUN"]


def test_the_tool_base_starts_from_the_slim_image_and_brings_neither_files_nor_a_command() -> None:
    found = instructions(AGENT)
    assert found[0] == ("FROM", "python:3.12-slim")
    assert {name for name, _ in found} == {"FROM", "ENV", "RUN", "WORKDIR"}


def test_the_tools_are_one_layer_that_leaves_no_lists_behind() -> None:
    (layer,) = [words for words in runs(AGENT) if "apt-get" in words]
    install = re.search(r"apt-get install -y --no-install-recommends ([^&]*)", layer)
    assert install is not None
    assert install[1].split("$(")[0].split() == TOOLS.split()
    assert layer.endswith("rm -rf /var/lib/apt/lists/*")
    assert "docker --version" in layer, "a missing docker command fails the build"


def test_the_python_packages_are_one_layer_without_a_cache() -> None:
    (layer,) = [words for words in runs(AGENT) if "pip" in words]
    words = shlex.split(layer)
    assert words[:4] == ["pip", "install", "--no-cache-dir", *PACKAGES.split()[:1]]
    assert words[3:] == PACKAGES.split()


def test_the_folder_for_the_audit_is_made_in_the_working_folder() -> None:
    assert ("WORKDIR", "/app") in instructions(AGENT)
    assert "mkdir -p /app/audit_logs" in runs(AGENT)


def test_the_product_is_installed_by_hash_and_runs_as_a_user() -> None:
    found = instructions(OPERATOR)
    names = [name for name, _ in found]
    assert ("USER", "agent") in found
    assert names.index("USER") < names.index("ENTRYPOINT")
    assert any("--require-hashes" in words for words in runs(OPERATOR))
    assert ("ENTRYPOINT", '["tini", "--", "operator"]') in found
    assert ("ARG", "BASE=operator-agent:test") in found


def test_everything_that_is_copied_is_in_the_context() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in ignored if line.startswith("!")]
    assert "*" in ignored
    sources = [
        w for n, words in instructions(OPERATOR) if n == "COPY" and "--from" not in words for w in words.split()[:-1]
    ]
    assert sorted(sources) == sorted(allowed)
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_address_of_a_registry_or_a_mirror_is_written_down(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"https?://(?!127\.0\.0\.1)", text)
    assert not re.search(r"--(index-url|extra-index-url|find-links|trusted-host|registry-mirror)\b", text)
    assert not re.search(r"^\s*(FROM|image:)\s+\S+\.\S+/", text, re.MULTILINE)


def test_the_filter_of_the_service_leaves_what_makes_a_sandbox_and_little_else_of_the_kernel() -> None:
    profile = json.loads((ROOT / "docker/operator/seccomp.json").read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ALLOW"
    refused = {name for rule in profile["syscalls"] if "args" not in rule for name in rule["names"]}
    needed = {"clone", "clone3", "unshare", "setns", "mount", "umount2", "pivot_root", "chroot"}
    assert not refused & needed
    assert {"bpf", "keyctl", "kexec_load", "init_module", "io_uring_setup", "open_by_handle_at"} <= refused
    assert {"add_key", "move_mount", "open_tree", "perf_event_open", "reboot", "request_key", "userfaultfd"} <= refused
    (vsock,) = [rule for rule in profile["syscalls"] if "args" in rule]
    assert (vsock["names"], vsock["args"][0]["value"]) == (["socket"], 40)


@pytest.mark.parametrize("name", ["docker-daemon", "base-image"])
def test_without_a_daemon_the_scripts_say_why_in_one_line(name: str, tmp_path: Path) -> None:
    env = operator_environment({"DOCKER_HOST": f"unix://{tmp_path}/none.sock"})
    done = subprocess.run(
        [ROOT / "scripts" / name], env=env, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "DOCKER_HOST" in done.stderr


def test_the_scripts_can_be_run() -> None:
    assert all(os.access(ROOT / "scripts" / name, os.X_OK) for name in ("docker-daemon", "base-image"))

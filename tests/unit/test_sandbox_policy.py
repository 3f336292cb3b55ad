"""Policies, names that look secret, backend names, reports: values without any process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from operator_core.errors import ConfigError
from operator_core.sandbox import Control, Limits, Policy, Report, open_sandbox
from operator_core.sandbox.environment import build_environment, interpreter_prefixes, search_path
from operator_core.sandbox.policy import looks_secret
from operator_core.sandbox.selftest.findings import CORE, Answers, Evidence, judge, parse
from operator_core.sandbox.selftest.promise import Promise


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True), ("AWS_SECRET_ACCESS_KEY", True), ("GITHUB_TOKEN", True), ("PGPASSWORD", True),
        ("SSH_AUTH_SOCK", True), ("DATABASE_URL", True), ("SENTRY_DSN", True), ("db_pass", True), ("MYSQL_PWD", True),
        ("PATH", False), ("GIT_AUTHOR_NAME", False), ("KEYBOARD", False), ("PWD", False), ("TZ", False),
        ("COMPASS", False),
    ],
)  # fmt: skip
def test_names_that_look_secret(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"network": "all"}, "all"),
        ({"env_passthrough": ("GITHUB_TOKEN",)}, "GITHUB_TOKEN"),
        ({"env": {"A=B": "c"}}, "A=B"),
        ({"env": {"A": "c\0d"}}, "NUL"),
        ({"readable": (Path("lib"),)}, "lib"),
        ({"workspace": Path("/")}, "`/`"),
        ({"workspace": Path("/no/such/place")}, "/no/such/place"),
    ],
)
def test_a_policy_that_cannot_work_is_refused(tmp_path: Path, change: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        Policy(**{"workspace": tmp_path, **change})


@pytest.mark.parametrize("change", [{"timeout_s": 0}, {"head": -1}, {"memory": "1G"}, {"procs": True}])
def test_limits_that_cannot_work_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(change))):
        Limits(**change)


def test_a_policy_does_not_change_with_what_it_was_made_of(tmp_path: Path) -> None:
    env = {"A": "1"}
    policy = Policy(tmp_path, env=env)
    env["A"] = "2"
    assert policy.env["A"] == "1"


def test_unknown_backends_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="choose one of auto, bubblewrap, docker, landlock, none"):
        open_sandbox("chroot", Policy(tmp_path), session_dir=tmp_path / "s")


def test_the_environment_is_an_allow_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_OF_THE_HOST", "canary")
    monkeypatch.setenv("TZ", "Europe/Paris")
    policy = Policy(tmp_path, env={"A": "policy", "B": "policy"}, env_passthrough=("TZ", "NOT_SET"))
    env = build_environment(policy, {"PATH": "/bin"}, {"A": "call"})
    assert "canary" not in env.values()
    assert (env["A"], env["B"], env["TZ"], env["PAGER"]) == ("call", "policy", "Europe/Paris", "cat")
    assert "NOT_SET" not in env


def test_a_prefix_that_would_show_a_home_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home" / "someone"
    home.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    for prefix, shown in ((home, False), (tmp_path, False), (home / "venv", True), (Path("/opt"), False)):
        monkeypatch.setattr(sys, "prefix", str(prefix))
        assert (prefix in interpreter_prefixes()) is shown


def test_the_search_path_has_only_visible_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/opt/tool/bin:/opt/other/bin:relative:/opt/tool/bin")
    entries = search_path([Path("/opt/tool")]).split(":")
    assert entries.count("/opt/tool/bin") == 1
    assert "/opt/other/bin" not in entries
    assert "relative" not in entries
    assert "/usr/bin" in entries


def test_a_report_as_data_and_as_lines() -> None:
    report = Report("x 1", "open", {"network": Control("not_enforced", "host")}, 1.234, ("careful",))
    assert json.loads(json.dumps(report.to_dict()))["controls"] == {"network": {"state": "not_enforced", "how": "host"}}
    assert report.summary() == [
        "Sandbox: x 1, level open.", "Warning: careful", "  network  NOT ENFORCED: host",
    ]  # fmt: skip


GOOD = """
write held
read held
hidden held
devices held
kernel_memory held
ns_pid value pid:[1]
ns_mnt value mnt:[1]
ns_user value user:[1]
ns_ipc value ipc:[1]
ns_uts value uts:[1]
ns_net value net:[1]
processes value 3
sysctl held
sockets held
loopback held
interfaces value
environ value
CapEff: value 0000000000000000
CapPrm: value 0000000000000000
CapBnd: value 0000000000000000
NoNewPrivs: value 1
Seccomp: value 2
setuid held
protected value
perl value here
vsock held
packet held
abstract held
userns held
io_uring held
keyring held
"""
NOTHING = Evidence(written=False, read=False, survived=False, left=2)


PROMISE = Promise("test 1")


def test_all_held_is_verified(tmp_path: Path) -> None:
    controls, holes = judge(PROMISE, Policy(tmp_path), parse(GOOD), NOTHING)
    assert not holes
    assert {controls[name].state for name in CORE} == {"verified"}


@pytest.mark.parametrize("line", [line for line in GOOD.splitlines() if line])
def test_a_probe_that_did_not_answer_is_not_held(tmp_path: Path, line: str) -> None:
    answers = parse(GOOD.replace(line + "\n", "", 1))
    controls, holes = judge(PROMISE, Policy(tmp_path), answers, NOTHING)
    if line.startswith("perl"):
        assert controls["vsock"].state == "partial"
    else:
        assert "unavailable" in {item.state for item in controls.values()}
    assert holes or line.startswith(("perl", "protected"))


@pytest.mark.parametrize(
    ("line", "control"),
    [
        ("write open /etc", "filesystem.write"), ("read open /etc/shadow", "filesystem.read"),
        ("sysctl open x", "kernel.sysctl"), ("sockets open s", "unix_sockets"), ("abstract open s", "unix_sockets"),
        ("loopback open 1", "network"), ("interfaces value eth0:", "network"), ("environ value KEY", "secrets.env"),
        ("CapBnd: value 00000000a80425fb", "privileges"), ("Seccomp: value 0", "privileges"),
        ("userns open userns", "privileges"), ("setuid open f", "setuid"), ("vsock open vsock", "vsock"),
        ("processes value 140", "process.isolation"), ("git open .git", "workspace.exec_later"),
        ("protected value .git/config", "workspace.exec_later"),
    ],
)  # fmt: skip
def test_an_attack_that_succeeds_is_a_hole(tmp_path: Path, line: str, control: str) -> None:
    controls, holes = judge(PROMISE, Policy(tmp_path), parse(GOOD + line + "\n"), NOTHING)
    assert set(holes) == {control}
    assert controls[control].state == "not_enforced"


def test_what_is_seen_from_outside_counts(tmp_path: Path) -> None:
    _, holes = judge(PROMISE, Policy(tmp_path), parse(GOOD), Evidence(written=True, read=True, survived=True, left=2))
    assert set(holes) == {"filesystem.write", "filesystem.read", "kill_tree"}


def test_the_network_of_the_host_is_said_and_is_no_hole(tmp_path: Path) -> None:
    answers = parse(GOOD + "loopback open 1\nabstract open x\ninterfaces value eth0:\n")
    controls, holes = judge(PROMISE, Policy(tmp_path, network="host"), answers, NOTHING)
    assert not holes
    assert controls["network"].state == "not_enforced"
    assert controls["unix_sockets"].state == "partial"


@pytest.mark.parametrize(
    ("lines", "state", "word"),
    [
        ("egress value HTTP/1.1 403 Forbidden\n", "verified", "proxy"),
        ("egress value HTTP/1.1 200 OK\n", "not_enforced", "200 OK"),
        ("egress value HTTP/1.1 4030\n", "not_enforced", "4030"),
        ("egress value HTTP/1.1 403 Forbidden\nloopback open 80\n", "not_enforced", "80"),
        ("", "unavailable", "did not answer"),
    ],
)
def test_the_proxy_has_to_refuse(tmp_path: Path, lines: str, state: str, word: str) -> None:
    found = judge(PROMISE, Policy(tmp_path, network="allowlist"), parse(GOOD + lines), NOTHING)
    assert found.controls["network"].state == state
    assert word in found.controls["network"].how
    assert ("network" in found.holes) is (state != "verified")


def test_what_a_backend_does_not_promise_is_no_hole_and_not_verified(tmp_path: Path) -> None:
    gap, seen = Control("partial", "visible"), Control("verified", "a group")
    promise = Promise("weak", gaps={"process.isolation": gap}, found={"limits.memory": seen}, how={"setuid": "my way"})
    controls, holes = judge(promise, Policy(tmp_path), parse(GOOD + "processes value 900\n"), NOTHING)
    assert not holes
    assert controls["process.isolation"] == gap
    assert controls["limits.memory"] == seen
    assert controls["setuid"] == Control("verified", "my way")
    without = promise._replace(gaps={}, namespaces=(), processes=1 << 22)
    same = "".join(f"ns_{n} value {os.readlink(f'/proc/self/ns/{n}')}\n" for n in ("pid", "net", "mnt"))
    assert not judge(without, Policy(tmp_path), parse(GOOD + same + "interfaces value eth0:\n"), NOTHING).holes
    assert set(judge(PROMISE, Policy(tmp_path), parse(GOOD + same), NOTHING).holes) == {"process.isolation"}


@pytest.mark.parametrize(
    ("lines", "memory", "procs"),
    [
        ("limit_d value 2097152\nlimit_u value 512\nmemory held\nprocs held\n", "partial", "verified"),
        ("limit_d value 2097152\nlimit_u value 512\n", "partial", "partial"),
        ("limit_d value 2097152\nlimit_u value 512\nmemory open m\nprocs open p\n", "not_enforced", "not_enforced"),
        ("limit_d value unlimited\nlimit_u value 9999\nmemory held\nprocs held\n", "not_enforced", "not_enforced"),
    ],
)
def test_limits_count_only_where_the_attack_failed(tmp_path: Path, lines: str, memory: str, procs: str) -> None:
    controls, holes = judge(PROMISE, Policy(tmp_path), parse(GOOD + lines), NOTHING)
    assert not holes
    assert (controls["limits.memory"].state, controls["limits.procs"].state) == (memory, procs)


def test_nothing_answered_is_nothing_verified(tmp_path: Path) -> None:
    controls, holes = judge(PROMISE, Policy(tmp_path), Answers({}, set(), {}), NOTHING._replace(left=0))
    assert "verified" not in {item.state for item in controls.values()}
    assert set(holes) >= set(CORE)


@pytest.mark.usefixtures("cold")
def test_importing_the_room_imports_no_backend() -> None:
    code = (
        "import sys, operator_core.sandbox as s; s.Policy; "
        "bad = {'asyncio', 'subprocess', 'operator_core.sandbox.bubblewrap.backend'} & set(sys.modules); "
        "sys.exit(repr(bad) if bad else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

"""``operator-dataverse setup | authenticate | verify | service`` with programs on a PATH of the test's own."""

from __future__ import annotations

import configparser
import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import pytest

from operator_core.errors import ConfigError
from operator_dataverse.double import Double
from operator_dataverse.machine.programs import ask, attend, small_environment
from operator_dataverse.machine.service import Service, service_of
from operator_dataverse.machine.tools import MANAGERS, claude_code_commands
from tests.support.dataverse import double
from tests.support.players import Stage

__all__ = ["double"]

ALICE = "alice@example.com"
SECRET = "sk-never-to-be-seen"


class Ran(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def checks(self) -> dict[str, dict[str, Any]]:
        return {check["name"]: check for check in json.loads(self.out)["checks"]}


class Box:
    """A machine with only the programs that the test puts there."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder / "stage")
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.env = {
            "PATH": str(self.stage.bin),
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "PYTHONWARNINGS": "error",
            # So that no test installs the real one.
            "OPERATOR_CLAUDE_CODE__PROGRAM": str(Stage(folder / "elsewhere").player("claude")),
        }

    def configure(self, text: str = "") -> None:
        (self.work / "operator.toml").write_text(text)

    def argv(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "operator_dataverse", *words]

    def run(self, *words: str, **env: str) -> Ran:
        done = subprocess.run(
            self.argv(*words),
            env={**self.env, **env},
            cwd=self.work,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def box(tmp_path: Path) -> Box:
    return Box(tmp_path)


INSTALLS = """
package = words[-1]
names = {"bubblewrap": "bwrap", "azure-cli": "az", "Git.Git": "git", "Microsoft.AzureCLI": "az",
         "Docker.DockerDesktop": "docker", "docker-desktop": "docker"}
if "install" in words:
    program = bin / names.get(package, package)
    program.write_text("#!/bin/sh\\nexit 0\\n")
    program.chmod(0o755)
"""


def test_setup_says_the_exact_commands_and_changes_nothing(box: Box) -> None:
    box.stage.player("apt-get", INSTALLS)
    ran = box.run("setup", "--json")
    assert ran.code == 1
    install = ["apt-get", "install", "--yes", "--no-install-recommends"]
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    for name, package in (("git", "git"), ("bubblewrap", "bubblewrap"), ("azure", "azure-cli")):
        assert ran.checks[name]["facts"]["commands"] == [[*sudo, *install, package]]
    assert {name: check["state"] for name, check in ran.checks.items()} == {
        "python": "ok",
        "git": "wrong",
        "bubblewrap": "wrong",
        "azure": "warning",
        "configuration": "wrong",
        "claude code": "ok",
        "dataverse": "wrong",
    }
    assert "`[dataverse] url`" in ran.checks["dataverse"]["detail"]
    assert box.stage.calls() == []
    assert list(box.work.iterdir()) == []
    assert box.run("setup", "--yes", "--dry-run").code == 1
    assert box.stage.calls() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="apt-get is started with sudo otherwise")
def test_setup_brings_what_is_missing_once(box: Box) -> None:
    box.stage.player("apt-get", INSTALLS)
    box.stage.player("git")
    env = {"DATAVERSE_URL": "https://example.crm.dynamics.com", "WEBHOOK_USER": ALICE, "ANTHROPIC_API_KEY": SECRET}
    ran = box.run("setup", "--yes", "--json", **env, DATAVERSE_TOKEN=SECRET)
    assert ran.code == 0
    assert {check["state"] for check in ran.checks.values()} == {"ok"}
    assert (box.work / "operator.toml").is_file()
    assert box.stage.lines("apt-get") == [
        "apt-get update",
        "apt-get install --yes --no-install-recommends bubblewrap",
        "apt-get install --yes --no-install-recommends azure-cli",
    ]
    for call in box.stage.calls():
        assert SECRET not in json.dumps(call.env)
        assert call.env["DEBIAN_FRONTEND"] == "noninteractive"
    before = box.stage.lines(), (box.work / "operator.toml").read_text()
    again = box.run("setup", "--yes", "--json", **env)
    assert again.code == 0
    assert (box.stage.lines(), (box.work / "operator.toml").read_text()) == before


@pytest.mark.parametrize("manager", ["winget", "choco"])
def test_setup_with_the_package_managers_of_windows(box: Box, manager: str) -> None:
    box.configure()
    box.stage.player(manager, INSTALLS + "print('a line of the package manager')")
    ran = box.run("setup", "--manager", manager, "--yes", "--json")
    assert [ran.checks[name]["state"] for name in ("git", "docker", "azure")] == ["ok"] * 3
    assert "bubblewrap" not in ran.checks
    assert "a line of the package manager" in ran.err  # and not in the document
    packages = [call.words[-1] for call in box.stage.calls(manager)]
    assert (
        packages
        == {
            "winget": ["Git.Git", "Docker.DockerDesktop", "Microsoft.AzureCLI"],
            "choco": ["git", "docker-desktop", "azure-cli"],
        }[manager]
    )
    assert all("--exact" in call.words for call in box.stage.calls("winget"))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (INSTALLS + "sys.exit(100 if package == 'Git.Git' else 0)", "failed (exit code 100)"),
        (INSTALLS + "(bin / 'git').unlink(missing_ok=True)", "open a new one"),
    ],
)
def test_a_part_that_does_not_come_is_named_and_the_others_come(box: Box, body: str, said: str) -> None:
    box.configure()
    box.stage.player("winget", body.replace('if "install" in words', "if package != 'Git.Git'"))
    ran = box.run("setup", "--manager", "winget", "--yes", "--json")
    assert ran.code == 1
    assert ran.checks["git"]["state"] == "wrong"
    assert said in ran.checks["git"]["detail"]
    assert ran.checks["azure"]["state"] == "ok"


def test_a_configuration_that_cannot_be_read_starts_no_installation(box: Box) -> None:
    box.configure()
    box.env["OPERATOR_CLAUDE_CODE__PROGRAM"] = "/nowhere/claude"
    for name in ("apt-get", "git", "bwrap", "az", "uv"):
        box.stage.player(name)
    ran = box.run("setup", "--yes", "--json")
    assert ran.checks["claude code"]["state"] == "wrong"
    assert "/nowhere/claude" in ran.checks["claude code"]["detail"]
    box.configure("[dataverse]\nurls = 1\n")
    ran = box.run("setup", "--yes", "--json")
    assert ran.checks["configuration"]["state"] == "wrong"
    assert "urls" in ran.checks["configuration"]["detail"]
    assert box.stage.calls() == []


@pytest.mark.deep
def test_setup_makes_the_configuration_where_it_was_asked_for(box: Box) -> None:
    for name in ("apt-get", "git", "bwrap", "az"):
        box.stage.player(name)
    ran = box.run("--config", "of box/operator.toml", "setup", "--yes", "--json")
    assert ran.checks["configuration"]["state"] == "ok"
    assert [path.name for path in (box.work / "of box").iterdir() if path.suffix == ".toml"] == ["operator.toml"]


def test_an_unknown_package_manager_is_named(box: Box) -> None:
    ran = box.run("setup", "--manager", "pacman")
    assert (ran.code, ran.out) == (2, "")
    assert "apt, brew, winget, choco" in ran.err


def test_an_ordinary_user_installs_with_sudo(monkeypatch: pytest.MonkeyPatch) -> None:
    apt, brew = MANAGERS[0], MANAGERS[1]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert apt.command("git")[:2] == ("sudo", "apt-get")
    assert apt.refresh() == ("sudo", "apt-get", "update")
    assert brew.command("--cask docker-desktop") == ("brew", "install", "--cask", "docker-desktop")


def test_claude_code_comes_as_the_package_itself() -> None:
    command = claude_code_commands()[-1]
    assert command[-1].startswith("claude-agent-sdk>=")
    assert sys.executable in command


AZ = """
signed = folder / "signed-in"
if words[0] == "login":
    tries = len((folder / "calls.jsonl").read_text().split('"login"')) - 1
    print("az prints something")
    if tries < NEEDED:
        print("AADSTS50076", file=sys.stderr)
        sys.exit(1)
    signed.touch()
elif words[:2] == ["account", "get-access-token"]:
    if not signed.exists():
        print("ERROR: Please run 'az login' to setup account.", file=sys.stderr)
        sys.exit(1)
    if "json" in words:
        print(json.dumps({"accessToken": TOKEN, "expires_on": 4102444800}))
"""
CLAUDE = """
signed = folder / "claude-signed-in"
if words == ["auth", "status"]:
    print(json.dumps({"loggedIn": signed.exists(), "authMethod": "claude.ai" if signed.exists() else "none"}))
    sys.exit(0 if signed.exists() else 1)
if words == ["auth", "login"]:
    signed.touch()
"""


def organisation(box: Box, double: Double, *, needed: int = 1, claude: str = CLAUDE) -> None:
    box.stage.player("az", AZ.replace("NEEDED", str(needed)).replace("TOKEN", repr(double.token)))
    program = box.stage.player("claude", claude)
    box.configure()
    box.env |= {"DATAVERSE_URL": double.url, "WEBHOOK_USER": ALICE, "OPERATOR_DATAVERSE__RETRY_S": "2"}
    box.env["OPERATOR_CLAUDE_CODE__PROGRAM"] = str(program)


def test_authenticate_signs_in_and_proves_it(box: Box, double: Double) -> None:
    organisation(box, double, needed=2)
    env = {"ANTHROPIC_API_KEY": SECRET, "CLAUDECODE": "1", "CLAUDE_CONFIG_DIR": "/nowhere", "SOME_TOKEN": SECRET}
    ran = box.run("authenticate", **env)
    assert ran.code == 0, ran
    token = f"az account get-access-token --resource {double.url} --output"
    assert box.stage.lines() == [
        f"{token} none",
        *["az login --allow-no-subscriptions --output none"] * 2,
        f"{token} json",
        "claude auth status",
        "claude auth login",
        "claude auth status",
    ]
    assert double.token not in ran.out + ran.err
    for call in [*box.stage.calls("claude"), *box.stage.calls("az")[:3]]:
        assert SECRET not in json.dumps(call.env)
        assert not {"CLAUDECODE", "CLAUDE_CONFIG_DIR", "DATAVERSE_URL"} & set(call.env)
    assert "operator worker run" in ran.out
    kept = [path for path in box.home.rglob("*") if path.is_file() and double.token in path.read_text()]
    assert kept == []


def test_whoever_is_signed_in_is_not_asked_again(box: Box, double: Double) -> None:
    organisation(box, double)
    (box.stage.folder / "signed-in").touch()
    (box.stage.folder / "claude-signed-in").touch()
    ran = box.run("authenticate", "--json")
    assert ran.code == 0
    assert {check["state"] for check in ran.checks.values()} == {"ok"}
    assert not [line for line in box.stage.lines() if "login" in line]


def test_three_tries_are_enough(box: Box, double: Double) -> None:
    organisation(box, double, needed=4)
    ran = box.run("authenticate", "--json")
    assert ran.code == 1
    assert [call.words[0] for call in box.stage.calls("az")].count("login") == 3
    assert ran.checks["azure"]["state"] == "wrong"
    assert ran.checks["dataverse"]["state"] == "skipped"
    assert ran.checks["claude code"]["state"] == "ok"
    assert "az prints something" in ran.err  # standard output is a document
    assert double.history.text().count("WhoAmI") == 0


def test_a_given_token_needs_no_sign_in(box: Box, double: Double) -> None:
    organisation(box, double)
    ran = box.run("authenticate", "--json", DATAVERSE_TOKEN=double.token)
    assert ran.code == 0
    assert box.stage.calls("az") == []
    refused = box.run("authenticate", "--json", DATAVERSE_TOKEN="refused")
    assert refused.code == 1
    assert refused.checks["dataverse"]["state"] == "wrong"


@pytest.mark.parametrize(
    ("claude", "said"),
    [
        (CLAUDE.replace("signed.touch()", "sys.exit(3)"), "exit code 3"),
        (CLAUDE.replace("signed.touch()", "pass"), "nobody is signed in"),
        ('print(\'{"loggedIn": "yes"}\')', "neither yes nor no"),
        ("print('[1]')", "could not be read"),
        ("print('Welcome!\\x1b[2J')", "could not be read"),
    ],
)
def test_a_claude_that_is_not_signed_in_afterwards_is_said(box: Box, double: Double, claude: str, said: str) -> None:
    organisation(box, double, claude=claude)
    ran = box.run("authenticate", DATAVERSE_TOKEN=double.token)
    assert ran.code == 1
    assert said in ran.out
    assert "\x1b" not in next(line for line in ran.out.splitlines() if line.startswith("wrong"))


def test_authenticate_dry_run_starts_nothing(box: Box, double: Double) -> None:
    organisation(box, double)
    ran = box.run("authenticate", "--dry-run", "--json")
    assert ran.code == 0
    document = json.loads(ran.out)
    assert [command[0].rpartition("/")[2] for command in document["commands"]] == ["az", "claude"]
    assert any("ANTHROPIC_API_KEY" in point for point in document["to_set"])
    assert box.stage.calls() == []


def test_the_sign_in_has_the_terminal(box: Box, double: Double) -> None:
    organisation(box, double)
    master, terminal = pty.openpty()
    try:
        child = subprocess.Popen(
            box.argv("authenticate"),
            env=box.env,
            cwd=box.work,
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        said, _ = child.communicate(timeout=60)
    finally:
        os.close(master)
        os.close(terminal)
    assert child.returncode == 0, said
    on_terminal = {" ".join(call.words[:2]): call.on_terminal for call in box.stage.calls()}
    assert on_terminal["login --allow-no-subscriptions"]
    assert on_terminal["auth login"]
    assert not on_terminal["auth status"]


@pytest.mark.deep
def test_verify_on_a_machine_that_is_complete_and_on_one_that_is_not(box: Box, double: Double) -> None:
    organisation(box, double)
    box.stage.player("git", "print('git version 2.99')")
    for name in ("signed-in", "claude-signed-in"):
        (box.stage.folder / name).touch()
    with (box.work / "operator.toml").open("a") as file:
        file.write("[sandbox]\nbackend = 'none'\n")
    (box.stage.bin / "bash").symlink_to(shutil.which("bash") or "/bin/bash")
    drive = box.home / "OneDrive - Example"
    drive.mkdir()
    secrets = box.home / ".config" / "operator" / "worker.env"
    secrets.parent.mkdir(parents=True)
    secrets.write_text(f"# a comment\nANTHROPIC_API_KEY={SECRET}\n")
    secrets.chmod(0o600)
    box.stage.player("systemctl", ENABLE)
    assert box.run("service", "--kind", "systemd", "--install").code == 0
    ran = box.run("verify", "--json")
    assert ran.code == 0, ran.out
    states = {name: check["state"] for name, check in ran.checks.items()}
    assert states.pop("sandbox") == "warning"  # none at all is said
    if sys.platform == "linux":
        assert set(states.values()) == {"ok"}, ran.out
    assert set(states) == {
        *("python", "git", "claude code", "claude sign-in", "azure", "dataverse", "onedrive", "work folder"),
        *("model key", "service"),
    }
    assert str(drive) in ran.checks["onedrive"]["detail"]
    assert SECRET not in ran.out + ran.err

    for name in ("git", "az", "claude"):
        (box.stage.bin / name).unlink()
    secrets.write_text("ANTHROPIC_API_KEY=\n")
    secrets.chmod(0o644)
    shutil.rmtree(box.home / ".config" / "systemd")
    shutil.rmtree(drive)
    ran = box.run("verify", "--json", DATAVERSE_TOKEN="refused", OPERATOR_DATAVERSE__WORK_DIR="/proc/none")
    assert ran.code == 1
    assert {name: check["state"] for name, check in ran.checks.items() if name not in ("python", "sandbox")} == {
        "git": "wrong",
        "claude code": "warning",
        "azure": "ok",
        "dataverse": "wrong",
        "onedrive": "warning",
        "work folder": "wrong",
        "model key": "wrong",
        "service": "warning",
        "secrets": "wrong",
    }
    assert "chmod 600" in ran.checks["secrets"]["detail"]
    unset = box.run("verify", "--json", DATAVERSE_URL="")
    assert "`[dataverse] url`" in unset.checks["dataverse"]["detail"]


ENABLE = """
if "enable" in words:
    units = Path(os.environ["HOME"]) / ".config/systemd/user"
    (units / "default.target.wants").mkdir(exist_ok=True)
    (units / "default.target.wants/operator-worker.service").symlink_to(units / "operator-worker.service")
"""


def test_the_service_is_written_and_made_known(box: Box) -> None:
    box.configure()
    box.stage.player("systemctl", ENABLE)
    unit = box.home / ".config/systemd/user/operator-worker.service"
    words = ("service", "--kind", "systemd")
    printed = box.run(*words, "--print")
    dry = box.run(*words, "--install", "--dry-run")
    assert str(unit) in dry.out
    assert not unit.exists()
    assert box.stage.calls() == []
    done = box.run(*words, "--install")
    assert done.code == 0, done
    assert unit.read_text() == printed.out
    assert box.stage.lines() == ["systemctl --user daemon-reload", "systemctl --user enable operator-worker"]
    box.stage.player("systemctl", "print('Failed to connect to bus', file=sys.stderr); sys.exit(1)")
    failed = box.run(*words, "--install")
    assert failed.code == 1
    assert "daemon-reload" in failed.err
    assert box.run("service", "--kind", "launchd").code == 2
    assert box.run(*words, "--install", "--print").code == 2


def test_the_task_of_windows_is_read_by_its_own_program(box: Box) -> None:
    box.configure()
    box.stage.player("schtasks", "(folder / 'task').write_bytes(Path(words[words.index('/XML') + 1]).read_bytes())")
    assert box.run("service", "--kind", "task-scheduler", "--install").code == 0
    data = (box.stage.folder / "task").read_bytes()
    assert data[:2] in (b"\xff\xfe", b"\xfe\xff")  # it refuses any other encoding
    task = ElementTree.fromstring(data)
    assert task.tag == "{http://schemas.microsoft.com/windows/2004/02/mit/task}Task"
    assert box.stage.calls("schtasks")[0].words[:3] == ["/Create", "/TN", "operator-worker"]


HOSTILE = Path('/srv/100% $HOME "Tom & Jerry\'s" <box>\\n')


def described(kind: str) -> Service:
    return service_of(kind, folder=HOSTILE, config=HOSTILE / "operator.toml")


def test_a_unit_says_each_word_as_it_is(tmp_path: Path) -> None:
    text = described("systemd").text()
    unit = configparser.RawConfigParser(interpolation=None, strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(text)
    assert _words_of_systemd(unit["Service"]["ExecStart"]) == list(described("systemd").argv)
    assert unit["Service"]["WorkingDirectory"].replace("%%", "%") == str(HOSTILE)
    # After an update of itself the worker ends with 0.
    assert unit["Service"]["Restart"] == "always"
    if judge := shutil.which("systemd-analyze"):
        path = tmp_path / "operator-worker.service"
        path.write_text(service_of("systemd", folder=tmp_path).text())
        answer = ask((judge, "verify", "--user", str(path)), {**small_environment(), "XDG_RUNTIME_DIR": str(tmp_path)})
        assert "operator-worker" not in answer.err, answer


def _words_of_systemd(line: str) -> list[str]:
    """Quoted words as systemd reads them (systemd.syntax, systemd.service)."""
    words, rest = [], line.strip()
    while rest:
        assert rest[0] == '"'
        word, at = "", 1
        while rest[at] != '"':
            if rest[at] == "\\":
                at += 1
            elif rest[at] in "%$":
                assert rest[at + 1] == rest[at], f"{rest[at]} would be replaced"
                at += 1
            word, at = word + rest[at], at + 1
        words.append(word)
        rest = rest[at + 1 :].strip()
    return words


def test_a_task_says_each_word_as_it_is() -> None:
    task = ElementTree.fromstring(described("task-scheduler").text().encode("utf-16"))
    space = {"t": "http://schemas.microsoft.com/windows/2004/02/mit/task"}

    def text(path: str) -> str | None:
        return task.findtext("/".join(f"t:{name}" for name in path.split("/")), namespaces=space)

    assert text("Actions/Exec/Command") == sys.executable
    assert text("Actions/Exec/WorkingDirectory") == str(HOSTILE)
    assert text("Actions/Exec/Arguments") == subprocess.list2cmdline(described("task-scheduler").argv[1:])
    # Its restarts are for failures only; the worker that has updated itself ends with 0.
    assert text("Triggers/LogonTrigger/Repetition/Interval") == "PT5M"
    assert text("Settings/MultipleInstancesPolicy") == "IgnoreNew"
    assert text("Settings/ExecutionTimeLimit") == "PT0S"


def test_a_folder_that_would_add_a_line_is_refused() -> None:
    with pytest.raises(ConfigError, match="cannot hold"):
        service_of("systemd", folder=Path("/srv/a\nExecStartPre=/bin/evil")).text()


def test_a_program_that_leaves_something_running_is_not_waited_for(box: Box) -> None:
    noisy = box.stage.player(
        "noisy", "import subprocess\nsubprocess.Popen(['/bin/sleep', '20'])\nprint('done', flush=True)"
    )
    answer = ask((str(noisy),), small_environment(), timeout_s=10.0)
    assert (answer.code, answer.out) == (0, "done\n")
    slow = box.stage.player("slow", "import time\ntime.sleep(30)")
    assert ask((str(slow),), small_environment(), timeout_s=0.2).code is None
    assert ask(("/nowhere/program",), small_environment()).said.startswith("/nowhere/program cannot be started")
    assert attend(("/nowhere/program",), small_environment()) == 127


WITHOUT = """
import sys
for name in sys.argv[1].split():
    sys.modules[name] = None
from operator_dataverse.cli import main
sys.exit(main(sys.argv[2:]))
"""
ONLY_UNIX = "fcntl grp pty pwd resource termios"


def run_without(modules: str, box: Box, *words: str) -> subprocess.CompletedProcess[str]:
    """A command where some modules cannot be imported."""
    argv = [sys.executable, "-c", WITHOUT, modules, *words]
    return subprocess.run(
        argv,
        env=box.env,
        cwd=box.work,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_setup_says_how_claude_code_comes(box: Box) -> None:
    box.configure()
    box.stage.player("uv")
    del box.env["OPERATOR_CLAUDE_CODE__PROGRAM"]
    document = json.loads(run_without("claude_agent_sdk", box, "setup", "--json").stdout)
    check = next(check for check in document["checks"] if check["name"] == "claude code")
    assert check["state"] == "warning"
    assert check["facts"]["commands"][-1][-1].startswith("claude-agent-sdk>=")
    assert box.stage.calls() == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--help",), 0),
        (("setup", "--json", "--manager", "winget"), 1),
        (("authenticate", "--dry-run"), 0),
        (("verify", "--json"), 1),
        (("service", "--kind", "task-scheduler"), 0),
        (("auth-window", "status"), 3),
    ],
)
def test_these_commands_need_nothing_that_only_unix_has(box: Box, words: tuple[str, ...], code: int) -> None:
    box.configure()
    done = run_without(ONLY_UNIX, box, *words)
    assert (done.returncode, done.stderr) == (code, "")
    assert done.stdout

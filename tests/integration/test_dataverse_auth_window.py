"""``operator-dataverse auth-window`` with a real program that plays the browser: a process with children of its own."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from operator_core.errors import ConfigError
from operator_dataverse.machine.processes import processes, processes_of_ps, started_at
from operator_dataverse.machine.window import checked_address
from tests.support.players import Stage
from tests.support.processes import processes_of, wait_until_gone
from tests.support.waiting import wait_until

PAGE = "https://login.example.com/start?state=never-to-be-kept"

# Three processes: itself, a helper, and one that has left its parent, its group and its session.
BROWSER = """
import signal, subprocess, time
helper = "import time; time.sleep(120)"
subprocess.Popen([sys.executable, "-ISc", helper])
subprocess.Popen([sys.executable, "-ISc", "import os, time; os.fork() and os._exit(0); os.setsid(); " + helper]).wait()
profile = next(word for word in words if word.startswith("--user-data-dir=")).partition("=")[2]
(Path(profile) / "Cookies").write_text("who signed in")
(folder / "open").touch()
time.sleep(120)
"""
STUBBORN = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + BROWSER


class Screen:
    """A machine with a browser."""

    def __init__(self, folder: Path) -> None:
        self.stage = Stage(folder / "stage")
        self.home = folder / "home"
        self.home.mkdir()
        self.lock = self.home / ".operator" / "auth-window" / "window.json"
        self.profile = self.lock.parent / "profile"
        self.env = {"PATH": str(self.stage.bin), "HOME": str(self.home), "DISPLAY": ":7", "SECRET_TOKEN": "x"}
        self.env |= {"LANG": "C.UTF-8", "NO_COLOR": "1"}

    def begin(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "operator_dataverse", "auth-window", *words],
            env=self.env,
            cwd=self.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        child = self.begin(*words)
        out, err = child.communicate(timeout=60)
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(words, child.returncode, out, err)

    @property
    def alive(self) -> list[int]:
        return processes_of(str(self.stage.folder))


@pytest.fixture
def screen(tmp_path: Path) -> Iterator[Screen]:
    screen = Screen(tmp_path)
    screen.stage.player("chromium", BROWSER)
    yield screen
    for pid in screen.alive:
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("body", [BROWSER, STUBBORN])
def test_one_window_with_a_profile_of_its_own_that_is_gone_afterwards(screen: Screen, body: str) -> None:
    screen.stage.player("chromium", body)
    assert screen.run("status").returncode == 3
    assert json.loads(screen.run("start", PAGE, "--dry-run", "--json").stdout)["dry_run"] is True
    started = screen.run("start", PAGE, "--json")
    assert started.returncode == 0, started
    (call,) = screen.stage.calls()
    assert call.words[-1] == PAGE
    assert "--kiosk" in call.words
    assert f"--user-data-dir={screen.profile}" in call.words
    assert call.env["DISPLAY"] == ":7"
    assert "SECRET_TOKEN" not in call.env
    assert screen.profile.stat().st_mode & 0o777 == 0o700
    assert screen.lock.stat().st_mode & 0o777 == 0o600
    lock = json.loads(screen.lock.read_text())
    assert (lock["pid"], lock["started"]) == (json.loads(started.stdout)["window"]["process"], started_at(lock["pid"]))
    assert "never-to-be-kept" not in screen.lock.read_text() + started.stdout
    wait_until(lambda: (screen.stage.folder / "open").exists(), what="the browser is open")
    assert len(screen.alive) == 3

    assert screen.run("status").returncode == 0
    second = screen.run("start", PAGE)
    assert second.returncode == 1
    assert "open already" in second.stderr
    assert len(screen.stage.calls()) == 1
    assert "would" in screen.run("stop", "--dry-run").stdout.lower()
    assert len(screen.alive) == 3

    stopped = screen.run("stop", "--json")
    assert json.loads(stopped.stdout)["ended"] == 3
    wait_until_gone(str(screen.stage.folder), timeout=5)
    assert not screen.profile.exists()
    assert not screen.lock.exists()
    assert screen.run("status").returncode == 3
    assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 0


def test_a_window_that_a_person_closed_is_no_window(screen: Screen) -> None:
    screen.stage.player("chromium", "import time\ntime.sleep(120)")
    pid = json.loads(screen.run("start", PAGE, "--json").stdout)["window"]["process"]
    (screen.profile / "Cookies").write_text("who signed in")
    os.kill(pid, signal.SIGKILL)
    wait_until_gone(str(screen.stage.folder), timeout=5)
    assert screen.run("status").returncode == 3
    again = screen.run("start", PAGE, "--json")
    assert again.returncode == 0
    assert not (screen.profile / "Cookies").exists()
    assert json.loads(again.stdout)["window"]["process"] != pid
    assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 1


def test_what_has_the_id_by_now_is_left_alone(screen: Screen) -> None:
    """The browser has ended, and another program has its process id."""
    with subprocess.Popen(["/bin/sleep", "60"], start_new_session=True) as other:
        try:
            screen.run("start", PAGE)
            screen.run("stop")
            lock = {"id": "a" * 32, "pid": other.pid, "started": "1", "program": "x", "site": "x", "opened_at": "x"}
            screen.lock.write_text(json.dumps(lock))
            assert screen.run("status").returncode == 3
            assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 0
            assert other.poll() is None
        finally:
            other.kill()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[1]",
        "{}",
        '{"id": "", "pid": 1, "started": "1", "program": "", "site": "", "opened_at": ""}',
        '{"id": "a", "pid": -1, "started": "1", "program": "", "site": "", "opened_at": ""}',
        '{"id": 7, "pid": 1, "started": "1", "program": "", "site": "", "opened_at": ""}',
    ],
)
def test_a_lock_file_that_says_nothing_is_none(screen: Screen, text: str) -> None:
    screen.lock.parent.mkdir(parents=True)
    screen.lock.write_text(text)
    assert screen.run("status").returncode == 3
    assert screen.run("stop").stdout == "There was no window.\n"
    assert not screen.lock.exists()


def test_a_browser_that_ends_at_once_says_why(screen: Screen) -> None:
    screen.stage.player("chromium", "print('Missing X server or $DISPLAY', file=sys.stderr)\nsys.exit(1)")
    ran = screen.run("start", PAGE)
    assert ran.returncode == 1
    assert "Missing X server" in ran.stderr
    assert not screen.lock.exists()
    assert not screen.profile.exists()
    assert "no program 'lynx'" in screen.run("start", PAGE, "--browser", "lynx").stderr
    (screen.stage.bin / "chromium").unlink()
    nothing = screen.run("start", PAGE)
    assert (nothing.returncode, "install chromium" in nothing.stderr) == (2, True)


def test_firefox_is_told_in_its_own_words(screen: Screen) -> None:
    screen.stage.player("firefox", "import time\ntime.sleep(120)")
    assert screen.run("start", PAGE, "--browser", "firefox").returncode == 0
    (call,) = screen.stage.calls("firefox")
    assert call.words == ["--no-remote", "--profile", str(screen.profile), "--kiosk", PAGE]
    assert screen.run("stop").returncode == 0


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="only there is seen who waits for a lock")
def test_of_many_that_start_at_once_one_opens_a_window(screen: Screen) -> None:
    screen.lock.parent.mkdir(parents=True)
    with (screen.lock.parent / "guard").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        children = [screen.begin("start", PAGE) for _ in range(4)]
        waiting = [f" {child.pid} " for child in children]
        wait_until(lambda: all(pid in _waiters() for pid in waiting), 60, what="all of them wait")
    said = [child.communicate(timeout=60)[1] for child in children]
    assert sorted(child.returncode for child in children) == [0, 1, 1, 1]
    assert ["open already" in text for text, child in zip(said, children, strict=True) if child.returncode] == [
        True
    ] * 3
    assert len(screen.stage.calls()) == 1
    assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 3


def test_a_helper_that_is_killed_leaves_a_window_that_can_be_closed(screen: Screen) -> None:
    helper = screen.begin("start", PAGE)
    wait_until(lambda: (screen.stage.folder / "open").exists(), what="the browser is open")
    helper.kill()
    helper.communicate()
    # As if it had been killed even before it could write down which process it is.
    lock = json.loads(screen.lock.read_text())
    screen.lock.write_text(json.dumps({**lock, "pid": 0, "started": ""}))
    assert screen.run("status").returncode == 0
    assert screen.run("start", PAGE).returncode == 1
    assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 3
    wait_until_gone(str(screen.stage.folder), timeout=5)


def _waiters() -> str:
    return "\n".join(line for line in Path("/proc/locks").read_text().splitlines() if "->" in line)


# Python itself reports when a program is about to be started.
DIES = """
import os, signal, sys
def hook(event, args):
    if event == "subprocess.Popen":
        os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
from operator_dataverse.cli import main
main(sys.argv[1:])
"""


def test_what_is_to_be_started_is_written_down_before(screen: Screen) -> None:
    argv = [sys.executable, "-c", DIES, "auth-window", "start", PAGE]
    done = subprocess.run(argv, env=screen.env, cwd=screen.home, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert json.loads(screen.lock.read_text())["pid"] == 0
    assert screen.run("status").returncode == 3
    assert screen.run("start", PAGE).returncode == 0
    assert json.loads(screen.run("stop", "--json").stdout)["ended"] == 3


@pytest.mark.parametrize(
    "address",
    [
        "",
        "login.example.com",
        "--renderer-cmd-prefix=/bin/evil",
        "http://login.example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "chrome://settings",
        "https://",
        "https://alice:word@example.com/",
        "https://example.com/a b",
        "https://example.com/\n--no-sandbox",
        "https://exаmple.com/",  # with a Cyrillic letter
        "https://example.com:notaport/",
        "https://[::1",
    ],
)
def test_only_a_page_to_sign_in_at_is_opened(address: str) -> None:
    with pytest.raises(ConfigError):
        checked_address(address)


@pytest.mark.parametrize(
    ("address", "site"),
    [
        (PAGE, "https://login.example.com"),
        ("HTTPS://Login.Example.com:8443/x?y=%20#z", "https://login.example.com:8443"),
        ("http://localhost:8080/callback", "http://localhost:8080"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ],
)
def test_of_an_address_only_the_site_is_kept(address: str, site: str) -> None:
    assert checked_address(address) == site


def test_ps_tells_the_same_as_proc() -> None:
    ours = os.getpid()
    with subprocess.Popen(["/bin/sleep", "30"], start_new_session=True) as child:
        try:
            one, other = processes()[child.pid], processes_of_ps()[child.pid]
            assert (one.parent, one.group) == (other.parent, other.group) == (ours, child.pid)
            assert other.started == processes_of_ps()[child.pid].started
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
            # It has ended, and is not yet taken notice of.
            assert child.pid not in processes()
            assert child.pid not in processes_of_ps()
            assert started_at(child.pid) == ""
        finally:
            child.kill()

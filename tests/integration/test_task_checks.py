"""Checks of a task on real work, honest and dishonest: what they say before it, and what they say about it."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from operator_core.clock import new_id
from operator_core.errors import SandboxUnavailable
from operator_core.model.task import CheckFile, TaskCheck, TaskSpec
from operator_core.model.verdict import ClauseState
from operator_core.sandbox import Limits, Policy, Sandbox, open_sandbox
from operator_core.verify.checks import CheckJudgement, CheckRunner, CheckSeen
from operator_core.verify.copies import tree_digest
from tests.support import processes_of, wait_until_async

PROVED, FAILED, BLIND = ClauseState.PROVED, ClauseState.FAILED, ClauseState.COULD_NOT_LOOK

BROKEN = "def add(a, b):\n    return a - b\n"
FIXED = "def add(a, b):\n    return a + b\n"
TEST = "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n"
UNITTEST = (
    "import unittest\nfrom calc import add\n\n\nclass TestAdd(unittest.TestCase):\n"
    "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
)
PYTEST = "PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 python -m pytest -q"
ADD = "tests/test_calc.py::test_add"


class Room:
    """A base, the work on it, and a runner for both."""

    def __init__(self, folder: Path, backend: str = "none") -> None:
        self.folder = folder
        self.backend = backend
        self.base, self.work, self.explicit = (folder / name for name in ("base", "workspace", "explicit"))
        for path in (self.base, self.work, self.explicit):
            path.mkdir()
        self.spec = TaskSpec(name="t", prompt="p")
        self.protected: list[tuple[str, ...]] = []
        self.limits: dict[str, Any] = {}

    def start(self, files: dict[str, str], *checks: str, **spec: Any) -> None:
        """The base and the checks."""
        _write(self.base, files)
        timeout = spec.pop("timeout_s", 60.0)
        commands = tuple(TaskCheck(command=check, timeout_s=timeout) for check in checks)
        self.spec = TaskSpec(name="t", prompt="p", checks=commands, **spec)

    def check_file(self, path: str, text: str) -> CheckFile:
        _write(self.explicit, {path: text})
        return CheckFile(path=path, sha256=hashlib.sha256(text.encode()).hexdigest())

    def open_box(self, copy: Path, protected: tuple[str, ...]) -> Sandbox:
        self.protected.append(protected)
        limits = Limits(**{"max_timeout_s": 600.0, "grace_s": 0.2, **self.limits})
        policy = Policy(copy, protected=protected, limits=limits, shown_at=self.work)
        return open_sandbox(self.backend, policy, session_dir=self.folder / "boxes" / new_id())

    @property
    def runner(self) -> CheckRunner:
        return CheckRunner(
            self.spec, self.base, self.explicit, self.work, self.open_box, self.folder / "scratch", 1 << 26, 5000
        )

    async def judge(
        self, files: dict[str, str] | Callable[[Path], object], seen: tuple[CheckSeen, ...] | None = None
    ) -> tuple[tuple[CheckSeen, ...], CheckJudgement]:
        """Look before, do the work (files, or an act on the workspace), look after; nothing is left behind."""
        seen = await self.runner.before() if seen is None else seen
        shutil.copytree(self.base, self.work, symlinks=True, dirs_exist_ok=True)
        if callable(files):
            files(self.work)
        else:
            _write(self.work, files)
        was = await tree_digest(self.work)
        judgement = await self.runner.judge(self.work, seen)
        assert await tree_digest(self.work) == was
        assert list((self.folder / "scratch").iterdir()) == []
        return seen, judgement


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(0o755)


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


@pytest.fixture
def safe_room(tmp_path: Path, require_bubblewrap: None) -> Room:
    return Room(tmp_path, "bubblewrap")


async def test_red_before_and_green_after(room: Room) -> None:
    room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, PYTEST)
    seen, judged = await room.judge({"calc.py": FIXED})
    assert [(s.state, s.exit, s.vacuous, s.canary) for s in seen] == [("red", 1, False, ADD)]
    assert "assert -1 == 5" in seen[0].tail
    assert CheckSeen.from_dict(json.loads(json.dumps(seen[0].to_dict()))) == seen[0]
    assert judged.state is PROVED
    assert judged.digest == await tree_digest(room.work)
    assert (judged.feedback, judged.restored, judged.removed) == ("", (), ())
    (evidence,) = judged.clause.evidence
    assert evidence.ok is True
    assert evidence.observed.startswith(f"exit 0 on the content {judged.digest[:12]}; it failed when the frozen tests")
    assert "1 passed" in evidence.observed
    assert evidence.how == f"cd {room.work} && bash -o pipefail -c '{PYTEST}'"


async def test_the_feedback_shows_what_failed(room: Room) -> None:
    room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, "true && test -f calc.py", PYTEST)
    _, judged = await room.judge({"calc.py": "def add(a, b):\n    return a * b\n", "conftest.py": ""})
    assert judged.state is FAILED
    assert judged.clause.why.startswith(f"check 2 (`{PYTEST}`) failed: exit 1: ")
    assert f"Check 2 (`{PYTEST}`) failed: exit 1.\n" in judged.feedback
    assert "assert 6 == 5" in judged.feedback
    assert "conftest.py" in judged.feedback
    assert "Check 1" not in judged.feedback
    assert [e.ok for e in judged.clause.evidence] == [True, False]


def _replace_tests_by_a_link(work: Path) -> None:
    shutil.rmtree(work / "tests")
    _write(work, {"src/other/test_calc.py": "def test_add():\n    pass\n"})
    (work / "tests").symlink_to("src/other")


def _forge_bytecode(work: Path) -> None:
    """Python takes it without a look at the source."""
    fake = "import unittest\n\n\nclass TestAdd(unittest.TestCase):\n    def test_add(self):\n        pass\n"
    _write(work, {"fake.py": fake})
    name = f"tests/__pycache__/test_calc.{sys.implementation.cache_tag}.pyc"
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(work / "fake.py"), cfile=str(work / name), invalidation_mode=unchecked)


HOOK = "def pytest_runtest_makereport(item, call):\n    call.excinfo = None\n"
SKIP = "import pytest\n\n\ndef pytest_collection_modifyitems(items):\n    items.clear()\n\n\n"
SKIP += "def pytest_sessionfinish(session):\n    session.exitstatus = 0\n"
PATCH = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n"

SEEN_RED = (CheckSeen(PYTEST, "red", 1, "", False, ADD),)

DISHONEST: dict[str, dict[str, str] | Callable[[Path], object]] = {
    "edited test": {"tests/test_calc.py": "def test_add():\n    pass\n"},
    "deleted test": lambda work: (work / "tests/test_calc.py").unlink(),
    "tests are a link": _replace_tests_by_a_link,
    "hook in conftest": {"conftest.py": HOOK},
    "hook in tests/conftest": {"tests/conftest.py": SKIP},
    "pytest.ini": {"pytest.ini": "[pytest]\naddopts = --co\n"},
    "pyproject": {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "--collect-only"\n'},
    "setup.cfg": {"setup.cfg": "[tool:pytest]\naddopts = --collect-only\n"},
    "tox.ini": {"tox.ini": "[pytest]\naddopts = --collect-only\n"},
    "plugin": {"pytest.ini": "[pytest]\naddopts = -p evil\n", "evil.py": HOOK},
    "sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n"},
    "shadowed pytest": {"pytest.py": "raise SystemExit(0)\n"},
    "shadowed package": {"pytest/__init__.py": "", "pytest/__main__.py": "raise SystemExit(0)\n"},
    "shadowed library": {"argparse.py": "import os\nos._exit(0)\n"},
    "plugin by metadata": {
        "evil-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
        "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
        "evil.py": HOOK,
    },
    "exit when imported": {"calc.py": "import os\nos._exit(0)\n"},
    "exit at the end": {"calc.py": BROKEN + "import atexit, os\natexit.register(os._exit, 0)\n"},
    "patched runner": {"calc.py": BROKEN + PATCH},
    "added test that exits": {"tests/test_aaa.py": "import os\nos._exit(0)\n"},
    "added test that patches": {"tests/test_aaa.py": PATCH},
    "own python": {"python": "#!/bin/sh\nexit 0\n", "bin/python": "#!/bin/sh\nexit 0\n"},
    "reward file": {"reward.txt": "1.0", "VERDICT.json": '{"approved": true}', ".pytest_cache/lastfailed": "{}"},
    "changes tests while they run": {
        "calc.py": BROKEN + "import pathlib\npathlib.Path('tests/test_calc.py').write_text('def test_add(): pass')\n"
        "add = lambda a, b: 5\nimport sys\n"
    },
}  # fmt: skip


@pytest.mark.parametrize("attack", DISHONEST)
async def test_dishonest_work_is_refuted(room: Room, attack: str) -> None:
    room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, PYTEST)
    if "metadata" in attack:
        room.spec = room.spec.model_copy(update={"checks": (TaskCheck(command="python -m pytest -q"),)})
    _, judged = await room.judge(DISHONEST[attack], SEEN_RED)
    assert judged.state is FAILED, judged
    assert judged.feedback


async def test_forged_bytecode_is_not_run(room: Room) -> None:
    room.start({"calc.py": BROKEN, "tests/__init__.py": "", "tests/test_calc.py": UNITTEST}, "python -m unittest -q")
    _, judged = await room.judge(_forge_bytecode)
    assert judged.state is FAILED


async def test_one_test_that_is_switched_off_is_named(room: Room) -> None:
    two = TEST + "\n\ndef test_other():\n    assert add(0, 0) == 0\n"
    room.start({"calc.py": BROKEN, "tests/test_calc.py": two}, PYTEST)
    patch = "import _pytest.python as p\nrun = p.Function.runtest\n"
    patch += "p.Function.runtest = lambda self: self.name == 'test_add' or run(self)\n"
    seen, judged = await room.judge({"calc.py": BROKEN + patch})
    assert seen[0].canary == f"{ADD}\ntests/test_calc.py::test_other"
    assert judged.state is FAILED
    assert f"it no longer fails because of {ADD}" in judged.clause.why


async def test_a_disarmed_check_is_explained(room: Room) -> None:
    room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, PYTEST)
    _, judged = await room.judge({"calc.py": BROKEN + PATCH}, SEEN_RED)
    assert "passes even when the frozen tests are made to fail" in judged.clause.why
    assert "switches the tests off" in judged.feedback


HONEST: dict[str, tuple[dict[str, str], str, dict[str, str], dict[str, str]]] = {
    "more tests": (
        {"calc.py": BROKEN, "tests/test_calc.py": TEST},
        PYTEST,
        {},
        {"calc.py": FIXED, "tests/test_more.py": TEST.replace("test_add", "test_more")},
    ),
    "a new dependency": (
        {"calc.py": BROKEN, "tests/test_calc.py": TEST, "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-q'"},
        PYTEST,
        {},
        {"calc.py": FIXED, "pyproject.toml": "[project]\nname='a'\n[tool.pytest.ini_options]\naddopts = '-q'\n"},
    ),
    "only one test is selected": (
        {"calc.py": BROKEN, "tests/test_calc.py": TEST, "tests/test_other.py": "def test_other():\n    pass\n"},
        f"{PYTEST} tests/test_calc.py -k add",
        {},
        {"calc.py": FIXED},
    ),
    "one test by its name": (
        {"calc.py": BROKEN, "tests/test_calc.py": TEST}, f"{PYTEST} {ADD}", {}, {"calc.py": FIXED}
    ),
    "other tests are not run": (
        {"a/test_a.py": "def test_a():\n    pass\n", "calc.py": BROKEN},
        "python -c 'import calc; assert calc.add(1, 1) == 2' && ./pytest",
        {}, {"calc.py": FIXED, "pytest": "#!/bin/sh\n"},
    ),
    "unittest": (
        {"calc.py": BROKEN, "tests/__init__.py": "", "tests/test_calc.py": UNITTEST}, "python -m unittest discover", {},
        {"calc.py": FIXED},
    ),
    "a test that is run as a program": (
        {"calc.py": BROKEN, "test_calc.py": UNITTEST + "\n\nif __name__ == '__main__':\n    unittest.main()\n"},
        "python test_calc.py", {}, {"calc.py": FIXED},
    ),
    "a check file of the task": ({}, PYTEST, {"tests/test_calc.py": TEST}, {"calc.py": FIXED}),
    "a script against data": (
        {"data.csv": "1\n2\n3\n"}, "python sum.py data.csv | grep -qx 6", {},
        {"sum.py": "import sys\nprint(sum(map(int, open(sys.argv[1]))))\n"},
    ),
    "a Makefile": (
        {"calc.py": BROKEN, "test_calc.py": TEST, "Makefile": f"test:\n\t{PYTEST}\n"},
        "make -s test", {}, {"calc.py": FIXED},
    ),
    "a guarded refactoring": (
        {"calc.py": FIXED, "tests/test_calc.py": TEST}, PYTEST, {}, {"calc.py": "def add(*n):\n    return sum(n)\n"}
    ),
    "a conftest that was there": (
        {"calc.py": BROKEN, "tests/test_calc.py": TEST, "tests/conftest.py": "import sys\nsys.path.insert(0, '.')\n"},
        PYTEST, {}, {"calc.py": FIXED},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
async def test_honest_work_passes(room: Room, name: str) -> None:
    base, command, given, work = HONEST[name]
    files = tuple(room.check_file(path, text) for path, text in given.items())
    room.start(base, command, check_files=files)
    seen, judged = await room.judge(work)
    assert judged.state is PROVED, judged
    assert seen[0].state == ("green" if "guarded" in name else "red")
    assert not seen[0].vacuous
    assert (judged.restored, judged.removed) == ((), ())


async def test_a_check_that_was_green_knows_its_canary_too(room: Room) -> None:
    room.start(
        {"calc.py": FIXED, "tests/test_calc.py": TEST},
        PYTEST,
        f"{PYTEST} >/dev/null",
        "python -m py_compile tests/test_calc.py",
    )
    seen, judged = await room.judge({"calc.py": FIXED + PATCH})
    assert [(s.state, s.canary) for s in seen] == [("green", ADD), ("green", "*"), ("green", None)]
    assert [e.ok for e in judged.clause.evidence] == [False, False, True]


async def test_what_passes_in_an_empty_folder_is_vacuous(room: Room) -> None:
    room.start({"check.sh": "#!/bin/sh\nexit 0\n", "a": ""}, "./check.sh", "test -f a", "test ! -f b")
    seen, _ = await room.judge({})
    assert [(s.state, s.vacuous) for s in seen] == [("green", True), ("green", False), ("green", True)]


@pytest.mark.parametrize(
    ("command", "state", "word"),
    [
        ("exit 3", BLIND, "could not look: exit 3"),
        ("exit 2", FAILED, "exit 2"),
        ("no-such-program", FAILED, "exit 127"),
        ("touch a; ./a", FAILED, "exit 126"),
        ("kill -9 $$", FAILED, "signal 9"),
        ("sleep 60", FAILED, "did not end within 1 s"),
        ("false | cat", FAILED, "exit 1"),
        ("syntax (", FAILED, "exit 2"),
        ("test $0 = bash && exit 0", PROVED, "passed"),
    ],
)
async def test_the_exit_status_decides(room: Room, command: str, state: ClauseState, word: str) -> None:
    room.start({}, command, timeout_s=1.0)
    _, judged = await room.judge({})
    assert judged.state is state
    assert word in judged.clause.why
    assert bool(judged.feedback) is (state is not PROVED)


async def test_one_failure_outweighs_what_could_not_be_looked_at(room: Room) -> None:
    room.start({}, "exit 3", "exit 1", "test 1 = 1")
    _, judged = await room.judge({})
    assert judged.state is FAILED
    assert [e.ok for e in judged.clause.evidence] == [None, False, True]


async def test_no_check_prepares_the_ground_for_the_next(room: Room) -> None:
    room.start(
        {},
        "echo x >made; echo x >$HOME/made; echo x >$TMPDIR/made",
        "test ! -e made -a ! -e $HOME/made -a ! -e $TMPDIR/made",
    )
    seen, judged = await room.judge({})
    assert judged.state is PROVED
    assert [s.state for s in seen] == ["green", "green"]


async def test_the_environment_is_clean(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/evil")
    monkeypatch.setenv("PYTEST_ADDOPTS", "--co")
    monkeypatch.setenv("PATH", f"{room.work}/bin:{os.environ['PATH']}")
    room.start({}, 'test -z "$PYTHONPATH$PYTEST_ADDOPTS$LD_PRELOAD$BASH_ENV" -a "$PYTHONDONTWRITEBYTECODE" = 1')
    _, judged = await room.judge({})
    assert judged.state is PROVED


async def test_long_output_is_bounded_and_harmless(room: Room) -> None:
    room.start({}, "seq 100000; printf '\\033[31mred\\xff\\n'; echo 'the end' >&2; exit 1")
    seen, judged = await room.judge({})
    assert len(seen[0].tail) == 4000
    assert seen[0].tail.endswith("the end")
    assert "\x1b" not in judged.feedback
    assert len(judged.feedback) < 13_000
    json.dumps(seen[0].to_dict()).encode()


async def test_a_sandbox_that_does_not_start_is_no_failure_of_the_work(room: Room) -> None:
    room.start({}, "test 1 = 1")
    room.backend = "bubblewrap"

    class Broken:
        async def start(self) -> None:
            raise SandboxUnavailable("it is broken", "repair it")

        async def close(self) -> None:
            pass

    seen = (CheckSeen("test 1 = 1", "red", 1, ""),)
    runner = CheckRunner(
        room.spec, room.base, room.explicit, room.work, lambda copy, names: Broken(),  # type: ignore[arg-type,return-value]
        room.folder / "scratch",
    )  # fmt: skip
    judged = await runner.judge(room.work, seen)
    assert judged.state is BLIND
    assert "it is broken" in judged.clause.why


async def test_work_that_cannot_be_copied_cannot_be_looked_at(room: Room) -> None:
    room.start({}, "test 1 = 1")
    _, judged = await room.judge({f"f{n}": "" for n in range(5001)})
    assert judged.state is BLIND
    assert "more than 5000 files" in judged.feedback
    assert judged.digest == ""


async def test_without_checks_nothing_is_proved(room: Room) -> None:
    room.start({})
    seen, judged = (
        await CheckRunner(room.spec, room.base, room.explicit, room.work, room.open_box, room.folder).before(),
        await room.runner.judge(room.work, ()),
    )
    assert seen == ()
    assert judged.state is ClauseState.NOT_PROVED


async def test_a_check_that_changes_what_it_checks_with_has_failed(room: Room) -> None:
    room.start({"tests/test_a.py": "def test_a():\n    assert 0\n"}, "echo >tests/test_a.py; test -f x")
    _, judged = await room.judge({"x": ""})
    assert judged.state is FAILED
    assert "changed what it checks with while it ran: tests/test_a.py" in judged.clause.why


class TestBubblewrap:
    async def test_the_copy_is_where_the_workspace_is(self, safe_room: Room) -> None:
        safe_room.start(
            {"run": "#!/bin/sh\nexit 1\n", "tests/test_a.py": "def test_a():\n    pass\n"},
            f"test $PWD = {safe_room.work} && {safe_room.work}/tool && {PYTEST}",
        )
        _, judged = await safe_room.judge({"tool": f"#!{safe_room.work}/inner\n", "inner": "#!/bin/sh\nexit 0\n"})
        assert judged.state is PROVED, judged

    async def test_what_is_frozen_cannot_be_changed(self, safe_room: Room) -> None:
        attack = (
            "import pathlib, shutil\ntry:\n    pathlib.Path('tests/test_calc.py').write_text('def test_add(): pass')\n"
        )
        attack += "except OSError as error:\n    print(error)\n"
        attack += "try:\n    shutil.move('tests', 'x')\nexcept OSError as error:\n"
        attack += "    print(error)\n"
        safe_room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, f"python attack.py; {PYTEST} --tb=no")
        _, judged = await safe_room.judge({"attack.py": attack}, SEEN_RED)
        assert judged.state is FAILED
        assert "Read-only file system" in judged.feedback
        assert ("tests/test_calc.py",) in safe_room.protected

    async def test_honest_work(self, safe_room: Room) -> None:
        safe_room.start({"calc.py": BROKEN, "tests/test_calc.py": TEST}, PYTEST)
        seen, judged = await safe_room.judge({"calc.py": FIXED})
        assert (seen[0].state, seen[0].canary, judged.state) == ("red", ADD, PROVED)

    async def test_no_process_of_the_worker_is_left_when_its_sandbox_is_closed(self, safe_room: Room) -> None:
        marker = str(10**8 + int(new_id()[:6], 16))
        daemon = (
            f"(setsid nohup bash -c 'trap \"\" TERM HUP; while :; do echo good >result; sleep 0.05; : {marker}; done' "
        )
        daemon += "</dev/null >/dev/null 2>&1 &)"
        box = open_sandbox("bubblewrap", Policy(safe_room.work), session_dir=safe_room.folder / "worker")
        await box.start()
        await box.exec(daemon)
        await box.spawn(daemon + "; sleep 600")
        await wait_until_async(lambda: (safe_room.work / "result").exists())
        await box.close()
        assert processes_of(marker) == []
        (safe_room.work / "result").write_text("bad")
        safe_room.start({}, "sleep 0.3; grep -q good result")
        judged = await safe_room.runner.judge(safe_room.work, ())
        assert judged.state is FAILED
        assert (safe_room.work / "result").read_text() == "bad"

    async def test_a_daemon_of_one_check_does_not_reach_the_next(self, safe_room: Room) -> None:
        safe_room.start(
            {},
            "(setsid bash -c 'while :; do touch /tmp/x x; done' &) ; sleep 0.2; test -e x",
            "sleep 0.3; test ! -e x -a ! -e /tmp/x",
        )
        _, judged = await safe_room.judge({})
        assert judged.state is PROVED, judged

    async def test_programs_come_from_outside_of_the_workspace(
        self, safe_room: Room, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", f"{safe_room.work}:{safe_room.work}/bin:{os.environ['PATH']}")
        safe_room.start(
            {}, f'case ":$PATH:" in *{safe_room.work}*|*::*|*:.:*) exit 1;; esac; test "$(type -P ls)" = /usr/bin/ls'
        )
        _, judged = await safe_room.judge({"ls": "#!/bin/sh\nexit 0\n", "bin/ls": "#!/bin/sh\nexit 0\n"})
        assert judged.state is PROVED, judged

    async def test_many_frozen_files(self, safe_room: Room) -> None:
        files = {f"tests/d{n % 40}/test_{n}.py": "" for n in range(400)}
        safe_room.start(files, "test -f x && ! echo >tests/d0/test_0.py; echo >tests/d39/test_399.py")
        _, judged = await safe_room.judge({"x": ""})
        assert len(safe_room.protected[-1]) == 200
        assert "changed what it checks with" in judged.clause.why or judged.state is FAILED

"""What is frozen, and how it is put back over whatever the work left in its place."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from operator_core.errors import VerificationError
from operator_core.model.task import CheckFile, TaskCheck, TaskSpec
from operator_core.verify.frozen import Restored, altered, frozen_paths, is_runner, is_test, restore


class Trees:
    """A base, the work on it, and the task's check files."""

    def __init__(self, folder: Path) -> None:
        self.base, self.work, self.explicit = (folder / name for name in ("base", "work", "explicit"))
        for path in (self.base, self.work, self.explicit):
            path.mkdir()
        self.given: list[CheckFile] = []

    def both(self, **files: str) -> None:
        self.base_has(files)
        self.work_has(files)

    def base_has(self, files: dict[str, str]) -> None:
        _write(self.base, files)

    def work_has(self, files: dict[str, str]) -> None:
        _write(self.work, files)

    def check_file(self, path: str, text: str) -> None:
        _write(self.explicit, {path: text})
        self.given.append(CheckFile(path=path, sha256=hashlib.sha256(text.encode()).hexdigest()))

    def spec(self, *commands: str, allow: tuple[str, ...] = ()) -> TaskSpec:
        return TaskSpec(
            name="t",
            prompt="p",
            checks=tuple(TaskCheck(command=command) for command in commands or ("pytest -q",)),
            check_files=tuple(self.given),
            allow_change=allow,
        )

    def restore(self, *commands: str, allow: tuple[str, ...] = ()) -> Restored:
        frozen = frozen_paths(self.base, self.spec(*commands, allow=allow))
        done = restore(self.work, self.base, self.explicit, frozen)
        assert altered(self.work, self.base, self.explicit, frozen) == ()
        return done


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(tmp_path)


@pytest.mark.parametrize(
    "path",
    [
        "tests/data/x.json", "test/a", "src/app/tests/util.py", "Tests/x.cs", "test_a.py", "a_test.go",
        "pkg/app_test.py",
        "src/a.spec.ts", "src/a.test.js", "a.cy.js", "lib/a_spec.rb", "FooTest.java", "FooTests.cs", "TestFoo.java",
        "tests.py", "src/__tests__/a.js", "__snapshots__/a.snap", "e2e/x.ts",
    ],
)  # fmt: skip
def test_tests(path: str) -> None:
    assert is_test(path)


@pytest.mark.parametrize(
    "path", ["src/app.py", "contest.py", "latest.txt", "attest/a.py", "protest.go", "README.md", "Contest.java", "a.py"]
)
def test_no_tests(path: str) -> None:
    assert not is_test(path)


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("conftest.py", True), ("a/b/conftest.py", True), ("pytest.ini", True), (".pytest.ini", True),
        ("evil.pth", True),
        ("sitecustomize.py", True), ("x/usercustomize.py", True), ("noxfile.py", True), ("jest.config.mjs", True),
        (".mocharc.yml", True), ("conftest.txt", False), ("my_conftest.py", False),
        ("path.py", False), ("app.py", False),
    ],
)  # fmt: skip
def test_runners(path: str, is_one: bool) -> None:
    assert is_runner(path) is is_one


def test_a_changed_and_a_deleted_test_come_back(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "assert 1", "tests/test_b.py": "assert 2", "src/a.py": "x = 1"})
    trees.work_has({"tests/test_a.py": "pass", "src/a.py": "x = 2", "tests/test_new.py": "assert 3"})
    (trees.work / "tests/test_b.py").unlink()
    done = trees.restore()
    assert done == Restored(("tests/test_a.py", "tests/test_b.py"), (), ("tests/test_a.py", "tests/test_b.py"))
    assert (trees.work / "tests/test_a.py").read_text() == "assert 1"
    assert (trees.work / "tests/test_b.py").read_text() == "assert 2"
    assert (trees.work / "src/a.py").read_text() == "x = 2"
    assert (trees.work / "tests/test_new.py").exists()


def test_nothing_is_said_of_what_was_not_changed(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "assert 1", "conftest.py": "", "pyproject.toml": "[tool.pytest.ini_options]\n"})
    os.utime(trees.work / "conftest.py", (1, 1))
    assert trees.restore()[:2] == ((), ())


@pytest.mark.parametrize("relative", [True, False])
def test_a_folder_of_tests_that_became_a_link_is_not_followed(trees: Trees, tmp_path: Path, relative: bool) -> None:
    trees.base_has({"tests/deep/test_a.py": "assert 1"})
    outside = tmp_path / "outside"
    _write(outside, {"deep/test_a.py": "kept", "conftest.py": "kept"})
    (trees.work / "tests").symlink_to("../outside" if relative else outside)
    done = trees.restore()
    assert done.restored == ("tests/deep/test_a.py",)
    assert not (trees.work / "tests").is_symlink()
    assert (trees.work / "tests/deep/test_a.py").read_text() == "assert 1"
    assert (outside / "deep/test_a.py").read_text() == (outside / "conftest.py").read_text() == "kept"


def test_a_folder_of_tests_that_became_a_file_and_the_other_way_round(trees: Trees) -> None:
    trees.base_has({"tests/test_a.py": "assert 1", "test_b.py": "assert 2"})
    trees.work_has({"tests": "a file", "test_b.py/inner": "a folder"})
    assert trees.restore().restored == ("test_b.py", "tests/test_a.py")
    assert (trees.work / "test_b.py").read_text() == "assert 2"


def test_a_test_that_became_a_link_a_pipe_or_lost_its_mode(trees: Trees, tmp_path: Path) -> None:
    trees.both(**{"tests/a.sh": "#!/bin/sh", "tests/b": "b", "tests/c": "c"})
    (trees.base / "tests/a.sh").chmod(0o755)
    (trees.work / "tests/b").unlink()
    (trees.work / "tests/b").symlink_to(tmp_path / "outside")
    (tmp_path / "outside").write_text("b")
    (trees.work / "tests/c").unlink()
    os.mkfifo(trees.work / "tests/c")
    done = trees.restore()
    assert done.restored == ("tests/a.sh", "tests/b", "tests/c")
    assert os.access(trees.work / "tests/a.sh", os.X_OK)
    assert (tmp_path / "outside").read_text() == "b"
    assert done.protected == ("tests/a.sh", "tests/b", "tests/c")


def test_runner_files_that_were_added_are_taken_out(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "assert 1", "sub/conftest.py": "base"})
    added = [
        "conftest.py", "tests/conftest.py", "pytest.ini", "src/sitecustomize.py", "usercustomize.py", "x.pth",
        "pytest.py",
        "src/pytest.py", "_pytest/__init__.py", "unittest.py", "json/__init__.py", "tests/difflib.py", "coverage.py",
        "re.so", "pip.egg-info/entry_points.txt",
    ]  # fmt: skip
    kept = [
        "src/json.py", "src/coverage.py", "platform/data.txt", "test.py", "src/app/types.py", "queue.txt", "app/x.py",
        "other.egg-info/entry_points.txt",
    ]  # fmt: skip
    trees.work_has(dict.fromkeys(added, "[pytest11]\nx = evil") | dict.fromkeys(kept, "x"))
    (trees.work / "sub/conftest.py").write_text("changed")
    (trees.work / "random").symlink_to("src")
    done = trees.restore()
    assert sorted(done.removed) == sorted([*added, "random"])
    assert done.restored == ("sub/conftest.py",)
    assert [name for name in kept if not (trees.work / name).exists()] == []


def test_installed_packages_are_left_alone(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "", "node_modules/old/test/a.js": "1"})
    added = {
        "node_modules/x/package.json": '{"scripts": {"test": "jest"}}',
        "node_modules/x/jest.config.js": "",
        ".venv/lib/python3/site-packages/pytest/__init__.py": "",
        ".venv/lib/python3/site-packages/numpy/conftest.py": "",
        ".venv/lib/python3/site-packages/cov.dist-info/entry_points.txt": "[pytest11]",
        "web/package.json": '{"scripts": {"test": "jest"}}',
    }
    trees.work_has({**added, "node_modules/old/test/a.js": "2", ".venv/lib/python3/site-packages/evil.pth": ""})
    assert trees.restore()[:2] == ((), (".venv/lib/python3/site-packages/evil.pth",))


def test_without_anything_frozen_people_may_bring_their_own_test_setup(trees: Trees) -> None:
    trees.work_has({"tests/test_a.py": "", "conftest.py": "", "pyproject.toml": "[tool.pytest.ini_options]"})
    trees.work_has({"sitecustomize.py": "", "pytest.py": ""})
    assert sorted(trees.restore().removed) == ["pytest.py", "sitecustomize.py"]
    assert (trees.work / "conftest.py").exists()
    assert (trees.work / "pyproject.toml").exists()


def test_compiled_modules_and_what_runners_remember_are_gone(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": ""})
    trees.work_has({"tests/__pycache__/test_a.cpython-311.pyc": "forged", "a.pyc": "", ".pytest_cache/x": ""})
    (trees.work / "src").mkdir()
    (trees.work / "src/__pycache__").symlink_to("../tests")
    assert trees.restore() == Restored((), (), ("tests/test_a.py",))
    assert sorted(p.name for p in trees.work.rglob("*")) == ["src", "test_a.py", "tests"]


TOML = '[project]\ndependencies = [{deps}]\n[tool.pytest.ini_options]\naddopts = "{opts}"\n'


@pytest.mark.parametrize(
    ("name", "before", "after", "restored"),
    [
        ("pyproject.toml", TOML.format(deps="", opts="-q"), TOML.format(deps='"rich"', opts="-q"), False),
        ("pyproject.toml", TOML.format(deps="", opts="-q"), TOML.format(deps="", opts="-p evil"), True),
        ("pyproject.toml", "[project]\n", "[project]\n[tool.pytest.ini_options]\ntestpaths = ['none']\n", True),
        ("pyproject.toml", "[project]\n", "not toml [", True),
        ("pyproject.toml", "[tool.hatch.envs.test]\nscripts = 1", "[tool.hatch.envs.test]\nscripts = 2", True),
        ("setup.cfg", "[metadata]\nname = a\n", "[metadata]\nname = b\n", False),
        ("setup.cfg", "[metadata]\n", "[metadata]\n[tool:pytest]\naddopts = -k nothing\n", True),
        ("tox.ini", "[testenv]\ncommands = pytest\n", "[testenv]\ncommands = true\n", True),
        ("package.json", '{"scripts": {"test": "jest"}}', '{"scripts": {"test": "jest"}, "dependencies": {}}', False),
        ("package.json", '{"scripts": {"test": "jest"}}', '{"scripts": {"test": "true"}}', True),
        ("package.json", '{"scripts": {}}', '{"scripts": {"pretest": "rm -r tests"}}', True),
        ("package.json", '{"scripts": {"build": "a"}}', '{"scripts": {"build": "b"}}', False),
        ("package.json", "{}", "[]", True),
    ],
)  # fmt: skip
def test_of_configurations_only_the_part_about_tests_counts(
    trees: Trees, name: str, before: str, after: str, restored: bool
) -> None:
    trees.both(**{"tests/test_a.py": "", name: before})
    trees.work_has({name: after})
    assert trees.restore().restored == ((name,) if restored else ())
    assert (trees.work / name).read_text() == (before if restored else after)


def test_no_padding_hides_a_part(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "", "setup.cfg": "[metadata]\n"})
    text = "#" * (1 << 20) + "\n[tool:pytest]\naddopts = --co\n[pytest11]\n"
    trees.work_has({"setup.cfg": text, "tox.ini": text, "x.egg-info/entry_points.txt": text})
    assert trees.restore()[:2] == (("setup.cfg",), ("tox.ini", "x.egg-info/entry_points.txt"))


def test_a_deleted_configuration_comes_back_and_an_added_one_goes(trees: Trees) -> None:
    trees.base_has({"tests/test_a.py": "", "pyproject.toml": "[project]"})
    trees.work_has({"tests/test_a.py": "", "sub/setup.cfg": "[tool:pytest]\nx=1", "sub/tox.ini": "[other]\n"})
    assert trees.restore()[:2] == (("pyproject.toml",), ("sub/setup.cfg",))
    assert (trees.work / "sub/tox.ini").exists()


@pytest.mark.parametrize(
    ("command", "named"),
    [
        ("./check.sh", ["check.sh"]),
        ("bash check.sh --fast", ["check.sh"]),
        ("sh ./run", ["run"]),
        ("cd sub && ./run", ["sub/run"]),
        ("timeout 5 ./run | tee log", ["run"]),
        ("(set -e; ./run)", ["run"]),
        ("bash -c './run'", ["run"]),
        ("if ! ./run; then exit 1; fi", ["run"]),
        ("python run", ["run"]),
        ("python -u run", ["run"]),
        ("python app.py", ["app.py"]),
        ("python app.py data.csv > out.txt && diff out.txt expected.txt", ["expected.txt"]),
        ("python app.py | diff - expected.txt", ["expected.txt"]),
        ("python app.py | grep -q 42", []),
        ('test "$(python app.py)" = 42', []),
        ("grep -q usage README.md && test -f app.py", []),
        ("mypy app.py", []),
        ("make test", ["Makefile", "run"]),
        ("make -f other.mk", ["Makefile", "other.mk", "run"]),
        ("bash lib/all_checks.sh", ["lib/all_checks.sh", "sub/run"]),
        ("checks/go", ["checks/go", "checks/lib.py"]),
        ("linked", []),
        ("./linked", ["linked", "run"]),
        ("cat <<E | python run\nE", ["run"]),
        ("case x in x) ./run ;; esac\n./check.sh", ["check.sh"]),
        ("../outside/run; /srv/run; ./missing", []),
    ],
)  # fmt: skip
def test_the_files_that_a_check_is_made_of(trees: Trees, command: str, named: list[str]) -> None:
    files = ["check.sh", "run", "sub/run", "app.py", "data.csv", "expected.txt", "README.md", "other.mk"]
    trees.base_has(dict.fromkeys(files, "x"))
    trees.base_has({"Makefile": "test:\n\t@./run --all\n", "lib/all_checks.sh": "cd sub\n./run\nx() { y; }\n"})
    trees.base_has({"checks/go": "#!/bin/sh\n", "checks/lib.py": ""})
    (trees.base / "linked").symlink_to("run")
    assert sorted(frozen_paths(trees.base, trees.spec(command)).named) == named


def test_an_added_makefile_that_comes_first_goes(trees: Trees) -> None:
    trees.both(Makefile="test:\n\tpytest\n")
    trees.work_has({"GNUmakefile": "test:\n\ttrue\n"})
    assert trees.restore("make test").removed == ("GNUmakefile",)


def test_the_first_makefile_may_be_the_work(trees: Trees) -> None:
    trees.work_has({"Makefile": "test:\n\tpytest\n"})
    assert trees.restore("make test").removed == ()


def test_check_files_of_the_task_win(trees: Trees) -> None:
    trees.check_file("tests/test_a.py", "assert 'given'")
    trees.check_file("tests/test_b.py", "assert 'b'")
    trees.check_file("checks/new.sh", "exit 1")
    trees.both(**{"tests/test_a.py": "assert 'base'", "tests/test_b.py": "assert 'base'"})
    trees.work_has({"checks/new.sh": "exit 0", "tests/test_a.py": "assert 'given'"})
    done = trees.restore(allow=("tests", "checks"))
    assert done.restored == ("checks/new.sh", "tests/test_b.py")
    assert (trees.work / "checks/new.sh").read_text() == "exit 1"
    assert set(done.protected) == {"tests/test_a.py", "tests/test_b.py", "checks/new.sh"}


def test_a_check_file_that_nobody_has_yet_is_only_placed(trees: Trees) -> None:
    trees.check_file("tests/test_new.py", "assert 1")
    assert trees.restore() == Restored((), (), ("tests/test_new.py",))
    assert (trees.work / "tests/test_new.py").exists()


def test_what_may_change_is_left_alone(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "1", "tests/unit/test_b.py": "1", "tests2/test_c.py": "1", "check.sh": "1"})
    files = dict.fromkeys(["tests/test_a.py", "tests/unit/test_b.py", "tests2/test_c.py", "check.sh"], "2")
    trees.work_has({**files, "tests/conftest.py": "", "conftest.py": ""})
    done = trees.restore("./check.sh", allow=("tests/", "check.sh"))
    assert done[:2] == (("tests2/test_c.py",), ("conftest.py",))


def test_a_missing_base_is_said(trees: Trees) -> None:
    with pytest.raises(VerificationError, match="cannot be opened"):
        frozen_paths(trees.base / "missing", trees.spec())


def test_changes_during_a_run_are_seen(trees: Trees) -> None:
    trees.both(**{"tests/test_a.py": "1", "src/a.py": "1"})
    frozen = frozen_paths(trees.base, trees.spec())
    trees.work_has({"tests/test_a.py": "2", "src/a.py": "2"})
    assert altered(trees.work, trees.base, trees.explicit, frozen) == ("tests/test_a.py",)

"""What the work must not decide about itself: tests, runner files, check scripts; put back before each check."""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from operator_core.model.task import TaskSpec
from operator_core.verify.copies import plain_name
from operator_core.verify.sections import SECTIONED, section
from operator_core.verify.shell import NotRead, parse, unwrapped, uses
from operator_core.verify.trees import Tree

__all__ = ["Frozen", "Restored", "altered", "frozen_paths", "is_runner", "is_test", "restore", "without_hooks"]

_TEST_FOLDERS = frozenset(["tests", "test", "__tests__", "e2e", "testdata", "__snapshots__"])
_TEST_NAME = re.compile(
    r"test_.+|.+_tests?\.[^.]+|tests?\.[^.]+|.+[.-](?:spec|test|tests|cy)\.[^.]+|.+_spec\.[^.]+", re.IGNORECASE
)
_TEST_CLASS = re.compile(r".*[a-z0-9](?:Test|Tests|TestCase|Spec|IT)\.[A-Za-z]+|Test[A-Z0-9].*\.[A-Za-z]+")
_CHECK_NAME = re.compile(
    r"(?:^|[._-])(?:check|checks|test|tests|verify|verifier|validate|accept|acceptance|expected|expect|golden|grade|"
    r"judge|assert|oracle)(?:[._-]|$)",
    re.IGNORECASE,
)
_INTERPRETER_HOOKS = frozenset(["sitecustomize.py", "usercustomize.py"])
_RUNNER_NAMES = frozenset(
    [
        "conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "noxfile.py", ".coveragerc",
        ".npmrc", ".mocharc", ".nycrc", ".rspec", "phpunit.xml", "phpunit.xml.dist", "rails_helper.rb",
        "spec_helper.rb",
    ]
)  # fmt: skip
_RUNNER_NAME = re.compile(
    r"(?:jest|vitest|karma|playwright|cypress|ava|wdio)\.(?:config|conf|setup)\.[a-z]+|\.mocharc\.[a-z]+|.*\.pth"
)
# No work has a module of such a name; it would be loaded in place of the test runner.
_RUNNERS = frozenset(["_pytest", "iniconfig", "pluggy", "pytest"])
# Likewise where Python looks first, which is where the check starts and where the tests are.
_TOOLS = frozenset(
    [
        "attr", "coverage", "exceptiongroup", "hypothesis", "mypy", "nose2", "nox", "packaging", "pip", "py",
        "pygments", "pytest_asyncio", "pytest_cov", "ruff", "setuptools", "tomli", "tox", "xdist",
    ]
)  # fmt: skip
# These names of the standard library are usual for people's own folders and files.
_USUAL = frozenset(["test", "this", "antigravity", "idlelib", "__phello__", "__hello__"])
_STANDARD = frozenset(sys.stdlib_module_names) - _USUAL
# What a tool reads to know what it has to do; of each group one file is read, and an added one may come first.
_TOOL_FILES = {
    "make": ("GNUmakefile", "makefile", "Makefile"), "gmake": ("GNUmakefile", "makefile", "Makefile"),
    "just": ("justfile", ".justfile", "Justfile"), "rake": ("Rakefile", "rakefile", "Rakefile.rb"),
    "task": ("Taskfile.yml", "Taskfile.yaml"), "tox": ("tox.ini",), "nox": ("noxfile.py",),
}  # fmt: skip
_SHELLS = frozenset(["bash", "sh", "dash", "zsh", "source", "."])
_INTERPRETER = re.compile(r"(?:python|pypy|node|deno|bun|ruby|perl|php|Rscript|lua|tsx|ts-node)[\d.]*\Z")
_SCRIPT_MAX = 1 << 20
_LINES_MAX = 2000


class Frozen(NamedTuple):
    """What is put back, and what is taken out, before a check; paths are relative with ``/``.

    Attributes:
        tests: Test files of the base, and the files in its test folders.
        runners: Runner files of the base: they say how tests are run.
        configs: Files of the base of which only the part about tests must stay.
        named: Files of the base that are the check: scripts that it runs, files named like expectations.
        explicit: The task's check files.
        allowed: Paths that the work may change.
        shadows: Folders from which Python may load modules during a check.
        groups: Groups of files of which a tool that a check runs reads one.
    """

    tests: tuple[str, ...] = ()
    runners: tuple[str, ...] = ()
    configs: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    explicit: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    shadows: tuple[str, ...] = ("",)
    groups: tuple[tuple[str, ...], ...] = ()

    @property
    def files(self) -> tuple[str, ...]:
        """Every file that must be as it was when a check runs, without repetition."""
        return tuple(dict.fromkeys((*self.explicit, *self.named, *self.runners, *self.tests)))


class Restored(NamedTuple):
    """What was done to a copy.

    Attributes:
        restored: Paths that the work had changed or deleted and that are as they were again.
        removed: Paths that the work had added and that are gone.
        protected: Paths that a check must not be able to change.
    """

    restored: tuple[str, ...]
    removed: tuple[str, ...]
    protected: tuple[str, ...]


def is_test(path: str) -> bool:
    """Whether a path is that of a test, or of something in a folder of tests."""
    *folders, name = path.split("/")
    return (
        any(folder.casefold() in _TEST_FOLDERS for folder in folders)
        or _TEST_NAME.fullmatch(name) is not None
        or _TEST_CLASS.fullmatch(name) is not None
    )


def is_runner(path: str) -> bool:
    """Whether a path is that of a file that says how programs or tests are run, wherever it lies."""
    name = path.rpartition("/")[2]
    return name in _RUNNER_NAMES or name in _INTERPRETER_HOOKS or _RUNNER_NAME.fullmatch(name) is not None


def frozen_paths(base: Path, spec: TaskSpec) -> Frozen:
    """What is frozen for the checks of a task.

    Args:
        base: The workspace as it was before the work.
        spec: The task.

    Raises:
        VerificationError: The base cannot be read.
    """
    explicit = tuple(file.path for file in spec.check_files)
    tests: list[str] = []
    runners: list[str] = []
    configs: list[str] = []
    commands = [check.command for check in spec.checks]
    with Tree(base) as tree:
        for path, kind in tree.walk():
            if kind not in ("file", "link") or path in explicit:
                continue
            if _is_vendored(path) or _is_allowed(path, spec.allow_change):
                continue
            if is_runner(path):
                runners.append(path)
            elif path.rpartition("/")[2] in SECTIONED:
                configs.append(path)
            elif is_test(path):
                tests.append(path)
        named, groups = _named(tree, commands)
        behind = [tree.target(path) for path in (*tests, *runners, *named)]
        named += [path for path in behind if path and tree.kind(path) == "file"]
    known = {*explicit, *tests, *runners}
    named = [p for p in dict.fromkeys(named) if p not in known and not _is_allowed(p, spec.allow_change)]
    folders = {"", *(folder for command in commands for folder, _, _ in _programs(command))}
    folders |= {posixpath.dirname(path) for path in (*tests, *explicit) if path.endswith(".py")}
    return Frozen(
        tuple(sorted(tests)),
        tuple(sorted(runners)),
        tuple(sorted(configs)),
        tuple(named),
        explicit,
        spec.allow_change,
        tuple(sorted(folders)),
        tuple(groups),
    )


def restore(copy: Path, base: Path, explicit: Path, frozen: Frozen) -> Restored:
    """Put the frozen content over a copy of the work and take out what it added to steer its checks.

    Whatever the work left in place of a file or a folder, nothing outside of the copy is read or changed.

    Args:
        copy: The copy; it is changed.
        base: The workspace as it was before the work.
        explicit: A folder with the task's check files.
        frozen: What :func:`frozen_paths` found in the base.

    Raises:
        VerificationError: A frozen file is missing in the base, or the copy cannot be changed.
    """
    restored: list[str] = []
    with Tree(copy) as work, Tree(base) as was, Tree(explicit if frozen.explicit else base) as given:
        removed = _take_out(work, was, frozen, anything=bool(frozen.files))
        for path in frozen.files:
            source = given if path in frozen.explicit else was
            # A check file that nobody had before and that is simply not there yet was not changed by the work.
            expected = source is was or was.kind(path) is not None
            if not work.same(source, path):
                if expected or work.kind(path) is not None:
                    restored.append(path)
                work.put(source, path)
        for path in frozen.configs:
            before = section(was, path)
            if work.kind(path) == "file" and (section(work, path) == before or not (before or frozen.files)):
                continue
            # A configuration that is gone is put back too: another one would take its place.
            work.put(was, path)
            restored.append(path)
        protected = [p for p in frozen.files if work.kind(p) == "file"]
    return Restored(tuple(plain_name(p) for p in sorted(restored)), tuple(removed), tuple(protected))


def without_hooks(copy: Path, base: Path, frozen: Frozen) -> tuple[str, ...]:
    """Take out only what Python would run by itself, or load in place of its own library or of a test runner.

    For whoever tries the work by hand: nothing else is changed.

    Returns:
        Paths that the work had added and that are gone.
    """
    only = Frozen(explicit=frozen.explicit, allowed=frozen.allowed, shadows=frozen.shadows)
    with Tree(copy) as work, Tree(base) as was:
        return tuple(_take_out(work, was, only, anything=False))


def altered(copy: Path, base: Path, explicit: Path, frozen: Frozen) -> tuple[str, ...]:
    """The frozen files that are not as they should be: what a check that has run did to them."""
    with Tree(copy) as work, Tree(base) as was, Tree(explicit if frozen.explicit else base) as given:
        wrong = [p for p in frozen.files if not work.same(given if p in frozen.explicit else was, p)]
    return tuple(plain_name(path) for path in wrong)


def _take_out(work: Tree, was: Tree, frozen: Frozen, *, anything: bool) -> list[str]:
    removed: list[str] = []
    in_groups = {name for group in frozen.groups if any(was.kind(name) for name in group) for name in group}
    for path, kind in list(work.walk()):
        name = path.rpartition("/")[2]
        # Compiled modules may be forged, and what a runner remembers of earlier runs too; no check needs them.
        if name in ("__pycache__", ".pytest_cache") or name.endswith((".pyc", ".pyo")):
            work.remove(path)
            continue
        own = anything and kind != "folder" and not _is_vendored(path)
        steers = (
            _hooks_into_python(path, kind, frozen)
            or (own and is_runner(path))
            # A new `package.json` is a new project; the one that a check uses was there.
            or (own and name in SECTIONED and name != "package.json" and bool(section(work, path)))
            or (own and name == "entry_points.txt" and _names_a_plugin(work, path))
            or path in in_groups
        )
        if not steers or path in frozen.explicit or _is_allowed(path, frozen.allowed):
            continue
        if was.kind(path) is None and work.kind(path) is not None:
            work.remove(path)
            removed.append(plain_name(path))
    return removed


def _hooks_into_python(path: str, kind: str, frozen: Frozen) -> bool:
    """Whether Python would run it by itself, or in place of a module of a test runner or of its own library."""
    folder, _, name = path.rpartition("/")
    if name in _INTERPRETER_HOOKS or name.endswith(".pth"):
        return True
    if kind == "folder" or not (name.endswith((".py", ".so", ".pyd")) or (kind == "link" and "." not in name)):
        return False
    module = name.partition(".")[0]
    if module == "__init__":
        # Without this file its folder is nothing that comes before another module.
        folder, _, module = folder.rpartition("/")
    if module in _RUNNERS:
        return not _is_vendored(path)
    return module in _TOOLS | _STANDARD and folder in frozen.shadows


def _names_a_plugin(tree: Tree, path: str) -> bool:
    data = tree.read(path, _SCRIPT_MAX)
    return b"pytest11" in data or len(data) == _SCRIPT_MAX


def _is_vendored(path: str) -> bool:
    """Whether it belongs to an installed package, whose own tests and settings no check uses."""
    return not {"node_modules", "site-packages"}.isdisjoint(path.split("/"))


def _is_allowed(path: str, allowed: tuple[str, ...]) -> bool:
    return any(path == item.rstrip("/") or path.startswith(item.rstrip("/") + "/") for item in allowed if item)


# What a check's own words say.


def _named(tree: Tree, commands: list[str]) -> tuple[list[str], list[tuple[str, ...]]]:
    """The files that are the check, and the groups of files that its tools read, also through scripts and Makefiles."""
    named: dict[str, None] = {}
    groups: dict[tuple[str, ...], None] = {}
    queue = list(commands)
    while queue:
        text = queue.pop(0)
        for folder, words, decides in _programs(text):
            for path in _files_of(tree, folder, words, decides):
                if path not in named:
                    named[path] = None
                    queue.append(_text(tree, path) if _is_shell_script(tree, path, words) else "")
            group = _TOOL_FILES.get(words[0].rpartition("/")[2])
            if group:
                group = tuple(posixpath.join(folder, name) for name in group)
                groups[group] = None
                for path in group:
                    if tree.kind(path) in ("file", "link") and path not in named:
                        named[path] = None
                        queue += _recipes(_text(tree, path))
    return list(named), list(groups)


def _programs(text: str) -> Iterator[tuple[str, list[str], bool]]:
    """Each program with its words, the folder it starts in as far as one can see, and whether its status may decide."""
    parts = [text]
    try:
        parse(text)
    except NotRead:
        # Line by line, what can be read of it.
        parts = text.splitlines()[:_LINES_MAX]
    folder = ""
    for part in parts:
        try:
            found = list(uses(parse(part)))
        except NotRead:
            continue
        for simple, decides in found:
            words = [word.text for word in unwrapped(simple.words)]
            if words[:1] == ["cd"] and len(words) == 2:
                folder = _inside(folder, words[1]) or ""
            elif words:
                yield folder, words, decides


def _files_of(tree: Tree, folder: str, words: list[str], decides: bool) -> Iterator[str]:
    """The frozen ones among the files that a program and its arguments name.

    A script whose own exit status decides judges the work, and so do files that are called a check or an expectation.
    What a check only looks at (``grep -q x README.md``) or runs to see its output is the work.
    """
    name = words[0].rpartition("/")[2]
    runs = 0 if "/" in words[0] else None
    if name in _SHELLS or _INTERPRETER.match(name):
        runs = next((n for n, word in enumerate(words[1:], 1) if not word.startswith("-")), None)
        if any(word in ("-c", "-m", "-e") for word in words[1 : runs or 1]):
            runs = None
    for number, word in enumerate(words):
        for part in {word, word.partition("=")[2], word.partition("::")[0]}:
            path = _inside(folder, part) if part else None
            if not path:
                continue
            if tree.kind(path) == "folder" and _CHECK_NAME.search(path.rpartition("/")[2]):
                yield from tree.files(path)
            if tree.kind(path) not in ("file", "link"):
                continue
            folder_of, _, last = path.rpartition("/")
            looks_like_one = bool(_CHECK_NAME.search(last)) or is_test(path) or is_runner(path)
            is_makefile = name in ("make", "gmake", "just") and number > 0 and words[number - 1] in ("-f", "--file")
            if looks_like_one or is_makefile or (number == runs and decides):
                yield path
                if _CHECK_NAME.search(folder_of.rpartition("/")[2]):
                    # What lies beside a script in a folder of checks belongs to it.
                    yield from tree.files(folder_of)


def _is_shell_script(tree: Tree, path: str, words: list[str]) -> bool:
    first = _text(tree, path)[:80].split("\n")[0]
    return path.endswith((".sh", ".bash")) or (first.startswith("#!") and "sh" in first) or words[0] in _SHELLS


def _recipes(text: str) -> list[str]:
    return [line.lstrip("\t @-+") for line in text.splitlines()[:_LINES_MAX] if line.startswith(("\t", "    "))]


def _inside(folder: str, path: str) -> str | None:
    """A path relative to the workspace, if it lies there."""
    full = posixpath.normpath(posixpath.join(folder, path))
    return None if full.startswith(("/", "..")) or full == "." else full


def _text(tree: Tree, path: str) -> str:
    return tree.read(path, _SCRIPT_MAX).decode("utf-8", "replace")

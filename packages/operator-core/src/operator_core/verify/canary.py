"""Is a green check still able to be red? The frozen Python tests are made to fail, and the check has to notice."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Literal, NamedTuple, TypeGuard

from operator_core import clock
from operator_core.model.task import TaskCheck
from operator_core.verify.frozen import Frozen
from operator_core.verify.trees import Tree

__all__ = ["Canary"]

_FILE_MAX = 4 << 20
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|tests?)\.py")
_MAY_RUN_THEM = re.compile(
    r"\b(?:pytest|py\.test|unittest|tox|nox|nose2|make|just|task|run_?tests?)\b|\.sh\b|(?:^|\s)\./|test\w*\.py\b"
)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Canary(NamedTuple):
    """Failures for the frozen Python tests.

    Every test keeps its name and place and only fails at its first line, so that a check runs what it always runs, and
    code that wants to spare the platform's own test finds none.

    Attributes:
        files: The files with the tests.
        mode: ``bodies``: each test fails at its first line. ``skeletons``: nothing but the failing tests is left in a
            file, which runs also where what it imports is not written yet.
    """

    files: tuple[str, ...]
    mode: Literal["bodies", "skeletons"] = "bodies"

    @classmethod
    def of(cls, check: TaskCheck, frozen: Frozen) -> Canary | None:
        """One for this check; None if it runs no Python tests, or none are frozen."""
        paths = dict.fromkeys((*frozen.explicit, *frozen.tests, *frozen.named))
        files = tuple(path for path in paths if _TEST_FILE.fullmatch(path.rpartition("/")[2]))
        return cls(files) if files and _MAY_RUN_THEM.search(check.command) else None

    def put(self, copy: Path) -> dict[str, str]:
        """Let the tests in a copy fail; returns what each says then, and which test it is (``a/test_b.py::test_c``)."""
        marks = _Marks()
        with Tree(copy) as tree:
            for path in self.files:
                if tree.kind(path) != "file":
                    continue
                try:
                    module = ast.parse(tree.read(path, _FILE_MAX))
                    changed = marks.bodies(module, path) if self.mode == "bodies" else marks.skeleton(module, path)
                    if changed is not None:
                        tree.write(path, ast.unparse(ast.fix_missing_locations(changed)).encode())
                except (SyntaxError, ValueError, RecursionError):
                    # Written for another Python, or no Python at all; the other files have to do.
                    continue
        return marks.tests


class _Marks:
    def __init__(self) -> None:
        self.run = clock.new_id()[:12]
        self.tests: dict[str, str] = {}

    def bodies(self, module: ast.Module, path: str) -> ast.Module | None:
        found = _tests(module.body, path)
        for name, function in found:
            function.body[:0] = [*_still_assert(function), self._failure(name)]
        return module if found else None

    def skeleton(self, module: ast.Module, path: str) -> ast.Module | None:
        lines: list[str] = ["import unittest"]
        for node in module.body:
            if isinstance(node, _Function) and node.name.startswith("test"):
                lines += [f"def {node.name}():", f"    {ast.unparse(self._failure(f'{path}::{node.name}'))}"]
            elif isinstance(node, ast.ClassDef):
                names = [n.name for n in node.body if isinstance(n, _Function) and n.name.startswith("test")]
                base = "(unittest.TestCase)" if any("TestCase" in ast.unparse(b) for b in node.bases) else ""
                lines += [f"class {node.name}{base}:"] if names else []
                for name in names:
                    failure = ast.unparse(self._failure(f"{path}::{node.name}::{name}"))
                    lines += [f"    def {name}(self):", f"        {failure}"]
        if len(lines) == 1:
            return None
        if any("unittest.main" in ast.unparse(node) for node in module.body if isinstance(node, ast.If)):
            lines += ["if __name__ == '__main__':", "    unittest.main()"]
        return ast.parse("\n".join(lines))

    def _failure(self, name: str) -> ast.stmt:
        mark = f"{self.run}-{len(self.tests)}-"
        self.tests[mark] = name
        return ast.parse(f"raise AssertionError({mark!r})").body[0]


# What makes each assertion of a test case fail.
_FAILING = {
    "assertEqual": "0, 1", "assertNotEqual": "0, 0", "assertTrue": "False", "assertFalse": "True",
    "assertIs": "0, None",
    "assertIsNone": "0", "assertIsNotNone": "None", "assertIn": "0, ()", "assertNotIn": "0, (0,)", "fail": "",
    "assertAlmostEqual": "0, 1", "assertGreater": "0, 1", "assertLess": "1, 0", "assertGreaterEqual": "0, 1",
    "assertLessEqual": "1, 0", "assertIsInstance": "0, str", "assertRegex": "'a', 'b'", "assertCountEqual": "[0], [1]",
    "assertListEqual": "[0], [1]", "assertDictEqual": "{0: 0}, {0: 1}", "assertSequenceEqual": "[0], [1]",
}  # fmt: skip


def _still_assert(function: _Function) -> list[ast.stmt]:
    """Statements that end a test well if an assertion that it uses does not fail any more."""
    used = {node.func.attr for node in ast.walk(function) if isinstance(node, ast.Call) and _on_self(node.func)}
    lines = [
        f"try:\n    self.{name}({arguments})\nexcept AssertionError:\n    pass\nelse:\n    return"
        for name, arguments in _FAILING.items()
        if name in used
    ]
    return ast.parse("\n".join(lines)).body


def _on_self(node: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _tests(body: list[ast.stmt], prefix: str) -> list[tuple[str, _Function]]:
    found: list[tuple[str, _Function]] = []
    for node in body:
        if isinstance(node, _Function) and node.name.startswith("test"):
            found.append((f"{prefix}::{node.name}", node))
        elif isinstance(node, ast.ClassDef):
            found += _tests(node.body, f"{prefix}::{node.name}")
        elif isinstance(node, ast.If | ast.Try | ast.With):
            found += _tests(node.body, prefix)
    return found

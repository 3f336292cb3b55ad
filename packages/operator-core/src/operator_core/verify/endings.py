"""Does a Python script that is a check come to its own end? It is made to fail there, and the check has to notice.

Such a script imports the work into its own process, where ``os._exit(0)`` or ``sys.exit(0)`` ends both, with success.
"""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Literal, NamedTuple

from operator_core import clock
from operator_core.model.task import TaskCheck
from operator_core.verify.frozen import Frozen
from operator_core.verify.shell import NotRead, parse, unwrapped, uses
from operator_core.verify.trees import Tree

__all__ = ["Ending", "endings"]

_FILE_MAX = 4 << 20
_AT_MOST = 4
_PYTHON = re.compile(r"(?:python|pypy)[\d.]*\Z")
_LEAVES = frozenset(["exit", "_exit", "quit", "abort", "SystemExit", "main", "execv", "execve", "execvp"])


class Ending(NamedTuple):
    """One place at which a check that is a Python script can be made to fail.

    Attributes:
        path: The script, relative to the workspace; empty for a program that is in the command itself.
        code: That program.
        mode: ``end``: it does what it does and then fails. ``passes``, ``fails``: it does only that.
    """

    path: str
    code: str = ""
    mode: Literal["end", "passes", "fails"] = "end"

    def of(self, check: TaskCheck) -> TaskCheck:
        """The check that runs it."""
        changed = self._changed(self.code, "make the check fail") if not self.path else None
        if changed is None:
            return check
        for quoted in (f"'{self.code}'", f'"{self.code}"', shlex.quote(self.code)):
            if check.command.count(quoted) == 1:
                return check.model_copy(update={"command": check.command.replace(quoted, shlex.quote(changed))})
        return check

    def put(self, copy: Path) -> dict[str, str]:
        """Change the script in a copy; returns what it says when it fails, or nothing if that cannot be done."""
        mark = clock.new_id()
        if not self.path:
            return {mark: self.path} if self._changed(self.code, mark) is not None else {}
        with Tree(copy) as tree:
            text = tree.read(self.path, _FILE_MAX).decode("utf-8", "replace") if tree.kind(self.path) == "file" else ""
            changed = self._changed(text, mark)
            if changed is None:
                return {}
            tree.write(self.path, changed.encode())
        return {mark: self.path}

    def _changed(self, text: str, mark: str) -> str | None:
        failure = ast.parse(f"raise AssertionError({mark!r})").body
        if self.mode != "end":
            return ast.unparse(ast.Module(failure if self.mode == "fails" else [ast.Pass()], []))
        try:
            module = ast.parse(text)
            at = _where(module.body)
            if at is None:
                return None
            module.body[at:at] = failure
            return ast.unparse(ast.fix_missing_locations(module))
        except (SyntaxError, ValueError, RecursionError):
            return None


def endings(check: TaskCheck, frozen: Frozen) -> list[Ending]:
    """The places of a check; none if it runs no Python script that is frozen, or that can be read."""
    try:
        found = [unwrapped(simple.words) for simple, decides in uses(parse(check.command)) if decides]
    except NotRead:
        return []
    places: dict[Ending, None] = {}
    for words in found:
        if not words or not _PYTHON.match(words[0].text.rpartition("/")[2]):
            continue
        rest = list(words[1:])
        while rest and rest[0].text.startswith("-") and rest[0].text not in ("-c", "-m", "-"):
            rest.pop(0)
        if len(rest) >= 2 and rest[0].text == "-c" and rest[1].literal:
            places[Ending("", rest[1].text)] = None
        elif rest and rest[0].text.removeprefix("./") in frozen.files:
            places[Ending(rest[0].text.removeprefix("./"))] = None
    return [place for place in places if place.path or place.of(check) is not check][:_AT_MOST]


def _where(body: list[ast.stmt]) -> int | None:
    """Where every run comes by that ends well: at the end, or, if it may leave earlier, behind the imports."""
    if not any(_leaves(node) for node in body):
        return len(body)
    imports = [n for n, node in enumerate(body, 1) if isinstance(node, ast.Import | ast.ImportFrom)]
    at = imports[-1] if imports else 0
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if not at or any(_leaves(node) for node in body[:at] if not isinstance(node, (*definitions, ast.ImportFrom))):
        return None
    return at


def _leaves(node: ast.stmt) -> bool:
    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    return not _LEAVES.isdisjoint(names | {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute)})

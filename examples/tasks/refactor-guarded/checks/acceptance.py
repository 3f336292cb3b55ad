"""Behaves as before, and is written once: behaviour by recorded answers, structure by the syntax tree."""

from __future__ import annotations

import ast
import inspect
import json
import unittest
from itertools import product
from pathlib import Path

import shipping

HERE = Path(__file__).parent
AT_MOST = 12
"""Statements in one function."""
SHORT = 60
"""Characters of a statement that may be in two functions."""


class Behaviour(unittest.TestCase):
    def test_every_recorded_answer(self) -> None:
        for line in (HERE / "recorded.jsonl").read_text("utf-8").splitlines():
            name, arguments, expected = json.loads(line)
            try:
                found = getattr(shipping, name)(*arguments)
            except ValueError as error:
                found = str(error)
            self.assertEqual(found, expected, f"{name}{tuple(arguments)}")

    def test_the_signatures(self) -> None:
        self.assertEqual(
            [str(inspect.signature(f)) for f in (shipping.domestic, shipping.abroad)],
            [
                "(kilograms: 'float', cents: 'int', express: 'bool' = False) -> 'int'",
                "(kilograms: 'float', cents: 'int', express: 'bool' = False, country: 'str' = 'FR') -> 'int'",
            ],
        )


class Structure(unittest.TestCase):
    def setUp(self) -> None:
        tree = ast.parse((HERE / "shipping.py").read_text("utf-8"))
        self.functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}

    def test_nothing_long_is_written_twice(self) -> None:
        seen: dict[str, str] = {}
        for name, function in self.functions.items():
            for node in ast.walk(function):
                text = ast.unparse(node) if isinstance(node, ast.stmt) else ""
                if len(text) > SHORT and not isinstance(node, ast.FunctionDef):
                    self.assertEqual(seen.setdefault(text, name), name, f"`{text}` is in two functions")

    def test_both_use_what_they_share(self) -> None:
        def calls(name: str) -> set[str]:
            nodes = ast.walk(self.functions[name])
            return {n.func.id for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}

        shared = calls("domestic") & calls("abroad") & self.functions.keys()
        self.assertGreaterEqual(len(shared), 2, "the two functions share the price by weight and the surcharge")
        for name in shared:
            self.assertTrue(ast.get_docstring(self.functions[name]), f"{name} says what it does")

    def test_no_function_is_long(self) -> None:
        for name, function in self.functions.items():
            statements = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
            self.assertLessEqual(statements, AT_MOST, f"{name} has {statements} statements")


def record() -> None:
    """How recorded.jsonl was made, with the program as it was."""
    weights = (-1, 0, 0.5, 2, 2.01, 9.99, 10, 10.01, 17.3, 30, 30.01)
    with (HERE / "recorded.jsonl").open("w", encoding="utf-8") as file:
        for name, countries in (("domestic", [()]), ("abroad", [("FR",), ("NO",), ("US",), ("XX",)])):
            for kilograms, cents, express, more in product(weights, (0, 4999, 5000, 15_000), (False, True), countries):
                arguments = (kilograms, cents, express, *more)
                try:
                    answer: int | str = getattr(shipping, name)(*arguments)
                except ValueError as error:
                    answer = str(error)
                file.write(json.dumps([name, arguments, answer]) + "\n")


if __name__ == "__main__":
    unittest.main()

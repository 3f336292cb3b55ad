"""What is written under the fields of a model."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ast

    from pydantic import BaseModel

__all__ = ["descriptions"]


@cache
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """The text under each field, in one line; a field without one is missing.

    It is read from the source when it is asked for; Pydantic's own way reads the source of every model whenever a
    program starts, which is a tenth of the time of a short command.
    """
    import ast

    from pydantic import BaseModel

    found: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if not issubclass(part, BaseModel) or part is BaseModel:
            continue
        tree = _classes(part.__module__)[part.__qualname__]
        for field, text in zip(tree.body, tree.body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(said))):
                    found[name] = " ".join(said.split())
    return {name: text for name, text in found.items() if name in model.model_fields}


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes of a module by their qualified names; its source is read once for all of them."""
    import ast
    import inspect

    found: dict[str, ast.ClassDef] = {}

    def look(body: Iterable[ast.AST], before: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                found[f"{before}{node.name}"] = node
                look(node.body, f"{before}{node.name}.")
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                look(node.body, f"{before}{node.name}.<locals>.")

    look(ast.parse(inspect.getsource(sys.modules[module])).body, "")
    return found

"""What the API says about itself (OpenAPI 3.1), with who may do what."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.routing import Route

from operator_core.web.access import ACCESS, PUBLIC

__all__ = ["describe_access"]

_SCHEME = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of `operator token create`, as `Authorization: Bearer op_…`.",
}


def describe_access(app: FastAPI) -> None:
    """Let the description of the app say what each route needs: ``security``, and the role as ``x-role``."""
    describe = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = describe()
        document.setdefault("components", {})["securitySchemes"] = {"token": _SCHEME}
        for route in app.routes:
            if isinstance(route, Route):
                for method in route.methods or ():
                    _describe(document, route, method)
        return document

    app.openapi = described  # type: ignore[method-assign]


def _describe(document: dict[str, Any], route: Route, method: str) -> None:
    operation = document["paths"].get(route.path_format, {}).get(method.lower())
    rule = ACCESS.get((method, route.path))
    if operation is None or rule is None:
        return
    operation["security"] = [] if rule is PUBLIC else [{"token": []}]
    if rule is not PUBLIC:
        operation["x-role"] = rule.value

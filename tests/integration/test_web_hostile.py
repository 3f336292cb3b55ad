"""Every address with what no honest client sends: nothing of it is an error of the server, on either store."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from fastapi.routing import APIRoute

from operator_core.model.person import Role
from tests.support.scene import furnish
from tests.support.web import open_web

HOSTILE = (
    "a\x00b=c\x00",
    "\ud800".encode("utf-8", "surrogatepass"),
    "\N{RIGHT-TO-LEFT OVERRIDE}\U0001f600",
    "../../etc/passwd",
    "9" * 30,
    "\r\nSet-Cookie: a=b",
)
USUAL = {"answer": "deny", "text": "x", "reason": "x", "prompt": "x", "incident": "x", "message": "x", "role": "viewer"}
STREAMS = ("/api/v1/stream", "/api/v1/sessions/{session_id}/stream")


def path_of(template: str, value: Any, known: dict[str, str], which: str) -> str:
    """The path with one placeholder hostile, and the others as they should be."""
    return re.sub(
        r"{(\w+)(:\w+)?}",
        lambda m: quote(value, safe="") if m[1] == which else known.get(m[1], "0" * 32),
        template,
    )


async def test_no_value_is_an_error_of_the_server(store_url: str) -> None:
    async with open_web(store_url) as web:
        scene = await furnish(web.database)
        session = (await web.client(Role.VIEWER).get("/api/v1/sessions")).json()["items"][0]["session_id"]
        known = {
            "ticket_id": str(scene.waiting),
            "session_id": session,
            "approval_id": scene.approval,
            "seq": "0",
            "form": "jsonl",
        }
        client = web.client(Role.ADMIN)
        client.headers["Accept"] = "text/html"
        wrong = []

        async def ask(method: str, path: str, **more: Any) -> None:
            answer = await client.request(method, path, **more)
            if answer.status_code >= 500 or ("set-cookie" in answer.headers and path != "/logout"):
                wrong.append((method, path[:120], answer.status_code, str(more)[:120]))

        for route in web.app.routes:
            if not isinstance(route, APIRoute) or route.path in STREAMS:
                continue
            (method,) = (route.methods or set()) - {"HEAD"}
            plain = path_of(route.path, "", known, "")
            for value in HOSTILE:
                for name in re.findall(r"{(\w+)", route.path):
                    await ask(method, path_of(route.path, value, known, name))
                for field in route.dependant.query_params:
                    await ask(method, f"{plain}?{field.alias}={quote(value, safe='')}")
                if method == "POST" and isinstance(value, str):
                    for field in route.dependant.body_params:
                        usual = {other.alias: USUAL.get(other.alias, "") for other in route.dependant.body_params}
                        await ask(method, plain, data={**usual, field.alias: value})
        assert not wrong, wrong

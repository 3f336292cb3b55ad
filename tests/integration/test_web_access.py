"""Who may do what over HTTP: every route of the app, every kind of bearer, and browsers that are lied to."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import APIRouter, Request
from starlette.routing import Mount, Route

from operator_core.config import Settings, WebSettings
from operator_core.db.schema import ledger
from operator_core.db.tokens import Tokens
from operator_core.model.person import Role
from operator_core.web.access import ACCESS, PUBLIC, guarded_routes, still_allowed
from operator_core.web.app import create_app
from operator_core.web.guard import CSP
from tests.support.web import WebSite, open_web

# Said here once more, so that a slip in the table is seen: what anybody may, and what changes something and is no act.
ANYBODY = {
    ("GET", "/livez"),
    ("GET", "/readyz"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/static/{version}/{name:path}"),
    ("POST", "/api/v1/intake/{name}"),
    ("GET", "/a/{token}"),
    ("POST", "/a/{token}"),
}
NO_ACT = {("POST", "/logout"), ("POST", "/api/v1/audit/verify"), ("POST", "/audit/verify")}
FOR_ADMINS = re.compile(r"token|drain")

VALUES = {"ticket_id": "1", "session_id": "2026-01-28T10-30-45-abc12345", "seq": "0", "version": "x", "name": "x"}


@pytest.fixture
async def web(tmp_path: Path) -> AsyncIterator[WebSite]:
    async with open_web(tmp_path / "operator.db") as site:
        # A stream would never end; one that is refused says the same about who may.
        await site.site.feeds.close()
        yield site


def routes(web: WebSite) -> list[tuple[str, str]]:
    found = []
    for route in web.app.routes:
        assert isinstance(route, Route)
        found += [(method, route.path) for method in sorted(route.methods or ()) if method != "HEAD"]
    return found


def address(path: str) -> str:
    return re.sub(r"{(\w+)(:\w+)?}", lambda match: VALUES.get(match[1], "0" * 12), path)


async def bearers(web: WebSite) -> dict[str, str | None]:
    tokens = Tokens(web.database)
    expired = await tokens.create("expired", Role.ADMIN, by="test", expires_s=0.001)
    revoked = await tokens.create("revoked", Role.ADMIN, by="test")
    await tokens.revoke(revoked.info.id, by="test")
    changed = web.tokens[Role.ADMIN][:-1] + ("A" if web.tokens[Role.ADMIN][-1] != "A" else "B")
    valid = {role.value: text for role, text in web.tokens.items()}
    return {"anonymous": None, "expired": expired.text, "revoked": revoked.text, "changed": changed, **valid}


async def test_every_route_by_every_bearer(web: WebSite) -> None:
    found = routes(web)
    assert len(found) > 20
    wrong = []
    for bearer, text in (await bearers(web)).items():
        client = web.client(token=text or "")
        for method, path in found:
            rule = ACCESS[method, path]
            answer = await client.request(method, address(path), headers={"Accept": "application/json"})
            assert answer.status_code < 500 or answer.status_code == 503, (bearer, method, path, answer.text)
            if rule is PUBLIC:
                continue
            assert isinstance(rule, Role)
            if bearer not in set(Role):
                expected = answer.status_code == 401
            elif not Role(bearer).allows(rule):
                expected = answer.status_code == 403
            else:
                expected = answer.status_code not in (401, 403)
            if not expected:
                wrong.append((bearer, method, path, answer.status_code))
    assert wrong == []


async def test_the_table_says_what_it_should(web: WebSite) -> None:
    found = set(routes(web))
    assert set(ACCESS) == found, "the table names routes that there are not"
    assert {route for route in found if ACCESS[route] is PUBLIC} <= ANYBODY
    acts = {(method, path) for method, path in found if method not in ("GET", "HEAD")} - ANYBODY - NO_ACT
    assert {a for a in acts if ACCESS[a] not in (Role.OPERATOR, Role.ADMIN)} == set()
    assert {a for a in acts if FOR_ADMINS.search(a[1]) and ACCESS[a] is not Role.ADMIN} == set()


async def test_nothing_is_read_of_a_request_that_may_not(web: WebSite) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        # After the answer the rest of a request is dropped; before it nobody may look.
        assert sent, "the body was read"
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    for method, path in routes(web):
        if ACCESS[method, path] is PUBLIC:
            continue
        headers = [(b"host", b"127.0.0.1:8642"), (b"content-length", b"1000")]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "scheme": "http",
            "method": method,
            "path": address(path),
            "raw_path": address(path).encode(),
            "root_path": "",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 8642),
        }
        await web.app(scope, receive, send)
        assert sent[0]["status"] == 401, (method, path)
        sent.clear()


async def test_a_route_without_a_rule_is_a_mistake_of_ours() -> None:
    router = APIRouter()

    @router.get("/secret")
    async def secret() -> str:
        return "x"

    with pytest.raises(LookupError, match=r"'/secret'\) is not said"):
        guarded_routes(router.routes)
    with pytest.raises(LookupError, match="cannot be guarded"):
        guarded_routes([Mount("/files", routes=[])])


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Basic b3A6eA==",
        "bearer op_000000000000_",
        "Bearer op_\u00e4",
        "Bearer " + "x" * 9000,
        "{0}",
        "Token {0}",
    ],
)
async def test_what_is_no_token(web: WebSite, header: str) -> None:
    text = header.replace("{0}", web.tokens[Role.ADMIN]).encode("latin-1")
    answer = await web.client().get("/api/v1/me", headers={b"Authorization": text})  # type: ignore[dict-item]
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["content-type"] == "application/problem+json"
    assert web.tokens[Role.ADMIN] not in answer.text


async def test_a_wrong_header_is_not_made_good_by_a_cookie(web: WebSite) -> None:
    browser = await web.browser(Role.ADMIN)
    assert (await browser.get("/api/v1/me")).status_code == 200
    assert (await browser.get("/api/v1/me", headers={"Authorization": "Bearer nonsense"})).status_code == 401


async def test_who_one_is(web: WebSite) -> None:
    me = (await web.client(Role.OPERATOR).get("/api/v1/me")).json()
    assert (me["name"], me["role"]) == ("test operator", "operator")


async def test_who_listens_is_looked_at_again(web: WebSite) -> None:
    def listening(token: str) -> Request:
        state = {"route_template": "/api/v1/stream"}
        headers = [(b"authorization", f"Bearer {token}".encode())]
        return Request({"type": "http", "method": "GET", "headers": headers, "app": web.app, "state": state})

    known = await bearers(web)
    allowed = {name: await still_allowed(listening(text or "")) for name, text in known.items()}
    assert {name for name, may in allowed.items() if may} == set(Role)
    await Tokens(web.database).revoke("test viewer", by="test")
    assert not await still_allowed(listening(web.tokens[Role.VIEWER]))


# ---- browsers


async def test_a_browser_is_sent_to_sign_in_and_back(web: WebSite) -> None:
    page = {"Accept": "text/html"}
    answer = await web.client().get("/tickets/1?x=%0d%0aSet-Cookie:a", headers=page)
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=%2Ftickets%2F1%3Fx%3D%250d%250aSet-Cookie%3Aa",
    )
    assert "set-cookie" not in answer.headers
    form = await web.client().get(answer.headers["location"], headers=page)
    assert 'value="/tickets/1?x=%0d%0aSet-Cookie:a"' in form.text
    inside = await web.client().post("/login", data={"token": web.tokens[Role.VIEWER], "next": "/monitor"})
    assert (inside.status_code, inside.headers["location"]) == (303, "/monitor?said=signed_in")
    fragment = await web.client().get("/badges", headers={**page, "HX-Request": "true"})
    assert (fragment.status_code, fragment.headers["hx-redirect"]) == (401, "/login")


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example", "//evil.example", "/\\evil.example", "javascript:x", "/\r\nX: y", "", "/api/v1/me"],
)
async def test_signing_in_leads_nowhere_else(web: WebSite, elsewhere: str) -> None:
    answer = await web.client().post("/login", data={"token": web.tokens[Role.VIEWER], "next": elsewhere})
    assert answer.headers["location"] == "/?said=signed_in"


async def test_the_cookie_is_of_no_use_to_scripts_and_other_sites(web: WebSite) -> None:
    answer = await web.client().post("/login", data={"token": web.tokens[Role.VIEWER]})
    (cookie,) = answer.headers.get_list("set-cookie")
    words = {word.strip().lower() for word in cookie.split(";")[1:]}
    assert cookie.startswith("operator_login=")
    assert {"httponly", "samesite=strict", "path=/"} <= words
    assert "secure" not in words
    assert not any(word.startswith("domain") for word in words)


async def test_over_tls_the_cookie_is_bound_to_the_host(tmp_path: Path) -> None:
    settings = Settings(web=WebSettings(public_url="https://operator.example.com"))
    async with open_web(tmp_path / "operator.db", settings) as web:
        client = web.client()
        headers = {"Host": "operator.example.com", "Origin": "https://operator.example.com"}
        answer = await client.post("/login", data={"token": web.tokens[Role.VIEWER]}, headers=headers)
        (cookie,) = answer.headers.get_list("set-cookie")
        assert cookie.startswith("__Host-operator_login=")
        assert "; secure" in cookie.lower()
        assert "path=/" in cookie.lower()
        assert "domain" not in cookie.lower()
        assert answer.headers["strict-transport-security"]


async def test_signing_out_ends_it_everywhere(web: WebSite) -> None:
    browser = await web.browser(Role.VIEWER)
    kept = dict(browser.cookies)
    assert (await browser.get("/api/v1/me")).status_code == 200
    answer = await browser.post("/logout", data={"csrf": await web.csrf(browser)})
    assert (answer.status_code, answer.headers["location"]) == (303, "/login?said=signed_out")
    other = web.client()
    other.cookies.update(kept)
    assert (await other.get("/api/v1/me")).status_code == 401


async def test_revoking_the_token_ends_its_logins(web: WebSite) -> None:
    browser = await web.browser(Role.OPERATOR)
    await Tokens(web.database).revoke("test operator", by="test")
    assert (await browser.get("/api/v1/me")).status_code == 401


FORGED: list[dict[str, str]] = [
    {},
    {"X-CSRF-Token": ""},
    {"X-CSRF-Token": "wrong"},
    {"X-CSRF-Token": "{csrf}", "Origin": "https://evil.example"},
    {"X-CSRF-Token": "{csrf}", "Origin": "null"},
    {"X-CSRF-Token": "{csrf}", "Origin": "http://127.0.0.1:8642.evil.example"},
    {"X-CSRF-Token": "{csrf}", "Sec-Fetch-Site": "cross-site"},
    {"X-CSRF-Token": "{csrf}", "Sec-Fetch-Site": "same-site"},
]


@pytest.mark.parametrize("headers", FORGED)
async def test_a_forged_request_changes_nothing(web: WebSite, headers: dict[str, str]) -> None:
    browser = await web.browser(Role.ADMIN)
    csrf = await web.csrf(browser)
    sent = {name: value.replace("{csrf}", csrf) for name, value in headers.items()}
    answer = await browser.post(
        "/api/v1/tokens", json={"name": "evil", "role": "admin"}, headers={**sent, "Accept": "application/json"}
    )
    assert answer.status_code == 403
    assert "evil" not in [info.name for info in await Tokens(web.database).list()]


@pytest.mark.parametrize("kind", ["header", "urlencoded", "multipart"])
async def test_a_form_of_ours_is_taken(web: WebSite, kind: str) -> None:
    browser = await web.browser(Role.ADMIN)
    csrf = await web.csrf(browser)
    fields = {"name": "mine", "role": "viewer", "expires": "30d"}
    if kind == "header":
        answer = await browser.post("/settings/tokens", data=fields, headers={"X-CSRF-Token": csrf})
    elif kind == "urlencoded":
        answer = await browser.post("/settings/tokens", data={**fields, "csrf": csrf})
    else:
        parts = {name: (None, value) for name, value in {**fields, "csrf": csrf}.items()}
        answer = await browser.post("/settings/tokens", files=parts)
    assert answer.status_code < 400, answer.text
    # The field was looked at before the route, which still got the whole body.
    assert "mine" in [info.name for info in await Tokens(web.database).list()]


@pytest.mark.parametrize("value", ["", "x", "csrf-of-another"])
async def test_a_form_with_another_token_is_refused(web: WebSite, value: str) -> None:
    browser, other = await web.browser(Role.ADMIN), await web.browser(Role.VIEWER)
    shown = await web.csrf(other) if value == "csrf-of-another" else value
    answer = await browser.post("/settings/tokens", data={"name": "evil", "role": "viewer", "csrf": shown})
    assert answer.status_code == 403
    assert "evil" not in [info.name for info in await Tokens(web.database).list()]


async def test_a_broken_form_is_refused(web: WebSite) -> None:
    browser = await web.browser(Role.ADMIN)
    for kind, body in (
        ("multipart/form-data; boundary=x", b"--x\r\nnonsense"),
        ("multipart/form-data", b"--x--"),
        ("application/x-www-form-urlencoded", b"%ff" * 1000),
        ("text/plain", f"csrf={await web.csrf(browser)}".encode()),
    ):
        answer = await browser.post("/settings/tokens", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 403, kind


async def test_nobody_is_signed_in_by_another_site(web: WebSite) -> None:
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await web.client().post("/login", data={"token": web.tokens[Role.VIEWER]}, headers=headers)
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers


async def test_programs_need_no_csrf_token(web: WebSite) -> None:
    answer = await web.client(Role.ADMIN).post("/api/v1/tokens", json={"name": "ci", "role": "viewer"})
    assert answer.status_code == 201
    made = answer.json()
    assert (await web.client(token=made["token"]).get("/api/v1/me")).json()["name"] == "ci"
    again = await web.client(Role.ADMIN).post("/api/v1/tokens", json={"name": "ci", "role": "admin"})
    assert again.status_code == 422
    gone = await web.client(Role.ADMIN).delete(f"/api/v1/tokens/{made['id']}")
    assert gone.json()["state"] == "revoked"
    assert (await web.client(token=made["token"]).get("/api/v1/me")).status_code == 401


# ---- signing in too often


async def test_whoever_guesses_must_wait(web: WebSite) -> None:
    client = web.client()
    answers = [await client.post("/login", data={"token": f"op_{n:012x}_{'x' * 43}"}) for n in range(12)]
    assert [a.status_code for a in answers] == [401] * 10 + [429] * 2
    assert 0 < int(answers[-1].headers["retry-after"]) <= 300
    # Also with the right one, so that the answer tells nothing.
    right = await client.post("/login", data={"token": web.tokens[Role.ADMIN]})
    assert right.status_code == 429
    assert "set-cookie" not in right.headers


async def test_whoever_guesses_many_at_once_gets_no_more_of_them(web: WebSite) -> None:
    client = web.client()
    guesses = [client.post("/login", data={"token": f"op_{n:012x}_{'x' * 43}"}) for n in range(50)]
    counts = Counter(answer.status_code for answer in await asyncio.gather(*guesses))
    assert counts == {401: 10, 429: 40}


async def test_behind_a_proxy_everybody_waits_alone(tmp_path: Path) -> None:
    settings = Settings(web=WebSettings(public_url="https://operator.example.com"))
    async with open_web(tmp_path / "operator.db", settings) as web:

        async def tries(forwarded: str, token: str) -> int:
            answer = await web.client().post("/login", data={"token": token}, headers={"X-Forwarded-For": forwarded})
            return answer.status_code

        for _ in range(10):
            assert await tries("198.51.100.7, 192.0.2.1", "nonsense") == 401
        assert await tries("192.0.2.1", web.tokens[Role.VIEWER]) == 429
        assert await tries("192.0.2.1, 198.51.100.7", web.tokens[Role.VIEWER]) == 303
        # A server in front that adds a header of its own: the one before it is the client's, who may write anything.
        for n in range(10):
            headers = [("X-Forwarded-For", f"198.51.100.{n}"), ("X-Forwarded-For", "192.0.2.9")]
            assert (await web.client().post("/login", data={"token": "x"}, headers=headers)).status_code == 401
        assert await tries("192.0.2.9", web.tokens[Role.VIEWER]) == 429


async def test_without_a_proxy_nobody_chooses_an_address(web: WebSite) -> None:
    for n in range(10):
        headers = {"X-Forwarded-For": f"192.0.2.{n}"}
        assert (await web.client().post("/login", data={"token": "x"}, headers=headers)).status_code == 401
    headers = {"X-Forwarded-For": "198.51.100.1"}
    assert (await web.client().post("/login", data={"token": "x"}, headers=headers)).status_code == 429


async def test_no_answer_tells_why_a_token_is_not_valid(web: WebSite) -> None:
    known = await bearers(web)
    said = set()
    for name in ("expired", "revoked", "changed"):
        answer = await web.client().post("/login", data={"token": known[name] or ""})
        said.add((answer.status_code, answer.text))
    said.add(((await web.client().post("/login", data={"token": "nonsense"})).status_code, answer.text))
    assert len(said) == 1


async def test_logins_and_tokens_are_in_the_ledger_without_secrets(web: WebSite) -> None:
    browser = await web.browser(Role.ADMIN)
    csrf = await web.csrf(browser)
    cookie = browser.cookies["operator_login"]
    made = await web.client(Role.ADMIN).post("/api/v1/tokens", json={"name": "ci", "role": "viewer"})
    await browser.post("/logout", data={"csrf": csrf})
    rows = await web.database.fetch(ledger.select().where(ledger.c.kind.in_(["token", "login"])).order_by(ledger.c.seq))
    told = [(row.kind, row.body) for row in rows]
    assert [kind for kind, _ in told] == ["token"] * 3 + ["login", "token", "login"]
    assert '"actor":"test admin (api)"' in told[4][1]
    assert '"actor":"test admin (console)"' in told[5][1]
    whole = " ".join(body for _, body in told)
    for secret in (*web.tokens.values(), cookie, csrf, made.json()["token"]):
        assert secret[-20:] not in whole


# ---- every answer


async def test_every_answer_has_the_headers(web: WebSite) -> None:
    for client in (web.client(), web.client(Role.ADMIN), await web.browser(Role.ADMIN)):
        for method, path in [*routes(web), ("GET", "/nothing/here"), ("DELETE", "/livez")]:
            if (method, path) == ("POST", "/logout"):
                continue
            for accept in ("text/html", "application/json"):
                answer = await client.request(method, address(path), headers={"Accept": accept})
                where = (method, path, accept, answer.status_code)
                assert answer.headers["content-security-policy"] == CSP, where
                assert answer.headers["x-content-type-options"] == "nosniff", where
                assert answer.headers["x-frame-options"] == "DENY", where
                assert answer.headers["referrer-policy"] == "same-origin", where
                assert answer.headers["cross-origin-opener-policy"] == "same-origin", where
                assert "server" not in answer.headers, where
                if not path.startswith("/static/"):
                    assert "no-store" in answer.headers["cache-control"], where
                if "html" in answer.headers.get("content-type", ""):
                    scripts = re.findall(r"<script([^>]*)>", answer.text)
                    assert all(" src=" in script for script in scripts), where
                    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", answer.text), where


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8642", True),
        ("127.0.0.1", True),
        ("localhost:1", True),
        ("LOCALHOST.", True),
        ("[::1]:8642", True),
        ("127.8.9.1", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("192.0.2.1", False),
        ("user@127.0.0.1", False),
        ("127.0.0.1:x", False),
        ("127.0.0.1/x", False),
        ("", False),
        ("[", False),
    ],
)
async def test_only_known_names_are_answered(web: WebSite, host: str, known: bool) -> None:
    answer = await web.client(Role.VIEWER).get("/api/v1/me", headers={"Host": host})
    assert answer.status_code == (200 if known else 421)
    assert (await web.client().get("/livez", headers={"Host": host})).status_code == 200


async def test_behind_a_proxy_its_name_is_known(tmp_path: Path) -> None:
    web_settings = WebSettings(host="0.0.0.0", public_url="https://operator.example.com/", hosts=("Alerts.internal",))
    settings = Settings(web=web_settings)
    async with open_web(tmp_path / "operator.db", settings) as web:
        client = web.client(Role.VIEWER)
        for host, status in (
            ("operator.example.com", 200),
            ("192.0.2.1", 200),
            ("alerts.internal:8642", 200),
            ("evil.example", 421),
        ):
            assert (await client.get("/api/v1/me", headers={"Host": host})).status_code == status


async def test_what_is_too_large_is_refused(tmp_path: Path) -> None:
    settings = Settings(web=WebSettings(max_body_bytes=1024))
    async with open_web(tmp_path / "operator.db", settings) as web:
        client = web.client(Role.ADMIN)

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(100):
                yield b"x" * 100

        at_once = await client.post("/api/v1/tokens", content=b"x" * 1025)
        in_pieces = await client.post("/api/v1/tokens", content=pieces())
        browser = await web.browser(Role.ADMIN)
        as_form = await browser.post("/settings/tokens", data={"name": "x" * 2000})
        for answer in (at_once, in_pieces, as_form):
            assert answer.status_code == 413
            assert answer.headers["connection"] == "close"
        for length in ("-1", "1e3", "99999999999999999999"):
            answer = await client.post("/api/v1/tokens", content=b"", headers={"Content-Length": length})
            assert answer.status_code == 413, length


# ---- problems, health, numbers, description


async def test_a_mistake_of_ours_tells_clients_nothing(web: WebSite) -> None:
    lines: list[str] = []
    web.site.say = lines.append
    token = web.tokens[Role.VIEWER]

    async def broken(token_text: str) -> None:
        raise RuntimeError(f"surprise with Authorization: Bearer {token_text}")

    web.site.tokens.check = broken  # type: ignore[method-assign, assignment]
    answer = await web.client(Role.VIEWER).get("/api/v1/me")
    assert answer.status_code == 500
    assert "surprise" not in answer.text
    reference = re.search(r"under (\w{12})", answer.json()["detail"])
    assert reference is not None
    assert reference[1] in lines[0]
    assert "surprise" in lines[0]
    assert token not in lines[0]


async def test_the_description_says_who_may(web: WebSite) -> None:
    document = (await web.client(Role.VIEWER).get("/api/v1/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
    assert document["paths"]["/livez"]["get"]["security"] == []
    create = document["paths"]["/api/v1/tokens"]["post"]
    assert (create["security"], create["x-role"]) == ([{"token": []}], "admin")
    for path, operations in document["paths"].items():
        assert all("security" in operation for operation in operations.values()), path


async def test_health_and_numbers(web: WebSite) -> None:
    ready = await web.client().get("/readyz")
    assert (ready.status_code, ready.json()["ready"], ready.json()["courier"]) == (200, True, "none")
    web.site.courier_lives = lambda: False
    web.app.state.health = None
    failed = await web.client().get("/readyz")
    assert (failed.status_code, failed.json()["courier"]) == (503, "failed")
    text = (await web.client(Role.VIEWER).get("/metrics")).text
    assert 'operator_tickets{state="open"} 0.0' in text
    assert 'operator_http_request_duration_seconds_count{method="GET",route="/readyz",status="503"} 1.0' in text


async def test_numbers_know_no_paths(web: WebSite) -> None:
    await web.client().get("/secret-path-of-a-client")
    await web.client().request("BREW\u00c4".encode().decode("latin-1"), "/livez")
    text = (await web.client(Role.VIEWER).get("/metrics")).text
    assert "secret-path" not in text
    assert "BREW" not in text


async def test_two_apps_share_no_numbers(web: WebSite) -> None:
    other = create_app(web.site)
    assert other.state.metrics is not web.app.state.metrics

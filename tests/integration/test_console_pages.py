"""The pages of the console as they come from the server: what they say and do, and what they never let through."""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

import httpx2
import pytest

from operator_core.config import LoadedSettings, Settings
from operator_core.db.approvals import Approvals, Question
from operator_core.db.engine import Database
from operator_core.db.tickets import TicketDB
from operator_core.db.tokens import Tokens
from operator_core.model.entry import Draft
from operator_core.model.person import Role
from operator_core.model.ticket import TicketStatus
from operator_core.model.verdict import VerdictKind
from tests.support.scene import HOSTILE, Scene, attempt, furnish, judged
from tests.support.store import start_work
from tests.support.web import WebSite, open_web

VOID = {"area", "br", "hr", "img", "input", "link", "meta", "source"}


class Page(HTMLParser):
    """A page as a browser would see it: elements with attributes, text, and what is wrong with it."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.wrong: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        if self._open:
            self.wrong.append(f"not closed: {self._open}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if len(attrs) != len(dict(attrs)):
            self.wrong.append(f"an attribute twice in <{tag}>")
        if tag not in VOID and tag not in ("circle", "path"):
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in ("circle", "path"):
            return
        if not self._open or self._open.pop() != tag:
            self.wrong.append(f"</{tag}> closes something else")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """Everything that can be read, with single blanks."""
        return " ".join("".join(self.words).split())

    def having(self, name: str) -> list[str]:
        """Values of that attribute, of all elements."""
        return [value or "" for _, attrs in self.elements for key, value in attrs.items() if key == name]


class House(NamedTuple):
    """A furnished site."""

    web: WebSite
    scene: Scene


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Scene]:
    """A furnished store that is closed, for copies of it."""
    store = tmp_path_factory.mktemp("scene") / "store.db"

    async def make() -> Scene:
        async with Database.open(str(store)) as database:
            return await furnish(database)

    return store, asyncio.run(make())


@pytest.fixture
async def house(tmp_path: Path, furnished: tuple[Path, Scene]) -> AsyncIterator[House]:
    store, scene = furnished
    shutil.copy(store, tmp_path / "store.db")
    async with open_web(tmp_path / "store.db") as web:
        yield House(web, scene)


async def get(client: httpx2.AsyncClient, path: str, status: int = 200) -> Page:
    answer = await client.get(path)
    assert answer.status_code == status, f"{path}: {answer.status_code} {answer.text[:300]}"
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = Page(answer.text)
    assert page.wrong == [], path
    return page


def paths_of(scene: Scene) -> list[str]:
    tickets = [number for number in scene if isinstance(number, int)]
    return [
        "/",
        "/?view=needs",
        "/?order=newest&q=disk",
        "/submit",
        "/approvals?all=1",
        "/settings",
        *[f"/tickets/{n}" for n in tickets],
        *[f"/tickets/{n}/evidence" for n in tickets],
    ]


# ---- what they never let through


async def test_nothing_that_agents_write_becomes_markup_or_is_hidden(house: House) -> None:
    client = await house.web.browser(Role.ADMIN)
    for path in paths_of(house.scene):
        answer = await client.get(path)
        page = Page(answer.text)
        assert page.wrong == [], path
        scripts = [attrs.get("src") or "" for tag, attrs in page.elements if tag == "script"]
        assert all(src.startswith("/static/") for src in scripts), f"{path} has a script of somebody else"
        assert not page.having("onerror"), path
        assert not page.having("style"), f"{path} has an inline style, which the CSP forbids"
        assert all(not value.lower().startswith(("javascript:", "data:", "http")) for value in page.having("href")), (
            path
        )
        for hidden in ("\x1b", "\u202e", "\u200b", "\x00"):
            assert hidden not in answer.text, f"{path} has an invisible {hidden!r}"
        assert "49" not in re.findall(r"\{\{ 7\*7 \}\}|49(?= \{% raw)", answer.text), f"{path} ran a template"


async def test_hostile_text_is_readable_as_it_is(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    for path in ("/", f"/tickets/{house.scene.hostile}", f"/tickets/{house.scene.hostile}/evidence"):
        text = (await get(client, path)).text
        assert "<script>document.title='pw" in text, path
        if path != "/":
            assert "^[[31mred^[[0m U+202Egnp.exe" in text, path
            assert "{{ 7*7 }} {% raw %}" in text, path


async def test_a_long_text_is_bounded_and_says_so(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    ticket = await TicketDB(house.web.database).open_ticket("long", "x" * 10_000_000)
    answer = await client.get(f"/tickets/{ticket.id}")
    assert len(answer.content) < 1_000_000
    assert "more characters" in Page(answer.text).text
    assert len((await client.get("/")).content) < 300_000


async def test_an_address_cannot_make_a_page_say_anything(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    page = await get(client, f"/tickets/{house.scene.held}?said=<b>your+account+is+closed</b>")
    assert "account" not in page.text
    assert "The ticket is held" in (await get(client, f"/tickets/{house.scene.held}?said=held")).text
    page = await get(client, f"/?q={HOSTILE[:60]}&view=<x>&kind=<x>&severity=<x>&label=<x>=<y>&order=<x>")
    assert not [tag for tag, _ in page.elements if tag in ("x", "y", "img")]


# ---- the board


async def test_the_board_has_what_needs_a_person_first(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    page = await get(client, "/")
    rows = [int(value[2:]) for value in page.having("id") if re.fullmatch(r"t-\d+", value)]
    scene = house.scene
    assert set(rows[:4]) == {scene.waiting, scene.asking, scene.escalated, scene.hostile}
    assert rows[4] == scene.running
    assert set(rows[-3:]) == {scene.verified, scene.by_hand, scene.canceled}
    assert len(rows) == len(set(rows)) == 10
    groups = [value for value in page.having("id") if value.startswith("g-")]
    assert groups == ["g-needs-you", "g-running", "g-next", "g-closed"]
    assert "May I delete the logs" in page.text
    assert "python -m pytest -q tests/test_split.py" in page.text
    assert "box-2" in page.text


async def test_the_boards_filters_are_its_address(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    scene = house.scene

    async def shown(query: str) -> set[int]:
        page = await get(client, f"/?{query}")
        return {int(value[2:]) for value in page.having("id") if re.fullmatch(r"t-\d+", value)}

    assert await shown("view=needs") == {scene.waiting, scene.asking, scene.escalated, scene.hostile}
    assert await shown("view=resolved") == {scene.verified, scene.by_hand}
    assert await shown("kind=task") == {scene.running}
    assert await shown("view=resolved&severity=info") == {scene.by_hand}
    assert await shown("q=storage") == {scene.waiting}
    assert await shown(f"q=%23{scene.held}") == {scene.held}
    assert await shown("label=team%3Dstorage") == {scene.waiting}
    assert await shown("label=team%3Dother") == set()
    assert "No ticket is like that" in (await get(client, "/?q=nothing+is+called+so")).text


async def test_the_board_goes_on_in_parts(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    for n in range(60):
        await TicketDB(house.web.database).open_ticket(f"many-{n}", "one of many")
    seen: list[str] = []
    path: str | None = "/?order=newest&q=one+of+many"
    while path:
        page = await get(client, path)
        seen += [value for value in page.having("id") if re.fullmatch(r"t-\d+", value)]
        following = [attrs["href"] for tag, attrs in page.elements if tag == "a" and attrs.get("rel") == "next"]
        path = following[0] if following else None
        if path:
            assert "order=newest" in path
            assert "q=one" in path
    assert len(seen) == len(set(seen)) == 60
    assert (await client.get("/?cursor=nonsense")).status_code == 422


async def test_htmx_gets_the_list_alone_and_people_get_all_of_it(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    part = await client.get("/?view=needs", headers={"HX-Request": "true"})
    assert "<html" not in part.text
    assert 'id="list"' in part.text
    whole = await client.get("/?view=needs", headers={"HX-Request": "true", "HX-History-Restore-Request": "true"})
    assert "<html" in whole.text
    assert "HX-Request" in part.headers["vary"]
    badges = await client.get("/badges", headers={"HX-Request": "true"})
    assert re.search(r'id="badge-needs"[^>]*class="badge"', badges.text)
    assert "4</span>" in badges.text
    assert "1</span>" in badges.text


async def test_many_who_look_at_the_board_are_one_look_at_the_store_and_none_sees_an_old_one(house: House) -> None:
    client, tickets = await house.web.browser(Role.VIEWER), TicketDB(house.web.database)
    asked = []
    api = house.web.site.api

    class Counted(type(api)):  # type: ignore[misc]
        async def tickets(self, **wanted: object) -> object:
            asked.append(wanted)
            return await super().tickets(**wanted)

        def as_(self, actor: object) -> Counted:
            return Counted(self.database, self.settings, actor)

    house.web.site.api = Counted(api.database, api.settings, api.actor)
    part = {"HX-Request": "true"}
    answers = await asyncio.gather(*(client.get("/", headers=part) for _ in range(20)))
    assert {answer.status_code for answer in answers} == {200}
    assert len(asked) <= 2, "each of them asked the store"
    for n in range(10):
        ticket = await tickets.open_ticket(f"fresh-{n}", "new")
        assert f'id="t-{ticket.id}"' in (await client.get("/", headers=part)).text, "an old board was shown"
    bad = await asyncio.gather(*(client.get("/?cursor=bad", headers=part) for _ in range(3)))
    assert {answer.status_code for answer in bad} == {422}
    assert 'name="csrf"' not in answers[0].text, "what everybody gets must not have one's own secret"


async def test_a_page_that_fails_has_ended_all_that_it_began(house: House) -> None:
    """What still read the store when it is closed would leave a connection that nobody ever closes."""
    client = await house.web.browser(Role.VIEWER)
    await get(client, "/")  # counts what was used, which is not done again for a while
    before = asyncio.all_tasks()
    for headers in ({}, {"HX-Request": "true"}):
        assert (await client.get("/?cursor=bad", headers=headers)).status_code == 422
        assert asyncio.all_tasks() - before == set()


async def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    async with open_web(tmp_path / "store.db") as web:
        client = await web.browser(Role.ADMIN)
        assert "New task" in (await get(client, "/")).text
        assert "Nothing needs you" in (await get(client, "/?view=needs")).text
        assert "Nothing waits for your word" in (await get(client, "/approvals")).text
        assert "There is nothing at this address" in (await get(client, "/nowhere", 404)).text
        assert "Not Found" in (await get(client, "/tickets/4711", 404)).text
        assert (await client.get(f"/tickets/{2**70}")).status_code in (404, 422)


# ---- a ticket


async def test_a_ticket_says_what_was_proved_and_what_was_not(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    page = await get(client, f"/tickets/{house.scene.verified}")
    assert "verified every required clause was observed by the platform" in page.text
    assert "not proved durable" in page.text
    assert "done <b>now</b>" in page.text, "the report is there, and what was claimed is no markup"
    page = await get(client, f"/tickets/{house.scene.by_hand}")
    assert "nothing was proved" in page.text
    evidence = await get(client, f"/tickets/{house.scene.escalated}/evidence")
    assert "refuted" in evidence.text
    assert "4 rows fewer than before" in evidence.text
    assert re.search(r"operator --server http://\S+ audit verify --session", evidence.text), "it works as it stands"
    assert "sqlite3 limiter.db .dump" in evidence.text
    assert "no collateral: protected data changed" in evidence.text


async def test_an_earlier_verdict_does_not_get_the_facts_of_a_later_one(house: House) -> None:
    tickets = TicketDB(house.web.database)
    ticket = await tickets.open_ticket("twice", "judged twice", priority=9)
    work = await attempt(house.web.database, ticket.id or 0)
    await work.judge(judged(VerdictKind.REFUTED))
    await work.judge(judged(), task={"digest": "d" * 64, "commit": "c" * 40, "branch": "operator/x", "before": []})
    client = await house.web.browser(Role.VIEWER)
    html = (await client.get(f"/tickets/{ticket.id}/evidence")).text
    newest, earlier = html.split('<details class="panel earlier">')
    assert "d" * 64 in newest
    assert "c" * 40 in newest
    assert "d" * 64 not in earlier
    assert "c" * 40 not in earlier


async def test_a_viewer_sees_no_buttons_and_cannot_act(house: House) -> None:
    client = await house.web.browser(Role.VIEWER)
    csrf = await house.web.csrf(client)
    for path in paths_of(house.scene):
        page = await get(client, path)
        assert set(page.having("action")) <= {"/logout", "/"}, path
    refused = await client.post(f"/tickets/{house.scene.held}/cancel", data={"csrf": csrf})
    assert refused.status_code == 403
    assert "operator" in Page(refused.text).text


async def test_every_act_of_a_ticket_works_without_javascript(house: House) -> None:
    client, scene = await house.web.browser(Role.OPERATOR), house.scene
    tickets = TicketDB(house.web.database)
    csrf = await house.web.csrf(client)

    async def act(ticket: int, name: str, **fields: str) -> str:
        page = await get(client, f"/tickets/{ticket}")
        assert f"/tickets/{ticket}/{name}" in page.having("action"), f"there is no button to {name} #{ticket}"
        answer = await client.post(f"/tickets/{ticket}/{name}", data={"csrf": csrf, **fields})
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"].startswith(f"/tickets/{ticket}?said=")
        return (await get(client, answer.headers["location"])).text

    assert "The answer was stored" in await act(scene.waiting, "reply", text="Yes, but keep September.")
    assert (await tickets.get_ticket(scene.waiting)).status is TicketStatus.OPEN
    assert "The message was stored" in await act(scene.running, "steer", text="Look at rounding.")
    assert "The cancellation was stored" in await act(scene.running, "cancel")
    assert (await tickets.get_ticket(scene.running)).cancel_requested
    assert "is released" in await act(scene.held, "release")
    assert "is held" in await act(scene.held, "hold")
    assert "is canceled" in await act(scene.held, "cancel")
    assert "is open again" in await act(scene.escalated, "reopen")
    text = await act(scene.hostile, "resolve", reason="It is a test.")
    assert "resolved by hand" in text
    assert "nobody" not in text
    history = await get(client, f"/tickets/{scene.hostile}")
    assert "test operator (console)" in history.text, "the ledger says who did it, and from where"


async def test_a_form_sent_twice_does_its_work_once(house: House) -> None:
    client, scene = await house.web.browser(Role.OPERATOR), house.scene
    csrf = await house.web.csrf(client)
    page = await get(client, f"/tickets/{scene.waiting}")
    (key,) = {a["value"] for tag, a in page.elements if tag == "input" and a.get("name") == "key"}
    for _ in range(2):
        answer = await client.post(
            f"/tickets/{scene.waiting}/reply", data={"csrf": csrf, "text": "Yes.", "key": key or ""}
        )
        assert answer.status_code == 303, answer.text
    history = await get(client, f"/tickets/{scene.waiting}")
    assert history.text.count("waiting → open") == 1


async def test_what_was_typed_survives_a_refusal(house: House) -> None:
    client, scene = await house.web.browser(Role.OPERATOR), house.scene
    csrf = await house.web.csrf(client)
    answer = await client.post(f"/tickets/{scene.waiting}/resolve", data={"csrf": csrf, "reason": " "})
    if answer.status_code == 303:
        pytest.fail("an empty reason was taken")
    answer = await client.post(f"/tickets/{scene.canceled}/steer", data={"csrf": csrf, "text": "Hello?"})
    assert answer.status_code == 409
    assert 'role="alert"' in answer.text
    fields = {"csrf": csrf, "prompt": "Do <it>", "checks": "true", "name": "my name", "budget_usd": "ten"}
    answer = await client.post("/submit", data=fields)
    assert answer.status_code == 422
    page = Page(answer.text)
    assert "The budget must be a number" in page.text
    assert "Do <it>" in page.text
    assert "my name" in page.having("value")


async def test_a_stranger_form_does_nothing(house: House) -> None:
    client, scene = await house.web.browser(Role.OPERATOR), house.scene
    for fields in ({}, {"csrf": "wrong"}):
        answer = await client.post(f"/tickets/{scene.held}/cancel", data=fields)
        assert answer.status_code == 403
    assert (await TicketDB(house.web.database).get_ticket(scene.held)).status is TicketStatus.OPEN


# ---- submitting


async def test_a_task_and_an_incident_can_be_submitted(house: House) -> None:
    client = await house.web.browser(Role.OPERATOR)
    csrf = await house.web.csrf(client)
    fields = {
        "csrf": csrf, "prompt": "Make it\r\nright.", "checks": "pytest -q\r\n\r\n  ruff check . \r\n", "key": "ab" * 16,
        "priority": "3", "folder": "tests/",
    }  # fmt: skip
    upload = {"files": ("../../test_it.py", b"def test():\n    assert False\n", "text/x-python")}
    answer = await client.post("/submit", data=fields, files=upload)
    assert answer.status_code == 303, Page(answer.text).text
    again = await client.post("/submit", data=fields, files=upload)
    assert again.headers["location"] == answer.headers["location"]
    number = int(re.search(r"/tickets/(\d+)", answer.headers["location"])[1])  # type: ignore[index]
    ticket = await TicketDB(house.web.database).get_ticket(number)
    spec = ticket.check_spec or {}
    assert spec["prompt"] == "Make it\nright."
    assert [check["command"] for check in spec["checks"]] == ["pytest -q", "ruff check ."]
    assert [file["path"] for file in spec["check_files"]] == ["tests/test_it.py"]
    assert ticket.priority == 3
    assert "tests/test_it.py" in (await get(client, f"/tickets/{number}")).text

    incident = {"csrf": csrf, "incident": "disk-2", "message": "full", "severity": "critical", "about": "df -h"}
    answer = await client.post("/submit/incident", data=incident)
    assert answer.status_code == 303, Page(answer.text).text
    page = await get(client, answer.headers["location"])
    assert "#" in page.text
    assert "disk-2" in page.text
    assert "df -h" in page.text


async def test_only_an_admin_may_name_a_path_of_the_server(house: House, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    fields = {"prompt": "Look.", "checks": "pytest -q", "repo": str(tmp_path / "work")}
    for role, status in ((Role.OPERATOR, 422), (Role.ADMIN, 303)):
        client = await house.web.browser(role)
        answer = await client.post("/submit", data={"csrf": await house.web.csrf(client), **fields})
        assert answer.status_code == status, Page(answer.text).text


# ---- approvals and settings


@pytest.mark.parametrize(("answer", "state"), [("approve", "approved"), ("deny", "denied")])
async def test_a_call_is_allowed_or_denied_from_the_inbox(house: House, answer: str, state: str) -> None:
    client = await house.web.browser(Role.OPERATOR)
    csrf = await house.web.csrf(client)
    page = await get(client, "/approvals")
    assert "certbot renew --force-renewal" in page.text
    assert "certificates are shared" in page.text
    path = f"/approvals/{house.scene.approval}"
    done = await client.post(path, data={"csrf": csrf, "answer": answer, "note": "go <b>on</b>"})
    assert done.status_code == 303
    assert done.headers["location"] == f"/approvals?said={state}"
    assert (await Approvals(house.web.database).get(house.scene.approval)).state == state
    page = await get(client, "/approvals?all=1")
    assert "go <b>on</b>" in page.text
    assert "test operator (console)" in page.text
    other = "deny" if answer == "approve" else "approve"
    late = await client.post(path, data={"csrf": csrf, "answer": other})
    assert late.status_code == 409
    assert (await client.post(path, data={"csrf": csrf, "answer": "maybe"})).status_code in (404, 422)


async def test_what_waits_is_shown_however_much_was_answered_since(tmp_path: Path) -> None:
    async with open_web(tmp_path / "operator.db") as web:
        approvals = Approvals(web.database)

        async def ask(*calls: str) -> list[Draft]:
            questions = [Question(call, "shell", {"command": call}, "It lasts.") for call in calls]
            return await approvals.ask((await start_work(web.database)).journal, questions, calls, 3600.0)

        await ask("call-1-0")
        for draft in await ask(*(f"call-101-{n}" for n in range(101))):
            await approvals.decide(draft.body["approval"], True)
        page = await get(await web.browser(Role.OPERATOR), "/approvals?all=1")
        assert "call-1-0" in page.text
        assert "call-101-100" in page.text


async def test_settings_show_origins_and_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2hunter2")
    data = {
        "subject": [{"name": "shop", "env": {"API_KEY": "abc-plain-secret", "LANG": "C"}}],
        "limits": {"cost_usd": 3.0},
        "model": {"base_url": "https://example.com/hunter2hunter2"},
    }
    settings = Settings.model_validate(data)
    loaded = LoadedSettings(settings, {"limits.cost_usd": "/etc/<operator>.toml"}, Path("/etc/<operator>.toml"))
    async with open_web(tmp_path / "store.db", settings, loaded=loaded) as web:
        for role in (Role.VIEWER, Role.ADMIN):
            client = await web.browser(role)
            answer = await client.get("/settings")
            text = Page(answer.text).text
            assert "limits.cost_usd" in text
            assert "/etc/<operator>.toml" in text
            assert "hunter2hunter2" not in answer.text
            assert "abc-plain-secret" not in answer.text
            assert ("New token" in text) == (role is Role.ADMIN)


async def test_an_admin_makes_and_revokes_a_token(house: House) -> None:
    client = await house.web.browser(Role.ADMIN)
    csrf = await house.web.csrf(client)
    fields = {"csrf": csrf, "name": "phone", "role": "viewer", "days": "7"}
    answer = await client.post("/settings/tokens", data=fields)
    (text,) = set(re.findall(r"op_[0-9a-f]{12}_[\w-]{43}", answer.text))
    assert answer.headers["cache-control"] == "no-store"
    assert text not in (await client.get("/settings")).text, "a token is shown once"
    tokens = Tokens(house.web.database)
    info = await tokens.check(text)
    assert info is not None
    assert info.role is Role.VIEWER
    assert info.expires_at is not None
    assert (await client.post("/settings/tokens", data=fields)).status_code == 422, "there is one of that name"
    assert (await client.post("/settings/tokens", data={**fields, "role": "root"})).status_code == 422
    answer = await client.post(f"/settings/tokens/{info.id}/revoke", data={"csrf": csrf})
    assert answer.status_code == 303
    assert await tokens.check(text) is None


# ---- assets


async def test_assets_have_their_content_in_their_address(house: House) -> None:
    client = house.web.client()
    page = Page((await client.get("/login", headers={"Accept": "text/html"})).text)
    assets = [v for v in page.having("src") + page.having("href") if v.startswith("/static/")]
    assert len(assets) >= 4
    for path in assets:
        answer = await client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        again = await client.get(path, headers={"If-None-Match": answer.headers["etag"]})
        assert again.status_code == 304
        assert not again.content
        stale = await client.get(re.sub(r"/static/\w+/", "/static/000000000000/", path))
        assert stale.status_code == 200
        assert stale.headers["cache-control"] == "no-cache"
    for path in ("/static/x/../app.py", "/static/x/%2e%2e/app.py", "/static/x//etc/passwd", "/static/x/none.css"):
        assert (await client.get(path)).status_code == 404, path

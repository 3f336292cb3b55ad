"""A person presses "Judge again": a worker does it, and the page says what became of it; also with ``--server``."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.async_api import expect

from operator_core.db.second_looks import SecondLooks
from operator_core.model.person import Role
from operator_core.model.task import TaskCheck, TaskSpec
from operator_core.model.ticket import TicketStatus
from tests.support.browser import Window, browsing
from tests.support.processes import operator_environment
from tests.support.rig import Rig, open_rig
from tests.support.scene import HOSTILE
from tests.support.task_brain import done, run, task_brain
from tests.support.web import Served, served

MAKE = (run("printf 'echo hello\\n' > hello"), done())
CHECK = TaskCheck(command="sh ./hello | grep hello >/dev/null")


class House(NamedTuple):
    """A resolved ticket #1, and a server on its store."""

    rig: Rig
    server: Served

    @property
    def workspace(self) -> Path:
        (folder,) = self.rig.workspace.parent.glob("Operator Sessions/*/*")
        return folder / "workspace"

    @asynccontextmanager
    async def worker(self) -> AsyncIterator[None]:
        stop = asyncio.Event()
        async with self.rig.worker() as worker, asyncio.timeout(120):
            running = asyncio.create_task(worker.run(stop))
            try:
                yield
            finally:
                stop.set()
                await running


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    async with open_rig(task_brain(MAKE), tmp_path, tasks={"root": tmp_path}) as rig:
        spec = TaskSpec(name="say hello", prompt="Say hello.", checks=(CHECK,), profile="operator")
        await rig.tickets.submit_task(spec)
        await rig.work()
        assert (await rig.tickets.get_ticket(1)).status is TicketStatus.RESOLVED
        with served(tmp_path / "operator.db") as server:
            yield House(rig, server)


@pytest.fixture
async def window(house: House) -> AsyncIterator[Window]:
    async with browsing(house.server) as one:
        yield one


async def test_judged_again_at_the_press_of_a_button(house: House, window: Window) -> None:
    page = await window.page(path="/tickets/1/evidence")
    panel = page.get_by_role("region", name="Judge again")
    await panel.get_by_role("button", name="Judge again").click()
    await expect(page.locator(".flash")).to_contain_text("It is to be judged again")
    await expect(panel).to_contain_text("test operator (console) asked for it")
    await expect(panel).to_contain_text("it waits for a worker")
    await expect(panel.locator(".notice")).to_contain_text("No worker is running; start one with")
    await expect(panel.get_by_role("button")).to_have_count(0)
    assert await window.violations(page) == []
    async with house.worker():
        # The page follows by itself.
        await expect(panel).to_contain_text("verified again", timeout=40_000)
        await expect(panel.locator(".notice")).to_have_count(0)
        await expect(page.locator("article").first).to_contain_text("newest verdict")
        (look,) = await SecondLooks(house.rig.database).of_ticket(1)
        await expect(page.locator("article").first).to_contain_text(look.session_id or "?")
        await expect(page.locator("article").first).to_contain_text("as it should")  # red before: of the attempt
        (house.workspace / "hello").write_text("echo goodbye\n")
        await page.goto("/tickets/1")
        await panel.get_by_role("button", name="Judge again").click()
        await expect(panel).to_contain_text("refuted", timeout=40_000)
        await expect(panel.get_by_role("alert")).to_contain_text("does not prove it")
        await expect(panel).to_contain_text("somebody has changed it since")
        await expect(panel.get_by_text("1 earlier")).to_be_visible()
        assert await window.violations(page) == []
    await expect(page.locator(".actions .state").first).to_have_text("resolved")
    attempt = (await house.rig.audit.sessions(ticket_id=1))[-1].session_id
    await expect(page.get_by_role("link", name="Session", exact=True)).to_have_attribute("href", f"/sessions/{attempt}")
    await expect(page.get_by_role("region", name="Attempts").get_by_text("judged again")).to_have_count(2)
    await expect(page.get_by_role("region", name="Closure report")).to_contain_text("verified")


async def test_without_scripts_on_a_phone_and_for_a_viewer(house: House, window: Window) -> None:
    page = await window.page(
        path="/tickets/1/evidence", java_script_enabled=False, viewport={"width": 360, "height": 800}
    )
    await page.get_by_role("button", name="Judge again").click()
    await expect(page.get_by_role("region", name="Judge again")).to_contain_text("waits for a worker")
    await page.goto("/tickets/1")
    assert await page.evaluate("document.documentElement.scrollWidth") <= 360
    viewer = await window.page(Role.VIEWER, "/tickets/1/evidence")
    await expect(viewer.get_by_role("region", name="Judge again")).to_contain_text("waits for a worker")
    async with house.worker():
        await expect(viewer.get_by_role("region", name="Judge again")).to_contain_text("verified again", timeout=40_000)
    await expect(viewer.get_by_role("button", name="Judge again")).to_have_count(0)


async def test_what_others_wrote_stays_text(house: House, window: Window) -> None:
    looks = SecondLooks(house.rig.database)
    await looks.ask(1, actor=HOSTILE)
    await house.rig.tickets.reopen_ticket(1)
    await house.rig.tickets.hold_ticket(1)
    async with house.worker():
        page = await window.page(path="/tickets/1")
        panel = page.get_by_role("region", name="Judge again")
        await expect(panel).to_contain_text("could not be judged", timeout=40_000)
    await expect(panel).to_contain_text("<script>")
    assert await page.title() != "pwned"
    # Of a ticket whose work has not ended nothing can be judged, and nobody is asked to.
    await expect(page.get_by_role("button", name="Judge again")).to_have_count(0)


async def test_by_the_command_line_on_a_server(house: House) -> None:
    env = {**operator_environment(), "OPERATOR_TOKEN": house.server.tokens[Role.OPERATOR]}
    command = [sys.executable, "-m", "operator_core", "--server", house.server.url, "verify", "1"]

    async def call(*more: str) -> subprocess.CompletedProcess[str]:
        words = [*command, *more]
        return await asyncio.to_thread(
            subprocess.run, words, capture_output=True, text=True, timeout=100, check=False, env=env
        )

    refused = await call("--model", "x")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--check and --model are for judging on this machine" in refused.stderr
    async with house.worker():
        found = await call("--checks-only")
        assert found.returncode == 0, found.stderr
        assert "now: verified: " in found.stdout
        assert "then: verified: " in found.stdout
        assert f"`operator --server {house.server.url} sessions show " in found.stdout
        (house.workspace / "hello").write_text("echo goodbye\n")
        found = await call("--json")
        assert found.returncode == 1, found.stderr
        document = json.loads(found.stdout)
        assert (document["verdict"]["kind"], document["unchanged"]) == ("refuted", False)
        assert document["before"]["kind"] == "verified"
        assert document["verdict"]["clauses"][0]["evidence"]
        (house.workspace / "hello").unlink()
        await asyncio.to_thread(house.workspace.rename, house.workspace.with_name("moved"))
        gone = await call()
        assert gone.returncode == 1, gone
        assert "No running worker has the workspace" in gone.stderr
        assert "Traceback" not in gone.stderr

"""A real Chromium, signed in at a real server, that notices every error on its pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from axe_playwright_python.async_playwright import Axe  # type: ignore[import-untyped]
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright

from operator_core.model.person import Role
from tests.support.web import Served

__all__ = ["Window", "browsing"]

# Read before the environment is cleaned.
_REQUIRED = os.environ.get("OPERATOR_REQUIRE_SERVICES") == "1"
# What Chromium and htmx report of an answer that is no success, of a page that is left, of a server that is away.
_EXPECTED = ("Failed to load resource", "net::ERR_", "htmx:sendAbort", "htmx:sendError", "htmx:afterRequest")


class Window:
    """A browser, its windows, and what went wrong in them."""

    def __init__(self, browser: Browser, served: Served) -> None:
        self.served = served
        self.errors: list[str] = []
        self._browser = browser

    async def page(self, role: Role | None = Role.OPERATOR, path: str = "/", **options: Any) -> Page:
        """A new window; with a role it is signed in.

        Args:
            options: Of Playwright's ``new_context``.
        """
        context = await self._browser.new_context(base_url=self.served.url, **options)
        context.set_default_timeout(15_000)
        page = await context.new_page()
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.on("console", self._heard)
        if role is not None:
            await page.goto("/login")
            await page.get_by_label("Token").fill(self.served.tokens[role])
            await page.get_by_role("button", name="Sign in").click()
            await page.wait_for_url("**/?said=signed_in")
        await page.goto(path)
        return page

    async def violations(self, page: Page) -> list[str]:
        """What axe finds on the page that is serious or worse, one line for each."""
        found = await Axe().run(page)
        return [
            f"{v['id']} ({v['impact']}): {v['help']}: {[node['html'][:120] for node in v['nodes'][:3]]}"
            for v in found.response["violations"]
            if v["impact"] in ("serious", "critical")
        ]

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(word in message.text for word in _EXPECTED):
            self.errors.append(f"{message.type}: {message.text}")


@asynccontextmanager
async def browsing(served: Served) -> AsyncIterator[Window]:
    """Chromium beside that server; no page may have had an error in the end."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        missing = "there is no Chromium; install the package chromium"
        pytest.fail(missing) if _REQUIRED else pytest.skip(missing)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        window = Window(browser, served)
        try:
            yield window
        finally:
            await browser.close()
    if window.errors:
        pytest.fail("the pages had errors: " + "; ".join(window.errors))

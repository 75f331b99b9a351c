"""A real browser: Debian's Chromium, driven by playwright's Python package without a browser of its own."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from playwright.async_api import Browser, ConsoleMessage, Page, Request, async_playwright

from tests.processes.process import WAIT_SECONDS


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A running browser without a window. As root Chromium has no sandbox; it sees our own page only."""
    async with async_playwright() as playwright:
        one = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        try:
            yield one
        finally:
            await one.close()


class Tab:
    """A page, all that it asked for, and all that it complained about."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.asked: list[str] = []  # URLs
        self.complaints: list[str] = []
        page.set_default_timeout(WAIT_SECONDS * 1000)
        page.on("request", self._request)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _request(self, request: Request) -> None:
        self.asked.append(request.url)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)

    async def see(self, selector: str, words: str) -> None:
        """Wait until some element has these words."""
        await self.page.locator(selector, has_text=words).first.wait_for()


@asynccontextmanager
async def tab(
    one: Browser, url: str, width: int = 1280, height: int = 900, *, dark: bool = False, phone: bool = False
) -> AsyncIterator[Tab]:
    """A page of its own, with a session of its own, at this URL."""
    context = await one.new_context(
        viewport={"width": width, "height": height},
        color_scheme="dark" if dark else "light",
        has_touch=phone,
        device_scale_factor=2 if phone else 1,
    )
    try:
        opened = Tab(await context.new_page())
        await opened.page.goto(url)
        yield opened
    finally:
        await context.close()

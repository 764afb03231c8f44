"""A real browser for tests of pages: Debian's chromium, and a page with what the browser complained of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = ("no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking")


class Opened:
    """A page that was opened, with what the browser complained of."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.page.goto(path.as_uri())

    def wait_for(self, selector: str, count: int) -> None:
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_count(count, timeout=20_000)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

"""A real browser: the chromium that is on the PATH, driven by playwright. Both may be missing."""

import importlib.util
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome")


def why_not() -> str:
    """The reason why there is no browser; nothing if there is one."""
    if importlib.util.find_spec("playwright") is None:
        return "playwright is not installed: pip install 'morok[test-viewer]'"
    if found() is None:
        return f"none of {', '.join(NAMES)} is on the PATH"
    return ""


def found() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@contextmanager
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found(), args=["--no-sandbox"])
        try:
            yield started
        finally:
            started.close()


class Tab:
    """One page in a window of some size, and everything that it complains about or asks a network for."""

    def __init__(
        self, started: Any, path: Path, width: int = 1300, height: int = 900, **options: Any
    ) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.context = started.new_context(viewport={"width": width, "height": height}, **options)
        self.page = self.context.new_page()
        self.page.on(
            "console", lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda e: self.complaints.append(str(e)))
        self.page.on("request", lambda r: self.requests.append(r.url))
        self.address = path.resolve().as_uri()
        self.page.goto(self.address)
        self.page.wait_for_selector("html[data-ready]", state="attached")

    def go(self, target: str) -> None:
        """To another address of the page, until it is drawn."""
        self.page.evaluate("delete document.querySelector('main').dataset.seen")
        self.page.evaluate("t => { location.hash = t; }", target)
        self.until("document.querySelector('main').children.length > 0")
        self.page.wait_for_timeout(150)

    def until(self, expression: str, seconds: float = 30) -> None:
        """Wait until something holds. The page forbids `eval`, by which playwright itself would wait."""
        end = time.monotonic() + seconds
        while not self.page.evaluate(expression):
            assert time.monotonic() < end, f"{expression} did not become true in {seconds} s"
            self.page.wait_for_timeout(20)

    def texts(self, selector: str) -> list[str]:
        return [str(text) for text in self.page.locator(selector).all_inner_texts()]

    def close(self) -> None:
        self.context.close()
        outside = [url for url in self.requests if not url.startswith(("file://", "data:", "blob:"))]
        assert outside == [] and self.complaints == []

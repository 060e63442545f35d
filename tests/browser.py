"""A real Chromium for tests of the page."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, Page, sync_playwright

from tests.peers.needs import need_program

# As root, without a screen, and without Chromium's own requests to the network.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium for the block."""
    program = need_program("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, *, width: int = 1280, height: int = 900) -> Iterator[Page]:
    """Open a tab with storage of its own. At the end of the block, fail if a script failed or broke the policy."""
    with browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True) as context:
        page = context.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if _is_fault(message.text) else None)
        yield page
        assert errors == []


def _is_fault(text: str) -> bool:
    """Return whether a message of the console reports that the Content-Security-Policy refused something."""
    return "Content Security Policy" in text

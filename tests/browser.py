"""A real Chromium for tests of the page."""

from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

from tests.peers.needs import need_program

# As root, without a screen, and without Chromium's own requests to the network.
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
SIZE = 1280, 900
PATIENCE_MS = 60_000  # how long a test waits before it fails


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run Chromium for the block."""
    program = need_program("chromium")
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, *, width: int = SIZE[0], height: int = SIZE[1], zone: str | None = None) -> Iterator[Page]:
    """Open a tab with storage of its own, in a time zone. At the end of the block, fail if a script failed or broke the
    policy."""
    viewport = {"width": width, "height": height}
    with browser.new_context(viewport=viewport, accept_downloads=True, timezone_id=zone) as context:  # type: ignore[arg-type]
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        with watched(page):
            yield page


@contextmanager
def watched(page: Page) -> Iterator[None]:
    """At the end of the block, fail if a script failed or broke the policy in it."""
    errors: list[str] = []

    def on_error(error: Error) -> None:
        errors.append(str(error))

    def on_message(message: ConsoleMessage) -> None:
        if "Content Security Policy" in message.text:
            errors.append(message.text)

    page.on("pageerror", on_error)
    page.on("console", on_message)
    yield
    page.remove_listener("pageerror", on_error)
    page.remove_listener("console", on_message)
    assert errors == []

"""The page in Chromium: times to its first paint and to a graph of 20 series over a day, next to a picture of `/q`."""

import math
import random
import shutil
import tempfile
import time
import urllib.request
from pathlib import Path
from urllib.parse import quote

import click
from playwright.sync_api import Browser, sync_playwright

from bench.daemon import serving
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SERIES, DAY_S, STEP_S, START_S = 20, 86_400, 10, 1_700_000_000
QUERY = "sum:5m-avg:bench.page{host=*}"
SPAN = f"start={START_S}&end={START_S + DAY_S}"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"


def page(rounds: int) -> None:
    """Measure `rounds` times, each time with a new daemon's caches and a browser without any. Publish the report."""
    program = shutil.which("chromium")
    if program is None:
        raise click.ClickException("Chromium is not installed. On Debian: apt-get install chromium")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        settings = {"tsd.core.auto_create_metrics": "true", "tsd.storage.path": name}
        with serving(Path(name), settings) as daemon, sync_playwright() as playwright:
            _fill(daemon.port)
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
            for _ in range(rounds):
                _measure(browser, daemon.port, found)
            browser.close()
    report = f"{SERIES} series over a day, embedded, headless Chromium. {machine()}.\n\n"
    publish(
        "page",
        report + table(["what", "median (range)"], [[what, spread(some)] for what, some in found.items()]),
        found,
    )


def _fill(port: int) -> None:
    """Send a day of points."""
    rng = random.Random(1)
    with Telnet(port) as telnet:
        for host in range(SERIES):
            lines = [
                b"put bench.page %d %.2f host=web%02d"
                % (START_S + at, 50 + 30 * math.sin(at / 9000 + host) + rng.random(), host)
                for at in range(0, DAY_S, STEP_S)
            ]
            telnet.sync(b"\n".join(lines))


def _measure(browser: Browser, port: int, found: dict[str, list[float]]) -> None:
    """Open the page, then a graph twice, then the picture of /q."""

    def note(what: str, took_s: float) -> None:
        found.setdefault(what, []).append(took_s)

    base = f"http://127.0.0.1:{port}/"
    graph = f"{base}#{SPAN}&m={quote(QUERY)}"
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        tab = context.new_page()
        tab.goto(base)
        tab.wait_for_function(PAINT)
        note("first paint, nothing cached, s", tab.evaluate(PAINT) / 1000)
        for what in ("first graph, loads the library, s", "graph of 20 series over a day, s"):
            tab.goto("about:blank")
            begun = time.monotonic()
            tab.goto(graph)
            tab.locator("#below").wait_for()
            assert tab.locator("#graph .trace").count() == SERIES
            note(what, time.monotonic() - begun)
    begun = time.monotonic()
    with urllib.request.urlopen(f"{base}q?{SPAN}&m={quote(QUERY)}&wxh=1280x500&png&nocache") as answer:
        assert answer.read(4) == b"\x89PNG"
    note("the same by /q as PNG, s", time.monotonic() - begun)

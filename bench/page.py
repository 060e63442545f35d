"""The page in Chromium: times to its first paint, to the curves of 20 series over a day, and until they can be zoomed.

Next to it are a picture of `/q`, and a page that has the plotting library and the same points and nothing else.
"""

import gzip
import json
import math
import random
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
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
CURVES = "first graph, curves are seen, s", "20 series over a day, curves are seen, s"
GRAPHS = "first graph, the library draws it, s", "20 series over a day, the library draws it, s"
REDRAWN = "the same, in the open page, s"
ALONE = "the library alone, first graph, s", "the library alone, again, s"
PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
# Notes when curves are seen first, in ms since the navigation. The library's script blocks the page later.
WATCH = """(() => {
    const look = () => {
        const below = document.getElementById("below");
        if (below && !below.hidden) window.curvesSeen = performance.now();
        else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
})()"""
# Zooms out. Returns the milliseconds until it is drawn.
REDRAW = """() => new Promise((resolve) => {
    const [graph, begun] = [document.getElementById("graph"), performance.now()];
    const end = () => requestAnimationFrame(() => resolve(performance.now() - begun));
    new MutationObserver(() => graph.classList.contains("busy") || end())
        .observe(graph, { attributes: true, attributeFilter: ["class"] });
    document.getElementById("out").click();
})"""


@click.command()
@click.option("--rounds", default=5, help="Rounds.")
def page(rounds: int) -> None:
    """Open the page in Chromium: first paint, and a graph of 20 series over a day."""
    program = shutil.which("chromium")
    if program is None:
        raise click.ClickException("Chromium is not installed. On Debian: apt-get install chromium")
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        settings = {"tsd.core.auto_create_metrics": "true", "tsd.storage.path": name}
        with serving(Path(name), settings) as daemon, sync_playwright() as playwright:
            _fill(daemon.port)
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
            with _plotly_alone(daemon.port) as peer:
                for _ in range(rounds):
                    _measure(browser, daemon.port, peer, found)
            browser.close()
        first, again = (found[what] for what in GRAPHS)
        for which, own, alone in zip(("first", "second"), (first, again), (found[what] for what in ALONE), strict=True):
            ratios = [mine / other for mine, other in zip(own, alone, strict=True)]
            found[f"{which} graph, times the page with the library alone"] = ratios
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


@contextmanager
def _plotly_alone(port: int) -> Iterator[int]:
    """Serve a page that draws the same points with the plotting library and does nothing else. Yield its port."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/query?{SPAN}&m={quote(QUERY)}") as answer:
        series = json.load(answer)
    traces = [
        {"x": [int(time_s) * 1000 for time_s in one["dps"]], "y": [*one["dps"].values()], "mode": "lines"}
        for one in series
    ]
    spec = find_spec("plotly")
    assert spec is not None
    assert spec.origin is not None
    library = gzip.compress((Path(spec.origin).parent / "package_data" / "plotly.min.js").read_bytes())
    layout = {"xaxis": {"type": "date"}, "hovermode": "x unified"}
    page = f"""<!doctype html><meta charset=utf-8><div id=graph style="height:480px"></div>
<script src=/plotly.js></script>
<script>Plotly.newPlot("graph", {json.dumps(traces)}, {json.dumps(layout)}, {{displaylogo: false, responsive: true}})
.then(() => document.body.append(Object.assign(document.createElement("p"), {{id: "below", innerText: "done"}})));
</script>"""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            is_library = self.path == "/plotly.js"
            body = library if is_library else gzip.compress(page.encode())
            self.send_response(200)
            self.send_header("Content-Type", "text/javascript" if is_library else "text/html")
            self.send_header("Content-Encoding", "gzip")
            self.send_header("Content-Length", str(len(body)))
            if is_library:
                self.send_header("Cache-Control", "public, max-age=31536000, immutable")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the base class
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def _measure(browser: Browser, port: int, peer: int, found: dict[str, list[float]]) -> None:
    """Open the page, then a graph twice, then the library alone twice, then the picture of /q."""

    def note(what: str, took_s: float) -> None:
        found.setdefault(what, []).append(took_s)

    base = f"http://127.0.0.1:{port}/"
    graph = f"{base}#{SPAN}&m={quote(QUERY)}"
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        tab = context.new_page()
        tab.add_init_script(WATCH)
        tab.goto(base)
        tab.wait_for_function(PAINT)
        note("first paint, nothing cached, s", tab.evaluate(PAINT) / 1000)
        for seen, drawn in zip(CURVES, GRAPHS, strict=True):
            tab.goto("about:blank")
            begun = time.monotonic()
            tab.goto(graph)
            tab.locator("#below").wait_for()
            tab.locator("#graph:not(.busy)").wait_for()
            note(drawn, time.monotonic() - begun)
            note(seen, tab.evaluate("curvesSeen") / 1000)
            assert tab.locator("#graph .trace").count() == SERIES
        note(REDRAWN, tab.evaluate(REDRAW) / 1000)
        for what in ALONE:
            tab.goto("about:blank")
            begun = time.monotonic()
            tab.goto(f"http://127.0.0.1:{peer}/")
            tab.locator("#below").wait_for()
            note(what, time.monotonic() - begun)
            assert tab.locator("#graph .trace").count() == SERIES
    begun = time.monotonic()
    with urllib.request.urlopen(f"{base}q?{SPAN}&m={quote(QUERY)}&wxh=1280x500&png&nocache") as answer:
        assert answer.read(4) == b"\x89PNG"
    note("the same by /q as PNG, s", time.monotonic() - begun)

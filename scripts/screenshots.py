"""Pictures of the web page for the documentation: `python -m scripts.screenshots`, from a daemon with made-up hosts.

Writes docs/figures/page*.png. Needs Chromium and the extras `web` and `test`.
"""

import math
import random
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.daemon import serving
from bench.telnet import Telnet
from playwright.sync_api import Page, expect, sync_playwright

FIGURES = Path(__file__).parent.parent / "docs" / "figures"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
PATIENCE_MS = 120_000
STEP_S, SPAN_S = 60, 7 * 3600  # of the points
SHOWN_S = 6 * 3600  # in the graph
HOSTS = [f"{kind}{number:03}" for kind, count in (("batch", 40), ("db", 12), ("web", 68)) for number in range(count)]
SHOWN = ("web001", "web002", "web004")
SILENT_S = {"web017": 2600, "db003": 8300, "batch021": 17_000}  # how long a host has sent nothing
BUCKET_S = 600  # of the graph: its range has whole ones
GRAPH = (
    f"&m=avg:10m-avg:sys.load.1min{{host={'|'.join(SHOWN)}}}"
    "&m=sum:10m-avg:rate:net.bytes{iface=*}{host=literal_or(web001)}&o=&o=axis%20x1y2"
)
REFUSED = b"put sys.cpu.user 1 not-a-number host=web001\nput sys.l!oad 1700000000 1 host=web001"


def lines(now_s: int) -> Iterator[bytes]:
    """Yield the lines of all hosts, a block a host."""
    chance = random.Random(1)
    for number, host in enumerate(HOSTS):
        step_s = STEP_S if host in SHOWN or host in SILENT_S else 5 * STEP_S
        found, sent = [], 10**12 + 10**9 * number
        for time_s in range(now_s - SPAN_S, now_s - SILENT_S.get(host, 0), step_s):
            day = math.sin(time_s / 5000 + number / 9)
            sent += int(step_s * 1_000_000 * (9 + 5 * math.sin(time_s / 4000) + chance.random()))
            values = {
                "sys.load.1min": f"{1 + 0.7 * day + 0.2 * chance.random():.2f} host={host} dc=fra{number % 3}",
                "sys.cpu.user": f"{40 + 25 * day + 4 * chance.random():.1f} host={host} cpu=0",
                "df.used.percent": f"{50 + number % 37 + (time_s - now_s) / 20_000:.2f} host={host} mount=data",
                "net.bytes": f"{sent} host={host} iface=eth0",
                "proc.count": f"{180 + int(9 * day) + number % 11} host={host}",
            }
            found += [b"put %b %d %b" % (name.encode(), time_s, rest.encode()) for name, rest in values.items()]
        yield b"\n".join(found)


def fill(port: int) -> None:
    """Send all that the pictures show, except the annotation."""
    with Telnet(port) as telnet:
        for text in lines(int(time.time())):  # noqa: TID251 (the page shows the present)
            telnet.sync(text)
        telnet.sync(b"meta web001 owner=payments rack=f12 os=debian-12")
        telnet.request(REFUSED)


def take(page: Page, name: str, ready: str, *, height: int = 0) -> None:
    """Save the page as a picture once `ready` is visible, whole or down to `height`."""
    expect(page.locator(ready).first).to_be_visible(timeout=PATIENCE_MS)
    page.wait_for_load_state("networkidle")
    clip = {"x": 0, "y": 0, "width": 1280, "height": height} if height else None
    page.screenshot(path=FIGURES / name, full_page=True, clip=clip)  # type: ignore[arg-type]
    print(FIGURES / name)


def main() -> None:
    """Run a daemon and Chromium, and save the pictures."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("Chromium is not installed. On Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="tsd-screenshots-", ignore_cleanup_errors=True) as folder:
        settings = {
            "tsd.storage.path": folder, "tsd.core.auto_create_metrics": "true", "tsd.entity.enabled": "true",
            "tsd.access.anonymous": "read,write,admin",
        }  # fmt: skip
        with serving(Path(folder), settings) as daemon, sync_playwright() as playwright:
            fill(daemon.port)
            browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
            page = browser.new_page(viewport={"width": 1280, "height": 820})
            at = f"http://127.0.0.1:{daemon.port}/"
            note = {"startTime": int(time.time()) - 8000, "description": "release 4.2 on all web hosts"}  # noqa: TID251
            assert page.request.post(at + "api/annotation", data=note).ok
            end_s = int(time.time()) // BUCKET_S * BUCKET_S  # noqa: TID251
            page.goto(f"{at}#start={end_s - SHOWN_S}&end={end_s - 1}{GRAPH}")
            expect(page.locator("#graph-view table tbody tr").first).to_be_visible(timeout=PATIENCE_MS)
            page.reload()  # the picture shows the time that a graph takes when the library is cached
            take(page, "page.png", "#graph-view table tbody tr")
            page.goto(at + "#view=inventory")
            take(page, "page-inventory.png", "#inventory-view table tbody tr", height=820)
            page.goto(at + "#view=entity&entity=web001")
            take(page, "page-entity.png", "#entity-view svg")
            page.goto(at + "#view=daemon")
            expect(page.locator("#daemon-view")).to_contain_text(
                re.compile(r"lines per second\s*\d"), timeout=PATIENCE_MS
            )
            take(page, "page-daemon.png", "#daemon-view table tbody tr")
            browser.close()


if __name__ == "__main__":
    main()

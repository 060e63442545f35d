"""Rollups on the embedded store: what `tsd rollup build` takes for a raw point, and how fast days of a year answer.

The store has cells of whole hours, a point every 10 s, of one metric. The year is of another store, whose table of days
is written directly.
"""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import urlopen

import click
import numpy as np
import trio

from bench.daemon import serving
from bench.report import machine, publish, spread, table
from bench.retention import DAY_S, fill
from tsd.codec.names import Kind
from tsd.codec.opentsdb.rollup import parse_config
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs
from tsd.config.loader import Given
from tsd.daemon.settings import now_ms, read_config
from tsd.daemon.wiring import make_uids, opened_store
from tsd.tables.opentsdb.rollup_derive import derive_rows
from tsd.tables.opentsdb.rollup_sums import RowKeys, Sums, rollup_puts
from tsd.tables.reading import ScanRange

STEP_S = 10
METRIC, TAGK = b"bench.cpu", b"host"
SPANS = {"1m": "1h", "10m": "1d", "1h": "1d", "1d": "1n"}
CONFIG = {
    "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
    "intervals": [
        {
            "interval": name,
            "table": "tsdb" if name == "1m" else f"tsdb-{name}",
            "preAggregationTable": f"tsdb-agg-{name}",
            "rowSpan": span,
            "defaultInterval": name == "1m",
        }
        for name, span in SPANS.items()
    ],
}
JOBS = {"1h and 1d": ("1h", "1d"), "10m": ("10m",)}
YEAR_DAYS, REQUESTS = 365, 20  # requests of a round


@click.command()
@click.option("--series", default=300, help="Series of the build.")
@click.option("--days", default=10, help="Days of the build.")
@click.option("--rounds", "count", default=3, help="Rounds.")
def rollup(series: int, days: int, count: int) -> None:
    """Build rollups: CPU of a raw point and of a cell; and query a year of 1,000 series by day."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        state = Path(name, "raw")
        settings = _settings(state)
        trio.run(fill, settings, series, days, STEP_S)
        for _ in range(count):
            for title, intervals in JOBS.items():
                _build(settings, title, intervals, found)
        year = Path(name, "year")
        trio.run(_fill_year, _settings(year))
        _query(year, count, found)
    publish("rollup", _report(series, days, found), found)


def _settings(state: Path) -> dict[str, str]:
    return {
        "tsd.storage.path": str(state),
        "tsd.rollups.enable": "true",
        "tsd.rollups.config": json.dumps(CONFIG),
    }


def _build(settings: dict[str, str], title: str, intervals: tuple[str, ...], found: dict[str, list[float]]) -> None:
    words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    words += [word for name in intervals for word in ("--interval", name)]
    command = [str(Path(sys.executable).with_name("tsd")), "rollup", "build", "--json", *words]
    idle = _cpu_s([*command, "--end", "1"])  # the start of the command
    begun = time.monotonic()
    cpu_s, done = _run(command)
    took_s = time.monotonic() - begun
    used_s = cpu_s - idle
    found.setdefault(f"{title}: CPU of a raw point, µs", []).append(used_s / done["points"] * 1e6)
    found.setdefault(f"{title}: CPU of a cell, reading included, µs", []).append(used_s / done["cells"] * 1e6)
    found.setdefault(f"{title}: million points/s", []).append(done["points"] / took_s / 1e6)


def _cpu_s(command: list[str]) -> float:
    return _run(command)[0]


def _run(command: list[str]) -> tuple[float, dict[str, int]]:
    """Return the CPU seconds and the output of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found: dict[str, int] = json.loads(text)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, found


async def _fill_year(settings: dict[str, str]) -> None:
    """Write the days of a year of 1,000 series."""
    config, _ = read_config(Given("benchmark", key, value) for key, value in settings.items())
    rollups = parse_config(json.dumps(CONFIG).encode())
    async with opened_store(config) as store:
        uids = make_uids(config, store)
        hosts = [b"web%05d" % number for number in range(1000)]
        metric = (await uids.find_or_assign(Kind.METRIC, [METRIC]))[METRIC]
        tagk = (await uids.find_or_assign(Kind.TAGK, [TAGK]))[TAGK]
        tagvs = await uids.find_or_assign(Kind.TAGV, hosts)
        assert isinstance(metric, bytes)
        tails = sorted(join_pairs([(bytes(tagk), bytes(tagvs[host]))]) for host in hosts)  # type: ignore[arg-type]
        keys = RowKeys([metric] * len(tails), tails)
        rng = np.random.default_rng(1)
        last = now_ms() // 1000 // DAY_S * DAY_S
        for day_s in range(last - YEAR_DAYS * DAY_S, last, DAY_S):
            level = rng.normal(50, 5, len(tails))
            numbers = np.arange(len(tails), dtype=np.int64)
            counts = np.full(len(tails), 8640, np.int64)
            sums = Sums(numbers, np.full(len(tails), day_s, np.int64), level * 8640, counts, level - 1, level + 1)
            await store.put("tsdb-1d", rollup_puts(sums, rollups.interval("1d"), rollups, keys))
        await derive_rows(
            store, KeyLayout(), rollups.interval("1d"), metric, ScanRange(last - YEAR_DAYS * DAY_S, last), last
        )
        await store.sync()


def _query(state: Path, count: int, found: dict[str, list[float]]) -> None:
    with serving(state, _settings(state)) as daemon:
        for spec in ("1d-sum", "1d-avg"):
            url = f"http://127.0.0.1:{daemon.port}/api/query?start={YEAR_DAYS}d-ago&m=sum:{spec}:bench.cpu"
            for _ in range(count):
                _answer(url)  # warms up
                used_s = daemon.usage().cpu_s
                took_ms = [_answer(url) * 1000 for _ in range(REQUESTS)]
                used_ms = (daemon.usage().cpu_s - used_s) / REQUESTS * 1000
                found.setdefault(f"a year of 1,000 series, {spec}, ms", []).append(statistics.median(took_ms))
                found.setdefault(f"a year of 1,000 series, {spec}, ms of CPU", []).append(used_ms)


def _answer(url: str) -> float:
    """Ask for the year. Return the seconds until the whole answer."""
    begun = time.monotonic()
    with urlopen(url) as answer:
        [group] = json.loads(answer.read())
    assert len(group["dps"]) >= YEAR_DAYS - 1, len(group["dps"])
    return time.monotonic() - begun


def _report(series: int, days: int, found: dict[str, list[float]]) -> str:
    head = f"{days} days of {series:,} series, a point every 10 s, embedded. {machine()}.\n\n"
    return head + table(["what", "figure"], [[title, spread(figures, 3)] for title, figures in found.items()])

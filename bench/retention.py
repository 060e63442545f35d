"""Retention on the embedded store: what a dry run takes, how fast expired points go, and what puts lose meanwhile.

The store is filled with cells of whole hours of one metric, by default a point every 10 s. A client puts lines all the
time; its speed during the deletion is compared with its speed before and after.
"""

import json
import random
import resource
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
import trio

from bench.daemon import Daemon, serving
from bench.report import machine, publish, spread, table
from bench.telnet import Telnet
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key
from tsd.codec.text import FLOAT
from tsd.config.loader import Given
from tsd.daemon.settings import now_ms, read_config
from tsd.daemon.wiring import make_uids, opened_store
from tsd.store import Put

HOUR_S, DAY_S = 3600, 86_400
BATCH_ROWS = 10_000
QUIET_S = 5.0
LINES = 2000
LONGEST_WAIT_S = 120.0  # for space


@click.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--days", default=40, help="Days in the store.")
@click.option("--expired", default=10, help="Days that expire.")
@click.option("--step", "step_s", default=10, help="Seconds between two points of a series.")
@click.option("--rounds", "count", default=1, help="Rounds.")
def retention(series: int, days: int, expired: int, step_s: int, count: int) -> None:
    """Delete expired points: dry run, speed, and the speed of puts meanwhile."""
    found: dict[str, list[float]] = {}
    for _ in range(count):
        with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
            _round(Path(name, "state"), series, days, expired, step_s, found)
    publish("retention", _report(series, days, expired, step_s, found), found)


def _round(state: Path, series: int, days: int, expired: int, step_s: int, found: dict[str, list[float]]) -> None:
    settings = {
        "tsd.core.auto_create_metrics": "true",
        "tsd.retention.rules": f"bench.*={days - expired}d",
        "tsd.storage.path": str(state),
    }
    trio.run(fill, settings, series, days, step_s)
    before = _bytes(state)
    with serving(state, settings) as daemon:
        words = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
        begun, used_s = time.monotonic(), _cpu_s(daemon)
        about = json.loads(_tsd("--dry-run", "--json", *words))
        found.setdefault("dry run, s", []).append(time.monotonic() - begun)
        found.setdefault("dry run, s of CPU of command and daemon", []).append(_cpu_s(daemon) - used_s)
        with _putting(daemon) as speed:
            quiet = speed(QUIET_S)
            begun = time.monotonic()
            with speed.during() as meanwhile:
                done = json.loads(_tsd("--trust-clock", "--json", *words))
            took = time.monotonic() - begun
            quiet = (quiet + speed(QUIET_S)) / 2
        [deleted], [estimated] = done["rules"].values(), about["rules"].values()
        assert abs(estimated["points"] - deleted["points"]) <= 0.05 * deleted["points"], (estimated, deleted)
        found.setdefault("deletion, s", []).append(took)
        found.setdefault("deletion, million points/s", []).append(deleted["points"] / took / 1e6)
        found.setdefault("puts meanwhile, share of their speed", []).append(meanwhile[0] / quiet)
        found.setdefault("space freed after, s", []).append(_wait_for_space(state, before * (1 - expired / days / 2)))
    found.setdefault("space of the store afterwards, share", []).append(_bytes(state) / before)
    print(f"bench: {deleted} in {took:.1f} s; {found}", file=sys.stderr)


async def fill(settings: dict[str, str], series: int, days: int, step_s: int) -> None:
    """Make a store with cells of whole hours."""
    points_of_hour = HOUR_S // step_s
    config, _ = read_config(Given("benchmark", key, value) for key, value in settings.items())
    rng = random.Random(1)
    qualifiers = b"".join(seconds_qualifier(at * step_s, FLOAT | 7) for at in range(points_of_hour))
    values = []
    for _ in range(64):
        level = 50.0
        points = [level := round(level + rng.gauss(0, 0.1), 2) for _ in range(points_of_hour)]
        values.append(struct.pack(f">{points_of_hour}d", *points) + b"\0")
    last = now_ms() // 1000 // HOUR_S * HOUR_S
    async with opened_store(config) as store:
        uids = make_uids(config, store)
        metric = (await uids.find_or_assign(Kind.METRIC, [b"bench.cpu"]))[b"bench.cpu"]
        tagk = (await uids.find_or_assign(Kind.TAGK, [b"host"]))[b"host"]
        hosts = [b"web%05d" % number for number in range(series)]
        tagvs = await uids.find_or_assign(Kind.TAGV, hosts)
        pairs = sorted(join_pairs([(bytes(tagk), bytes(tagvs[host]))]) for host in hosts)  # type: ignore[arg-type]
        puts: list[Put] = []
        for base in range(last - (days - 1) * DAY_S - 23 * HOUR_S, last + 1, HOUR_S):
            puts += [
                Put(row_key(KeyLayout(), bytes(metric), base, pair), COLUMN + qualifiers, rng.choice(values))  # type: ignore[arg-type]
                for pair in pairs
            ]
            if len(puts) >= BATCH_ROWS:
                await store.put(config.data_table, puts)
                puts = []
        await store.put(config.data_table, puts)
        await store.sync()


class _Speed:
    """Speed of a client that puts lines all the time."""

    def __init__(self) -> None:
        self.lines = 0

    def __call__(self, seconds: float) -> float:
        """Return its lines per second over some seconds."""
        before, begun = self.lines, time.monotonic()
        time.sleep(seconds)  # noqa: TID251 - it measures a span of time
        return (self.lines - before) / (time.monotonic() - begun)

    @contextmanager
    def during(self) -> Iterator[list[float]]:
        """Append its lines per second during the block."""
        result: list[float] = []
        before, begun = self.lines, time.monotonic()
        yield result
        result.append((self.lines - before) / (time.monotonic() - begun))


@contextmanager
def _putting(daemon: Daemon) -> Iterator[_Speed]:
    speed, stop = _Speed(), threading.Event()

    def run() -> None:
        at = now_ms() // 1000
        with Telnet(daemon.port) as telnet:
            while not stop.is_set():
                at += 1
                lines = b"".join(b"put bench.put %d %d host=%d\n" % (at, n, n) for n in range(LINES))
                telnet.sync(lines.removesuffix(b"\n"))
                speed.lines += LINES

    client = threading.Thread(target=run)
    client.start()
    try:
        yield speed
    finally:
        stop.set()
        client.join()


def _tsd(*words: str) -> str:
    command = [str(Path(sys.executable).with_name("tsd")), "retention", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _cpu_s(daemon: Daemon) -> float:
    """Return the CPU seconds of the daemon and of all commands so far."""
    commands = resource.getrusage(resource.RUSAGE_CHILDREN)  # of processes that have ended
    return daemon.usage().cpu_s + commands.ru_utime + commands.ru_stime


def _wait_for_space(state: Path, wanted: float) -> float:
    """Wait until the store takes so many bytes. Return the seconds from the end of the client's last span."""
    begun = time.monotonic()
    while _bytes(state) > wanted and time.monotonic() < begun + LONGEST_WAIT_S:
        time.sleep(0.1)  # noqa: TID251 - the daemon frees space in the background
    return time.monotonic() - begun


def _bytes(state: Path) -> int:
    return sum(path.stat().st_size for path in (state / "store").iterdir())


def _report(series: int, days: int, expired: int, step_s: int, found: dict[str, list[float]]) -> str:
    what = f"{expired} of {days} days of {series:,} series with a point every {step_s} s expire, embedded"
    head = f"{what}. {machine()}.\n\n"
    return head + table(["what", "figure"], [[title, spread(figures)] for title, figures in found.items()])

"""Size on disk of some hours of a fleet's metrics: bytes per point of the embedded store and of VictoriaMetrics.

The points are written one cell per point, as OpenTSDB does, and compacted with `tsd compact`: once to rows, and in a
copy of the store to blocks. A daemon whose clock is scaled gets the same lines round by round, as agents send them.
Then each system merges its files as far as possible, and the data files are measured. The benchmark fails if the points
of two stores differ.
"""

import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import trio
from numpy.typing import NDArray

from bench.contents import Contents, stored
from bench.daemon import run_tsd
from bench.day import SINGLE_CELLS, log_progress
from bench.lines import METRICS_A_HOST, ROUND_S, START_S, Load, rounds, series_text
from bench.pace import Spent, scaled
from bench.report import machine, publish, table
from bench.scaled import Timeline
from bench.table_size import merge_embedded
from bench.victoria import running_victoria
from tsd.config.loader import Given
from tsd.daemon.settings import read_config

HOUR_S = 3600
JITTER = 0.05  # fraction of an agent's rounds that come a second early or late
EMBEDDED, VICTORIA = "tsd, embedded", "VictoriaMetrics"
SENT_S = 120  # in which all points are sent at their times by a scaled clock
START_UP_S = 3  # of the daemon
OVER_S = 600  # after the last hour
DAYS_START_S = START_S - START_S % 86400  # within one of VictoriaMetrics' months


class Fleet(NamedTuple):
    """The data."""

    hosts: int
    hours: int
    round_s: int

    @property
    def rounds(self) -> int:
        """Points per series."""
        return self.hours * HOUR_S // self.round_s

    @property
    def points(self) -> int:
        """Total number of points."""
        return self.hosts * METRICS_A_HOST * self.rounds


class Figures(NamedTuple):
    """Bytes per point."""

    before: float  # the compaction
    after: float
    blocks: float  # the same with tsd.storage.blocks
    sent: float  # of what a daemon has stored that got the points at their times
    victoria: float


@click.command()
@click.option("--hosts", default=100, help="Hosts with ten series each; fewer than 16 make no blocks.")
@click.option("--hours", default=4, help="Hours with points.")
@click.option("--round", "round_s", default=ROUND_S, help="Seconds from one point of a series to the next.")
def disk(hosts: int, hours: int, round_s: int) -> None:
    """Bytes per point on disk after compaction: the embedded store and VictoriaMetrics."""
    fleet = Fleet(hosts, hours, round_s)
    uniform = Load(hosts * METRICS_A_HOST, fleet.rounds, 1, start_s=DAYS_START_S, round_s=round_s)
    mixes = {"a fleet's": fleet_lines(fleet), "drawn": rounds(uniform, 0)}
    found = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        for at, (mix, lines) in enumerate(mixes.items()):
            home = Path(name) / str(at)
            home.mkdir()
            with (home / "lines").open("wb") as file:
                file.writelines(lines)
            found[mix] = Figures(*_embedded(home, fleet), _victoria(home, fleet))
            log_progress(mix, str(found[mix]))
    publish("disk", _report(fleet, found), {mix: figures._asdict() for mix, figures in found.items()})


def fleet_lines(fleet: Fleet) -> Iterator[bytes]:
    """Yield put lines round by round. Of four metrics of a host, two are random walks with two decimals. One is
    a counter with its own rate, and one a small integer that changes sometimes. All points of a host have one time,
    sometimes a second early or late. The same arguments give the same bytes."""
    chance = np.random.default_rng(1)
    count = fleet.hosts * METRICS_A_HOST
    names = [series_text(number) for number in range(count)]
    heads = [b"put %s " % metric.encode() for metric, _ in names]
    tails = [b" %s\n" % tags.encode() for _, tags in names]
    kinds = np.arange(count) % 4
    gauges, counters, small = (np.flatnonzero(found) for found in (kinds < 2, kinds == 2, kinds == 3))
    level = chance.uniform(0, 100, len(gauges))
    pace = chance.uniform(0.05, 1.0, len(gauges))
    total = chance.integers(0, 10**9, len(counters))
    rate = chance.uniform(10, 50_000, len(counters))
    number = chance.integers(0, 200, len(small))
    for at in range(fleet.rounds):
        late = _jitter(chance, fleet.hosts) if at else np.zeros(fleet.hosts, np.int64)
        level = np.clip(level + chance.normal(0, pace), 0, 100)
        total = total + np.maximum(chance.normal(rate, rate / 5), 0).astype(np.int64)
        number = np.clip(number + chance.integers(-3, 4, len(small)) * (chance.random(len(small)) < 0.3), 0, 200)
        values: list[bytes] = [b""] * count
        for places, texts in (
            (gauges, [b"%.2f" % one for one in level.tolist()]),
            (counters, [b"%d" % one for one in total.tolist()]),
            (small, [b"%d" % one for one in number.tolist()]),
        ):
            for place, text in zip(places.tolist(), texts, strict=True):
                values[place] = text
        times = [b"%d " % time for time in (DAYS_START_S + at * fleet.round_s + late).tolist()]
        yield b"".join(
            head + times[place // METRICS_A_HOST] + value + tail
            for place, (head, value, tail) in enumerate(zip(heads, values, tails, strict=True))
        )


def _jitter(chance: np.random.Generator, hosts: int) -> NDArray[np.int64]:
    """Return the delay in seconds of each host's agent."""
    drawn = chance.random(hosts)
    early, late = drawn < JITTER / 2, drawn > 1 - JITTER / 2
    return late.astype(np.int64) - early.astype(np.int64)


def _embedded(home: Path, fleet: Fleet) -> tuple[float, float, float, float]:
    """Return bytes per point before the compaction, after it, after one to blocks, and as agents send them."""
    state, copy, points = home / "state", home / "copy", fleet.points
    log_progress(EMBEDDED, f"writing {points:,} points")
    run_tsd({**SINGLE_CELLS, "tsd.storage.path": str(state)}, "import", str(home / "lines"))
    shutil.copytree(state, copy)
    before, contents = _measured(state, points)
    sizes = [before]
    for folder, blocks in ((state, "false"), (copy, "true")):
        log_progress(EMBEDDED, f"compacting, tsd.storage.blocks = {blocks}")
        run_tsd({"tsd.storage.blocks": blocks, "tsd.storage.path": str(folder)}, "compact")
        size, contents_after = _measured(folder, points)
        if contents.digests != contents_after.digests:
            raise SystemExit("the compaction changed points: the figures mean nothing")
        sizes.append(size)
    log_progress(EMBEDDED, f"sending {points:,} points at their times")
    _send(home / "agents", fleet, home / "lines")
    size, contents_after = _measured(home / "agents", points)
    if contents.digests != contents_after.digests:
        raise SystemExit("a daemon stores other points: the figures mean nothing")
    before, after, in_blocks = sizes
    return before, after, in_blocks, size


def _send(state: Path, fleet: Fleet, lines: Path) -> None:
    """Send each round at its time to a daemon with a scaled clock, until all hours are over."""
    length_s = fleet.hours * HOUR_S
    timeline = Timeline(max(length_s / SENT_S, 1), time.monotonic() + START_UP_S, DAYS_START_S)
    series = fleet.hosts * METRICS_A_HOST
    with scaled(state, {"tsd.core.auto_create_metrics": "true"}, timeline, Spent(None)) as daemon:
        with socket.create_connection(("127.0.0.1", daemon.port)) as connection, lines.open("rb") as file:
            for at in range(fleet.rounds):
                trio.run(trio.sleep, timeline.real_delay_s(DAYS_START_S + at * fleet.round_s))
                connection.sendall(b"".join(islice(file, series)))
            connection.sendall(b"sync\n")
            connection.recv(1 << 10)
        trio.run(trio.sleep, timeline.real_delay_s(DAYS_START_S + length_s + OVER_S))


def _measured(state: Path, points: int) -> tuple[float, Contents]:
    size = merge_embedded(state, "tsdb")
    contents = stored(read_config([Given("benchmark", "tsd.storage.path", str(state))])[0])
    if contents.points != points:
        raise SystemExit(f"{contents.points} points are stored, {points} were sent: the figures mean nothing")
    return size / points, contents


def _victoria(home: Path, fleet: Fleet) -> float:
    """Return bytes per point."""
    log_progress(VICTORIA, f"writing {fleet.points:,} points")
    with running_victoria(home / "victoria") as victoria:
        with socket.create_connection(("127.0.0.1", victoria.port)) as connection, (home / "lines").open("rb") as file:
            connection.sendfile(file)
        victoria.await_stored(fleet.points)
        victoria.check(DAYS_START_S - HOUR_S, DAYS_START_S + fleet.hours * HOUR_S + HOUR_S, fleet.points)
        return victoria.merged_bytes(fleet.points) / fleet.points


def _report(fleet: Fleet, found: Mapping[str, Figures]) -> str:
    rows = [[mix, *(f"{figure:.2f}" for figure in figures)] for mix, figures in found.items()]
    head = ["mix", "tsd, a cell a point", "tsd, compacted", "tsd, in blocks", "tsd, as sent", "VictoriaMetrics"]
    return (
        f"Bytes a point on disk: {fleet.points:,} points of {fleet.hosts * METRICS_A_HOST:,} series, one every "
        f"{fleet.round_s} s; {machine()}. Files of the data alone (no journal, no index of series), all merged. "
        f"*a fleet's*: gauges with two decimals that walk, counters, small integers, {JITTER:.0%} of an agent's rounds "
        f"a second early or late; *drawn*: the other benchmarks' lines, whose gauges and integers are drawn anew each "
        f"time.\n\n" + table(head, rows)
    )

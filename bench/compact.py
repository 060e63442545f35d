"""`tsd compact`: a pass over rows with one cell per point, and the latency that it adds to `sync` in a running daemon.

The points are imported in OpenTSDB's format. After the pass the table is compared with the lines sent.
"""

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from bench.daemon import Daemon, run_tsd, serving, tsd_command
from bench.lines import Load, rounds
from bench.peers import running_hbase
from bench.report import machine, publish, spread, table
from bench.sync import Figures as SyncFigures
from bench.sync import Pace, measure
from bench.verify import check
from tsd.config.loader import Given
from tsd.daemon.settings import read_config

SINGLE_CELLS = {"tsd.storage.join_points": "false", "tsd.storage.enable_compaction": "false"}
REPORT = re.compile(r"rows: (\d+), compacted (\d+)\ncells: (\d+) before, (\d+) after\nbytes: (\d+) before, (\d+) after")

AS_ITS_UNIT = ["nice", "--adjustment=10", "ionice", "--class=idle"]  # conf/systemd/tsd-compact.service
PROBES = 8  # connections that call sync at different times
MORE_THAN_IT_TAKES, TOP_SPEED_S = 400_000, 8


class Busy(NamedTuple):
    """How the latency of `sync` is measured."""

    pairs: int
    seconds: int  # per measurement
    lines_per_s: int  # 0: half of the daemon's top speed
    points: int  # of each series, so that the pass takes long enough


class Waits(NamedTuple):
    """Latencies of `sync`, measured alternately."""

    alone: list[SyncFigures]
    busy: list[SyncFigures]


class Figures(NamedTuple):
    """Results of one pass."""

    rows_per_s: float
    points_per_s: float
    cpu_us: float  # of the command, per point
    cells: float  # ratio of cells before and after
    size: float  # ratio of bytes before and after, not compressed


@click.command()
@click.option("--series", default=1000, help="Series.")
@click.option("--points", default=1000, help="Points of each.")
@click.option("--rounds", "count", default=1, help="Timed passes on each engine.")
@click.option("--pairs", default=5, help="Pairs of measurements of `sync` without and during a pass.")
@click.option("--seconds", default=15, help="Duration of each measurement.")
@click.option("--pace", default=0, help="Lines/s sent meanwhile; 0: half of the daemon's top speed.")
@click.option("--busy-points", default=8640, help="Points of each series for the pass during which sync is measured.")
def compact(series: int, points: int, count: int, pairs: int, seconds: int, pace: int, busy_points: int) -> None:
    """Compact rows with one cell per point on both engines; latency of sync meanwhile."""
    load, busy = Load(series, points, 4), Busy(pairs, seconds, pace, busy_points)
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lines = _written(load, folder / "lines")
        for number in range(count):
            home = folder / f"embedded{number}"
            found.setdefault("embedded", []).append(_pass(load, lines, {"tsd.storage.path": str(home)}))
        if count:
            with running_hbase(folder / "hbase") as hbase:
                for number in range(count):
                    home = folder / f"hbase{number}"
                    settings = {**hbase.settings(f"compact{number}"), "tsd.storage.path": str(home)}
                    found.setdefault("HBase", []).append(_pass(load, lines, settings))
        waits = (
            _waits(folder / "busy", _written(load._replace(points=busy.points), lines), busy) if busy.pairs else None
        )
    publish("compact", _report(load, found, waits), {"passes": found, "sync": waits})


def _written(load: Load, lines: Path) -> Path:
    with lines.open("wb") as file:
        for at in range(load.connections):
            file.writelines(rounds(load, at))
    return lines


def _pass(load: Load, lines: Path, settings: Mapping[str, str]) -> Figures:
    given = {**SINGLE_CELLS, **settings}
    run_tsd(given, "import", str(lines))
    before, begun = os.times(), time.monotonic()
    report = run_tsd(given, "compact")
    took_s, after = time.monotonic() - begun, os.times()
    check(read_config(Given("benchmark", *item) for item in given.items())[0], [load])
    match = REPORT.search(report)
    assert match, report
    assert match[1] == match[2], report
    row_count, _, cells_before, cells_after, bytes_before, bytes_after = map(int, match.groups())
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    figures = Figures(
        row_count / took_s,
        load.lines / took_s,
        cpu_s / load.lines * 1e6,
        cells_before / cells_after,
        bytes_before / bytes_after,
    )
    print(f"bench: {figures}", file=sys.stderr)
    return figures


def _waits(home: Path, lines: Path, busy: Busy) -> Waits:
    """Measure the p99 of `sync` in ms under load, alternately without and during a pass."""
    given = {**SINGLE_CELLS, "tsd.storage.path": str(home)}
    run_tsd(given, "import", str(lines))
    waits = Waits([], [])
    with serving(home, {"tsd.storage.enable_compaction": "false"}) as daemon:
        pace = Pace(4, (busy.lines_per_s or round(_top_speed(daemon) / 2)) // 4)
        for _ in range(busy.pairs):
            waits.alone.append(measure(daemon, pace, busy.seconds, PROBES))
            with subprocess.Popen([*AS_ITS_UNIT, *tsd_command(given, "compact")], stdout=subprocess.DEVNULL) as running:
                waits.busy.append(measure(daemon, pace, busy.seconds, PROBES))
                assert running.poll() is None, "the pass ended before the measurement: use more points"
                running.terminate()
            print(f"bench: sync alone {waits.alone[-1]}\nbench: during a pass {waits.busy[-1]}", file=sys.stderr)
    return waits


def _top_speed(daemon: Daemon) -> float:
    """Return the lines per second that the daemon accepts from faster senders."""
    return measure(daemon, Pace(4, MORE_THAN_IT_TAKES), TOP_SPEED_S).lines_per_s


def _report(load: Load, found: Mapping[str, list[Figures]], waits: Waits | None) -> str:
    rows = [[name, *map(_spread, zip(*figures, strict=True))] for name, figures in found.items()]
    head = ["store", "rows/s", "points/s", "CPU µs/point", "cells before : after", "bytes before : after"]
    passes = f"{load.lines:,} points of {load.series:,} series, a cell a point; {machine()}.\n\n{table(head, rows)}\n"
    if waits is None:
        return passes
    rows = [
        [
            name,
            *(_spread(tuple(getattr(f, of) for f in some)) for of in ("lines_per_s", "cpu_share", "p50_ms", "p99_ms")),
        ]
        for name, some in (("without a pass", waits.alone), ("during a pass", waits.busy))
    ]
    added = [busy.p99_ms / alone.p99_ms - 1 for alone, busy in zip(*waits, strict=True)]
    head = ["embedded, half its top speed", "lines/s", "cores of the daemon", "sync p50 ms", "sync p99 ms"]
    return f"{passes}{table(head, rows)}\nThe pass adds {statistics.median(added):+.0%} to the p99, the median pair.\n"


def _spread(figures: tuple[float, ...]) -> str:
    return spread(figures, 0 if max(figures) >= 100 else 1)

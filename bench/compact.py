"""`tsd compact`: a pass over rows of a cell a point, and what one that runs in a daemon adds to the wait for `sync`.

The points are imported as OpenTSDB writes them. After the pass the table is read and held against what was sent.
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

from bench.daemon import serving
from bench.lines import Load, rounds
from bench.peers import running_hbase
from bench.report import machine, publish, spread, table
from bench.stored import check
from bench.sync import Pace, measure
from tsd.config import Given, read_settings

SINGLE_CELLS = {"tsd.storage.join_points": "false", "tsd.storage.enable_compaction": "false"}
TOLD = re.compile(r"rows: (\d+), compacted (\d+)\ncells: (\d+) before, (\d+) after\nbytes: (\d+) before, (\d+) after")


class Figures(NamedTuple):
    """Of one pass."""

    rows_per_s: float
    points_per_s: float
    cpu_us: float  # of the command, a point
    cells: float  # before, for one after
    size: float  # bytes before, for one after, not compressed


def compact(load: Load, count: int, seconds: int, lines_per_s: int) -> None:
    """Run all of it and publish the report."""
    found: dict[str, list[Figures]] = {}
    waits: dict[str, list[float]] = {"alone": [], "with a pass": []}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lines = folder / "lines"
        lines.write_bytes(b"".join(part for at in range(load.connections) for part in rounds(load, at)))
        for number in range(count):
            home = folder / f"embedded{number}"
            found.setdefault("embedded", []).append(_pass(load, lines, {"tsd.storage.path": str(home)}))
            for case, wait_ms in _waits(folder / f"busy{number}", lines, seconds, lines_per_s).items():
                waits[case].append(wait_ms)
        with running_hbase(folder / "hbase") as hbase:
            for number in range(count):
                settings = {**hbase.settings(f"compact{number}"), "tsd.storage.path": str(folder / f"hbase{number}")}
                found.setdefault("HBase", []).append(_pass(load, lines, settings))
    publish("compact", _report(load, found, waits, lines_per_s), {"passes": found, "sync p99 ms": waits})


def _pass(load: Load, lines: Path, settings: Mapping[str, str]) -> Figures:
    given = {**SINGLE_CELLS, **settings}
    _tsd(given, "import", str(lines))
    before, begun = os.times(), time.monotonic()
    told = _tsd(given, "compact")
    took_s, after = time.monotonic() - begun, os.times()
    check(read_settings(Given("benchmark", *item) for item in given.items())[0], [load])
    match = TOLD.search(told)
    assert match, told
    assert match[1] == match[2], told
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


def _waits(home: Path, lines: Path, seconds: int, lines_per_s: int) -> dict[str, float]:
    """The p99 of `sync`, in ms, while agents send, without a pass and beside one."""
    given = {**SINGLE_CELLS, "tsd.storage.path": str(home)}
    _tsd(given, "import", str(lines))
    pace = Pace(4, lines_per_s // 4)
    with serving(home, {"tsd.storage.enable_compaction": "false"}) as daemon:
        alone = measure(daemon, pace, seconds).p99_ms
        with subprocess.Popen(_command(given, "compact"), stdout=subprocess.DEVNULL) as running:
            beside = measure(daemon, pace, seconds).p99_ms
            assert running.poll() is None, "the pass was over before the measurement was: give it more points"
            running.terminate()
    print(f"bench: p99 of sync {alone:.1f} ms alone, {beside:.1f} ms beside a pass", file=sys.stderr)
    return {"alone": alone, "with a pass": beside}


def _tsd(settings: Mapping[str, str], *words: str) -> str:
    return subprocess.run(_command(settings, *words), check=True, stdout=subprocess.PIPE, text=True).stdout


def _command(settings: Mapping[str, str], *words: str) -> list[str]:
    named = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    return [sys.executable, "-m", "tsd", *words, *named]


def _report(load: Load, found: Mapping[str, list[Figures]], waits: Mapping[str, list[float]], lines_per_s: int) -> str:
    rows = [[name, *map(_spread, zip(*figures, strict=True))] for name, figures in found.items()]
    head = ["store", "rows/s", "points/s", "CPU µs/point", "cells before : after", "bytes before : after"]
    middle = {case: statistics.median(figures) for case, figures in waits.items()}
    return (
        f"{load.lines:,} points of {load.series:,} series, a cell a point; {machine()}.\n\n{table(head, rows)}\n"
        f"p99 of sync at {lines_per_s:,} lines/s, embedded: {middle['alone']:.1f} ms, "
        f"beside a pass {middle['with a pass']:.1f} ms.\n"
    )


def _spread(figures: tuple[float, ...]) -> str:
    return spread(figures, 0 if max(figures) >= 100 else 1)

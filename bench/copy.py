"""`tsd copy` of one load from the embedded store to HBase, back into another folder, and again without changes.

The points are imported in both layouts: joined cells, as tsd writes them, and one cell per point, as OpenTSDB does.
Each table is compared with the lines sent.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from bench.lines import Load, rounds
from bench.peers import running_hbase
from bench.report import machine, publish, spread, table
from bench.verify import check
from tsd.config.loader import Given
from tsd.daemon.settings import read_config

COPIED = re.compile(r"copied (\d+) rows; (\d+) of (\d+) cells were new")
TO_HBASE, TO_EMBEDDED, AGAIN = "embedded → HBase", "HBase → embedded", "the same, nothing new"


class Figures(NamedTuple):
    """Results of one copy."""

    rows_per_s: float
    cells_per_s: float
    points_per_s: float
    cpu_us: float  # of the command, per point


@click.command()
@click.option("--series", default=10_000, help="Series.")
@click.option("--points", default=100, help="Points of each.")
@click.option("--rounds", "count", default=1, help="Rounds.")
def copy(series: int, points: int, count: int) -> None:
    """Copy tables: embedded → HBase, HBase → embedded, and again without changes."""
    load = Load(series, points)
    found: dict[str, list[Figures]] = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        lines = folder / "lines"
        lines.write_bytes(b"".join(part for at in range(load.connections) for part in rounds(load, at)))
        with running_hbase(folder / "hbase") as hbase:
            for number in range(count):
                for shape, joins in (("joined cells", "true"), ("a cell a point", "false")):
                    home, back = folder / f"from{number}{joins}", folder / f"back{number}{joins}"
                    _tsd(home, "import", str(lines), "--set", f"tsd.storage.join_points={joins}")
                    settings = hbase.settings(f"copy{number}{joins}")
                    tables = [(key, value) for key, value in settings.items() if key.endswith("_table")]
                    to = ["--to", f"hbase:{settings['tsd.storage.hbase.thrift']}"]
                    to += [word for key, value in tables for word in ("--to-set", f"{key}={value}")]
                    on_hbase = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
                    again = ["--to", f"embedded:{back}"]
                    for title, words in (
                        (TO_HBASE, to),
                        (TO_EMBEDDED, [*again, *on_hbase]),
                        (AGAIN, [*again, *on_hbase]),
                    ):
                        figures = _timed(load, home, *words)
                        found.setdefault(f"{title}, {shape}", []).append(figures)
                        print(f"bench: {title}, {shape}: {figures}", file=sys.stderr)
                    check(read_config(Given("benchmark", *item) for item in settings.items())[0], [load])
                    named = {**dict(tables), "tsd.storage.path": str(back)}
                    check(read_config(Given("benchmark", *item) for item in named.items())[0], [load])
    publish("copy", _report(load, found), found)


def _timed(load: Load, home: Path, *words: str) -> Figures:
    before, begun = os.times(), time.monotonic()
    report = _tsd(home, "copy", *words)
    took_s, after = time.monotonic() - begun, os.times()
    match = COPIED.search(report)
    assert match, report
    cpu_s = after.children_user + after.children_system - before.children_user - before.children_system
    return Figures(int(match[1]) / took_s, int(match[3]) / took_s, load.lines / took_s, cpu_s / load.lines * 1e6)


def _tsd(home: Path, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tsd", *words, "--data", str(home)], check=True, capture_output=True, text=True
    )
    return done.stderr


def _report(load: Load, found: dict[str, list[Figures]]) -> str:
    rows = [[name, *map(_spread, zip(*figures, strict=True))] for name, figures in found.items()]
    head = ["copy", "rows/s", "cells/s", "points/s", "CPU µs/point"]
    return (
        f"{load.lines:,} points of {load.series:,} series, start and reading back included; {machine()}. "
        "Medians (minimum–maximum); every point verified in both targets.\n\n" + table(head, rows)
    )


def _spread(figures: tuple[float, ...]) -> str:
    return spread(figures, 0 if min(figures) > 100 else 2)

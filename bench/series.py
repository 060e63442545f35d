"""What a series costs: memory while it is held, and time until a new one's point is on disk with its UIDs.

Each series sends one point, so all that is counted beyond the daemon's own is what it keeps for them: texts, UIDs, row
key parts. It is read once the window that they came in has been written.
"""

import tempfile
from pathlib import Path
from typing import NamedTuple

from bench.daemon import serving
from bench.lines import Load
from bench.peers import running_hbase
from bench.processes import usage
from bench.report import machine, publish, spread, table
from bench.sender import send

WARM_UP = Load(series=1000, points=10, connections=4, seed=3)  # of other times; what is not the series' is there then


class Figures(NamedTuple):
    """Of one run."""

    series_per_s: float
    cpu_us: float  # a series
    held_bytes: float  # a series
    peak_mib: float


def series(counts: list[int], on_hbase: bool) -> None:
    """Run it for each count and publish the report."""
    rows = []
    found = {}
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as folder:
        for count in counts:
            found[f"embedded, {count}"] = _run(count, {}, Path(folder) / f"embedded{count}")
        if on_hbase:
            with running_hbase(Path(folder) / "hbase") as hbase:
                for count in counts:
                    settings = hbase.settings(f"series{count}")
                    found[f"HBase, {count}"] = _run(count, settings, Path(folder) / f"hbase{count}")
    for name, figures in found.items():
        engine, count_text = name.split(", ")
        rows.append(
            [
                f"{int(count_text):,}",
                engine,
                spread([figures.series_per_s], 0),
                spread([figures.cpu_us], 1),
                spread([figures.held_bytes], 0),
                spread([figures.peak_mib], 0),
            ]
        )
    head = ["series", "store", "new series/s until on disk", "CPU µs/series", "bytes held/series", "peak MiB"]
    publish("series", f"One point a series, 4 connections; {machine()}.\n\n" + table(head, rows), found)


def _run(count: int, settings: dict[str, str], folder: Path) -> Figures:
    with serving(folder, settings) as daemon:
        send(WARM_UP, daemon.port, "sync")
        daemon.flush()
        before = daemon.usage()
        known = daemon.stats()["series.known"]
        load = WARM_UP.after._replace(series=count, points=1)
        sent = send(load, daemon.port, "sync")
        registered = daemon.usage()
        daemon.flush()
        daemon.await_stored(WARM_UP.lines + count)
        assert daemon.stats()["series.known"] == count, daemon.stats()
        after = usage(daemon.pid)
        new = count - known
        return Figures(
            new / (sent.end - sent.start),
            (registered.cpu_s - before.cpu_s) / new * 1e6,
            (after.now_mib - before.now_mib) * 2**20 / new,
            after.peak_mib,
        )

"""The cost of a series: memory, and time until a new series' point is on disk with its UIDs.

Each series sends one point, so the additional memory is what the daemon keeps per series: texts, UIDs, row key parts,
the newest point and the watched row. Memory is read after the window is written. The embedded store's memtables (64
MiB at most) are filled before, so that they do not count.

CPU is that of the daemon including the store's threads, measured twice. The first figure is until all points are in the
journal and all UIDs in their table. The second is until all points and the entries of the series index are written.
"""

import random
import tempfile
from pathlib import Path
from typing import NamedTuple

import click
import trio

from bench.daemon import Daemon, serving
from bench.lines import Load
from bench.peers import running_hbase
from bench.process_usage import usage
from bench.report import machine, publish, spread, table
from bench.sender import send
from tsd.daemon.settings import control_path
from tsd.store import Put
from tsd.store.remote import ControlClient, RemoteStore

WINDOW_MS = 600_000  # so that all series arrive within one window, even on a busy machine
WARM_UP = Load(series=1000, points=10, connections=4, seed=3)  # of other times; its memory does not count

MEMTABLES_MIB = 64  # the embedded store's maximum


class Figures(NamedTuple):
    """Results of one run."""

    series_per_s: float
    cpu_us: float  # per series
    stored_us: float  # CPU per series until everything is stored
    held_bytes: float  # per series
    peak_mib: float


@click.command()
@click.option(
    "--count",
    "counts",
    type=click.IntRange(min=2000),  # more than the warm-up has
    multiple=True,
    default=[100_000, 1_000_000],
    help="Series; may be repeated.",
)
@click.option("--hbase/--no-hbase", "on_hbase", default=False, help="Also on a real HBase.")
def series(counts: tuple[int, ...], on_hbase: bool) -> None:
    """New series: memory per series, and rate."""
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
                spread([figures.stored_us], 1),
                spread([figures.held_bytes], 0),
                spread([figures.peak_mib], 0),
            ]
        )
    head = [
        "series",
        "store",
        "new series/s until on disk",
        "CPU µs/series",
        "CPU µs until stored",
        "bytes held/series",
        "peak MiB",
    ]
    publish("series", f"One point a series, 4 connections; {machine()}.\n\n" + table(head, rows), found)


async def _fill_memtables(daemon: Daemon) -> None:
    """Fill the embedded store's memtables, a megabyte at a time, through a table that is not used otherwise."""
    caller = await ControlClient.connect(control_path(daemon.config))
    store = RemoteStore(caller)
    chance = random.Random(1)
    for at in range(MEMTABLES_MIB * 5 // 4):
        value = chance.randbytes(1 << 14)
        await store.put(daemon.config.tree_table, [Put(b"%d %d" % (at, n), b"t:x", value) for n in range(64)])
    await caller.aclose()


def _run(count: int, settings: dict[str, str], folder: Path) -> Figures:
    with serving(folder, {"tsd.storage.flush_interval": str(WINDOW_MS), **settings}) as daemon:
        send(WARM_UP, daemon.port, "sync")
        if not settings:
            trio.run(_fill_memtables, daemon)
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
            (after.cpu_s - before.cpu_s) / new * 1e6,
            (after.now_mib - before.now_mib) * 2**20 / new,
            after.peak_mib,
        )

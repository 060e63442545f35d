"""Points per cell, and rows of an hour that need compaction, by the length of the window.

An hour of agents that send every ten seconds is simulated in a minute: rates and windows are sixty times as fast.
Daemons with different windows write to one real HBase at the same time. Cells are counted in its tables, and rows that
need compaction by the daemons.
"""

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import click
import trio

from bench.contents import stored
from bench.daemon import Daemon, serving
from bench.lines import ROUND_S, series_text
from bench.peers import running_hbase
from bench.report import machine, publish, table

HOUR_S = 3600
SPEED = 60
GROUPS = 10  # of series: agents send at different times
LEAST_JOINED = {100: 10.0}  # points per cell, except cells at a row's ends: no cell spans two hours
ROUNDING = 0.02  # tolerance for points that just missed a window


class Figures(NamedTuple):
    """Results of one window length."""

    rows: int
    cells: int
    points: int
    inner_cells: int  # without the first and the last of each row
    inner_points: int
    wanting: int  # rows in the queue of the daemon's compactor

    @property
    def inner_joined(self) -> float:
        """Points per cell, except cells at a row's ends: a window over two hours writes two."""
        return self.inner_points / max(self.inner_cells, 1)


@click.command()
@click.option("--series", default=100, help="Series.")
@click.option("--window", "lengths_s", multiple=True, default=[1, 30, 100, 300], help="Seconds; may be repeated.")
def windows(series: int, lengths_s: tuple[int, ...]) -> None:
    """Cells and rows to compact by the length of the window: an hour simulated in a minute."""
    with tempfile.TemporaryDirectory(prefix="tsd-bench-", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder = Path(name)
        hbase = stack.enter_context(running_hbase(folder / "hbase"))
        daemons: dict[int, Daemon] = {}
        for length_s in lengths_s:
            settings = hbase.settings(f"window{length_s}")
            settings["tsd.storage.flush_interval"] = str(round(length_s * 1000 / SPEED))
            daemons[length_s] = stack.enter_context(serving(folder / str(length_s), settings))
        trio.run(_play, list(daemons.values()), series)
        found = {length_s: _figures(daemon) for length_s, daemon in daemons.items()}
    for length_s, least in LEAST_JOINED.items():
        if length_s in found and found[length_s].inner_joined < least * (1 - ROUNDING):
            raise SystemExit(f"with a window of {length_s} s: {found[length_s]}, wanted {least} points a cell")
    publish("windows", _report(found, series), {str(length_s): figures for length_s, figures in found.items()})


async def _play(daemons: Sequence[Daemon], series: int) -> None:
    """Send each daemon a point of each series every ten seconds of simulated time."""
    start_s = (int(time.time()) // HOUR_S + 1) * HOUR_S  # noqa: TID251 (an hour to come: no daemon has seen a part of it)
    begun = trio.current_time()

    async def agents(daemon: Daemon, group: int) -> None:
        names = [series_text(number) for number in range(group, series, GROUPS)]
        shift_s = ROUND_S * group // GROUPS
        async with await trio.open_tcp_stream("127.0.0.1", daemon.port) as stream:
            for at_s in range(shift_s, HOUR_S, ROUND_S):
                await trio.sleep_until(begun + at_s / SPEED)
                lines = [f"put {metric} {start_s + at_s} {at_s % 100}.5 {tags}\n" for metric, tags in names]
                await stream.send_all("".join(lines).encode())
            await stream.send_all(b"sync\n")
            assert await stream.receive_some() == b"synced %d\n" % (len(names) * HOUR_S // ROUND_S)

    async with trio.open_nursery() as nursery:
        for daemon in daemons:
            for group in range(GROUPS):
                nursery.start_soon(agents, daemon, group)


def _figures(daemon: Daemon) -> Figures:
    daemon.flush()
    wanting = daemon.stats()["compaction.queue.size"]
    contents = stored(daemon.config)
    return Figures(*contents[:5], wanting)


def _report(found: Mapping[int, Figures], series: int) -> str:
    rows = [
        [
            f"{length_s} s",
            f"{figures.cells / figures.rows:.1f}",
            f"{min(HOUR_S / length_s, HOUR_S / ROUND_S):.0f}",
            f"{figures.points / figures.cells:.2f}",
            f"{figures.inner_joined:.2f}",
            f"{figures.wanting / figures.rows:.0%}",
        ]
        for length_s, figures in found.items()
    ]
    head = [
        "window",
        "cells a row, counted in HBase",
        "windows in an hour",
        "points a cell",
        "within the hour",
        "rows to be compacted",
    ]
    return (
        f"{series} series, a point every {ROUND_S} s, an hour played {SPEED} times as fast on HBase; {machine()}.\n\n"
        + table(head, rows)
    )

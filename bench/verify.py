"""Compare the tables after a run, cell by cell, with the lines sent: results of a wrong run are invalid."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from bench.lines import Load, rounds
from tsd.codec.opentsdb.row import data_cells, points
from tsd.codec.opentsdb.rowkey import split_key
from tsd.config.loader import key_layout
from tsd.config.settings import Backend, Config
from tsd.daemon.wiring import opened_store
from tsd.store import scan


class Sums(NamedTuple):
    """Number and exact sums of points. Equal sums mean equal points here."""

    points: int
    times_s: int
    values: float


def sent(loads: Iterable[Load]) -> Sums:
    """Return the sums of the lines of these loads."""
    times: list[int] = []
    values: list[float] = []
    for load in loads:
        for connection in range(load.connections):
            for text in rounds(load, connection):
                words = text.split()
                times.extend(map(int, words[2::7]))
                values.extend(map(float, words[3::7]))
    return Sums(len(times), sum(times), math.fsum(values))


def stored(config: Config) -> Sums:
    """Return the sums of all rows of the data table. No daemon may have an embedded store open."""
    return trio.run(_stored, config)


def check(config: Config, loads: Sequence[Load]) -> None:
    """End the benchmark with status 1 if the table does not have the points sent."""
    was_sent, is_stored = sent(loads), stored(config)
    if was_sent != is_stored:
        where = Path(config.path) if config.backend is Backend.EMBEDDED else config.data_table
        raise SystemExit(f"{where}: {was_sent} were sent, {is_stored} are stored: the figures mean nothing")


async def _stored(config: Config) -> Sums:
    count, times, values = 0, 0, []
    widths = key_layout(config)
    async with opened_store(config) as store:
        async for page in scan(store, config.data_table):
            for row in page:
                base = split_key(widths, row.key).base
                for point in points(row.key, data_cells([(c.column, c.value, c.time_ms) for c in row.cells])):
                    count += 1
                    times += base + point.offset_ms // 1000
                    values.append(point.number)
    return Sums(count, times, math.fsum(values))

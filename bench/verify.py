"""What is in the tables after a run, read cell by cell, against what was sent: a figure of wrong results is none."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import trio

from bench.lines import Load, rounds
from tsd.assembly import opened_store
from tsd.codec.row import data_cells, points
from tsd.codec.rowkey import split_key
from tsd.config import Backend, Config, layout
from tsd.store import scan


class Sums(NamedTuple):
    """Of points: as the sums are exact, two sets of points with equal ones are as good as equal here."""

    points: int
    times_s: int
    values: float


def sent(loads: Iterable[Load]) -> Sums:
    """Of the lines of these loads."""
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
    """Of all rows of the data table. No daemon may have an embedded store open."""
    return trio.run(_stored, config)


def check(config: Config, loads: Sequence[Load]) -> None:
    """Ends the benchmark with status 1 where the table does not hold what was sent."""
    was_sent, is_stored = sent(loads), stored(config)
    if was_sent != is_stored:
        where = Path(config.path) if config.backend is Backend.EMBEDDED else config.data_table
        raise SystemExit(f"{where}: {was_sent} were sent, {is_stored} are stored: the figures mean nothing")


async def _stored(config: Config) -> Sums:
    count, times, values = 0, 0, []
    widths = layout(config)
    async with opened_store(config) as store:
        async for page in scan(store, config.data_table):
            for row in page:
                base = split_key(widths, row.key).base
                for point in points(row.key, data_cells([(c.column, c.value, c.time_ms) for c in row.cells])):
                    count += 1
                    times += base + point.offset_ms // 1000
                    values.append(point.number)
    return Sums(count, times, math.fsum(values))

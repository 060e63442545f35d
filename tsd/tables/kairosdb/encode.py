"""Points of a window → batches of bound points, and the index rows that they need. Pure.

Of several points of a series at one time and of one type, the last to arrive is kept. A whole number, a double and a
text at one time are all kept, as in KairosDB. The last number gets a later write timestamp, so that a reader that wants
one number for each time finds it.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tsd.codec.kairosdb.keys import DOUBLE, LONG, DataRow
from tsd.codec.kairosdb.rows import RowSpec
from tsd.codec.kairosdb.values import encode_doubles, encode_longs
from tsd.codec.points import Bool, Columns, Int64, wide_values
from tsd.tables.kairosdb.index import Expiries, Wanted, longest, split_key
from tsd.tables.kairosdb.points import LIMITS, PutBatch, RowPut, bound_batches
from tsd.tables.kairosdb.series import TTL_BYTES, ttl_of
from tsd.tables.writing import SeriesKeys, SeriesLookup

try:
    from tsd.tables.kairosdb import _encode
except ImportError:  # installed without a C compiler
    HAS_ENCODE_LOOP = False
else:
    HAS_ENCODE_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

STAMPS = 2  # of a window: for points that others at the same time replace, and for all others
LOOP_POINTS = 4_000  # encoded between two releases of the GIL: half a millisecond


class Moment(NamedTuple):
    """What decides which index rows are missing, and how long points may live."""

    known: dict[bytes, Expiries]  # of index rows
    now_s: int
    most_ttl_s: int  # that Cassandra accepts now


class Encoded(NamedTuple):
    """Points of a slice, the index rows that must be written before, and where all their index rows are."""

    batches: list[PutBatch]
    wanted: Wanted
    places: set[bytes]


class SortedPoints(NamedTuple):
    """Points of a window by series, type and time, each place once."""

    series: SeriesKeys
    numbers: Int64  # of each point's series, in `series`
    times: Int64
    floats: Bool
    bits: Int64
    replaced: Bool  # by a point of another type at the same time

    def at(self, part: slice) -> "SortedPoints":
        """Return some of the points."""
        _, numbers, times, floats, bits, replaced = self
        return SortedPoints(self.series, numbers[part], times[part], floats[part], bits[part], replaced[part])


def sort_points(points: Columns, series: SeriesLookup, spec: RowSpec) -> SortedPoints:
    """Return a window's points in the order in which they are put."""
    present, numbers = np.unique(points.series, return_inverse=True)
    keys = series.keys(present)
    times = points.instants >> 1
    bits, floats = wide_values(points)
    shared = _shared_rows(keys)
    if shared is None and len(present) == len(numbers):  # a point of each series: none replaces another
        order, replaced = np.argsort(numbers), np.zeros(len(numbers), np.bool_)
    else:
        rows = numbers if shared is None else shared[numbers]
        order, replaced = _order(rows, floats, spec.read_times(times))
    return SortedPoints(keys, numbers[order], times[order], floats[order], bits[order], replaced)


def _shared_rows(keys: SeriesKeys) -> Int64 | None:
    """Return for each series the first one with the same rows, None if each has rows of its own. Times to live are no
    part of a row."""
    if HAS_ENCODE_LOOP:
        found = _encode.first_rows(keys.joined, keys.bounds)
        return None if found is None else np.frombuffer(found, np.int64)
    firsts: dict[tuple[bytes, bytes], int] = {}
    shared = [firsts.setdefault((key.head, key.tail[TTL_BYTES:]), at) for at, key in enumerate(keys)]
    return np.array(shared, np.int64) if len(firsts) < len(shared) else None


def _order(rows: Int64, floats: Bool, slots: Int64) -> tuple[Int64, Bool]:
    """Return the points that are kept, by row, type and time, and which of them others at the same time replace.
    `slots` are equal for times of one column."""
    order = np.lexsort((slots, floats, rows))
    last = np.ones(len(order), np.bool_)
    for values in (slots, floats, rows):
        ordered = values[order]
        last[:-1] &= ordered[1:] == ordered[:-1]
    last[:-1] = ~last[:-1]
    order = order[last]
    by_time = np.lexsort((order, slots[order], rows[order]))
    arrived = order[by_time]
    again = (slots[arrived][1:] == slots[arrived][:-1]) & (rows[arrived][1:] == rows[arrived][:-1])
    replaced = np.zeros(len(order), np.bool_)
    replaced[by_time[:-1][again]] = True
    return order, replaced


def encode_points(
    points: SortedPoints, spec: RowSpec, stamp_ms: int, moment: Moment, *, compiled: bool = HAS_ENCODE_LOOP
) -> Encoded:
    """Encode a part of a window. `stamp_ms` is the first of STAMPS write timestamps. Not `compiled`: use the Python
    code, which returns all index rows."""
    if not compiled:
        return encode_rows(list(_rows(points, spec, stamp_ms)), moment)
    found = Encoded([], {}, set())
    for start in range(0, len(points.times), LOOP_POINTS):
        part = points.at(slice(start, start + LOOP_POINTS))
        row_times = spec.row_times(part.times)
        batches, index, places = _encode.encode_rows(
            part.series.joined,
            part.series.bounds,
            part.numbers,
            row_times,
            spec.column_numbers(part.times - row_times),
            part.floats.view(np.uint8),
            part.bits,
            stamp_ms + (~part.replaced).astype(np.int64),
            moment.known,
            moment.now_s,
            moment.most_ttl_s,
            LIMITS,
        )
        found.batches.extend(PutBatch(*batch) for batch in batches)
        for place, lives in index.items():
            need(found.wanted.setdefault(place, {}), lives)
        found.places.update(places)
    return found


def encode_rows(rows: Iterable[RowPut], moment: Moment) -> Encoded:
    """Encode points of rows."""
    index: dict[bytes, dict[bytes, int]] = {}
    puts = []
    for row in rows:
        place, series = split_key(row.key)
        need(index.setdefault(place, {}), {series: row.ttl_s})
        puts.append(row._replace(ttl_s=min(row.ttl_s, moment.most_ttl_s)))
    return Encoded(list(bound_batches(puts, LIMITS)), index, set(index))


def need(lives: dict[bytes, int], others: Mapping[bytes, int]) -> None:
    """Note that index rows must live as long as those of `others`, too."""
    for series, ttl_s in others.items():
        lives[series] = longest((ttl_s, lives.get(series, ttl_s)))


def _rows(points: SortedPoints, spec: RowSpec, stamp_ms: int) -> Iterator[RowPut]:
    """Yield the points of each row."""
    numbers, times, floats = points.numbers, points.times, points.floats
    rows = spec.row_times(times)
    columns = spec.columns(times - rows, 0)
    values: list[bytes] = [b""] * len(times)
    for chosen, encode in ((floats, encode_doubles), (~floats, encode_longs)):
        for at, value in zip(np.flatnonzero(chosen).tolist(), encode(points.bits[chosen]), strict=True):
            values[at] = value
    stamps = (stamp_ms + ~points.replaced).tolist()
    starts = np.flatnonzero(
        np.diff(numbers, prepend=-1).astype(np.bool_)
        | np.diff(rows, prepend=rows[:1] - 1).astype(np.bool_)
        | np.diff(floats.view(np.int8), prepend=2).astype(np.bool_)
    ).tolist()
    series = list(points.series)
    for start, end in zip(starts, [*starts[1:], len(times)], strict=True):
        key = series[numbers[start]]
        row = DataRow(key.head.decode(), int(rows[start]), DOUBLE if floats[start] else LONG, key.tail[TTL_BYTES:])
        yield RowPut(row.encode(), columns[start:end], values[start:end], ttl_of(key), stamps[start:end])

"""Rollup cells as columns: many cells are decoded together, and stored again as values that a query reads at once.

Cells of one row of a rollup table are a value of 8 bytes each, which takes longer to read than to add up. A store with
derived values also keeps them as columns: those of all rows of one metric and base time, in chunks of some rows. A
chunk has a directory with the rows, and for each aggregator the offsets and the values.
"""

import struct
from collections.abc import Mapping, Sequence
from itertools import compress, pairwise
from operator import ne
from typing import NamedTuple

import numpy as np

from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Interval, RollupConfig
from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout
from tsd.codec.points import Batch, Bool, Int64
from tsd.codec.text import FLOAT, LENGTH
from tsd.store import CellPage
from tsd.tables.opentsdb.rollup_sums import AGGREGATORS, Sums
from tsd.tables.reading import RollupPage

DIRECTORY = 0xFF  # kind of a derived value; the others are the ids of aggregators, of 7 bits
VALUE_BYTES = 8  # the only length that is decoded here
_COLUMN_BYTES = len(COLUMN) + 3
_HEAD = struct.Struct("<II")  # rows; bytes of each row's pairs, 0 if they differ
_COUNT = struct.Struct("<I")  # points of an aggregator in a chunk


class AggregatorCells(NamedTuple):
    """The cells of one aggregator in some rows, in order."""

    rows: Int64  # of each cell, ascending
    offsets: Int64  # of each cell: intervals after the base time, ascending in a row
    bits: Int64
    floats: Bool

    def has_places_of(self, other: "AggregatorCells") -> bool:
        """Return whether the cells are of the same rows and intervals as those of another aggregator."""
        return np.array_equal(self.rows, other.rows) and np.array_equal(self.offsets, other.offsets)


class RollupRows(NamedTuple):
    """The rows of a page, and its cells by aggregator."""

    keys: Sequence[bytes]
    kinds: Mapping[int, AggregatorCells]


def rows_of(page: CellPage, wanted: Bool | None = None, kinds: Sequence[int] | None = None) -> RollupRows | None:
    """Return the cells of a page by column: those of `wanted` rows and of some kinds. None if one has another form:
    an aggregator's name, a value that has not 8 bytes, or two values for one interval."""
    columns = page.columns
    if set(map(len, columns)) - {_COLUMN_BYTES}:
        return None
    names = np.frombuffer(b"".join(columns), np.uint8).reshape(-1, _COLUMN_BYTES)
    words = names[:, -2].astype(np.int64) << 8 | names[:, -1]
    ids = names[:, len(COLUMN)]
    begins = row_begins(page.keys)
    row_of = np.cumsum(begins) - 1
    found: dict[int, AggregatorCells] = {}
    for kind in np.unique(ids).tolist() if kinds is None else kinds:
        chosen = ids == kind
        if wanted is not None:
            chosen &= wanted[row_of]
        at = np.flatnonzero(chosen)
        values = _values(page, at)
        if values is None or not (words[at] & LENGTH == VALUE_BYTES - 1).all():
            return None
        one = AggregatorCells(row_of[at], words[at] >> 4, values, (words[at] & FLOAT) != 0)
        if ((one.rows[1:] == one.rows[:-1]) & (one.offsets[1:] == one.offsets[:-1])).any():
            return None
        found[kind] = one
    return RollupRows(list(compress(page.keys, begins.tolist())), found)


def row_begins(keys: Sequence[bytes]) -> Bool:
    """Return for each cell whether it is the first of its row."""
    begins = np.ones(len(keys), np.bool_)
    if len(keys) > 1:
        begins[1:] = np.fromiter(map(ne, keys[1:], keys), np.bool_, len(keys) - 1)
    return begins


def _values(page: CellPage, at: Int64) -> Int64 | None:
    """Return the bits of some values; None if one has not 8 bytes."""
    size = page.ahead + VALUE_BYTES
    values = page.values if len(at) == len(page.values) else [page.values[place] for place in at.tolist()]
    if set(map(len, values)) - {size}:
        return None
    table = np.frombuffer(b"".join(values), np.uint8).reshape(-1, size)[:, page.ahead :]
    return np.ascontiguousarray(table).view(">i8").reshape(-1).astype(np.int64)


def batch_of(columns: AggregatorCells, numbers: Int64, bases_s: Int64, interval: Interval) -> Batch:
    """Return the points of one aggregator. `numbers` and `bases_s` have the series and the base time of each row."""
    firsts = np.flatnonzero(np.diff(columns.rows, prepend=-1))
    times = (bases_s[columns.rows] + columns.offsets * interval.seconds) * 1000
    return Batch(
        numbers[columns.rows[firsts]].astype(np.int32),
        np.append(firsts, len(columns.rows)).astype(np.int64),
        times,
        columns.bits,
        columns.floats,
    )


def bases_of(keys: Sequence[bytes], layout: KeyLayout) -> Int64:
    """Return the base time of each row."""
    joined = b"".join([key[layout.metric_end : layout.pairs_start] for key in keys])
    return np.frombuffer(joined, ">u4").astype(np.int64)


def encode_chunk(page: CellPage, layout: KeyLayout, number: int) -> dict[bytes, bytes] | None:
    """Return the derived values of a page of whole rows with one base time, by name. None if a cell has another form.
    `number` is the number of the chunk."""
    found = rows_of(page)
    if found is None:
        return None
    return _encoded([key[layout.pairs_start :] for key in found.keys], found.kinds, number)


def encode_sums(
    sums: Sums, interval: Interval, config: RollupConfig, base_s: int, tails: Sequence[bytes]
) -> dict[bytes, bytes]:
    """Return the derived values, by name, of rows of one salt, metric and base time. The rows have the cells of `sums`
    and no others. `sums` are in order of rows (see `row_order`); `tails` are the tag pairs by number of the series."""
    first = np.flatnonzero(np.diff(sums.series, prepend=-1))
    rows = np.repeat(np.arange(len(first)), np.diff(first, append=len(sums.series)))
    offsets = (sums.times_s - base_s) // interval.seconds
    kinds = {
        config.ids[name]: AggregatorCells(rows, offsets, values.view(np.int64), np.full(len(rows), name != "count"))
        for name, values in zip(AGGREGATORS, sums.aggregates, strict=True)
        if name in config.ids
    }
    return _encoded([tails[number] for number in sums.series[first].tolist()], dict(sorted(kinds.items())), 0)


def _encoded(series_pairs: Sequence[bytes], kinds: Mapping[int, AggregatorCells], number: int) -> dict[bytes, bytes]:
    """Return the values of a chunk: its rows by their tag pairs, and their cells by aggregator."""
    widths = set(map(len, series_pairs))
    head = _HEAD.pack(len(series_pairs), widths.pop() if len(widths) == 1 else 0)
    sizes = b""
    if head[_HEAD.size - 4 :] == bytes(4):
        sizes = np.fromiter(map(len, series_pairs), "<u4", len(series_pairs)).tobytes()
    chunk = number.to_bytes(2, "big")
    values = {bytes((DIRECTORY,)) + chunk: head + sizes + b"".join(series_pairs)}
    for kind, one in kinds.items():
        values[bytes((kind,)) + chunk] = b"".join(
            (
                _COUNT.pack(len(one.rows)),
                one.bits.astype("<i8").tobytes(),
                one.rows.astype("<u4").tobytes(),
                one.offsets.astype("<u2").tobytes(),
                np.packbits(one.floats).tobytes(),
            )
        )
    return values


class DerivedRollups:
    """The derived values of one metric and base time: EncodedPage."""

    def __init__(
        self,
        values: Mapping[bytes, bytes],
        prefix: bytes,
        kinds: Sequence[int],
        interval: Interval,
        numbers: Mapping[bytes, int],
    ) -> None:
        """`numbers` has each series of the page by its pairs when it is decoded."""
        self._base_s = int.from_bytes(prefix[-BASE_BYTES:], "big")
        self._kinds, self._interval, self._numbers = kinds, interval, numbers
        self._values = values
        self._chunks = [(name[1:], _pairs(value)) for name, value in sorted(values.items()) if name[0] == DIRECTORY]
        self.cells = sum(map(len, values.values())) // VALUE_BYTES

    def series(self) -> dict[bytes, None]:
        """Return the distinct series, by their tag pairs, in order of rows."""
        return dict.fromkeys(pairs for _, every in self._chunks for pairs in every)

    def decode(self) -> RollupPage:
        """Return the points of matching series."""
        every = [pairs for _, some in self._chunks for pairs in some]
        numbers = np.fromiter(map(self._numbers.__getitem__, every), np.int64, len(every))
        bases = np.full(len(every), self._base_s, np.int64)
        batches: list[Batch] = []
        first: AggregatorCells | None = None
        for kind in self._kinds:
            columns = _of_rows(self._columns(kind), numbers >= 0)
            if first is not None and columns.has_places_of(first):
                batches.append(batches[0]._replace(bits=columns.bits, floats=columns.floats))
                continue
            first = first or columns
            batches.append(batch_of(columns, numbers, bases, self._interval))
        size = sum(len(batch.times) for batch in batches) * (VALUE_BYTES + _COLUMN_BYTES)
        return RollupPage(batches, len(every), size, 0, ())

    def _columns(self, kind: int) -> AggregatorCells:
        """Return the cells of one aggregator in all chunks."""
        parts, row = [], 0
        for chunk, series_pairs in self._chunks:
            value = self._values.get(bytes((kind,)) + chunk)
            if value is not None:
                one = _decoded(value)
                parts.append(one._replace(rows=one.rows + row))
            row += len(series_pairs)
        if len(parts) == 1:
            return parts[0]
        none = np.empty(0, np.int64)
        return AggregatorCells(
            np.concatenate([none, *(part.rows for part in parts)]),
            np.concatenate([none, *(part.offsets for part in parts)]),
            np.concatenate([none, *(part.bits for part in parts)]),
            np.concatenate([np.empty(0, np.bool_), *(part.floats for part in parts)]),
        )


def _of_rows(columns: AggregatorCells, wanted: Bool) -> AggregatorCells:
    """Return the cells of some rows."""
    if wanted.all():
        return columns
    chosen = wanted[columns.rows]
    return AggregatorCells(columns.rows[chosen], columns.offsets[chosen], columns.bits[chosen], columns.floats[chosen])


def _decoded(value: bytes) -> AggregatorCells:
    """Return the cells of one aggregator in a chunk."""
    [count] = _COUNT.unpack_from(value)
    at = _COUNT.size
    bits = np.frombuffer(value, "<i8", count, at).astype(np.int64, copy=False)
    at += 8 * count
    rows = np.frombuffer(value, "<u4", count, at).astype(np.int64)
    at += 4 * count
    offsets = np.frombuffer(value, "<u2", count, at).astype(np.int64)
    floats = np.unpackbits(np.frombuffer(value, np.uint8, -1, at + 2 * count), count=count).view(np.bool_)
    return AggregatorCells(rows, offsets, bits, floats)


def _pairs(value: bytes) -> list[bytes]:
    """Return the tag pairs of each row of a chunk."""
    count, width = _HEAD.unpack_from(value)
    at = _HEAD.size
    if width:
        return [value[start : start + width] for start in range(at, at + count * width, width)]
    ends = np.cumsum(np.frombuffer(value, "<u4", count, at)) + at + 4 * count
    return [value[start:end] for start, end in pairwise([at + 4 * count, *ends.tolist()])]

"""Decodes the cells of rollup tables and of histograms (FORMATS.md §8, §9)."""

from collections.abc import Mapping
from itertools import compress
from typing import NamedTuple

import numpy as np

from tsd.codec.opentsdb.cell import COLUMN, READABLE
from tsd.codec.opentsdb.histogram import HISTOGRAM, decode_histogram, histogram_offset_ms, split_value
from tsd.codec.opentsdb.rollup import Interval
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Batch, Histogram
from tsd.codec.text import FLOAT, LENGTH, decode_number
from tsd.errors import CorruptRow
from tsd.store import CellPage
from tsd.tables.opentsdb.decode import WARNINGS
from tsd.tables.opentsdb.rollup_columns import VALUE_BYTES, bases_of, batch_of, row_begins, rows_of
from tsd.tables.reading import UNWANTED, HistogramPage, HistogramPoint, RollupPage

_FLAGS = FLOAT | LENGTH
_HISTOGRAM_COLUMN = COLUMN + HISTOGRAM


class RollupColumns(NamedTuple):
    """Which cells of a rollup table are read."""

    interval: Interval
    starts: tuple[tuple[bytes, ...], ...]  # for each aggregator, the possible prefixes of its columns


class _Counts:
    """Size, duplicates and warnings of a page."""

    def __init__(self) -> None:
        self.size = 0
        self.duplicates = 0
        self.warnings: list[str] = []


def decode_rollups(
    numbers: Mapping[bytes, int], layout: KeyLayout, columns: RollupColumns, page: CellPage
) -> RollupPage:
    """Decode a page of a rollup table. `numbers` has the numbers of series by tag pairs."""
    found = _decode_columns(numbers, layout, columns, page)
    if found is not None:
        return found
    counts = _Counts()
    batches = [_rollup_batch(page, numbers, layout, columns.interval, starts, counts) for starts in columns.starts]
    return RollupPage(batches, len(set(page.keys)), counts.size, counts.duplicates, counts.warnings)


def _decode_columns(
    numbers: Mapping[bytes, int], layout: KeyLayout, columns: RollupColumns, page: CellPage
) -> RollupPage | None:
    """Decode all cells of a page together; None if one has an unusual form."""
    keys = list(compress(page.keys, row_begins(page.keys).tolist()))
    series = np.fromiter((numbers[key[layout.pairs_start :]] for key in keys), np.int64, len(keys))
    kinds = [starts[0][len(COLUMN)] for starts in columns.starts]
    rows = rows_of(page, series != UNWANTED, kinds)
    if rows is None:
        return None
    bases = bases_of(keys, layout)
    batches = [batch_of(rows.kinds[kind], series, bases, columns.interval) for kind in kinds]
    size = sum(len(batch.times) for batch in batches) * (len(COLUMN) + 3 + VALUE_BYTES)
    return RollupPage(batches, len(keys), size, 0, ())


def _rollup_batch(
    page: CellPage,
    numbers_of: Mapping[bytes, int],
    layout: KeyLayout,
    interval: Interval,
    starts: tuple[bytes, ...],
    counts: _Counts,
) -> Batch:
    """Return the points of one aggregator, row by row. Of several cells for one interval the newest is used."""
    series: list[int] = []
    row_starts: list[int] = []
    times: list[int] = []
    numbers: list[int | float] = []
    row = b""
    newest: dict[int, tuple[int, int | float]] = {}  # offset → time of writing, and value

    def close() -> None:
        base = int.from_bytes(row[layout.metric_end : layout.pairs_start], "big")
        series.append(numbers_of[row[layout.pairs_start :]])
        row_starts.append(len(times))
        for offset in sorted(newest):
            times.append((base + offset * interval.seconds) * 1000)
            numbers.append(newest[offset][1])
        newest.clear()

    for at, (key, column) in enumerate(zip(page.keys, page.columns, strict=True)):
        if key != row:
            if newest:
                close()
            row = key
        if column[:-2] not in starts or numbers_of[key[layout.pairs_start :]] == UNWANTED:
            continue
        cell = page.cell(at)
        number = int.from_bytes(column[-2:], "big")
        try:
            value = _number(number & _FLAGS, cell.value)
        except ValueError as exc:
            if len(counts.warnings) < WARNINGS:
                counts.warnings.append(f"rollup {column.hex()} in row {key.hex()}: {exc}")
            continue
        counts.size += len(cell.column) + len(cell.value)
        before = newest.get(number >> 4)
        counts.duplicates += before is not None
        if before is None or cell.time_ms >= before[0]:
            newest[number >> 4] = cell.time_ms, value
    if newest:
        close()
    return _points(series, [*row_starts, len(times)], times, numbers)


def _number(flags: int, value: bytes) -> int | float:
    if flags not in READABLE or len(value) != (flags & LENGTH) + 1:
        raise ValueError(f"flags {flags} and {len(value)} bytes are not a valid number")
    return decode_number(flags, value)


def _points(series: list[int], starts: list[int], times: list[int], numbers: list[int | float]) -> Batch:
    floats = np.fromiter((isinstance(number, float) for number in numbers), np.bool_, len(numbers))
    integers = np.fromiter((0 if isinstance(one, float) else one for one in numbers), np.int64, len(numbers))
    doubles = np.fromiter((float(one) for one in numbers), np.float64, len(numbers))
    return Batch(
        np.array(series, np.int32),
        np.array(starts, np.int64),
        np.array(times, np.int64),
        np.where(floats, doubles.view(np.int64), integers),
        floats,
    )


class HistogramFormat(NamedTuple):
    """How histograms are stored."""

    layout: KeyLayout
    codec_id: int  # of simple histograms


def decode_histograms(numbers: Mapping[bytes, int], form: HistogramFormat, page: CellPage) -> HistogramPage:
    """Decode the histograms of a page of raw rows. `numbers` has the numbers of series by tag pairs."""
    layout = form.layout
    wanted = [at for at, key in enumerate(page.keys) if numbers[key[layout.pairs_start :]] != UNWANTED]
    found: list[HistogramPoint] = []
    warnings: list[str] = []
    size = 0
    for at in wanted:
        key, (column, value, _) = page.keys[at], page.cell(at)
        size += len(column) + len(value)
        if not column.startswith(_HISTOGRAM_COLUMN) or not len(column) & 1:
            continue
        base = int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")
        try:
            time_ms = base * 1000 + histogram_offset_ms(column[len(COLUMN) :])
            histogram = _histogram(value, form.codec_id)
        except CorruptRow as exc:
            if len(warnings) < WARNINGS:
                warnings.append(f"histogram {column.hex()} in row {key.hex()}: {exc}")
            continue
        found.append(HistogramPoint(numbers[key[layout.pairs_start :]], time_ms, histogram))
    return HistogramPage(found, len(set(page.keys)), len({page.keys[at] for at in wanted}), size, warnings)


def _histogram(value: bytes, codec_id: int) -> Histogram:
    """Return the histogram of a cell. Raise CorruptRow."""
    found, payload = split_value(value)
    if found != codec_id:
        raise CorruptRow(f"no codec has the id {found}")
    return decode_histogram(payload)

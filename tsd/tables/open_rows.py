"""Rows of open points, as pages of a query: alone, or merged into the stored rows of their hour."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np

from tsd.codec.packing.points import continued_buckets
from tsd.codec.points import (
    Batch,
    Bool,
    Columns,
    Int32,
    Int64,
    have_same_times,
    merged_rows,
    rows_of_columns,
    spread,
    starts_of,
    wide_values,
)
from tsd.codec.putline import HOUR_MS, HOUR_S
from tsd.codec.text import LENGTH
from tsd.tables.reading import (
    BucketPage,
    EncodedPage,
    HourTable,
    NumberingPage,
    PointPage,
    ScanRange,
    StoredPage,
    TablePage,
)

PAGE_POINTS = 200_000
POINTS_OF_CELL = 64  # that take as long as a stored cell
COLUMN_BYTES = 2  # of a point's qualifier, for statistics


class OpenRowsOfHour(NumberingPage):
    """Rows of open points in one hour, by series."""

    def __init__(self, batch: Batch, sizes: Int64) -> None:
        """`sizes`: bytes of each row as it will be stored, roughly."""
        self.batch = batch
        self.sizes = sizes
        self.cells = -(-len(batch.times) // POINTS_OF_CELL)  # they are decoded already

    def at(self, rows: Bool) -> "OpenRowsOfHour":
        """Return some of the rows."""
        if rows.all():
            return self
        return OpenRowsOfHour(some_rows(self.batch, rows), self.sizes[rows])

    @property
    def held(self) -> int:
        """Bytes of memory."""
        return sum([array.nbytes for array in (*self.batch, self.sizes)])

    def has_any(self, series: Int32) -> bool:
        """Return whether some series have rows: `OpenRows`."""
        return bool(are_among(self.batch.series, series).any())

    def among(self, series: Int32) -> "OpenRowsOfHour":
        """Return the rows of some series: `OpenRows`."""
        return self.at(are_among(self.batch.series, series))

    def without(self, series: Int32) -> "OpenRowsOfHour":
        """Return the rows of all other series."""
        return self.at(~are_among(self.batch.series, series))

    def pages(self) -> Iterator["OpenRowsOfHour"]:
        """Split the rows into pages of about PAGE_POINTS points."""
        if len(self.batch.times) <= PAGE_POINTS:
            yield self
            return
        page = (self.batch.starts[1:] - 1) // PAGE_POINTS
        bounds = [0, *(np.flatnonzero(page[1:] != page[:-1]) + 1).tolist(), len(page)]
        for first, stop in pairwise(bounds):
            yield OpenRowsOfHour(self.batch.between(first, stop), self.sizes[first:stop])

    def series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def new_series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def decode_tables(self) -> TablePage | None:
        """Return the rows as a table, see `NumberingPage`."""
        if not len(self.batch.times) or not have_same_times(self.batch):
            return None
        return TablePage([_table_of(self.batch)], len(self.sizes), int(self.sizes.sum()), self.held)

    def decode(self) -> PointPage:
        """Return the rows as a page."""
        return PointPage(self.batch, len(self.sizes), int(self.sizes.sum()), (), (), 0, None)


class OpenRows(Protocol):
    """Rows of open points in one hour."""

    @property
    def cells(self) -> int:
        """How many stored cells take as long to decode as it takes to find rows."""
        ...

    def has_any(self, series: Int32) -> bool:
        """Return whether some series, given by numbers from 0 on, have rows."""
        ...

    def among(self, series: Int32) -> OpenRowsOfHour:
        """Return the rows of some series. May be called in a thread."""
        ...


class LaterRows(NumberingPage):
    """Rows of open points in one hour that are made when they are decoded."""

    def __init__(self, make: Callable[[], OpenRowsOfHour], points: int) -> None:
        """`points`: about how many they have."""
        self._make = make
        self.cells = -(-points // POINTS_OF_CELL)

    def series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def new_series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def decode_tables(self) -> TablePage | None:
        """Return the rows as a table, see `NumberingPage`."""
        found = self._make().decode_tables()
        return None if found is None else found._replace(held=0)  # a page that is kept holds no points

    def decode(self) -> PointPage:
        """Return the rows as a page."""
        return self._make().decode()


class DecodedPage:
    """A page of stored rows whose series are numbered: EncodedPage."""

    def __init__(self, page: PointPage) -> None:
        self._page = page
        self.cells = 0  # none is left to decode

    def series(self) -> Iterable[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def decode(self) -> PointPage:
        """Return the page."""
        return self._page


def split_rows(page: PointPage, spans: Sequence[ScanRange]) -> list[PointPage]:
    """Split a page of rows that have points by their hours, one page a span. The first one has what is counted."""
    series, starts, times, _, _ = page.batch
    has_points = starts[1:] > starts[:-1]
    first_ms = np.full(len(series), -1, np.int64)
    first_ms[has_points] = times[starts[:-1][has_points]]
    pages: list[PointPage] = []
    for span in spans:
        batch = some_rows(page.batch, (first_ms >= span.start_ms) & (first_ms < span.stop_ms))
        pages.append(PointPage(batch, 0, 0, (), (), 0, None) if pages else page._replace(batch=batch, rows=None))
    return pages


class MergedStoredPage(NumberingPage):
    """A page of stored rows of one hour, with the open points of the same rows added: as `MergedPage`, but the rows may
    have a short form."""

    def __init__(self, page: StoredPage, rows: OpenRows) -> None:
        self._page = page
        self._rows = rows
        self.cells = page.cells + rows.cells

    @property
    def found(self) -> Int32:
        """Numbers of matching series of the stored page, once all have a number."""
        numbers = self._page.numbers()
        return numbers[numbers >= 0]

    def series(self) -> Iterable[bytes]:
        """Return the distinct series of the stored page."""
        return self._page.series()

    def new_series(self) -> Sequence[bytes]:
        """Return the series without a number, see `NumberingPage`."""
        return self._page.new_series()

    def decode_tables(self) -> TablePage | None:
        """Return the merged rows as a table, see `NumberingPage`."""
        if not self._rows.has_any(self.found):
            return self._page.decode_tables()
        page = self._page.decode()
        if page.annotations or page.warnings or page.duplicates:
            return None
        merged, are_alike = _with_rows(page, self._rows)
        if not are_alike or not len(merged.batch.times):
            return None
        return TablePage([_table_of(merged.batch)], merged.rows_read, merged.size, self._page.held)

    def decode_buckets(self, interval_ms: int, function: int) -> list[BucketPage] | None:
        """Return the rows downsampled, if no point is added before a stored one of its row, see `NumberingPage`."""
        found = self._page.decode_buckets(interval_ms, function)
        if found is None or not self._rows.has_any(self.found):
            return found
        if len(found) > 1:  # a row may be in two of the parts
            return None
        [page] = found
        added = self._rows.among(page.series)
        added_of = _added_of(page.series, added.batch.series)
        buckets = continued_buckets(page.buckets, added.batch, added_of, interval_ms, function)
        if buckets is None:
            return None
        return [page._replace(buckets=buckets, size=page.size + int(added.sizes.sum()), rows=None)]

    def decode(self) -> PointPage:
        """Decode the stored rows and merge both."""
        return _with_rows(self._page.decode(), self._rows)[0]


class MergedPage:
    """A page of stored rows of one hour, with the open points of the same rows added."""

    def __init__(self, page: EncodedPage[PointPage], rows: OpenRows) -> None:
        self._page = page
        self._rows = rows
        self.cells = page.cells + rows.cells
        self.found: Int32 = np.empty(0, np.int32)  # series of the page, once it is decoded

    def series(self) -> Iterable[bytes]:
        """Return the distinct series of the stored page."""
        return self._page.series()

    def decode(self) -> PointPage:
        """Decode the stored rows and merge both."""
        page = self._page.decode()
        self.found = page.batch.series
        return _with_rows(page, self._rows)[0]


def _with_rows(page: PointPage, rows: OpenRows) -> tuple[PointPage, bool]:
    """Return a page of stored rows of one hour with the open points of the same rows added, and whether points were
    added and all rows have the same times."""
    stored = page.batch
    added = rows.among(stored.series)
    if not len(added.sizes):
        return page._replace(rows=None), False
    batch, are_alike = merged_rows(stored, added.batch, _added_of(stored.series, added.batch.series))
    return page._replace(batch=batch, size=page.size + int(added.sizes.sum()), rows=None), are_alike


def _added_of(stored: Int32, added: Int32) -> Int64:
    """Return the index of each stored row's added row, given the series of both: -1 where there is none."""
    row_of = np.zeros(int(stored.max(initial=0)) + 1, np.int64)
    row_of[stored] = np.arange(len(stored))
    added_of = np.full(len(stored), -1, np.int64)
    added_of[row_of[added]] = np.arange(len(added))
    return added_of


def _table_of(batch: Batch) -> HourTable:
    """Return rows of one hour that have points at the same times as a table."""
    return HourTable.of(batch, int(batch.times[0]) // HOUR_MS * HOUR_S)


def are_among(series: Int32, found: Int32) -> Bool:
    """Return which of some numbers of series are among others; both are small integers from 0 on.

    >>> are_among(np.array([0, 3, 5]), np.array([3, 4, 3])).tolist()
    [False, True, False]
    """
    if not len(series) or not len(found):
        return np.zeros(len(series), np.bool_)
    marked = np.zeros(max(int(series.max()), int(found.max())) + 1, np.bool_)
    marked[found] = True
    return marked[series]


def rows_of(columns: Columns) -> OpenRowsOfHour:
    """Return points of one hour as rows. Of equal times the last to arrive counts."""
    if (only := _only_row(columns)) is not None:
        return only
    return rows_of_batch(*rows_of_columns(columns))


def rows_of_batch(batch: Batch, value_sizes: Int64) -> OpenRowsOfHour:
    """Return rows whose values take `value_sizes` bytes."""
    return OpenRowsOfHour(batch, value_sizes + np.diff(batch.starts) * COLUMN_BYTES)


def _only_row(columns: Columns) -> OpenRowsOfHour | None:
    """Return points of one series that ascend in time as a row, with fewer steps; None for others."""
    series, count = columns.series, len(columns.series)
    if not count or series[0] != series[-1] or np.count_nonzero(series == series[0]) < count:
        return None
    times = columns.instants >> 1
    if np.count_nonzero(times[1:] > times[:-1]) < count - 1:
        return None
    size = int(np.add.reduce(columns.flags & LENGTH, dtype=np.int64)) + count * (1 + COLUMN_BYTES)
    bounds = np.array((0, count), np.int64)
    return OpenRowsOfHour(Batch(series[:1], bounds, times, *wide_values(columns)), np.array((size,), np.int64))


def joined_rows(parts: Sequence[OpenRowsOfHour]) -> OpenRowsOfHour:
    """Return the rows of one or more parts, which have no series in common, part after part."""
    if len(parts) == 1:
        return parts[0]
    batches = [part.batch for part in parts]
    counts = np.concatenate([np.diff(batch.starts) for batch in batches])
    starts = starts_of(counts)
    series, _, times, bits, floats = map(np.concatenate, zip(*batches, strict=True))
    return OpenRowsOfHour(Batch(series, starts, times, bits, floats), np.concatenate([part.sizes for part in parts]))


def in_order(parts: Sequence[OpenRowsOfHour]) -> Iterator[OpenRowsOfHour]:
    """Yield the rows of parts, which have no series in common, by the numbers of their series, in pages."""
    series = np.concatenate([part.batch.series for part in parts])
    counts = np.concatenate([np.diff(part.batch.starts) for part in parts])
    part_of = np.repeat(np.arange(len(parts)), [len(part.sizes) for part in parts])
    row_of = np.concatenate([np.arange(len(part.sizes)) for part in parts])
    order = np.argsort(series)
    page = np.cumsum(counts[order]) // PAGE_POINTS
    for rows in np.split(order, np.flatnonzero(page[1:] != page[:-1]) + 1):
        yield _picked(parts, part_of[rows], row_of[rows], counts[rows])


def _picked(parts: Sequence[OpenRowsOfHour], part_of: Int64, row_of: Int64, counts: Int64) -> OpenRowsOfHour:
    """Return some rows of parts, in the order given."""
    starts = starts_of(counts)
    total = int(starts[-1])
    series, sizes = np.empty(len(counts), np.int32), np.empty(len(counts), np.int64)
    times, bits, floats = np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total, np.bool_)
    for number in np.unique(part_of).tolist():
        batch, to = parts[number].batch, np.flatnonzero(part_of == number)
        rows = row_of[to]
        series[to], sizes[to] = batch.series[rows], parts[number].sizes[rows]
        places, found = spread(starts[to], counts[to]), spread(batch.starts[rows], counts[to])
        times[places], bits[places], floats[places] = batch.times[found], batch.bits[found], batch.floats[found]
    return OpenRowsOfHour(Batch(series, starts, times, bits, floats), sizes)


def some_rows(batch: Batch, rows: Bool) -> Batch:
    """Return the rows of a batch that a mask selects."""
    chosen = np.flatnonzero(rows)
    if len(chosen) and chosen[-1] - chosen[0] == len(chosen) - 1:  # rows next to each other: no point is copied
        return batch.between(int(chosen[0]), int(chosen[-1]) + 1)
    points = np.repeat(rows, np.diff(batch.starts))
    starts = starts_of(np.diff(batch.starts)[rows])
    return Batch(batch.series[rows], starts, batch.times[points], batch.bits[points], batch.floats[points])

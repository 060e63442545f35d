"""Accepted points that the store lacks, and a selection that reads them together with the stored rows.

A query takes the points first and reads the store after that. A point that is written in between is in both, and the
one from memory counts: of two values of one time it is the later one, or the same.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import compress, pairwise
from typing import Protocol, TypeVar

import numpy as np
import trio

from tsd.codec.points import Batch, Bool, Columns, Int32, Int64, sort_columns, wide_values
from tsd.codec.putline import HOUR, HOUR_MS, HOUR_S
from tsd.codec.text import LENGTH
from tsd.tables.reading import (
    UNWANTED,
    EncodedPage,
    HourSource,
    HourTable,
    MatchedSeries,
    NumberingPage,
    Places,
    PointPage,
    ScanRange,
    Selection,
    TablePage,
)
from tsd.tables.writing import KnownSeries, SeriesKeys

T = TypeVar("T")
SMALL = 20_000  # points: less work is done in the event loop
PAGE_POINTS = 200_000
JOINED_HOURS, JOINED_SERIES = 3, 64  # most of a span that `read_few_joined` reads with one call of the store
FEW_CELLS = 64  # that are decoded in the event loop
POINTS_OF_CELL = 64  # that take as long as a stored cell
FEW_POINTS = 100  # whose hours are listed one by one
MOST_HOURS = 10_000  # that are counted, not sorted
COLUMN_BYTES = 2  # of a point's qualifier, for statistics
TakePoints = Callable[[EncodedPage[PointPage]], Awaitable[None]]


class OpenPoints:
    """Points of one metric, in order of arrival. Their `series` are indexes of `keys`."""

    def __init__(self, columns: Columns, keys: SeriesKeys) -> None:
        self.columns = columns
        self.keys = keys
        self.bases = self._bases()  # the hours that have points, as base times in ascending order

    def _bases(self) -> list[int]:
        if not len(self.columns.instants):
            return []
        hours = self.columns.instants // HOUR
        if len(hours) <= FEW_POINTS:
            return [hour * HOUR_S for hour in sorted(set(hours.tolist()))]
        low, high = int(hours.min()), int(hours.max())
        if low == high:
            return [low * HOUR_S]
        found = np.unique(hours) if high - low > MOST_HOURS else low + np.flatnonzero(np.bincount(hours - low))
        bases: list[int] = (found * HOUR_S).tolist()
        return bases

    def hours(self, span: ScanRange) -> tuple[int, ...]:
        """Return the hours within a span that have points, as base times in ascending order."""
        return tuple(base_s for base_s in self.bases if span.start_s <= base_s < span.stop_s)

    def of_hour(self, span: ScanRange) -> Columns:
        """Return the points of an hour."""
        if self.bases == [span.start_s]:
            return self.columns
        times = self.columns.instants >> 1
        return self.columns.at((times >= span.start_ms) & (times < span.stop_ms))


ChooseSeries = Callable[[KnownSeries], Awaitable[Places | None]]  # see `Selection.find_known`


class OpenPointSource(Protocol):
    """Accepted points that the store lacks."""

    async def open_points(
        self, metric: bytes, choose: ChooseSeries | None = None, span: ScanRange | None = None
    ) -> OpenPoints | None:
        """Return the points of a metric; None if some of them must be written to be read. `choose` may leave out
        series, and points of other hours than those of `span` may be left out. Raise what `choose` raises."""

    def known_series(self, metric: bytes) -> KnownSeries | None:
        """Return the series of a metric that such points may have: the same object as before while they do not change.
        None if they cannot be listed."""
        ...

    def points_now(
        self, metric: bytes, span: ScanRange, known: KnownSeries | None, numbers: Int32 | None
    ) -> Columns | None:
        """Return the points of few series in some hours, without a wait; points of other hours may be among them. Their
        `series` are indexes of `numbers`, which are the series' numbers among the `known` ones, ascending. None: the
        metric may have points, but its series are not known any more, or it takes too long."""
        ...

    async def points_soon(self, metric: bytes, span: ScanRange, known: KnownSeries, numbers: Int32) -> Columns | None:
        """Return the points of few series as `points_now` does, also if it takes long."""
        ...

    async def flush(self, *, patient: bool = True) -> bool:
        """Write all points accepted so far and return whether they are stored. Unless `patient`, give up when the
        store fails."""


def split_span(span: ScanRange, hours: Iterable[int]) -> Iterator[tuple[ScanRange, bool]]:
    """Yield the parts of a span in order, each with whether it is one of `hours`, which ascend.

    >>> [tuple(part) for part, is_open in split_span(ScanRange(0, 10800), [3600]) if is_open]
    [(3600, 7200)]
    """
    at = span.start_s
    for base_s in hours:
        if at < base_s:
            yield ScanRange(at, base_s), False
        at = base_s + HOUR_S
        yield ScanRange(base_s, at), True
    if at < span.stop_s:
        yield ScanRange(at, span.stop_s), False


class OpenSelection(Selection):
    """A selection that also reads open points."""

    def __init__(self, stored: Selection, points: OpenPoints) -> None:
        self.stored = stored
        self._points = points
        self.metric = stored.metric
        self.filter_tagks = stored.filter_tagks
        self.series = stored.series
        self.rollups = stored.rollups
        self.histograms = stored.histograms
        self.hours: HourSource | None = stored.hours

    def pairs_of(self, keys: SeriesKeys) -> Sequence[bytes | None]:
        """Return the pairs of series, see `Selection`."""
        return self.stored.pairs_of(keys)

    async def find_known(self, series: KnownSeries) -> Places | None:
        """Return the places of matching series, see `Selection`."""
        return await self.stored.find_known(series)

    def matched_series(self) -> MatchedSeries | None:
        """Return the matching series, see `Selection`."""
        return self.stored.matched_series()

    async def read(self, span: ScanRange, take: TakePoints, *, annotations: bool) -> None:
        """Read stored and open points, see `Selection`."""
        for part, is_open in split_span(span, self._points.hours(span)):
            if is_open:
                await self._read_hour(part, take, annotations=annotations)
            else:
                await self.stored.read(part, take, annotations=annotations)

    async def read_few(self, span: ScanRange, take: TakePoints, *, annotations: bool) -> bool:
        """Read by row keys, see `Selection`. A span with open points is always read."""
        if not self._points.hours(span):
            return await self.stored.read_few(span, take, annotations=annotations)
        await self.read(span, take, annotations=annotations)
        return True

    async def read_few_joined(self, span: ScanRange, take: TakePoints, *, annotations: bool) -> bool:
        """Read few series of a short span like `read_few`, with one call of the store for all of its hours. Return
        False, without a call of `take`, for other spans, and if stored rows of the open hour must be merged."""
        hours = self._points.hours(span)
        if len(hours) != 1 or span.hours > JOINED_HOURS or len(self._points.keys) > JOINED_SERIES:
            return False
        hour = ScanRange(hours[0], hours[0] + HOUR_S)
        rows = await self._rows(hour)  # taken before: a point that is written meanwhile is in both
        if rows.cells > FEW_CELLS:
            return False
        stored = _PagesAround(hour)

        async def decode(page: EncodedPage[PointPage]) -> None:
            stored.can_join &= page.cells <= FEW_CELLS
            if stored.can_join:
                await self.series.match(page.series())
                stored.add(page.decode())

        if not await self.stored.read_few(span, decode, annotations=annotations) or not stored.can_join:
            return False
        opened: Sequence[EncodedPage[PointPage]] = [rows] if rows.cells else []
        for page in (*stored.before, *opened, *stored.after):
            await take(page)
        return True

    async def _read_hour(self, span: ScanRange, take: TakePoints, *, annotations: bool) -> None:
        """Read an hour with open points: stored pages with the open points of their series merged in, then rows of the
        other series."""
        rows = await self._rows(span)  # taken before: a point that is written meanwhile is in both
        pages: list[MergedPage] = []

        async def merge(page: EncodedPage[PointPage]) -> None:
            merged = MergedPage(page, rows)
            await take(merged)
            pages.append(merged)

        if not await self.stored.read_few(span, merge, annotations=annotations):
            await self.stored.read(span, merge, annotations=annotations)
        unstored = rows.without(np.concatenate([page.found for page in pages])) if pages else rows
        if not unstored.cells:
            return
        for part in await _in_thread(len(unstored.batch.times), lambda: list(unstored.pages())):
            await take(part)

    async def _rows(self, span: ScanRange) -> "OpenRowsOfHour":
        """Return rows of the open points of matching series in an hour."""
        columns = await _in_thread(len(self._points.columns.series), partial(self._points.of_hour, span))
        series_pairs = self.stored.pairs_of(self._points.keys)
        present = np.bincount(columns.series, minlength=len(series_pairs)).astype(np.bool_).tolist()
        await self.series.match([one for one in compress(series_pairs, present) if one is not None])
        number_of = self.series.numbers
        found = [
            number_of[one] if has_points and one is not None else UNWANTED
            for one, has_points in zip(series_pairs, present, strict=True)
        ]
        numbers = np.array(found, np.int32)
        return await _in_thread(len(columns.series), partial(_chosen_rows, columns, numbers))

    async def delete(self, read_ms: int) -> None:
        """Delete the stored cells that were read."""
        await self.stored.delete(read_ms)


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

    def without(self, series: Int32) -> "OpenRowsOfHour":
        """Return the rows of all other series."""
        return self.at(~_among(self.batch.series, series))

    def pages(self) -> Iterator["OpenRowsOfHour"]:
        """Split the rows into pages of about PAGE_POINTS points."""
        if len(self.batch.times) <= PAGE_POINTS:
            yield self
            return
        series, starts, times, bits, floats = self.batch
        page = (starts[1:] - 1) // PAGE_POINTS
        bounds = [0, *(np.flatnonzero(page[1:] != page[:-1]) + 1).tolist(), len(series)]
        for first, stop in pairwise(bounds):
            points = slice(int(starts[first]), int(starts[stop]))
            inner = starts[first : stop + 1] - starts[first]
            batch = Batch(series[first:stop], inner, times[points], bits[points], floats[points])
            yield OpenRowsOfHour(batch, self.sizes[first:stop])

    def series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def new_series(self) -> Sequence[bytes]:
        """Return nothing: the series are numbered."""
        return ()

    def decode_tables(self) -> TablePage | None:
        """Return the rows as a table, see `NumberingPage`."""
        series, starts, times, bits, floats = self.batch
        shape = len(series), int(starts[1])
        times = times.reshape(shape) if len(times) == shape[0] * shape[1] else times[:0]
        if not len(times) or (np.diff(starts) != shape[1]).any() or (times != times[0]).any():
            return None
        base_s = int(times[0, 0]) // HOUR_MS * HOUR_S
        hour = HourTable(base_s, series, times[0] - base_s * 1000, bits.reshape(shape), floats.reshape(shape))
        size = int(self.sizes.sum())
        return TablePage([hour], len(series), size, size)

    def decode(self) -> PointPage:
        """Return the rows as a page."""
        return PointPage(self.batch, len(self.sizes), int(self.sizes.sum()), (), (), 0, None)


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


class _PagesAround:
    """Decoded pages of stored rows before and after an hour."""

    def __init__(self, hour: ScanRange) -> None:
        self._hour = hour
        self.before: list[DecodedPage] = []
        self.after: list[DecodedPage] = []
        self.can_join = True  # no stored row is in the hour

    def add(self, page: PointPage) -> None:
        """Add a page, or clear `can_join`."""
        _, starts, times, _, _ = page.batch
        if len(starts) < 2:  # no row
            self.before.append(DecodedPage(page))
        elif (starts[1:] == starts[:-1]).any():  # a row of annotations: its hour is not known
            self.can_join = False
        elif times.max() < self._hour.start_ms:
            self.before.append(DecodedPage(page))
        elif times.min() >= self._hour.stop_ms:
            self.after.append(DecodedPage(page))
        else:
            self.can_join = False


class MergedPage:
    """A page of stored rows of one hour, with the open points of the same rows added."""

    def __init__(self, page: EncodedPage[PointPage], rows: OpenRowsOfHour) -> None:
        self._page = page
        self._rows = rows
        self.cells = page.cells
        self.found: Int32 = np.empty(0, np.int32)  # series of the page, once it is decoded

    def series(self) -> Iterable[bytes]:
        """Return the distinct series of the stored page."""
        return self._page.series()

    def decode(self) -> PointPage:
        """Decode the stored rows and merge both."""
        page = self._page.decode()
        self.found = page.batch.series
        added = self._rows.at(_among(self._rows.batch.series, self.found))
        if not len(added.sizes):
            return page._replace(rows=None)
        size = page.size + int(added.sizes.sum())
        return page._replace(batch=merged(page.batch, added.batch), size=size, rows=None)


async def _in_thread(points: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; in a thread if it has many points."""
    return work() if points <= SMALL else await trio.to_thread.run_sync(work)


def _among(series: Int32, found: Int32) -> Bool:
    """Return which of some numbers of series are among others; both are small integers from 0 on.

    >>> _among(np.array([0, 3, 5]), np.array([3, 4, 3])).tolist()
    [False, True, False]
    """
    if not len(series) or not len(found):
        return np.zeros(len(series), np.bool_)
    marked = np.zeros(max(int(series.max()), int(found.max())) + 1, np.bool_)
    marked[found] = True
    return marked[series]


def _chosen_rows(columns: Columns, numbers: Int32) -> OpenRowsOfHour:
    """Return the rows of the series that have a number."""
    series = numbers[columns.series]
    wanted = series != UNWANTED
    columns = Columns(series, *columns[1:])
    return rows_of(columns if np.count_nonzero(wanted) == len(wanted) else columns.at(wanted))


def rows_of(columns: Columns) -> OpenRowsOfHour:
    """Return points of one hour as rows. Of equal times the last to arrive counts."""
    if (only := _only_row(columns)) is not None:
        return only
    columns = sort_columns(columns, join=True)
    first = np.ones(len(columns.series), np.bool_)
    first[1:] = columns.series[1:] != columns.series[:-1]
    starts = np.flatnonzero(first)
    bounds = np.append(starts, len(columns.series))
    sizes = np.diff(bounds) * (1 + COLUMN_BYTES)
    if len(starts):
        sizes += np.add.reduceat(columns.flags & LENGTH, starts, dtype=np.int64)
    return OpenRowsOfHour(Batch(columns.series[starts], bounds, columns.instants >> 1, *wide_values(columns)), sizes)


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


def merged(stored: Batch, added: Batch) -> Batch:
    """Return the rows of `stored`, each with the points that `added` has of its series. Both have one row a series, in
    one hour; every series of `added` is in `stored`. Added points replace stored ones of the same time."""
    row_of = np.zeros(int(stored.series.max()) + 1, np.int64)
    row_of[stored.series] = np.arange(len(stored.series))
    rows = np.concatenate((_rows(stored), row_of[added.series][_rows(added)]))
    times = np.concatenate((stored.times, added.times))
    order = np.lexsort((times, rows))  # stable: of equal times the added point is the last
    rows, times = rows[order], times[order]
    last = np.ones(len(rows), np.bool_)
    last[:-1] = (rows[1:] != rows[:-1]) | (times[1:] != times[:-1])
    order, rows, times = order[last], rows[last], times[last]
    bits = np.concatenate((stored.bits, added.bits))[order]
    floats = np.concatenate((stored.floats, added.floats))[order]
    starts = np.searchsorted(rows, np.arange(len(stored.series) + 1))
    return Batch(stored.series, starts.astype(np.int64), times, bits, floats)


def some_rows(batch: Batch, rows: Bool) -> Batch:
    """Return the rows of a batch that a mask selects."""
    points = np.repeat(rows, np.diff(batch.starts))
    starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(np.diff(batch.starts)[rows])))
    return Batch(batch.series[rows], starts, batch.times[points], batch.bits[points], batch.floats[points])


def _rows(batch: Batch) -> Int64:
    """Return the row of each point."""
    return np.repeat(np.arange(len(batch.series)), np.diff(batch.starts))

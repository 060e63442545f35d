"""Accepted points that the store lacks, and a selection that reads them together with the stored rows.

A query takes the points first and reads the store after that. A point that is written in between is in both, and the
one from memory counts: of two values of one time it is the later one, or the same.

Many points are read in slices of series, so that few of them are unpacked at once.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, pairwise
from operator import lt
from threading import Lock
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import trio

from tsd.codec.points import (
    NO_COLUMNS,
    Bool,
    Columns,
    Int32,
    Int64,
    joined_columns,
    rows_of_parts,
    series_order,
)
from tsd.codec.putline import HOUR, HOUR_S, Tags
from tsd.tables.open_rows import (
    POINTS_OF_CELL,
    DecodedPage,
    LaterRows,
    MergedPage,
    MergedStoredPage,
    OpenRowsOfHour,
    are_among,
    in_order,
    joined_rows,
    rows_of,
    rows_of_batch,
)
from tsd.tables.reading import (
    UNWANTED,
    EncodedPage,
    HourSource,
    MatchedSeries,
    Places,
    PointPage,
    ScanRange,
    Selection,
    StoredPage,
    Take,
)
from tsd.tables.writing import KnownSeries, SeriesKeys

T = TypeVar("T")
SMALL = 20_000  # points: less work is done in the event loop
SOME = 5_000  # series that are looked up without a pause
JOINED_HOURS, JOINED_SERIES = 3, 64  # most of a span that `read_few_joined` reads with one call of the store
OPEN_HOURS = 8  # most hours whose open points a query reads from memory: each is read on its own
MAX_UNORDERED = 8_000_000  # most open points that are put in the order of their series
MOST_MADE = 3  # times that a slice is made for stored rows, on average: for more, all rows are made at once
FEW_CELLS = 64  # that are decoded in the event loop
Hold = Callable[[int], None]  # called with the bytes of all rows of open points that are held; may raise BadQuery
NO_ROWS = rows_of(NO_COLUMNS)


class OpenSlice(NamedTuple):
    """The points of some series, of which no other slice has any. `parts` returns those of an hour, by its base time;
    None: of all hours."""

    series: slice  # indexes of their keys
    points: int  # about how many
    parts: Callable[[int | None], Sequence[Columns]]  # in order of arrival, with others; may be called in a thread
    in_thread: bool = True  # whether `parts` may take long, also for few points: it may unpack many others


class SeriesByHour:
    """Which series have points in each hour. There may be as many hours as points."""

    def __init__(self, series: Int32, instants: Int64, count: int, others: Mapping[int, Bool] | None = None) -> None:
        """`series`, of `count` ones, and `instants` of points. `others`: by the base time of an hour, which series have
        other points in it."""
        hours = instants // HOUR
        if len(hours) and (first := int(hours.min())) < int(hours.max()):
            order = series_order((hours - first).astype(np.int32))
            hours, series = hours[order], series[order]
        starts = np.append(np.flatnonzero(hours[1:] != hours[:-1]) + 1, len(hours)).tolist()
        bounds = [0, *starts] if len(hours) else []
        bases = (hours[bounds[:-1]] * HOUR_S).tolist()
        self._parts = dict(zip(bases, pairwise(bounds), strict=True))  # of the points, which are sorted by hour
        self._series = series
        self._count = count
        self._others = others or {}
        self.bases = sorted({*self._parts, *self._others})  # base times of the hours

    def of(self, base_s: int) -> Bool:
        """Return which series have points in an hour."""
        found = self._others.get(base_s)
        found = np.zeros(self._count, np.bool_) if found is None else found.copy()
        first, stop = self._parts.get(base_s, (0, 0))
        found[self._series[first:stop]] = True
        return found


class OpenPoints:
    """Points of one metric."""

    def __init__(
        self,
        every: OpenSlice,
        numbers: Int32,
        keys: SeriesKeys,
        present: SeriesByHour,
        slices: Sequence[OpenSlice],
    ) -> None:
        """`every`: all points. `numbers`: those by which columns name the series of `keys`, ascending. `present`: which
        of these have points in each hour. `slices`: all points in slices of ascending series; none if there are few
        points."""
        self.every = every
        self.slices = slices or [every]
        self.keys = keys
        self.bases = present.bases
        self._numbers = numbers
        self._present = present

    @classmethod
    def of(cls, columns: Columns, keys: SeriesKeys) -> "OpenPoints":
        """Return points in order of arrival, whose `series` are indexes of `keys`."""
        count = len(keys)
        points = len(columns.series)
        every = OpenSlice(slice(0, count), points, lambda _: [columns], in_thread=points > SMALL)
        present = SeriesByHour(columns.series, columns.instants, count)
        return cls(every, np.arange(count, dtype=np.int32), keys, present, [])

    @property
    def columns(self) -> Columns:
        """All points, with indexes of `keys` as series; those of a series in order of arrival."""
        index_of = self._index_of()
        found = [NO_COLUMNS]
        for part in self.every.parts(None):
            known = np.flatnonzero(part.series < len(index_of))
            known = known[index_of[part.series[known]] >= 0]
            chosen = part.at(known)
            found.append(chosen._replace(series=index_of[chosen.series]))
        return joined_columns(found)

    def _index_of(self) -> Int32:
        """Return the index of the key of each series by its number; -1 for others."""
        index_of = np.full(int(self._numbers[-1]) + 1 if len(self._numbers) else 0, -1, np.int32)
        index_of[self._numbers] = np.arange(len(self._numbers), dtype=np.int32)
        return index_of

    def hours(self, span: ScanRange) -> tuple[int, ...]:
        """Return the hours within a span that have points, as base times in ascending order."""
        return tuple(base_s for base_s in self.bases if span.start_s <= base_s < span.stop_s)

    def present(self, base_s: int) -> Bool:
        """Return which series of `keys` have points in an hour."""
        return self._present.of(base_s)

    def rows(self, one: OpenSlice, numbers: Int32, hour: ScanRange) -> OpenRowsOfHour:
        """Return the rows of a slice in an hour. `numbers` has the number of each series of `keys` in the query,
        UNWANTED for those to leave out. May be called in a thread."""
        wanted = np.flatnonzero(numbers[one.series] != UNWANTED) + one.series.start
        if not len(wanted):
            return NO_ROWS
        series, row = _ranked(numbers[wanted])
        row_of = np.full(int(self._numbers[wanted[-1]]) + 1, -1, np.int32)
        row_of[self._numbers[wanted]] = row
        instants = (2 * hour.start_ms, 2 * hour.stop_ms)
        batch, sizes = rows_of_parts(one.parts(hour.start_s), row_of, len(series), instants)
        return rows_of_batch(batch._replace(series=series[batch.series]), sizes)


def _ranked(numbers: Int32) -> tuple[Int32, Int32]:
    """Return the distinct numbers in ascending order, and the place of each number among them."""
    if (numbers[1:] > numbers[:-1]).all():
        return numbers, np.arange(len(numbers), dtype=np.int32)
    distinct, places = np.unique(numbers, return_inverse=True)
    return distinct, places.astype(np.int32)


def is_ordered(selection: Selection, points: OpenPoints) -> bool:
    """Return whether the matching series ascend by their pairs. Answers aggregate them in this order."""
    series_pairs = [one for one in selection.pairs_of(points.keys) if one is not None]
    return all(map(lt, series_pairs, series_pairs[1:]))


ChooseSeries = Callable[[KnownSeries], Awaitable[Places | None]]  # see `Selection.find_known`
MayPass = Callable[[Tags], bool]  # whether a request may match a series with these tags


class OpenPointSource(Protocol):
    """Accepted points that the store lacks."""

    async def open_points(
        self,
        metric: bytes,
        choose: ChooseSeries | None = None,
        span: ScanRange | None = None,
        may_pass: MayPass | None = None,
    ) -> OpenPoints | None:
        """Return the points of a metric; None if some of them must be written to be read, such as those of series
        without keys. `choose` may leave out series, `may_pass` those without keys, and points of other hours than those
        of `span` may be left out. Raise what `choose` and `may_pass` raise."""

    async def wait_for_keys(self, metric: bytes, may_pass: MayPass | None = None) -> bool:
        """Return whether some of the metric's points wait for the keys of new series for which `may_pass` is true: the
        store may not know their names. Raise what `may_pass` raises."""
        ...

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
        self.reads_beyond = stored.reads_beyond
        self._hold: Hold = lambda _: None
        self._kept = 0  # bytes of the rows of earlier hours, which their pages use

    def count_with(self, hold: Hold) -> None:
        """Tell `hold` about the rows of open points of the reads that follow."""
        self._hold, self._kept = hold, 0

    def pairs_of(self, keys: SeriesKeys) -> Sequence[bytes | None]:
        """Return the pairs of series, see `Selection`."""
        return self.stored.pairs_of(keys)

    async def find_known(self, series: KnownSeries) -> Places | None:
        """Return the places of matching series, see `Selection`."""
        return await self.stored.find_known(series)

    def matched_series(self) -> MatchedSeries | None:
        """Return the matching series, see `Selection`."""
        return self.stored.matched_series()

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read stored and open points, see `Selection`."""
        for part, is_open in split_span(span, self._points.hours(span)):
            if is_open:
                await self._read_hour(part, take, annotations=annotations)
            else:
                await self.stored.read(part, take, annotations=annotations)

    async def read_few(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> bool:
        """Read by row keys, see `Selection`. A span with open points is always read."""
        if not self._points.hours(span):
            return await self.stored.read_few(span, take, annotations=annotations)
        await self.read(span, take, annotations=annotations)
        return True

    async def read_few_joined(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> bool:
        """Read few series of a short span like `read_few`, with one call of the store for all of its hours. Return
        False, without a call of `take`, for other spans, and if stored rows of the open hour must be merged."""
        hours = self._points.hours(span)
        if len(hours) != 1 or span.hours > JOINED_HOURS or len(self._points.keys) > JOINED_SERIES:
            return False
        hour = ScanRange(hours[0], hours[0] + HOUR_S)
        rows = await self._rows(hour)  # taken before: a point that is written meanwhile is in both
        if isinstance(rows, SlicedRows) or rows.cells > FEW_CELLS:
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

    async def _read_hour(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read an hour with open points: stored pages with the open points of their series merged in, then rows of the
        other series."""
        rows = unstored = await self._rows(span)  # taken before: a point that is written meanwhile is in both
        kept = self._kept
        self._hold(kept + rows.held)
        found: list[Int32] = []

        async def merge(page: EncodedPage[PointPage]) -> None:
            merged = MergedStoredPage(page, rows) if isinstance(page, StoredPage) else MergedPage(page, rows)
            await take(merged)
            found.append(merged.found)
            self._hold(kept + rows.held)

        if not await self.stored.read_few(span, merge, annotations=annotations):
            await self.stored.read(span, merge, annotations=annotations)
        if found:
            unstored = await _in_thread(rows.cells * POINTS_OF_CELL, lambda: rows.without(np.concatenate(found)))
            kept += rows.held
        if isinstance(unstored, SlicedRows):
            await unstored.read(take, lambda size: self._hold(kept + size))
        elif unstored.cells:
            self._hold(kept + unstored.held)
            for part in await _in_thread(len(unstored.batch.times), lambda: list(unstored.pages())):
                await take(part)
        self._kept = kept

    async def _rows(self, span: ScanRange) -> "OpenRowsOfHour | SlicedRows":
        """Return rows of the open points of matching series in an hour."""
        present, keys = self._points.present(span.start_s).tolist(), self._points.keys
        found: list[int] = []
        for first in range(0, len(keys), SOME):
            if first:
                await trio.lowlevel.checkpoint()
            found += await self._numbers(keys.part(first, min(first + SOME, len(keys))), present[first : first + SOME])
        sliced = SlicedRows(self._points, np.array(found, np.int32), span)
        if len(self._points.slices) > 1 and sliced.are_apart():
            return sliced
        return await trio.to_thread.run_sync(sliced.whole) if self._points.every.in_thread else sliced.whole()

    async def _numbers(self, keys: SeriesKeys, present: Sequence[bool]) -> list[int]:
        """Return the numbers of series, UNWANTED for those that do not match or are not `present`."""
        series_pairs = self.stored.pairs_of(keys)
        await self.series.match([one for one in compress(series_pairs, present) if one is not None])
        number_of = self.series.numbers
        return [
            number_of[one] if has_points and one is not None else UNWANTED
            for one, has_points in zip(series_pairs, present, strict=True)
        ]

    async def delete(self, read_ms: int) -> None:
        """Delete the stored cells that were read."""
        await self.stored.delete(read_ms)


class SlicedRows:
    """Rows of open points in one hour, made slice by slice: `OpenRows`."""

    def __init__(self, points: OpenPoints, numbers: Int32, hour: ScanRange) -> None:
        """`numbers`: those of the series of `points`, UNWANTED for those to leave out."""
        self._points = points
        self._numbers = numbers
        self._hour = hour
        self._making = Lock()
        self._made = 0  # slices for `among`
        self._last: tuple[OpenSlice, OpenRowsOfHour] | None = None  # the one that was made last: pages often share it
        self.cells = -(-sum(one.points for one in self._slices()) // POINTS_OF_CELL)
        self._all: OpenRowsOfHour | None = None  # rows, once slices were made too often

    def are_apart(self) -> bool:
        """Return whether no series is in two slices. After names have changed, a series may have two numbers."""
        return int(np.bincount(self._wanted()).max(initial=0)) <= 1  # `np.unique` takes a second for a million

    def has_any(self, series: Int32) -> bool:
        """Return whether some series have rows: `OpenRows`."""
        return bool(self._are_among(series).any())

    def _wanted(self) -> Int32:
        wanted: Int32 = self._numbers[self._numbers != UNWANTED]
        return wanted

    def whole(self) -> OpenRowsOfHour:
        """Return all rows. May be called in a thread."""
        return self._rows(self._points.every)

    def among(self, series: Int32) -> OpenRowsOfHour:
        """Return the rows of some series. May be called in a thread."""
        chosen = self._are_among(series)
        with self._making:
            if self._all is None:
                slices = [one for one in self._points.slices if chosen[one.series].any()]
                if self._made + len(slices) <= MOST_MADE * len(self._points.slices):
                    return joined_rows([self._made_rows(one).among(series) for one in slices] or [NO_ROWS])
                self._all, self._last = self.whole(), None
        return self._all.among(series)

    def _made_rows(self, one: OpenSlice) -> OpenRowsOfHour:
        """Return the rows of a slice."""
        if self._last is None or self._last[0] is not one:
            self._last = one, self._rows(one)
            self._made += 1
        return self._last[1]

    @property
    def held(self) -> int:
        """Bytes of memory of the rows that are kept."""
        last = self._last
        return self._all.held if self._all is not None else 0 if last is None else last[1].held

    def without(self, series: Int32) -> "OpenRowsOfHour | SlicedRows":
        """Return the rows of all other series."""
        return self._but(self._are_among(series)) if self._all is None else self._all.without(series)

    def _slices(self) -> list[OpenSlice]:
        """Return the slices that have rows."""
        return [one for one in self._points.slices if (self._numbers[one.series] != UNWANTED).any()]

    def _are_among(self, series: Int32) -> Bool:
        wanted: Bool = self._numbers != UNWANTED
        wanted[wanted] = are_among(self._numbers[wanted], series)
        return wanted

    def _but(self, excluded: Bool) -> "SlicedRows":
        return SlicedRows(self._points, np.where(excluded, UNWANTED, self._numbers).astype(np.int32), self._hour)

    def _rows(self, one: OpenSlice) -> OpenRowsOfHour:
        return self._points.rows(one, self._numbers, self._hour)

    async def read(self, take: Take[PointPage], hold: Hold) -> None:
        """Pass all rows to `take`, and to `hold` the bytes of those that are held.

        Slices in the order of their series' numbers are decoded one at a time. Others are all decoded first, and their
        rows put in this order, unless they have more than MAX_UNORDERED points.
        """
        slices = self._slices()
        wanted = self._wanted()
        if self._points.every.points > MAX_UNORDERED or (wanted[1:] > wanted[:-1]).all():
            for one in slices:
                await take(LaterRows(partial(self._rows, one), one.points))
        elif slices:
            some: list[OpenRowsOfHour] = []
            for one in slices:
                some.append(await trio.to_thread.run_sync(self._rows, one))
                hold(sum([rows.held for rows in some]))
            pages = in_order(some)
            while (page := await trio.to_thread.run_sync(next, pages, None)) is not None:
                await take(page)


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


async def _in_thread(points: int, work: Callable[[], T]) -> T:
    """Return what `work` returns; in a thread if it has many points."""
    return work() if points <= SMALL else await trio.to_thread.run_sync(work)

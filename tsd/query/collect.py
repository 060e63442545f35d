"""Pages of a sub query's rows → the points of its series. Only what the answer needs is kept of a page."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tsd.codec.metadata import Annotation
from tsd.codec.points import Int64, Points
from tsd.query.background import InOrder, Prepared, working
from tsd.query.buckets import Bucketed, has_many_steps
from tsd.query.cache import (
    CachedHour,
    CacheFiller,
    JoinedHours,
    join_hours,
)
from tsd.query.columns import SeriesColumns
from tsd.query.downsample import Downsampler, PointJoiner
from tsd.query.group_sums import GroupSums
from tsd.query.limits import QueryBudget, check_fetched
from tsd.query.model import Query
from tsd.query.plan import Plan
from tsd.query.summed_pages import SummedPages, SumsInThread
from tsd.query.workers import SMALL, SMALL_PAGE
from tsd.tables.reading import (
    UNWANTED,
    BucketPage,
    EncodedPage,
    NumberingPage,
    PointPage,
    ScanRange,
    SeriesSet,
    TablePage,
)

T = TypeVar("T")

SHORT_PAGE = 2000  # cells that are signed for the cache without a thread
HOUR_COST = 20  # buckets that take as long to join as a cached hour
POINT_BYTES = 40  # of a kept point: its arrays twice, because they are joined at the end
SHORT_ORDER = 500  # series that are put in order without a thread: with salts each takes microseconds
SUMMED_SERIES_BYTES = 300  # of a series whose points are not kept
SERIES_BYTES = 500  # of a series besides its points: its tags and arrays
FIRST_COUNTS = 16  # series with room for their counts from the start
MAX_WARNINGS = 100


@dataclass
class ReadCounts:
    """What was read."""

    rows_read: int = 0
    rows_wanted: int = 0
    points: int = 0
    size: int = 0  # stored bytes of the wanted rows
    duplicates: int = 0
    warnings: list[str] = field(default_factory=list)

    def plus(self, other: "ReadCounts") -> "ReadCounts":
        """Return the sum of this and another part."""
        both = ReadCounts(
            self.rows_read + other.rows_read,
            self.rows_wanted + other.rows_wanted,
            self.points + other.points,
            self.size + other.size,
            self.duplicates + other.duplicates,
        )
        both.warn([*self.warnings, *other.warnings])
        return both

    def warn(self, warnings: Sequence[str]) -> None:
        """Add warnings, up to a limit."""
        self.warnings += warnings[: MAX_WARNINGS - len(self.warnings)]


class SeriesPoints(NamedTuple):
    """A series with its points as stored."""

    tags: Mapping[str, str]
    points: Points


class Collected(NamedTuple):
    """What was read for one sub query; series by their numbers."""

    series: SeriesColumns  # downsampled if the query says so
    counts: Int64  # points read of each series
    annotations: Mapping[int, Sequence[Annotation]]
    read: ReadCounts
    table: str = "raw"  # as the echo of a query names it
    scan: ScanRange | None = None  # what was read, if it is not the plan's range
    sums: GroupSums | None = None  # the groups' points, in place of the points of `series`


class PointCollector:
    """Collects the points of one sub query. Pages arrive in order: rows of one series in order of time."""

    def __init__(
        self,
        query: Query,
        plan: Plan,
        budget: QueryBudget,
        sums: SumsInThread | None = None,
        decoding: InOrder | None = None,
    ) -> None:
        """`sums`: aggregate groups while rows are read, if all have the same times. `decoding`: downsample some pages
        at the same time."""
        self._sink = _sink_of(query, plan)
        self._has_many_steps = has_many_steps(plan.sub.downsample, plan.scan)
        self._decoding = decoding
        self._series: SeriesSet = plan.selection.series
        self._budget = budget
        self._counts: Int64 = np.zeros(FIRST_COUNTS, np.int64)
        self.read = ReadCounts()
        self.filler: CacheFiller | None = None  # for the hours that are being read
        self._summed = None if sums is None else SummedPages(sums, budget.workers, self._count_tables)
        self._reads_again = False  # whether all rows have to be read again
        self._numbered: tuple[tuple[bytes, ...], Int64] = (), np.empty(0, np.int64)
        self._annotations: dict[int, list[Annotation]] = {}
        self._held = 0  # bytes of rows that are held for the pages to come

    async def take(self, page: EncodedPage[PointPage]) -> None:
        """Process the next page. Raise BadQuery where a limit is exceeded, StoreError."""
        if self._summed is not None:
            if await self._take_sums(self._summed, page):
                return
            await self._drop_sums(self._summed)
        if self._reads_again:
            return
        by_cell = self._sink.by_cell if isinstance(self._sink, Downsampler) else None
        if self._decoding is None or by_cell is None or not isinstance(page, NumberingPage) or page.cells <= SMALL_PAGE:
            await self.decoded()
            add = partial(self.add_page, page)
            await with_numbers(page, self._series, self._budget, add, always_in_thread=self._has_many_steps)
        else:
            await _number(page, self._series, self._budget)
            await self._decoding.begin(partial(self._prepared, page, *by_cell))
        self.check()

    def _prepared(self, page: NumberingPage, interval_ms: int, function: int) -> Prepared:
        """Decode a page whose series are numbered. Raise StoreError."""
        found = page.decode_buckets(interval_ms, function)
        if found is not None:
            return Prepared(partial(self._add_buckets, found), is_short=True)
        assert isinstance(self._sink, Downsampler)
        decoded = page.decode()
        buckets = self._sink.buckets_of_rows(decoded.batch)
        return Prepared(partial(self._add_rows, decoded, buckets), is_short=page.cells <= SHORT_PAGE)

    async def decoded(self) -> None:
        """Wait until all pages so far are added. Raise StoreError."""
        if self._decoding is not None:
            await self._decoding.finish()

    async def _take_sums(self, summed: SummedPages, page: EncodedPage[PointPage]) -> bool:
        """Add the rows of a page to their groups. Return False if they do not fit."""
        if not isinstance(page, NumberingPage) or not summed.may_add(page):
            return False
        await _number(page, self._series, self._budget)  # while a thread adds the page before
        return await self._are_added(summed) and summed.add(page)

    async def _are_added(self, summed: SummedPages) -> bool:
        """Wait until all pages so far are added. Return False if they do not fit, or hold more memory than points.
        Raise BadQuery where a limit is exceeded."""
        if not await summed.are_added():
            return False
        if summed.held > self.read.points * POINT_BYTES:  # as with few matching rows, or few points in each
            return False
        summed.drop_many()
        self.check()
        return True

    def _count_tables(self, page: TablePage) -> None:
        """Count the rows of a page."""
        read = self.read
        read.rows_read += page.rows_read
        read.size += page.size
        self._grow_counts()
        for hour in page.hours:
            self._counts[hour.numbers] += len(hour.offsets_ms)  # each series has one row
            read.rows_wanted += len(hour.numbers)
            read.points += hour.bits.size

    async def _drop_sums(self, summed: SummedPages) -> None:
        """Keep the points of all rows read so far, as without sums. Raise as `take` does."""
        pages = await summed.release()
        self._summed = None
        self._reads_again = pages is None
        self.read = ReadCounts()
        self._counts[:] = 0
        if pages is not None:
            pages.reverse()
        while pages:
            await self.take(pages.pop())

    @property
    def size(self) -> int:
        """Number of points kept, or returned at the end: a fill may add many."""
        return self._sink.size(len(self._series.series_pairs))

    def hold(self, size: int) -> None:
        """Account for rows that are held for the pages to come. Raise BadQuery where a limit is exceeded."""
        self._held = size
        self.check()

    def check(self) -> None:
        """Account for the memory of kept points. Raise BadQuery where a limit is exceeded."""
        check_fetched(self._budget.bounds, size=self.read.size, points=self.read.points)
        held, each = self.size * POINT_BYTES, SERIES_BYTES
        if self._summed is not None:
            held, each = held + self._summed.held, SUMMED_SERIES_BYTES
        self._budget.set_memory(len(self._series.series_pairs) * each + held + self._held)

    async def take_cached(self, hours: Sequence[CachedHour]) -> None:
        """Process cached hours like ones that were read: one hour, or several for `join_hours`. Raise BadQuery,
        StoreError as `take` does."""
        await self.decoded()
        numbers = await self._numbers(hours[0].series_pairs)
        with self._budget.workers.charged():
            self._add_cached(numbers, _joined(hours), len(hours))
            self.check()

    def _add_cached(self, numbers: Int64, found: JoinedHours, hours: int) -> None:
        """Add the rows of `hours` cached hours; `numbers` are those of the rows' series."""
        assert isinstance(self._sink, Downsampler)
        buckets, points, sizes = found
        series, wanted = numbers, numbers != UNWANTED
        if np.count_nonzero(wanted) < len(wanted):
            series, points, sizes, buckets = numbers[wanted], points[wanted], sizes[wanted], buckets.picked(wanted)
        self._sink.feed_rows(series, buckets)
        self._count(series, points)
        read = self.read
        read.rows_read += len(numbers) * hours
        read.rows_wanted += len(series) * hours
        read.points += int(points.sum())
        read.size += int(sizes.sum())

    async def _numbers(self, series_pairs: tuple[bytes, ...]) -> Int64:
        """Return the number of each series. Most hours have the same series as the hour before."""
        if self._numbered[0] is not series_pairs:
            await self._series.match(series_pairs)
            numbers = map(self._series.numbers.__getitem__, series_pairs)
            self._numbered = series_pairs, np.fromiter(numbers, np.int64, len(series_pairs))
        return self._numbered[1]

    def add_cached_now(self, hours: Sequence[CachedHour]) -> bool:
        """Add cached hours like `take_cached`, without a wait, and without regard to limits. Return False if a series
        has no number."""
        number_of = self._series.numbers.get
        numbers = [number_of(one) for one in hours[0].series_pairs]
        if None in numbers:
            return False
        self._add_cached(np.array(numbers, np.int64), _joined(hours), len(hours))
        return True

    def add_page(self, page: EncodedPage[PointPage]) -> None:
        """Decode and add a page whose series are numbered, without regard to limits. Raise StoreError."""
        found = None
        if isinstance(self._sink, Downsampler) and isinstance(page, NumberingPage):
            by_cell = self._sink.by_cell
            found = None if by_cell is None else page.decode_buckets(*by_cell)
        if found is None:
            self.add(page.decode())
        else:
            self._add_buckets(found)

    def add_tables(self, page: EncodedPage[PointPage]) -> bool:
        """Add a page of rows that all have the same times, hour by hour, in fewer steps than `add_page` takes. Return
        False if they do not, or if they are to be downsampled. Raise StoreError."""
        if not isinstance(self._sink, PointJoiner) or not isinstance(page, NumberingPage):
            return False
        found = page.decode_tables()
        if found is None:
            return False
        self._sink.feed_tables(found.hours)
        self._count_tables(found)
        return True

    def _add_buckets(self, pages: Sequence[BucketPage]) -> None:
        """Add rows that are downsampled."""
        assert isinstance(self._sink, Downsampler)
        read = self.read
        for page in pages:
            buckets, points = self._sink.feed_cells(page), page.buckets.points
            if self.filler is not None:
                assert page.rows is not None  # hours that can be cached have them
                self.filler.add(page.rows, points.astype(np.int32), buckets)
            self._count(page.series, points)
            read.rows_read += page.rows_read
            read.rows_wanted += len(page.series)
            read.points += int(points.sum())
            read.size += page.size

    def add(self, page: PointPage) -> None:
        """Add a decoded page without regard to limits."""
        self._add_decoded(page, self._sink.feed(page.batch))

    def _add_rows(self, page: PointPage, buckets: Bucketed) -> None:
        """Add a decoded page whose rows are downsampled."""
        assert isinstance(self._sink, Downsampler)
        self._sink.feed_buckets(page.batch.series, buckets)
        self._add_decoded(page, buckets)

    def _add_decoded(self, page: PointPage, buckets: Bucketed | None) -> None:
        """Count the rows of a page that is in the sink, and keep what else it has."""
        batch = page.batch
        if self.filler is not None and buckets is not None:
            assert page.rows is not None  # hours that can be cached have them
            self.filler.add(page.rows, np.diff(batch.starts).astype(np.int32), buckets)
        self._count(batch.series, batch.starts[1:] - batch.starts[:-1])
        read = self.read
        read.rows_read += page.rows_read
        read.rows_wanted += len(batch.series)
        read.points += len(batch.times)
        read.size += page.size
        read.duplicates += page.duplicates
        read.warn(page.warnings)
        for series, annotation in page.annotations:
            self._annotations.setdefault(series, []).append(annotation)

    def _count(self, series: NDArray[np.integer[Any]], points: NDArray[np.integer[Any]]) -> None:
        """Count points of series, one entry for each row."""
        self._grow_counts()
        if len(series) == 1:
            self._counts[series[0]] += points[0]
        elif len(series):  # numpy takes thirty times as long for numbers of other types
            np.add.at(self._counts, series.astype(np.intp, copy=False), points.astype(np.int64, copy=False))

    def _grow_counts(self) -> None:
        """Make room for all series."""
        missing = len(self._series.series_pairs) - len(self._counts)
        if missing > 0:
            self._counts = np.append(self._counts, np.zeros(max(missing, len(self._counts)), np.int64))

    async def has_all(self) -> bool:
        """Return whether all rows were collected. If not, all have to be read again. Raise as `take` does."""
        await self.decoded()
        if self._summed is not None:
            is_short = len(self._series.series_pairs) <= SHORT_ORDER
            if not (await self._are_added(self._summed) and await self._summed.finish(is_short=is_short)):
                await self._drop_sums(self._summed)
        reads_again, self._reads_again = self._reads_again, False
        return not reads_again

    async def finished(self) -> Collected:
        """Return what was collected; joined in a thread if that is much. Points that are in buckets count no more."""
        workers = self._budget.workers
        is_small = max(self.size, self._sink.parts * HOUR_COST) <= SMALL and not self._has_many_steps
        return workers.run_here(self.finish) if is_small else await workers.run(self.finish)

    def finish(self) -> Collected:
        """Return what was collected."""
        count = len(self._series.series_pairs)
        self._grow_counts()
        sums = self._summed.sums if self._summed is not None and self.read.points else None
        self._summed = None
        counts = self._counts[:count]
        return Collected(self._sink.finish(count, counts > 0), counts, self._annotations, self.read, sums=sums)


def _joined(hours: Sequence[CachedHour]) -> JoinedHours:
    """Return one cached hour, or several for `join_hours`, as one."""
    if len(hours) > 1:
        return join_hours(hours)
    [hour] = hours
    return JoinedHours(hour.unpacked(), hour.points.astype(np.int64), hour.sizes)


async def collect(
    read: Callable[[PointCollector], Awaitable[None]],
    query: Query,
    plan: Plan,
    budget: QueryBudget,
    sums: GroupSums | None,
    held_bytes: int,
) -> Collected:
    """Return what `read` passes to a collector. With `sums` groups are aggregated meanwhile, if possible. Raise what
    `read` and the collector raise."""
    if sums is None and plan.sub.downsample is None:
        return await _collected(read, PointCollector(query, plan, budget))
    async with working(budget.workers) as threads:
        in_thread = None if sums is None else SumsInThread(sums, threads.background, held_bytes)
        return await _collected(read, PointCollector(query, plan, budget, in_thread, threads.in_order))


async def _collected(read: Callable[[PointCollector], Awaitable[None]], collector: PointCollector) -> Collected:
    await read(collector)
    if not await collector.has_all():
        await read(collector)
    collector.hold(0)  # the index may list series without rows here: these are filled too
    return await collector.finished()


def _sink_of(query: Query, plan: Plan) -> Downsampler | PointJoiner:
    """Return what joins the points of a plan."""
    spec, in_parts = plan.sub.downsample, plan.selection.reads_hours_in_parts
    if spec is None:
        return PointJoiner()
    return Downsampler(spec, query.start_ms, query.end_ms, plan.scan, quirks=query.quirks, hours_in_parts=in_parts)


async def decode_page(
    page: EncodedPage[T],
    series: SeriesSet,
    budget: QueryBudget,
    use: Callable[[T], None],
    *,
    always_in_thread: bool = False,
) -> None:
    """Number the series of a page, decode it and call `use` with the result; in a thread unless the page is small.
    Raise BadQuery, StoreError."""
    await with_numbers(page, series, budget, lambda: use(page.decode()), always_in_thread=always_in_thread)


async def with_numbers(
    page: EncodedPage[T],
    series: SeriesSet,
    budget: QueryBudget,
    decode: Callable[[], None],
    *,
    always_in_thread: bool = False,
) -> None:
    """Number the series of a page and call `decode`; in a thread unless the page is small. Raise BadQuery,
    StoreError."""
    if page.cells <= SMALL_PAGE and not always_in_thread:
        await series.match(page.series())
        budget.workers.run_here(decode)
        return
    await _number(page, series, budget)
    await budget.workers.run(decode)


async def _number(page: EncodedPage[T] | NumberingPage, series: SeriesSet, budget: QueryBudget) -> None:
    """Number the series of a page. Raise BadQuery, StoreError."""
    with budget.workers.charged():
        new = page.new_series() if isinstance(page, NumberingPage) else page.series()
    if new:
        await series.match(new)

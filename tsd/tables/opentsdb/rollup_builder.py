"""Writes rollups of stored points: sum, count, minimum and maximum of past intervals, into OpenTSDB's rollup tables.

Metric after metric, a few days at a time. Cells are computed from all points of their interval, so a part may be built
again at any time, for example after an error or where late points came. Rollups of points that have expired stay;
`clear` deletes those of intervals whose points were deleted. Rollups are not computed from what retention has left of
an interval: see `RollupBuilder.run`.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple, TypeVar

import trio

from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Interval, Rollups, rollup_time
from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout, base_bytes, join_pairs, salt_of, salts, split_pairs
from tsd.codec.putline import HOUR_S
from tsd.errors import DamagedBlock, StoreError, TsdError, WrongClock
from tsd.store import CellMatrix, CellPage, Put, Row, Store, cell_pages
from tsd.store.cells import prefix_end
from tsd.store.retry import backoff
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.reader import OpenTsdbReader
from tsd.tables.opentsdb.rollup_columns import encode_sums
from tsd.tables.opentsdb.rollup_derive import MOST_BYTES, derive_rows
from tsd.tables.opentsdb.rollup_progress import START, BuildPosition, BuildRange
from tsd.tables.opentsdb.rollup_scan import next_base
from tsd.tables.opentsdb.rollup_sums import (
    DAY_S,
    LongSums,
    RowKeys,
    RowOrder,
    Sums,
    coarser,
    joined,
    rollup_matrices,
    rollup_puts,
    row_order,
    sums_of,
)
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import EncodedPage, PointPage, ScanRange

T = TypeVar("T")

MOST_DAYS = 32  # of a part
FEW_POINTS, MANY_POINTS = 200_000, 2_000_000  # of a part: the next one has twice, or half of its days
MOST_INTERVALS = 1 << 20  # held before their cells are written: 50 MB
PUT_INTERVALS = 1 << 11  # whose cells are made at once: the event loop frees them
COLUMN_BYTES = len(COLUMN) + 3  # of a rollup cell whose name has the number of the aggregator
FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.5, 30.0, 8  # after a StoreError: about a minute in all


class BuildStep(NamedTuple):
    """What one part added, and where the next one begins."""

    points: int
    cells: int
    position: BuildPosition


class BuildRules(NamedTuple):
    """How rollups are built."""

    rollups: Rollups
    intervals: tuple[Interval, ...]  # see `can_build`
    keep_s: Callable[[str], int | None]  # how long points of a metric are kept; None: forever
    pause_ratio: float = 0.0  # pause after each part, as a share of the time that it took


class RollupBuilder:
    """Builds the rollups of one data table."""

    def __init__(
        self,
        table: DataTable,
        uids: Uids,
        reader: OpenTsdbReader,
        rules: BuildRules,
        now_ms: Callable[[], int],
        *,
        on_retry: Callable[[StoreError], None] = lambda _: None,
        on_warning: Callable[[str], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the wall clock. `on_retry` is called with each StoreError that is retried, `on_warning` for each
        row whose points could not be read."""
        self._store, self._table, self._layout = table
        self._uids = uids
        self._reader = reader
        self._rules = rules
        self._now_ms = now_ms
        self._on_retry = on_retry
        self._on_warning = on_warning
        self._raw_tag: tuple[bytes, bytes] | None = None  # UIDs of the tag that rollups of single series get

    async def run(self, span: BuildRange, position: BuildPosition = START) -> AsyncGenerator[BuildStep, None]:
        """Build the rollups of a range from a position on. Yield after each part, whose cells are then synced.

        An interval whose first points may have expired is left as it is. Raise StoreError if the store fails after all
        retries.
        """
        if self._rules.rollups.tag_raw:
            self._raw_tag = await self._find_raw_tag()
        async with aclosing(self._metrics(span, position.metric)) as metrics:
            async for metric in metrics:
                first_s = max(span.first_s, position.day_s if metric == position.metric else 0)
                async with aclosing(self._metric(metric, span, first_s)) as steps:
                    async for step in steps:
                        yield step

    async def clear(self, metric: bytes, span: ScanRange) -> None:
        """Delete the rollups of a metric's intervals in a span, except for those whose points may have expired: before
        they are built again, because points were deleted. Raise StoreError."""
        now_ms = self._now_ms()
        first_s = max(span.start_s, await self._retried(partial(self.kept_from_s, metric)))
        for interval in self._rules.intervals:
            whole = ScanRange(first_s, span.stop_s // interval.seconds * interval.seconds)
            if whole.start_s < whole.stop_s:
                clear = partial(delete_cells, self._store, self._layout, interval, metric, whole)
                await self._retried(partial(clear, read_ms=now_ms))

    async def kept_from_s(self, metric: bytes) -> int:
        """Return the time before which points of a metric have expired. Raise StoreError."""
        name = (await self._uids.names(Kind.METRIC, [metric]))[metric]
        keep_s = self._rules.keep_s(name.decode("latin-1")) if isinstance(name, bytes) else None
        return 0 if keep_s is None else max(self._now_ms() // 1000 - keep_s, 0)

    async def _metric(self, metric: bytes, span: BuildRange, first_s: int) -> AsyncGenerator[BuildStep, None]:
        """Build the rollups of one metric."""
        name = (await self._retried(partial(self._uids.names, Kind.METRIC, [metric])))[metric]
        if not isinstance(name, bytes):
            self._on_warning(f"metric {metric.hex()} has no name: no rollups are built of it")
            return
        days = 1
        day_s = await self._next_day(metric, first_s, span.end_s)
        if day_s is None:
            await self._derive(metric, span)  # of rows that were cleared
        while day_s is not None:
            begun = trio.current_time()
            part = _Part(self._layout, self._rules, metric, name.decode("latin-1"), self._raw_tag)
            stop_s = min(day_s + days * DAY_S, -(-span.end_s // DAY_S) * DAY_S)
            try:
                await self._retried(partial(self._build, part, ScanRange(day_s, stop_s), span))
            except DamagedBlock as exc:
                if days > 1:
                    days = 1
                    continue
                self._on_warning(f"no rollups of the rest of the day {day_s}: {exc}")
            days = _next_days(days, part.points)
            pause_s = (trio.current_time() - begun) * self._rules.pause_ratio
            day_s = await self._next_day(metric, stop_s, span.end_s) if stop_s < span.end_s else None
            position = BuildPosition(metric, span.end_s if day_s is None else day_s)
            if day_s is None:
                pause_s += await self._derive(metric, span) * self._rules.pause_ratio
            yield BuildStep(part.points, part.cells, position)
            await trio.sleep(pause_s)

    async def _build(self, part: "_Part", days: ScanRange, span: BuildRange) -> None:
        """Build the rollups of some days of a metric."""
        part.clear()
        selection = self._reader.select_all(part.uid, part.metric)
        series = selection.series
        hours = ScanRange(
            max(days.start_s, span.first_s // HOUR_S * HOUR_S), min(days.stop_s, -(-span.end_s // HOUR_S) * HOUR_S)
        )

        async def take(page: EncodedPage[PointPage]) -> None:
            await series.match(page.series())
            found = await trio.to_thread.run_sync(part.read, page)
            for warning in found.warnings:
                self._on_warning(f"metric {part.metric}: {warning}")
            if part.intervals >= MOST_INTERVALS:
                await self._put(part, part.take_short(), series.series_pairs, ScanRange(0, 0), span)

        try:
            await selection.read(hours, take, annotations=False)
        except DamagedBlock:
            await self._put(part, part.take_short(), series.series_pairs, ScanRange(0, 0), span)
            raise
        await self._put(part, [*part.take_short(), *part.long_sums()], series.series_pairs, days, span)
        await self._store.sync()

    async def _put(
        self,
        part: "_Part",
        sums: Sequence[tuple[Interval, Sums]],
        series_pairs: Sequence[bytes],
        read: ScanRange,
        span: BuildRange,
    ) -> None:
        """Store the cells of aggregates. Rows that lie in the time `read` get no others from this build: derived values
        are stored with them."""
        keep_s = self._rules.keep_s(part.metric)  # what was deleted before it was read, had expired by now
        first_s = span.first_s if keep_s is None else max(span.first_s, self._now_ms() // 1000 - keep_s)
        read_s = max(read.start_s, span.first_s)
        for interval, each in sums:
            whole = each.within(first_s, span.end_s, interval.seconds)
            if not len(whole.series):
                continue
            rows = await trio.to_thread.run_sync(part.rows, whole, interval, series_pairs)
            for at in range(len(rows.bases)):
                end = next_base(interval, int(rows.bases[at]))
                is_whole = read_s <= rows.bases[at] and end <= min(read.stop_s, span.end_s)
                await self._put_rows(part, interval, rows, at, is_whole=is_whole)

    async def _put_rows(self, part: "_Part", interval: Interval, rows: RowOrder, at: int, *, is_whole: bool) -> None:
        """Store the cells of the rows of one salt and base time."""
        begin, end = rows.begins[at : at + 2].tolist()
        derived = self._store.derived_values
        if derived is not None:
            values = await trio.to_thread.run_sync(part.columns, rows, at, interval) if is_whole else None
            prefix = rows.heads[at] + base_bytes(int(rows.bases[at]))
            await derived.put_new(interval.table, prefix, part.matrices(rows, at, interval), values)
            return
        for start in range(begin, end, PUT_INTERVALS):
            chosen = rows.sums.at(slice(start, min(start + PUT_INTERVALS, end)))
            puts = await trio.to_thread.run_sync(part.puts, chosen, interval)
            await self._store.put(interval.table, puts)
            part.cells += len(puts)

    async def _derive(self, metric: bytes, span: BuildRange) -> float:
        """Let the store derive values from the rows that were built of a metric, if it can. Return how long it took."""
        begun, closed_s = trio.current_time(), max(span.closed_s, span.end_s)
        if self._store.derived_values is not None:
            for interval in self._rules.intervals:
                await self._retried(
                    partial(
                        derive_rows,
                        self._store,
                        self._layout,
                        interval,
                        metric,
                        ScanRange(span.first_s, span.end_s),
                        closed_s,
                    )
                )
        return trio.current_time() - begun

    async def _metrics(self, span: BuildRange, first: bytes) -> AsyncGenerator[bytes, None]:
        """Yield the UID of each metric from `first` on that has rows, in order."""
        if span.metrics:
            for metric in span.metrics:
                if metric >= first:
                    yield metric
            return
        next_metric: bytes | None = first or bytes(self._layout.widths.metric)
        while next_metric is not None:
            keys = [await self._first_key(salt + next_metric, prefix_end(salt)) for salt in salts(self._layout)]
            found = [key[self._layout.salt_width : self._layout.metric_end] for key in keys if key is not None]
            if not found:
                return
            metric = min(found)
            if any(metric):  # the others are global annotations
                yield metric
            next_metric = prefix_end(metric)

    async def _next_day(self, metric: bytes, first_s: int, end_s: int) -> int | None:
        """Return the day of the metric's first row between two times, None if there is none."""
        bases = []
        for salt in salts(self._layout):
            prefix = salt + metric
            start = prefix + base_bytes(first_s // HOUR_S * HOUR_S)
            key = await self._first_key(start, prefix + base_bytes(end_s))
            if key is not None:
                bases.append(int.from_bytes(key[self._layout.metric_end :][:BASE_BYTES], "big"))
        return min(bases) // DAY_S * DAY_S if bases else None

    async def _first_key(self, start: bytes, stop: bytes | None) -> bytes | None:
        """Return the first row key of a series in a range of the data table."""
        at: bytes | None = start
        while at is not None and (stop is None or at < stop):
            page = await self._retried(partial(self._store.page, self._table, at, stop, limit=1))
            if page.rows and len(page.rows[0].key) >= self._layout.pairs_start:
                return page.rows[0].key
            at = page.rows[0].key + b"\0" if page.rows else page.next_start
        return None

    async def _find_raw_tag(self) -> tuple[bytes, bytes]:
        """Return the UIDs of the tag that rollups of single series get; assign them if they are new."""
        rollups = self._rules.rollups
        found = []
        for kind, name in ((Kind.TAGK, rollups.tag_key), (Kind.TAGV, rollups.raw_value)):
            uid = (await self._uids.find_or_assign(kind, [name]))[name]
            if not isinstance(uid, bytes):
                raise uid if isinstance(uid, TsdError) else StoreError(f"no UID for {name.decode('latin-1')}")
            found.append(bytes(uid))
        return found[0], found[1]

    async def _retried(self, call: Callable[[], Awaitable[T]]) -> T:
        """Return the result of `call`, retried with backoff on StoreError."""
        for wait_s in backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES):
            try:
                return await call()
            except (DamagedBlock, WrongClock):
                raise
            except StoreError as error:
                self._on_retry(error)
            await trio.sleep(wait_s)
        return await call()


class _Part:
    """Some days of one metric: computes in threads, without I/O."""

    def __init__(
        self, layout: KeyLayout, rules: BuildRules, uid: bytes, metric: str, raw_tag: tuple[bytes, bytes] | None
    ) -> None:
        self.metric = metric
        self._layout = layout
        self._config = rules.rollups.config
        self._short = sorted((one for one in rules.intervals if one.seconds <= HOUR_S), key=lambda one: one.seconds)
        self._intervals = rules.intervals
        self.uid = uid
        self._raw_tag = raw_tag
        self.clear()

    def clear(self) -> None:
        """Start again."""
        self.points = 0
        self.cells = 0
        self.intervals = 0  # that are held and no longer than an hour
        self._keys = RowKeys([], [])
        self._held: list[tuple[Interval, list[Sums]]] = [(one, []) for one in self._short]
        self._long = [(one, LongSums(one.seconds)) for one in self._intervals if one.seconds > HOUR_S]

    def read(self, page: EncodedPage[PointPage]) -> PointPage:
        """Return a decoded page, and hold the aggregates of its intervals."""
        found = page.decode()
        self.points += len(found.batch.times)
        known: dict[int, Sums] = {}
        for seconds in dict.fromkeys([*(one.seconds for one in self._short), *([HOUR_S] if self._long else [])]):
            divisors = [other for other in known if seconds % other == 0]
            known[seconds] = coarser(known[max(divisors)], seconds) if divisors else sums_of(found.batch, seconds)
        for interval, sums in self._held:
            sums.append(known[interval.seconds])
            self.intervals += len(sums[-1].series)
        for _, added in self._long:
            added.add(known[HOUR_S])
        return found

    def take_short(self) -> list[tuple[Interval, Sums]]:
        """Return the held aggregates of the intervals that are no longer than an hour, and hold them no more."""
        held, self._held = self._held, [(one, []) for one in self._short]
        self.intervals = 0
        return [(one, joined(sums)) for one, sums in held if sums]

    def long_sums(self) -> list[tuple[Interval, Sums]]:
        """Return the aggregates of the intervals that are longer than an hour."""
        every = [(one, list(added.finish())) for one, added in self._long]
        return [(one, joined(sums)) for one, sums in every if sums]

    def rows(self, sums: Sums, interval: Interval, series_pairs: Sequence[bytes]) -> RowOrder:
        """Return aggregates in the order of rows. `series_pairs` are the tag pairs of each series, by number."""
        heads, tails = self._keys
        layout = self._layout
        for each in series_pairs[len(tails) :]:
            tagged = self._tagged(each)
            salt = salt_of(self.uid, tagged, layout.salt_width, layout.salt_buckets) if layout.salt_width else b""
            heads.append(salt + self.uid)
            tails.append(tagged)
        return row_order(sums, interval, self._keys)

    def puts(self, sums: Sums, interval: Interval) -> list[Put]:
        """Return the cells of aggregates in the order of rows."""
        return rollup_puts(sums, interval, self._config, self._keys)

    def matrices(self, rows: RowOrder, at: int, interval: Interval) -> Iterator[CellMatrix]:
        """Yield the cells of the rows of one salt and base time, and count them."""
        chosen = rows.sums.at(slice(*rows.begins[at : at + 2].tolist()))
        for one in rollup_matrices(chosen, interval, self._config, self._keys, int(rows.bases[at])):
            self.cells += one.cells
            yield one

    def columns(self, rows: RowOrder, at: int, interval: Interval) -> dict[bytes, bytes] | None:
        """Return the columns of the rows of one salt and base time; None if they are too large."""
        chosen = rows.sums.at(slice(*rows.begins[at : at + 2].tolist()))
        values = encode_sums(chosen, interval, self._config, int(rows.bases[at]), self._keys.tails)
        return values if sum(map(len, values.values())) <= MOST_BYTES else None

    def _tagged(self, pairs: bytes) -> bytes:
        """Return the tag pairs of a series in rollup tables."""
        split = split_pairs(self._layout.widths, pairs)
        if self._raw_tag is None or any(tagk == self._raw_tag[0] for tagk, _ in split):
            return pairs
        return join_pairs([*split, self._raw_tag])


def _next_days(days: int, points: int) -> int:
    """Return the days of the next part after one with some points."""
    if points > MANY_POINTS:
        return max(days // 2, 1)
    return min(days * 2, MOST_DAYS) if points < FEW_POINTS else days


async def delete_cells(
    store: Store, layout: KeyLayout, interval: Interval, metric: bytes, span: ScanRange, *, read_ms: int
) -> None:
    """Delete the cells of a metric's intervals that begin in a span. Cells with the name of an aggregator stay. Raise
    StoreError."""
    for salt in salts(layout):
        head = salt + metric
        start, stop = head + base_bytes(interval.row_start(span.start_s)), head + base_bytes(span.stop_s)
        async with aclosing(cell_pages(store, interval.table, start, stop)) as pages:
            async for page in pages:
                await remove_rows(store, interval.table, _rows_in_span(page, layout, interval, span), read_ms=read_ms)


def _rows_in_span(page: CellPage, layout: KeyLayout, interval: Interval, span: ScanRange) -> list[Row]:
    """Return the rows of a page with the cells of a span, without their values."""
    rows: dict[bytes, Row] = {}
    for at, (key, column) in enumerate(zip(page.keys, page.columns, strict=True)):
        if len(column) != COLUMN_BYTES:
            continue
        base = int.from_bytes(key[layout.metric_end : layout.pairs_start], "big")
        time_s = rollup_time(base, interval, int.from_bytes(column[-2:], "big") >> 4)
        if span.start_s <= time_s < span.stop_s:
            rows.setdefault(key, Row(key, [])).cells.append(page.cell(at)._replace(value=b""))
    return list(rows.values())

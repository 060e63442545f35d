"""Deletes rows whose points have all expired, by the rules of tsd.retention.

Rows are ordered by metric and time, so what has expired of a metric is one range of rows for each salt. A row goes when
the youngest point that it can hold has expired. On an engine with cheap deletes of ranges, one delete removes a range.
On Cassandra it is one delete a page, so that few tombstones remain. On others, and where annotations stay, the cells
that were read are deleted, so that what another process writes meanwhile stays.
"""

import re
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Sequence
from contextlib import aclosing, suppress
from typing import NamedTuple

from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN, CellKind, kind_of
from tsd.codec.opentsdb.rollup import Interval, Rollups, rollup_base
from tsd.codec.opentsdb.rowkey import base_bytes
from tsd.codec.putline import HOUR_S
from tsd.config.retention import RetentionRule, RetentionRules
from tsd.errors import DamagedBlock
from tsd.store import CellPage, Put, RangeDeletes, Row, StampedCells, cell_pages
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.delete import remove_rows
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.retention_task import Amount

COUNTED_HOURS = 8  # of a range; of one with more hours, and more bytes or rows, a sample is counted
COUNTED_BYTES, COUNTED_ROWS = 2 << 20, 20_000
SAMPLED_PARTS = (1, 4, 6, 0, 7, 3, 2, 5)  # of each range, for an estimate: an hour in the middle of each eighth
LEAST_SAMPLED_HOURS = 3  # after which an estimate ends early, once it has enough bytes or rows
ENOUGH_BYTES, ENOUGH_ROWS = 32 << 20, 30_000
RECLAIM_BYTES = 32 << 20  # deleted from a range before its space is freed: files have 64 MiB
RECLAIM_SHARE = 0.1  # of a table's bytes, deleted from smaller ranges, after which all of its space is freed
TRIES = 3  # of a range whose rows are written to while annotations that stay are read
GLOBAL = "global annotations"  # what their rule is called
_PAGE_BYTES = 1 << 20
_NOTES_PAGE = 100  # rows that have annotations alone are read together
_ANY = re.compile("")


class Estimate(NamedTuple):
    """What a range holds."""

    amount: Amount
    is_sample: bool  # computed from a sample


class ExpiredRange(NamedTuple):
    """Expired rows of one metric, in one table and under one salt."""

    table: str
    rule: str  # as written
    metric: str
    prefix: bytes  # salt and metric
    stop_s: int  # base times before it have expired
    interval: Interval | None  # of rollups; None: points
    notes_from_s: int | None  # annotations of hours that end later stay; None: they go with their points

    @property
    def start(self) -> bytes:
        """Return the first possible row key."""
        return self.prefix

    @property
    def stop(self) -> bytes:
        """Return the first row key that has not expired."""
        return self.prefix + base_bytes(self.stop_s)


class _Deleted(NamedTuple):
    """What was deleted of a metric and salt since its space was freed."""

    size: int  # bytes
    stop: bytes  # the first row key that stays


class RetentionPolicy(NamedTuple):
    """Rules for each kind of rows, from the settings."""

    points: RetentionRules
    rollups: RetentionRules
    annotations_s: int | None  # None: forever
    has_annotation_rule: bool = False  # without one, annotations of series go with their points

    @property
    def expires(self) -> bool:
        """Return whether anything ever expires."""
        return self.points.expires or self.rollups.expires or self.annotations_s is not None


class Retention:
    """Finds and deletes expired rows of a set of OpenTSDB's tables."""

    def __init__(self, table: DataTable, uids: Uids, policy: RetentionPolicy, rollups: Rollups | None) -> None:
        self._store, self._table, self._layout = table
        self._uids = uids
        self.policy = policy
        self._rollups = rollups
        self._unreclaimed: dict[tuple[str, bytes], _Deleted] = {}  # by table and prefix

    async def expired(self, now_s: int) -> AsyncGenerator[ExpiredRange, None]:
        """Yield the ranges in which rows have expired at `now_s`. Raise StoreError."""
        for table, interval in self._tables():
            rules = self.policy.points if interval is None else self.policy.rollups
            if not rules.expires and (interval is not None or self.policy.annotations_s is None):
                continue
            async with aclosing(self._prefixes(table)) as prefixes:
                async for prefix in prefixes:
                    found = await self._expired_of(table, interval, rules, prefix, now_s)
                    if found is not None and await self._has_cells(found):
                        yield found

    async def estimate(self, expired: ExpiredRange, *, exact: bool = False) -> Estimate:
        """Return what a range holds, from a sample of its hours if it is long and large, and not `exact`. Raise
        StoreError."""
        step_s = HOUR_S if expired.interval is None else expired.interval.row_s
        first_s = await self._first_base(expired)
        rows = max((expired.stop_s - first_s) // step_s, 1)
        if exact or rows <= COUNTED_HOURS:
            return Estimate(await self._count(expired, expired.start, expired.stop), is_sample=False)
        small = await self._count_small(expired)  # points may be in few hours, which a sample misses
        if small is not None:
            return Estimate(small, is_sample=False)
        found, hours = Amount(), 0
        for part in SAMPLED_PARTS:
            base = first_s + step_s * (rows * (2 * part + 1) // (2 * len(SAMPLED_PARTS)))
            start, stop = (expired.prefix + base_bytes(at) for at in (base, base + step_s))
            found, hours = found.plus(await self._count(expired, start, stop)), hours + 1
            if hours >= LEAST_SAMPLED_HOURS and (found.bytes >= ENOUGH_BYTES or found.rows >= ENOUGH_ROWS):
                break
        return Estimate(Amount().plus(found, rows / hours), is_sample=True)

    async def remove(self, expired: ExpiredRange, clock_ms: Callable[[], int]) -> AsyncGenerator[Amount, None]:
        """Delete the rows of a range that `expired` found. Yield what each step deleted, so that the caller can pause
        between steps. It is counted, but estimated for a delete of a long range. `clock_ms` stamps reads. Raise
        StoreError; the call may then be repeated."""
        if self._store.range_deletes is None:
            stamped = self._store.stamped_cells if expired.notes_from_s is None else None
            async with aclosing(
                self._remove_cells(expired, clock_ms)
                if stamped is None
                else self._remove_pages(stamped, expired, clock_ms)
            ) as steps:
                async for amount in steps:
                    yield amount
            await self._store.sync()
            return
        found = await self._remove_range(self._store.range_deletes, expired)
        if found is None:
            return
        place = expired.table, expired.prefix
        before = self._unreclaimed.get(place, _Deleted(0, b""))
        self._unreclaimed[place] = _Deleted(before.size + found.bytes, max(before.stop, expired.stop))
        await self._store.sync()
        yield found

    async def _remove_range(self, ranges: RangeDeletes, expired: ExpiredRange) -> Amount | None:
        """Delete the rows of a range in one step, and return what it held. None: the next round deletes it, because
        rows were written to again and again while annotations that stay were read."""
        place = expired.table, expired.start, expired.stop
        if expired.notes_from_s is None:
            found = (await self.estimate(expired)).amount
            await ranges.delete_range(*place, changed=await self._hour_keys(expired))
            return found
        for _ in range(TRIES):
            with ranges.watching_range(*place) as watch:
                found, keep = await self._annotations(expired)
                changed = await self._hour_keys(expired)
                if await ranges.delete_range(*place, changed=changed, keep=keep, unless=watch):
                    return found
        return None

    async def _remove_cells(self, expired: ExpiredRange, clock_ms: Callable[[], int]) -> AsyncGenerator[Amount, None]:
        """Delete the cells of a range that are no newer than when they were read."""
        read_ms = clock_ms()
        async with aclosing(self._pages(expired.table, expired.start, expired.stop)) as pages:
            async for page in pages:
                keep = self._kept(page, expired).keys()
                await remove_rows(self._store, expired.table, _rows(page, keep), read_ms=read_ms)
                yield _amount(page, keep)
                read_ms = clock_ms()

    async def _remove_pages(
        self, stamped: StampedCells, expired: ExpiredRange, clock_ms: Callable[[], int]
    ) -> AsyncGenerator[Amount, None]:
        """Delete the rows of a range page by page, with all that was written before a page was read: it has expired."""
        read_ms = clock_ms()
        async with aclosing(self._pages(expired.table, expired.start, expired.stop)) as pages:
            async for page in pages:
                stop = page.next_start or expired.stop
                up_to_ms = max(read_ms - 1, *page.times_ms)
                await stamped.delete_rows(expired.table, page.keys[0], stop, up_to_ms=up_to_ms)
                yield _amount(page)
                read_ms = clock_ms()

    async def _annotations(self, expired: ExpiredRange) -> tuple[Amount, list[Put]]:
        """Return what a range holds that goes, and its annotations that stay."""
        found = Amount()
        keep: list[Put] = []
        async with aclosing(self._pages(expired.table, expired.start, expired.stop)) as pages:
            async for page in pages:
                kept = self._kept(page, expired)
                found = found.plus(_amount(page, kept))
                keep += kept.values()
        return found, keep

    async def reclaim(self) -> None:
        """Free the space of deleted ranges that is worth it. Raise StoreError."""
        ranges = self._store.range_deletes
        if ranges is None:
            return
        for place, deleted in list(self._unreclaimed.items()):
            if deleted.size >= RECLAIM_BYTES:
                table, prefix = place
                await ranges.reclaim(table, prefix, deleted.stop)
                self._forget(place, deleted)
        for table in {table for table, _ in self._unreclaimed}:
            waiting = {place: deleted for place, deleted in self._unreclaimed.items() if place[0] == table}
            size = sum(deleted.size for deleted in waiting.values())
            if size >= max(RECLAIM_SHARE * ranges.stored_bytes(table), RECLAIM_BYTES):
                await ranges.reclaim(table, b"\0", b"\xff" * (self._layout.pairs_start + 1))
                for place, deleted in waiting.items():
                    self._forget(place, deleted)

    def _forget(self, place: tuple[str, bytes], freed: _Deleted) -> None:
        """Subtract what was freed: more may have been deleted meanwhile."""
        left = self._unreclaimed[place]
        if left == freed:
            del self._unreclaimed[place]
        else:
            self._unreclaimed[place] = left._replace(size=left.size - freed.size)

    def _tables(self) -> Iterator[tuple[str, Interval | None]]:
        """Yield each table with the interval of its rollups; None for the raw points."""
        yield self._table, None
        known = {self._table}
        for interval in self._rollups.config.intervals if self._rollups else ():
            for table in (interval.table, interval.pre_aggregate_table):
                if table not in known:
                    known.add(table)
                    yield table, interval

    async def _expired_of(
        self, table: str, interval: Interval | None, rules: RetentionRules, prefix: bytes, now_s: int
    ) -> ExpiredRange | None:
        """Return the expired range of a metric, whether or not it has rows."""
        metric = prefix[self._layout.salt_width :]
        if not any(metric):
            keep_s = self.policy.annotations_s if interval is None else None
            name, rule = GLOBAL, RetentionRule(GLOBAL, "", _ANY, keep_s)
        else:
            name = await self._name(metric)
            found = rules.find(name, interval.name if interval else "")
            if found is None:
                return None
            rule = found
        if rule.keep_s is None or now_s <= rule.keep_s:
            return None
        cutoff_s = now_s - rule.keep_s
        stop_s = cutoff_s - cutoff_s % HOUR_S if interval is None else rollup_base(cutoff_s, interval)
        return ExpiredRange(table, rule.text, name, prefix, stop_s, interval, self._notes_from_s(interval, now_s))

    async def _name(self, metric: bytes) -> str:
        """Return the name of a metric; its UID in angle brackets if it has none."""
        found = (await self._uids.names(Kind.METRIC, [metric]))[metric]
        return found.decode("latin-1") if isinstance(found, bytes) else f"<{metric.hex()}>"

    async def _prefixes(self, table: str) -> AsyncGenerator[bytes, None]:
        """Yield salt and metric of each metric that has rows, in order."""
        end = self._layout.metric_end
        at: bytes | None = b""
        while at is not None:
            page = await self._store.page(table, at, None, limit=1)
            if not page.rows:
                at = page.next_start
                continue
            key = page.rows[0].key
            if len(key) < self._layout.pairs_start:  # not a row of points
                at = key + b"\0"
                continue
            yield key[:end]
            at = prefix_end(key[:end])

    async def _has_cells(self, expired: ExpiredRange) -> bool:
        """Return whether a range has cells that go."""
        at: bytes | None = expired.start
        limit = 1
        while at is not None and at < expired.stop:
            page = await self._store.page(expired.table, at, expired.stop, limit=limit)
            if any(not self._stays(row.key, cell.column, expired) for row in page.rows for cell in row.cells):
                return True
            at, limit = page.next_start, _NOTES_PAGE
        return False

    async def _first_base(self, expired: ExpiredRange) -> int:
        """Return the base time of the first row of a range."""
        page = await self._store.page(expired.table, expired.start, expired.stop, limit=1)
        return self._base_of(page.rows[0].key) if page.rows else expired.stop_s

    async def _count(self, expired: ExpiredRange, start: bytes, stop: bytes) -> Amount:
        """Return what a part of a range holds that goes."""
        found = Amount()
        with suppress(DamagedBlock):  # what is unreadable is not counted, but expires
            async with aclosing(self._pages(expired.table, start, stop)) as pages:
                async for page in pages:
                    found = found.plus(_amount(page, self._kept(page, expired)))
        return found

    async def _count_small(self, expired: ExpiredRange) -> Amount | None:
        """Return what a range holds; None if that is `COUNTED_BYTES` or
        `COUNTED_ROWS` or more, or in part unreadable."""
        found = Amount()
        try:
            async with aclosing(self._pages(expired.table, expired.start, expired.stop)) as pages:
                async for page in pages:
                    found = found.plus(_amount(page, self._kept(page, expired)))
                    if found.bytes >= COUNTED_BYTES or found.rows >= COUNTED_ROWS:
                        return None
        except DamagedBlock:
            return None
        return found

    def _pages(self, table: str, start: bytes, stop: bytes) -> AsyncGenerator[CellPage, None]:
        return cell_pages(self._store, table, start, stop, limit_bytes=_PAGE_BYTES)

    def _base_of(self, key: bytes) -> int:
        return int.from_bytes(key[self._layout.metric_end : self._layout.pairs_start], "big")

    async def _hour_keys(self, expired: ExpiredRange) -> Sequence[bytes]:
        """Return the start of a row key of each hour of a range, from the first one with a row. Raise StoreError."""
        first_s = await self._first_base(expired)
        return [expired.prefix + base_bytes(base) for base in range(first_s, expired.stop_s, HOUR_S)]

    def _notes_from_s(self, interval: Interval | None, now_s: int) -> int | None:
        """Return the time after which annotations stay although their points go. None: they go with their points.
        Tables of rollups have no annotations, but cells with such columns: those of the aggregator with the id 1."""
        if not self.policy.has_annotation_rule or interval is not None:
            return None
        return 0 if self.policy.annotations_s is None else now_s - self.policy.annotations_s

    def _stays(self, key: bytes, column: bytes, expired: ExpiredRange) -> bool:
        """Return whether a cell is an annotation that stays."""
        if expired.notes_from_s is None or kind_of(column[len(COLUMN) :]) is not CellKind.ANNOTATION:
            return False
        return self._base_of(key) + HOUR_S > expired.notes_from_s

    def _kept(self, page: CellPage, expired: ExpiredRange) -> dict[int, Put]:
        """Return the annotations of a page that stay, by their places in the page."""
        if expired.notes_from_s is None:
            return {}
        return {
            at: Put(key, column, page.cell(at).value)
            for at, (key, column) in enumerate(zip(page.keys, page.columns, strict=True))
            if self._stays(key, column, expired)
        }


def _amount(page: CellPage, without: Collection[int] = ()) -> Amount:
    """Return what the cells of a page hold, but for those at some places. Cells of unreadable form count as one
    point."""
    keys, columns, values = page.keys, page.columns, page.values
    if without:
        places = [at for at in range(len(keys)) if at not in without]
        keys, columns, values = ([some[at] for at in places] for some in (keys, columns, values))
    points = sum(number * _points(column) for column, number in Counter(columns).items())
    size = sum(map(len, keys)) + sum(map(len, columns)) + sum(map(len, values))
    return Amount(len(set(keys)), points, size - page.ahead * len(values))


def _points(column: bytes) -> int:
    """Return about how many points a cell has: a qualifier has 2 bytes for each, or 4 with milliseconds."""
    size = len(column) - len(COLUMN)
    if size % 2:
        return 0 if column[len(COLUMN)] == 1 else 1
    return size // 4 if size and column[len(COLUMN)] & 0xF0 == 0xF0 else size // 2


def _rows(page: CellPage, without: Collection[int]) -> Iterator[Row]:
    """Yield the rows of a page without the cells at some places."""
    row: Row | None = None
    for at, key in enumerate(page.keys):
        if at in without:
            continue
        if row is None or row.key != key:
            if row is not None:
                yield row
            row = Row(key, [])
        row.cells.append(page.cell(at))
    if row is not None:
        yield row

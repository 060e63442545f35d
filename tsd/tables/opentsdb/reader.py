"""Reads points, rollups and histograms from OpenTSDB's tables: implements the protocols of `tsd.tables.reading`."""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from functools import partial
from itertools import chain
from typing import NamedTuple

import numpy as np

from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import ANNOTATION, decode_annotation
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rollup import Rollups
from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout, base_bytes
from tsd.codec.putline import base_time
from tsd.errors import CorruptRow, DamagedBlock
from tsd.store import (
    CELL_PAGE_BYTES,
    Cell,
    CellPage,
    ColumnBlocks,
    ColumnPart,
    Row,
    StepLimit,
    Store,
    cells_of_keys,
    scan,
)
from tsd.store.cells import prefix_end
from tsd.tables.opentsdb.column_pages import ColumnPage, NumberedPages, columns_of_rows
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.decode import NumberedRows, decode, number_rows
from tsd.tables.opentsdb.delete import remove_joined, remove_rows
from tsd.tables.opentsdb.known_series import known_table
from tsd.tables.opentsdb.matched_series import MatchedKeyedSeries, MatchedStoredSeries, PairsSpan, RowReads
from tsd.tables.opentsdb.rollup_progress import Changing, unobserved
from tsd.tables.opentsdb.rollup_scan import read_rollups
from tsd.tables.opentsdb.scan import (
    EncodedCells,
    few_series,
    hour_range,
    key_pattern,
    key_ranges,
    read_pages,
    read_ranges,
    read_rows,
    row_keys,
    scan_parts,
)
from tsd.tables.opentsdb.selection import FilterResolver, FilterRules, ResolvedRequest, SeriesMatcher
from tsd.tables.opentsdb.series_index import IndexState, SeriesIndex
from tsd.tables.opentsdb.stored_hours import SignedChanges, StoredChanges, StoredHours, StoredSignatures
from tsd.tables.opentsdb.stored_points import StoredPoints
from tsd.tables.opentsdb.stored_rows import StoredRows
from tsd.tables.opentsdb.summary_cells import HistogramFormat, RollupColumns, decode_histograms
from tsd.tables.opentsdb.tag_table import TagTests
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import (
    UNWANTED,
    ChangeSource,
    HistogramPage,
    HistogramSource,
    HourSource,
    JointSource,
    MatchedSeries,
    Places,
    PointPage,
    RollupInterval,
    RollupPage,
    RollupSource,
    ScanRange,
    Selection,
    SeriesRequest,
    SeriesSet,
    Take,
    TextSource,
)
from tsd.tables.writing import KnownSeries, SeriesKeys

KNOWN_COST = 4  # finding the points of 1/4 of a metric's series takes as long as those of all


class ReadRules(NamedTuple):
    """How rows are read."""

    filters: FilterRules = FilterRules()
    scans: int = 1  # in parallel, for one query
    max_gets: int = 20_000  # rows read by key instead of by a scan


class ReadTable(NamedTuple):
    """The data table, and how its rows are read."""

    store: Store
    name: str
    layout: KeyLayout
    rules: ReadRules = ReadRules()
    deleting: Changing = unobserved  # entered around deletes of rows


class StoredSelection:
    """One resolved request."""

    reads_hours_in_parts = False
    joint: JointSource | None = None

    def __init__(
        self,
        table: ReadTable,
        resolved: ResolvedRequest,
        series: SeriesMatcher,
        *,
        index: SeriesIndex | None,
        keeps_rows: bool,
        has_same_names: Callable[[], bool],
    ) -> None:
        """`keeps_rows`: record what is read, to delete it later. `has_same_names`: no name has changed since."""
        self._has_same_names = has_same_names
        self._table = table
        self._resolved = resolved
        self._index = index
        self._keeps_rows = keeps_rows
        self._rows: list[Row] = []
        self._few: dict[int, Sequence[bytes] | None] = {}  # by number of hours: see `few_series`
        self._index_state: IndexState | None = None  # before the first search for few series
        self._pattern = key_pattern(resolved.conditions) if table.store.capabilities.filters_rows else ""
        self.metric = resolved.name if resolved.metric is not None else ""
        self.filter_tagks = resolved.filter_tagks
        self._matcher = series
        self.series: SeriesSet = series
        self._pages = NumberedPages(series)
        self.rollups: RollupSource | None = None
        self.histograms: HistogramSource | None = None
        self.texts: TextSource | None = None
        self.hours: HourSource | None = None
        self.reads_beyond = resolved.fuzzy
        if not (keeps_rows or resolved.is_empty):
            assert resolved.metric is not None
            signs, signatures = table.store.cell_signatures, None
            if signs is not None:
                calls = table.rules.scans
                signatures = StoredSignatures(signs, table.name, table.layout, resolved.metric, calls=calls)
            self.hours = StoredHours(resolved.metric, signatures, reads_all=not self._pattern)

    def pairs_of(self, keys: SeriesKeys) -> Sequence[bytes | None]:
        """Return the joined tag pairs of series of the request's metric."""
        metric = self._resolved.metric
        if metric is None or self._resolved.is_empty:
            return [None] * len(keys)
        return keys.tails(metric, self._table.layout.salt_width)

    async def find_known(self, series: KnownSeries) -> Places | None:
        """Return the places of matching series, see `Selection`."""
        metric, layout = self._resolved.metric, self._table.layout
        if metric is None or self._resolved.impossible:
            return None
        if not self._matcher.excludes and self._resolved.series_pairs is None:  # all may match
            return None
        known = series.view(metric, lambda keys: known_table(keys, metric, layout))
        if known is None:
            return None
        rows = await self._matcher.find(known.table)
        return known.places[rows] if len(rows) * KNOWN_COST < len(series) else None

    async def read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read raw rows with scans. Raise StoreError and what `take` raises."""
        with self._naming_damage():
            await self._read(span, take, annotations=annotations)

    async def _read(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        table, scans = self._table, self._table.rules.scans
        split = 1 if table.store.capabilities.splits_scans else scans
        parts = scan_parts(table.layout, span.hours, split, self._pattern)
        ranges = key_ranges(table.layout, self._resolved, span, parts)
        if (blocks := self._blocks()) is not None:
            read = partial(blocks.read_columns, limit_bytes=CELL_PAGE_BYTES, range_of=partial(hour_range, table.layout))
            await read_pages(
                lambda part: read(table.name, part.start, part.stop),
                ranges,
                lambda parts: take(self._column_page(parts, annotations=annotations)),
                parallel=scans,
            )
            return
        await read_ranges(
            table.store,
            table.name,
            ranges,
            self._page_handler(take, annotations=annotations, keeps_rows=self._keeps_rows),
            parallel=scans,
            pattern=self._pattern,
            hours_of=None if table.store.capabilities.splits_scans else table.layout,
        )

    def _blocks(self) -> ColumnBlocks | None:
        """Return what reads packed rows by column, None if rows are read as cells."""
        return None if self._keeps_rows else self._table.store.column_blocks

    @contextmanager
    def _naming_damage(self) -> Iterator[None]:
        """Name the metric and the hour of a damaged block."""
        try:
            yield
        except DamagedBlock as exc:
            if isinstance(exc.__cause__, DamagedBlock):  # has its name already
                raise
            base_s = int.from_bytes(exc.prefix[-BASE_BYTES:], "big")
            raise DamagedBlock(f"metric {self.metric}, hour {base_s}: {exc}", exc.prefix) from exc

    def matched_series(self) -> MatchedSeries | None:
        """Return the matching series, see `Selection`."""
        table, resolved, matcher = self._table, self._resolved, self._matcher
        blocks = table.store.column_blocks
        if self._keeps_rows or resolved.is_empty or resolved.fuzzy or not matcher.series_pairs:
            return None
        if resolved.series_pairs is not None and len(resolved.series_pairs) > len(matcher.series_pairs):
            return None  # others of these may have rows at other times
        by_key, index = resolved.series_pairs is not None, None
        if not by_key and self._few:
            # A series with open points only is not in the index yet.
            by_key = all(few == [] or set(few or ()) == set(matcher.series_pairs) for few in self._few.values())
            index = self._index if by_key else None  # a read of the whole range finds others itself
        if not by_key and (blocks is None or table.layout.salt_width or any(self._few.values())):
            return None
        series_pairs, state, has_same_names = tuple(matcher.series_pairs), self._index_state, self._has_same_names

        def is_current() -> bool:
            return has_same_names() and (index is None or state is None or index.is_current(state))

        if blocks is None:
            return MatchedKeyedSeries(is_current, series_pairs, self._get_rows)

        def read_parts(span: ScanRange, limit: StepLimit) -> list[ColumnPart] | None:
            if by_key:
                if len(series_pairs) * span.hours > limit.cells:
                    return None
                return blocks.get_columns_now(table.name, row_keys(table.layout, resolved, span, series_pairs), limit)
            [rows] = key_ranges(table.layout, resolved, span)
            return blocks.read_columns_now(table.name, rows.start, rows.stop, limit)

        read = RowReads(read_parts, blocks.kept_read, partial(blocks.read_again, table.name))
        start = table.layout.pairs_start
        return MatchedStoredSeries(matcher, is_current, read, self._column_page, start, by_key=by_key)

    async def _get_rows(self, spans: Sequence[PairsSpan], limit: StepLimit, annotations: bool) -> StoredPoints | None:
        """Return the rows of some series, None if they are over the limit."""
        table, resolved = self._table, self._resolved
        if sum([len(series_pairs) * span.hours for span, series_pairs in spans]) > limit.cells:
            return None
        keys = sorted(chain.from_iterable(row_keys(table.layout, resolved, *one) for one in spans))
        page = await cells_of_keys(table.store, table.name, keys)
        decode_cells = partial(self._decode, annotations=annotations, keeps_rows=False)
        return StoredPoints(page, table.layout.pairs_start, self.series, decode_cells, keeps=True)

    def _column_page(self, parts: Sequence[ColumnPart], *, annotations: bool) -> ColumnPage:
        decode_cells = partial(self._decode, annotations=annotations, keeps_rows=False)
        return ColumnPage(parts, self._table.layout.pairs_start, self._pages, decode_cells, self._naming_damage)

    async def find_few(self, span: ScanRange) -> bool:
        """Number few matching series, see `Selection`."""
        if self.reads_beyond or self._blocks() is None or (series_pairs := await self._few_series(span)) is None:
            return False
        await self._matcher.match(series_pairs)
        return True

    async def _few_series(self, span: ScanRange) -> Sequence[bytes] | None:
        """Return the series whose rows are read by their keys; None if a scan is faster. Raise BadQuery, StoreError."""
        series_pairs: Sequence[bytes] | None = self._resolved.series_pairs
        hours, most = span.hours, self._table.rules.max_gets
        if series_pairs is None and self._index is not None:
            if self._index_state is None or not self._index.is_current(self._index_state):
                self._index_state = self._index.state()
                self._few.clear()
            if hours not in self._few:  # a query with open hours reads several spans
                self._few[hours] = await few_series(self._index, self._resolved, self._matcher, hours, most)
            series_pairs = self._few[hours]
        return None if series_pairs is None or len(series_pairs) * hours > most else series_pairs

    async def read_few(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> bool:
        """Read raw rows by their keys if that is faster. Raise BadQuery, StoreError and what `take` raises."""
        series_pairs = await self._few_series(span)
        if series_pairs is None:
            return False
        table = self._table
        keys = row_keys(table.layout, self._resolved, span, series_pairs)
        if (blocks := self._blocks()) is not None:
            with self._naming_damage():
                async with aclosing(columns_of_rows(blocks, table.name, keys)) as pages:
                    async for parts in pages:
                        await take(self._column_page(parts, annotations=annotations))
            return True
        handler = self._page_handler(take, annotations=annotations, keeps_rows=self._keeps_rows)
        await read_rows(table.store, table.name, keys, handler)
        return True

    async def read_table(self, table: str, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read another table whose rows are like raw ones. Raise StoreError and what `take` raises."""
        ranges = key_ranges(self._table.layout, self._resolved, span)
        handler = self._page_handler(take, annotations=annotations, keeps_rows=False)
        await read_ranges(self._table.store, table, ranges, handler, parallel=1)

    def _page_handler(
        self, take: Take[PointPage], *, annotations: bool, keeps_rows: bool
    ) -> Callable[[CellPage], Awaitable[None]]:
        """Return a callback that wraps pages of cells for `take`."""
        decode_page = partial(self._decode, annotations=annotations, keeps_rows=keeps_rows)
        start, series = self._table.layout.pairs_start, self.series
        return lambda page: take(StoredPoints(page, start, series, decode_page))

    def _decode(
        self, page: CellPage, numbered: NumberedRows | None = None, *, annotations: bool, keeps_rows: bool
    ) -> PointPage:
        layout = self._table.layout
        if numbered is None:
            numbered = number_rows(page.keys, layout.pairs_start, self.series)
        decoded = decode(page, numbered, with_notes=annotations)
        if keeps_rows:
            self._rows += self._matching_rows(page)
        return PointPage(
            decoded.batch,
            int(np.count_nonzero(numbered.fresh)),
            decoded.size,
            decoded.notes,
            decoded.warnings,
            decoded.duplicates,
            StoredRows(page, decoded, layout),
        )

    def _matching_rows(self, page: CellPage) -> list[Row]:
        """Return the rows of matching series, with the columns and timestamps of their cells, without values."""
        start, numbers = self._table.layout.pairs_start, self.series.numbers
        rows: dict[bytes, list[Cell]] = {}
        for at, key in enumerate(page.keys):
            if numbers[key[start:]] != UNWANTED:
                rows.setdefault(key, []).append(page.cell(at)._replace(value=b""))
        return [Row(key, cells) for key, cells in rows.items()]

    async def delete(self, read_ms: int) -> None:
        """Delete the raw cells that were read, also those that a compaction has joined since. Raise StoreError."""
        store, table = self._table.store, self._table.name
        keys = [row.key for row in self._rows]
        async with self._table.deleting(keys):
            await remove_rows(store, table, self._rows, read_ms=read_ms)
            await remove_joined(store, table, self._rows, read_ms=read_ms)
            await store.sync()


RollupCompleteness = Callable[[bytes, str], int]  # metric UID and interval → time in s


class StoredRollups:
    """The rollups and pre-aggregates of a selection's series."""

    def __init__(
        self,
        table: ReadTable,
        resolved: ResolvedRequest,
        selection: StoredSelection,
        rollups: Rollups,
        complete: RollupCompleteness | None,
    ) -> None:
        self._table = table
        self._complete = None if rollups.tag_raw else complete  # that tag makes other series of them
        self._resolved = resolved
        self._selection = selection
        self._rollups = rollups
        self.intervals: Sequence[RollupInterval] = rollups.config.intervals
        self.tag_key = rollups.tag_key.decode("latin-1")
        self.raw_value = rollups.raw_value.decode("latin-1")

    def has(self, aggregator: str) -> bool:
        """Return whether an aggregator has cells."""
        return aggregator in self._rollups.config.ids

    def complete_until_s(self, interval: RollupInterval) -> int | None:
        """Return the time before which an interval's rollups agree with the points; None if that is not known."""
        if self._complete is None:
            return None
        metric = self._resolved.metric
        return 0 if metric is None else self._complete(metric, interval.name)

    async def read(
        self,
        interval: RollupInterval,
        aggregators: Sequence[str],
        span: ScanRange,
        take: Take[RollupPage],
        *,
        pre_aggregated: bool,
    ) -> None:
        """Read the cells of some aggregators. Raise StoreError and what `take` raises."""
        config, numbers = self._rollups.config, self._selection.series.numbers
        found = config.interval(interval.name)
        columns = RollupColumns(found, config.column_starts(aggregators))
        name = found.pre_aggregate_table if pre_aggregated else found.table
        table = DataTable(self._table.store, name, self._table.layout)
        await read_rollups(table, self._resolved, span, columns, numbers, take)

    async def read_pre_aggregated(self, span: ScanRange, take: Take[PointPage], *, annotations: bool) -> None:
        """Read pre-aggregates of the default interval. Raise StoreError and what `take` raises."""
        table = self._rollups.config.default.pre_aggregate_table
        await self._selection.read_table(table, span, take, annotations=annotations)


class StoredHistograms:
    """The histograms of a selection's series."""

    def __init__(self, table: ReadTable, resolved: ResolvedRequest, series: SeriesMatcher, codec_id: int) -> None:
        self._table = table
        self._resolved = resolved
        self._series = series
        self._format = HistogramFormat(table.layout, codec_id)

    async def read(self, span: ScanRange, take: Take[HistogramPage]) -> None:
        """Read histograms. Raise StoreError and what `take` raises."""
        layout = self._table.layout
        decode_page = partial(decode_histograms, self._series.numbers, self._format)
        ranges = key_ranges(layout, self._resolved, span)
        await read_ranges(
            self._table.store,
            self._table.name,
            ranges,
            lambda page: take(EncodedCells(page, layout, decode_page)),
            parallel=1,
        )


class SummarySources(NamedTuple):
    """Which rollups and histograms are read."""

    rollups: Rollups | None = None
    complete: RollupCompleteness | None = None  # up to when rollups are complete; None: that is not known
    histogram_codec: int | None = None  # the id of simple histograms


NO_SUMMARIES = SummarySources()


class OpenTsdbReader:
    """Reads one set of OpenTSDB's tables."""

    selects_together = False

    def __init__(
        self,
        table: ReadTable,
        uids: Uids,
        *,
        index: SeriesIndex | None = None,
        summaries: SummarySources = NO_SUMMARIES,
    ) -> None:
        self._table = table
        self._uids = uids
        self._index = index
        self._summaries = summaries
        self._resolver = FilterResolver(uids, table.layout.widths, table.rules.filters)
        self._tag_tests = TagTests()
        self.changes: ChangeSource | None = None
        if table.store.cell_signatures is not None:
            self.changes = SignedChanges()
        elif table.store.change_feed is not None:
            self.changes = StoredChanges(table.store.change_feed, table.name, table.layout)

    async def select(self, request: SeriesRequest) -> Selection:
        """Resolve a request. Raise BadQuery in OpenTSDB's words, StoreError."""
        names_at = self._uids.changes
        return self._selection(await self._resolver.resolve(request), names_at, keeps_rows=request.delete)

    def select_all(self, metric: bytes, name: str) -> Selection:
        """Return the selection of all points of a metric, by its UID. An interrupted rename may have left its name
        without one."""
        return self._selection(ResolvedRequest(metric, name), self._uids.changes)

    def _selection(self, resolved: ResolvedRequest, names_at: int, *, keeps_rows: bool = False) -> Selection:
        uids, table = self._uids, self._table
        series = SeriesMatcher(resolved, table.layout, self._uids, self._tag_tests)
        make = partial(
            StoredSelection,
            table,
            resolved,
            series,
            index=self._index,
            keeps_rows=keeps_rows,
            has_same_names=lambda: uids.changes == names_at,
        )
        selection = make()
        rollups, complete, histogram_codec = self._summaries
        if rollups is not None:  # with a selection of its own: two objects that refer to each other are freed late
            selection.rollups = StoredRollups(table, resolved, make(), rollups, complete)
        if histogram_codec is not None:
            selection.histograms = StoredHistograms(table, resolved, series, histogram_codec)
        return selection

    async def global_annotations(self, first_s: int, last_s: int) -> list[Annotation]:
        """Return the global annotations of the hours from one time to another. Raise StoreError."""
        table, layout = self._table, self._table.layout
        prefix = bytes(layout.metric_end)
        start, stop = prefix + base_bytes(base_time(first_s)), prefix_end(prefix + base_bytes(base_time(last_s)))
        found = []
        async for rows in scan(table.store, table.name, start, stop):
            for row in rows:
                if len(row.key) == layout.pairs_start:
                    found += [note for cell in row.cells if (note := _annotation(cell.column, cell.value))]
        return found


def _annotation(column: bytes, value: bytes) -> Annotation | None:
    """Return the annotation in a cell; None for another cell, or one that cannot be read."""
    qualifier = column[len(COLUMN) :]
    if qualifier[:1] != ANNOTATION or len(qualifier) not in (3, 5):
        return None
    try:
        return decode_annotation(value)
    except CorruptRow:
        return None

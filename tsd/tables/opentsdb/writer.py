"""Writes windows of points as cells: slices are sorted and encoded in threads while other slices are put."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import NamedTuple, Protocol

import trio

from tsd.codec.points import Columns, Int32, series_slices, sorted_parts
from tsd.store import ColumnBlocks, Put, Store
from tsd.store.retry import run_bounded
from tsd.tables.opentsdb.encode import encode_of
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.opentsdb.summaries import SummaryCells, SummaryRules, parse_summary
from tsd.tables.writing import Hours, OnPoints, SeriesLookup, Summary, SummaryBatch

row_of = itemgetter(0)

BLOCKS_CELLS = 8192  # written to blocks by one call
NOTIFY_CELLS = 2000  # passed to `on_cells` between two trio checkpoints
CONCURRENT_SLICES = 3
HELD_POINTS = 50_000  # recorded between two trio checkpoints: about a millisecond


class OnCells(Protocol):
    """Gets cells that were put."""

    def __call__(self, puts: Sequence[Put], /, *, whole: bool) -> None:
        """Record the cells. `whole`: see `RowQueue.record` of `tsd.tables.opentsdb.compaction.queue`."""


class HourBlocks(NamedTuple):
    """Where the rows of hours that are over are written to."""

    store: ColumnBlocks
    width: int  # of the common prefix of a metric's rows in an hour
    least_rows: int  # fewer of a metric and hour stay rows


class CellWriter:
    """Writes points into the data table, rollups and histograms into theirs: OpenTSDB's `PointWriter`."""

    def __init__(
        self,
        store: Store,
        rules: SummaryRules,
        *,
        join: bool,
        on_cells: OnCells | None = None,
        on_points: OnPoints | None = None,
        on_held: OnPoints | None = None,
        index: SeriesIndex | None = None,
        blocks: HourBlocks | None = None,
    ) -> None:
        """`join`: one cell for all points of a row in a window, or one for each point. `on_cells` gets the cells that
        were put; `on_points` their points, sorted by series and time; `on_held` those that are recorded and written
        later, in the order of arrival. If they raise StoreError, the caller repeats the window, and points are passed
        again. `index` gets the series of histograms. `blocks`: None to put all cells."""
        self._store = store
        self._rules = rules
        self._join = join
        self._blocks = blocks
        self._on_cells = on_cells
        self._on_points = on_points
        self._on_held = on_held
        self._notifying = trio.Lock()  # `on_points` and `on_held` have awaits, but must not run concurrently
        self._points = 0  # cells of points put since the start
        self.summaries = SummaryCellWriter(store, rules, index)

    @property
    def cells(self) -> int:
        """Cells put since the start."""
        return self._points + self.summaries.cells

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        """Put points, see `PointWriter`."""
        slices = await trio.to_thread.run_sync(series_slices, points)
        whole = hours is Hours.WHOLE and self._join  # all cells of a row are joined, also if they are several
        if hours is Hours.OPEN or not self._join or self._blocks is None:
            await run_bounded(slices, partial(self._write_slice, points, series, whole), limit=CONCURRENT_SLICES)
        else:
            await self._write_blocks(self._blocks, points, series, slices, whole=whole)

    async def _write_slice(self, points: Columns, series: SeriesLookup, whole: bool, places: Int32) -> None:
        parts = await trio.to_thread.run_sync(self._encode, points, series, places)
        for part, puts in parts:
            await self._put(puts, whole=whole)
            await self._notify(part, series)

    async def _write_blocks(
        self, blocks: HourBlocks, points: Columns, series: SeriesLookup, slices: Sequence[Int32], *, whole: bool
    ) -> None:
        """Write all slices together, sorted by their rows: straight to blocks what can be, and then other cells."""
        encoded: list[list[tuple[Columns, list[Put]]]] = []

        async def encode(places: Int32) -> None:
            encoded.append(await trio.to_thread.run_sync(self._encode, points, series, places))

        await run_bounded(slices, encode, limit=CONCURRENT_SLICES)
        once = [parts[0][1] for parts in encoded if len(parts) == 1]
        puts = await trio.to_thread.run_sync(lambda: sorted(chain.from_iterable(once), key=row_of))
        for at in range(0, len(puts), BLOCKS_CELLS):
            await self._put_blocks(blocks, puts[at : at + BLOCKS_CELLS], whole=whole)
        for parts in encoded:
            for part, cells in parts:
                if len(parts) > 1:  # several values for one time: the last one is put last
                    await self._put(cells, whole=whole)
                await self._notify(part, series)

    async def _put_blocks(self, blocks: HourBlocks, puts: Sequence[Put], *, whole: bool) -> None:
        """Write sorted cells to blocks, put those that cannot be, and record these. If an hour is written `whole`, all
        are recorded, so that later cells of their rows are known to be others."""
        table = self._rules.table
        left = await blocks.store.write(table, puts, width=blocks.width, least_rows=blocks.least_rows)
        await self._store.put(table, left)
        self._points += len(puts)
        await self._record(puts if whole else left, whole=whole)

    async def _put(self, puts: Sequence[Put], *, whole: bool) -> None:
        """Put cells, and record them."""
        await self._store.put(self._rules.table, puts)
        self._points += len(puts)
        await self._record(puts, whole=whole)

    async def _record(self, puts: Sequence[Put], *, whole: bool) -> None:
        """Pass cells to `on_cells`."""
        if self._on_cells is not None:
            for at in range(0, len(puts), NOTIFY_CELLS):
                self._on_cells(puts[at : at + NOTIFY_CELLS], whole=whole)
                await trio.lowlevel.checkpoint()

    async def _notify(self, part: Columns, series: SeriesLookup) -> None:
        """Pass points that were put to `on_points`."""
        if self._on_points is not None:
            async with self._notifying:
                await self._on_points(part, series)

    def _encode(self, points: Columns, series: SeriesLookup, places: Int32) -> list[tuple[Columns, list[Put]]]:
        """Return a slice's points, sorted, with their cells, in parts that are put one after the other."""
        parts = sorted_parts(points, places, join=self._join)
        return [(part, encode_of(part, series, join=self._join)) for part in parts]

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """Record points that are written later, see `PointWriter`."""
        if self._on_held is None:
            return
        for at in range(0, len(points.series), HELD_POINTS):
            async with self._notifying:
                await self._on_held(points.at(slice(at, at + HELD_POINTS)), series)
            await trio.lowlevel.checkpoint()

    async def sync(self) -> None:
        """Return when all that was put survives a crash."""
        await self._store.sync()


class SummaryCellWriter:
    """Writes rollups and histograms into their tables: OpenTSDB's `SummaryWriter`."""

    def __init__(self, store: Store, rules: SummaryRules, index: SeriesIndex | None) -> None:
        self._store = store
        self._rules = rules
        self._index = index
        self._indexed: set[bytes] = set()  # TSUIDs
        self.cells = 0  # put since the start

    def parse(self, line: bytes) -> Summary:
        """Parse a line of a rollup or a histogram. Raise BadLine."""
        return parse_summary(line, self._rules)

    def new_batch(self) -> SummaryCells:
        """Return an empty batch."""
        return SummaryCells()

    async def write(self, batch: SummaryBatch) -> None:
        """Put the cells of a batch."""
        assert isinstance(batch, SummaryCells)
        for table, puts in batch.slices():
            await self._store.put(table, puts)
            self.cells += len(puts)
            if self._index is not None and table == self._rules.table:
                await self._index.add_rows([put.row for put in puts], self._indexed)

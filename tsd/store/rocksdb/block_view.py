"""Reads rows of a table with blocks: merges the table's own cells with those of its blocks."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from numpy.typing import NDArray
from rocksdict import Rdict, RdictIter, ReadOptions

from tsd.codec.packing.points import count_points
from tsd.store import Cell, CellPage, ColumnPart, Page, Row, StepLimit
from tsd.store.rocksdb.blocks import DIGEST, BlockFamily, BlockReader, StoredBlock
from tsd.store.rocksdb.keys import TIME_BYTES, decode_cell, decode_long_cell, key_column, row_prefix
from tsd.store.rocksdb.packed import PackedCells
from tsd.store.rocksdb.runs import MergedIterator, RunFamily
from tsd.store.rocksdb.view import SLICE_CELLS, View

BLOCKS_AT_ONCE = 48  # prefixes of rows that are read before other tasks can run: two milliseconds
ROWS_AT_ONCE = 128  # the same of rows: two milliseconds
PASSED_BYTES = 256 << 10  # of blocks whose rows are read at a time: their deleted cells take some milliseconds
NOW_STEPS = 8  # of a range that is read in one step
NOW_ROW_STEPS = 2  # of rows that are: what is read so is kept for the next query


class BlockView(View):
    """Snapshot of a table and its blocks. Its generators may raise DamagedBlock."""

    def __init__(
        self,
        rows: Rdict,
        stop: bytes | None,
        translated: Callable[[], AbstractContextManager[None]],
        *,
        cached_bytes: int,
        blocks: BlockFamily,
        runs: RunFamily | None = None,
    ) -> None:
        super().__init__(rows, stop, translated, cached_bytes=cached_bytes, runs=runs)
        self._stop = stop
        self._family = blocks
        self._blocks = BlockReader(blocks, translated)

    def _at_row(self, prefix: bytes) -> RdictIter | MergedIterator:
        """Return an iterator that reads the row as it is now, and no other one: those that moved to blocks may be
        many."""
        self._row_options = ReadOptions()  # must outlive the iterator
        upper = prefix[:-1] + bytes([prefix[-1] + 1])
        self._row_options.set_iterate_upper_bound(upper)
        return self._merged_with_runs(self._rows.iter(self._row_options), upper)

    def _steps(self, rows: Collection[bytes]) -> Iterator[list[bytes]]:
        """Yield the rows in order, those that are read in one step at a time."""
        some: list[bytes] = []
        prefixes: set[bytes] = set()
        for row in sorted(set(rows)):
            prefixes.add(row[: self._family.width])
            if some and (len(prefixes) > BLOCKS_AT_ONCE or len(some) == ROWS_AT_ONCE):
                yield some
                some, prefixes = [], {row[: self._family.width]}
            some.append(row)
        if some:
            yield some

    def _renew(self) -> None:
        """Read blocks as they are now, like rows: a fold moves rows from the table to its blocks."""
        self._blocks = BlockReader(self._family, self._translated)

    def _plain(self, rows: Collection[bytes]) -> dict[bytes, list[Cell]]:
        """Return the cells of rows that the table has, in one step."""
        steps = super().get(rows)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                found: dict[bytes, list[Cell]] = done.value
                return found

    def get(self, rows: Collection[bytes]) -> Generator[None, None, dict[bytes, list[Cell]]]:
        """Return the cells of each row that exists."""
        found: dict[bytes, list[Cell]] = {}
        for number, some in enumerate(self._steps(rows)):
            if number:
                yield
                self._renew()
            found |= self._plain(some)
            for cells in self._blocks.cells(some):
                for row, column, value in cells:
                    found[row] = _with_cell(found.get(row, []), decode_cell(column, value))
                yield  # the reader of blocks is a snapshot
        return {row: found[row] for row in rows if row in found}

    def page(
        self, start: bytes, limit: int, limit_bytes: int, columns: Collection[bytes] | None
    ) -> Generator[None, None, Page]:
        """Return up to `limit` rows from `start` on, with those columns only. The page ends early with the row that
        brings its values to `limit_bytes`."""
        plain = yield from super().page(start, limit, limit_bytes, columns)
        stop = self._stop if plain.next_start is None else plain.next_start
        left = plain.rows[::-1]
        rows: list[Row] = []
        size = 0
        for block in self._blocks.between(start, stop):
            yield
            for row, column, value in block.cells(block.between(start, stop)):
                if columns is not None and column not in columns:
                    continue
                while left and left[-1].key < row and len(rows) < limit and size < limit_bytes:
                    rows.append(left.pop())
                    size += _size(rows[-1])
                if len(rows) == limit or size >= limit_bytes:
                    return Page(rows, min(row, left[-1].key) if left else row)
                before = left.pop().cells if left and left[-1].key == row else []
                rows.append(Row(row, _with_cell(before, decode_cell(column, value))))
                size += _size(rows[-1])
        while left and len(rows) < limit and size < limit_bytes:
            rows.append(left.pop())
            size += _size(rows[-1])
        return Page(rows, left[-1].key if left else plain.next_start)

    def _pages(
        self, start: bytes, limit_bytes: int, expand: Callable[[list[bytes], list[bytes], list[bytes], int], int]
    ) -> Generator[CellPage | None, None, None]:
        """Yield pages of cells of the table and its blocks, see View. Rows of some blocks are read at a time, each time
        from new snapshots: RocksDB passes the deleted cells of rows that moved to blocks in one step."""
        at, cached_left = start, self._cached_bytes
        while True:
            self._renew()
            end = self._blocks.key_after(at, PASSED_BYTES)
            if end is None or (self._stop is not None and end >= self._stop):
                end = self._stop
            table = View(
                self._rows,
                end,
                self._translated,
                cached_bytes=cached_left,
                runs=self._run_family,
                may_renew=lambda: False,
            )
            for page in table.stored_cells(at, limit_bytes):
                if page is None:
                    yield None
                    continue
                cached_left = max(cached_left - sum(map(len, page.values)), 0)
                stop = end if page.next_start is None else page.next_start
                last = stop if stop != self._stop else None
                yield from self._merged(at, page._replace(next_start=last), limit_bytes, expand)
                if last is None:
                    return
                at = last

    def _merged(
        self,
        start: bytes,
        plain: CellPage,
        limit_bytes: int,
        expand: Callable[[list[bytes], list[bytes], list[bytes], int], int],
    ) -> Generator[CellPage | None, None, None]:
        """Yield a page of the table's stored cells in pages that have the cells of blocks too."""
        stop = self._stop if plain.next_start is None else plain.next_start
        made, size, done = CellPage([], [], [], TIME_BYTES, [], None), 0, 0

        def add(some: CellPage) -> Iterator[None]:
            nonlocal size
            for low in range(0, len(some.keys), SLICE_CELLS):
                since, part = len(made.keys), _cut(some, low, low + SLICE_CELLS)
                made.keys.extend(part.keys)
                made.columns.extend(part.columns)
                made.values.extend(part.values)
                size += sum(map(len, part.values)) + expand(made.keys, made.columns, made.values, since)
                yield None

        for block in self._blocks.between(start, stop):
            wanted = block.between(start, stop)
            low = bisect_left(plain.keys, block.key, done)
            high = bisect_right(plain.keys, block.prefix + block.block.series_pairs()[-1], low)
            yield from add(_cut(plain, done, low))
            some = _with_stored(_cut(plain, low, high), block, np.flatnonzero(wanted))
            done = high
            if size >= limit_bytes and some.keys:
                yield made._replace(next_start=some.keys[0])
                made, size = CellPage([], [], [], TIME_BYTES, [], None), 0
            yield from add(some)
        yield from add(_cut(plain, done, len(plain.keys)))
        yield made._replace(next_start=plain.next_start)

    def get_columns(self, rows: Sequence[bytes]) -> Generator[None, None, list[ColumnPart]]:
        """Return those of some rows that exist, in order of their keys, in parts."""
        parts: list[ColumnPart] = []
        for number, some in enumerate(self._steps(rows)):
            if number:
                yield
                self._renew()
            if (page := self._page_of(some)).keys:
                parts.append(ColumnPart(None, None, PackedCells(page)))
        return parts

    def _page_of(self, rows: Sequence[bytes]) -> CellPage:
        """Return the stored cells of some rows, in one step."""
        found = CellPage([], [], [], TIME_BYTES, [], None)
        for row in sorted(rows):
            prefix = row_prefix(row)
            at = self._at_row(prefix)
            at.seek(prefix)
            while at.valid():
                found.keys.append(row)
                found.columns.append(at.key()[len(prefix) :])
                found.values.append(at.value())
                at.next()
            self._check(at)
        done, pages = 0, list[CellPage]()
        for block, some in self._blocks.group(rows):
            places = block.find(some)
            low = bisect_left(found.keys, some[0], done)
            high = bisect_right(found.keys, some[-1], low)
            pages += _cut(found, done, low), _with_stored(_cut(found, low, high), block, places[places >= 0])
            done = high
        if not pages:
            return found
        pages.append(_cut(found, done, len(found.keys)))
        return CellPage(
            [one for page in pages for one in page.keys],
            [one for page in pages for one in page.columns],
            [one for page in pages for one in page.values],
            *(TIME_BYTES, [], None),
        )

    def range_now(self, start: bytes, limit: StepLimit) -> list[ColumnPart] | None:
        """Return the rows from `start` on in one step; None if they are over the limit."""
        found: list[ColumnPart] = []
        for step, parts in enumerate(self.columns(start, limit.size)):
            if parts == []:
                return found if _fits(found, limit) else None
            if step > NOW_STEPS:
                break
            found += parts or ()
        return None

    def rows_now(self, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:
        """Return those of some rows that exist in one step; None if they are over the limit."""
        steps = list(self._steps(rows))
        if len(steps) > NOW_ROW_STEPS:
            return None
        pages = [page for some in steps if (page := self._page_of(some)).keys]
        found = [ColumnPart(None, None, PackedCells(page)) for page in pages]
        return found if _fits(found, limit) else None


def _fits(parts: Sequence[ColumnPart], limit: StepLimit) -> bool:
    """Return whether packed rows are not over a limit."""
    pages = [part.packed.page for part in parts if isinstance(part.packed, PackedCells)]
    values = [value for page in pages for value in page.values]
    size = sum(map(len, values))
    return len(values) <= limit.cells and size <= limit.size and count_points(values, 0, TIME_BYTES) <= limit.points


def _cut(page: CellPage, low: int, high: int) -> CellPage:
    """Return some cells of a page."""
    if not low and high >= len(page.keys):
        return page
    return CellPage(page.keys[low:high], page.columns[low:high], page.values[low:high], TIME_BYTES, [], page.next_start)


def _with_stored(plain: CellPage, block: StoredBlock, places: NDArray[np.intp]) -> CellPage:
    """Return stored cells of a table with those of some rows of a block, except those that the table has newer ones
    for."""
    rows, values = block.rows_of(places), block.block.stored_cells(places)
    if not plain.keys:
        return CellPage(rows, [DIGEST] * len(rows), values, TIME_BYTES, [], None)
    known = set(zip(plain.keys, plain.columns, strict=True))
    every = list(zip(plain.keys, plain.columns, plain.values, strict=True))
    shared = set(plain.keys)
    for row, value in zip(rows, values, strict=True):
        if row not in shared or (row, key_column(decode_long_cell(DIGEST, value)[0])) not in known:
            every.append((row, DIGEST, value))
    every.sort()
    keys, columns, stored = map(list, zip(*every, strict=True))
    return CellPage(keys, columns, stored, TIME_BYTES, [], None)


def _size(row: Row) -> int:
    return sum([len(cell.value) for cell in row.cells])


def _with_cell(cells: list[Cell], cell: Cell) -> list[Cell]:
    """Return a row's cells with that of a block, unless the table has a newer one in its column."""
    if any(other.column == cell.column for other in cells):
        return cells
    return sorted([*cells, cell])

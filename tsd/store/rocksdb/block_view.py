"""Reads rows of a table with blocks: merges the table's own cells with those of its blocks."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager

import numpy as np
from rocksdict import Rdict, RdictIter, ReadOptions

from tsd.store import Cell, CellPage, ColumnPart, Page, Row, StepLimit, cells_of_rows
from tsd.store.rocksdb.blocks import BlockCell, BlockFamily, BlockReader, BlockRows
from tsd.store.rocksdb.keys import TIME_BYTES, decode_cell
from tsd.store.rocksdb.runs import MergedIterator, RunFamily
from tsd.store.rocksdb.view import View

BLOCKS_AT_ONCE = 16  # prefixes of rows that are read before other tasks can run: half a millisecond
ROWS_AT_ONCE = 128  # the same of rows: two milliseconds
NOW_STEPS = 3  # of a read in one step
POINT_BYTES = 4  # of a point's column and value in a page


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

    def _items(self, start: bytes, *, cached: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all cells from the row `start` on, with new snapshots of table and blocks."""
        self._renew()
        return super()._items(start, cached=cached)

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

    def cells(self, start: bytes, limit_bytes: int) -> Generator[CellPage | None, None, None]:
        """Yield the cells of all rows from `start` on, in pages of whole rows of about `limit_bytes`. Yield None in
        between, so that the caller can let other tasks run."""
        at = start
        for page in super().cells(start, limit_bytes):
            if page is None:
                yield None
            else:
                yield from self._merged(at, page, limit_bytes)
                at = page.next_start or at

    def columns(self, start: bytes, limit_bytes: int) -> Generator[list[ColumnPart] | None, None, None]:
        """Yield all rows from `start` on in parts (see ColumnBlocks), and an empty list after the last ones. Yield None
        in between."""
        at, parts, size = start, list[ColumnPart](), 0
        for page in super().cells(start, limit_bytes):
            if page is None:
                yield None
                continue
            for part in self._parts(at, page):
                parts.append(part)
                size += part.rows.points * POINT_BYTES if part.rows else 0
                if size >= limit_bytes:
                    yield parts
                    parts, size = [], 0
                else:
                    yield None
            at = page.next_start or at
            if parts:
                yield parts
                parts, size = [], 0
        yield []

    def get_columns(self, rows: Sequence[bytes]) -> Generator[None, None, list[ColumnPart]]:
        """Return those of some rows that exist, in order of their keys, in parts."""
        parts: list[ColumnPart] = []
        for number, some in enumerate(self._steps(rows)):
            if number:
                yield
                self._renew()
            parts += self._parts_of(some)
        return parts

    def _parts_of(self, rows: Sequence[bytes]) -> list[ColumnPart]:
        """Return those of some rows that exist, in one step, see `get_columns`."""
        plain = self._plain(rows)
        parts: list[ColumnPart] = []
        left: list[Row] = []  # cells of the next part
        waiting = iter(sorted(plain))
        at = next(waiting, None)
        for block, some in self._blocks.group(rows):
            while at is not None and at < block.key:
                left.append(Row(at, plain[at]))
                at = next(waiting, None)
            for row, column, value in block.cells_of([row for row in some if row in plain]):
                plain[row] = _with_cell(plain[row], decode_cell(column, value))
            places = block.find([row for row in some if row not in plain])
            if len(places := places[places >= 0]):
                wanted = np.zeros(block.block.rows, np.bool_)
                wanted[places] = True
                if left:
                    parts.append(ColumnPart(cells_of_rows(left), None))
                    left = []
                parts.append(ColumnPart(None, BlockRows(block, wanted)))
        while at is not None:
            left.append(Row(at, plain[at]))
            at = next(waiting, None)
        if left:
            parts.append(ColumnPart(cells_of_rows(left), None))
        return parts

    def range_now(self, start: bytes, limit: StepLimit) -> list[ColumnPart] | None:
        """Return the rows from `start` on in one step; None if they take more steps."""
        found: list[ColumnPart] = []
        for step, parts in enumerate(self.columns(start, limit.size)):
            if parts == []:
                return found
            if step > NOW_STEPS:
                break
            found += parts or ()
        return None

    def rows_now(self, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:  # noqa: ARG002
        """Return those of some rows that exist in one step; None if they take more steps."""
        steps = list(self._steps(rows))
        return None if len(steps) > 1 else [part for some in steps for part in self._parts_of(some)]

    def _parts(self, start: bytes, plain: CellPage) -> Generator[ColumnPart, None, None]:
        """Yield the rows of a page of the table's cells, and of the blocks in its range."""
        stop = self._stop if plain.next_start is None else plain.next_start
        done = 0
        for block in self._blocks.between(start, stop):
            wanted = block.between(start, stop)
            if not wanted.any():
                continue
            low = bisect_left(plain.keys, block.key, done)
            high = bisect_right(plain.keys, block.prefix + block.block.series_pairs()[-1], low)
            if low > done:
                yield ColumnPart(_cut(plain, done, low), None)
            done = high
            if low < high:  # rows that have other cells, too
                some = _cut(plain, low, high)
                shared = np.zeros(block.block.rows, np.bool_)
                found = block.find(list(dict.fromkeys(some.keys)))
                shared[found[found >= 0]] = True
                yield ColumnPart(_with_cells(some, block.cells(shared & wanted)), None)
                wanted &= ~shared
            if wanted.any():
                yield ColumnPart(None, BlockRows(block, wanted))
        if done < len(plain.keys):
            yield ColumnPart(_cut(plain, done, len(plain.keys)), None)

    def _merged(self, start: bytes, plain: CellPage, limit_bytes: int) -> Generator[CellPage | None, None, None]:
        """Yield a page of the table's cells in pages that have the cells of blocks too."""
        stop = self._stop if plain.next_start is None else plain.next_start
        keys: list[bytes] = []
        columns: list[bytes] = []
        values: list[bytes] = []
        done = size = 0
        for block in self._blocks.between(start, stop):
            yield None
            for cell in block.cells(block.between(start, stop)):
                end = bisect_left(plain.keys, cell.row, done)
                keys += plain.keys[done:end]
                columns += plain.columns[done:end]
                values += plain.values[done:end]
                size += sum(map(len, plain.values[done:end])) + len(cell.value)
                done = end
                if size >= limit_bytes and keys:
                    yield CellPage(keys, columns, values, TIME_BYTES, [], cell.row)
                    keys, columns, values, size = [], [], [], len(cell.value)
                while done < len(plain.keys) and plain.keys[done] == cell.row and plain.columns[done] < cell.column:
                    _add(plain, done, keys, columns, values)
                    done += 1
                if done == len(plain.keys) or (plain.keys[done], plain.columns[done]) != (cell.row, cell.column):
                    keys.append(cell.row)
                    columns.append(cell.column)
                    values.append(cell.value)
                while done < len(plain.keys) and plain.keys[done] == cell.row:
                    _add(plain, done, keys, columns, values)
                    done += 1
        if not keys and not done:
            yield plain
            return
        keys += plain.keys[done:]
        columns += plain.columns[done:]
        values += plain.values[done:]
        yield CellPage(keys, columns, values, TIME_BYTES, [], plain.next_start)


def _add(plain: CellPage, at: int, keys: list[bytes], columns: list[bytes], values: list[bytes]) -> None:
    keys.append(plain.keys[at])
    columns.append(plain.columns[at])
    values.append(plain.values[at])


def _cut(page: CellPage, low: int, high: int) -> CellPage:
    """Return some cells of a page."""
    if not low and high == len(page.keys):
        return page
    return CellPage(page.keys[low:high], page.columns[low:high], page.values[low:high], TIME_BYTES, [], page.next_start)


def _with_cells(plain: CellPage, cells: Sequence[BlockCell]) -> CellPage:
    """Return a page with the cells of blocks, except those that the table has newer ones for."""
    known = set(zip(plain.keys, plain.columns, strict=True))
    every = [*zip(plain.keys, plain.columns, plain.values, strict=True)]
    every += [cell for cell in cells if (cell.row, cell.column) not in known]
    every.sort()
    keys, columns, values = (list(column) for column in zip(*every, strict=True))
    return CellPage(keys, columns, values, TIME_BYTES, [], plain.next_start)


def _size(row: Row) -> int:
    return sum([len(cell.value) for cell in row.cells])


def _with_cell(cells: list[Cell], cell: Cell) -> list[Cell]:
    """Return a row's cells with that of a block, unless the table has a newer one in its column."""
    if any(other.column == cell.column for other in cells):
        return cells
    return sorted([*cells, cell])

"""Snapshot of a table: reads rows and cells step by step."""

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import cast

from rocksdict import Rdict, RdictIter, ReadOptions

from tsd.codec.packing.points import count_points
from tsd.store import Cell, CellPage, ColumnPart, Page, Row, StepLimit
from tsd.store.rocksdb.keys import (
    DIGEST_BYTES,
    TIME_BYTES,
    RowCells,
    decode_cell,
    decode_long_cell,
    decode_long_cells,
    is_digest,
    read_row,
    row_prefix,
    split_cells,
    split_key,
)
from tsd.store.rocksdb.packed import PackedCells, points_size
from tsd.store.rocksdb.runs import MergedIterator, RunFamily, RunReader, merged_items

FEW_CELLS = 64  # read between two looks at a limit
CHUNK_CELLS = 1000  # read between two checkpoints: about a millisecond
LONG_CELL = 10  # other cells that take as long as a cell with points of an hour
SLICE_CELLS = 600  # the same for cell scans, where cells have points of whole hours: 3 ms
READAHEAD_BYTES = 1 << 20


class View:
    """Snapshot of a table and its runs. Its generators yield each CHUNK_CELLS cells, so that other tasks can run."""

    def __init__(
        self,
        rows: Rdict,
        stop: bytes | None,
        translated: Callable[[], AbstractContextManager[None]],
        *,
        cached_bytes: int,
        runs: RunFamily | None = None,
        may_renew: Callable[[], bool] = lambda: True,
    ) -> None:
        """`cells` reads its first `cached_bytes` through the block cache. It reads the rest without the cache, so that
        a large scan does not evict all other blocks. That is a newer snapshot, which `may_renew` permits."""
        self._upper = None if stop is None else row_prefix(stop)
        self._options = self._new_options()  # must outlive the iterator, which points to its bound
        self._rows = rows
        self._run_family = runs
        self._translated = translated
        self._at = self._merged_with_runs(rows.iter(self._options), self._upper)
        self._cached_bytes = cached_bytes
        self._may_renew = may_renew
        self._is_after_row = False  # the iterator, and nothing else has moved it

    def _new_options(self) -> ReadOptions:
        made = ReadOptions()
        made.set_background_purge_on_iterator_cleanup(True)  # removes old files later
        if self._upper is not None:
            made.set_iterate_upper_bound(self._upper)
        return made

    def _merged_with_runs(self, plain: RdictIter, upper: bytes | None) -> RdictIter | MergedIterator:
        """Return an iterator over the cells of the table, and of its runs."""
        if self._run_family is None:
            return plain
        return MergedIterator(plain, RunReader(self._run_family, self._translated), upper)

    def _items(self, start: bytes, *, cached: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """Return an iterator over all cells from the row `start` on."""
        if not cached:
            self._options = self._new_options()
            self._options.set_readahead_size(READAHEAD_BYTES)
            self._options.fill_cache(False)  # type: ignore[call-arg] # the stub lacks the argument
            self._at = self._merged_with_runs(self._rows.iter(self._options), self._upper)
        with self._translated():
            found = self._rows.items(from_key=row_prefix(start), read_opt=self._options)
            items = cast(Iterator[tuple[bytes, bytes]], found)
            if self._run_family is None:
                return items
            runs = RunReader(self._run_family, self._translated).cells(row_prefix(start), self._upper)
            return merged_items(items, runs)

    def _few_items(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the cells from the row `start` on. No new iterator of the database is made: that takes as long as some
        cells."""
        at = self._at
        at.seek(row_prefix(start))
        while at.valid():
            yield at.key(), at.value()
            at.next()

    def _slice(self, left: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """Return the next cells."""
        with self._translated():
            return list(islice(left, SLICE_CELLS))

    def _at_row(self, prefix: bytes) -> RdictIter | MergedIterator:  # noqa: ARG002 - see BlockView
        """Return an iterator that can read the cells of a row."""
        return self._at

    def get(self, rows: Collection[bytes]) -> Generator[None, None, dict[bytes, list[Cell]]]:
        """Return the cells of each row that exists."""
        read = 0
        found: dict[bytes, list[Cell]] = {}
        for row in rows:
            prefix, cells, has_long = row_prefix(row), [], False
            cut, at = len(prefix), self._at_row(prefix)
            at.seek(prefix)
            while at.valid() and (key := at.key()).startswith(prefix):
                column, value = key[cut:], at.value()
                if len(column) == DIGEST_BYTES and is_digest(column):
                    column, value = decode_long_cell(column, value)
                    has_long = True
                    read += LONG_CELL
                cells.append(decode_cell(column, value))
                at.next()
                read += 1
                if read >= CHUNK_CELLS:
                    yield
                    read = 0
            self._check(at)
            if cells:
                found[row] = sorted(cells) if has_long else cells
        return found

    def row_cells(self, row: bytes, most: int) -> RowCells | None:
        """Return the cells of a row of a table without runs; None if there are more than `most`. Rows in order of their
        keys are read fastest."""
        at = cast(RdictIter, self._at)
        found = read_row(at, row, most, is_after_row=self._is_after_row)
        self._is_after_row = found is not None
        self._check(at)
        return found

    def between(
        self, rows: Collection[bytes], first: bytes, last: bytes
    ) -> Generator[None, None, dict[bytes, list[Cell]]]:
        """Return the cells of each row from one column to another. See WideRows for long columns."""
        read = 0
        found: dict[bytes, list[Cell]] = {}
        for row in rows:
            prefix, cells = row_prefix(row), []
            cut, end, at = len(prefix), prefix + last, self._at_row(prefix)
            at.seek(prefix + first)
            while at.valid() and (key := at.key()) <= end:
                column = key[cut:]
                if not is_digest(column):
                    cells.append(decode_cell(column, at.value()))
                at.next()
                read += 1
                if read % CHUNK_CELLS == 0:
                    yield
            self._check(at)
            if cells:
                found[row] = cells
        return found

    def row_keys(self, start: bytes, limit: int) -> Generator[None, None, list[bytes]]:
        """Return the keys of up to `limit` rows from `start` on, without their cells."""
        found: list[bytes] = []
        self._at.seek(row_prefix(start))
        while len(found) < limit and self._at.valid():
            row, prefix = split_key(self._at.key())
            found.append(row)
            self._at.seek(prefix[:-1] + bytes((prefix[-1] + 1,)))
            if len(found) % CHUNK_CELLS == 0:
                yield
        self._check()
        return found

    def page(
        self, start: bytes, limit: int, limit_bytes: int, columns: Collection[bytes] | None
    ) -> Generator[None, None, Page]:
        """Return up to `limit` rows from `start` on, with those columns only. The page ends early with the row that
        brings its values to `limit_bytes`."""
        at, read, size = self._at, 0, 0
        rows: list[Row] = []
        cells: list[Cell] = []
        prefix = row_prefix(b"")  # no key starts with it
        cut, has_long = 0, False
        at.seek(row_prefix(start))
        while at.valid():
            key = at.key()
            if not key.startswith(prefix):
                row, prefix = split_key(key)
                if has_long:
                    cells.sort()
                if len(rows) >= limit or size >= limit_bytes:
                    return Page(rows, row)
                cut, cells, has_long = len(prefix), [], False
            column, value = key[cut:], b""
            if len(column) == DIGEST_BYTES and is_digest(column):
                column, value = decode_long_cell(column, at.value())
                has_long = True
            if columns is None or column in columns:
                if not cells:
                    rows.append(Row(row, cells))
                value = value or at.value()
                size += len(value)
                cells.append(decode_cell(column, value))
            at.next()
            read += 1
            if read % CHUNK_CELLS == 0:
                yield
        self._check()
        if has_long:
            cells.sort()
        return Page(rows, None)

    def cells(self, start: bytes, limit_bytes: int) -> Generator[CellPage | None, None, None]:
        """Yield the cells of all rows from `start` on, in pages of whole rows of about `limit_bytes`. Yield None in
        between, so that the caller can let other tasks run."""
        return self._pages(start, limit_bytes, decode_long_cells)

    def stored_cells(self, start: bytes, limit_bytes: int) -> Generator[CellPage | None, None, None]:
        """Yield the same as `cells`, with columns as they are in keys, and values as they are stored."""
        return self._pages(start, limit_bytes, points_size)

    def _pages(
        self, start: bytes, limit_bytes: int, expand: Callable[[list[bytes], list[bytes], list[bytes], int], int]
    ) -> Generator[CellPage | None, None, None]:
        """Yield pages of cells, see `cells`. `expand` is called with keys, columns and values for the cells from an
        index on: it changes them, and returns the bytes that their decoded form has in addition."""
        keys: list[bytes] = []
        columns: list[bytes] = []
        values: list[bytes] = []
        size, cached_left, last = 0, self._cached_bytes, b""
        left = self._items(start, cached=self._cached_bytes > 0)
        while part := self._slice(left):
            since, last = len(keys), part[-1][0]
            got = split_cells(part, keys, columns, values)
            got += expand(keys, columns, values, since)
            size += got
            cached_left -= got
            if size >= limit_bytes and (whole := bisect_left(keys, keys[-1])):  # the last row may continue
                rest = keys[whole:], columns[whole:], values[whole:]
                del keys[whole:], columns[whole:], values[whole:]
                yield CellPage(keys, columns, values, TIME_BYTES, [], rest[0][0])
                if cached_left < 0 and self._may_renew():  # a new snapshot: reread the last row from its start
                    cached_left = 1 << 62
                    left = self._items(rest[0][0], cached=False)
                    rest = [], [], []
                keys, columns, values = rest
                size = sum(map(len, values))
            else:
                yield None
        if keys:  # `items` ends without an error at a damaged block, but this iterator has a status
            self._at.seek(last + b"\0")
        else:
            self._at.seek(row_prefix(start))
        self._check()
        yield CellPage(keys, columns, values, TIME_BYTES, [], None)

    def get_columns(self, rows: Sequence[bytes]) -> Generator[None, None, list[ColumnPart]]:
        """Return those of some rows that exist, in order of their keys, in parts."""
        keys, columns, values = list[bytes](), list[bytes](), list[bytes]()
        read = 0
        at = self._at
        key = b""  # where the iterator is: often at the next row, or behind one that does not exist
        for row in sorted(set(rows)):
            prefix = row_prefix(row)
            if key < prefix:
                at.seek(prefix)
                if not at.valid():
                    break
                key = at.key()
            cut = len(prefix)
            while key.startswith(prefix):
                keys.append(row)
                columns.append(key[cut:])
                values.append(at.value())
                at.next()
                read += 1
                if read % CHUNK_CELLS == 0:
                    yield
                if not at.valid():
                    break
                key = at.key()
            else:
                continue
            break  # at the end of the table
        self._check(at)
        page = CellPage(keys, columns, values, TIME_BYTES, [], None)
        return [ColumnPart(None, None, PackedCells(page))] if keys else []

    def columns(self, start: bytes, limit_bytes: int) -> Generator[list[ColumnPart] | None, None, None]:
        """Yield all rows from `start` on in parts (see ColumnBlocks), and an empty list after the last ones. Yield None
        in between."""
        for page in self._pages(start, limit_bytes, points_size):
            yield [ColumnPart(None, None, PackedCells(page))] if page is not None and page.keys else None
        yield []

    def range_now(self, start: bytes, limit: StepLimit) -> list[ColumnPart] | None:
        """Return the rows from `start` on as `columns` does, in one step; None if they are over the limit."""
        size, found = 0, list[tuple[bytes, bytes]]()
        left = self._few_items(start) if limit.cells <= FEW_CELLS else self._items(start)
        with self._translated():
            while some := list(islice(left, FEW_CELLS)):
                found += some
                size += sum([len(value) for _, value in some])
                if len(found) > limit.cells or size > limit.size:
                    return None
        if limit.cells > FEW_CELLS:  # `items` ends without an error at a damaged block
            self._at.seek(found[-1][0] + b"\0" if found else row_prefix(start))
        self._check()
        return _packed(found, limit.points)

    def rows_now(self, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:
        """Return those of some rows that exist as `columns` does, in one step; None if they are over the limit."""
        at, most, left = self._at, limit.cells, limit.size
        found: list[tuple[bytes, bytes]] = []
        key: bytes | None = b""  # where the iterator is: often at the next row
        for prefix in map(row_prefix, sorted(rows)):
            if key is None:
                break
            if key < prefix:
                at.seek(prefix)
                key = at.key() if at.valid() else None
            while key is not None and key.startswith(prefix):
                value = at.value()
                left -= len(value)
                if len(found) == most or left < 0:
                    return None
                found.append((key, value))
                at.next()
                key = at.key() if at.valid() else None
        self._check()
        return _packed(found, limit.points)

    def _check(self, at: RdictIter | MergedIterator | None = None) -> None:
        """Raise StoreError if an iterator ended at a damaged block instead of the end."""
        at = self._at if at is None else at
        if not at.valid():
            with self._translated():
                at.status()


def _packed(cells: list[tuple[bytes, bytes]], most_points: int) -> list[ColumnPart] | None:
    """Return cells, with their keys and stored values, as packed rows; None if they have more points."""
    if not cells:
        return []
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    split_cells(cells, keys, columns, values)
    if count_points(values, 0, TIME_BYTES) > most_points:
        return None
    return [ColumnPart(None, None, PackedCells(CellPage(keys, columns, values, TIME_BYTES, [], None)))]

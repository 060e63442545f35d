"""Blocks of the embedded store: packed cells of rows with a common key prefix, folded a part at a time."""

from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing
from functools import partial

import trio

from tsd.codec.packing.cell import HAS_PACKING_LOOP
from tsd.errors import StoreError
from tsd.store import ColumnPart, Folded, Put, RangeOf, StepLimit
from tsd.store.cells import prefix_end
from tsd.store.rocksdb.access import DatabaseAccess
from tsd.store.rocksdb.block_writes import BlockCells, add_blocks, find_blocks, steps_of, write_cells
from tsd.store.rocksdb.cached_rows import POINT_BYTES, RowPieces, RowsOfRange
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.folding import FoldedPart, FoldPart, fold_part, read_part
from tsd.store.rocksdb.kept_reads import KeptRead, KeyRange, Keys
from tsd.store.rocksdb.packed import PackedCells
from tsd.store.rocksdb.row_cache import RangeScan
from tsd.store.rocksdb.view import View
from tsd.store.rocksdb.watches import PrefixWatch

CACHED_SHARE = 2  # parts of cached rows are this many times as large as others: no time is lost while they are read


class EmbeddedBlocks:
    """ColumnBlocks of the embedded store."""

    def __init__(self, access: DatabaseAccess, folding: trio.Lock) -> None:
        self._access = access
        self._folding = folding
        self._cache = access.watches.cache

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        """See ColumnBlocks."""
        cells = points = 0
        start: bytes | None = prefix
        async with self._folding:
            while start is not None:
                with self._access.watches.of_prefix(table, prefix) as watch:
                    part = await self._access.read_in_steps(partial(_read_rows, table, prefix, start, least_rows))
                    folded = await trio.to_thread.run_sync(fold_part, part)
                    if folded is not None and await self._access.write_step("fold", table, _replacing(watch, folded)):
                        cells += len(folded.moved)
                        points += folded.points
                start = part.next_start
        return Folded(cells, points)

    async def remove_damaged(self, table: str, prefix: bytes) -> int:
        """See ColumnBlocks."""

        def change(database: Database, batch: Batch) -> tuple[list[bytes], int]:
            found = database.add_damaged_deletes(batch, table, prefix)
            if found:
                self._access.watches.note_range(table, prefix, prefix_end(prefix) or b"")
            return [prefix] if found else [], found

        async with self._folding:
            return await self._access.write_step("remove_damaged", table, change)

    async def write(self, table: str, puts: Sequence[Put], *, width: int, least_rows: int = 1) -> list[Put]:
        """See ColumnBlocks."""
        if not HAS_PACKING_LOOP:
            return list(puts)
        left: list[Put] = []
        for step in steps_of(puts, width):
            async with self._folding:
                left += await self._write_step(table, step, width, least_rows)
        return left

    async def _write_step(self, table: str, step: dict[bytes, list[Put]], width: int, least_rows: int) -> Sequence[Put]:
        """Write the cells of a step. Return those that were not written."""
        with self._access.watches.of_prefixes(table, step, width) as watch:
            found, left = await self._access.read_in_steps(partial(_find_blocks, table, step, width, least_rows))
            stamp = self._access.database.clock.next()
            written = await trio.to_thread.run_sync(write_cells, found, stamp)

            def change(database: Database, batch: Batch) -> tuple[list[bytes], bool]:
                if watch.changed:
                    return [], False
                add_blocks(database, batch, table, width, written.blocks)
                return written.rows, True

            if not await self._access.write_step("write_blocks", table, change):
                return [put for puts in step.values() for put in puts]
        self._access.count["cells_put"] += len(written.rows)
        return left + written.left

    async def next_unfolded(self, table: str, start: bytes, stop: bytes | None) -> bytes | None:
        """See ColumnBlocks."""
        page = await self._access.read_in_steps(
            lambda database: database.plain_view(table, stop).page(start, 1, 1, None)
        )
        return page.rows[0].key if page.rows else None

    async def get_columns(self, table: str, rows: Sequence[bytes]) -> list[ColumnPart]:
        """See ColumnBlocks."""
        return await self._access.read_in_steps(lambda database: database.view(table).get_columns(rows))

    def get_columns_now(self, table: str, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:
        """See ColumnBlocks."""
        return self._read_now("get", table, tuple(rows), limit, lambda view: view.rows_now(rows, limit))

    def read_columns_now(
        self, table: str, start: bytes, stop: bytes | None, limit: StepLimit
    ) -> list[ColumnPart] | None:
        """See ColumnBlocks."""
        return self._read_now(
            "read_cells", table, KeyRange(start, stop), limit, lambda view: view.range_now(start, limit)
        )

    def kept_read(self, parts: list[ColumnPart]) -> KeptRead | None:
        """See ColumnBlocks."""
        return self._cache.reads.read_of(parts)

    def read_again(self, table: str, read: object, limit: StepLimit) -> list[ColumnPart] | None:  # noqa: ARG002
        """See ColumnBlocks."""
        return self._cache.reads.again(read, limit) if isinstance(read, KeptRead) else None

    def _read_now(
        self,
        call: str,
        table: str,
        wanted: Keys | KeyRange,
        limit: StepLimit,
        read: Callable[[View], list[ColumnPart] | None],
    ) -> list[ColumnPart] | None:
        """Return what `read` returns, or has returned before."""
        reads = self._cache.reads
        if (kept := reads.find(table, wanted, limit)) is not None:
            return kept
        stop = wanted.stop if isinstance(wanted, KeyRange) else None
        parts = self._access.read_now(call, lambda database: read(database.view(table, stop)))
        if parts is not None:
            reads.keep(table, wanted, parts)
        return parts

    async def read_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, range_of: RangeOf | None = None
    ) -> AsyncGenerator[list[ColumnPart], None]:
        """See ColumnBlocks."""
        if range_of is None or not self._cache.limit:
            async with aclosing(self._read(table, start, stop, limit_bytes)) as pages:
                async for parts in pages:
                    yield parts
            return
        with self._cache.scanning(table, start, stop) as scan:
            at: bytes | None = start
            together = _PageOfRanges(limit_bytes * CACHED_SHARE)  # ranges of few rows share a page
            while at is not None:
                cached = scan.first(at)
                gap_stop = stop if cached is None else cached.start
                scan.begin(at)
                async with aclosing(self._read(table, at, gap_stop, limit_bytes)) as pages:
                    async for parts in pages:
                        if found := together.take():
                            yield found
                        await _keep(scan, [whole for part in parts for whole in _whole(scan, part, range_of)])
                        yield parts
                await _keep(scan, list(scan.end(gap_stop)))
                at = None
                if cached is not None:
                    for rows in cached.parts(together.most):
                        if not together.has_room(rows) and (found := together.take()):
                            yield found
                        together.add(rows)
                    at = cached.stop
            if found := together.take():
                yield found

    def forget(self) -> None:
        """See ColumnBlocks."""
        self._cache.clear()

    async def _read(
        self, table: str, start: bytes, stop: bytes | None, limit_bytes: int
    ) -> AsyncGenerator[list[ColumnPart], None]:
        """Yield the rows from `start` to before `stop` from the database."""
        if stop is not None and start >= stop:
            return
        step = await self._access.scan(
            "read_columns", lambda database: database.view(table, stop).columns(start, limit_bytes)
        )
        while (parts := await step()) != []:
            if parts is not None:
                yield parts


class _PageOfRanges:
    """Rows of several cached ranges, which make one page."""

    def __init__(self, most: int) -> None:
        """`most`: bytes of decoded points."""
        self.most = most
        self._last: RowsOfRange | None = None  # most hours have the same series as the hour before
        self._parts: list[ColumnPart] = []
        self._size = 0

    def has_room(self, rows: RowsOfRange) -> bool:
        """Return whether more rows fit."""
        return self._size + rows.points * POINT_BYTES <= self.most

    def add(self, rows: RowsOfRange) -> None:
        """Add the next rows."""
        if self._last is not None:
            rows.share(self._last)
        self._last = rows
        self._parts.append(ColumnPart(None, rows))
        self._size += rows.points * POINT_BYTES

    def take(self) -> list[ColumnPart]:
        """Remove and return all rows."""
        taken, self._parts, self._size = self._parts, [], 0
        return taken


def _whole(scan: RangeScan, part: ColumnPart, range_of: RangeOf) -> Iterator[RowPieces]:
    """Yield the ranges that end in a part of a scan, and may be kept."""
    return scan.add(part.packed.page, range_of) if isinstance(part.packed, PackedCells) else iter(())


async def _keep(scan: RangeScan, found: Sequence[RowPieces]) -> None:
    """Keep the rows of ranges that were read."""
    for pieces in found:
        scan.keep(pieces, await trio.to_thread.run_sync(pieces.joined))


def _read_rows(
    table: str, prefix: bytes, start: bytes, least_rows: int, database: Database
) -> Generator[None, None, FoldPart]:
    """Return the next part to fold. Raise StoreError for a table that does not exist, or has blocks of other rows."""
    _check_width(database, table, len(prefix))
    return (yield from read_part(database, table, prefix, start, least_rows))


def _find_blocks(
    table: str, step: dict[bytes, list[Put]], width: int, least_rows: int, database: Database
) -> Generator[None, None, tuple[list[BlockCells], list[Put]]]:
    """Return the cells of a step, with their blocks and without. Raise StoreError as `_read_rows` does."""
    _check_width(database, table, width)
    return (yield from find_blocks(database, table, step, least_rows))


def _check_width(database: Database, table: str, width: int) -> None:
    database.require(table)
    blocks = database.blocks(table)
    if blocks is not None and blocks.width != width:
        raise StoreError(f"blocks of {table} have prefixes of {blocks.width} bytes, not {width}")


def _replacing(watch: PrefixWatch, part: FoldedPart) -> Callable[[Database, Batch], tuple[list[bytes], bool]]:
    """Return a function that adds the changes of a part to a batch, unless one of its rows was written to. It returns
    no rows, because their cells stay the same, and whether there are changes."""

    def change(database: Database, batch: Batch) -> tuple[list[bytes], bool]:
        if watch.changed:
            return [], False
        database.remove_cells(batch, part.moved)
        add_blocks(database, batch, watch.table, len(watch.prefix), [part.blocks])
        return [], True

    return change

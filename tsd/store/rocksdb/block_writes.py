"""Writes cells of hours that are over straight to blocks, a part of them at a time.

A cell joins that of its row in a block if both are simple: they have points of different times. What cannot be written
so stays with the caller, who puts it into the table: cells of rows that have others there, several cells of one row,
cells without a packed form, those of a damaged block, and those of few new rows between the rows of a block.
"""

from bisect import bisect_left
from collections.abc import Generator, Iterator, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tsd.codec.blocks.block import Rows
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.opentsdb.merge import join_simple
from tsd.codec.packing.cell import CHECKSUM_BYTES, pack
from tsd.errors import DamagedBlock
from tsd.store.cells import Put
from tsd.store.rocksdb.blocks import BlockReader, StoredBlock
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.folding import NewBlocks, new_blocks
from tsd.store.rocksdb.keys import TIME_BYTES, time_of

row_of = itemgetter(0)

STEP_ROWS = 1024  # written in one step
NEW_SHARE = 2  # new rows between those of a block are 1/2 of them or more: each row of the block is encoded again
SEARCHED_BYTES = 64 << 10  # of a table's cells between those of a step, read at once


class BlockCells(NamedTuple):
    """Cells of neighbouring rows, and the block that they may join."""

    prefix: bytes
    block: StoredBlock | None
    puts: Sequence[Put]


class WrittenCells(NamedTuple):
    """Changes of blocks."""

    rows: list[bytes]
    blocks: list[NewBlocks]
    left: list[Put]  # not written


def steps_of(puts: Sequence[Put], width: int) -> Iterator[dict[bytes, list[Put]]]:
    """Yield sorted cells by the prefixes of their rows, of some STEP_ROWS rows together."""
    step: dict[bytes, list[Put]] = {}
    count = 0
    for prefix, some in groupby(puts, key=lambda put: put.row[:width]):
        cells = list(some)
        for at in range(0, len(cells), STEP_ROWS):
            part = cells[at : at + STEP_ROWS]
            if count + len(part) > STEP_ROWS and step:
                yield step
                step, count = {}, 0
            step[prefix] = part
            count += len(part)
    if step:
        yield step


def find_blocks(
    database: Database, table: str, step: dict[bytes, list[Put]], least_rows: int
) -> Generator[None, None, tuple[list[BlockCells], list[Put]]]:
    """Return the cells of a step with their blocks, and those that cannot be written to blocks. Fewer than `least_rows`
    rows of a prefix without blocks are left."""
    found: list[BlockCells] = []
    left: list[Put] = []
    for prefix, puts in step.items():
        yield
        reader = _reader_of(database, table, prefix)
        if database.runs(table) or (reader is None and len(puts) < least_rows):
            left += puts
            continue
        others = yield from _rows_of_table(database, table, puts)
        others |= {put.row for put, after in pairwise(puts) if put.row == after.row}
        left += [put for put in puts if put.row in others] if others else ()
        single = [put for put in puts if put.row not in others] if others else puts
        if reader is None:
            found.append(BlockCells(prefix, None, single))
            continue
        for key, cells in _by_block(reader, single):
            yield
            try:
                found.append(BlockCells(prefix, None if key is None else reader.load(key), cells))
            except DamagedBlock:
                left += cells
    return found, left


def _reader_of(database: Database, table: str, prefix: bytes) -> BlockReader | None:
    """Return a snapshot of a table's blocks, None if it has none of rows with a prefix."""
    family = database.blocks(table)
    if family is None:
        return None
    reader = database.block_reader(family)
    first = reader.key_from(prefix)
    return reader if first is not None and first.startswith(prefix) else None


def _by_block(reader: BlockReader, puts: Sequence[Put]) -> Iterator[tuple[bytes | None, Sequence[Put]]]:
    """Yield the keys of the blocks that may have some rows of one prefix, each with their cells; None: those before the
    first block."""
    at = 0
    while at < len(puts):
        key = reader.key_of(puts[at].row)
        following = reader.key_from(puts[at].row + b"\0")
        end = len(puts) if following is None else bisect_left(puts, following, at, key=row_of)
        yield key, puts[at:end]
        at = end


def _rows_of_table(database: Database, table: str, puts: Sequence[Put]) -> Generator[None, None, set[bytes]]:
    """Return the rows of the table itself between the first and the last of some rows."""
    rows: set[bytes] = set()
    view = database.plain_view(table, puts[-1].row + b"\0")
    for page in view.stored_cells(puts[0].row, SEARCHED_BYTES):
        if page is not None:
            rows.update(page.keys)
        yield
    return rows


def write_cells(found: Sequence[BlockCells], stamp: int) -> WrittenCells:
    """Return the changes for cells that get a write timestamp. May run in a thread."""
    written = WrittenCells([], [], [])
    for cells in found:
        try:
            made = _joined(cells, stamp)
        except DamagedBlock:
            written.left.extend(cells.puts)
            continue
        written.left.extend(made.left)
        if made.rows:
            width = len(cells.prefix)
            rows = Rows([row[width:] for row in made.rows], np.full(len(made.rows), stamp), made.cells)
            written.blocks.append(new_blocks(cells.prefix, cells.block, rows))
            written.rows.extend(made.rows)
    return written


class _Joined(NamedTuple):
    rows: list[bytes]
    cells: list[bytes]  # packed, without checksums
    left: list[Put]


def _joined(cells: BlockCells, stamp: int) -> _Joined:
    """Return what rows become. Those that have the same cell already are not changed."""
    before, least = {}, cells.prefix
    if cells.block is not None:
        before = {cell.row: cell for cell in cells.block.cells_of([put.row for put in cells.puts])}
        if len(cells.puts) * NEW_SHARE < cells.block.block.rows:
            least = cells.prefix + cells.block.block.series_pairs()[-1]
    made = _Joined([], [], [])
    for put in cells.puts:
        row, column, value = put
        if (old := before.get(row)) is not None:
            content, time_ms = old.value[TIME_BYTES:], time_of(old.value)
            if (old.column, content) == (column, value):
                continue
            both = [(old.column, content, time_ms), (column, value, stamp)]
            joined = join_simple(both, COLUMN, CELL_POINTS) if time_ms <= stamp else None
            if joined is None:
                made.left.append(put)
                continue
            column, value = joined
        elif row < least:
            made.left.append(put)
            continue
        packed = pack(column[len(COLUMN) :], value) if column.startswith(COLUMN) else None
        if packed is None:
            made.left.append(put)
        else:
            made.rows.append(row)
            made.cells.append(packed[:-CHECKSUM_BYTES])
    return made


def add_blocks(database: Database, batch: Batch, table: str, width: int, blocks: Sequence[NewBlocks]) -> None:
    """Add changes of blocks to a batch."""
    if not blocks:
        return
    family = database.blocks(table) or database.create_blocks(table, width)
    for each in blocks:
        for key in each.obsolete:
            batch.delete(key, family.handle)
        for key, value in each.puts:
            batch.put(key, value, family.handle)

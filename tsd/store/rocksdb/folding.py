"""Moves cells of rows with a common key prefix from a table to its blocks, a part of the rows at a time.

No reader sees a difference: a row, its cells and their timestamps stay the same. Cells that have no form in a block
(`tsd.codec.blocks.compacted`) stay where they are, and so does a second cell of a row.
"""

from collections.abc import Generator, Iterator
from typing import NamedTuple

import numpy as np

from tsd.codec.blocks.block import Rows, encode_block
from tsd.codec.blocks.compacted import read_cells
from tsd.codec.blocks.numbers import cuts
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.points import Int64, spread
from tsd.store import CellPage
from tsd.store.cells import prefix_end
from tsd.store.rocksdb.blocks import StoredBlock, encode_stored
from tsd.store.rocksdb.database import Database, Place

BLOCK_ROWS = 512  # most rows of a block
BLOCK_POINTS = 1 << 16  # about the most points of a block that has several rows
POINT_BYTES = 3  # of a usual value


class FoldPart(NamedTuple):
    """Some rows that follow each other, and the block that they may join."""

    table: str
    prefix: bytes
    block: StoredBlock | None
    cells: CellPage  # of the table
    next_start: bytes | None  # first row of the next part


class FoldedPart(NamedTuple):
    """Changes of one part."""

    moved: list[Place]  # cells to delete from the table
    points: int  # of these cells
    puts: list[tuple[bytes, bytes]]  # key and stored value of each new block
    obsolete: list[bytes]  # keys of blocks that the new ones replace


def read_part(
    database: Database, table: str, prefix: bytes, start: bytes, least_rows: int
) -> Generator[None, None, FoldPart]:
    """Return the next part of the rows with a prefix, from the row `start` on. Fewer than `least_rows` rows of a prefix
    without blocks are left out."""
    end = prefix_end(prefix)
    family, block, stop = database.blocks(table), None, end
    if family is not None:
        reader = database.block_reader(family)
        key = reader.key_of(start) or reader.key_from(start)
        if key is not None and key.startswith(prefix):
            block = reader.load(key)
            beyond = reader.key_from(key + b"\0")
            stop = beyond if beyond is not None and beyond.startswith(prefix) else end
    cells = yield from _first_page(database.plain_view(table, stop).cells(start, BLOCK_POINTS * POINT_BYTES))
    if start == prefix and block is None and cells.next_start is None and len(set(cells.keys)) < least_rows:
        return FoldPart(table, prefix, None, CellPage([], [], [], 0, [], None), None)
    return FoldPart(table, prefix, block, cells, cells.next_start or (stop if stop != end else None))


def _first_page(pages: Iterator[CellPage | None]) -> Generator[None, None, CellPage]:
    while (page := next(pages)) is None:
        yield
    return page


def fold_part(part: FoldPart) -> FoldedPart | None:
    """Return the changes of a part; None if no cell moves. May run in a thread. Raise DamagedBlock."""
    keys, columns, values, ahead, *_ = part.cells
    cells = _candidates(part)
    found = read_cells([columns[at][len(COLUMN) :] for at in cells], [values[at][ahead:] for at in cells])
    if not len(found.cells):
        return None
    chosen = [cells[at] for at in found.cells.tolist()]
    width = len(part.prefix)
    rows = Rows(
        [keys[at][width:] for at in chosen],
        found.in_ms,
        np.frombuffer(b"".join([values[at][:ahead] for at in chosen]), ">i8").astype(np.int64),
        *found[2:],
    )
    moved, points = [(keys[at], columns[at]) for at in chosen], len(rows.offsets)
    obsolete: list[bytes] = []
    if part.block is not None and _joins(part.block, rows, moved[0][0], moved[-1][0]):
        obsolete.append(part.block.key)
        rows = _joined(part.block, rows)
    puts = []
    for some in _blocks(rows):
        key = part.prefix + some.series_pairs[0]
        block = encode_block(some, key)
        puts.append((key, encode_stored(key, width, np.zeros(len(some.series_pairs), np.bool_), block)))
    return FoldedPart(moved, points, puts, obsolete)


def _candidates(part: FoldPart) -> list[int]:
    """Return the index of the cell of each row that may move to a block: the newer one of a block's cell, else the
    longest."""
    keys, columns, *_ = part.cells
    stored: dict[bytes, bytes] = {}
    if part.block is not None and keys:
        stored = {cell.row: cell.column for cell in part.block.cells_of(list(dict.fromkeys(keys)))}
    found: list[int] = []
    for at, (row, column) in enumerate(zip(keys, columns, strict=True)):
        own = stored.get(row)
        if column != own if own else not column.startswith(COLUMN):
            continue
        if not found or keys[found[-1]] != row:
            found.append(at)
        elif len(column) > len(columns[found[-1]]):
            found[-1] = at
    return found


def _joins(block: StoredBlock, rows: Rows, first: bytes, last: bytes) -> bool:
    """Return whether rows must, or should, become one with the rows of a block."""
    series_pairs = block.block.series_pairs()
    if first <= block.prefix + series_pairs[-1] and last >= block.key:
        return True
    count, points = len(series_pairs) + len(rows.series_pairs), int(block.block.counts.sum()) + len(rows.offsets)
    return count <= BLOCK_ROWS and points <= BLOCK_POINTS


def _joined(block: StoredBlock, rows: Rows) -> Rows:
    """Return the rows of a block, replaced where they are new, and the new ones."""
    kept = ~block.dropped
    found = block.block.find(rows.series_pairs)
    kept[found[found >= 0]] = False
    old = block.decode(kept)
    series_pairs = block.block.series_pairs()
    every = [*(series_pairs[row] for row in old.rows.tolist()), *rows.series_pairs]
    return _picked(
        Rows(
            every,
            np.concatenate((block.block.in_ms[kept], rows.in_ms)),
            np.concatenate((block.block.stamps[kept], rows.stamps)),
            np.concatenate((old.starts, old.starts[-1] + rows.starts[1:])),
            np.concatenate((old.offsets, rows.offsets)),
            np.concatenate((old.bits, rows.bits)),
            np.concatenate((old.floats, rows.floats)),
        ),
        np.array(sorted(range(len(every)), key=every.__getitem__)),
    )


def _picked(rows: Rows, order: Int64) -> Rows:
    """Return some rows in another order."""
    counts = np.diff(rows.starts)[order]
    points = spread(rows.starts[order], counts)
    return Rows(
        [rows.series_pairs[at] for at in order.tolist()],
        rows.in_ms[order],
        rows.stamps[order],
        np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))),
        rows.offsets[points],
        rows.bits[points],
        rows.floats[points],
    )


def _blocks(rows: Rows) -> Generator[Rows, None, None]:
    """Yield rows in parts that are not too large for a block."""
    counts = np.diff(rows.starts)
    size = max(-(-len(counts) // BLOCK_ROWS), -(-int(counts.sum()) // BLOCK_POINTS))
    if size == 1:
        yield rows
        return
    each = -(-len(counts) // size)
    for first, last in cuts(np.ones(len(counts), np.int64), each):
        yield _picked(rows, np.arange(first, last))

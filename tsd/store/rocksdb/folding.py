"""Moves cells of rows with a common key prefix from a table to its blocks, a part of the rows at a time.

No reader sees a difference: a row, its cells and their timestamps stay the same. Cells that have no packed form stay
where they are, and so does a second cell of a row. So do short cells without the compiled loop.
"""

from collections.abc import Generator, Iterator
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from tsd.codec.blocks.block import Rows, encode_block
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.packing.cell import CHECKSUM_BYTES, FORM, HAS_PACKING_LOOP, pack, with_checksum
from tsd.codec.packing.points import count_points
from tsd.store import CellPage
from tsd.store.cells import prefix_end
from tsd.store.rocksdb.blocks import StoredBlock, encode_stored
from tsd.store.rocksdb.database import Database, Place
from tsd.store.rocksdb.keys import TIME_BYTES, is_digest, key_column, time_of

BLOCK_ROWS = 256  # most rows of a block
BLOCK_BYTES = 16 << 10  # about the most bytes of the packed cells of a block that has several rows
PART_BYTES = 200_000  # of the cells that are folded in one step, unpacked
FORM_BYTE = bytes((FORM,))  # of a packed cell


class FoldPart(NamedTuple):
    """Some rows that follow each other, and the block that they may join."""

    table: str
    prefix: bytes
    block: StoredBlock | None
    cells: CellPage  # of the table, as stored
    next_start: bytes | None  # first row of the next part


class NewBlocks(NamedTuple):
    """Blocks to write."""

    puts: list[tuple[bytes, bytes]]  # key and stored value of each
    obsolete: list[bytes]  # keys of blocks that they replace


class FoldedPart(NamedTuple):
    """Changes of one part."""

    moved: list[Place]  # rows and columns, as in keys, of the cells to delete from the table
    points: int  # of these cells
    blocks: NewBlocks


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
    cells = yield from _first_page(database.plain_view(table, stop).stored_cells(start, PART_BYTES))
    if start == prefix and block is None and cells.next_start is None and len(set(cells.keys)) < least_rows:
        return FoldPart(table, prefix, None, CellPage([], [], [], 0, [], None), None)
    return FoldPart(table, prefix, block, cells, cells.next_start or (stop if stop != end else None))


def _first_page(pages: Iterator[CellPage | None]) -> Generator[None, None, CellPage]:
    while (page := next(pages)) is None:
        yield
    return page


def fold_part(part: FoldPart) -> FoldedPart | None:
    """Return the changes of a part; None if no cell moves. May run in a thread. Raise DamagedBlock."""
    moved = _moved(part)
    if not moved:
        return None
    width, values = len(part.prefix), part.cells.values
    rows = Rows(
        [part.cells.keys[at][width:] for at in moved],
        np.array([time_of(values[at]) for at in moved]),
        [cell[:-CHECKSUM_BYTES] for cell in moved.values()],
    )
    places = [(part.cells.keys[at], part.cells.columns[at]) for at in moved]
    points = max(count_points(list(moved.values()), 0, 0), 0)
    return FoldedPart(places, points, new_blocks(part.prefix, part.block, rows))


def new_blocks(prefix: bytes, block: StoredBlock | None, rows: Rows) -> NewBlocks:
    """Return blocks of rows with a prefix, joined with those of the block before them if they must, or should, be. Rows
    of that block are replaced. Raise DamagedBlock."""
    obsolete: list[bytes] = []
    if block is not None and _joins(block, rows):
        obsolete.append(block.key)
        rows = _joined(block, rows)
    puts = []
    for some in _blocks(rows):
        key = prefix + some.series_pairs[0]
        stored = encode_block(some, key)
        puts.append((key, encode_stored(key, len(prefix), np.zeros(len(some.series_pairs), np.bool_), stored)))
    return NewBlocks(puts, obsolete)


def _moved(part: FoldPart) -> dict[int, bytes]:
    """Return the packed form of the cell of each row that may move to a block, by its index: of the newer one of a
    block's cell, else of the longest."""
    keys, columns, values, *_ = part.cells
    in_block: dict[bytes, bytes] = {}
    if part.block is not None and keys:
        in_block = {cell.row: key_column(cell.column) for cell in part.block.cells_of(list(dict.fromkeys(keys)))}
    found: dict[bytes, tuple[int, bytes]] = {}
    for at, (row, column) in enumerate(zip(keys, columns, strict=True)):
        own = in_block.get(row)
        if own is not None and column != own:
            continue
        packed = _packed(column, values[at])
        if packed is not None and (row not in found or len(packed) > len(found[row][1])):
            found[row] = at, packed
    return dict(found.values())


def _packed(column: bytes, stored: bytes) -> bytes | None:
    """Return the packed form of a stored cell of points; None for other cells, and for damaged ones: a block has no
    checksums of cells."""
    if not column.startswith(COLUMN):
        return None
    if is_digest(column):
        cell = stored[TIME_BYTES:]
        return cell if cell[:1] == FORM_BYTE and with_checksum(cell[:-CHECKSUM_BYTES]) == cell else None
    return pack(column[len(COLUMN) :], stored[TIME_BYTES:]) if HAS_PACKING_LOOP else None


def _joins(block: StoredBlock, rows: Rows) -> bool:
    """Return whether rows are encoded together with those of a block: if some lie between them, or all fit in it."""
    series_pairs = block.block.series_pairs()
    if rows.series_pairs[0] <= series_pairs[-1] and rows.series_pairs[-1] >= series_pairs[0]:
        return True
    count = len(series_pairs) + len(rows.series_pairs)
    return count <= BLOCK_ROWS and int(block.block.sizes.sum()) + sum(map(len, rows.cells)) <= BLOCK_BYTES


def _joined(block: StoredBlock, rows: Rows) -> Rows:
    """Return the rows of a block, replaced where they are new, and the new ones."""
    kept = ~block.dropped
    found = block.block.find(rows.series_pairs)
    kept[found[found >= 0]] = False
    places, series_pairs = np.flatnonzero(kept), block.block.series_pairs()
    stamps, cells = block.block.stamps[places].tolist(), block.block.cells(places)
    every = list(zip([series_pairs[at] for at in places.tolist()], stamps, cells, strict=True))
    every += zip(rows.series_pairs, rows.stamps.tolist(), rows.cells, strict=True)
    every.sort(key=itemgetter(0))
    names, times, joined = zip(*every, strict=True)
    return Rows(names, np.array(times, np.int64), joined)


def _blocks(rows: Rows) -> Iterator[Rows]:
    """Yield rows in parts of about one size that are not too large for a block."""
    count, size = len(rows.cells), sum(map(len, rows.cells))
    parts = max(-(-count // BLOCK_ROWS), -(-size // BLOCK_BYTES))  # rounded up
    for first, last in pairwise([count * part // parts for part in range(parts + 1)]):
        if first < last:
            yield Rows(rows.series_pairs[first:last], rows.stamps[first:last], rows.cells[first:last])

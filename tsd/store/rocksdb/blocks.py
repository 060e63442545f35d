"""Blocks of a table: packed cells of rows with a common key prefix, in a column family of their own.

Each row of a block stands for one cell (`tsd.codec.blocks`). All prefixes of a table have one width. The key of a block
is at most the key of its first row, and above those of the rows of the block before it. So the block of a row, if there
is one, is the last one whose key is not above the row's.

A cell of the table itself takes precedence over a block's cell with the same row and column: it is the newer one. The
value of a block has a bitmap of its rows whose cells were deleted, because a block is not encoded again for a delete.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from threading import Lock
from typing import NamedTuple

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray
from rocksdict import ColumnFamily, Rdict

from tsd.codec.blocks.block import Block, UnknownFormat
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.points import Bool
from tsd.errors import CorruptRow, DamagedBlock, StoreError
from tsd.store.rocksdb.cursor import Cursor, Translated
from tsd.store.rocksdb.keys import DIGEST_BYTES, decode_long_cell

ROW_BYTES = 150  # of a row's entries in a decoded directory, its tag pairs included
DIGEST = COLUMN.ljust(DIGEST_BYTES, b"\xff")  # in place of that of a packed cell's column
_HEAD = struct.Struct("<HII")  # width of the prefix, bytes of the bitmap, CRC-32 of key, width and bitmap


class BlockFamily(NamedTuple):
    """The blocks of one table."""

    table: str
    rows: Rdict
    handle: ColumnFamily
    width: int  # of the prefixes
    cache: "BlockCache"


class BlockCell(NamedTuple):
    """A cell of a block."""

    row: bytes
    column: bytes
    value: bytes  # starts with the write timestamp, as in the table


def encode_stored(key: bytes, width: int, dropped: Bool, block: bytes) -> bytes:
    """Return the stored value of a block; `dropped` marks its rows whose cells were deleted."""
    bitmap = np.packbits(dropped).tobytes() if dropped.any() else b""
    return _HEAD.pack(width, len(bitmap), _crc(key, width, bitmap)) + bitmap + block


def _crc(key: bytes, width: int, bitmap: bytes) -> int:
    return zlib.crc32(bitmap, zlib.crc32(_HEAD.pack(width, len(bitmap), 0), zlib.crc32(key)))


def _damaged(table: str, prefix: bytes, cause: object) -> DamagedBlock:
    return DamagedBlock(f"table {table}: the block of the rows {prefix.hex()}... is damaged: {cause}", prefix)


class StoredBlock:
    """A block with its key. Any method may raise DamagedBlock."""

    def __init__(self, table: str, key: bytes, stored: bytes, width: int) -> None:
        """`width` is that of the table's prefixes."""
        self.key = key
        self.prefix = key[:width]
        self._table = table
        self.stored = stored
        if len(stored) < _HEAD.size:
            raise _damaged(table, self.prefix, f"it has {len(stored)} bytes")
        own_width, size, crc = _HEAD.unpack_from(stored)
        bitmap, self.content = stored[_HEAD.size : _HEAD.size + size], stored[_HEAD.size + size :]
        if own_width != width or len(bitmap) != size or _crc(key, width, bitmap) != crc:
            raise _damaged(table, self.prefix, f"its head is {stored[: _HEAD.size].hex()}")
        try:
            self.block = Block(self.content, key)
        except CorruptRow as exc:
            raise _damaged(table, self.prefix, exc) from exc
        self.dropped: Bool = np.zeros(self.block.rows, np.bool_)
        if bitmap:
            self.dropped = np.unpackbits(np.frombuffer(bitmap, np.uint8), count=self.block.rows).view(np.bool_)

    @property
    def size(self) -> int:
        """About the bytes of memory that the decoded directory takes."""
        return 2 * len(self.stored) + self.block.rows * ROW_BYTES

    def between(self, start: bytes, stop: bytes | None) -> Bool:
        """Return which rows with a cell are from `start` to before `stop`. The block is one of
        `BlockReader.between`."""
        wanted, width = ~self.dropped, len(self.prefix)
        if start > self.key:
            wanted[: bisect_left(self.block.series_pairs(), start[width:])] = False
        if stop is not None and stop[:width] == self.prefix:
            wanted[bisect_left(self.block.series_pairs(), stop[width:]) :] = False
        return wanted

    def find(self, rows: Sequence[bytes]) -> NDArray[np.intp]:
        """Return the index of each of some rows with this block's prefix, -1 for those without a cell."""
        found = self.block.find([row[len(self.prefix) :] for row in rows])
        found[self.dropped[found]] = -1
        return found

    def cells_of(self, rows: Sequence[bytes]) -> list[BlockCell]:
        """Return the cells of some rows with this block's prefix."""
        if not rows:
            return []
        found = self.find(rows)
        wanted = np.zeros(self.block.rows, np.bool_)
        wanted[found[found >= 0]] = True
        return self.cells(wanted) if wanted.any() else []

    def without(self, rows: Sequence[bytes]) -> bytes | None:
        """Return the stored value of this block without the cells of some of its rows; None if none is left."""
        dropped = self.dropped.copy()
        dropped[self.find(rows)] = True
        return None if dropped.all() else encode_stored(self.key, len(self.prefix), dropped, self.content)

    def rows_of(self, places: NDArray[np.intp]) -> list[bytes]:
        """Return the keys of some rows."""
        prefix, series_pairs = self.prefix, self.block.series_pairs()
        return [prefix + series_pairs[at] for at in places.tolist()]

    def cells(self, wanted: Bool) -> list[BlockCell]:
        """Return the cells of the wanted rows, in order of their keys."""
        places = np.flatnonzero(wanted)
        try:
            return [
                BlockCell(row, *decode_long_cell(DIGEST, stored))
                for row, stored in zip(self.rows_of(places), self.block.stored_cells(places), strict=True)
            ]
        except StoreError as exc:
            raise _damaged(self._table, self.prefix, exc) from exc


class BlockCache:
    """The blocks that were read last: their directories are decoded once. Safe to use in threads."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes."""
        self._blocks: LRUCache[tuple[str, bytes], StoredBlock] = LRUCache(
            limit, getsizeof=lambda block: min(block.size, limit)
        )
        self._lock = Lock()

    def get(self, table: str, key: bytes, stored: bytes, width: int) -> StoredBlock:
        """Return the block of a stored value. Raise DamagedBlock."""
        place = table, key
        with self._lock:
            block = self._blocks.get(place)
        if block is None or block.stored != stored:
            block = StoredBlock(table, key, stored, width)
            with self._lock:
                self._blocks[place] = block
        return block


class BlockReader(Cursor):
    """A snapshot of a table's blocks. Any method may raise DamagedBlock, or StoreError."""

    def __init__(self, family: BlockFamily, translated: Translated) -> None:
        super().__init__(family.rows, translated)
        self._family = family

    def key_of(self, row: bytes) -> bytes | None:
        """Return the key of the block that may have a row."""
        width = self._family.width
        key = self._key_to(row)
        return key if key is not None and key[:width] == row[:width] else None

    def key_after(self, row: bytes, size: int) -> bytes | None:
        """Return the key of the block after those that take `size` bytes from a row on, None if all take less."""
        key = self.key_from(row)
        while key is not None and size > 0:
            size -= len(self._value(key))
            key = self.key_from(key + b"\0")
        return key

    def load(self, key: bytes) -> StoredBlock:
        """Return the block with a key that exists."""
        return self._family.cache.get(self._family.table, key, self._value(key), self._family.width)

    def damaged(self, prefix: bytes) -> list[bytes]:
        """Return the keys of the damaged blocks of rows with a prefix, without those of an unknown format."""
        found: list[bytes] = []
        key = self.key_from(prefix)
        while key is not None and key.startswith(prefix):
            try:
                self.load(key)
            except DamagedBlock as exc:
                if not isinstance(exc.__cause__, UnknownFormat):
                    found.append(key)
            key = self.key_from(key + b"\0")
        return found

    def between(self, start: bytes, stop: bytes | None) -> Iterator[StoredBlock]:
        """Yield all blocks that may have rows from `start` to before `stop`."""
        key = self.key_of(start) or self.key_from(start)
        while key is not None and (stop is None or key < stop):
            yield self.load(key)
            key = self.key_from(key + b"\0")

    def group(self, rows: Iterable[bytes]) -> Iterator[tuple[StoredBlock, list[bytes]]]:
        """Yield the blocks that may have some of the rows, each with these rows."""
        width = self._family.width
        for key, some in groupby(sorted(row for row in set(rows) if len(row) >= width), self.key_of):
            if key is not None:
                found = list(some)
                yield self.load(key), found

    def cells(self, rows: Iterable[bytes]) -> Iterator[list[BlockCell]]:
        """Yield the cells of those rows that are in blocks, block by block."""
        for block, some in self.group(rows):
            yield block.cells_of(some)

"""Records of a store: cells, rows, pages of a scan and tables.

A column is `family:qualifier`, as HBase spells it. Rows and, within a row, columns are ordered as unsigned bytes.

Cell signatures are 128-bit values for a group of rows that change when a cell of the group changes.
"""

import os
import secrets
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

try:
    from tsd.store import _cells
except ImportError:  # installed without a C compiler
    HAS_CELL_LOOP = False
else:
    HAS_CELL_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both


def prefix_end(prefix: bytes) -> bytes | None:
    r"""Return the lowest key above all keys that start with a prefix, None if there is none.

    >>> prefix_end(b"web"), prefix_end(b"a\xff"), prefix_end(b"\xff"), prefix_end(b"")
    (b'wec', b'b', None, None)
    """
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes((kept[-1] + 1,)) if kept else None


class Cell(NamedTuple):
    """One stored cell of a row."""

    column: bytes
    value: bytes
    time_ms: int  # write timestamp


class Row(NamedTuple):
    """A row and its cells, one or more, ordered by column."""

    key: bytes
    cells: list[Cell]


class Put(NamedTuple):
    """One cell to write."""

    row: bytes
    column: bytes
    value: bytes


class CellMatrix(NamedTuple):
    """Cells of some rows that have about the same columns, to write. Rows and columns are ascending."""

    rows: list[bytes]
    columns: list[bytes]
    values: NDArray[np.uint64]  # by row and column: the 8 bytes of each value, in memory as cells have them
    present: NDArray[np.bool_]  # where there are cells, at least one in each row

    @property
    def cells(self) -> int:
        """Number of cells."""
        return int(self.present.sum())

    def puts(self) -> list[Put]:
        """Return the cells, in order."""
        every = zip(self.rows, self.values.view("V8").tolist(), self.present.tolist(), strict=True)
        return [
            Put(row, column, value)
            for row, values, present in every
            for column, value, is_present in zip(self.columns, values, present, strict=True)
            if is_present
        ]


class Page(NamedTuple):
    """A part of a scan: whole rows in order, and the first row key of the next part (None after the last part)."""

    rows: list[Row]
    next_start: bytes | None


class Family(NamedTuple):
    """A column family with the settings of OpenTSDB's table script. Engines without such settings ignore them."""

    name: bytes
    versions: int = 1
    bloom: str = "ROW"


class Table(NamedTuple):
    """A table to create."""

    name: str
    families: tuple[Family, ...]


class CellPage(NamedTuple):
    """A part of a scan as parallel lists with one entry per cell, in order. It holds whole rows only."""

    keys: list[bytes]  # row key of each cell
    columns: list[bytes]
    values: list[bytes]  # each after a prefix of `ahead` bytes
    ahead: int  # 8: the prefix is the write timestamp, big-endian; 0: there is no prefix
    times_ms: list[int]  # write timestamps; empty if the values have them as a prefix
    next_start: bytes | None  # first row key of the next part, None after the last part

    def cell(self, at: int) -> Cell:
        """Return one cell."""
        value = self.values[at]
        time_ms = int.from_bytes(value[: self.ahead], "big") if self.ahead else self.times_ms[at]
        return Cell(self.columns[at], value[self.ahead :], time_ms)


class Cursor:
    """State of a cell scan that an engine keeps between two pages. A scan without it is slower but still correct,
    because each request has the first row of its page.
    """

    def __init__(self, key_pattern: str = "") -> None:
        """`key_pattern` is a Java regular expression. An engine with `Capabilities.filters_rows` may skip rows whose
        keys do not contain it (see tsd.codec.opentsdb.rowkey)."""
        self.key_pattern = key_pattern
        self.address: tuple[str, int] | None = None  # gateway that opened the scanner
        self.scanner: int | None = None
        self.row_bytes = 0  # average size of a row's values; 0: unknown
        self.pages: Iterator[CellPage | None] | None = None  # remaining pages of an engine in this process
        self.next_start: bytes | None = None  # first row of those pages


def cells_of_rows(rows: Iterable[Row], next_start: bytes | None = None) -> CellPage:
    """Return rows as a page of cells.

    >>> cells_of_rows([Row(b"r", [Cell(b"t:a", b"1", 7), Cell(b"t:b", b"2", 8)])]).keys
    [b'r', b'r']
    """
    keys: list[bytes] = []
    columns: list[bytes] = []
    values: list[bytes] = []
    times_ms: list[int] = []
    for key, cells in rows:
        for column, value, time_ms in cells:
            keys.append(key)
            columns.append(column)
            values.append(value)
            times_ms.append(time_ms)
    return CellPage(keys, columns, values, 0, times_ms, next_start)


def joined_pages(pages: Sequence[CellPage]) -> CellPage:
    """Return pages whose values have no prefix as one.

    >>> joined_pages([cells_of_rows([Row(key, [Cell(b"t:", b"1", 7)])]) for key in (b"a", b"b")]).keys
    [b'a', b'b']
    """
    if len(pages) == 1:
        return pages[0]
    if not pages:
        return CellPage([], [], [], 0, [], None)
    keys, columns, values, times_ms = (
        list(chain.from_iterable(parts))
        for parts in zip(*((page.keys, page.columns, page.values, page.times_ms) for page in pages), strict=True)
    )
    return CellPage(keys, columns, values, 0, times_ms, None)


SECRETS = secrets.randbits(64), secrets.randbits(64)
_HASH = struct.Struct("<QQ")


class CellSigner:
    """Computes signatures of groups of rows. Cells may be added in any order and in any number of calls.

    A signature is the sum of a hash of each cell, keyed with a secret of this process. Equal signatures mean cells with
    equal rows, columns, write timestamps and lengths of values. Values of the same length and timestamp have the
    same signature: a caller must not rely on signatures of cells that may still be rewritten within their millisecond.

    This needs the compiled loop: in Python, hashing each cell would cost more than reading the rows again.
    """

    def __init__(self, width: int) -> None:
        """Rows whose keys share their first `width` bytes form a group."""
        self._width = width
        self._sums: dict[bytes, tuple[int, int]] = {}

    def add(self, keys: list[bytes], columns: list[bytes], lengths: NDArray[np.int64], times_ms: list[int]) -> None:
        """Add cells: the row key, column, length of value and write timestamp of each."""
        _cells.sign_cells(keys, columns, lengths, times_ms, self._width, *SECRETS, self._sums)

    def add_rows(
        self, room: memoryview, at: int, have: int, wanted: int, before: bytes
    ) -> tuple[int, int, bool, bytes]:
        """Add up to `wanted` rows of a Thrift answer whose values are lengths (see tsd.store.hbase.thrift_codec).

        `room` is a buffer with `have` received bytes; the first row starts at byte `at`. Keys must ascend, from above
        `before`. Return the number of whole rows, the position after them, whether the next bytes can be a row, and the
        last key.
        """
        found: tuple[int, int, bool, bytes] = _cells.sign_rows(
            room, at, have, wanted, self._width, *SECRETS, before, self._sums
        )
        return found

    def finish(self) -> dict[bytes, bytes]:
        """Return the signature of each group by its prefix."""
        return {prefix: _HASH.pack(*sums) for prefix, sums in self._sums.items()}

"""Cells as bound values of statements, and answers as cells. Write timestamps are microseconds here."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.errors import CorruptRow
from tsd.store import Cell, CellPage, Put, Row
from tsd.store.cassandra.keys import Shape
from tsd.store.cassandra.session import Rows, Value
from tsd.store.cassandra.wire import (
    HAS_WIRE_LOOP,
    LENGTH,
    RawRows,
    encode_value,
    find_values,
    fixed_values,
    values_at,
)

if HAS_WIRE_LOOP:
    from tsd.store.cassandra import _wire

T = TypeVar("T")
K = TypeVar("K")

BATCH_CELLS = 400  # larger batches of one partition are not faster
BATCH_BYTES = 1 << 20  # of values: a batch must fit into half a segment of the commit log, 16 MiB by default
STAMP_BYTES = 8
CELL_VALUES = 4  # key, column, value, timestamp
MS, LAST_US = 1000, 999  # microseconds of a millisecond
LATEST_MS = (2**63 - 1) // MS - 1


def grouped(items: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Return values by key, in order.

    >>> grouped([("a", 1), ("b", 2), ("a", 3)])
    {'a': [1, 3], 'b': [2]}
    """
    groups: dict[K, list[T]] = {}
    for key, item in items:
        groups.setdefault(key, []).append(item)
    return groups


def sliced(groups: Mapping[K, Sequence[T]], most: int) -> Iterator[tuple[K, list[T]]]:
    """Yield each group in slices of at most `most` values.

    >>> list(sliced({"a": [1, 2, 3]}, 2))
    [('a', [1, 2]), ('a', [3])]
    """
    for key, items in groups.items():
        for at in range(0, len(items), most):
            yield key, list(items[at : at + most])


def encode_stamp(stamp_us: int) -> bytes:
    """Return a write timestamp as a bound value."""
    return encode_value(stamp_us.to_bytes(STAMP_BYTES, "big", signed=True))


def encode_places(places: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return (key, column) of cells as a list of tuples, a bound value without its length.

    >>> encode_places([(b"k", b"t:")]).hex()
    '000000010000000b000000016b00000002743a'
    """
    tuples = [encode_value(key) + encode_value(column) for key, column in places]
    return LENGTH.pack(len(tuples)) + b"".join(map(encode_value, tuples))


def put_batches(shape: Shape, cells: Sequence[Put], stamp_us: int) -> dict[bytes, list[list[bytes]]] | None:
    """Return the batches of puts by partition: lists of bound values, each with whole rows. None: there is no compiled
    loop, a cell is invalid, or cells of a row do not follow each other in order of their columns."""
    if not HAS_WIRE_LOOP:
        return None
    families = tuple([family + b":" for family in shape.families])
    width = shape.widths.partition
    return _wire.batches_of(cells, families, width, LONGEST_HBASE_KEY, encode_stamp(stamp_us), BATCH_CELLS, BATCH_BYTES)


def cells_in(raw: RawRows) -> Rows:
    """Return key, column, value and timestamp of the cells in an answer."""
    if not raw.rows:
        return []
    places, body = find_values(raw, CELL_VALUES), raw.body
    stamps = np.frombuffer(fixed_values(body, places.starts[:, -1], STAMP_BYTES), ">i8").tolist()
    keys, columns, values = (
        values_at(body, places.starts[:, at].tolist(), places.lengths[:, at].tolist()) for at in range(CELL_VALUES - 1)
    )
    return list(zip(keys, columns, values, stamps, strict=True))


def cells_of(answer: Rows) -> Iterator[tuple[bytes, bytes, int]]:
    """Yield column, value and timestamp in microseconds of the cells in an answer."""
    for _, column, value, stamp in answer:
        assert isinstance(column, bytes)
        assert isinstance(value, bytes)
        assert isinstance(stamp, int)
        yield column, value, stamp


def rows_of(partition: bytes, raw: RawRows) -> list[Row]:
    """Return the rows of an answer, in its order. Raise CorruptRow for a body that ends early."""
    page = CellPage([], [], [], 0, [], None)
    take_cells(partition, raw, page)
    rows: list[Row] = []
    last = None
    for key, cell in zip(page.keys, map(Cell, page.columns, page.values, page.times_ms), strict=True):
        if key != last:
            rows.append(Row(key, []))
            last = key
        rows[-1].cells.append(cell)
    return rows


def take_cells(partition: bytes, raw: RawRows, page: CellPage, *, compiled: bool = HAS_WIRE_LOOP) -> int:
    """Append the cells of an answer to the lists of a page. Return the bytes of their values. Raise CorruptRow for a
    body that ends early. Not `compiled`: use the Python code."""
    if compiled:
        size = _wire.take_cells(raw.body, raw.rows, partition, page.keys, page.columns, page.values, page.times_ms)
        if size < 0:
            raise CorruptRow(f"answer: got {len(raw.body)} bytes, wanted {raw.rows} cells")
        return size
    size = 0
    last: Value = None
    for key, column, value, stamp in cells_in(raw):
        assert isinstance(key, bytes)
        assert isinstance(column, bytes)
        assert isinstance(value, bytes)
        assert isinstance(stamp, int)
        page.keys.append(page.keys[-1] if key == last else partition + key)
        page.columns.append(column)
        page.values.append(value)
        page.times_ms.append(stamp // MS)
        last = key
        size += len(value)
    return size

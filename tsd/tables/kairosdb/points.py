"""Points of rows of data_points as Cassandra sends and gets them: arrays and bytes, no object a point."""

import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tsd.codec.kairosdb.keys import DOUBLE, LONG, DataRow
from tsd.codec.kairosdb.rows import COLUMN_BYTES
from tsd.codec.points import Bool, Int64
from tsd.store.cassandra.wire import LENGTH, RawRows, encode_value, find_values, fixed_values, values_at

try:
    from tsd.tables.kairosdb import _points
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

COLUMN, VALUE, STAMP, TTL = range(4)  # of a timed row of an answer; others have the first two
TTL_BYTES, STAMP_BYTES = 4, 8
BATCH_BYTES = 1 << 20  # of one partition: a batch must fit into half a segment of the commit log
POINT_BYTES = 16  # of a point's column and a short value


class Limits(NamedTuple):
    """Of batches."""

    points: int  # of one partition
    mixed_points: int  # of several partitions
    mixed_bytes: int


# More points of one partition are not faster. Of several partitions they are as many as KairosDB sends: 100 points cost
# the daemon and Cassandra a sixth more, 400 points as much. Cassandra refuses 50 KiB of them, and counts up to 80 bytes
# for a number.
LIMITS = Limits(400, 200, 8 << 10)


class StoredPoint(NamedTuple):
    """A stored point. The write timestamp and the seconds until it expires are 0 if they were not asked for."""

    column: bytes
    value: bytes
    stamp_ms: int = 0
    ttl_s: int | None = 0  # None: it does not expire


class StoredPoints:
    """Points of one row, or a part of them, in order of their columns."""

    def __init__(self, body: bytes, starts: Int64, lengths: Int64) -> None:
        """`starts` and `lengths` tell where the values of each point are in `body`, shape (points, 2 or 4)."""
        self.body = body
        self.starts = starts
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.starts)

    def __iter__(self) -> Iterator[StoredPoint]:
        columns, values = self.bytes_of(COLUMN), self.bytes_of(VALUE)
        ttls = [None if ttl < 0 else ttl for ttl in self._integers(TTL, TTL_BYTES, -1).tolist()]
        yield from map(StoredPoint, columns, values, self.stamps.tolist(), ttls)

    @property
    def size(self) -> int:
        """Stored bytes of columns and values."""
        return int(self.lengths[:, : VALUE + 1].sum())

    @cached_property
    def numbers(self) -> Int64:
        """Columns as numbers. Longer ones count by their first bytes, which sort before them."""
        if (self.lengths[:, COLUMN] == COLUMN_BYTES).all():
            columns = fixed_values(self.body, self.starts[:, COLUMN], COLUMN_BYTES)
        else:
            columns = b"".join([column[:COLUMN_BYTES].ljust(COLUMN_BYTES, b"\0") for column in self.bytes_of(COLUMN)])
        return np.frombuffer(columns, ">u4").astype(np.int64)

    @property
    def stamps(self) -> Int64:
        """Write timestamps."""
        return self._integers(STAMP, STAMP_BYTES, 0)

    @property
    def expiring(self) -> int:
        """How many points have a time to live."""
        return int((self._integers(TTL, TTL_BYTES, -1) > 0).sum())

    def _integers(self, which: int, size: int, absent: int) -> Int64:
        """Return integers of `size` bytes, 0 if they were not asked for, `absent` for null."""
        found = np.zeros(len(self), np.int64)
        if self.starts.shape[1] <= which:
            return found
        present = self.lengths[:, which] == size
        found[present] = np.frombuffer(fixed_values(self.body, self.starts[present, which], size), f">i{size}")
        found[~present] = absent
        return found

    def bytes_of(self, which: int) -> list[bytes]:
        """Return all columns, or all values."""
        return values_at(self.body, self.starts[:, which].tolist(), self.lengths[:, which].tolist())

    def at(self, chosen: Bool | slice) -> "StoredPoints":
        """Return some of the points."""
        return StoredPoints(self.body, self.starts[chosen], self.lengths[chosen])


def parse_points(raw: RawRows, *, timed: bool) -> StoredPoints:
    """Return the points of an answer. Raise CorruptRow."""
    return StoredPoints(raw.body, *find_values(raw, TTL + 1 if timed else VALUE + 1))


def parse_joined(raw: RawRows, *, timed: bool) -> dict[bytes, StoredPoints]:
    """Return the points of several rows by their keys. Those of a row follow each other. Raise CorruptRow."""
    starts, lengths = find_values(raw, TTL + 2 if timed else VALUE + 2)

    def key_at(at: int) -> bytes:
        start, length = int(starts[at, 0]), int(lengths[at, 0])
        return raw.body[start : start + length]

    found: dict[bytes, StoredPoints] = {}
    first = 0
    while first < raw.rows:
        key = key_at(first)
        end = bisect_left(range(raw.rows), 1, first + 1, key=lambda at: key_at(at) != key)
        found[key] = StoredPoints(raw.body, starts[first:end, 1:], lengths[first:end, 1:])
        first = end
    return found


NO_STORED = parse_points(RawRows(0, b""), timed=False)


class PlainPoints(NamedTuple):
    """Points of several rows whose columns have four bytes, and whose values are whole numbers or doubles."""

    columns: Int64
    bits: Int64
    keys: Sequence[bytes]  # of the rows with points
    starts: Int64  # (rows + 1,): index of each row's first point, then their number
    size: int  # bytes of columns and values


class RowsAnswer:
    """Points of some rows as Cassandra sent them."""

    def __init__(self, rows: Mapping[bytes, DataRow], raw: RawRows, *, keyed: bool, timed: bool) -> None:
        """`rows` are those that were asked for, by their keys. `keyed`: each point has its row's key, otherwise there
        is one row. `timed`: each point has its write timestamp and time to live."""
        self.rows = rows
        self.timed = timed
        self._raw = raw
        self._keyed = keyed

    def __len__(self) -> int:
        """Return the number of points."""
        return self._raw.rows

    @cached_property
    def stored(self) -> dict[DataRow, StoredPoints]:
        """The points of each row. Raise CorruptRow."""
        if not self._keyed:
            [row] = self.rows.values()
            return {row: parse_points(self._raw, timed=self.timed)}
        found = parse_joined(self._raw, timed=self.timed)
        return {row: found.get(key, NO_STORED) for key, row in self.rows.items()}

    @cached_property
    def plain(self) -> PlainPoints | None:
        """All points, None if some need a closer look, or their write timestamps count."""
        doubles = {key: row.type == DOUBLE for key, row in self.rows.items() if row.type in (LONG, DOUBLE)}
        if self.timed or not HAS_LOOP or len(doubles) < len(self.rows):
            return None
        found = _points.decode_points(self._raw.body, self._raw.rows, self._keyed, doubles)
        if found is None:
            return None
        columns, bits, keys, firsts, size = found
        starts = np.array([*firsts, self._raw.rows], np.int64)
        return PlainPoints(np.frombuffer(columns, np.int64), np.frombuffer(bits, np.int64), keys, starts, size)


class PutBatch(NamedTuple):
    """Points that are put with one request."""

    points: Sequence[bytes]  # bound values of each: key, column, value, time to live, write timestamp
    key: bytes | None  # of the only row


class RowPut(NamedTuple):
    """Points of one row as they are put."""

    key: bytes
    columns: Sequence[bytes]
    values: Sequence[bytes]
    ttl_s: int
    stamps: Sequence[int]

    @property
    def size(self) -> int:
        """Bytes of columns and values, about."""
        return sum(map(len, self.values)) + POINT_BYTES * len(self.values)

    def part(self, start: int, end: int) -> "RowPut":
        """Return some of the points."""
        part = slice(start, end)
        return RowPut(self.key, self.columns[part], self.values[part], self.ttl_s, self.stamps[part])

    def parts(self, points: int, size: int) -> Iterator["RowPut"]:
        """Yield the points in parts of at most `points` points and `size` bytes, but at least one point."""
        start = room = 0
        for at, value in enumerate(self.values):
            if at > start and (at - start >= points or len(value) + POINT_BYTES > room):
                yield self.part(start, at)
                start = at
            room = (size if at == start else room) - len(value) - POINT_BYTES
        yield self.part(start, len(self.values))

    def encode(self) -> list[bytes]:
        """Return the bound values of each point: key, column, value, time to live, write timestamp."""
        head = encode_value(self.key) + LENGTH.pack(COLUMN_BYTES)
        ttl = encode_value(self.ttl_s.to_bytes(TTL_BYTES, "big"))
        ends = {stamp: ttl + encode_value(stamp.to_bytes(STAMP_BYTES, "big")) for stamp in set(self.stamps)}
        return [
            head + column + encode_value(value) + ends[stamp]
            for column, value, stamp in zip(self.columns, self.values, self.stamps, strict=True)
        ]


def bound_batches(rows: Iterable[RowPut], limits: Limits = LIMITS) -> Iterator[PutBatch]:
    """Yield points in batches as they are put."""
    for batch in batches(rows, limits):
        yield PutBatch([values for row in batch for values in row.encode()], batch[0].key if len(batch) == 1 else None)


def batches(rows: Iterable[RowPut], limits: Limits = LIMITS) -> Iterator[list[RowPut]]:
    """Yield points in batches: many of one row, or some of several rows."""
    mixed: list[RowPut] = []
    points = size = 0
    for row in rows:
        whole = len(row.values) <= limits.points and row.size <= BATCH_BYTES
        for part in [row] if whole else row.parts(limits.points, BATCH_BYTES):
            count, bytes_of_part = len(part.values), part.size
            if count > limits.mixed_points // 2 or bytes_of_part > limits.mixed_bytes:
                yield [part]
                continue
            if points + count > limits.mixed_points or size + bytes_of_part > limits.mixed_bytes:
                if mixed:
                    yield mixed
                mixed, points, size = [], 0, 0
            mixed.append(part)
            points, size = points + count, size + bytes_of_part
    if mixed:
        yield mixed

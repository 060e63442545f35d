"""Cache of reads of few rows, each done in one step: a repeated query does not read RocksDB again.

A write to one of the rows removes the read from the cache before the change can be read.
"""

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from tsd.codec.packing.points import count_points
from tsd.store import ColumnPart, StepLimit
from tsd.store.rocksdb.keys import TIME_BYTES
from tsd.store.rocksdb.packed import PackedCells

MOST_RANGES = 100  # that are kept: each write is compared with all of them
LARGEST_SHARE = 8  # a read takes at most an eighth of the memory
MOST_KEYS = 600  # of a read: keeping it takes a millisecond
KEY_BYTES = 500  # of a key that was asked for, and what lists its reads
CELL_BYTES = 400  # of a cell, besides its value

Keys: TypeAlias = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)  # a tuple could equal that of two keys
class KeyRange:
    """Rows from `start` to before `stop`; None: to the end of the table."""

    start: bytes
    stop: bytes | None

    def overlaps(self, start: bytes, stop: bytes) -> bool:
        """Return whether a row may be in both."""
        return self.start < stop and (self.stop is None or start < self.stop)

    def has_any(self, rows: Sequence[bytes]) -> bool:
        """Return whether one of some rows, which ascend, is in the range."""
        at = bisect_left(rows, self.start)
        return at < len(rows) and (self.stop is None or rows[at] < self.stop)


class KeptRead:
    """What a read has returned. Two are never equal: comparing many keys would take long."""

    def __init__(self, table: str, wanted: Keys | KeyRange, parts: list[ColumnPart]) -> None:
        self.place = table, wanted
        self.parts = parts
        self.needs = StepLimit(0, 0, 0)  # the lowest limit that it is within
        self.memory = 0  # bytes
        self.is_kept = True

    def measure(self) -> bool:
        """Find how large it is. Return False if it asks for many rows, or has rows that the cache of ranges holds."""
        _, wanted = self.place
        keys = (wanted.start, wanted.stop or b"") if isinstance(wanted, KeyRange) else wanted
        cells = size = points = 0
        if len(keys) > MOST_KEYS:
            return False
        for one, rows, packed in self.parts:
            page = packed.page if isinstance(packed, PackedCells) else one
            if rows is not None or page is None:
                return False
            cells += len(page.keys)
            size += sum(map(len, page.values))
            points += 0 if packed is None else max(count_points(page.values, 0, TIME_BYTES), 0)
        self.needs = StepLimit(cells, size, points)
        self.memory = sum(map(len, keys)) + (len(keys) + 1) * KEY_BYTES + size + cells * CELL_BYTES
        return True


class _Table:
    """The reads of one table."""

    def __init__(self) -> None:
        self.of_row: dict[bytes, set[KeptRead]] = {}  # those that asked for a row
        self.ranges: dict[KeptRead, KeyRange] = {}  # the oldest first

    def add(self, read: KeptRead) -> None:
        _, wanted = read.place
        if isinstance(wanted, KeyRange):
            self.ranges[read] = wanted
            return
        for row in wanted:
            self.of_row.setdefault(row, set()).add(read)

    def remove(self, read: KeptRead) -> None:
        _, wanted = read.place
        if isinstance(wanted, KeyRange):
            del self.ranges[read]
            return
        for row in wanted:
            others = self.of_row[row]
            others.remove(read)
            if not others:
                del self.of_row[row]

    def changed_by(self, rows: Collection[bytes]) -> set[KeptRead]:
        """Return the reads of any of some rows."""
        found = {read for row in self.of_row.keys() & rows for read in self.of_row[row]}
        if self.ranges:
            ordered = sorted(rows)
            found.update(read for read, one in self.ranges.items() if one.has_any(ordered))
        return found

    def changed_within(self, start: bytes, stop: bytes) -> set[KeptRead]:
        """Return the reads of any row from `start` to before `stop`."""
        found = {read for row, some in self.of_row.items() if start <= row < stop for read in some}
        found.update(read for read, one in self.ranges.items() if one.overlaps(start, stop))
        return found


class KeptReads:
    """Reads of some tables, least recently used first. Not thread-safe: only the event loop uses it."""

    def __init__(self, limit: int) -> None:
        """`limit`: bytes of all reads together; 0: none are kept."""
        self._limit = limit
        self._reads: dict[tuple[str, Keys | KeyRange], KeptRead] = {}
        self._by_parts: dict[int, KeptRead] = {}
        self._by_use: OrderedDict[KeptRead, None] = OrderedDict()  # without hashes of keys
        self._tables: dict[str, _Table] = {}
        self.size = self.hits = 0

    def __bool__(self) -> bool:
        """Return whether writes have to be noted."""
        return bool(self._reads)

    def find(self, table: str, wanted: Keys | KeyRange, limit: StepLimit) -> list[ColumnPart] | None:
        """Return what a read has returned, the same object each time; None if it is not kept, or is over the limit."""
        read = self._reads.get((table, wanted))
        return None if read is None else self.again(read, limit)

    def read_of(self, parts: list[ColumnPart]) -> KeptRead | None:
        """Return the read that has returned these very parts, for `again`; None if it is not kept."""
        return self._by_parts.get(id(parts))

    def again(self, read: KeptRead, limit: StepLimit) -> list[ColumnPart] | None:
        """Return what a read has returned, see `find`."""
        cells, size, points = read.needs
        if not read.is_kept or cells > limit.cells or size > limit.size or points > limit.points:
            return None
        self._by_use.move_to_end(read)
        self.hits += 1
        return read.parts

    def keep(self, table: str, wanted: Keys | KeyRange, parts: list[ColumnPart]) -> None:
        """Keep what a read of the table as it is now has returned, unless it is large."""
        read = KeptRead(table, wanted, parts)
        if not read.measure() or read.memory > self._limit // LARGEST_SHARE:
            return
        if (other := self._reads.get(read.place)) is not None:  # it was over another limit
            self._drop(other)
        mine = self._tables.setdefault(table, _Table())
        if isinstance(wanted, KeyRange) and len(mine.ranges) >= MOST_RANGES:
            self._drop(next(iter(mine.ranges)))
        while self.size + read.memory > self._limit:
            self._drop(next(iter(self._by_use)))
        self._reads[read.place] = read
        self._by_parts[id(parts)] = read
        self._by_use[read] = None
        self.size += read.memory
        mine.add(read)

    def _drop(self, read: KeptRead) -> None:
        read.is_kept = False
        del self._reads[read.place], self._by_parts[id(read.parts)], self._by_use[read]
        self.size -= read.memory
        self._tables[read.place[0]].remove(read)

    def note(self, table: str, rows: Collection[bytes]) -> None:
        """Remove the reads of rows that are about to be written."""
        if (mine := self._tables.get(table)) is not None:
            for read in mine.changed_by(rows):
                self._drop(read)

    def note_range(self, table: str, start: bytes, stop: bytes) -> None:
        """Remove the reads of rows that are about to be deleted, from `start` to before `stop`."""
        if (mine := self._tables.get(table)) is not None:
            for read in mine.changed_within(start, stop):
                self._drop(read)

    def clear(self) -> None:
        """Remove everything."""
        for read in self._by_use:
            read.is_kept = False
        self._reads.clear()
        self._by_parts.clear()
        self._by_use.clear()
        self._tables.clear()
        self.size = 0

"""Cache of rows that were read twice without a write in between: RocksDB need not read them a third time.

A range of rows, such as those of a metric's hour, is kept as a whole. A write to one of its rows removes it before the
write can be read. Ranges of few rows are not kept in this form, but as they were read (`reads`).
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tsd.store import CellPage, RangeOf
from tsd.store.rocksdb.cached_rows import RANGE_BYTES, CachedRows, RowPieces
from tsd.store.rocksdb.kept_reads import KeptReads

LEAST_ROWS = 256  # of a range that is kept
LARGEST_SHARE = 2  # a range takes at most half of the memory
READS_SHARE = 8  # reads of few rows take at most an eighth of the memory, in addition


@dataclass
class _Entry:
    """What is known of a range: its rows, or that they were read before."""

    stop: bytes
    rows: CachedRows | None = None
    is_fit: bool = True  # whether its rows may be kept
    used: int = 0  # number of the last scan that read it

    @property
    def size(self) -> int:
        return RANGE_BYTES if self.rows is None else self.rows.size


class RowCache:
    """Cached ranges, least recently used first. Not thread-safe: only the event loop uses it."""

    def __init__(self, limit: int, least_rows: int = LEAST_ROWS) -> None:
        """`limit`: bytes of all rows together; 0: none are kept. `least_rows`: of a range that is kept."""
        self.limit = limit
        self.least_rows = least_rows
        self.reads = KeptReads(limit // READS_SHARE)
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()  # by table and start
        self._starts: dict[str, list[bytes]] = {}  # of all entries of a table, ascending
        self._scans: list[RangeScan] = []
        self._size = self._scan_count = 0
        self._count: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Return whether writes have to be noted."""
        return bool(self._entries or self._scans or self.reads)

    @contextmanager
    def scanning(self, table: str, start: bytes, stop: bytes | None) -> "Iterator[RangeScan]":
        """Watch a range for writes while it is read."""
        self._scan_count += 1
        scan = RangeScan(self, table, start, stop, self._scan_count)
        self._scans.append(scan)
        try:
            yield scan
        finally:
            self._scans.remove(scan)

    def first(self, table: str, start: bytes, stop: bytes | None, number: int) -> CachedRows | None:
        """Return the first cached rows of a range from `start` to before `stop`, for the scan with a number."""
        starts = self._starts.get(table, [])
        for at in range(bisect_left(starts, start), len(starts)):
            key = table, starts[at]
            entry = self._entries[key]
            if stop is not None and entry.stop > stop:
                break
            if entry.rows is not None:
                entry.used = number
                self._entries.move_to_end(key)
                self._count["hits"] += 1
                return entry.rows
        return None

    def expects(self, table: str, start: bytes) -> bool:
        """Return whether a range was read before, and may be kept now: one scan at a time collects its rows."""
        entry = self._entries.get((table, start))
        if entry is None or not entry.is_fit or entry.rows is not None:
            return False
        return not any(scan.table == table and scan.collects(start) for scan in self._scans)

    def put(self, table: str, start: bytes, stop: bytes, rows: CachedRows | None, number: int, *, is_fit: bool) -> None:
        """Keep what the scan with a number has read of a range: its rows, or that they were read. Nothing is kept if
        there is no room besides what this scan and later ones have read."""
        self._count["misses"] += 1
        starts = self._starts.setdefault(table, [])
        at = bisect_left(starts, start)
        if (table, start) in self._entries:
            if rows is None and is_fit:
                return
            self._drop(table, start)
        elif (at < len(starts) and stop > starts[at]) or (at and self._entries[table, starts[at - 1]].stop > start):
            return  # overlaps with another one
        entry = _Entry(stop, rows, is_fit, number)
        while self._size + entry.size > self.limit:
            oldest = next(iter(self._entries), None)
            if oldest is None or self._entries[oldest].used >= number:
                return
            self._drop(*oldest)
        self._entries[table, start] = entry
        self._size += entry.size
        insort(self._starts.setdefault(table, []), start)

    def note(self, table: str, rows: Collection[bytes]) -> None:
        """Remove the ranges of rows that are about to be written."""
        self.reads.note(table, rows)
        scans = [scan for scan in self._scans if scan.table == table and not scan.changed]
        if scans:
            ordered = sorted(rows)
            for scan in scans:
                scan.changed = scan.has_any(ordered)
        starts = self._starts.get(table)
        if starts:
            width = len(starts[0])  # of all: they are prefixes
            for prefix in {row[:width] for row in rows}:
                at = bisect_right(starts, prefix) - 1
                if at >= 0 and self._entries[table, starts[at]].stop > prefix:
                    self._invalidate(table, starts[at])

    def note_range(self, table: str, start: bytes, stop: bytes) -> None:
        """Remove the ranges of rows that are about to be deleted, from `start` to before `stop`."""
        self.reads.note_range(table, start, stop)
        for scan in self._scans:
            scan.changed |= scan.table == table
        starts = self._starts.get(table, [])
        first = max(bisect_right(starts, start) - 1, 0)
        for one in starts[first : bisect_left(starts, stop)]:
            if self._entries[table, one].stop > start:
                self._invalidate(table, one)

    def clear(self) -> None:
        """Remove everything."""
        self.reads.clear()
        for scan in self._scans:
            scan.changed = True
        self._entries.clear()
        self._starts.clear()
        self._size = 0

    def _invalidate(self, table: str, start: bytes) -> None:
        if self._entries[table, start].rows is not None:
            self._count["invalidated"] += 1
        self._drop(table, start)

    def _drop(self, table: str, start: bytes) -> None:
        self._size -= self._entries.pop((table, start)).size
        starts = self._starts[table]
        del starts[bisect_left(starts, start)]

    def statistics(self) -> Mapping[str, int]:
        """Return current numbers."""
        ranges = sum(entry.rows is not None for entry in self._entries.values())
        counted = {name: self._count[name] for name in ("hits", "misses", "invalidated")}
        return {**counted, "ranges": ranges, "reads": self.reads.hits, "bytes": self._size + self.reads.size}


class RangeScan:
    """One scan: tells which ranges of rows it has read as a whole."""

    def __init__(self, cache: RowCache, table: str, start: bytes, stop: bytes | None, number: int) -> None:
        self.table = table
        self.number = number
        self.changed = False  # whether a row of the scan may have been written to: no more is kept then
        self._cache = cache
        self._start, self._stop = start, stop
        self._gap_start = start
        self._range: RowPieces | None = None  # the one that is being read
        self._is_collecting = self._was_expected = False  # whether its rows are collected, or were at first

    def has_any(self, rows: Sequence[bytes]) -> bool:
        """Return whether one of some rows, which ascend, is in the range of the scan."""
        at = bisect_left(rows, self._start)
        return at < len(rows) and (self._stop is None or rows[at] < self._stop)

    def collects(self, start: bytes) -> bool:
        """Return whether the rows of a range are collected now."""
        return self._is_collecting and self._range is not None and self._range.start == start

    def first(self, at: bytes) -> CachedRows | None:
        """Return the first cached rows of a range from `at` on."""
        return self._cache.first(self.table, at, self._stop, self.number)

    def begin(self, start: bytes) -> None:
        """Begin to read rows from `start` on that are not cached."""
        self._gap_start = start
        self._range = None

    def add(self, page: CellPage, range_of: RangeOf) -> Iterator[RowPieces]:
        """Add the next rows. Yield the ranges that end before the last one of them, and may be kept."""
        keys, at = page.keys, 0
        while at < len(keys) and not self.changed:
            one = self._range
            if one is None or keys[at] >= one.stop:
                yield from self._ended()
                found = range_of(keys[at])
                if found is None:
                    self._skip(keys[-1], range_of)
                    return
                one = RowPieces(*found)
                self._is_collecting = self._was_expected = self._cache.expects(self.table, one.start)
                self._range = one
            last = bisect_left(keys, one.stop, at)
            if (
                at and last < len(keys) and last - at < self._cache.least_rows
            ):  # others are as small: their ends take time to find
                self._skip(keys[-1], range_of)
                return
            if self._is_collecting:
                one.add(page, at, last)
                self._is_collecting = one.size <= self._cache.limit // LARGEST_SHARE
            else:
                one.count += last - at
            at = last

    def _skip(self, row: bytes, range_of: RangeOf) -> None:
        """Keep nothing of the range that is being read, nor of that of a row, which is not read as a whole."""
        found = range_of(row)
        self._range = None
        self._gap_start = row + b"\0" if found is None else found[1]

    def end(self, stop: bytes | None) -> Iterator[RowPieces]:
        """End the reading of rows before `stop`. Yield the last range if it may be kept."""
        if self._range is not None and (stop is None or self._range.stop <= stop):
            yield from self._ended()
        self._range = None

    def _ended(self) -> Iterator[RowPieces]:
        one = self._range
        if one is None or self.changed or one.start < self._gap_start or one.count < self._cache.least_rows:
            return
        if self._is_collecting:
            yield one
        else:
            is_fit = not self._was_expected  # else it was too large
            self._cache.put(self.table, one.start, one.stop, None, self.number, is_fit=is_fit)

    def keep(self, pieces: RowPieces, rows: CachedRows | None) -> None:
        """Keep the rows of a range that `add` or `end` has yielded; None: they have no such form."""
        if not self.changed:
            self._cache.put(self.table, pieces.start, pieces.stop, rows, self.number, is_fit=rows is not None)

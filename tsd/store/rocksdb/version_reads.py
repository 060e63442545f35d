"""Reads tables of the embedded store whose cells keep versions.

A key is a row, a column and a time; values are chunks of versions or single ones (see `tsd.store.rocksdb.versions`).
Compiled loops read chunks, and the keys of tables with one version of each column.
"""

import os
import sys
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import NamedTuple, cast

import numpy as np
from rocksdict import Rdict, ReadOptions

from tsd.codec.putline import HOUR_MS
from tsd.errors import CorruptRow
from tsd.store.rocksdb.keys import ESCAPED_ZERO, ROW_END, TIME_BYTES, row_prefix, split_key
from tsd.store.rocksdb.version_chunks import decode_chunk
from tsd.store.versions import ALL, END_MS, UNBOUNDED, VERSION_BYTES, VersionColumns, VersionPage, Wanted, check_size

try:
    from tsd.store.rocksdb import _versions
except ImportError:  # installed without a C compiler
    HAS_LOOP = False
else:
    HAS_LOOP = not os.environ.get("TSD_PURE")  # TSD_PURE selects the Python code, to compare both

CHUNK_CELLS = 1000  # read between two checkpoints: less than a millisecond
CELLS_OF_CHUNK = 10  # cells that take as long as a chunk
PAGE_BYTES = 4 << 20  # of values; a page ends with the row that reaches it
COLUMN_END = len(ROW_END) + TIME_BYTES  # bytes of a key after the column
AFTER = b"\xff"  # instead of a time: sorts after all versions of a column

ChunkPart = tuple[int, bytes, bytes, bytes]  # versions: number, times and lengths as int64, values


def column_prefix(row: bytes, column: bytes) -> bytes:
    """Return the key prefix of a column's versions. No other column's keys start with it.

    >>> column_prefix(b"a", b"t:m").hex()
    '610001743a6d0001'
    """
    return row_prefix(row) + row_prefix(column)


def time_suffix(time_ms: int) -> bytes:
    """Return the end of the key of a version: a later time sorts before an earlier one.

    >>> time_suffix(1) < time_suffix(0), time_suffix(0).hex()
    (True, '001ff973cafa7fff')
    """
    return (END_MS - 1 - time_ms).to_bytes(TIME_BYTES, "big")


def time_in(key: bytes) -> int:
    """Return the time in the key of a version, in ms."""
    return END_MS - 1 - int.from_bytes(key[-TIME_BYTES:], "big")


def has_chunks(families: Mapping[bytes, int], column: bytes) -> bool:
    """Return whether the versions of a column are in chunks."""
    return families.get(column.partition(b":")[0], 0) >= UNBOUNDED


def chunk_part(start_ms: int, stored: bytes, wanted: Wanted, most: int, *, compiled: bool = HAS_LOOP) -> ChunkPart:
    """Return the newest `most` versions of a chunk that are in the wanted range of times. Raise CorruptRow."""
    if compiled:
        found = _versions.chunk_part(start_ms, stored, wanted.since_ms, wanted.until_ms, most)
        if found is not None:
            return found
    part = decode_chunk(start_ms, stored).between(wanted.since_ms, wanted.until_ms)
    count = len(part.times_ms)
    part = part.at(max(count - most, 0), count)
    return len(part.times_ms), part.times_ms.tobytes(), part.lengths.tobytes(), part.values


class NewestEntries(NamedTuple):
    """Entries of a table that keeps one version of each column, which are the places that were added last."""

    taken: int  # number
    rows: int  # that begin in them
    row: bytes  # the last one
    prefix: bytes  # of its keys
    next_row: bytes | None  # follows the entries; None: they were all taken
    times_ms: bytes  # as int64
    lengths: bytes  # of the values, as int64
    values: bytes  # joined


def split_newest(
    entries: list[tuple[bytes, bytes]],
    row: bytes,
    prefix: bytes,
    most: int,
    places: list[tuple[bytes, bytes]],
    *,
    compiled: bool = HAS_LOOP,
) -> NewestEntries:
    """Add the places of keys and values to `places`, up to `most` rows that begin there. `row` and `prefix` are of the
    row before. Raise CorruptRow."""
    if compiled:
        before = len(places)
        found = _versions.split_newest(entries, prefix, row, most, END_MS - 1, places)
        if found is not None:
            return NewestEntries(*found)
        del places[before:]
    rows, next_row, kept = 0, None, list[tuple[bytes, bytes]]()
    for key, value in entries:
        if not key.startswith(prefix):
            name, prefix_of = split_key(key)
            if rows >= most:
                next_row = name
                break
            row, prefix, rows = name, prefix_of, rows + 1
        if not key.endswith(ROW_END, 0, len(key) - TIME_BYTES) or len(key) < len(prefix) + COLUMN_END:
            raise CorruptRow(f"not the key of a version: {key.hex()}")
        places.append((row, key[len(prefix) : -COLUMN_END].replace(ESCAPED_ZERO, b"\0")))
        kept.append((key, value))
    times = END_MS - 1 - np.frombuffer(b"".join([key[-TIME_BYTES:] for key, _ in kept]), ">i8").astype(np.int64)
    lengths = np.array([len(value) for _, value in kept], np.int64)
    values = b"".join([value for _, value in kept])
    return NewestEntries(len(kept), rows, row, prefix, next_row, times.tobytes(), lengths.tobytes(), values)


class Gathered:
    """Versions that a read has found so far."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self.places: list[tuple[bytes, bytes]] = []
        self.size = 0  # bytes
        self._limit_bytes = limit_bytes
        self._counts: list[int] = []
        self._times: list[bytes] = []  # as int64
        self._lengths: list[bytes] = []
        self._values: list[bytes] = []
        self._some: tuple[list[int], list[int]] = [], []  # times and lengths of versions after those of the arrays

    def grow(self, size: int) -> None:
        """Count bytes. Raise TooManyVersions."""
        self.size += size
        check_size(self.size, self._limit_bytes)

    def add(self, row: bytes, column: bytes, versions: Sequence[tuple[int, bytes]]) -> None:
        """Add a column with a few versions, the newest first."""
        if not versions:
            return
        self.places.append((row, column))
        self._counts.append(len(versions))
        for time_ms, value in reversed(versions):
            self._some[0].append(time_ms)
            self._some[1].append(len(value))
            self._values.append(value)

    def add_chunks(self, row: bytes, column: bytes, parts: Sequence[ChunkPart]) -> None:
        """Add a column with the parts of its chunks, the newest first."""
        if not parts:
            return
        self._end_some()
        self.places.append((row, column))
        count = 0
        for number, times, lengths, values in reversed(parts):
            count += number
            self._times.append(times)
            self._lengths.append(lengths)
            self._values.append(values)
        self._counts.append(count)

    def add_newest(self, found: NewestEntries) -> None:
        """Add columns with one version each, whose places have been added."""
        self._end_some()
        self._counts += [1] * found.taken
        self._times.append(found.times_ms)
        self._lengths.append(found.lengths)
        self._values.append(found.values)
        self.grow(VERSION_BYTES * found.taken + len(found.values))

    def _end_some(self) -> None:
        times, lengths = self._some
        if times:
            self._times.append(np.array(times, np.int64).tobytes())
            self._lengths.append(np.array(lengths, np.int64).tobytes())
            self._some = [], []

    def columns(self) -> VersionColumns:
        """Return all versions."""
        self._end_some()
        bounds = np.zeros(len(self.places) + 1, np.int64)
        np.cumsum(np.array(self._counts, np.int64), out=bounds[1:])
        times = np.frombuffer(b"".join(self._times), np.int64)
        lengths = np.frombuffer(b"".join(self._lengths), np.int64)
        return VersionColumns(self.places, bounds, times, np.cumsum(lengths), b"".join(self._values))


class VersionView:
    """Snapshot of a table. Its generators yield each CHUNK_CELLS cells, so that the caller can let other tasks run."""

    def __init__(
        self,
        rows: Rdict,
        stop: bytes | None,
        translated: Callable[[], AbstractContextManager[None]],
        families: Mapping[bytes, int],
    ) -> None:
        self._options = ReadOptions()  # must outlive the iterator, which points to its bound
        self._options.set_background_purge_on_iterator_cleanup(True)
        if stop is not None:
            self._options.set_iterate_upper_bound(row_prefix(stop))
        self._translated = translated
        self._families = families
        self._read = 0  # cells, since the start
        self._rows = rows
        self._at = rows.iter(self._options)

    def times(self, row: bytes, column: bytes) -> list[int]:
        """Return the times of a column's versions, the newest first."""
        return [time_in(key) for key in self.keys(row, column)]

    def keys(self, row: bytes, column: bytes, *, until_ms: int = END_MS) -> Iterator[bytes]:
        """Yield the keys of a column's versions before a time, the newest first."""
        prefix = column_prefix(row, column)
        self._at.seek(prefix + time_suffix(until_ms - 1) if until_ms else prefix + AFTER)
        while self._at.valid() and (key := self._at.key()).startswith(prefix):
            yield key
            self._at.next()
        self._check()

    def chunks(self, prefix: bytes, until_ms: int, since_ms: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield the times and the stored forms of a column's chunks that may have versions from one time to before
        another, the newest first. The iterator is then at the first key after them, or at an older chunk."""
        self._at.seek(prefix + time_suffix(until_ms - 1) if until_ms else prefix + AFTER)
        while self._at.valid() and (key := self._at.key()).startswith(prefix):
            start_ms = time_in(key)
            if start_ms + HOUR_MS <= since_ms:
                break
            yield start_ms, self._at.value()
            self._at.next()
            if start_ms <= since_ms:
                break
        self._check()

    def get(self, rows: Collection[bytes], wanted: Wanted) -> Generator[None, None, VersionColumns]:
        """Return the wanted versions of rows."""
        found = Gathered(wanted.limit_bytes)
        for row in rows:
            prefix = row_prefix(row)
            self._at.seek(prefix)
            yield from self._row(row, prefix, wanted, found)
        return found.columns()

    def page(self, start: bytes, limit: int, wanted: Wanted) -> Generator[None, None, VersionPage]:
        """Return up to `limit` rows with wanted versions from `start` on. The page ends early with the row that brings
        it to PAGE_BYTES."""
        found = Gathered(wanted.limit_bytes)
        if wanted._replace(limit_bytes=None) == ALL and set(self._families.values()) == {1}:
            return (yield from self._page_of_newest(start, limit, found))
        rows = 0
        self._at.seek(row_prefix(start))
        while self._at.valid():
            row, prefix = split_key(self._at.key())
            if rows >= limit or found.size >= PAGE_BYTES:
                return VersionPage(found.columns(), row)
            before = len(found.places)
            yield from self._row(row, prefix, wanted, found)
            rows += len(found.places) > before
        self._check()
        return VersionPage(found.columns(), None)

    def _page_of_newest(self, start: bytes, limit: int, found: Gathered) -> Generator[None, None, VersionPage]:
        """Return a page, see `page`, of a table that keeps one version of each column: each entry is one place."""
        with self._translated():
            entries = self._rows.items(from_key=row_prefix(start), read_opt=self._options)
        rows, row, prefix, key = 0, b"", row_prefix(b""), row_prefix(start)  # no key starts with the prefix
        while True:
            with self._translated():
                part = cast(list[tuple[bytes, bytes]], list(islice(entries, CHUNK_CELLS)))
            if not part:
                self._at.seek(key + b"\0")  # `items` ends without an error at a damaged block
                self._check()
                return VersionPage(found.columns(), None)
            key = part[-1][0]
            most = limit - rows if found.size < PAGE_BYTES else 0
            some = split_newest(part, row, prefix, most, found.places)
            found.add_newest(some)
            if some.next_row is not None:
                return VersionPage(found.columns(), some.next_row)
            rows, row, prefix = rows + some.rows, some.row, some.prefix
            yield

    def _row(self, row: bytes, prefix: bytes, wanted: Wanted, found: Gathered) -> Generator[None, None, None]:
        """Add the wanted versions of the row whose keys start with `prefix`. The iterator is at its first key, and
        then after its last one."""
        at, cut = self._at, len(prefix)
        while at.valid() and (key := at.key()).startswith(prefix):
            head = key[:-TIME_BYTES]
            column = head[cut : -len(ROW_END)].replace(ESCAPED_ZERO, b"\0")
            if wanted.columns is not None and column not in wanted.columns:
                at.seek(head + AFTER)
            elif has_chunks(self._families, column):
                found.add_chunks(row, column, self._column_chunks(key, head, wanted, found))
            else:
                found.add(row, column, self._column_versions(key, head, wanted, found))
            if self._read >= CHUNK_CELLS:
                self._read = 0
                yield
        self._check()

    def _column_chunks(self, key: bytes, head: bytes, wanted: Wanted, found: Gathered) -> list[ChunkPart]:
        """Return the wanted parts of a column's chunks, the newest first. The iterator is at its first key, which is
        `key`, and then after its last."""
        at, parts = self._at, list[ChunkPart]()
        left = sys.maxsize if wanted.versions is None else wanted.versions
        if time_in(key) >= wanted.until_ms:
            at.seek(head + (time_suffix(wanted.until_ms - 1) if wanted.until_ms else AFTER))
            if not at.valid() or not (key := at.key()).startswith(head):
                return parts
        while left and (start_ms := time_in(key)) + HOUR_MS > wanted.since_ms:
            self._read += CELLS_OF_CHUNK
            part = chunk_part(start_ms, at.value(), wanted, left)
            if count := part[0]:
                left -= count
                found.grow(VERSION_BYTES * count + len(part[3]))
                parts.append(part)
            at.next()
            if not at.valid() or not (key := at.key()).startswith(head):
                return parts
            if start_ms <= wanted.since_ms:  # older chunks have older versions only
                break
        at.seek(head + AFTER)
        return parts

    def _column_versions(self, key: bytes, head: bytes, wanted: Wanted, found: Gathered) -> list[tuple[int, bytes]]:
        """Return the wanted versions of a column without chunks. The iterator is at its first key, which is `key`, and
        then after its last."""
        at, versions, earliest = self._at, list[tuple[int, bytes]](), wanted.until_ms - 1
        if time_in(key) > earliest:
            at.seek(head + time_suffix(earliest) if earliest >= 0 else head + AFTER)
        while at.valid() and (key := at.key()).startswith(head):
            time_ms = time_in(key)
            if time_ms < wanted.since_ms or len(versions) == wanted.versions:
                at.seek(head + AFTER)
                break
            value = at.value()
            versions.append((time_ms, value))
            found.grow(VERSION_BYTES + len(value))
            at.next()
            self._read += 1
        return versions

    def _check(self) -> None:
        """Raise StoreError if the iterator ended at a damaged block instead of the end."""
        if not self._at.valid():
            with self._translated():
                self._at.status()

"""Runs of a table: cells that follow each other, stored as one value in a column family of their own.

The key of a run is the key of its first cell, and above all keys of the run before it. So the run of a cell, if there
is one, is the last one whose key is not above the cell's. The value has the key of the last cell, with a checksum of
both, and then the cells (`tsd.codec.blocks.run`): a run that ends before what is read is not decoded.

A cell of the table itself takes precedence over a run's cell with the same key: it is the newer one.
"""

import struct
import zlib
from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from rocksdict import ColumnFamily, Rdict, RdictIter, WriteBatch

from tsd.codec.blocks.run import (
    Matrix,
    cells_of_run,
    check_run,
    decode_run,
    encode_run,
    has_places_of,
    join_runs,
    without_keys,
    without_range,
)
from tsd.errors import CorruptRow, DamagedBlock
from tsd.store.rocksdb.cursor import Cursor, Translated

RUN_CELLS = 4096  # about; a run has whole rows when it is made

_HEAD = struct.Struct("<HI")  # bytes of the last key; CRC-32 of both keys


class RunFamily(NamedTuple):
    """The runs of one table."""

    table: str
    rows: Rdict
    handle: ColumnFamily


class StoredRun(NamedTuple):
    """A run that is not decoded."""

    key: bytes
    last: bytes  # key of its last cell
    content: bytes

    def value(self) -> bytes:
        """Return the stored value."""
        return _HEAD.pack(len(self.last), zlib.crc32(self.last, zlib.crc32(self.key))) + self.last + self.content


def encode_stored(run: Matrix) -> StoredRun:
    """Return a run as it is stored."""
    key = run.first_key()
    return StoredRun(key, run.last_key(), encode_run(run, key))


def _split_stored(key: bytes, stored: bytes) -> tuple[bytes, bytes]:
    """Return the last key of a run, and the rest of its stored value. Raise CorruptRow."""
    if len(stored) >= _HEAD.size:
        size, crc = _HEAD.unpack_from(stored)
        last = stored[_HEAD.size : _HEAD.size + size]
        if zlib.crc32(last, zlib.crc32(key)) == crc:
            return last, stored[_HEAD.size + size :]
    raise CorruptRow(f"the head of a run of cells is damaged: {len(stored)} bytes, {stored[:40].hex()}")


class RunReader(Cursor):
    """A snapshot of a table's runs. Any method may raise DamagedBlock, or StoreError."""

    def __init__(self, family: RunFamily, translated: Translated) -> None:
        super().__init__(family.rows, translated)
        self._family = family
        self._last: tuple[bytes, Matrix] | None = None

    def key_of(self, key: bytes) -> bytes | None:
        """Return the key of the run that may have the cell with a key."""
        return self._key_to(key)

    def load(self, key: bytes) -> Matrix:
        """Return the run with a key that exists."""
        if self._last is not None and self._last[0] == key:
            return self._last[1]
        with self._reading(key):
            found = decode_run(_split_stored(key, self._value(key))[1], key)
        self._last = key, found
        return found

    @contextmanager
    def _reading(self, key: bytes) -> Iterator[None]:
        """Raise DamagedBlock for a damaged run."""
        try:
            yield
        except CorruptRow as exc:
            raise DamagedBlock(f"table {self._family.table}, cells from {key.hex()} on: {exc}") from exc

    def between(self, start: bytes, stop: bytes | None) -> Iterator[tuple[bytes, Matrix]]:
        """Yield each run that may have cells from the key `start` to before `stop`, and its key."""
        for key in self._keys_between(start, stop):
            yield key, self.load(key)

    def stored_between(self, start: bytes, stop: bytes) -> Iterator["StoredRun"]:
        """Yield the same runs as they are stored."""
        for key in self._keys_between(start, stop):
            with self._reading(key):
                last, content = _split_stored(key, self._value(key))
            yield StoredRun(key, last, content)

    def _keys_between(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        key = self.key_of(start)
        if key is not None and key < start:
            with self._reading(key):
                last, _ = _split_stored(key, self._value(key))
            if last < start:
                key = None
        key = key or self.key_from(start)
        while key is not None and (stop is None or key < stop):
            yield key
            key = self.key_from(key + b"\0")

    def decoded(self, run: "StoredRun") -> Matrix:
        """Return the cells of a run."""
        with self._reading(run.key):
            return decode_run(run.content, run.key)

    def check(self, run: "StoredRun") -> None:
        """Raise DamagedBlock if a run is damaged."""
        with self._reading(run.key):
            check_run(run.content, run.key)

    def cells(self, start: bytes, stop: bytes | None) -> Iterator[tuple[list[bytes], list[bytes]]]:
        """Yield the keys and the stored values of cells from one key to before another, run by run."""
        for _, run in self.between(start, stop):
            keys = run.cell_keys()
            low, high = bisect_left(keys, start), len(keys) if stop is None else bisect_left(keys, stop)
            if low < high:
                yield keys[low:high], run.stored_values()[low:high]

    def group(self, keys: Collection[bytes]) -> Iterator[tuple[bytes, list[bytes]]]:
        """Yield the key of each run that may have some of the cells with these keys, and those keys."""
        for key, some in groupby(sorted(keys), self.key_of):
            if key is not None:
                yield key, list(some)

    def find(self, keys: Collection[bytes]) -> dict[bytes, bytes]:
        """Return the stored values of those cells that are in runs, by key."""
        found: dict[bytes, bytes] = {}
        for run_key, some in self.group(keys):
            run = self.load(run_key)
            every = dict(zip(run.cell_keys(), run.stored_values(), strict=True))
            found |= {key: every[key] for key in some if key in every}
        return found

    def counts(self, start: bytes, stop: bytes | None) -> Iterator[int]:
        """Yield the number of cells of each run whose key lies in a range."""
        key = self.key_from(start)
        while key is not None and (stop is None or key < stop):
            with self._reading(key):
                cells = cells_of_run(_split_stored(key, self._at.value())[1])
            yield cells
            self._at.next()
            key = self._key()


class MergedIterator:
    """Iterates over the cells of a table and of its runs in one order, as rocksdict's iterator does over the table's.
    Any method may raise StoreError."""

    def __init__(self, plain: RdictIter, runs: RunReader, upper: bytes | None) -> None:
        """`upper`: the bound of `plain`."""
        self._plain = plain
        self._runs = runs
        self._upper = upper
        self._parts: Iterator[tuple[list[bytes], list[bytes]]] = iter(())
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._at = 0
        self._key: bytes | None = None
        self._in_run = False

    def seek(self, key: bytes) -> None:
        """Go to the first cell that is not below a key."""
        self._plain.seek(key)
        if self._keys and self._keys[0] <= key <= self._keys[-1]:
            self._at = bisect_left(self._keys, key)
        else:
            self._parts = self._runs.cells(key, self._upper)
            self._keys, self._values, self._at = [], [], 0
        self._settle()

    def next(self) -> None:
        """Go to the next cell."""
        if self._in_run:
            self._at += 1
        else:
            self._plain.next()
        self._settle()

    def _settle(self) -> None:
        """Find the current cell. The table's takes precedence over an equal one of a run."""
        while self._at == len(self._keys):
            part = next(self._parts, None)
            if part is None:
                break
            self._keys, self._values = part
            self._at = 0
        plain = self._plain.key() if self._plain.valid() else None
        self._in_run = self._at < len(self._keys) and (plain is None or self._keys[self._at] < plain)
        self._key = self._keys[self._at] if self._in_run else plain
        if not self._in_run and self._at < len(self._keys) and self._keys[self._at] == plain:
            self._at += 1

    def valid(self) -> bool:
        """Return whether there is a current cell."""
        return self._key is not None

    def key(self) -> bytes:
        """Return the key of the current cell."""
        assert self._key is not None
        return self._key

    def value(self) -> bytes:
        """Return the stored value of the current cell."""
        found: bytes = self._values[self._at] if self._in_run else self._plain.value()
        return found

    def status(self) -> None:
        """Raise if the table ended at a damaged block."""
        self._plain.status()


def merged_items(
    plain: Iterator[tuple[bytes, bytes]], runs: Iterator[tuple[list[bytes], list[bytes]]]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield the cells of a table and of its runs in one order, each as key and stored value."""
    following = next(plain, None)
    for keys, values in runs:
        if following is None or following[0] > keys[-1]:
            yield from zip(keys, values, strict=True)
            continue
        for key, value in zip(keys, values, strict=True):
            while following is not None and following[0] < key:
                yield following
                following = next(plain, None)
            if following is None or following[0] != key:
                yield key, value
    if following is not None:
        yield following
        yield from plain


class RunChange(NamedTuple):
    """Runs to write, and runs that they replace, by key."""

    obsolete: list[bytes]
    puts: list[tuple[bytes, bytes]]

    def add_to(self, batch: WriteBatch, family: RunFamily) -> None:
        """Add the change to a batch."""
        for key in self.obsolete:
            batch.delete(key, family.handle)
        for key, value in self.puts:
            batch.put(key, value, family.handle)


def add_runs(reader: RunReader | None, new: Sequence[Matrix]) -> RunChange:
    """Return the change that stores cells, in place of those with the same keys. No two of `new` overlap, and they are
    in order. May run in a thread."""
    if not new:
        return RunChange([], [])
    every: list[_Part] = [_Part(run.first_key(), run.last_key(), run) for run in new]
    if reader is not None:
        stored = reader.stored_between(every[0].first, every[-1].last + b"\0")
        every = sorted([*(_Part(run.key, run.last, run) for run in stored), *every], key=lambda part: part[:2])
    change = RunChange([], [])
    group: list[_Part] = []
    last = b""
    for part in every:
        if group and part.first > last:
            _add_group(reader, group, change)
            group = []
        group.append(part)
        last = max(last, part.last)
    _add_group(reader, group, change)
    return change


class _Part(NamedTuple):
    """A run, stored or new."""

    first: bytes
    last: bytes
    run: StoredRun | Matrix


def _add_group(reader: RunReader | None, group: Sequence[_Part], change: RunChange) -> None:
    """Add runs that overlap to a change, joined to new ones. Stored ones alone stay as they are."""
    old = [part.run for part in group if isinstance(part.run, StoredRun)]
    new = [part.run for part in group if not isinstance(part.run, StoredRun)]
    if not new:
        return
    puts = None if len(new) > 1 else _replacement(reader, old, new[0])
    if puts is None:
        decoded = [reader.decoded(run) for run in old] if reader is not None else []
        puts = list(map(encode_stored, _split(join_runs([*decoded, *new]))))
    kept = {run.key for run in puts}
    change.obsolete.extend(run.key for run in old if run.key not in kept)
    change.puts.extend((run.key, run.value()) for run in puts)


def _replacement(reader: RunReader | None, old: Sequence[StoredRun], new: Matrix) -> list[StoredRun] | None:
    """Return a new run, if it is small enough and has the cells of the old one, if there is one: as when rollups are
    built again. None if cells must be joined."""
    if len(old) > 1 or len(new.rows) * len(new.columns) > 2 * RUN_CELLS:
        return None
    made = encode_stored(new)
    for run in old:
        assert reader is not None
        reader.check(run)
        if not has_places_of(run.content, made.content):
            return None
    return [made]


def _split(run: Matrix) -> Iterator[Matrix]:
    """Yield a run in parts, if it is too large."""
    rows = len(run.rows)
    size = rows * len(run.columns)
    if size <= 2 * RUN_CELLS:
        yield run
        return
    each = max(1, rows * RUN_CELLS // size)
    for start in range(0, rows, each):
        yield run.at_rows(slice(start, start + each))


def remove_keys(reader: RunReader, gone: Collection[bytes]) -> RunChange:
    """Return the change that removes cells with some keys."""
    change = RunChange([], [])
    for run_key, some in reader.group(set(gone)):
        run = reader.load(run_key)
        wanted = set(some)
        if wanted.isdisjoint(run.cell_keys()):
            continue
        change.obsolete.append(run_key)
        kept = without_keys(run, wanted)
        if kept is not None:
            made = encode_stored(kept)
            change.puts.append((made.key, made.value()))
    return change


def remove_range(reader: RunReader, start: bytes, stop: bytes) -> RunChange:
    """Return the change that follows a delete of all keys from `start` to before `stop`. It puts back the cells outside
    of this range that runs at its ends have."""
    change = RunChange([], [])
    for run_key in {reader.key_of(start), reader.key_of(stop)} - {None}:
        assert run_key is not None
        if run_key >= stop:
            continue
        for kept in without_range(reader.load(run_key), start, stop):
            made = encode_stored(kept)
            change.puts.append((made.key, made.value()))
    return change

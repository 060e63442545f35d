"""RocksDB through rocksdict: one open database, as the embedded store uses it. Nothing here waits for the event loop.

Errors are named by who must act: StoreBusy where RocksDB is behind with its work, DaemonRuns where another process has
the database, StoreError for the rest. rocksdict itself raises plain Exception with RocksDB's text.
"""

import os
import re
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import rocksdict
from rocksdict import DbClosedError, Rdict, ReadOptions, WriteBatch, WriteOptions

from tsd.errors import DaemonRuns, NoTable, StoreBusy, StoreError, TsdError
from tsd.state import lock_holder
from tsd.store import Cell, Page, Put, Row
from tsd.store.cells import CellPage
from tsd.store.filling import fill, keys_of
from tsd.store.keyvalue import TIME_BYTES, cell_of, row_head, row_of, split_cells
from tsd.store.opening import SyncedRecord, open_whole
from tsd.store.packing import NAME_BYTES, is_name, open_all, opened, stands_as
from tsd.store.stamps import Stamps

SLICE_CELLS = 600  # the same where cells are read without a look at them, whole hours each: 3 ms
CHUNK_CELLS = 1000  # read between two chances for others to run: about a millisecond
READAHEAD_BYTES = 1 << 20
PROBE_BYTES = 8 << 20  # about what RocksDB writes when it opens
SYSTEM = "default"  # the column family that RocksDB always has
STAMPS = b"stamps"  # one of its keys: the record of the Stamps
NAMED = b"named"  # the other: there where no table ever had a long column in a key (see tsd.store.packing)
LOCKED = re.compile("While lock file.*Resource temporarily unavailable|lock hold by current process")
STALLED = re.compile("Result incomplete|Resource busy|Try again")

Batch: TypeAlias = WriteBatch
Place: TypeAlias = tuple[bytes, bytes]  # a row and a column


class _Family(NamedTuple):
    """A table: to read, and to write."""

    rows: Rdict
    handle: rocksdict.ColumnFamily


class Database:
    """RocksDB in a folder, a column family a table. It is open once it is made."""

    def __init__(
        self, path: Path, clock_ms: Callable[[], int], options: rocksdict.Options, *, cache_bytes: int
    ) -> None:
        self.path = path
        self._cached_bytes = cache_bytes // 2  # of one scan
        self._options = options
        self._closed = False
        self._no_wait = WriteOptions()
        self._no_wait.no_slowdown = True  # refuse where RocksDB would hold us, and the whole process with us
        with self._answers():
            path.mkdir(parents=True, exist_ok=True)
            names = Rdict.list_cf(str(path), options) if (path / "CURRENT").exists() else []
            self._on_disk = SyncedRecord(path)
            self.may_lack_writes = bool(names) and self._on_disk.number is None  # of its middle: see `open_whole`
            self._rdict = open_whole(path, options, {name: options for name in names if name != SYSTEM}, self._on_disk)
            self._families = {name: self._open(name) for name in names if name != SYSTEM}
            self._system = self._rdict.get_column_family_handle(SYSTEM)
            self.stamps = Stamps(clock_ms, self._rdict.get(STAMPS))
            if not names:
                self._rdict.put(NAMED, NAMED)
            self._older = self._rdict.get(NAMED) is None
            self.reached = self._rdict.latest_sequence_number()  # counts writes, over all openings

    def _open(self, name: str) -> _Family:
        return _Family(self._rdict.get_column_family(name), self._rdict.get_column_family_handle(name))

    def tables(self) -> list[str]:
        """Names, in order."""
        return sorted(self._families)

    def create(self, name: str) -> None:
        """Make a table."""
        with self._answers():
            self._rdict.create_column_family(name, self._options)
            self._families[name] = self._open(name)

    def _family(self, table: str) -> _Family:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if table not in self._families:
            raise NoTable(f"there is no table {table} in {self.path}")
        return self._families[table]

    def require(self, table: str) -> None:
        """Raise StoreError where there is no such table."""
        self._family(table)

    def read(self, table: str, places: Sequence[Place]) -> list[bytes | None]:
        """The value of each row's column, None where there is none. It may run in a thread: it lets go of the
        interpreter."""
        keys, named = keys_of(places)
        found = self._values(table, keys)
        for at, name in named:
            found[at] = self._opened(table, places[at], name, found[at])
        return found

    def _opened(self, table: str, place: Place, name: bytes, value: bytes | None) -> bytes | None:
        """What stands under a name, or in an older database under the column itself."""
        if value is not None:
            return opened(name, value)[1]
        return self._values(table, [row_head(place[0]) + place[1]])[0] if self._older else None

    def _values(self, table: str, keys: list[bytes]) -> list[bytes | None]:
        family = self._family(table)
        with self._answers():
            return cast(list[bytes | None], family.rows.get(cast(list[str | int | float | bytes | bool], keys)))

    def view(self, table: str, stop: bytes | None = None) -> "View":
        """The table as it is now, up to before the row `stop`."""
        with self._answers():
            return View(self._family(table).rows, stop, self._answers, cached_bytes=self._cached_bytes)

    def batch(self, table: str) -> Batch:
        """An empty batch of writes to a table."""
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._family(table).handle)
        return batch

    def fill(self, batch: Batch, cells: Sequence[Put], time_ms: int) -> None:
        """Put cells into a batch."""
        fill(batch.put, batch.delete if self._older else None, cells, time_ms)

    def remove(self, batch: Batch, places: Iterable[Place]) -> None:
        """Put the deletion of cells into a batch."""
        for row, column in places:
            head = row_head(row)
            if len(column) < NAME_BYTES or (name := stands_as(column)) is column:
                batch.delete(head + column)
            else:
                batch.delete(head + name)
                if self._older:
                    batch.delete(head + column)

    def write(self, batch: Batch) -> None:
        """Write a batch, all or nothing, and the stamps' record with it if that is due."""
        record = self.stamps.unsaved()
        if record is not None:
            batch.put(STAMPS, record, self._system)
        with self._answers():
            self._rdict.write(batch, self._no_wait)
        self.reached = self._rdict.latest_sequence_number()
        if record is not None:
            self.stamps.saved(record)

    def probe(self) -> None:
        """Raise StoreError where the folder takes no new file."""
        with self._answers(), tempfile.TemporaryFile(dir=self.path) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def sync(self) -> None:
        """Have the disk keep what was written. It may run in a thread."""
        with self._answers():
            reached = self._rdict.latest_sequence_number()
            self._rdict.flush_wal(True)
            self._on_disk.note(reached)

    def close(self) -> None:
        """Close it for good, also where a part of that fails, which is raised in the end."""
        if self._closed:
            return
        self._closed = True
        failures = [_failure(self._leave)]
        while self._families:  # a handle that anything still holds would keep the folder locked
            failures.append(_failure(self._families.popitem()[1].rows.close))
        failures.append(_failure(self._rdict.close))
        del self._system
        for text in filter(None, failures):
            raise self._error(text)

    def _leave(self) -> None:
        self._rdict.put(STAMPS, self.stamps.last_record())  # waits for room where `write` refuses
        reached = self._rdict.latest_sequence_number()
        self._rdict.flush_wal(True)
        self._on_disk.note(reached)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Name what goes wrong inside."""
        try:
            yield
        except Exception as exc:
            if type(exc) is not Exception and not isinstance(exc, DbClosedError | OSError):
                raise
            raise self._error(str(exc)) from exc

    def _error(self, text: str) -> TsdError:
        """What RocksDB's text means."""
        if LOCKED.search(text):
            pid = lock_holder(self.path / "LOCK")
            other = "another process" if pid in (None, os.getpid()) else f"another process ({pid})"
            return DaemonRuns(f"{self.path} is open in {other}: is a daemon running on it?")
        if STALLED.search(text):
            return StoreBusy(f"{self.path} cannot take more now: {text}")
        return StoreError(f"{self.path}: {text}")


def _failure(step: Callable[[], None]) -> str | None:
    """What a step of closing failed with. As text: the error would hold all that was in use where it was raised."""
    try:
        step()
    except DbClosedError:
        return None
    except Exception as exc:  # noqa: BLE001 - raised once everything is closed
        return str(exc)
    return None


class View:
    """A table as it is when the view is made. Reading it yields wherever others may run, every CHUNK_CELLS cells."""

    def __init__(
        self,
        rows: Rdict,
        stop: bytes | None,
        answers: Callable[[], AbstractContextManager[None]],
        *,
        cached_bytes: int,
    ) -> None:
        """What `cells` reads past `cached_bytes` is kept off the cache: it would push everything else out of it."""
        self._upper = None if stop is None else row_head(stop)
        self._options = self._new_options()  # lives as long as the iterator, which reads its bound where this keeps it
        self._rows = rows
        self._at = rows.iter(self._options)
        self._answers = answers
        self._cached_bytes = cached_bytes

    def _new_options(self) -> ReadOptions:
        made = ReadOptions()
        made.set_background_purge_on_iterator_cleanup(True)  # nobody waits for old files to be removed
        if self._upper is not None:
            made.set_iterate_upper_bound(self._upper)
        return made

    def _items(self, start: bytes, *, cached: bool = True) -> Iterator[tuple[bytes, bytes]]:
        """All cells from the row `start` on."""
        if not cached:
            self._options = self._new_options()
            self._options.set_readahead_size(READAHEAD_BYTES)
            self._options.fill_cache(False)  # type: ignore[call-arg] # its stub knows no argument
            self._at = self._rows.iter(self._options)
        with self._answers():
            found = self._rows.items(from_key=row_head(start), read_opt=self._options)
            return cast(Iterator[tuple[bytes, bytes]], found)

    def _slice(self, left: Iterator[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The next few."""
        with self._answers():
            return list(islice(left, SLICE_CELLS))

    def get(self, rows: Collection[bytes]) -> Generator[None, None, dict[bytes, list[Cell]]]:
        """The cells of those rows that exist."""
        at, read = self._at, 0
        found: dict[bytes, list[Cell]] = {}
        for row in rows:
            head, cells, named = row_head(row), [], False
            cut = len(head)
            at.seek(head)
            while at.valid() and (key := at.key()).startswith(head):
                column, value = key[cut:], at.value()
                if len(column) == NAME_BYTES and is_name(column):
                    column, value = opened(column, value)
                    named = True
                cells.append(cell_of(column, value))
                at.next()
                read += 1
                if read % CHUNK_CELLS == 0:
                    yield
            self._check()
            if cells:
                found[row] = sorted(cells) if named else cells
        return found

    def page(
        self, start: bytes, limit: int, limit_bytes: int, columns: Collection[bytes] | None
    ) -> Generator[None, None, Page]:
        """The first rows from `start` on, with those cells: `limit` rows, fewer where they reach `limit_bytes`."""
        at, read, size = self._at, 0, 0
        rows: list[Row] = []
        cells: list[Cell] = []
        head = row_head(b"")  # no key starts with that
        cut, named = 0, False
        at.seek(row_head(start))
        while at.valid():
            key = at.key()
            if not key.startswith(head):
                row, head = row_of(key)
                if named:
                    cells.sort()
                if len(rows) >= limit or size >= limit_bytes:
                    return Page(rows, row)
                cut, cells, named = len(head), [], False
            column, value = key[cut:], b""
            if len(column) == NAME_BYTES and is_name(column):
                column, value = opened(column, at.value())
                named = True
            if columns is None or column in columns:
                if not cells:
                    rows.append(Row(row, cells))
                value = value or at.value()
                size += len(value)
                cells.append(cell_of(column, value))
            at.next()
            read += 1
            if read % CHUNK_CELLS == 0:
                yield
        self._check()
        if named:
            cells.sort()
        return Page(rows, None)

    def cells(self, start: bytes, limit_bytes: int) -> Generator[CellPage | None, None, None]:
        """The cells of all rows from `start` on, in pages that end with a row once they have `limit_bytes`; None where
        others may run."""
        keys: list[bytes] = []
        columns: list[bytes] = []
        values: list[bytes] = []
        size, room, last = 0, self._cached_bytes, b""
        left = self._items(start)
        while part := self._slice(left):
            since, last = len(keys), part[-1][0]
            got = split_cells(part, keys, columns, values)
            got += open_all(keys, columns, values, since)
            size += got
            room -= got
            if size >= limit_bytes and (whole := bisect_left(keys, keys[-1])):  # the last row may go on
                rest = keys[whole:], columns[whole:], values[whole:]
                del keys[whole:], columns[whole:], values[whole:]
                yield CellPage(keys, columns, values, TIME_BYTES, [], rest[0][0])
                if room < 0:  # from that row on, which is then read of one moment, past the cache
                    room = 1 << 62
                    left = self._items(rest[0][0], cached=False)
                    rest = [], [], []
                keys, columns, values = rest
                size = sum(map(len, values))
            else:
                yield None
        if keys:  # `items` ends at a bad block as at the end; this one tells
            self._at.seek(last + b"\0")
        else:
            self._at.seek(row_head(start))
        self._check()
        yield CellPage(keys, columns, values, TIME_BYTES, [], None)

    def _check(self) -> None:
        """An iterator that met a bad block looks as if it had come to the end; only its status tells."""
        if not self._at.valid():
            with self._answers():
                self._at.status()

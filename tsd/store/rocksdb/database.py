"""An open RocksDB database of the embedded store, through rocksdict. All calls are synchronous.

rocksdict raises plain Exception with RocksDB's text. It is translated to StoreBusy if RocksDB delays writes, to
DaemonRuns if another process has the database open, and to StoreError otherwise.

`WriteClock` gives write timestamps.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import rocksdict
from rocksdict import DbClosedError, Rdict, WriteBatch, WriteOptions

from tsd.config.files import exists
from tsd.config.state_dir import lock_holder
from tsd.errors import DaemonRuns, NoTable, StoreBusy, StoreError, TsdError
from tsd.store import Put, Table
from tsd.store.rocksdb.block_view import BlockView
from tsd.store.rocksdb.blocks import BlockCache, BlockFamily, BlockReader
from tsd.store.rocksdb.keys import decode_long_cell, encode_batch, encode_keys, key_column, row_prefix
from tsd.store.rocksdb.options import Settings
from tsd.store.rocksdb.recovery import SyncedRecord, open_checked
from tsd.store.rocksdb.runs import RunFamily, RunReader, remove_keys, remove_range
from tsd.store.rocksdb.version_reads import VersionView
from tsd.store.rocksdb.view import View

LEAD_MS = 1000  # lead of the bound: after a crash, timestamps may be this far in the future


class WriteClock:
    """The clock of one open database: its timestamps never fall, even if the wall clock is set back or after a restart.

    A cell holds its newest value. While timestamps only rise, the later of two writes is the newer one, and no write
    has to read the stored cell. The exception is a put with a timestamp of its own: it may be older than the stored
    cell, and it may leave a cell ahead of the clock. So the highest such timestamp is kept too: a write at or above it
    needs no read.

    A restart needs a record, which is written in the same batch as the cells: a mark that no timestamp exceeds, and the
    highest timestamp brought by a put. The mark is set a second ahead, so it is written at most once a second. After a
    crash timestamps continue from the mark.
    """

    def __init__(self, clock_ms: Callable[[], int], saved: bytes | None) -> None:
        """`clock_ms` is the wall clock; `saved` is the last saved record, None for a new database."""
        self._clock_ms = clock_ms
        self._saved_mark_ms, self._saved_ahead_ms = _decode(saved)
        self._last_ms = self._saved_mark_ms
        self._ahead_ms = self._saved_ahead_ms

    def now(self) -> int:
        """Return a timestamp for a write now."""
        self._last_ms = max(self._last_ms, self._clock_ms())
        return self._last_ms

    def now_or_next(self, stamp: int) -> int:
        """Return a timestamp for the next batch of the put that got `stamp`. It is the current time if no later
        timestamp was issued since, otherwise one above all before."""
        return self.now() if stamp == self._last_ms else self.next()

    def next(self) -> int:
        """Return a timestamp above all that were issued before."""
        self._last_ms = max(self._last_ms + 1, self._clock_ms())
        return self._last_ms

    def next_newest(self) -> int | None:
        """Return such a timestamp; None, and issue none, if a stored cell can have a later one."""
        return self.next() if max(self._last_ms + 1, self._clock_ms()) >= self._ahead_ms else None

    def observe(self, time_ms: int) -> None:
        """Record the explicit timestamp of a put."""
        self._ahead_ms = max(self._ahead_ms, time_ms)

    def is_newest(self, time_ms: int) -> bool:
        """Return whether no stored cell can have a later timestamp."""
        return time_ms >= self._ahead_ms and time_ms >= self._last_ms

    def unsaved(self) -> bytes | None:
        """Return the record to write in the next batch, None if the saved one is still valid."""
        if self._last_ms <= self._saved_mark_ms and self._ahead_ms <= self._saved_ahead_ms:
            return None
        mark = self._saved_mark_ms if self._last_ms <= self._saved_mark_ms else self._last_ms + LEAD_MS
        return _encode(mark, self._ahead_ms)

    def saved(self, record: bytes) -> None:
        """Confirm that a record was written."""
        self._saved_mark_ms, self._saved_ahead_ms = _decode(record)

    def last_record(self) -> bytes:
        """Return the record for an orderly close, without the lead of LEAD_MS."""
        return _encode(self._last_ms, self._ahead_ms)


def _encode(mark_ms: int, ahead_ms: int) -> bytes:
    return mark_ms.to_bytes(8, "big") + ahead_ms.to_bytes(8, "big")


def _decode(record: bytes | None) -> tuple[int, int]:
    return (int.from_bytes(record[:8], "big"), int.from_bytes(record[8:], "big")) if record else (0, 0)


PROBE_BYTES = 8 << 20  # about what RocksDB writes on opening
SYSTEM = "default"  # column family that every database has
CLOCK = b"stamps"  # its key of the record of the WriteClock
VERSIONS = "/versions"  # end of the name of the column family of a table with versions; no table is called so
BLOCKS = "/blocks"  # end of the name of the column family with a table's blocks; no table is called so
RUNS = "/runs"  # end of the name of the column family with a table's runs; no table is called so
DERIVED = "/derived"  # end of the name of the column family with values derived from a table; no table is called so
NO_TABLE = (BLOCKS, RUNS, VERSIONS, DERIVED)  # ends of names of column families that are no tables
WIDTH_BYTES = 2  # of the width of a table's blocks or derived values, under the name of their column family
LOCKED = re.compile("While lock file.*Resource temporarily unavailable|lock hold by current process")
STALLED = re.compile("Result incomplete|Resource busy|Try again")

Batch: TypeAlias = WriteBatch
Place: TypeAlias = tuple[bytes, bytes]  # row and column of a cell


class _Family(NamedTuple):
    """Handles of a column family for reads and for writes."""

    rows: Rdict
    handle: rocksdict.ColumnFamily


class DerivedFamily(NamedTuple):
    """Values derived from the rows of one table."""

    rows: Rdict
    handle: rocksdict.ColumnFamily
    width: int  # of the prefixes

    def drop(self, batch: Batch, rows: Iterable[bytes]) -> None:
        """Add the removal of the values that depend on some rows to a batch."""
        for prefix in {row[: self.width] for row in set(rows)}:
            batch.delete(prefix, self.handle)


class Database:
    """RocksDB in a folder, with a column family for each table. The constructor opens it."""

    def __init__(self, path: Path, clock_ms: Callable[[], int], settings: Settings, *, cache_bytes: int) -> None:
        self.path = path
        self._cached_bytes = cache_bytes // 2  # by one scan
        self._table_options = settings.table
        self._closed = False
        self._translation = _Translation(path)
        self._no_wait = WriteOptions()
        self._no_wait.no_slowdown = True  # refuse a write instead of blocking the process
        with self.translated():
            path.mkdir(parents=True, exist_ok=True)
            names = Rdict.list_cf(str(path), settings.database) if exists(path / "CURRENT") else []
            self._synced = SyncedRecord(path)
            self.may_lack_writes = bool(names) and self._synced.number is None  # cannot be checked: see `open_checked`
            tables = {name: settings.table for name in names if name != SYSTEM}
            self._rdict = open_checked(path, settings.database, tables, self._synced)
            self._families = {name: self._open(name) for name in names if name != SYSTEM}
            self._system = self._rdict.get_column_family_handle(SYSTEM)
            self.clock = WriteClock(clock_ms, self._rdict.get(CLOCK))
            self._blocks: dict[str, BlockFamily] = {}
            self._derived: dict[str, DerivedFamily] = {}
            self._runs: dict[str, RunFamily] = {}
            self._block_cache = BlockCache(cache_bytes // 8)
            for name in names:
                if name.endswith(RUNS):
                    self._add_runs(name.removesuffix(RUNS))
                if name.endswith(BLOCKS) and (width := self._rdict.get(name.encode())):
                    self._add_blocks(name.removesuffix(BLOCKS), int.from_bytes(width, "big"))
                if name.endswith(DERIVED) and (width := self._rdict.get(name.encode())):
                    self._add_derived(name.removesuffix(DERIVED), int.from_bytes(width, "big"))
            self.sequence = self._rdict.latest_sequence_number()  # number of all writes since the database was created

    def _open(self, name: str) -> _Family:
        return _Family(self._rdict.get_column_family(name), self._rdict.get_column_family_handle(name))

    def tables(self) -> list[str]:
        """Return the names of the tables, in order."""
        return sorted(name for name in self._families if not name.endswith(NO_TABLE))

    def create(self, name: str) -> None:
        """Create a table."""
        with self.translated():
            self._rdict.create_column_family(name, self._table_options)
            self._families[name] = self._open(name)

    def create_versioned(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables with versions and return their names. What a family keeps is stored last: a table
        without it counts as missing."""
        made = []
        for table in tables:
            name = table.name + VERSIONS
            with self.translated():
                if self._rdict.get(name.encode()) is not None:
                    continue
            if name not in self._families:
                self.create(name)
            with self.translated():
                self._rdict.put(
                    name.encode(), b"".join(b"%b %d\n" % (each.name, each.versions) for each in table.families)
                )
            made.append(table.name)
        return made

    def families(self, table: str) -> Mapping[bytes, int]:
        """Return how many versions each family of a table keeps. Raise NoTable."""
        with self.translated():
            record = None if self._closed else self._rdict.get((table + VERSIONS).encode())
        if record is None:
            raise NoTable(f"there is no table {table} with versions in {self.path}")
        return {name: int(versions) for name, versions in map(bytes.split, record.splitlines())}

    def version_view(self, table: str, stop: bytes | None = None) -> VersionView:
        """Return a snapshot of a table, up to before the row `stop`."""
        families = self.families(table)
        with self.translated():
            return VersionView(self._family(table + VERSIONS).rows, stop, self.translated, families)

    def read_versions(self, table: str, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values under keys, None for an absent one."""
        family = self._family(table + VERSIONS)
        with self.translated():
            return cast(list[bytes | None], family.rows.get(cast(list[str | int | float | bytes | bool], keys)))

    def blocks(self, table: str) -> BlockFamily | None:
        """Return the blocks of a table, None if it never had any."""
        return self._blocks.get(table)

    def create_blocks(self, table: str, width: int) -> BlockFamily:
        """Let a table have blocks of rows with common prefixes of `width` bytes."""
        name = table + BLOCKS
        if name not in self._families:
            self.create(name)
        with self.translated():
            self._rdict.put(name.encode(), width.to_bytes(WIDTH_BYTES, "big"))
        return self._add_blocks(table, width)

    def _add_blocks(self, table: str, width: int) -> BlockFamily:
        self._blocks[table] = BlockFamily(table, *self._families[table + BLOCKS], width, self._block_cache)
        return self._blocks[table]

    def runs(self, table: str) -> RunFamily | None:
        """Return the runs of a table, None if it never had any."""
        return self._runs.get(table)

    def create_runs(self, table: str) -> RunFamily:
        """Let a table have runs."""
        if table + RUNS not in self._families:
            self.create(table + RUNS)
        return self._add_runs(table)

    def _add_runs(self, table: str) -> RunFamily:
        self._runs[table] = RunFamily(table, *self._families[table + RUNS])
        return self._runs[table]

    def run_reader(self, family: RunFamily) -> RunReader:
        """Return a snapshot of a table's runs."""
        with self.translated():
            return RunReader(family, self.translated)

    def derived(self, table: str) -> DerivedFamily | None:
        """Return the values derived from a table, None if it never had any."""
        return self._derived.get(table)

    def derived_family(self, table: str, width: int) -> DerivedFamily:
        """Return the values derived from a table. If it never had any, create their family for prefixes of `width`
        bytes."""
        if (found := self._derived.get(table)) is not None:
            return found
        name = table + DERIVED
        if name not in self._families:
            self.create(name)
        with self.translated():
            self._rdict.put(name.encode(), width.to_bytes(WIDTH_BYTES, "big"))
        return self._add_derived(table, width)

    def _add_derived(self, table: str, width: int) -> DerivedFamily:
        self._derived[table] = DerivedFamily(*self._families[table + DERIVED], width)
        return self._derived[table]

    def block_reader(self, family: BlockFamily) -> BlockReader:
        """Return a snapshot of a table's blocks."""
        with self.translated():
            return BlockReader(family, self.translated)

    def _family(self, table: str) -> _Family:
        if self._closed:
            raise StoreError(f"{self.path} is closed")
        if table not in self._families:
            raise NoTable(f"there is no table {table} in {self.path}")
        return self._families[table]

    def require(self, table: str) -> None:
        """Raise StoreError if there is no such table."""
        self._family(table)

    def read(self, table: str, places: Sequence[Place]) -> list[bytes | None]:
        """Return the stored value of each cell, None for an absent one. This releases the interpreter's lock and may
        run in a thread."""
        keys, digests = encode_keys(places)
        family = self._family(table)
        with self.translated():
            found = cast(list[bytes | None], family.rows.get(cast(list[str | int | float | bytes | bool], keys)))
        for at, digest in digests:
            if (value := found[at]) is not None:
                found[at] = decode_long_cell(digest, value)[1]
        if runs := self.runs(table):  # read after the table: no cell moves from a run to the table
            absent = {key: at for at, key in enumerate(keys) if found[at] is None}
            stored = self.run_reader(runs).find(absent) if absent else {}
            found = [value or stored.get(key) for key, value in zip(keys, found, strict=True)]
        if blocks := self.blocks(table):
            self._read_blocks(blocks, places, found)
        return found

    def _read_blocks(self, blocks: BlockFamily, places: Sequence[Place], found: list[bytes | None]) -> None:
        """Add the values that only blocks have. Blocks are read after the table: cells move from there to blocks."""
        absent: dict[Place, list[int]] = {}
        for at, place in enumerate(places):
            if found[at] is None:
                absent.setdefault(place, []).append(at)
        if absent:
            for cells in self.block_reader(blocks).cells(row for row, _ in absent):
                for row, column, value in cells:
                    for at in absent.get((row, column), ()):
                        found[at] = value

    def view(self, table: str, stop: bytes | None = None) -> View:
        """Return a snapshot of a table, up to before the row `stop`."""
        blocks = self.blocks(table)
        rows = self._family(table).rows
        with self.translated():
            if blocks is None:
                return View(
                    rows,
                    stop,
                    self.translated,
                    cached_bytes=self._cached_bytes,
                    runs=self.runs(table),
                    may_renew=lambda: self.blocks(table) is None,  # else rows may have moved to the first blocks
                )
            return BlockView(
                rows, stop, self.translated, cached_bytes=self._cached_bytes, blocks=blocks, runs=self.runs(table)
            )

    def plain_view(self, table: str, stop: bytes | None = None) -> View:
        """Return a snapshot of a table up to before the row `stop`, without the cells of blocks and runs."""
        with self.translated():
            return View(self._family(table).rows, stop, self.translated, cached_bytes=self._cached_bytes)

    def batch(self, table: str) -> Batch:
        """Return an empty batch of writes to a table."""
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(self._family(table).handle)
        return batch

    def add_puts(self, batch: Batch, cells: Sequence[Put], time_ms: int) -> None:
        """Add cells to a batch."""
        encode_batch(batch.put, cells, time_ms)

    def remove_cells(self, batch: Batch, places: Sequence[Place]) -> None:
        """Add the deletion of cells of the table itself to a batch. Columns are as they are in keys."""
        for row, column in places:
            batch.delete(row_prefix(row) + column)

    def add_deletes(self, batch: Batch, table: str, places: Sequence[Place]) -> None:
        """Add the deletion of cells to a batch."""
        last = prefix = b""  # of a row: its cells follow each other
        for row, column in places:
            if row != last or not row:
                last, prefix = row, row_prefix(row)
            batch.delete(prefix + key_column(column))
        if (runs := self.runs(table)) and places:
            remove_keys(self.run_reader(runs), encode_keys(places).keys).add_to(batch, runs)
        if blocks := self.blocks(table):
            wanted = set(places)
            for block, rows in self.block_reader(blocks).group(row for row, _ in places):
                gone = [cell.row for cell in block.cells_of(rows) if (cell.row, cell.column) in wanted]
                if gone:
                    batch.delete(block.key, blocks.handle)
                if gone and (kept := block.without(gone)):
                    batch.put(block.key, kept, blocks.handle)

    def add_range_delete(self, batch: Batch, table: str, start: bytes, stop: bytes) -> None:
        """Add the deletion of the rows from `start` to before `stop` to a batch."""
        # Without the argument rocksdict deletes from the default column family, whatever the batch's is.
        batch.delete_range(row_prefix(start), row_prefix(stop), self._family(table).handle)
        if derived := self.derived(table):
            batch.delete_range(start[: derived.width], stop, derived.handle)
        if runs := self.runs(table):
            low, high = row_prefix(start), row_prefix(stop)
            batch.delete_range(low, high, runs.handle)
            remove_range(self.run_reader(runs), low, high).add_to(batch, runs)
        blocks = self.blocks(table)
        if blocks is None:
            return
        batch.delete_range(start, stop, blocks.handle)
        reader = self.block_reader(blocks)
        for key in {reader.key_of(start), reader.key_of(stop)} - {None}:  # which may have rows outside the range
            block = reader.load(cast(bytes, key))
            series_pairs = block.block.series_pairs()
            gone = [block.prefix + series_pairs[at] for at in np.flatnonzero(block.between(start, stop)).tolist()]
            batch.delete(block.key, blocks.handle)
            if kept := block.without(gone):
                batch.put(block.key, kept, blocks.handle)

    def add_damaged_deletes(self, batch: Batch, table: str, prefix: bytes) -> int:
        """Add the deletion of the damaged blocks of rows with a prefix to a batch. Return their number."""
        blocks = self.blocks(table)
        if blocks is None:
            return 0
        damaged = self.block_reader(blocks).damaged(prefix)
        for key in damaged:
            batch.delete(key, blocks.handle)
        return len(damaged)

    def reclaim(self, table: str, start: bytes, stop: bytes) -> None:
        """Rewrite the files that have rows from `start` to before `stop`, without deleted cells. It releases the
        interpreter's lock and may run in a thread."""
        family = self._family(table)
        with self.translated():
            family.rows.compact_range(row_prefix(start), row_prefix(stop))
            if blocks := self.blocks(table):
                blocks.rows.compact_range(start, stop)
            if runs := self.runs(table):
                runs.rows.compact_range(row_prefix(start), row_prefix(stop))
            if derived := self.derived(table):
                derived.rows.compact_range(start[: derived.width], stop)

    def stored_bytes(self, table: str) -> int:
        """Return about how many bytes a table takes."""
        others = (self.blocks(table), self.runs(table))
        families = [self._family(table).rows, *(other.rows for other in others if other is not None)]
        with self.translated():
            return sum(rows.property_int_value("rocksdb.estimate-live-data-size") or 0 for rows in families)

    def write(self, batch: Batch) -> None:
        """Write a batch atomically, together with the record of the clock if that is due."""
        record = self.clock.unsaved()
        if record is not None:
            batch.put(CLOCK, record, self._system)
        with self.translated():
            self._rdict.write(batch, self._no_wait)
        self.sequence = self._rdict.latest_sequence_number()
        if record is not None:
            self.clock.saved(record)

    def probe(self) -> None:
        """Write a temporary file in the folder. Raise StoreError if that fails."""
        with self.translated(), tempfile.TemporaryFile(dir=self.path) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())

    def sync(self) -> None:
        """Sync the write-ahead log. It may run in a thread."""
        with self.translated():
            sequence = self._rdict.latest_sequence_number()
            self._rdict.flush_wal(True)
            self._synced.save(sequence)

    def snapshot(self, folder: Path) -> None:
        """Make a snapshot of the database in a new folder. It may run in a thread."""
        with self.translated():
            for family in self._families.values():
                family.rows.flush()  # releases the interpreter's lock, so that the copy below has little to write
            sequence = self._rdict.latest_sequence_number()
            rocksdict.Checkpoint(self._rdict).create_checkpoint(str(folder))
            SyncedRecord(folder).save(sequence)

    def close(self) -> None:
        """Close the database. All steps are done even if one fails; then the first error is raised."""
        if self._closed:
            return
        self._closed = True
        failures = [_failure(self._write_last_record)]
        self._blocks.clear()
        self._runs.clear()
        self._derived.clear()
        while self._families:  # an open handle would keep the folder locked
            failures.append(_failure(self._families.popitem()[1].rows.close))
        failures.append(_failure(self._rdict.close))
        del self._system
        for text in filter(None, failures):
            raise self._translation.error(text)

    def _write_last_record(self) -> None:
        self._rdict.put(CLOCK, self.clock.last_record())  # may block, unlike `write`
        sequence = self._rdict.latest_sequence_number()
        self._rdict.flush_wal(True)
        self._synced.save(sequence)

    def translated(self) -> AbstractContextManager[None]:
        """Return a block that raises TsdErrors for exceptions of RocksDB."""
        return self._translation


class _Translation(AbstractContextManager[None]):
    """A block that raises TsdErrors for exceptions of RocksDB. It has no state, so that each read may enter the same
    one: a generator would take as long as a small read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if error is not None and (kind is Exception or isinstance(error, DbClosedError | OSError)):
            raise self.error(str(error)) from error

    def error(self, text: str) -> TsdError:
        """Return the error for a text of RocksDB."""
        path = self._path
        if LOCKED.search(text):
            pid = lock_holder(path / "LOCK")
            other = "another process" if pid in (None, os.getpid()) else f"another process ({pid})"
            return DaemonRuns(f"{path} is open in {other}: is a daemon running on it?")
        if STALLED.search(text):
            return StoreBusy(f"{path} is busy: {text}")
        return StoreError(f"{path}: {text}")


def _failure(step: Callable[[], None]) -> str | None:
    """Return the text of the error of a step, or None. The error itself would keep objects of its frames alive."""
    try:
        step()
    except DbClosedError:
        return None
    except Exception as exc:  # noqa: BLE001 - raised after all steps
        return str(exc)
    return None

"""Differences between engines: a record of facts, and optional interfaces that are None where an engine lacks them."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.codec.packing.points import CellBuckets, RowPoints
from tsd.codec.points import AlikePoints
from tsd.store.cells import Cell, CellMatrix, CellPage, Cursor, Put


@dataclass(frozen=True)
class Capabilities:
    """Facts about one store. Callers check these and never the engine's name."""

    ascending_timestamps: bool  # a later put always gets a later write timestamp, also within one millisecond
    shared: bool  # other processes may write to the same tables
    filters_rows: bool  # a cell scan with a key pattern skips other rows before they are transferred
    parallel_scans: int  # number of concurrent scans that pays off
    call_timeout_s: float = 0.0  # longest wait for an unresponsive server; 0: calls do not leave this process
    longest_key: int = LONGEST_HBASE_KEY  # bytes of a row key
    endpoints: tuple[str, ...] = ()  # host:port of each server that calls go to
    splits_scans: bool = False  # one scan reads parts of its range in parallel: callers need not split the range
    deletes_exact_spans: bool = False  # `StampedCells.delete_spans` deletes no other columns of the family
    hides_for_days: bool = False  # a delete hides later puts with older timestamps for days; see `Store.delete`


class CellReader(Protocol):
    """Scan that returns cells as parallel lists, faster than rows."""

    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        """Return the cells of the first rows from `start` to before `stop`. The page ends with the row that brings its
        values to `limit_bytes`. All pages of a scan share a `cursor`. Raise StoreError."""
        ...

    async def close_cursor(self, table: str, cursor: Cursor) -> None:
        """Release the resources of an unfinished scan. Raise nothing."""
        ...


class CellGets(Protocol):
    """Reads by row key that return cells as parallel lists, faster than rows."""

    async def get_cells(self, table: str, rows: Sequence[bytes]) -> CellPage:
        """Return the cells of those of `rows` that exist. The keys ascend. Raise StoreError."""
        ...


OnWrite: TypeAlias = Callable[[Iterable[bytes] | None], None]


class ChangeFeed(Protocol):
    """Write notifications. Only an engine that sees every write to its tables has them."""

    def subscribe(self, table: str, on_write: OnWrite) -> None:
        """Call `on_write` with the row keys of each later put and delete, before a read can return the change. None
        instead of row keys means that any row may have changed. A table has one subscriber: a later one replaces it."""
        ...


class CellSignatures(Protocol):
    """Signatures of stored cells, which show changes by other writers for a fraction of a scan's bytes."""

    async def signatures(
        self, table: str, start: bytes, stop: bytes | None, *, width: int, rows: int
    ) -> dict[bytes, bytes]:
        """Return a signature for each group of rows from `start` to before `stop` with the same first `width` bytes, as
        `tsd.store.cells.CellSigner` makes it. `rows` is the expected number of rows. Raise StoreError."""
        ...


class WatchedRange(Protocol):
    """Rows of a table by their keys."""

    @property
    def changed(self) -> bool:
        """Return whether one of the rows may have been written to since the watch began."""
        ...


class RangeDeletes(Protocol):
    """Deletion of whole rows by their keys, at a cost that does not depend on their number."""

    def watching_range(self, table: str, start: bytes, stop: bytes) -> AbstractContextManager[WatchedRange]:
        """Notice writes to the rows from `start` to before `stop` during the block."""
        ...

    async def delete_range(
        self,
        table: str,
        start: bytes,
        stop: bytes,
        *,
        changed: Iterable[bytes],
        keep: Sequence[Put] = (),
        unless: WatchedRange | None = None,
    ) -> bool:
        """Delete the rows from `start` to before `stop`, except for the cells `keep`, in one atomic step, and return
        True. If the range of `unless` has changed, do nothing and return False. The change feed reports the keys
        `changed` instead of those of the rows. Raise StoreError."""
        ...

    async def reclaim(self, table: str, start: bytes, stop: bytes) -> None:
        """Free the space of deleted rows in a range. Return when done, which may take minutes. Raise StoreError."""
        ...

    def stored_bytes(self, table: str) -> int:
        """Return about how many bytes a table takes. Raise StoreError."""
        ...


class Snapshots(Protocol):
    """Copies of all tables as of one moment, in a folder on the store's file system."""

    async def snapshot(self, folder: Path) -> None:
        """Make a snapshot of every write that returned before the call, in a folder that must not exist. Files that
        never change are hard links to the store's, where the file system has them. Raise StoreError."""
        ...


class WideRows(Protocol):
    """Calls for rows of millions of cells, of which a read needs few."""

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """Return the cells of each row from the column `first` to `last`, both of one family and included, in order.
        Rows without any are missing. A column of 15 bytes, or of more than 33, may be missing, too. The keys of the
        embedded store have digests of such columns, which are in another order. Raise StoreError."""
        ...

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """Return the keys of the first rows from `start` to before `stop`, up to `limit`: fewer only at the end. Raise
        StoreError."""
        ...

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """Write cells as `Store.put` does without a time, and remove older versions of each, where the engine keeps
        them. Raise StoreError."""
        ...


class DerivedValues(Protocol):
    """Values that are computed from all rows whose keys start with a prefix. They are no cells: a write to any of these
    rows removes them, in the same atomic step. All prefixes of a table have the same width."""

    async def derive(
        self, table: str, prefix: bytes, compute: Callable[[], Awaitable[Mapping[bytes, bytes] | None]]
    ) -> bool:
        """Store the values that `compute` returns, by name, in place of earlier ones. Return False, and store nothing,
        if it returns None, or if a row with the prefix was written meanwhile. Raise StoreError."""
        ...

    async def put_new(
        self, table: str, prefix: bytes, parts: Iterator[CellMatrix], values: Mapping[bytes, bytes] | None
    ) -> bool:
        """Put cells, all of rows with a prefix and in order of their keys, and store the values that follow from them.
        Return whether the values are stored. Only the cells are if there are no values, if the rows have other cells,
        or if another caller writes one meanwhile. `parts` is advanced in threads. Raise StoreError: then some of the
        cells may be stored, and no values are."""
        ...

    async def derived(self, table: str, prefixes: Sequence[bytes], kinds: bytes) -> dict[bytes, dict[bytes, bytes]]:
        """Return the values of each prefix that has any, by name: those whose names start with one of the bytes
        `kinds`. Raise StoreError."""
        ...


class Rewrite(NamedTuple):
    """Change of one row: cells to write, cells to delete, and cells that have to be stored for that."""

    row: bytes
    puts: Sequence[Put]
    time_ms: int  # write timestamp of the puts
    deletes: Sequence[tuple[bytes, int]]  # columns, each with the latest timestamp that is deleted
    kept: Sequence[tuple[bytes, int]] = ()  # other columns that must be stored, each with the earliest timestamp

    @property
    def cells(self) -> int:
        """Number of cells to read and to write."""
        return len(self.puts) + len(self.deletes) + len(self.kept)

    @property
    def places(self) -> list[tuple[bytes, bytes]]:
        """Row and column of each cell: those of the puts, those to delete, those to keep."""
        columns = [
            *(put.column for put in self.puts),
            *(one[0] for one in self.deletes),
            *(one[0] for one in self.kept),
        ]
        return [(self.row, column) for column in columns]


JoinCells: TypeAlias = Callable[[bytes, Sequence[tuple[bytes, bytes, int]]], tuple[bytes, bytes] | None]
"""Returns the column and the value of one cell for a row's key and all its cells, each with its timestamp in ms; None:
the row stays as it is."""


class AtomicRewrites(Protocol):
    """Changes of rows that no other write and no crash can divide."""

    def watching(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        """Collect, while the block lasts, those of some rows that may have been written to."""
        ...

    async def rewrite(
        self, table: str, changes: Sequence[Rewrite], *, written: Collection[bytes] | None = None
    ) -> list[bool]:
        """Change rows, each in one atomic step; no two changes have the same row. A row stays as it is if a cell to
        write is stored with a later timestamp and another value. So does a row without one of the cells to keep. Return
        for each row whether it was changed. The call may be repeated. Raise StoreError.

        `written` comes from `watching`: all these rows were read within its block, and each change was made from all
        cells of its row. So rows that it does not have need not be read again. None: all must be.
        """
        ...

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        """Replace all cells of a row by one, each row read and changed in one atomic step. It gets the timestamp of the
        newest of them. Return the rows that were changed: those for which `join` returns a cell. The engine may leave
        rows as they are without a call of `join`, and call it again for a row that it has not changed. The call may be
        repeated. Raise StoreError."""
        ...


class StampedPut(NamedTuple):
    """One cell to write, with its write timestamp."""

    row: bytes
    column: bytes
    value: bytes
    time_ms: int


class StampedDelete(NamedTuple):
    """One cell to delete, with the latest timestamp that is deleted."""

    row: bytes
    column: bytes
    up_to_ms: int


class StampedSpan(NamedTuple):
    """Cells of a row to delete: those from the column `first` to `last`, both included, up to a timestamp."""

    row: bytes
    first: bytes
    last: bytes  # of the same family
    up_to_ms: int


class StampedCells(Protocol):
    """Calls on cells of many rows, each cell with a timestamp of its own, where requests cost more than cells."""

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        """Write cells; those of one row follow each other and are written in one atomic step if they have one
        timestamp. A stored cell with a later timestamp is kept. Of two values with the same timestamp either one may be
        kept. Raise StoreError."""
        ...

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        """Return those of some cells that exist, by row. `places` has row and column of each. The rows have at most
        about `row_cells` cells (0: unknown): where these are few, an engine may read whole rows. Raise StoreError."""
        ...

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        """Delete cells; those of one row follow each other and are deleted in one atomic step if they have one
        timestamp. See `Store.delete` for later puts. Raise StoreError."""
        ...

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        """Delete cells of rows, also those that the caller does not know, at a cost that does not depend on their
        number. Without `Capabilities.deletes_exact_spans` the whole family of a span's columns is deleted. Raise
        StoreError."""
        ...

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        """Delete the cells of all rows from `start` to before `stop` up to a timestamp, at a cost that does not depend
        on their number. Raise StoreError."""
        ...


class Folded(NamedTuple):
    """What a fold did."""

    cells: int  # moved to blocks
    points: int  # of these cells


class DecodedRows(NamedTuple):
    """Points of chosen rows, row after row."""

    rows: NDArray[np.intp]  # their indexes among all rows, ascending
    starts: NDArray[np.int64]  # (rows + 1,): index of each row's first point, then the number of points
    offsets: NDArray[np.int64]  # of each point: ms after the base time
    bits: NDArray[np.int64]  # of each point: the integer, or the raw bits of a double
    floats: NDArray[np.bool_]  # of each point


class ColumnRows(Protocol):
    """Rows with a common key prefix, in order of their keys. The only cell of each has points, and is known to be
    whole."""

    prefix: bytes
    points: int  # of all rows

    def suffixes(self) -> list[bytes]:
        """Return the rest of each row's key."""
        ...

    def sizes(self) -> NDArray[np.int64]:
        """Return the packed bytes of each row."""
        ...

    def decode(self, chosen: NDArray[np.bool_]) -> DecodedRows:
        """Return the points of the chosen rows, which are numbered as in `suffixes`. May be called in a thread."""
        ...

    def decode_alike(self, chosen: NDArray[np.bool_] | None = None) -> AlikePoints | None:
        """Return the points of the chosen rows, by default of all, one or more. None: they do not have the same times.
        May be called in a thread."""
        ...

    def downsample(
        self, base_s: int, chosen: NDArray[np.bool_] | None, interval_ms: int, function: int
    ) -> CellBuckets | None:
        """Return the buckets of the chosen rows, by default of all, see `downsample_points` of
        `tsd.codec.packing.points`; None: they have to be decoded. `base_s` is their base time. May be called in a
        thread."""
        ...


class PackedRows(Protocol):
    """Rows as the store has packed them, in order of their keys."""

    @property
    def keys(self) -> list[bytes]:
        """Return the row of each cell."""
        ...

    def sizes(self) -> NDArray[np.int64]:
        """Return the packed bytes of each cell."""
        ...

    def decode(self, bases_s: NDArray[np.int64], chosen: NDArray[np.bool_] | None = None) -> RowPoints | None:
        """Return the points of the chosen rows, by default of all, each with one cell; `bases_s` has the base time of
        every row. None: a cell has no points, or a chosen one is damaged, or has another form, and `unpack` reads
        them. May be called in a thread."""
        ...

    def decode_alike(self, first: int, stop: int, chosen: NDArray[np.bool_] | None = None) -> AlikePoints | None:
        """Return the points of the chosen rows from index `first` to before `stop`, by default of all, each with one
        cell. None: they do not have the same times, or `decode` returns None. May be called in a thread."""
        ...

    def downsample(
        self, bases_s: NDArray[np.int64], chosen: NDArray[np.bool_] | None, interval_ms: int, function: int
    ) -> CellBuckets | None:
        """Return the buckets of the rows that `decode` returns, see `downsample_points` of
        `tsd.codec.packing.points`; None: it does not know them. May be called in a thread."""
        ...

    def unpack(self) -> CellPage:
        """Return the same rows as cells. May be called in a thread. Raise StoreError."""
        ...


class StepLimit(NamedTuple):
    """The most that is read in one step of the event loop."""

    cells: int
    size: int  # bytes of values
    points: int  # in packed cells


class ColumnPart(NamedTuple):
    """A part of a scan: cells, rows with a common prefix, or packed rows."""

    cells: CellPage | None
    rows: ColumnRows | None
    packed: PackedRows | None = None


RangeOf: TypeAlias = Callable[[bytes], tuple[bytes, bytes] | None]
"""Returns start and stop of the rows that belong together with a row, such as a metric's hour; None for a row that
belongs to none. All starts have the same length."""


class ColumnBlocks(Protocol):
    """Blocks: cells of many rows in one value, which take less space. Every other call of the store treats cells in
    blocks like all others."""

    async def fold(self, table: str, prefix: bytes, *, least_rows: int = 1) -> Folded:
        """Move the cells of all rows whose keys start with `prefix` to blocks: one cell of each row, if it has a
        packed form (`tsd.codec.packing`). All prefixes of a table have the same width. A cell of a row that is written
        meanwhile may stay, and so do fewer than `least_rows` rows of a prefix without blocks. A crash leaves each cell
        where it was, or moved. Raise DamagedBlock, StoreError."""
        ...

    async def remove_damaged(self, table: str, prefix: bytes) -> int:
        """Remove the damaged blocks of the rows whose keys start with `prefix`, of the width of `fold`. Cells outside
        of them stay, and so do blocks of an unknown format. Return the number of removed ones. Raise StoreError."""
        ...

    async def write(self, table: str, puts: Sequence[Put], *, width: int, least_rows: int = 1) -> list[Put]:
        """Write sorted cells of points straight to blocks of rows with common prefixes of `width` bytes, where that is
        possible: a cell joins the one that its row has in a block. Return those that were not written: for them
        `Store.put` is the way. These are cells of rows that have others outside of blocks or are written to meanwhile,
        cells with points that their row has already, few new rows between those of a block, and fewer than
        `least_rows` rows of a prefix without blocks. May be repeated. Raise StoreError: some may be written then."""
        ...

    async def next_unfolded(self, table: str, start: bytes, stop: bytes | None) -> bytes | None:
        """Return the first row from `start` to before `stop` that has a cell outside of blocks, None if there is none.
        Raise StoreError."""
        ...

    async def get_columns(self, table: str, rows: Sequence[bytes]) -> list[ColumnPart]:
        """Return those of some rows that exist, in order of their keys, as `read_columns` does. Raise DamagedBlock,
        StoreError."""
        ...

    def get_columns_now(self, table: str, rows: Sequence[bytes], limit: StepLimit) -> list[ColumnPart] | None:
        """Return those of some rows that exist as `read_columns` does, without a wait; None if they are too many for
        one step of the event loop, or over `limit`. Raise DamagedBlock, StoreError."""
        ...

    def read_columns_now(
        self, table: str, start: bytes, stop: bytes | None, limit: StepLimit
    ) -> list[ColumnPart] | None:
        """Return all rows from `start` to before `stop` as `read_columns` does, without a wait; None if they are too
        many for one step of the event loop, or over `limit`. Raise DamagedBlock, StoreError."""
        ...

    def kept_read(self, parts: list[ColumnPart]) -> object | None:
        """Return an object that identifies the read that has returned these very parts, for `read_again`; None if the
        store does not keep what was read. Callers refer to it weakly: the object lives while the store keeps it."""
        ...

    def read_again(self, table: str, read: object, limit: StepLimit) -> list[ColumnPart] | None:
        """Return what a kept read of a table would return now, without its keys; None if that is not known any more, or
        is over `limit`."""
        ...

    def read_columns(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, range_of: RangeOf | None = None
    ) -> AsyncGenerator[list[ColumnPart], None]:
        """Yield the rows from `start` to before `stop` in parts that are in order of their prefixes: the rows of two
        parts with the same prefix may alternate. No row is in two parts. Rows may be packed. With
        `range_of` a range of rows that is read often may be kept in memory. Raise DamagedBlock, StoreError."""
        ...

    def forget(self) -> None:
        """Remove all rows from memory."""
        ...

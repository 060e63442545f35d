"""Checks and repairs of stored rows of the data table (FORMATS.md §11), for `tsd fsck`.

`tsd.codec.opentsdb.fsck` decides which row is damaged and how to repair it. This module applies the repairs while
daemons keep writing: it replaces and deletes only cells that it read.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import aclosing, nullcontext, suppress
from typing import NamedTuple

import trio

from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.check import Problem, Trouble
from tsd.codec.opentsdb.fsck import Finding, FsckLine, FsckOptions, RowCheck, check_row
from tsd.codec.opentsdb.merge import StoredCell
from tsd.codec.opentsdb.row import data_cells
from tsd.codec.opentsdb.rowkey import BASE_BYTES, KeyLayout, Series, split_key
from tsd.errors import CorruptRow, DamagedBlock
from tsd.store import Page, Put, Row
from tsd.store.cells import prefix_end
from tsd.store.damage import readable_pages
from tsd.store.retry import run_bounded
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.key_check import Names, is_named, names_of
from tsd.tables.opentsdb.rollup_progress import Changing, unobserved
from tsd.tables.opentsdb.uids import Uids

# A row with a newer cell than this is skipped: repairs are 1 ms newer than its cells and must be older than later
# writes. HBase sets timestamps in milliseconds of its servers' clocks.
BUSY_MS = 2000
SAMPLE_METRICS, SAMPLE_ROWS = 20, 100  # read to check whether the configuration fits the table; rows per metric
CONCURRENT_CALLS = 4  # a gateway's connections are shared with daemons


class RowReport(NamedTuple):
    """Findings in one row, and their repairs."""

    key: bytes
    series: str  # names of metric and tags, and base time, as far as known
    check: RowCheck
    skipped: str = ""  # why the row was not repaired; empty if it was repaired or needed no repair


class _Repair(NamedTuple):
    """A row and its changes."""

    row: Row
    check: RowCheck
    time_ms: int  # timestamp of its newest cell

    @property
    def puts(self) -> list[Put]:
        return [Put(self.row.key, COLUMN + put.qualifier, put.value) for put in self.check.puts]

    @property
    def deletes(self) -> list[StoredCell]:
        return data_cells(self.row.cells) if self.check.delete_row else self.check.deletes


class Fsck:
    """Checks rows of one table, and repairs them as far as `options` allow."""

    def __init__(
        self,
        table: DataTable,
        uids: Uids,
        options: FsckOptions,
        changing: Changing = unobserved,
    ) -> None:
        """`changing` is entered around repairs."""
        self._changing = changing
        self._store, self._table, self._layout = table
        self._uids = uids
        self._options = options

    async def check(self, rows: Sequence[Row], *, read_ms: int) -> list[RowReport]:
        """Check `rows`, whose reading started at `read_ms`, repair them as allowed and return a report for each. Raise
        StoreError; repairs before it stay."""
        # Names are looked up after the rows were read. A daemon publishes a name before it writes rows with it, so a
        # UID without a name now never had one, or lost it.
        names = await self._names(rows)
        checks = {row.key: self._check_row(row, self._options, names) for row in rows}
        due = [_Repair(row, checks[row.key], max(cell.time_ms for cell in row.cells)) for row in rows]
        due = [one for one in due if one.puts or one.deletes]
        async with self._changing([one.row.key for one in due]) if due else nullcontext():
            skipped = await self._apply(due, read_ms)
        return [
            RowReport(
                row.key,
                describe(self._layout, row.key, names),
                self._check_row(row, FsckOptions(), names) if row.key in skipped else checks[row.key],
                skipped.get(row.key, ""),
            )
            for row in rows
        ]

    async def check_damaged(self, error: DamagedBlock) -> RowReport:
        """Remove a damaged block as allowed, with all others of its metric and hour. Return a report, which has their
        prefix as its key. Raise StoreError."""
        names = await self._names([Row(error.prefix, [])])
        series = describe(self._layout, error.prefix, names)
        finding = Finding(FsckLine.BAD_COMPACT, Problem(Trouble.BAD_COMPACT, b"", str(error)))
        check = RowCheck([finding], Counter({FsckLine.BAD_COMPACT: 1}), [], [])
        skipped = "the rows of this metric and hour from here on are not checked"
        if self._options.fix and self._options.delete_bad_compacts:
            blocks = self._store.column_blocks
            if blocks is None:
                skipped = "a daemon has the store open: stop it, and run the command again"
            elif removed := await blocks.remove_damaged(self._table, error.prefix):
                counts = Counter({FsckLine.BAD_COMPACT: removed, FsckLine.BAD_COMPACT_DELETED: removed})
                check, skipped = check._replace(counts=counts), ""
        return RowReport(error.prefix, series, check, skipped)

    async def matches_configuration(self) -> bool:
        """Return whether any row of a few metrics has names for all its UIDs, or the table is empty. If not, the
        configured widths, salt or UID table are probably those of another table. Raise StoreError."""
        at: bytes | None = b""
        empty = True
        for _ in range(SAMPLE_METRICS):
            if at is None:
                break
            page = await self._sample(at)
            names = await self._names(page.rows)
            if any(self._is_named(row.key, names) for row in page.rows):
                return True
            at = page.next_start
            empty = empty and not page.rows
            if page.rows and at is not None:  # continue with the next metric
                at = prefix_end(page.rows[-1].key[: self._layout.pairs_start - BASE_BYTES])
        return empty

    async def _sample(self, start: bytes) -> Page:
        """Return some rows from `start` on that can be read."""

        async def read(at: bytes, stop: bytes | None) -> Page:
            return await self._store.page(self._table, at, stop, limit=SAMPLE_ROWS)

        async def leave_out(error: DamagedBlock) -> bool:  # noqa: ARG001 - reported when all rows are read
            await trio.lowlevel.checkpoint()
            return False

        async with aclosing(readable_pages(read, start, None, leave_out)) as pages:
            async for page in pages:
                if page.rows:
                    return page
        return Page([], None)

    def _is_named(self, key: bytes, names: Names) -> bool:
        try:
            return is_named(split_key(self._layout, key).series, names)
        except CorruptRow:
            return False

    def _check_row(self, row: Row, options: FsckOptions, names: Names) -> RowCheck:
        cells = data_cells(row.cells)
        return check_row(row.key, cells, options, lambda kind, uid: (kind, uid) in names, self._layout)

    async def _names(self, rows: Iterable[Row]) -> Names:
        series: list[Series] = []
        for row in rows:
            with suppress(CorruptRow):  # reported by check_row
                series.append(split_key(self._layout, row.key).series)
        return await names_of(self._uids, series)

    async def _apply(self, rows: Sequence[_Repair], read_ms: int) -> dict[bytes, str]:
        """Put, read back, delete cells that were read. Return the keys of skipped rows with the reasons.

        A crash in between loses no point. The puts are newer than all cells that were read, so a concurrent compaction
        never takes them for duplicates of cells that are deleted here. A concurrent write is newer still, since the
        row is not busy. A put that an earlier delete hides (in HBase, until a major compaction) is missing in
        the read-back, and then nothing is deleted.
        """
        skipped = {one.row.key: "it is being written to" for one in rows if abs(read_ms - one.time_ms) <= BUSY_MS}
        ready = [one for one in rows if one.row.key not in skipped]
        await self._put(ready)
        hidden = await self._hidden([put for one in ready for put in one.puts])
        skipped |= dict.fromkeys(hidden, "the repaired cell is not visible: a concurrent write or an earlier delete")
        await self._delete([one for one in ready if one.row.key not in hidden])
        return skipped

    async def _put(self, rows: Iterable[_Repair]) -> None:
        by_time: dict[int, list[Put]] = {}
        for one in rows:
            if one.puts:
                by_time.setdefault(one.time_ms + 1, []).extend(one.puts)

        async def put(part: tuple[int, list[Put]]) -> None:
            await self._store.put(self._table, part[1], time_ms=part[0])

        await run_bounded(by_time.items(), put, limit=CONCURRENT_CALLS)

    async def _hidden(self, puts: Sequence[Put]) -> set[bytes]:
        """Return the keys of rows where a put cell cannot be read back."""
        if not puts:
            return set()
        rows = await self._store.get(self._table, list({put.row for put in puts}))
        found = {(row, cell.column): cell.value for row, cells in rows.items() for cell in cells}
        return {put.row for put in puts if found.get((put.row, put.column)) != put.value}

    async def _delete(self, rows: Iterable[_Repair]) -> None:
        """Delete cells if they are no newer than the newest cell that was read; later writes are newer.

        A call has one bound for its timestamps. One call deletes the cells with the newest timestamp. Another deletes
        older cells, with a bound one ms lower, so that a concurrent put with the newest timestamp stays visible. The
        order of the calls does not matter: newer cells already supersede the older ones.
        """
        by_time: dict[int, dict[bytes, list[bytes]]] = {}
        for one in rows:
            for cell in one.deletes:
                time_ms = one.time_ms - (cell.time_ms < one.time_ms)
                by_time.setdefault(time_ms, {}).setdefault(one.row.key, []).append(COLUMN + cell.qualifier)

        async def delete(part: tuple[int, dict[bytes, list[bytes]]]) -> None:
            await self._store.delete(self._table, part[1], up_to_ms=part[0])

        await run_bounded(by_time.items(), delete, limit=CONCURRENT_CALLS)


def describe(layout: KeyLayout, key: bytes, names: Names) -> str:
    """Return a row key as text, with names instead of UIDs (nameless UIDs in hex); empty for an invalid key."""
    try:
        parts = split_key(layout, key)
    except CorruptRow:
        return ""

    def shown(kind: Kind, uid: bytes) -> str:
        name = names.get((kind, uid))
        return f"<{uid.hex()}>" if name is None else name.decode("latin-1")

    pairs = (f"{shown(Kind.TAGK, tagk)}={shown(Kind.TAGV, tagv)}" for tagk, tagv in parts.series.pairs)
    return f"{shown(Kind.METRIC, parts.series.metric)} {parts.base} {{{', '.join(pairs)}}}"

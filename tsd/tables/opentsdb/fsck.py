"""Rows of the data table, looked at and mended where they are stored (FORMATS.md §11): what `tsd fsck` does.

Which row is broken, and how it is mended, `codec.fsck` says. Here it is done beside daemons that go on writing: nothing
is written over or deleted but what was read.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tsd.codec.cell import COLUMN
from tsd.codec.fsck import FsckOptions, RowCheck, check_row
from tsd.codec.merge import StoredCell
from tsd.codec.row import data_cells
from tsd.codec.rowkey import BASE_BYTES, Layout, after, split_key
from tsd.codec.uid import Kind
from tsd.errors import CorruptRow
from tsd.store import Put, Row, Store
from tsd.store.together import together
from tsd.uids import Uids

# A row whose newest cell was no older when it was read is left alone: what is put at that cell's time must be older
# than what came after the read, and HBase stamps cells with its servers' milliseconds.
BUSY_MS = 2000
LOOKS, LOOK_ROWS = 20, 100  # metrics looked at, and rows of each, to tell whether the configuration is the table's
AT_ONCE = 4  # calls: a gateway's connections are shared with daemons

Names = Mapping[tuple[Kind, bytes], bytes]  # of those UIDs that have one


class Verdict(NamedTuple):
    """A row, what was found in it, and what of that is mended by now."""

    key: bytes
    series: str  # metric, base time and tags in names, as far as they can be told
    check: RowCheck
    left: str = ""  # why the row was left as it is although it was to be mended


class _Mended(NamedTuple):
    """A row and what is to become of it."""

    row: Row
    check: RowCheck
    time_ms: int  # write time of its newest cell

    @property
    def puts(self) -> list[Put]:
        return [Put(self.row.key, COLUMN + put.qualifier, put.value) for put in self.check.puts]

    @property
    def deletes(self) -> list[StoredCell]:
        return data_cells(self.row.cells) if self.check.delete_row else self.check.deletes


class Fsck:
    """Looks at rows of one table, and mends them as far as `options` allow."""

    def __init__(
        self,
        store: Store,
        table: str,
        uids: Uids,
        layout: Layout,
        options: FsckOptions,
    ) -> None:
        self._store = store
        self._table = table
        self._uids = uids
        self._layout = layout
        self._options = options

    async def examine(self, rows: Sequence[Row], *, read_ms: int) -> list[Verdict]:
        """What is wrong with each of `rows`, and mended if it may be; to read them was begun at `read_ms`. Raises
        StoreError; what was mended until then stays so."""
        # Names are looked up after the rows were read: a daemon publishes a name before it writes a row of it, so
        # whatever has none now never had one, or lost it.
        names = await self._names(rows)
        checks = {row.key: self._check(row, self._options, names) for row in rows}
        due = [_Mended(row, checks[row.key], max(cell.time_ms for cell in row.cells)) for row in rows]
        due = [one for one in due if one.puts or one.deletes]
        left = await self._mend(due, read_ms)
        return [
            Verdict(
                row.key,
                describe(self._layout, row.key, names),
                self._check(row, FsckOptions(), names) if row.key in left else checks[row.key],
                left.get(row.key, ""),
            )
            for row in rows
        ]

    async def fits(self) -> bool:
        """Whether some row is of a series whose UIDs have names, as far as a look at a few metrics tells; True of an
        empty table. Where none is, widths, salt or UID table are rather another table's than all rows broken. Raises
        StoreError."""
        at: bytes | None = b""
        empty = True
        for _ in range(LOOKS):
            if at is None:
                break
            page = await self._store.page(self._table, at, None, limit=LOOK_ROWS)
            names = await self._names(page.rows)
            if any(self._is_named(row.key, names) for row in page.rows):
                return True
            at = page.next_start
            empty = empty and not page.rows
            if page.rows and at is not None:  # on to the next metric
                at = after(page.rows[-1].key[: self._layout.pairs_start - BASE_BYTES])
        return empty

    def _is_named(self, key: bytes, names: Names) -> bool:
        try:
            metric, pairs = split_key(self._layout, key).series
        except CorruptRow:
            return False
        uids = [(Kind.METRIC, metric), *((Kind.TAGK, k) for k, _ in pairs), *((Kind.TAGV, v) for _, v in pairs)]
        return bool(pairs) and all(uid in names for uid in uids)

    def _check(self, row: Row, options: FsckOptions, names: Names) -> RowCheck:
        cells = data_cells(row.cells)
        return check_row(row.key, cells, options, lambda kind, uid: (kind, uid) in names, self._layout)

    async def _names(self, rows: Iterable[Row]) -> Names:
        wanted: dict[Kind, dict[bytes, None]] = {kind: {} for kind in Kind}
        for row in rows:
            try:
                series = split_key(self._layout, row.key).series
            except CorruptRow:
                continue  # check_row says so
            wanted[Kind.METRIC][series.metric] = None
            for tagk, tagv in series.pairs:
                wanted[Kind.TAGK][tagk] = None
                wanted[Kind.TAGV][tagv] = None
        return {
            (kind, uid): name
            for kind in Kind
            for uid, name in (await self._uids.names(kind, wanted[kind])).items()
            if isinstance(name, bytes)
        }

    async def _mend(self, rows: Sequence[_Mended], read_ms: int) -> dict[bytes, str]:
        """Put, look whether it is there, delete what was read; the rows that were left, and why.

        Dying in between leaves each point where a reader finds it. The puts carry the time of the newest cell read, so
        what somebody writes meanwhile is newer and stays; a cell that a delete of that time or later hides (in HBase
        it does, until a major compaction) is not seen, and then nothing is deleted.
        """
        left = {one.row.key: "it is being written to" for one in rows if abs(read_ms - one.time_ms) <= BUSY_MS}
        ready = [one for one in rows if one.row.key not in left]
        await self._put(ready)
        unseen = await self._unseen([put for one in ready for put in one.puts])
        left |= dict.fromkeys(unseen, "what was written does not show: somebody writes to it, or a deletion hides it")
        await self._delete([one for one in ready if one.row.key not in unseen])
        return left

    async def _put(self, rows: Iterable[_Mended]) -> None:
        by_time: dict[int, list[Put]] = {}
        for one in rows:
            if one.puts:
                by_time.setdefault(one.time_ms, []).extend(one.puts)

        async def put(part: tuple[int, list[Put]]) -> None:
            await self._store.put(self._table, part[1], time_ms=part[0])

        await together(by_time.items(), put, at_once=AT_ONCE)

    async def _unseen(self, puts: Sequence[Put]) -> set[bytes]:
        """The rows where a cell is not as it was put."""
        if not puts:
            return set()
        rows = await self._store.get(self._table, list({put.row for put in puts}))
        there = {(row, cell.column): cell.value for row, cells in rows.items() for cell in cells}
        return {put.row for put in puts if there.get((put.row, put.column)) != put.value}

    async def _delete(self, rows: Iterable[_Mended]) -> None:
        """Each cell where it is no newer than its row's newest one was read: what came since is. The store takes one
        time a call.

        In any order: what is older than the cells just put tells nothing any more, and what is as new goes in one call.
        Older cells go up to the ms before, so that somebody else's put at the time of the newest one shows.
        """
        by_time: dict[int, dict[bytes, list[bytes]]] = {}
        for one in rows:
            for cell in one.deletes:
                time_ms = one.time_ms - (cell.time_ms < one.time_ms)
                by_time.setdefault(time_ms, {}).setdefault(one.row.key, []).append(COLUMN + cell.qualifier)

        async def delete(part: tuple[int, dict[bytes, list[bytes]]]) -> None:
            await self._store.delete(self._table, part[1], up_to_ms=part[0])

        await together(by_time.items(), delete, at_once=AT_ONCE)


def describe(layout: Layout, key: bytes, names: Names) -> str:
    """A row key in names, UIDs without one in hex; empty for a key that is none."""
    try:
        parts = split_key(layout, key)
    except CorruptRow:
        return ""

    def shown(kind: Kind, uid: bytes) -> str:
        name = names.get((kind, uid))
        return f"<{uid.hex()}>" if name is None else name.decode("latin-1")

    pairs = (f"{shown(Kind.TAGK, tagk)}={shown(Kind.TAGV, tagv)}" for tagk, tagv in parts.series.pairs)
    return f"{shown(Kind.METRIC, parts.series.metric)} {parts.base} {{{', '.join(pairs)}}}"

"""Rewrites of the embedded store: changes of some rows in one batch, after a read of the cells that they replace."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager

from tsd.errors import DamagedBlock
from tsd.store.capabilities import JoinCells, Rewrite
from tsd.store.cells import Put
from tsd.store.rocksdb.access import DatabaseAccess
from tsd.store.rocksdb.database import Batch, Database
from tsd.store.rocksdb.keys import ABSENT, TIME_BYTES, time_of

STEP_CELLS = 64  # read and written in one step: about a millisecond if all are long
JOINED_CELLS = 128  # read and written in one step of joins, which take half as long
STEP_BYTES = 64 << 10  # of columns and values that are read to be joined in one step


class EmbeddedRewrites:
    """AtomicRewrites of the embedded store."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    def watching(self, table: str, rows: Collection[bytes]) -> AbstractContextManager[Collection[bytes]]:
        """See AtomicRewrites."""
        return self._access.watches.of_rows(table, rows)

    async def rewrite(
        self, table: str, changes: Sequence[Rewrite], *, written: Collection[bytes] | None = None
    ) -> list[bool]:
        """See AtomicRewrites."""
        done: list[bool] = []
        for part in _parts(changes):

            def change(
                database: Database, batch: Batch, part: Sequence[Rewrite] = part
            ) -> tuple[list[bytes], list[bool]]:
                changed = add_rewrites(database, batch, table, part, written)
                return [one.row for one, is_done in zip(part, changed, strict=True) if is_done], changed

            done += await self._access.write_step("rewrite", table, change)  # begins with a checkpoint
        return done

    async def join(self, table: str, rows: Sequence[bytes], join: JoinCells) -> list[bytes]:
        """See AtomicRewrites. Rows of a table with runs stay as they are, and so do those with a cell in a block."""
        done: list[bytes] = []
        at = 0
        while at < len(rows):

            def change(database: Database, batch: Batch, at: int = at) -> tuple[list[bytes], tuple[int, list[bytes]]]:
                end, joined = add_joins(database, batch, table, rows, at, join)
                return joined, (end, joined)

            at, joined = await self._access.write_step("join", table, change)  # begins with a checkpoint
            done += joined
        return done


def _parts(changes: Sequence[Rewrite]) -> Iterator[Sequence[Rewrite]]:
    """Yield the changes in parts of some STEP_CELLS cells, at least one change each."""
    start = cells = 0
    for at, change in enumerate(changes):
        if at > start and cells + change.cells > STEP_CELLS:
            yield changes[start:at]
            start, cells = at, 0
        cells += change.cells
    if start < len(changes):
        yield changes[start:]


def add_joins(
    database: Database, batch: Batch, table: str, rows: Sequence[bytes], at: int, join: JoinCells
) -> tuple[int, list[bytes]]:
    """Add the changes of rows from index `at` on to a batch, as many as fit into a step. Return the index of the first
    row that was not read, and the rows that change."""
    if database.runs(table):
        return len(rows), []
    view, in_blocks = database.plain_view(table), _RowsOfBlocks(database, table)
    done: list[bytes] = []
    puts: dict[int, list[Put]] = defaultdict(list)
    cells = size = 0
    while at < len(rows) and cells < JOINED_CELLS and size < STEP_BYTES:
        row = rows[at]
        at += 1
        if in_blocks.may_have(row):
            cells += 1
            continue
        found = view.row_cells(row, JOINED_CELLS)
        cells += JOINED_CELLS if found is None else len(found.keys) + 1
        if not found or not found.keys:
            continue
        size += found.size
        made = join(row, found.cells)
        if made is None:
            continue
        for key in found.keys:
            batch.delete(key)
        puts[max([time_ms for _, _, time_ms in found.cells])].append(Put(row, *made))
        done.append(row)
    for time_ms, some in puts.items():  # after the deletes, in case one has a key of theirs
        database.add_puts(batch, some, time_ms)
        database.clock.observe(time_ms)
    return at, done


class _RowsOfBlocks:
    """Computes whether a row may have a cell in a block. Neighbouring rows are asked for one after the other."""

    def __init__(self, database: Database, table: str) -> None:
        family = database.blocks(table)
        self._reader = None if family is None else database.block_reader(family)
        self._width = 0 if family is None else family.width
        self._prefix: bytes | None = None
        self._has_blocks = False

    def may_have(self, row: bytes) -> bool:
        """Return whether a row has a cell in a block, or may have one in a damaged block."""
        if self._reader is None:
            return False
        prefix = row[: self._width]
        if prefix != self._prefix:
            key = self._reader.key_from(prefix)
            self._prefix, self._has_blocks = prefix, key is not None and key.startswith(prefix)
        if not self._has_blocks:
            return False
        key = self._reader.key_of(row)
        try:
            return key is not None and bool(self._reader.load(key).find([row])[0] >= 0)
        except DamagedBlock:
            return True


def add_rewrites(
    database: Database, batch: Batch, table: str, changes: Sequence[Rewrite], written: Collection[bytes] | None
) -> list[bool]:
    """Add the changes of rows to a batch. Return for each whether its stored cells permit it. They permit that of a row
    which is not in `written`, unless that is None."""
    places = [place for change in changes if written is None or change.row in written for place in change.places]
    stored = iter(database.read(table, places) if places else ())
    done: list[bool] = []
    gone: list[tuple[bytes, bytes]] = []
    for change in changes:
        if written is not None and change.row not in written:
            done.append(True)
            database.clock.observe(change.time_ms)
            database.add_puts(batch, change.puts, change.time_ms)
            gone += [(change.row, column) for column, _ in change.deletes]
            continue
        before = [next(stored) or ABSENT for _ in change.puts]
        old = [next(stored) for _ in change.deletes]
        kept = [(next(stored) or ABSENT, time_ms) for _, time_ms in change.kept]
        newer = [time_of(value) > change.time_ms for value in before]
        done.append(
            all(time_of(value) >= time_ms for value, time_ms in kept)
            and not any(
                is_newer and value[TIME_BYTES:] != put.value
                for put, value, is_newer in zip(change.puts, before, newer, strict=True)
            )
        )
        if done[-1]:
            due = [put for put, is_newer in zip(change.puts, newer, strict=True) if not is_newer]
            database.clock.observe(change.time_ms)
            database.add_puts(batch, due, change.time_ms)
            gone += [
                (change.row, column)
                for (column, up_to_ms), value in zip(change.deletes, old, strict=True)
                if value and time_of(value) <= up_to_ms
            ]
    database.add_deletes(batch, table, gone)
    return done

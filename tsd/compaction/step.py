"""Some rows' cells → their compacted form in the store, without a moment in which a reader misses a point.

The merged cells are put at the time of the newest cell that was read, read back, and only then is what they replace
deleted. Nothing is locked. These are the reasons why that loses nothing, whoever writes, compacts or dies meanwhile:

- What is written after the read has a later time than anything that was read (`Store.put`; see `REST_MS` for HBase).
  So it counts more than the merged cell, and no delete, each bounded by a time that was read, reaches it. Where it
  stands in the merged cell's own column, the put stays hidden behind it, which the reading back shows.
- A column names the times of its points. The merged cells hold each of those at the newest time read, so that a cell
  in a column that is to go, and is no newer, never counts, whatever it says.
- Of cells of one time the lowest column counts. Deletes that are cut short were done from the highest column down, so
  that what is left, as new as the merged cells, tells nothing else.
- Another compaction puts what it read, no newer than this one's cells unless it knows of newer ones.
- In HBase a delete hides what is put later at no later time. A merged cell that is hidden so is not found when it is
  read back, and nothing is deleted.

Only who deletes points while their row is compacted may find them there again.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import trio

from tsd.codec.cell import COLUMN, Point
from tsd.codec.merge import MergeRules, StoredCell
from tsd.codec.row import Compaction, compact, data_cells
from tsd.codec.rowkey import Layout, split_key
from tsd.compaction.tally import Tally, size_of
from tsd.errors import CorruptRow, StoreError
from tsd.store import Cell, Put, Row, Store
from tsd.store.together import together

# HBase stamps a cell with its server's millisecond. A cell may get the same one as a cell that was read only where it
# is written in that millisecond, so a row is not read as long as its newest cell may be that new. The rest is for
# clocks that differ.
REST_MS = 2000
LARGE_BYTES = 16 << 10  # of a row's qualifiers: some 10 ms of work
AT_ONCE = 4  # calls: connections to a gateway are shared with the writer


class Plan(NamedTuple):
    """What is to be done about one row."""

    key: bytes
    time_ms: int  # of its newest cell with points
    puts: tuple[Point, ...]
    obsolete: tuple[StoredCell, ...]  # in the order in which they go
    before: tuple[int, int]  # cells, and their bytes
    after: tuple[int, int]
    identical: int  # points dropped that said the same
    variant: int

    @property
    def columns(self) -> tuple[bytes, ...]:
        """Of the puts."""
        return tuple([COLUMN + put.qualifier for put in self.puts])


class Found(NamedTuple):
    """What a look at rows gave."""

    plans: list[Plan]
    sizes: list[tuple[int, int]]  # cells and bytes of each row
    corrupt: list[CorruptRow]
    young: list[bytes]  # keys of rows that were written to a moment ago


class RowCompactor:
    """Compacts rows of one table. Any number of them may work on the same rows, in any number of processes."""

    def __init__(
        self,
        store: Store,
        table: str,
        layout: Layout,
        rules: MergeRules,
        now_ms: Callable[[], int],
        on_corrupt: Callable[[CorruptRow], None],
        *,
        rest_ms: int = REST_MS,
        dry: bool = False,
    ) -> None:
        """`now_ms` is the wall clock. With `rest_ms` 0 every row may be read at once: for a store whose stamps rise
        with every put. `on_corrupt` is told of each row that cannot be read, which is left as it is; with `dry` all
        are."""
        self.tally = Tally()
        self._store = store
        self._table = table
        self._layout = layout
        self._rules = rules
        self._now_ms = now_ms
        self._on_corrupt = on_corrupt
        self._rest_ms = rest_ms
        self._dry = dry

    async def compact_keys(self, keys: Collection[bytes]) -> list[bytes]:
        """Compact those of some rows that exist; keys of those that must be left for a moment. Raises StoreError."""
        now_ms = self._now_ms()
        with self._failing("read"):
            rows = await self._store.get(self._table, keys)
        return await self.compact([Row(*row) for row in rows.items()], read_ms=now_ms)

    async def compact(self, rows: Sequence[Row], *, read_ms: int) -> list[bytes]:
        """The same for rows as they were read, which was begun at `read_ms`, however long ago: with all their cells.

        Rows are counted, and told of, when this returns: not where it fails, nor those that must be left.
        """
        found = await self._plan(rows, read_ms)
        done = found.plans if self._dry else await self._carry_out(found.plans)
        for size in found.sizes:
            self.tally.see(size)
        for plan in done:
            self.tally.count(plan)
        for error in found.corrupt:
            self.tally.refuse(error)
            self._on_corrupt(error)
        return found.young

    async def _plan(self, rows: Sequence[Row], read_ms: int) -> Found:
        found = Found([], [], [], [])
        for row in rows:
            await trio.lowlevel.checkpoint()  # a row takes a tenth of a millisecond, and the daemon has agents to serve
            cells = data_cells(row.cells)
            if self._rest_ms and any(cell.time_ms > read_ms - self._rest_ms for cell in cells):
                found.young.append(row.key)
                continue
            found.sizes.append(size_of(row.key, cells))
            try:
                split_key(self._layout, row.key)
                done = await self._compaction(row.key, cells)
            except CorruptRow as exc:
                found.corrupt.append(exc)
                continue
            if done.changes:
                found.plans.append(_plan_of(row.key, cells, done))
        return found

    async def _compaction(self, key: bytes, cells: Sequence[StoredCell]) -> Compaction:
        """That of a row; of a large one in a thread, as a row of ms points may take seconds."""
        if sum([len(cell.qualifier) for cell in cells]) < LARGE_BYTES:
            return compact(key, cells, self._rules)
        return await trio.to_thread.run_sync(compact, key, cells, self._rules)

    async def _carry_out(self, plans: Sequence[Plan]) -> list[Plan]:
        """Those of the plans that came true."""

        async def put(part: tuple[int, list[Put]]) -> None:
            await self._store.put(self._table, part[1], time_ms=part[0])

        async def delete(part: tuple[int, Mapping[bytes, Collection[bytes]]]) -> None:
            await self._store.delete(self._table, part[1], up_to_ms=part[0])

        with self._failing("put"):
            await together(_puts(plans).items(), put, at_once=AT_ONCE)
        self.tally.writes += sum(len(plan.puts) for plan in plans)
        with self._failing("read"):
            standing = await self._verified(plans)
        self.tally.hidden += len(plans) - len(standing)
        with self._failing("delete"):
            await together(_deletes(standing).items(), delete, at_once=AT_ONCE)
        self.tally.deletes += sum(len(plan.obsolete) for plan in standing)
        return standing

    async def _verified(self, plans: Sequence[Plan]) -> list[Plan]:
        """Those whose merged cells are all there, and count as much as they must."""
        alike: dict[tuple[bytes, ...], list[Plan]] = defaultdict(list)
        for plan in plans:
            alike[plan.columns].append(plan)
        standing: list[Plan] = []

        async def look(part: tuple[tuple[bytes, ...], list[Plan]]) -> None:
            columns, some = part
            found = await self._store.get(self._table, [plan.key for plan in some], columns=columns)
            standing.extend(plan for plan in some if _stands(plan, found.get(plan.key, ())))

        await together(alike.items(), look, at_once=AT_ONCE)
        return standing

    @contextmanager
    def _failing(self, call: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            self.tally.errors[call] += 1
            raise


def _plan_of(key: bytes, cells: Sequence[StoredCell], done: Compaction) -> Plan:
    """A compaction with the times of its writes."""
    time_ms = max(cell.time_ms for cell in done.row.cells)
    changed = {cell.qualifier for cell in done.obsolete} | {cell.qualifier for cell in done.merged}
    left = [cell for cell in cells if cell.qualifier not in changed]
    holders = {cell.qualifier for cell in done.row.cells}
    # What stands there already says the same, but must count as much as what goes.
    aged = [Point(c.qualifier, c.value) for c in left if c.qualifier in holders and c.time_ms < time_ms]
    return Plan(
        key,
        time_ms,
        (*done.merged, *aged),
        tuple(sorted(done.obsolete, reverse=True)),
        size_of(key, cells),
        size_of(key, [*left, *(StoredCell(*cell, time_ms) for cell in done.merged)]),
        done.row.identical,
        done.row.variant,
    )


def _stands(plan: Plan, cells: Iterable[Cell]) -> bool:
    """Whether a row's cells are the merged ones, and count as much as they must."""
    found = {cell.column: cell for cell in cells}
    for put in plan.puts:
        cell = found.get(COLUMN + put.qualifier)
        if cell is None or cell.value != put.value or cell.time_ms < plan.time_ms:
            return False
    return True


def _puts(plans: Iterable[Plan]) -> dict[int, list[Put]]:
    """The merged cells, by the time that they get."""
    found: dict[int, list[Put]] = defaultdict(list)
    for plan in plans:
        found[plan.time_ms] += [Put(plan.key, COLUMN + put.qualifier, put.value) for put in plan.puts]
    return found


def _deletes(plans: Iterable[Plan]) -> Mapping[int, Mapping[bytes, Collection[bytes]]]:
    """Columns to delete by row, by the time up to which they go: that of the merged cells for cells as new as they, the
    millisecond before it for older ones."""
    found: dict[int, dict[bytes, list[bytes]]] = defaultdict(lambda: defaultdict(list))
    for plan in plans:
        for cell in plan.obsolete:
            found[plan.time_ms - (cell.time_ms < plan.time_ms)][plan.key].append(COLUMN + cell.qualifier)
    return found

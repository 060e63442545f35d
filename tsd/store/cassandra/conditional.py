"""Conditional writes on Cassandra: lightweight transactions, on which the nodes agree.

The nodes agree on one conditional write of a partition at a time; of several at once most fail or time out. So this
process makes them one after the other. Cells that must all be absent are written by one batch.

The timestamp of such a write comes from a node's clock. It may be hidden by a later timestamp of a process whose clock
is ahead. So each write is read back, and repeated until it shows.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from weakref import WeakValueDictionary

import trio

from tsd.errors import StoreBusy, StoreDown, StoreError, bare
from tsd.store import Put
from tsd.store.cassandra.keys import Shape
from tsd.store.cassandra.schema import Statements
from tsd.store.cassandra.session import Connector, Parameters, Rows, Value
from tsd.store.retry import backoff, run_bounded
from tsd.store.rules import add, bytes_of

CONCURRENT = 16  # partitions of one call
BATCH_CELLS = 100  # of a batch with conditions
FIRST_HIDDEN_S, LONGEST_HIDDEN_S, HIDDEN_TRIES = 0.002, 0.5, 12  # until a write shows: 2 to 3 s in all
MOST_AHEAD_US = 60_000_000  # a clock that is further ahead is wrong, and is not followed
CONTENDED_TRIES = 50  # of an increment that others overtake
MS = 1000  # microseconds of a millisecond


class WriteClock:
    """Write timestamps in microseconds, which never fall.

    Readers compare milliseconds, and of two values of a point the later write counts. So each timestamp has a later
    millisecond than those of all writes that have ended, also after the wall clock was set back. Concurrent writes
    share milliseconds, or more than 1,000 a second would move the timestamps ever further ahead of the clock.
    """

    def __init__(self, clock_ms: Callable[[], int]) -> None:
        """`clock_ms` is the wall clock in Unix milliseconds."""
        self._clock_ms = clock_ms
        self._last_us = 0
        self._ended_ms = -1  # the latest millisecond of a write that has ended

    def next(self, now_ms: int) -> int:
        """Return a timestamp that is later than all before. `now_ms` is the wall clock's time."""
        self._last_us = max(self._last_us + 1, (self._ended_ms + 1) * MS, now_ms * MS)
        return self._last_us

    def end(self, stamp_us: int) -> None:
        """Make later timestamps later by a millisecond or more than that of a write that has ended."""
        self._ended_ms = max(self._ended_ms, stamp_us // MS)

    def follow(self, stamp: Value) -> None:
        """Make later timestamps later than one of a node's clock, unless that clock is wrong."""
        assert isinstance(stamp, int)
        if stamp < self._clock_ms() * MS + MOST_AHEAD_US:
            self._last_us = max(self._last_us, stamp)
            self.end(stamp)


class ConditionalWrites:
    """Writes of cells under a condition on their values."""

    def __init__(
        self,
        connector: Connector,
        ask: Callable[[str, Parameters], Awaitable[Rows]],
        clock: WriteClock,
        count: Counter[str],
    ) -> None:
        """`ask` executes a statement that may be repeated. `count` counts the cells that were written."""
        self._connector = connector
        self._ask = ask
        self._clock = clock
        self._count = count
        self._locks: WeakValueDictionary[tuple[str, bytes], trio.Lock] = WeakValueDictionary()

    async def create(self, shape: Shape, cql: Statements, cells: Sequence[Put]) -> list[bool]:
        """Write cells that are absent, of different rows. Return whether each was written. Raise StoreError."""
        partitions: dict[bytes, list[Put]] = {}
        for cell in cells:
            partitions.setdefault(shape.partition(cell.row), []).append(cell)
        written: dict[bytes, bool] = {}

        async def write(partition: bytes) -> None:
            part = partitions[partition]
            async with self._turn(shape, partition):
                for start in range(0, len(part), BATCH_CELLS):
                    written.update(await self._create_part(shape, cql, partition, part[start : start + BATCH_CELLS]))

        await run_bounded(partitions, write, limit=CONCURRENT)
        return [written[cell.row] for cell in cells]

    async def replace(self, shape: Shape, cql: Statements, cell: Put, expected: bytes) -> bool:
        """Write a cell if its value is `expected` (empty: or if it is absent). Raise StoreError."""
        async with self._turn(shape, shape.partition(cell.row)):
            return await self._replace(shape, cql, cell, expected)

    async def increment(self, shape: Shape, cql: Statements, row: bytes, column: bytes, by: int) -> int:
        """Add to a counter, and return its new value. Raise StoreError."""
        partition = shape.partition(row)
        async with self._turn(shape, partition):
            answer = await self._ask(cql.stored, (partition, row[len(partition) :], [column]))
            before = next((bytes_in(value) for _, _, value, _ in answer), None)
            hidden = 0
            waits = list(backoff(FIRST_HIDDEN_S, LONGEST_HIDDEN_S, HIDDEN_TRIES))
            for _ in range(CONTENDED_TRIES):
                total = add(before, by)
                cell = Put(row, column, bytes_of(total))
                stored = await self._exchange(shape, cql, cell, before)
                if stored != before:
                    before = stored
                elif await self._shows(shape, cql, cell, before):
                    return total
                elif hidden == len(waits):
                    raise _hidden(shape, cell)
                else:
                    await trio.sleep(waits[hidden])
                    hidden += 1
        raise StoreDown(f"table {shape.name}: others incremented {row.hex()} {CONTENDED_TRIES} times in between")

    def _turn(self, shape: Shape, partition: bytes) -> trio.Lock:
        """Return the lock of a partition's conditional writes."""
        return self._locks.setdefault((shape.name, partition), trio.Lock())

    async def _create_part(
        self, shape: Shape, cql: Statements, partition: bytes, cells: Sequence[Put]
    ) -> Mapping[bytes, bool]:
        """Write cells of a partition, those that are absent. Return whether each was written, by row.

        If all are absent, one batch writes them. Otherwise each is a request of its own.
        """
        shown: frozenset[bytes] = frozenset()
        if len(cells) > 1 and await self._create_all(cql, partition, cells):
            shown = await self._shown(cql, partition, cells)
            self._count["cells_put"] += len(shown)
        return {cell.row: cell.row in shown or await self._replace(shape, cql, cell, b"") for cell in cells}

    async def _create_all(self, cql: Statements, partition: bytes, cells: Sequence[Put]) -> bool:
        """Write cells of a partition if all are absent. Return whether they were."""
        rows = [(cell.value, partition, cell.row[len(partition) :], cell.column, None) for cell in cells]
        with _uncertain():
            return await self._connector.conditional_batch(cql.replace, rows)

    async def _shown(self, cql: Statements, partition: bytes, cells: Sequence[Put]) -> frozenset[bytes]:
        """Return the rows whose cells show, of those that a batch wrote, and follow the nodes' clocks."""
        keys = [cell.row[len(partition) :] for cell in cells]
        values = {(key, cell.column): cell.value for key, cell in zip(keys, cells, strict=True)}
        shown = set()
        for key, column, value, stamp in await self._ask(
            cql.columns, (partition, keys, sorted({cell.column for cell in cells}))
        ):
            if values.get((bytes_in(key), bytes_in(column))) == value:
                self._clock.follow(stamp)
                shown.add(partition + bytes_in(key))
        return frozenset(shown)

    async def _replace(self, shape: Shape, cql: Statements, cell: Put, expected: bytes) -> bool:
        """Write a cell if its value is `expected` (empty: or if it is absent)."""
        before: bytes | None = expected or None
        for wait_s in backoff(FIRST_HIDDEN_S, LONGEST_HIDDEN_S, HIDDEN_TRIES):
            stored = await self._exchange(shape, cql, cell, before)
            if stored is not before and stored != before:
                if (stored or b"") != expected:
                    return False
                before = stored  # absent and empty are the same to the caller, but not to Cassandra
                continue
            if await self._shows(shape, cql, cell, before):
                self._count["cells_put"] += 1
                return True
            await trio.sleep(wait_s)
        raise _hidden(shape, cell)

    async def _exchange(self, shape: Shape, cql: Statements, cell: Put, before: bytes | None) -> bytes | None:
        """Write a cell if its value is `before` (None: absent). Return the value that it had."""
        partition = shape.partition(cell.row)
        rest = cell.row[len(partition) :]
        with _uncertain():
            [(applied, *found)] = await self._connector.ask(
                cql.replace, (cell.value, partition, rest, cell.column, before), conditional=True
            )
        if applied:
            return before
        return bytes_in(found[-1]) if found and found[-1] is not None else None

    async def _shows(self, shape: Shape, cql: Statements, cell: Put, before: bytes | None) -> bool:
        """Return whether a conditional write that was applied shows. If it does, follow the node's clock."""
        partition = shape.partition(cell.row)
        answer = await self._ask(cql.stored, (partition, cell.row[len(partition) :], [cell.column]))
        for _, _, value, stamp in answer:
            self._clock.follow(stamp)
            return value != before or value == cell.value
        return before is not None  # deleted by another process meanwhile


def bytes_in(value: Value) -> bytes:
    """Return the bytes that a row of an answer has."""
    assert isinstance(value, bytes)
    return value


@contextmanager
def _uncertain() -> Iterator[None]:
    """Say of an overloaded node that a write may have been executed: it must not be repeated blindly."""
    try:
        yield
    except StoreBusy as exc:
        raise StoreDown(f"a conditional write may or may not have been executed: {exc}") from bare(exc)


def _hidden(shape: Shape, cell: Put) -> StoreError:
    """Return the error of a write that does not show."""
    return StoreError(
        f"table {shape.name}: a write to row {cell.row.hex()} column {cell.column.hex()} is hidden by a write or "
        "delete with a later timestamp: check the clocks of all daemons and Cassandra nodes"
    )

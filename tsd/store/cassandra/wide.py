"""Parts of rows that may have millions of cells. Cassandra reads a range of a row's columns as fast as a small row."""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing

from tsd.store import Cell, Put
from tsd.store.cassandra.cells import rows_of
from tsd.store.cassandra.directory import Directory
from tsd.store.cassandra.keys import Shape, bounds
from tsd.store.cassandra.ranges import Ask, read_columns, read_range
from tsd.store.cassandra.schema import Statements
from tsd.store.retry import run_bounded
from tsd.store.timing import Latency, timed

CONCURRENT = 16  # requests of one call


class CassandraWideRows:
    """WideRows of the engine."""

    def __init__(
        self,
        table: Callable[[str], Awaitable[tuple[Shape, Statements]]],
        directory: Directory,
        ask: Ask,
        put: Callable[[str, Sequence[Put]], Awaitable[None]],
        latencies: Mapping[str, Latency],
    ) -> None:
        """`table` returns what a table is. `ask` executes a statement that may be repeated. `put` is the store's."""
        self._table = table
        self._directory = directory
        self._ask = ask
        self._put = put
        self.latencies = latencies

    @timed
    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows."""
        shape, cql = await self._table(table)
        found: dict[bytes, list[Cell]] = {}

        async def read(row: bytes) -> None:
            part = shape.partition(row)
            answer = await read_columns(self._ask, cql.slice, (part, row[len(part) :]), first, last)
            found.update((key, cells) for key, cells in rows_of(part, answer))

        wanted: Iterable[bytes] = (row for row in dict.fromkeys(rows) if row)
        await run_bounded(wanted, read, limit=CONCURRENT)
        return found

    @timed
    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows. Each row is a request: Cassandra would read all cells of rows to list them."""
        shape, cql = await self._table(table)
        found: list[bytes] = []
        if stop is not None and start >= stop:
            return found
        async with aclosing(self._directory.partitions(shape, start, stop)) as partitions:
            async for partition in partitions:
                low, high = bounds(partition, start, stop)
                while len(found) < limit and (high is None or low < high):
                    rows = rows_of(partition, await read_range(self._ask, cql, partition, (low, high), 1))
                    if not rows:
                        break
                    found.append(rows[0].key)
                    low = rows[0].key[len(partition) :] + b"\0"
                if len(found) >= limit:
                    break
        return found

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows. Cassandra keeps one version."""
        await self._put(table, cells)

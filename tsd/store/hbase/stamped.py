"""Calls on cells of many rows, each with a write timestamp of its own, through Thrift 1: a request for each timestamp.

Cells of one window have few timestamps, because a region server stamps the cells of a batch alike. A span is deleted as
the whole family of its row: HBase has no delete of a range of columns. One marker then stands for any number of cells,
and HBase drops these when it next writes a file.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from tsd.store import Cell, Put, StampedDelete, StampedPut, StampedSpan, Store
from tsd.store.hbase.calls import CONCURRENT_PARTS, GatewayCalls
from tsd.store.hbase.connection import Connection
from tsd.store.retry import run_bounded

WHOLE_CELLS = 32  # of a row: the column of an hour's points is as long as some cells, and is asked for once a row
GET_PLACES = 500  # rows times columns of one request: each row is asked for all columns of its request
SPAN_ROWS = 1000  # per request
KEY_ROWS = 10_000  # whose keys are read at once


class HBaseStamped:
    """StampedCells of the engine. Cells of a row with different timestamps are not written in one step."""

    def __init__(self, store: Store, calls: GatewayCalls[Connection]) -> None:
        self._store = store
        self._calls = calls
        self._families: dict[str, list[bytes]] = {}

    async def put(self, table: str, cells: Sequence[StampedPut]) -> None:
        """See StampedCells."""
        groups: dict[int, list[Put]] = {}
        for row, column, value, time_ms in cells:
            groups.setdefault(time_ms, []).append(Put(row, column, value))

        async def write(group: tuple[int, list[Put]]) -> None:
            await self._store.put(table, group[1], time_ms=group[0])

        await run_bounded(groups.items(), write, limit=CONCURRENT_PARTS)

    async def get(
        self, table: str, places: Collection[tuple[bytes, bytes]], *, row_cells: int = 0
    ) -> dict[bytes, list[Cell]]:
        """See StampedCells."""
        wanted: dict[bytes, set[bytes]] = {}
        for row, column in places:
            wanted.setdefault(row, set()).add(column)
        found: dict[bytes, list[Cell]] = {}

        async def read(part: tuple[list[bytes], set[bytes] | None]) -> None:
            rows, columns = part
            for row, cells in (await self._store.get(table, rows, columns=columns)).items():
                if chosen := [cell for cell in cells if cell.column in wanted[row]]:
                    found[row] = chosen

        if 0 < row_cells <= WHOLE_CELLS:
            await read((list(wanted), None))
        else:
            await run_bounded(_requests(wanted), read, limit=CONCURRENT_PARTS)
        return found

    async def delete(self, table: str, cells: Sequence[StampedDelete]) -> None:
        """See StampedCells."""
        groups: dict[int, dict[bytes, list[bytes]]] = {}
        for row, column, up_to_ms in cells:
            groups.setdefault(up_to_ms, {}).setdefault(row, []).append(column)

        async def remove(group: tuple[int, Mapping[bytes, Collection[bytes]]]) -> None:
            await self._store.delete(table, group[1], up_to_ms=group[0])

        await run_bounded(groups.items(), remove, limit=CONCURRENT_PARTS)

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        """See StampedCells. The family of each row is deleted."""
        groups: dict[tuple[int, bytes], list[bytes]] = {}
        for span in spans:
            groups.setdefault((span.up_to_ms, span.first.partition(b":")[0]), []).append(span.row)
        for (up_to_ms, family), rows in groups.items():
            await self._delete_families(table, rows, [family], up_to_ms)

    async def delete_rows(self, table: str, start: bytes, stop: bytes, *, up_to_ms: int) -> None:
        """See StampedCells. The keys of the rows are read, and each row gets a marker a family."""
        families = self._families.get(table)
        if families is None:
            families = self._families[table] = await self._calls.call(Connection.families, table)
        at = start
        while at < stop:
            keys = await self._calls.call(Connection.row_keys, table, at, stop, KEY_ROWS)
            await self._delete_families(table, keys, families, up_to_ms)
            if len(keys) < KEY_ROWS:
                return
            at = keys[-1] + b"\0"

    async def _delete_families(
        self, table: str, rows: Sequence[bytes], families: Sequence[bytes], up_to_ms: int
    ) -> None:
        parts = ((table, rows[at : at + SPAN_ROWS], families, up_to_ms) for at in range(0, len(rows), SPAN_ROWS))
        await self._calls.spread(Connection.delete_families, parts)


def _requests(wanted: Mapping[bytes, set[bytes]]) -> Iterator[tuple[list[bytes], set[bytes]]]:
    """Yield rows with columns that include theirs, few of each: rows with the same columns are together."""
    rows: list[bytes] = []
    columns: set[bytes] = set()
    for row, some in sorted(wanted.items(), key=lambda item: sorted(item[1])):
        both = columns | some
        if rows and (len(rows) + 1) * len(both) > GET_PLACES:
            yield rows, columns
            rows, both = [], some
        rows.append(row)
        columns = both
    if rows:
        yield rows, columns

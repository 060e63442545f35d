"""Wide rows of the embedded store: a read seeks to its first column."""

from collections.abc import Collection, Generator, Sequence

from tsd.store.cells import Cell, Put
from tsd.store.rocksdb.access import DatabaseAccess
from tsd.store.rocksdb.database import Database


class EmbeddedWideRows:
    """WideRows of the embedded store."""

    def __init__(self, access: DatabaseAccess) -> None:
        self._access = access

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows. All rows are from one snapshot."""

        def steps(database: Database) -> Generator[None, None, dict[bytes, list[Cell]]]:
            database.require(table)
            return database.view(table).between(rows, first, last)

        return await self._access.read_in_steps(steps)

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows. All keys are from one snapshot."""

        def steps(database: Database) -> Generator[None, None, list[bytes]]:
            database.require(table)
            return database.view(table, stop).row_keys(start, limit)

        return await self._access.read_in_steps(steps)

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows. A cell has one version."""
        await self._access.put(table, cells, None)

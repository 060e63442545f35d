"""Wide rows of the embedded store: a read seeks to its first column."""

from collections.abc import Callable, Collection, Generator, Sequence
from typing import Protocol, TypeVar

from tsd.store.cells import Cell, Put
from tsd.store.rocksdb.database import Database

T = TypeVar("T")


class Engine(Protocol):
    """The store, as far as these calls need it."""

    async def read_in_steps(self, steps: Callable[[Database], Generator[None, None, T]]) -> T:
        """Run a generator on the database, with other tasks between its steps. Raise StoreError."""

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""


class EmbeddedWideRows:
    """WideRows of the embedded store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def get_between(
        self, table: str, rows: Collection[bytes], first: bytes, last: bytes
    ) -> dict[bytes, list[Cell]]:
        """See WideRows. All rows are from one snapshot."""

        def steps(database: Database) -> Generator[None, None, dict[bytes, list[Cell]]]:
            database.require(table)
            return database.view(table).between(rows, first, last)

        return await self._engine.read_in_steps(steps)

    async def row_keys(self, table: str, start: bytes, stop: bytes | None, *, limit: int) -> list[bytes]:
        """See WideRows. All keys are from one snapshot."""

        def steps(database: Database) -> Generator[None, None, list[bytes]]:
            database.require(table)
            return database.view(table, stop).row_keys(start, limit)

        return await self._engine.read_in_steps(steps)

    async def replace(self, table: str, cells: Sequence[Put]) -> None:
        """See WideRows. A cell has one version."""
        await self._engine.put(table, cells)

"""Read and write HBase's tables with happybase through Thrift, independently of the product's stores.

Every call opens its own connection, so that none is left when a test stops the gateway.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import happybase  # noqa: TID251 (the judge must not be the code it judges)

Cells = dict[bytes, bytes]  # value by column, family:qualifier


class Tables(NamedTuple):
    """Names of the tables of one OpenTSDB. Meta and tree tables are optional unless its settings use them."""

    data: str
    uid: str
    meta: str = "tsdb-meta"
    tree: str = "tsdb-tree"


FAMILIES = {"data": ["t"], "uid": ["id", "name"], "meta": ["name"], "tree": ["t"]}


class Hbase:
    """The tables of a Thrift gateway. Rows and columns are bytes, names of tables are text."""

    def __init__(self, host: str, port: int) -> None:
        self._gateway = (host, port)

    def tables(self) -> list[str]:
        """Return the names of all tables."""
        with self._connection() as connection:
            return [name.decode() for name in connection.tables()]

    def create(self, table: str, families: Iterable[str]) -> None:
        """Create a table with families that keep one version: HBase's default, but not Thrift's."""
        with self._connection() as connection:
            connection.create_table(table, {name: {"max_versions": 1, "bloom_filter_type": "ROW"} for name in families})

    def versions(self, table: str) -> dict[bytes, int]:
        """Return how many versions each family of a table keeps."""
        with self._connection() as connection:
            families = connection.table(table).families()
            return {name.rstrip(b":"): family["max_versions"] for name, family in families.items()}

    def drop(self, table: str) -> None:
        """Disable and delete a table."""
        with self._connection() as connection:
            connection.delete_table(table, disable=True)

    def rows(self, table: str) -> dict[bytes, Cells]:
        """Return all rows of a table in order."""
        return {
            row: {column: value for column, (value, _) in cells.items()} for row, cells in self.timed(table).items()
        }

    def timed(
        self, table: str, start: bytes | None = None, stop: bytes | None = None
    ) -> dict[bytes, dict[bytes, tuple[bytes, int]]]:
        """Return all rows of a table, or those from `start` to before `stop`, in order. Each cell has its HBase
        timestamp in ms."""
        with self._connection() as connection:
            return dict(connection.table(table).scan(start, stop, include_timestamp=True))

    def put(self, table: str, row: bytes, cells: Mapping[bytes, bytes], *, time_ms: int | None = None) -> None:
        """Write cells of one row; without a time, with HBase's own."""
        with self._connection() as connection:
            connection.table(table).put(row, cells, timestamp=time_ms)

    def put_all(self, table: str, rows: Mapping[bytes, Cells], *, time_ms: int) -> None:
        """Write cells of many rows with one time."""
        with (
            self._connection() as connection,
            connection.table(table).batch(timestamp=time_ms, batch_size=1000) as batch,
        ):
            for row, cells in rows.items():
                batch.put(row, cells)

    def delete(self, table: str, row: bytes, columns: Iterable[bytes] | None = None) -> None:
        """Delete columns of a row, or the whole row."""
        with self._connection() as connection:
            connection.table(table).delete(row, None if columns is None else list(columns))

    @contextmanager
    def _connection(self) -> Iterator[Any]:
        connection = happybase.Connection(*self._gateway, timeout=60_000)
        try:
            yield connection
        finally:
            connection.close()

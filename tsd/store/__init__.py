"""Cells by table, row and column: what every engine offers, and what the rest of the daemon may ask of it.

Nothing here knows points, metrics or UIDs. A column is `family:qualifier`, as HBase spells it; rows and, within a row,
columns are ordered as unsigned bytes. Each cell carries the time of its write, in ms, and a cell holds its newest value
only.
"""

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol


class Cell(NamedTuple):
    """One stored cell of a row."""

    column: bytes
    value: bytes
    time_ms: int  # when the store took it


class Row(NamedTuple):
    """A row and its cells, in order of their columns; never without cells."""

    key: bytes
    cells: list[Cell]


class Put(NamedTuple):
    """One cell to be written."""

    row: bytes
    column: bytes
    value: bytes


class Page(NamedTuple):
    """A part of a scan: whole rows in order, and where the next part starts (None: there is none)."""

    rows: list[Row]
    next_start: bytes | None


class Family(NamedTuple):
    """A column family as OpenTSDB's own table script makes it. Engines without such settings leave them out."""

    name: bytes
    versions: int = 1
    bloom: str = "ROW"


class Table(NamedTuple):
    """A table to be made."""

    name: str
    families: tuple[Family, ...]


class Store(Protocol):
    """A store of cells. Every call but `increment` may be repeated without harm; one row's cells of one `put` land
    together or not at all, and nothing is promised across rows. Any call may raise StoreError: StoreBusy where the
    store asks for less, StoreDown where it gave no usable answer. A table that is not there is a StoreError too, and so
    is a cell that HBase would not take: its row has 1 to 32767 bytes, its column names a family of the table.
    """

    async def create_tables(self, tables: Sequence[Table], *, compression: str = "NONE") -> list[str]:
        """Make those that are absent; their names. Existing ones are left as they are."""
        ...

    async def tables(self) -> list[str]:
        """Names of the tables there are."""
        ...

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        """The cells of those `rows` that exist, in order of their columns; all columns unless some are named."""
        ...

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """Write cells, those of one row beside each other. Without `time_ms` the store's clock stamps them, and no cell
        of an earlier call, one that has returned, has as late a stamp: where a point stands in two cells, the stamps
        tell which is the newer. (In HBase only the region server's clock, set back, can break that.)

        A cell that is there with a later time stays; of two writes at the same time the later one stands.
        """
        ...

    async def delete(self, table: str, columns: Mapping[bytes, Collection[bytes]], *, up_to_ms: int | None) -> None:
        """Delete the named columns of each row where they are no newer than `up_to_ms` (None: than the store's present,
        which spares cells that were put with a time in the future).

        A later put with a time of its own up to that may stay hidden: in HBase it does, elsewhere it does not.
        """
        ...

    async def page(
        self,
        table: str,
        start: bytes,
        stop: bytes | None,
        *,
        limit: int,
        columns: Collection[bytes] | None = None,
    ) -> Page:
        """The first rows from `start` to before `stop` (None: the table's end), `limit` at most; where `columns` are
        named, only those cells, and rows without any are passed over. A page may hold fewer rows than `limit`, even
        none, with more to come: only `next_start` tells."""
        ...

    async def check_and_put(
        self, table: str, row: bytes, column: bytes, value: bytes, *, expected: bytes | None
    ) -> bool:
        """Write a cell if it now holds `expected` (None: if it is absent), in one atomic step; whether that was so. A
        cell with an empty value counts as absent, here and in `create`: so it is in HBase.

        After StoreDown the caller does not know which: it reads the cell, and finds its own value or another's.
        """
        ...

    async def create(self, table: str, cells: Sequence[Put]) -> list[bool]:
        """Write each cell (of different rows) if it is absent, in one atomic step a cell; which of them were. Durable
        on return.

        After StoreDown the caller does not know which: it reads the cells, and finds its own values or others'.
        """
        ...

    async def increment(self, table: str, row: bytes, column: bytes, by: int) -> int:
        """Add to an 8-byte signed counter (absent: 0), in one atomic step; the sum, which wraps around. StoreError for
        a cell of another length. The one call that must not be repeated blindly: a lost answer may have counted."""
        ...

    async def sync(self) -> None:
        """Return once everything put so far survives a crash of the machine."""
        ...

    async def aclose(self) -> None:
        """Give back what is held. No call may follow."""
        ...

    def statistics(self) -> Mapping[str, int]:
        """Counters since the start, by name."""
        ...


async def scan(
    store: Store,
    table: str,
    start: bytes = b"",
    stop: bytes | None = None,
    *,
    limit: int = 1000,
    columns: Collection[bytes] | None = None,
) -> AsyncGenerator[list[Row], None]:
    """The rows from `start` to before `stop`, page by page, no page empty. Each page is read when it is asked for, so
    rows that change meanwhile show as they then are."""
    at: bytes | None = start
    while at is not None:
        page = await store.page(table, at, stop, limit=limit, columns=columns)
        if page.rows:
            yield page.rows
        at = page.next_start

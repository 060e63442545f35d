"""Cells of several versions: each has a time of its own, and reads select a range of times.

A column of such a table has one value for each time. Times are Unix milliseconds from 0 to before END_MS. They need not
be those of the writes: a table may use the times of its points.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

from tsd.store.cells import Cell, Page, Table

END_MS = 9 * 10**15  # above every time: a third of a million years; Bigtable has microseconds in 63 bits
UNBOUNDED = 2**31 - 1  # `Family.versions` of a family that keeps all versions


class VersionPut(NamedTuple):
    """One version of a cell to write."""

    row: bytes
    column: bytes
    value: bytes
    time_ms: int


class Wanted(NamedTuple):
    """Which versions a read returns."""

    since_ms: int = 0
    until_ms: int = END_MS  # exclusive
    versions: int | None = None  # the newest so many of each column within the range; None: all
    columns: Collection[bytes] | None = None  # None: all


ALL = Wanted()


class VersionedCells(Protocol):
    """Tables whose cells keep versions. They are apart from the other tables of the store, and have other names.

    Every call may be repeated. Cells of a row are in order of columns; those of a column follow each other, the newest
    first. A family keeps the newest `Family.versions` values of a column: writing an older one then changes nothing.
    Where `Capabilities.keeps_versions`, a deleted version may hide one of the same time or an older one that is written
    later. `Store.sync` makes earlier puts durable. Any call may raise StoreError.
    """

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """Create the missing tables and return their names. Existing ones are not changed."""
        ...

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """Write versions. One with the column and the time of a stored one replaces it; of several in one call the last
        one is kept. If the call fails, some of them may be written. Raise InvalidCell for a time out of range."""
        ...

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """Return the wanted cells of each row that has any."""
        ...

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """Return up to `limit` rows with wanted cells, from `start` to before `stop` (None: the end of the table). A
        page may end early: only `next_start` shows whether the range has ended."""
        ...

    async def delete(self, table: str, row: bytes, columns: Collection[bytes], *, until_ms: int = END_MS) -> None:
        """Delete the versions of some columns whose times are before `until_ms`."""
        ...

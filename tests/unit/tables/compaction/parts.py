"""A store with a table of rows, and compactors on it."""

from collections.abc import Iterable

from tests.unit.codec.codec_rows import cells, show
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import MergeRules
from tsd.codec.opentsdb.row import data_cells
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.errors import CorruptRow
from tsd.store import Family, Put, Store, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.compaction.compactor import RowCompactor
from tsd.tables.opentsdb.data_table import DataTable

TABLE = "tsdb"
NOW_MS = 10**12
NEWEST = MergeRules(fix_duplicates=True)


def key(base: int, series: int = 1, *, metric: int = 1) -> bytes:
    """The row of an hour of a series."""
    return row_key(KeyLayout(), metric.to_bytes(3, "big"), base, b"\0\0\1" + series.to_bytes(3, "big"))


async def made(rows: dict[bytes, str]) -> MemoryStore:
    """A store that holds rows, written as tests/unit/codec/codec_rows.py has them."""
    store = MemoryStore(lambda: NOW_MS)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    for row, text in rows.items():
        for cell in cells(text):
            await store.put(TABLE, [Put(row, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)
    return store


def compactor(
    store: Store,
    *,
    rules: MergeRules = NEWEST,
    corrupt: list[CorruptRow] | None = None,
    settle_ms: int = 0,
    dry: bool = False,
    layout: KeyLayout = KeyLayout(),  # noqa: B008
) -> RowCompactor:
    """One whose wall clock stands."""
    errors = [] if corrupt is None else corrupt
    return RowCompactor(
        DataTable(store, TABLE, layout), rules, lambda: NOW_MS, errors.append, settle_ms=settle_ms, dry=dry
    )


async def shown(store: Store, rows: Iterable[bytes]) -> list[str]:
    """What rows hold now."""
    found = await store.get(TABLE, list(rows))
    return [show(data_cells(found.get(row, ()))) for row in rows]

"""Scans of ranges of rows: all pages in order, and large ranges in several parts at once."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from tsd.codec.opentsdb.rowkey import LAST_BASE, KeyLayout, base_bytes
from tsd.codec.putline import HOUR_S
from tsd.errors import StoreDown
from tsd.store import CellPage, Cursor, Family, Put, Table, cells_of_rows, scan
from tsd.store.cells import prefix_end
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.scan import KeyRange, read_ranges, scan_parts

BASE_S, METRIC, LARGE = 1_356_998_400, b"\0\0\1", 100_000
SALTED = KeyLayout(salt_width=1, salt_buckets=2)
FEW = 4  # ranges at once


class PagedStore(MemoryStore):
    """A store that reads cells page by page, as one in another process does."""

    def __init__(self) -> None:
        super().__init__(lambda: 1)
        self.reading = self.most = 0  # calls now, and at once
        self.failing: bytes | None = None  # pages that start later

    @property
    def cell_reader(self) -> "PagedStore":
        return self

    async def read_cells(
        self, table: str, start: bytes, stop: bytes | None, *, limit_bytes: int, cursor: Cursor
    ) -> CellPage:
        self.reading += 1
        self.most = max(self.most, self.reading)
        await wait_all_tasks_blocked()  # until all others that can read do
        self.reading -= 1
        if self.failing is not None and start >= self.failing:
            raise StoreDown("no answer")
        rows, size = [], 0
        found = await self.page(table, start, stop, limit=1000)
        for row in found.rows:
            rows.append(row)
            size += sum(len(cell.value) for cell in row.cells)
            if size >= limit_bytes:
                break
        return cells_of_rows(rows, found.next_start if len(rows) == len(found.rows) else rows[-1].key + b"\0")

    async def close_cursor(self, table: str, cursor: Cursor) -> None:
        pass


async def filled(layout: KeyLayout, bases_s: Sequence[int], rows: int) -> PagedStore:
    """A store with so many large rows in each hour."""
    store = PagedStore()
    await store.create_tables([Table("t", (Family(b"t"),))])
    salts = [bytes([salt]) for salt in range(layout.salt_buckets)] if layout.salt_width else [b""]
    keys = [salt + METRIC + base_bytes(base_s) + bytes([row]) for salt in salts for base_s in bases_s
            for row in range(rows)]  # fmt: skip
    await store.put("t", [Put(key, b"t:", bytes(LARGE)) for key in keys])
    return store


async def stored(store: PagedStore) -> list[bytes]:
    """The keys of all rows, in order."""
    return [row.key async for rows in scan(store, "t") for row in rows]


def hours(count: int) -> list[int]:
    return [BASE_S + hour * HOUR_S for hour in range(count)]


async def taken(store: PagedStore, ranges: Sequence[KeyRange], layout: KeyLayout | None, parallel: int) -> list[bytes]:
    """The keys of all rows, in the order in which they are taken."""
    found: list[bytes] = []

    async def take(page: CellPage) -> None:
        await trio.lowlevel.checkpoint()
        found.extend(page.keys)

    await read_ranges(store, "t", ranges, take, parallel=parallel, hours_of=layout)
    return found


@pytest.mark.parametrize("parallel", [1, FEW])
@pytest.mark.parametrize("rows", [1, 10, 30], ids=["small hours", "half pages", "large hours"])
@pytest.mark.parametrize("layout", [KeyLayout(), SALTED], ids=["plain", "salted"])
async def test_rows_are_taken_once_and_in_order(layout: KeyLayout, rows: int, parallel: int) -> None:
    store = await filled(layout, hours(9), rows)
    salts = [b"\0", b"\1"] if layout.salt_width else [b""]
    bounds = [BASE_S - HOUR_S, BASE_S + 2 * HOUR_S, BASE_S + 20 * HOUR_S]
    ranges = [
        KeyRange(salt + METRIC + base_bytes(start), salt + METRIC + base_bytes(stop))
        for salt in salts
        for start, stop in pairwise(bounds)
    ]
    assert await taken(store, ranges, layout, parallel) == await stored(store)


@pytest.mark.parametrize("stop", [None, prefix_end(METRIC + base_bytes(LAST_BASE))], ids=["table's end", "last hour"])
async def test_ranges_up_to_the_last_hour_are_read(stop: bytes | None) -> None:
    bases_s = [LAST_BASE // HOUR_S * HOUR_S - hour * HOUR_S for hour in range(3, -1, -1)]
    store = await filled(KeyLayout(), bases_s, 30)
    assert await taken(store, [KeyRange(METRIC, stop)], KeyLayout(), FEW) == await stored(store)


async def test_parts_of_a_large_range_are_read_at_once() -> None:
    store = await filled(KeyLayout(), hours(12), 30)
    await taken(store, [KeyRange(METRIC, prefix_end(METRIC))], KeyLayout(), FEW)
    assert store.most >= FEW


async def test_error_in_a_part_is_raised() -> None:
    store = await filled(KeyLayout(), hours(12), 30)
    store.failing = METRIC + base_bytes(BASE_S + 9 * HOUR_S)
    with pytest.raises(StoreDown):
        await taken(store, [KeyRange(METRIC, prefix_end(METRIC))], KeyLayout(), FEW)


@pytest.mark.parametrize("hours", [720, 500_000])
def test_a_salted_table_is_read_with_as_many_filtered_scans_as_another(hours: int) -> None:
    assert SALTED.salt_buckets * scan_parts(SALTED, hours, FEW, "pattern") == scan_parts(
        KeyLayout(), hours, FEW, "pattern"
    )

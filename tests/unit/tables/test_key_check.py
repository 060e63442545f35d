"""Whether settings of the salt fit stored row keys: wrong ones are found, and damaged or foreign rows prove nothing."""

from collections.abc import Iterable

import pytest

from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.errors import NoTable, UnfitSettings
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.key_check import KeyCheck
from tsd.tables.opentsdb.uids import Uids

DATA, NAMES = "tsdb", "tsdb-uid"
HOUR = 1356998400
TABLES = [Table(DATA, (Family(b"t"),)), Table(NAMES, (Family(ID_FAMILY), Family(NAME_FAMILY)))]
PLAIN, SALTED = KeyLayout(), KeyLayout(salt_width=1)


async def made(layout: KeyLayout, *, metrics: int = 3, hosts: int = 40, others: KeyLayout | None = None) -> MemoryStore:
    """Return a store with rows of each metric and host. Those of later hours have the salts of `others`."""
    store = MemoryStore(lambda: 1)
    await store.create_tables(TABLES)
    uids = Uids(store, NAMES, layout.widths)
    names = {Kind.METRIC: metrics, Kind.TAGK: 1, Kind.TAGV: hosts}
    found = {kind: await uids.find_or_assign(kind, [b"n%d" % n for n in range(most)]) for kind, most in names.items()}
    [tagk] = _bytes(found[Kind.TAGK].values())
    await put(store, [
        row_key(one, metric, HOUR + 3600 * hour, join_pairs([(tagk, tagv)]))
        for metric in _bytes(found[Kind.METRIC].values()) for tagv in _bytes(found[Kind.TAGV].values())
        for hour, one in enumerate([layout] * 3 + [others] * 3) if one is not None
    ])  # fmt: skip
    return store


def _bytes(found: Iterable[object]) -> list[bytes]:
    return [uid for uid in found if isinstance(uid, bytes)]


async def put(store: MemoryStore, keys: Iterable[bytes]) -> None:
    await store.put(DATA, [Put(key, b"t:\0\0", b"\1") for key in keys])


async def check(store: MemoryStore, layout: KeyLayout) -> None:
    await KeyCheck(DataTable(store, DATA, layout), Uids(store, NAMES, layout.widths)).check()


@pytest.mark.parametrize("width", range(9))
@pytest.mark.parametrize("widths", [Widths(), Widths(4, 4, 4), Widths(1, 1, 1)])
async def test_other_width_of_the_salt_is_found(width: int, widths: Widths) -> None:
    store = await made(KeyLayout(widths, width))
    await check(store, KeyLayout(widths, width))
    for wrong in set(range(9)) - {width}:
        with pytest.raises(UnfitSettings, match=rf"tsd\.storage\.salt\.width = {width} .* {wrong}, as it is set"):
            await check(store, KeyLayout(widths, wrong))


@pytest.mark.parametrize(("stored", "wrong"), [(20, 10), (20, 40), (5, 20), (7, 8), (1, 20)])
async def test_other_number_of_salts_is_found(stored: int, wrong: int) -> None:
    store = await made(KeyLayout(salt_width=1, salt_buckets=stored))
    await check(store, KeyLayout(salt_width=1, salt_buckets=stored))
    with pytest.raises(UnfitSettings, match=rf"tsd\.storage\.salt\.buckets = {stored}\b.* {wrong}, as it is set"):
        await check(store, KeyLayout(salt_width=1, salt_buckets=wrong))


@pytest.mark.parametrize(("stored", "wrong"), [(20, 10), (40, 20), (20, 40)])
async def test_other_number_of_salts_is_found_in_a_large_table(stored: int, wrong: int) -> None:
    """Regression: the rows that were read had low salts, which fit a divisor of the number, too."""
    store = await made(KeyLayout(salt_width=1, salt_buckets=stored), hosts=1000)
    with pytest.raises(UnfitSettings, match=rf"tsd\.storage\.salt\.buckets = {stored}, .* {wrong}, as it is set"):
        await check(store, KeyLayout(salt_width=1, salt_buckets=wrong))


@pytest.mark.parametrize(("before", "after"), [(20, 40), (20, 30), (10, 20)])
async def test_larger_number_of_salts_than_once_fits(before: int, after: int) -> None:
    """Regression: rows with low salts were those of the smaller number. Queries read all salts, and find both."""
    grown = KeyLayout(salt_width=1, salt_buckets=after)
    store = await made(KeyLayout(salt_width=1, salt_buckets=before), hosts=1000, others=grown)
    await check(store, grown)


async def test_very_large_number_of_salts_fits() -> None:
    """Regression: its divisors were taken for the number of salts."""
    layout = KeyLayout(salt_width=3, salt_buckets=100_000)
    await check(await made(layout), layout)


async def test_salt_is_found_behind_global_annotations() -> None:
    """Their keys have no tags, and are the first of a table."""
    store = await made(SALTED)
    await put(store, [bytes(4) + (HOUR + 3600 * hour).to_bytes(4, "big") for hour in range(1000)])
    with pytest.raises(UnfitSettings):
        await check(store, PLAIN)


@pytest.mark.parametrize("layout", [PLAIN, SALTED, KeyLayout(salt_width=8)])
async def test_damaged_and_foreign_rows_fit_all_settings(layout: KeyLayout) -> None:
    store = MemoryStore(lambda: 1)
    await store.create_tables(TABLES)
    await check(store, layout)
    await put(store, [b"web%02d/cpu" % n for n in range(50)])
    await put(store, [row_key(PLAIN, b"\0\0\1", HOUR, bytes((0, 0, 1, 0, 0, n))) for n in range(50)])  # without names
    await check(store, layout)


async def test_rows_that_fit_are_enough_among_others() -> None:
    """The salt was changed once: both settings were in use."""
    store = await made(PLAIN)
    other = await made(SALTED)
    await put(store, [row.key for row in (await other.page(DATA, b"", None, limit=100)).rows])
    await check(store, PLAIN)
    await check(store, SALTED)
    wrong = row_key(SALTED, b"\0\0\1", HOUR, bytes((0, 0, 1, 0, 0, 1)))
    await put(other, [bytes((wrong[0] ^ 1,)) + wrong[1:]])
    await check(other, KeyLayout(salt_width=1, salt_buckets=5))


async def test_missing_table_is_no_answer() -> None:
    with pytest.raises(NoTable):
        await check(MemoryStore(lambda: 1), PLAIN)

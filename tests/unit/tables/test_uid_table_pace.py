"""How long UIDs will do, from the write times of their names."""

import pytest

from tests.flaky_store import FlakyStore
from tsd.codec.names import Kind, Widths
from tsd.codec.opentsdb.uid import (
    COUNTER_ROW,
    ID_FAMILY,
    NAME_FAMILY,
    encode_counter,
    encode_uid,
    id_column,
    name_column,
)
from tsd.errors import CorruptRow
from tsd.store import Family, Put, Table
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.uid_table import DAY_MS, UidUsage, usages

TABLE = "tsdb-uid"
NOW_MS = 1000 * DAY_MS
AGES = {Kind.METRIC: [0.5, 3, 5, 20, 400], Kind.TAGK: [], Kind.TAGV: [0.1, 0.2]}  # of the names, in days


async def made() -> FlakyStore:
    store = FlakyStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables([Table(TABLE, (Family(ID_FAMILY), Family(NAME_FAMILY)))])
    for kind, ages in AGES.items():
        for number, age in enumerate(ages, 1):
            put = Put(encode_uid(number, 1), name_column(kind), b"name%d" % number)
            await store.put(TABLE, [put], time_ms=NOW_MS - round(age * DAY_MS))
    await store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.METRIC), encode_counter(13))])
    await store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.TAGV), encode_counter(255))])
    return store


async def test_report_has_used_uids_and_time_until_exhaustion() -> None:
    metrics, tagks, tagvs = await usages(await made(), TABLE, Widths(1, 2, 1), NOW_MS)
    assert metrics == UidUsage(Kind.METRIC, 255, 13, 5, NOW_MS - 400 * DAY_MS, {1: 1, 7: 3, 30: 4}, NOW_MS)
    assert (metrics.left, metrics.per_day, metrics.days_left) == (242, 3 / 7, pytest.approx(242 * 7 / 3))
    assert (tagks.used, tagks.left, tagks.per_day, tagks.days_left) == (0, 65535, 0, None)
    assert (tagvs.named, tagvs.left, tagvs.per_day, tagvs.days_left) == (2, 0, 2, 0)  # of one day, it is no older


async def test_random_uids_are_counted_by_their_names() -> None:
    metrics, _, tagvs = await usages(await made(), TABLE, Widths(1, 2, 1), NOW_MS, random_metrics=True)
    assert (metrics.used, tagvs.used) == (5, 255)


async def test_invalid_counter_is_reported() -> None:
    store = await made()
    await store.put(TABLE, [Put(COUNTER_ROW, id_column(Kind.TAGK), b"7")])
    with pytest.raises(
        CorruptRow, match=f"^UID table {TABLE}: a UID counter has 8 bytes, got 1: 37: run tsd uid fsck$"
    ):
        await usages(store, TABLE, Widths(), NOW_MS)

"""The index of series, and what it remembers of what it read."""

from tsd.codec.rowkey import Layout
from tsd.series_index import SeriesIndex
from tsd.store import Family, Table
from tsd.store.memory import MemoryStore

TABLE = "series"
METRIC = b"\0\0\1"
HOST_A, HOST_B, CPU_0 = b"\0\0\1\0\0\1", b"\0\0\1\0\0\2", b"\0\0\2\0\0\3"


async def test_what_is_entered_shows_though_answers_are_remembered() -> None:
    store = MemoryStore(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, Layout())
    await index.add([(METRIC, HOST_A)])
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A]
    await index.add([(METRIC, HOST_A + CPU_0), (METRIC, HOST_B)])
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A, HOST_A + CPU_0]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A, HOST_A + CPU_0, HOST_B]
    assert await index.with_tag(METRIC, b"", 2) is None
    assert await index.with_tag(METRIC, HOST_B, 0) is None

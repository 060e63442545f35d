"""The index of series: what is entered is found, once, and what it remembers of what it read."""

import random
from collections.abc import Sequence

import pytest

from tsd.codec.rowkey import Layout
from tsd.errors import StoreDown
from tsd.series_entries import ALONE, OWN, PRESENT
from tsd.series_index import DONE, FIRST, STATE_ROW, SeriesIndex
from tsd.store import Cell, Family, Put, Table, scan
from tsd.store.memory import MemoryStore

TABLE = "series"
METRIC = b"\0\0\1"
HOST_A, HOST_B, CPU_0 = b"\0\0\1\0\0\1", b"\0\0\1\0\0\2", b"\0\0\2\0\0\3"


async def a_store() -> MemoryStore:
    store = MemoryStore(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    return store


async def entries(store: MemoryStore) -> int:
    """How many there are."""
    return sum([len(row.cells) async for rows in scan(store, TABLE) for row in rows if row.key != STATE_ROW])


async def test_what_is_entered_shows_though_answers_are_remembered() -> None:
    index = SeriesIndex(await a_store(), TABLE, Layout())
    await index.add({METRIC: [HOST_A]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A]
    await index.add({METRIC: [HOST_A + CPU_0, HOST_B]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A, HOST_A + CPU_0]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A, HOST_A + CPU_0, HOST_B]
    assert await index.with_tag(METRIC, b"", 2) is None
    assert await index.with_tag(METRIC, HOST_B, 0) is None


@pytest.mark.parametrize("seed", range(3))
async def test_series_are_found_by_each_tag_however_they_were_entered(seed: int) -> None:
    chance = random.Random(seed)
    store = await a_store()
    tags = [[tagk.to_bytes(3, "big") + tagv.to_bytes(3, "big") for tagv in range(1, 4)] for tagk in range(1, 4)]
    every = [
        b"".join(chance.sample(some, 1)[0] for some in chance.sample(tags, 3)[: chance.randint(1, 3)])
        for _ in range(40)
    ]
    known: set[bytes] = set()
    while len(known) < len(set(every)):
        index = SeriesIndex(store, TABLE, Layout())  # as after a start
        some = chance.sample(every, 5)
        await index.add({METRIC: some})
        known.update(some)
        before = await entries(store)
        await index.add({METRIC: chance.sample(sorted(known), len(known))})
        assert await entries(store) == before  # nobody is entered twice
        for pair in chance.sample([b"", *(pair for some in tags for pair in some)], 3):
            wanted = sorted(one for one in known if pair in {b"", *(one[at : at + 6] for at in range(0, len(one), 6))})
            assert await index.with_tag(METRIC, pair, 99) == wanted


class Failing(MemoryStore):
    """Takes so many more puts."""

    left = 1 << 30

    async def put(self, table: str, cells: Sequence[Put], *, time_ms: int | None = None) -> None:
        """See Store."""
        if not self.left:
            raise StoreDown("gone")
        self.left -= 1
        await super().put(table, cells, time_ms=time_ms)


@pytest.mark.parametrize("puts", [0, 1])
async def test_what_breaks_off_in_the_middle_is_entered_again_whole(puts: int) -> None:
    store = Failing(lambda: 1)
    await store.create_tables([Table(TABLE, (Family(b"t"),))])
    index = SeriesIndex(store, TABLE, Layout())
    store.left = puts
    with pytest.raises(StoreDown):
        await index.add({METRIC: [HOST_A + CPU_0, HOST_B + CPU_0]})
    store.left = 1 << 30
    await index.add({METRIC: [HOST_B + CPU_0]})  # who came first then, by himself
    await index.add({METRIC: [HOST_A + CPU_0, HOST_B + CPU_0]})
    for pair in (b"", CPU_0):
        assert await index.with_tag(METRIC, pair, 2) == [HOST_A + CPU_0, HOST_B + CPU_0]


async def test_an_index_of_an_older_version_is_read_on_and_not_taken_for_complete_by_it_any_more() -> None:
    store = await a_store()
    one, other = HOST_A + CPU_0, HOST_B + CPU_0
    older = [Put(METRIC + pair + one, ALONE, PRESENT) for pair in (bytes(6), HOST_A, CPU_0)]
    await store.put(TABLE, [*older, Put(STATE_ROW, DONE, FIRST)])
    index = SeriesIndex(store, TABLE, Layout())
    assert await index.complete()
    assert await done(store) != FIRST
    await index.add({METRIC: [one, other]})
    for pair in (b"", CPU_0):
        assert await index.with_tag(METRIC, pair, 2) == [one, other]
    assert await index.with_tag(METRIC, HOST_A, 1) == [one]


async def test_the_first_series_that_is_entered_ends_what_an_older_version_believes() -> None:
    store = await a_store()
    await store.put(TABLE, [Put(STATE_ROW, DONE, FIRST)])
    await SeriesIndex(store, TABLE, Layout()).add({METRIC: [HOST_A]})
    assert await done(store) != FIRST
    assert await SeriesIndex(store, TABLE, Layout()).complete()


async def done(store: MemoryStore) -> bytes:
    """What says that it is complete."""
    [cell] = (await store.get(TABLE, [STATE_ROW], columns=[DONE]))[STATE_ROW]
    return cell.value


async def test_what_another_entered_shows_once_it_is_entered_here_too() -> None:
    store = await a_store()
    index, other = (SeriesIndex(store, TABLE, Layout()) for _ in range(2))
    assert await index.with_tag(METRIC, HOST_A, 9) == []
    await other.add({METRIC: [HOST_A]})
    await index.add({METRIC: [HOST_A]})
    assert await index.with_tag(METRIC, HOST_A, 9) == [HOST_A]
    assert await index.with_tag(METRIC, b"", 9) == [HOST_A]


async def test_filled_anew_it_has_again_what_was_lost_of_it() -> None:
    """However it was: a log that was damaged in its middle, a backup of no one moment."""
    store = await a_store()
    await store.create_tables([Table("data", (Family(b"t"),))])
    series = [HOST_A + CPU_0, HOST_B + CPU_0]
    await store.put("data", [Put(METRIC + bytes(4) + one, b"t:\0\0", b"\1") for one in series])
    index = SeriesIndex(store, TABLE, Layout())
    await index.add({METRIC: series})
    own = {row.key for row in [row async for rows in scan(store, TABLE) for row in rows] if OWN in _columns(row.cells)}
    async for rows in scan(store, TABLE):
        for row in rows:
            if row.key not in own | {STATE_ROW}:
                await store.delete(TABLE, {row.key: _columns(row.cells)}, up_to_ms=None)
    assert await SeriesIndex(store, TABLE, Layout()).with_tag(METRIC, b"", 9) == []
    await index.outdate()
    assert await index.rebuild("data") == 2
    found = SeriesIndex(store, TABLE, Layout())
    assert await found.complete()
    for pair in (b"", CPU_0):
        assert await found.with_tag(METRIC, pair, 9) == series


def _columns(cells: Sequence[Cell]) -> list[bytes]:
    return [cell.column for cell in cells]

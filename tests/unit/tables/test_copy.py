"""A whole store into another one that fails at every step, and is run again."""

import random
from pathlib import Path

import pytest

from tests.wavering import Fault, WaveringStore
from tsd.copying.checkpoint import Checkpoint, Mark
from tsd.copying.house import House, Pair, copy_house
from tsd.copying.rows import Copied
from tsd.errors import StoreDown, StoreError
from tsd.store import Family, Put, Row, Table
from tsd.store.memory import MemoryStore

TABLES = [
    Table("tsdb", (Family(b"t"),)),
    Table("tsdb-uid", (Family(b"id"), Family(b"name"))),
    Table("tsdb-meta", (Family(b"name"),)),
]
UID, DATA, META = Pair("tsdb-uid", "tsdb-uid"), Pair("tsdb", "tsdb"), Pair("tsdb-meta", "tsdb-meta")
STEPS = 40  # more calls than a copy of the small store takes
DONE = Copied(rows=12, cells=21, put=21)


async def empty() -> MemoryStore:
    """A store with tables."""
    store = MemoryStore(lambda: 1)
    await store.create_tables(TABLES)
    return store


async def filled() -> MemoryStore:
    """A store with a few cells of each table, at times of their own."""
    store, chance = await empty(), random.Random(1)
    names = [Put(b"sys.cpu", b"id:metrics", b"\0\0\1"), Put(b"\0\0\1", b"name:metrics", b"sys.cpu")]
    await store.put("tsdb-uid", names, time_ms=7)
    await store.increment("tsdb-uid", b"\0", b"id:metrics", 1)
    for row in range(9):
        key = b"\0\0\1" + (1356998400 + 3600 * row).to_bytes(4, "big")
        for offset in chance.sample(range(10), 2):
            cell = Put(key, b"t:" + (offset << 4).to_bytes(2, "big"), bytes([offset]))
            await store.put("tsdb", [cell], time_ms=chance.randrange(100, 200))
    await store.put("tsdb-meta", [Put(b"\0\0\1", b"name:ts_meta", b"{}")], time_ms=3)
    return store


async def contents(store: MemoryStore) -> list[list[Row]]:
    """All rows but the counters, whose times are their own."""
    return [
        [row for row in (await store.page(table.name, b"", None, limit=1000)).rows if row.key != b"\0"]
        for table in TABLES
    ]


async def test_everything_is_copied_with_its_times_once(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    note = Checkpoint(tmp_path / "note", "a", "b")
    told: list[tuple[str, int]] = []
    house = House(source, target, UID, DATA, [META])
    assert await copy_house(house, note, lambda *done: told.append(done)) == DONE
    assert told == [("tsdb", 9), ("tsdb-meta", 1)]
    assert await contents(target) == await contents(source)
    assert await copy_house(house, note, lambda *_: None) == DONE._replace(put=0)
    await source.put("tsdb", [Put(b"\0\0\1\0\0\0\0", b"t:\0\0", b"\1")], time_ms=300)
    assert (await copy_house(house, note, lambda *_: None)).put == 1
    assert await contents(target) == await contents(source)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.ANSWER_LOST])
@pytest.mark.parametrize("failing", ["source", "target"])
async def test_a_copy_that_fails_at_any_step_is_whole_when_it_was_run_again(
    tmp_path: Path, fault: Fault, failing: str
) -> None:
    source = await filled()
    failures = 0
    for step in range(STEPS):
        target = await empty()
        weak = WaveringStore(source if failing == "source" else target)
        weak.plan = [Fault.NONE] * step + [fault]
        house = House(
            weak if failing == "source" else source, weak if failing == "target" else target, UID, DATA, [META]
        )
        try:
            await copy_house(house, Checkpoint(tmp_path / "note", "a", "b"), lambda *_: None)
        except StoreDown:
            failures += 1
            await copy_house(house, Checkpoint(tmp_path / "note", "a", "b"), lambda *_: None)
        assert await contents(target) == await contents(source)
    assert 5 < failures < STEPS


async def test_it_goes_on_where_it_was_and_looks_at_the_rows_before_at_its_end(tmp_path: Path) -> None:
    """These were left as they had been when an earlier run, which was cut off, passed them."""
    source, target = await filled(), await empty()
    rows = (await source.page("tsdb", b"", None, limit=100)).rows
    note = Checkpoint(tmp_path / "note", "a", "b")
    note.save("tsdb", Mark(rows[3].key, rows[4].key))
    for row in rows[:4]:
        await target.put("tsdb", [Put(row.key, *row.cells[0][:2])], time_ms=row.cells[0].time_ms)
    told: list[int] = []
    house = House(source, target, UID, DATA, [META])
    done = await copy_house(house, Checkpoint(note.path, "a", "b"), lambda table, count: told.append(count))
    assert told == [len(rows) - 4, 4, 1]
    assert done == DONE._replace(put=DONE.put - 4)
    assert await contents(target) == await contents(source)


@pytest.mark.parametrize("source_name", ["a", "another"])
@pytest.mark.parametrize("at_its_end", [False, True])
async def test_it_starts_anew_where_the_target_is_not_what_it_was(
    tmp_path: Path, source_name: str, at_its_end: bool
) -> None:
    source, target = await filled(), await empty()
    rows = (await source.page("tsdb", b"", None, limit=100)).rows
    mark = Mark(rows[-1].key, None) if at_its_end else Mark(rows[3].key, rows[4].key)
    Checkpoint(tmp_path / "note", "a", "b").save("tsdb", mark)
    note = Checkpoint(tmp_path / "note", source_name, "b")
    assert await copy_house(House(source, target, UID, DATA, [META]), note, lambda *_: None) == DONE
    assert await contents(target) == await contents(source)


async def test_a_newer_cell_of_the_target_stays(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    first = (await source.page("tsdb", b"", None, limit=1)).rows[0]
    newer = Put(first.key, first.cells[0].column, b"\x63")
    await target.put("tsdb", [newer], time_ms=1000)
    done = await copy_house(House(source, target, UID, DATA), Checkpoint(tmp_path / "note", "a", "b"), lambda *_: None)
    assert (done.cells - done.put, done.hidden) == (1, 0)
    assert (await target.get("tsdb", [first.key]))[first.key][0].value == newer.value


async def test_a_source_without_a_data_table_is_told(tmp_path: Path) -> None:
    source, target = await filled(), await empty()
    house = House(source, target, UID, Pair("tsdb2", "tsdb"), [META, Pair("tsdb-tree", "tsdb-tree")])
    with pytest.raises(StoreError, match="there is no table tsdb2"):
        await copy_house(house, Checkpoint(tmp_path / "note", "a", "b"), lambda *_: None)
    assert (await copy_house(house._replace(rows=DATA), Checkpoint(tmp_path / "n", "a", "b"), lambda *_: None)).rows

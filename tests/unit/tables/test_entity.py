"""The entity tables on the stores that keep versions."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.tables.entity_parts import EntityPoint, FilledTables
from tsd.codec.entity.records import EntitySeries
from tsd.errors import BadLine, NoTable, WrongTable
from tsd.store import Family, Table
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.versions import UNBOUNDED
from tsd.tables.entity.tables import ENTITIES, NEWEST

PRICE = EntitySeries(b"price", ())
CPU = EntitySeries(b"sys.cpu", ((b"cpu", b"0"),))
YEAR_MS = 31_556_952_000
YEARS = [1_262_304_000_000 + at * YEAR_MS for at in range(5)]


@pytest.fixture(params=["memory", "embedded"])
async def tables(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FilledTables]:
    if request.param == "memory":
        made = FilledTables(MemoryStore(lambda: 1).versioned_cells)
        await made.create()
        yield made
        return
    store = await EmbeddedStore.open(tmp_path, lambda: 1)
    made = FilledTables(store.versioned_cells)
    assert await made.create() == ["tsdb-entity", "tsdb-current"]
    yield made
    await store.aclose()


def point(time_ms: int, number: int, *, entity: bytes = b"web01", series: EntitySeries = PRICE) -> EntityPoint:
    return EntityPoint(entity, series, time_ms, 0, bytes([number]))


async def newest(tables: FilledTables) -> dict[bytes, object]:
    return {each.name: each.series for each in (await tables.newest(b"", None, limit=10)).entities}


async def test_one_read_has_yearly_values_and_the_label(tables: FilledTables) -> None:
    await tables.write([point(time, at) for at, time in enumerate(YEARS)])
    await tables.put_metadata(b"web01", {b"label": "house"}, YEARS[0])
    for end in (None, YEARS[4] + 1):
        found = await tables.read(b"web01", YEARS[0], end)
        assert found is not None
        assert found.metadata == {"label": "house"}
        assert found.series == {PRICE: [(time, at) for at, time in enumerate(YEARS)]}


async def test_an_end_in_the_past_keeps_the_metadata(tables: FilledTables) -> None:
    await tables.write([point(time, at) for at, time in enumerate(YEARS)])
    await tables.put_metadata(b"web01", {b"label": "house"}, YEARS[0])
    found = await tables.read(b"web01", YEARS[1], YEARS[4], versions=2)
    assert found is not None
    assert found.metadata == {"label": "house"}
    assert found.series == {PRICE: [(YEARS[2], 2), (YEARS[3], 3)]}


async def test_older_points_never_replace_the_newest_value(tables: FilledTables) -> None:
    await tables.write([point(YEARS[3], 3), point(YEARS[1], 1), point(YEARS[2], 7, series=CPU)])
    await tables.write([point(YEARS[2], 2)])
    assert await newest(tables) == {b"web01": {PRICE: [(YEARS[3], 3)], CPU: [(YEARS[2], 7)]}}
    found = await tables.read(b"web01", 0)
    assert found is not None
    assert found.series[PRICE] == [(YEARS[1], 1), (YEARS[2], 2), (YEARS[3], 3)]


async def test_writing_twice_changes_nothing(tables: FilledTables) -> None:
    points = [point(YEARS[1], 1), point(YEARS[0], 0), point(YEARS[0], 5, entity=b"db01")]
    await tables.write(points)
    before = await tables.read(b"web01", 0), await newest(tables)
    await tables.write(points)
    assert (await tables.read(b"web01", 0), await newest(tables)) == before


async def test_newest_values_come_in_pages(tables: FilledTables) -> None:
    await tables.write([point(YEARS[0], at, entity=b"web%02d" % at) for at in range(5)])
    names, at = [], b"web01"
    while at is not None:
        page = await tables.newest(at, b"web04", limit=2)
        names += [each.name for each in page.entities]
        at = page.next_start
    assert names == [b"web01", b"web02", b"web03"]


async def test_tables_that_keep_other_versions_are_found() -> None:
    cells = MemoryStore(lambda: 1).versioned_cells
    made = FilledTables(cells)
    with pytest.raises(NoTable, match=ENTITIES.name):
        await made.check()
    await cells.create_tables([ENTITIES, Table(NEWEST.name, (Family(b"t", 3),))])
    with pytest.raises(WrongTable, match=r"tsdb-current.*3.*1"):
        await made.check()
    cells = MemoryStore(lambda: 1).versioned_cells
    await cells.create_tables([Table(ENTITIES.name, (Family(b"t", UNBOUNDED),))])
    with pytest.raises(WrongTable, match="family m"):
        await FilledTables(cells).check()


async def test_metadata_is_replaced_and_deleted(tables: FilledTables) -> None:
    assert await tables.read(b"web01", 0) is None
    await tables.put_metadata(b"web01", {b"label": "house", b"rack": "7"}, YEARS[0])
    await tables.put_metadata(b"web01", {b"label": "café"}, YEARS[1])
    await tables.delete_metadata(b"web01", [b"rack"])
    found = await tables.read(b"web01", 0)
    assert found is not None
    assert found.metadata == {"label": "café"}
    for key, value in ((b"", "x"), (b"a key", "x"), (b"key", "x" * 70_000)):
        with pytest.raises(BadLine):
            await tables.put_metadata(b"web01", {key: value}, YEARS[0])

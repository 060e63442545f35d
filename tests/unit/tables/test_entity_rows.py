"""The tables of entities with salts and periods in their row keys answer as those without them."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tsd.codec.entity.records import EntitySeries
from tsd.errors import BadLine
from tsd.store.memory import MemoryStore
from tsd.store.memory_versions import MemoryVersions
from tsd.store.versions import VersionedCells, Wanted
from tsd.tables.entities import Entity
from tsd.tables.entity.rows import check_name, keyed
from tsd.tables.entity.tables import ENTITIES, EntityPoint, EntityTables

HOUR_MS = 3_600_000
names = st.sampled_from([b"a", b"ab", b"a-1", b"a00001", b"b", b"web01"])
series = st.sampled_from([EntitySeries(b"m", ()), EntitySeries(b"m", ((b"k", b"v"),)), EntitySeries(b"n", ())])
times = st.integers(0, 5).map(lambda hours: hours * HOUR_MS) | st.sampled_from([1, HOUR_MS - 1, 10**15])
points = st.builds(lambda e, s, t, n: EntityPoint(e, s, t, 0, bytes([n])), names, series, times, st.integers(0, 100))
ends = st.none() | times
keys = st.sampled_from([(HOUR_MS, 0), (0, 3), (2 * HOUR_MS, 4)])


async def pages(tables: EntityTables, kind: str, limit: int) -> list[Entity]:
    found: list[Entity] = []
    at: bytes | None = b""
    while at is not None:
        if kind == "newest":
            page = await tables.newest(at, None, limit=limit)
        else:
            page = await tables.scan(at, b"b", HOUR_MS, 4 * HOUR_MS, limit=limit)
        assert len(page.entities) <= limit
        found += page.entities
        at = page.next_start
    return found


async def answers(cells: VersionedCells, written: list[EntityPoint], start: int, end: int | None) -> list[object]:
    tables = EntityTables(cells)
    await tables.create()
    half = len(written) // 2
    await tables.write(written[:half])
    await tables.write(written[half:])
    await tables.put_metadata(b"a", {b"rack": "r1"}, 5)
    await tables.put_metadata(b"web01", {b"rack": "r2", b"owner": "x"}, 5)
    found: list[object] = []
    for turn in range(2):
        for name in (b"a", b"ab", b"a-1", b"web01", b"c"):
            found += [await tables.read(name, start, end), await tables.read(name, 0, versions=2)]
            found.append(await tables.metadata(name))
        for limit in (1, 2, 100):
            found += [await pages(tables, kind, limit) for kind in ("newest", "many")]
        if not turn:
            await tables.delete_metadata(b"web01", {b"owner"})
            await cells.delete(ENTITIES.name, b"a", [b"t:m", b"t:n"], until_ms=2 * HOUR_MS)
    return found


@given(st.lists(points, max_size=30), times, ends, keys)
@settings(deadline=None, max_examples=60)
def test_answers_are_those_of_rows_without_salt_and_period(
    written: list[EntityPoint], start: int, end: int | None, key: tuple[int, int]
) -> None:
    async def run() -> None:
        plain, odd = MemoryStore(lambda: 1), MemoryStore(lambda: 1)
        expected = await answers(plain.versioned_cells, written, start, end)
        assert await answers(keyed(odd.versioned_cells, *key), written, start, end) == expected

    trio.run(run)


async def test_rows_have_salts_and_periods_in_their_keys() -> None:
    cells = MemoryVersions()
    tables = EntityTables(keyed(cells, HOUR_MS, 7))
    await tables.create()
    await tables.write([EntityPoint(b"web01", EntitySeries(b"m", ()), hour * HOUR_MS, 0, b"\7") for hour in (0, 2)])
    await tables.put_metadata(b"web01", {b"rack": "r1"}, 5)
    found = [row.key for row in (await cells.page(ENTITIES.name, b"", None, limit=10)).rows]
    assert [key[3:] for key in found] == [b"web01", b"web01#00000", b"web01#00002"]
    assert len({key[:3] for key in found}) == 1
    assert found[0][:2].isdigit()
    assert await keyed(cells, HOUR_MS, 7).get(ENTITIES.name, [b"web01#00000"], Wanted()) == {}


@pytest.mark.parametrize("name", [b"a#1", b"a!"])
def test_names_that_keys_cannot_tell_apart_are_refused(name: bytes) -> None:
    with pytest.raises(BadLine, match="entity"):
        check_name(name)

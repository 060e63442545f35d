"""The tables of entities with salts and periods in their row keys answer as those without them."""

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.tables.entity_parts import EntityPoint, FilledTables
from tsd.codec.entity.records import EntitySeries
from tsd.errors import BadLine, WrongTable
from tsd.store.memory import MemoryStore
from tsd.store.memory_versions import MemoryVersions
from tsd.store.versions import VersionedCells, Wanted
from tsd.tables.entities import Entity
from tsd.tables.entity.form import FormedRows, RowForm
from tsd.tables.entity.rows import check_name, keyed
from tsd.tables.entity.tables import ENTITIES
from tsd.tables.entity_decode import decode_rows

HOUR_MS = 3_600_000
names = st.sampled_from([b"a", b"ab", b"a-1", b"a00001", b"b", b"web01"])
series = st.sampled_from([EntitySeries(b"m", ()), EntitySeries(b"m", ((b"k", b"v"),)), EntitySeries(b"n", ())])
times = st.integers(0, 5).map(lambda hours: hours * HOUR_MS) | st.sampled_from([1, HOUR_MS - 1, 10**15])
points = st.builds(lambda e, s, t, n: EntityPoint(e, s, t, 0, bytes([n])), names, series, times, st.integers(0, 100))
ends = st.none() | times
keys = st.sampled_from([(HOUR_MS, 0), (0, 3), (2 * HOUR_MS, 4)])


async def pages(tables: FilledTables, kind: str, limit: int) -> list[Entity]:
    found: list[Entity] = []
    at: bytes | None = b""
    while at is not None:
        if kind == "newest":
            page = await tables.newest_columns(at, None, limit=limit)
        else:
            page = await tables.scan(at, b"b", HOUR_MS, 4 * HOUR_MS, limit=limit)
        entities = decode_rows(page.columns)
        assert len(entities) <= limit
        found += entities
        at = page.next_start
    return found


async def answers(cells: VersionedCells, written: list[EntityPoint], start: int, end: int | None) -> list[object]:
    tables = FilledTables(cells)
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


@pytest.mark.slow
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
    tables = FilledTables(keyed(cells, HOUR_MS, 7))
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


async def test_rows_of_another_form_are_refused() -> None:
    cells = MemoryStore(lambda: 1).versioned_cells
    made = FilledTables(FormedRows(cells, RowForm(3600, 3)))
    await made.create()
    await made.write([EntityPoint(b"a", EntitySeries(b"m", ()), 5, 0, b"1")])
    for form, text in (
        (RowForm(0, 3), r"tsd\.entity\.period: got '0', wanted '3600s'"),
        (RowForm(3600, 0), "salt: got '0'"),
    ):
        other = FilledTables(FormedRows(cells, form))
        for call in (
            lambda tables=other: tables.read(b"a", 0),
            lambda tables=other: tables.newest(b"", None, limit=1),
            lambda tables=other: tables.put_metadata(b"a", {b"k": "v"}, 1),
            lambda tables=other: tables.delete_metadata(b"a", [b"k"]),
            lambda tables=other: tables.write([EntityPoint(b"a", EntitySeries(b"m", ()), 6, 0, b"1")]),
            other.check,
            other.create,
        ):
            with pytest.raises(WrongTable, match=text):
                await call()
    same = FilledTables(FormedRows(cells, RowForm(3600, 3)))
    await same.check()
    assert [row for row, _ in (await same.scan(b"", None, 0, 10**15, limit=9)).columns.places] == [b"a"]


async def test_the_row_of_the_form_is_no_entity() -> None:
    tables = FilledTables(FormedRows(MemoryStore(lambda: 1).versioned_cells, RowForm(0, 0)))
    await tables.create()
    assert not (await tables.scan(b"", None, 0, 10**15, limit=9)).columns.places
    assert (await tables.newest(b"", None, limit=9)).entities == []
    assert await tables.read(b"\0", 0) is None

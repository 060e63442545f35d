"""The writer of entity tables: after a failure between the tables, repeating the call completes them."""

from collections.abc import Sequence

import pytest

from tests.unit.tables.entity_parts import Inner, Lookup, points
from tsd.codec.entity.records import EntitySeries, series_column
from tsd.codec.points import joined_columns
from tsd.errors import StoreDown
from tsd.store.memory_versions import MemoryVersions
from tsd.store.versions import VersionPut
from tsd.tables.entity.newest import EntityColumn, NewestValues
from tsd.tables.entity.removal import ALWAYS, EntityRemoval
from tsd.tables.entity.tables import EntityTables
from tsd.tables.entity.writer import EntityWriter
from tsd.tables.writing import SeriesText

CPU = EntitySeries(b"sys.cpu", ())


class FailingVersions(MemoryVersions):
    """Fails after `left` puts."""

    left = 1 << 30

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        if not self.left:
            raise StoreDown("refused by the test")
        self.left -= 1
        await super().put(table, cells)


class Made:
    """A writer, and the tables that it writes."""

    def __init__(self) -> None:
        self.cells = FailingVersions()
        self.newest = NewestValues(b"host")
        self.inner = Inner()
        self.writer = EntityWriter(self.inner, self.cells, self.newest)
        self.tables = EntityTables(self.cells, self.newest)

    async def stored(self) -> dict[bytes, tuple[list[tuple[int, int | float]], list[tuple[int, int | float]]]]:
        """Return the points of each entity, and its stored newest one."""
        page = await EntityTables(self.cells).newest(b"", None, limit=100)
        found = {}
        for entity in page.entities:
            read = await self.tables.read(entity.name, 0)
            found[entity.name] = ([] if read is None else read.series[CPU], entity.series[CPU])
        return found


@pytest.fixture
async def made() -> Made:
    made = Made()
    await made.tables.create()
    return made


@pytest.mark.parametrize("puts", [0, 1])
async def test_a_repeated_call_completes_both_tables(made: Made, puts: int) -> None:
    window = points((0, 10, 1), (1, 10, 2), (2, 20, 3), (0, 5, 4), (0, 10, 5))
    made.cells.left = puts
    with pytest.raises(StoreDown):
        await made.writer.write(window, Lookup())
    made.cells.left = 1 << 30
    await made.writer.write(window, Lookup())
    assert await made.stored() == {
        b"a": ([(5000, 4), (10_000, 5)], [(10_000, 5)]),
        b"b": ([(20_000, 3)], [(20_000, 3)]),
    }
    assert len(joined_columns(made.inner.written).series) == 10


async def test_a_late_point_never_replaces_a_newer_newest_value(made: Made) -> None:
    await made.writer.write(points((0, 10, 1)), Lookup())
    await made.writer.write(points((0, 5, 2)), Lookup())
    restarted = EntityWriter(Inner(), made.cells, NewestValues(b"host"))
    await restarted.write(points((0, 7, 3)), Lookup())
    assert await made.stored() == {b"a": ([(5000, 2), (7000, 3), (10_000, 1)], [(10_000, 1)])}


async def test_held_points_are_newest_values_before_they_are_stored(made: Made) -> None:
    await made.writer.record(points((0, 10, 1), (1, 9, 1)), Lookup())
    [entity] = (await made.tables.newest(b"", None, limit=10)).entities
    assert (entity.name, entity.series) == (b"a", {CPU: [(10_000, 1)]})
    assert await made.tables.read(b"a", 0) is None


async def test_a_reused_number_is_another_series(made: Made) -> None:
    await made.writer.write(points((0, 10, 1)), Lookup())
    await made.writer.write(points((0, 5, 2)), Lookup([SeriesText(b"sys.cpu", b"host=c")], generation=2))
    assert await made.stored() == {b"a": ([(10_000, 1)], [(10_000, 1)]), b"c": ([(5000, 2)], [(5000, 2)])}


async def test_series_without_a_column_are_skipped(made: Made) -> None:
    odd = [SeriesText(b"sys.cpu", b"host=a"), SeriesText(b"sys cpu", b"host=a")]
    await made.writer.write(points((1, 10, 1), (0, 5, 2)), Lookup(odd))
    assert await made.stored() == {b"a": ([(5000, 2)], [(5000, 2)])}


async def test_the_last_of_equal_times_is_the_newest_value_whatever_its_unit(made: Made) -> None:
    window = points((0, 10, 1), (0, 10, 2))
    window.instants[0] |= 1  # sent in ms
    await made.writer.write(window, Lookup())
    assert await made.stored() == {b"a": ([(10_000, 2)], [(10_000, 2)])}


async def test_a_held_point_is_newest_once_another_process_deleted_a_newer_one(made: Made) -> None:
    await made.writer.write(points((0, 10, 1)), Lookup())
    await made.writer.record(points((0, 8, 2)), Lookup())
    assert await newest_of_a(made) == [(10_000, 1)]
    await EntityRemoval(made.cells).remove([(EntityColumn(b"a", series_column(CPU)), ALWAYS)])
    await made.writer.record(points((0, 9, 3)), Lookup())
    assert await newest_of_a(made) == [(9000, 3)]
    await made.writer.record(points((0, 7, 4)), Lookup())
    assert await newest_of_a(made) == [(9000, 3)]


async def newest_of_a(made: Made) -> list[tuple[int, int | float]]:
    [entity] = (await made.tables.newest(b"a", b"b", limit=10)).entities
    return entity.series[CPU]

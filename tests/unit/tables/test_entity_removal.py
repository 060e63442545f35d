"""Deleted points leave the tables of entities, and the newest value is the newest one left: on stores with versions."""

from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path

import numpy as np
import pytest

from tests.peers.bigtable import RunningBigtable
from tests.peers.hbase import RunningHbase
from tests.unit.tables.entity_parts import EntityPoint, FilledTables, Inner, Lookup
from tsd.codec.entity.records import EntitySeries
from tsd.codec.points import Columns
from tsd.errors import StoreDown
from tsd.store import Store, VersionedCells
from tsd.store.hbase.engine import HBaseStore
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.store.versions import END_MS, VersionPut
from tsd.tables.entity.newest import EntityColumn, NewestValues
from tsd.tables.entity.removal import ALWAYS, STEP_COLUMNS, STEP_VERSIONS, EntityRemoval, with_tags
from tsd.tables.entity.tables import ENTITIES, NEWEST, EntityTables
from tsd.tables.entity.writer import EntityWriter
from tsd.tables.stored_windows import TimeRange
from tsd.tables.writing import SeriesText

HOUR_MS = 3_600_000
START_MS = 1_500_000_000_000 // HOUR_MS * HOUR_MS
MINUTE_MS = 60_000
CPU = EntitySeries(b"sys.cpu", ((b"cpu", b"0"),))
ALL_CPUS = with_tags(b"sys.cpu", (), b"host")
ENGINES = [
    "memory",
    "embedded",
    pytest.param("hbase", marks=[pytest.mark.hbase, pytest.mark.slow]),
    pytest.param("bigtable", marks=[pytest.mark.bigtable, pytest.mark.slow]),
]


@pytest.fixture(params=ENGINES)
async def cells(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[VersionedCells]:
    """The tables of entities, empty."""
    store: Store
    if request.param == "memory":
        store = MemoryStore(lambda: 1)
    elif request.param == "embedded":
        store = await EmbeddedStore.open(tmp_path, lambda: 1)
    elif request.param == "hbase":
        hbase: RunningHbase = request.getfixturevalue("hbase")
        store = HBaseStore(
            [(hbase.host, hbase.thrift_port)], versions_gateways=[(hbase.host, hbase.thrift2_port)], connections=2
        )
    else:
        bigtable: RunningBigtable = request.getfixturevalue("bigtable")
        store = bigtable.store("entityremoval")
    assert store.versioned_cells is not None
    await FilledTables(store.versioned_cells).create()
    yield store.versioned_cells
    await store.aclose()
    if request.param == "hbase":
        for name in {ENTITIES.name, NEWEST.name} & set(hbase.tables.tables()):
            hbase.tables.drop(name)


def points(host: bytes, minutes: Iterable[int], series: EntitySeries = CPU) -> list[EntityPoint]:
    return [EntityPoint(host, series, START_MS + at * MINUTE_MS, 0, bytes([at % 100])) for at in minutes]


def span(first: int, end: int) -> TimeRange:
    return TimeRange(START_MS + first * MINUTE_MS, START_MS + end * MINUTE_MS)


async def minutes(cells: VersionedCells, host: bytes, series: EntitySeries = CPU) -> tuple[list[int], int | None]:
    """Return the minutes of the points of a series, and that of its newest value."""
    tables = FilledTables(cells)
    entity = await tables.read(host, 0)
    stored = [] if entity is None else entity.series.get(series, [])
    newest = (await tables.newest_of([(host, series)])).get((host, series))
    assert newest is None or newest in stored
    found = [(time_ms - START_MS) // MINUTE_MS for time_ms, _ in stored]
    return found, None if newest is None else (newest[0] - START_MS) // MINUTE_MS


async def test_points_within_a_range_go_and_the_newest_left_is_the_newest(cells: VersionedCells) -> None:
    tables, removal = FilledTables(cells), EntityRemoval(cells)
    every = list(range(0, 300, 10))
    for at in every:  # as windows come: the store may still have superseded newest values
        await tables.write(points(b"a", [at]))
    await tables.write(points(b"b", [5, 15]) + points(b"a", [7], EntitySeries(b"sys.mem", ())))
    await tables.put_metadata(b"a", {b"rack": "r1"}, 1000)
    for first, end, newest in ((25, 105, 290), (200, 301, 190), (150, 191, 140), (0, 1, 140)):
        chosen = with_tags(b"sys.cpu", [(b"host", b"a")], b"host")
        gone = [at for at in every if first <= at < end]
        assert await removal.count_chosen(chosen, span(first, end)) == len(gone)
        assert await removal.remove_chosen(chosen, span(first, end)) == len(gone)
        assert await removal.remove_chosen(chosen, span(first, end)) == 0
        every = [at for at in every if at not in gone]
        assert await minutes(cells, b"a") == (every, newest)
    assert await minutes(cells, b"b") == ([5, 15], 15)
    await tables.write(points(b"a", [400]))
    assert await minutes(cells, b"a") == ([*every, 400], 400)
    assert await removal.remove_chosen(ALL_CPUS, ALWAYS) == len(every) + 3
    assert await minutes(cells, b"a") == await minutes(cells, b"b") == ([], None)
    assert await minutes(cells, b"a", EntitySeries(b"sys.mem", ())) == ([7], 7)
    assert await tables.metadata(b"a") == {"rack": "r1"}


async def test_series_are_chosen_by_metric_and_tags(cells: VersionedCells) -> None:
    tables, removal = FilledTables(cells), EntityRemoval(cells)
    other = EntitySeries(b"sys.cpu", ((b"cpu", b"1"), (b"dc", b"eu")))
    similar = EntitySeries(b"sys.cpu.user", ((b"cpu", b"0"),))
    for host in (b"a", b"ab"):
        for series in (CPU, other, similar):
            await tables.write(points(host, [1, 2], series))
    for tags, gone in (
        ([(b"cpu", b"0"), (b"host", b"a")], [(b"a", CPU)]),
        ([(b"dc", b"eu")], [(b"a", other), (b"ab", other)]),
        ([(b"dc", b"us")], []),
    ):
        assert await removal.remove_chosen(with_tags(b"sys.cpu", tags, b"host"), span(2, 3)) == len(gone)
        for host, series in gone:
            assert await minutes(cells, host, series) == ([1], 1)
    for host, series in ((b"a", similar), (b"ab", similar), (b"ab", CPU)):
        assert await minutes(cells, host, series) == ([1, 2], 2)


async def test_many_points_and_series_go(cells: VersionedCells) -> None:
    tables, removal = FilledTables(cells), EntityRemoval(cells)
    many = 2 * STEP_VERSIONS + 9
    wide = [EntitySeries(b"sys.cpu", ((b"cpu", b"%d" % at),)) for at in range(STEP_COLUMNS + 2)]
    await tables.write(points(b"a", range(many), wide[0]))
    await tables.write([point for series in wide[1:] for point in points(b"a", range(0, many, 50), series)])
    expected = many - 100 + sum(at >= 100 for at in range(0, many, 50)) * (len(wide) - 1)
    assert await removal.count_chosen(ALL_CPUS, span(100, many)) == expected
    assert await removal.remove_chosen(ALL_CPUS, span(100, many)) == expected
    assert await minutes(cells, b"a", wide[0]) == (list(range(100)), 99)
    assert await minutes(cells, b"a", wide[-1]) == ([0, 50], 50)


class Failing:
    """Tables that are away after some writes."""

    def __init__(self, cells: VersionedCells, writes: int) -> None:
        self._cells = cells
        self._writes = writes

    def __getattr__(self, name: str) -> object:
        return getattr(self._cells, name)

    def _count(self) -> None:
        if not self._writes:
            raise StoreDown("away")
        self._writes -= 1

    async def put(self, table: str, puts: Collection[VersionPut]) -> None:
        self._count()
        await self._cells.put(table, list(puts))

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        self._count()
        await self._cells.delete(table, row, columns, since_ms=since_ms, until_ms=until_ms)


async def test_a_repeated_removal_completes_one_that_failed_anywhere() -> None:
    for writes in range(10):
        cells = MemoryStore(lambda: 1).versioned_cells
        await FilledTables(cells).create()
        await FilledTables(cells).write(points(b"a", range(3 * STEP_VERSIONS)))
        failing: VersionedCells = Failing(cells, writes)  # type: ignore[assignment]
        try:
            await EntityRemoval(failing).remove_chosen(ALL_CPUS, span(10, 3 * STEP_VERSIONS))
        except* StoreDown:
            await EntityRemoval(cells).remove_chosen(ALL_CPUS, span(10, 3 * STEP_VERSIONS))
        else:
            assert writes > 3
        assert await minutes(cells, b"a") == (list(range(10)), 9)


async def test_a_newest_value_without_a_point_goes() -> None:
    cells = MemoryStore(lambda: 1).versioned_cells
    tables = FilledTables(cells)
    await tables.create()
    await tables.write(points(b"a", [1]))
    await cells.delete(ENTITIES.name, b"a", [b"t:sys.cpu cpu=0"])
    assert await EntityRemoval(cells).remove_chosen(ALL_CPUS, span(0, 2)) == 0
    assert await minutes(cells, b"a") == ([], None)


async def test_a_deleted_newest_value_does_not_come_back_from_memory() -> None:
    cells = MemoryStore(lambda: 1).versioned_cells
    await FilledTables(cells).create()
    newest = NewestValues(b"host")
    writer = EntityWriter(Inner(), cells, newest)
    lookup = Lookup([SeriesText(b"sys.cpu", b"cpu=0 host=a")])
    tables = EntityTables(cells, newest)

    def window(minute: int) -> Columns:
        instant = (START_MS + minute * MINUTE_MS) * 2
        return Columns(np.zeros(1, np.int32), np.array([instant]), np.zeros(1, np.uint8), np.array([minute]))

    async def newest_minute() -> int | None:
        found = (await tables.newest_of([(b"a", CPU)])).get((b"a", CPU))
        return None if found is None else int(found[1])

    await writer.write(window(5), lookup)
    await EntityRemoval(cells).remove_chosen(ALL_CPUS, ALWAYS)  # by another process
    assert await newest_minute() is None
    await writer.write(window(3), lookup)
    assert await newest_minute() == 3
    await writer.write(window(9), lookup)
    await EntityRemoval(cells, newest).remove([(EntityColumn(b"a", b"t:sys.cpu cpu=0"), span(9, 10))])
    assert await newest_minute() == 3
    await writer.record(window(4), lookup)
    assert await newest_minute() == 4

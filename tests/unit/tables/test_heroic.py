"""Heroic's table on several engines: the recorded cells and answers of Heroic's own backend, and what it lacks."""

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from tests.flaky_store import Fault
from tests.interfering_store import InterferingStore
from tests.peers.bigtable import RunningBigtable
from tests.peers.cassandra import RunningCassandra
from tests.unit.codec.heroic_vectors import READS, TABLE, double_of
from tests.unit.tables.interned_layout import Found, put, read
from tsd.codec.names import Kind
from tsd.codec.putline import HOUR_S
from tsd.config.retention import parse_rules
from tsd.errors import BadQuery, NoTable, StoreDown
from tsd.store import StampedCells, StampedSpan, Store
from tsd.store.memory import MemoryStore
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables import Tables
from tsd.tables.catalog import SeriesSelector
from tsd.tables.filters import make_filter
from tsd.tables.heroic.layout import HeroicTableSettings, build, heroic_tables, make_retention
from tsd.tables.heroic.tables import HeroicTables
from tsd.tables.reading import EncodedPage, PointPage, ScanRange, SeriesRequest
from tsd.tables.writing import SeriesKeys, SeriesText

CASSANDRA = pytest.param("cassandra", marks=[pytest.mark.cassandra, pytest.mark.slow])
ENGINES = ["memory", "embedded", pytest.param("bigtable", marks=pytest.mark.bigtable), CASSANDRA]
NOW_MS = 1_700_000_000_000
PERIOD = 1 << 32
SEED = SeriesText(b"system", b"cpu-type=idle site=gew system-component=cpu unit=% what=cpu-idle-percentage")
POD = b" host=database.example.com podname="
EDGE, ODD = SeriesText(b"edge", b"host=a"), SeriesText(b"odd", b"host=b")


class Heroic:
    """The layout on a store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tables = self.opened()

    def opened(self, *, creates_metrics: bool = True) -> Tables:
        """Return the layout without what it has cached."""
        settings = HeroicTableSettings("metrics", "listed", frozenset(["host", "podname"]), creates_metrics)
        return build(self.store, settings, lambda: NOW_MS)

    async def put(self, *points: tuple[SeriesText, int, float]) -> None:
        """Put the points of one window."""
        await put(self.tables, *points)

    async def put_recorded(self) -> None:
        """Put the points that Heroic's backend wrote into the recorded table."""
        await self.put(
            (with_pod("pod-example-123-abc"), 1_300_000_000_000, 42.0),
            (with_pod("pod-example-123-abc"), 1_300_001_000_000, 84.0),
            (with_pod("pod-2"), 1_300_000_500_000, 7.0),
            (SEED, 1_300_000_700_000, 8.0),
        )
        for number, time_ms in enumerate([PERIOD - 1, PERIOD, PERIOD + 1, 2 * PERIOD - 1, 2 * PERIOD, 2 * PERIOD + 1]):
            await self.put((EDGE, time_ms, number + 1))

    async def read(self, request: SeriesRequest, first_ms: int, last_ms: int) -> Found:
        """Return the points of each series by its tags."""
        return await read(self.tables, request, first_ms, last_ms)

    async def cells(self) -> list[list[str]]:
        """Return all cells of points, spelled as the recorded ones."""
        page = await self.store.page("metrics", b"", None, limit=1000)
        assert page.next_start is None
        cells = [(row.key, *cell.column.split(b":", 1), cell.value) for row in page.rows for cell in row.cells]
        return [[key.hex(), family.decode(), *(each.hex() for each in rest)] for key, family, *rest in cells]


def with_pod(pod: str) -> SeriesText:
    return SeriesText(SEED.metric, SEED.tags + POD + pod.encode())


@pytest.fixture(params=ENGINES)
async def heroic(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Heroic]:
    store: Store
    if request.param == "memory":
        store = MemoryStore(lambda: NOW_MS)
    elif request.param == "embedded":
        store = await EmbeddedStore.open(tmp_path, lambda: NOW_MS)
    elif request.param == "cassandra":
        cassandra: RunningCassandra = request.getfixturevalue("cassandra")
        store = cassandra.store(cassandra.unused_keyspace())
    else:
        bigtable: RunningBigtable = request.getfixturevalue("bigtable")
        store = bigtable.store(bigtable.unused_instance())
    await store.create_tables(heroic_tables("metrics", "listed"))
    yield Heroic(store)
    await store.aclose()


def recorded(*metrics: str) -> list[list[str]]:
    """The newest cells of points that Heroic's backend left, of some metrics."""
    newest: dict[tuple[str, ...], tuple[int, str]] = {}
    for row, family, qualifier, version, value in TABLE["cells"]:
        if family == "points" and any(name.encode().hex() in row[:20] for name in metrics):
            newest[row, family, qualifier] = max(newest.get((row, family, qualifier), (0, "")), (version, value))
    return sorted([*place, value] for place, (_, value) in newest.items())


async def test_puts_write_the_recorded_cells(heroic: Heroic) -> None:
    await heroic.put_recorded()
    # tsd takes the tag host for a resource here, so the rows of `edge` end with one: Heroic's have a tag
    assert [cell for cell in await heroic.cells() if b"system".hex() in cell[0]] == recorded("system")


def answered(vector: dict[str, Any]) -> list[list[tuple[int, float]]]:
    return sorted([(time_ms, double_of(value)) for time_ms, value in one["points"]] for one in vector["found"])


async def test_points_on_a_period_are_found(heroic: Heroic) -> None:
    await heroic.put_recorded()
    series = (("host", "a"),)
    found = await heroic.read(SeriesRequest("edge"), 0, 3 * PERIOD)
    times = [at * PERIOD + offset for at in (1, 2) for offset in (-1, 0, 1)]
    assert found == {series: {time_ms: number for number, time_ms in enumerate(times, 1)}}
    assert await heroic.read(SeriesRequest("edge"), PERIOD, PERIOD) == {series: {PERIOD: 2}}


SEEDED = [vector for vector in READS if vector["key"] == "system"]


@pytest.mark.parametrize("vector", SEEDED, ids=[vector["name"][:40] for vector in SEEDED])
async def test_recorded_answers_with_a_closed_start(heroic: Heroic, vector: dict[str, Any]) -> None:
    await heroic.put_recorded()
    found = await heroic.read(SeriesRequest("system"), vector["start"] + 1, vector["end"])
    assert sorted(sorted(points.items()) for points in found.values()) == answered(vector)


async def test_resources_are_tags_of_a_query(heroic: Heroic) -> None:
    await heroic.put_recorded()
    request = SeriesRequest("system", filters=(make_filter("podname", "wildcard", "pod-e*"),))
    [(tags, points)] = (await heroic.read(request, 1_299_999_999_999, 1_300_002_000_000)).items()
    assert dict(tags)["host"] == "database.example.com"
    assert points == {1_300_000_000_000: 42.0, 1_300_001_000_000: 84.0}
    with pytest.raises(BadQuery, match="absent"):
        await heroic.read(SeriesRequest("absent"), 0, NOW_MS)


async def test_series_without_a_key_matches_nothing(heroic: Heroic) -> None:
    await heroic.put_recorded()
    selection = await heroic.tables.reader.select(SeriesRequest("system"))
    assert selection.pairs_of(SeriesKeys.of([None])) == [None]


async def test_rewrites_add_nothing_and_the_last_counts(heroic: Heroic) -> None:
    await heroic.put((ODD, NOW_MS, float("nan")), (ODD, NOW_MS + 1, float("inf")), (ODD, NOW_MS + 2, 1))
    await heroic.put((ODD, NOW_MS + 2, 9.5), (ODD, NOW_MS + 2, 10.5))
    await heroic.put((ODD, NOW_MS + 2, 10.5))
    values = [value for *_, value in await heroic.cells()]
    assert values == ["7ff8000000000000", "7ff0000000000000", "4025000000000000"]


async def test_series_are_found_again_after_a_restart(heroic: Heroic) -> None:
    await heroic.put_recorded()
    await heroic.put((SeriesText(b"m", b"a=b"), 5, 1.5))
    before = await heroic.store.page("listed", b"", None, limit=100)
    heroic.tables = heroic.opened()
    assert await heroic.read(SeriesRequest("m"), 0, NOW_MS) == {(("a", "b"),): {5: 1.5}}
    await heroic.put_recorded()
    after = await heroic.store.page("listed", b"", None, limit=100)
    assert [row.key for row in before.rows] == [row.key for row in after.rows]


async def test_names_and_series_are_listed(heroic: Heroic) -> None:
    await heroic.put_recorded()
    catalog = heroic.tables.catalog
    assert await catalog.suggest(Kind.METRIC, "", 10) == ["edge", "system"]
    assert await catalog.suggest(Kind.TAGK, "s", 10) == ["site", "system-component"]
    assert await catalog.suggest(Kind.TAGV, "pod", 1) == ["pod-2"]
    selected = await catalog.select(SeriesSelector("*", [("podname", "*")]))
    found = [series async for page in selected.pages() for series in page]
    assert [one.tags["podname"] for one in await catalog.describe(found)] == ["pod-2", "pod-example-123-abc"]
    newest = await catalog.last_points(found, None)
    assert [point and (point.time_ms, point.number) for point in newest.points] == [
        (1_300_000_500_000, 7.0),
        (1_300_001_000_000, 84.0),
    ]


async def test_new_names_are_listed_before_points(heroic: Heroic) -> None:
    await heroic.tables.resolver.resolve([with_pod("pod-9")])
    assert await heroic.opened().catalog.suggest(Kind.METRIC, "", 10) == ["system"]
    assert await heroic.opened().catalog.suggest(Kind.TAGV, "pod", 10) == ["pod-9"]


async def test_a_query_deletes_what_it_read(heroic: Heroic) -> None:
    await heroic.put((ODD, NOW_MS, 1.0), (ODD, NOW_MS + 1, 2.0))
    selection = await heroic.tables.reader.select(SeriesRequest("odd", delete=True))

    async def take(page: EncodedPage[PointPage]) -> None:
        await selection.series.match(page.series())

    hour = NOW_MS // 1000 // HOUR_S * HOUR_S
    await selection.read(ScanRange(hour, hour + HOUR_S), take, annotations=False)
    await heroic.put((ODD, NOW_MS + 1, 3.0), (ODD, NOW_MS + 2, 4.0))
    await selection.delete(NOW_MS)
    assert await heroic.read(SeriesRequest("odd"), 0, 2 * NOW_MS) == {
        (("host", "b"),): {NOW_MS + 1: 3.0, NOW_MS + 2: 4.0}
    }


async def test_deletes_leave_other_points(heroic: Heroic) -> None:
    await heroic.put_recorded()
    deleter = heroic.tables.deleter
    assert deleter is not None
    await deleter.delete(SeriesRequest("edge"), PERIOD, 2 * PERIOD)
    left = {PERIOD - 1: 1, 2 * PERIOD + 1: 6}
    assert await heroic.read(SeriesRequest("edge"), 0, 3 * PERIOD) == {(("host", "a"),): left}
    await deleter.delete_metric("edge")
    assert await heroic.tables.catalog.suggest(Kind.METRIC, "", 10) == ["system"]
    await heroic.put((EDGE, PERIOD, 9.0))
    assert await heroic.read(SeriesRequest("edge"), 0, 3 * PERIOD) == {(("host", "a"),): {PERIOD: 9.0}}


async def test_series_are_listed_again_after_an_interrupted_delete() -> None:
    store = InterferingStore(MemoryStore(lambda: NOW_MS))
    await store.create_tables(heroic_tables("metrics", "listed"))
    heroic = Heroic(store)
    await heroic.put((EDGE, PERIOD, 1.0))
    deleter = heroic.tables.deleter
    assert deleter is not None
    await deleter.delete(SeriesRequest("edge"), 0, 2 * PERIOD)

    assert store.calls[-1] == "sync"  # after a loss of power, too, they are deleted
    selection = await heroic.tables.reader.select(SeriesRequest("edge", delete=True))
    await selection.delete(NOW_MS)
    assert store.calls[-1] == "sync"

    async def fail() -> None:
        store.plan = [Fault.ANSWER_LOST]

    store.before["delete"] = fail
    with pytest.raises(StoreDown):
        await deleter.delete_metric("edge")
    await heroic.put((EDGE, PERIOD, 9.0))
    assert await heroic.read(SeriesRequest("edge"), 0, 2 * PERIOD) == {(("host", "a"),): {PERIOD: 9.0}}


@pytest.mark.parametrize("heroic", [CASSANDRA], indirect=True)
class WholeFamilies:
    """The delete of spans on HBase."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def delete_spans(self, table: str, spans: Sequence[StampedSpan]) -> None:
        for row, cells in (await self._store.get(table, [span.row for span in spans])).items():
            await self._store.delete(table, {row: [cell.column for cell in cells]}, up_to_ms=None)


class LikeHbase(MemoryStore):
    @property
    def stamped_cells(self) -> StampedCells:
        return cast(StampedCells, WholeFamilies(self))


async def test_deletes_leave_other_points_of_a_row_on_hbase() -> None:
    """A row has the points of seven weeks, and HBase can only delete all of them at once."""
    store = LikeHbase(lambda: NOW_MS)
    await store.create_tables(heroic_tables("metrics", "listed"))
    heroic = Heroic(store)
    await heroic.put(*[(ODD, PERIOD + at, float(at)) for at in range(5)])
    deleter = heroic.tables.deleter
    assert deleter is not None
    await deleter.delete(SeriesRequest("odd"), PERIOD + 1, PERIOD + 3)
    left = {PERIOD: 0.0, PERIOD + 4: 4.0}
    assert await heroic.read(SeriesRequest("odd"), PERIOD, 2 * PERIOD) == {(("host", "b"),): left}


async def test_deletes_of_a_month_hide_no_rows(heroic: Heroic) -> None:
    many = SeriesText(b"odd", b"host=many")
    count = 150_000 if heroic.store.capabilities.hides_for_days else 2000  # Cassandra allows 100,000 tombstones
    await heroic.put(*((many, PERIOD + at * 1000, float(at)) for at in range(count)))
    await heroic.put((ODD, PERIOD, 1.0))
    deleter = heroic.tables.deleter
    assert deleter is not None
    request = SeriesRequest("odd", filters=(make_filter("host", "literal_or", "many"),))
    last = PERIOD + (count - 1) * 1000
    await deleter.delete(request, PERIOD, last - 1)
    listed = [row async for row in HeroicTables(heroic.store, "metrics", "listed").keys(b"")]
    assert len(listed) == 2
    assert await heroic.read(SeriesRequest("odd"), 0, 2 * PERIOD) == {
        (("host", "b"),): {PERIOD: 1.0},
        (("host", "many"),): {last: float(count - 1)},
    }


async def test_expired_points_go_by_their_rules(heroic: Heroic) -> None:
    await heroic.put_recorded()
    await heroic.put((ODD, PERIOD - 2, 1.0), (ODD, NOW_MS, 2.0))
    now_s = NOW_MS // 1000
    rules = parse_rules("edge=forever; system=4000d; *=400d")
    retention = make_retention(heroic.store, "metrics", "listed", rules)
    counted = [step async for step in retention.count(now_s)]
    assert [step async for step in retention.remove(now_s)] == counted
    assert {rule: amount.points for rule, amount in counted} == {"*=400d": 1, "system=4000d": 4}
    assert [step async for step in retention.remove(now_s)] == []
    left = {}
    for metric in ("edge", "odd", "system"):
        found = await heroic.read(SeriesRequest(metric), 0, NOW_MS)
        left[metric] = sorted(value for each in found.values() for value in each.values())
    assert left == {"edge": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "odd": [2.0], "system": []}


@pytest.mark.slow
async def test_wide_ranges_and_many_points_come_whole(heroic: Heroic) -> None:
    times = [*range(NOW_MS, NOW_MS + 3_000_000, 1000), *range(PERIOD, NOW_MS, 40_000_000_000)]
    texts = [SeriesText(b"many", b"a=%d" % number) for number in range(3)]
    await heroic.put(*((text, time_ms, float(time_ms)) for text in texts for time_ms in times))
    found = await heroic.read(SeriesRequest("many"), 0, NOW_MS + 4_000_000)
    assert found == {(("a", str(number)),): {time_ms: float(time_ms) for time_ms in times} for number in range(3)}


def long_texts() -> Iterable[tuple[SeriesText, bool]]:
    yield SeriesText(b"m" * 3975, b"host=a"), True
    yield SeriesText(b"m", b"a=" + b"v" * 4000), False


async def test_long_keys_are_refused_with_a_reason(heroic: Heroic) -> None:
    for text, is_stored in long_texts():
        resolved = await heroic.tables.resolver.resolve([text])
        assert bool(resolved.refused) != is_stored
        assert is_stored or "3999" in str(resolved.refused[0])
        if is_stored:
            await heroic.put((text, NOW_MS, 1.0))


async def test_a_metric_is_created_only_where_allowed(heroic: Heroic) -> None:
    await heroic.put((ODD, NOW_MS, 1.0))
    resolver = heroic.opened(creates_metrics=False).resolver
    resolved = await resolver.resolve([ODD, SeriesText(b"new", b"a=b")])
    assert list(resolved.refused) == [1]


async def test_missing_tables_are_named() -> None:
    tables = Heroic(MemoryStore(lambda: NOW_MS)).tables
    with pytest.raises(NoTable, match="metrics, listed"):
        await tables.check()

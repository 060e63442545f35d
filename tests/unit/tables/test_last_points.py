"""The newest points of series: from memory where it can be trusted, from rows where it cannot."""

import json
from collections.abc import Collection
from typing import Any, Never
from unittest.mock import patch

import numpy as np
import pytest
import trio
from hypothesis import given

from tests.property.codec_rows import anything
from tests.unit.tables.endpoints import NOW_MS, TABLES, World, at_once, make_world, request_of
from tsd.api import search
from tsd.codec.opentsdb.cell import COLUMN, seconds_qualifier
from tsd.codec.opentsdb.merge import MergeRules, StoredCell, merge
from tsd.codec.opentsdb.row import points
from tsd.codec.opentsdb.rowkey import KeyLayout, tsuid_row
from tsd.codec.points import Columns
from tsd.codec.putline import HOUR_S, instant
from tsd.codec.text import FLOAT
from tsd.errors import CorruptRow, StoreError
from tsd.ingest.series import SeriesTable
from tsd.store import Cell, Put
from tsd.store.memory import MemoryStore
from tsd.tables.catalog import LastPoint
from tsd.tables.opentsdb.data_table import DataTable
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.last_points import LastPointReader, last_of
from tsd.tables.writing import SeriesKey, SeriesText

HOUR = NOW_MS // 1000 // HOUR_S * HOUR_S


class LastEndpoint:
    """The endpoint on a world; `clock_ms` may be set."""

    def __init__(
        self,
        world: World,
        cache_ms: int | None = None,
        *,
        exact: bool = False,
        max_unreadable: int = 100,
        started_ms: int = NOW_MS,
    ) -> None:
        self.world = world
        self.clock_ms = started_ms
        self.latest = LastPointCache(0)
        self.points = LastPointReader(
            DataTable(world.store, "tsdb", world.layout),
            self.latest,
            lambda: self.clock_ms,
            look_back_h=2,
            cache_ms=cache_ms,
            max_unreadable=max_unreadable,
        )
        self.clock_ms = NOW_MS
        finder = world.finder(self.latest, cache_s=cache_ms // 1000 if cache_ms else None, now_s=self.now_s)
        catalog = world.catalog(finder, self.points)
        world.endpoints = search.last_routes(catalog, at_once, search.LastRules(exact_back_scans=exact))

    def now_s(self) -> int:
        return self.clock_ms // 1000

    async def values(self, query: str) -> dict[str, str]:
        """The values that are answered, by TSUID."""
        answer = await self.world.request("GET", f"/api/query/last?{query}")
        assert answer.status == 200, answer
        return {one["tsuid"]: one["value"] for one in answer.body}


async def store(world: World, tsuid: bytes, time_s: int, value: int) -> None:
    row = tsuid_row(world.layout, tsuid, time_s // HOUR_S * HOUR_S)
    column = COLUMN + seconds_qualifier(time_s % HOUR_S, 0)
    await world.store.put("tsdb", [Put(row, column, bytes((value,)))])


@pytest.mark.difference(
    "last-points",
    topic="metadata",
    theirs=(
        "Without the meta table `query/last` needs TSUIDs or a back scan, and reads the present hour alone. With "
        "it, it reads the hour of the last write and misses points that were written late"
    ),
    ours="It answers the newest point of every series with at least these tags",
)
async def test_series_with_more_tags_are_found_without_the_meta_table() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    two = await world.series("m", host="a", cpu="0")
    await store(world, one, HOUR, 1)
    await store(world, one, HOUR + 10, 2)
    await store(world, two, HOUR - HOUR_S, 3)  # the hour before
    endpoint = LastEndpoint(world)
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "2", two.hex().upper(): "3"}
    assert await endpoint.values("timeseries=m{cpu=0}") == {two.hex().upper(): "3"}
    assert await endpoint.values(f"tsuids={two.hex()}") == {two.hex().upper(): "3"}


@pytest.mark.difference(
    "last-back-scan",
    topic="corrected",
    theirs="A back scan of `query/last` without the meta table finds only the series with exactly these tags",
    ours="it finds every series with at least these tags",
)
async def test_back_scan_without_the_meta_table_reads_one_series() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR - 5 * HOUR_S, 1)
    await store(world, await world.series("m", host="a", cpu="0"), HOUR, 3)
    endpoint = LastEndpoint(world, exact=True)
    assert await endpoint.values("timeseries=m{host=a}&back_scan=4") == {}
    assert await endpoint.values("timeseries=m{host=a}&back_scan=5") == {one.hex().upper(): "1"}
    assert await endpoint.values("timeseries=m{host=a}&back_scan=4") == {}  # though it is known by now
    assert len(await endpoint.values("timeseries=m{host=a}&back_scan=5&corrected")) == 2  # those like it too
    body = {"queries": [{"metric": "m", "tags": {"host": "a"}}], "backScan": 5}
    for answer, count in (({}, 1), ({"corrected": True}, 2), ({"corrected": "true"}, 2), ({"corrected": False}, 1)):
        assert len((await world.request("POST", "/api/query/last", body | answer)).body) == count
    own = {**body, "corrected": False}  # what a body says counts, as in a query's
    assert len((await world.request("POST", "/api/query/last?corrected", own)).body) == 1
    assert len((await world.request("POST", "/api/query/last?corrected", body)).body) == 2


@pytest.mark.difference("last-points")
async def test_late_old_point_does_not_hide_a_newer_stored_one() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR + 100, 2)
    endpoint = LastEndpoint(world)
    slot = endpoint.latest.slot(one[:3], one[3:])
    endpoint.latest.set_read(slot, LastPoint((HOUR - 86_400) * 1000, 1), checked_ms=0, depth_h=-1)  # as from a window
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "2"}


@pytest.mark.parametrize(
    ("stored_s", "late_s", "answer"),
    [
        (HOUR + 100, HOUR + 50, "2"),
        (HOUR - 3 * HOUR_S, HOUR + 50, "1"),
        (HOUR - 3 * HOUR_S, HOUR - 4 * HOUR_S, None),  # it is not the newest, whose hour is not read
    ],
)
async def test_late_point_after_a_change_of_rows_is_not_taken_for_the_newest(
    stored_s: int, late_s: int, answer: str | None
) -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, stored_s, 2)
    endpoint = LastEndpoint(world, started_ms=(HOUR - 9 * HOUR_S) * 1000)
    endpoint.latest.slot(one[:3], one[3:])
    endpoint.latest.forget(world.layout, [tsuid_row(world.layout, one, HOUR)])
    await record(endpoint.latest, one, late_s, 1)
    for _ in range(2):
        assert await endpoint.values("timeseries=m{host=a}") == ({one.hex().upper(): answer} if answer else {})


async def test_late_point_after_caches_were_dropped_is_not_taken_for_the_newest() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    endpoint = LastEndpoint(world, started_ms=(HOUR - HOUR_S) * 1000)
    await record(endpoint.latest, one, HOUR + 100, 2)
    await store(world, one, HOUR + 100, 2)
    endpoint.latest.clear()
    await record(endpoint.latest, one, HOUR + 50, 1)
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "2"}


async def record(latest: LastPointCache, tsuid: bytes, time_s: int, value: int, *, held: bool = False) -> None:
    """Record an integer that the daemon has got."""
    table = SeriesTable()
    number = table.insert(SeriesText(b"m", b"host=a"), SeriesKey(tsuid[:3], tsuid[3:]))
    columns = Columns(
        np.array([number], np.int32), np.array([instant(time_s)], np.int64), np.array([7], np.uint8),
        np.array([value], np.int64),
    )  # fmt: skip
    await latest.record(columns, table, 1 << 42, held=held)


BROKEN = COLUMN + b"\0\0\0\x10"  # with a value of one byte: fits nothing


async def answered(world: World, query: str) -> tuple[dict[str, str], str]:
    """The values that are answered, by TSUID, and the header that tells of warnings."""
    response = await world.endpoints["api/query/last"](request_of("GET", f"/api/query/last?{query}"))
    headers = dict(response.headers)
    assert not isinstance(response.body, bytes)
    body = json.loads(b"".join([part async for part in response.body]))
    return {entry["tsuid"]: entry["value"] for entry in body}, headers.get("X-Tsd-Warnings", "")


async def unreadable(*hosts: str) -> tuple[World, list[bytes]]:
    """Series of a metric whose rows of that hour cannot be read."""
    world = await make_world()
    found = [await world.series("m", host=host) for host in hosts]
    await world.store.put("tsdb", [Put(tsuid_row(world.layout, one, HOUR), BROKEN, b"\1") for one in found])
    return world, found


async def repair(world: World, tsuid: bytes, value: int) -> None:
    await world.store.delete("tsdb", {tsuid_row(world.layout, tsuid, HOUR): [BROKEN]}, up_to_ms=None)
    await store(world, tsuid, HOUR, value)


@pytest.mark.difference("query-warnings")
async def test_unreadable_row_is_reported_until_repaired() -> None:
    """Regression: it was skipped without a warning, and an older point, or none, was the newest."""
    world, [one, _] = await unreadable("a", "b")
    sound = await world.series("m", host="c")
    await store(world, one, HOUR - HOUR_S, 1)
    await store(world, sound, HOUR, 3)
    endpoint = LastEndpoint(world)
    for _ in range(2):  # with and without cached values
        values, warnings = await answered(world, "timeseries=m{host=a}&timeseries=m{host=b}&timeseries=m{host=c}")
        assert values == {one.hex().upper(): "1", sound.hex().upper(): "3"}
        assert warnings.startswith("2; row ")
    assert await answered(world, f"tsuids={sound.hex()}") == ({sound.hex().upper(): "3"}, "")
    assert endpoint.points.warnings == 4
    await repair(world, one, 2)
    assert await answered(world, f"tsuids={one.hex()}") == ({one.hex().upper(): "2"}, "")


async def test_unreadable_row_is_reported_after_a_failed_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it was reported once more, or to one of several concurrent requests, and was not read again after its
    repair."""
    world, [one] = await unreadable("a")
    LastEndpoint(world)
    query = f"tsuids={one.hex()}"

    async def fail(*_: object) -> Never:
        raise StoreError("down")

    assert (await answered(world, query))[1]
    with monkeypatch.context() as patched:
        patched.setattr(world.store, "get", fail)
        with pytest.raises(StoreError):
            await answered(world, query)
    warned = list[str]()

    async def run_query() -> None:
        warned.append((await answered(world, query))[1])

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(run_query)
    assert len(warned) == 4
    assert all(warned)
    await repair(world, one, 2)
    assert await answered(world, query) == ({one.hex().upper(): "2"}, "")


async def test_unreadable_row_is_reported_within_its_range() -> None:
    """Regression: it was always reported once it was older than the range, even after its repair."""
    world, [one] = await unreadable("a")
    endpoint = LastEndpoint(world)
    query = f"tsuids={one.hex()}"
    endpoint.clock_ms += 2 * HOUR_S * 1000
    for back_scan, there in (("", True), ("&back_scan=1", False), ("", True), ("&back_scan=2", True)):
        assert bool((await answered(world, query + back_scan))[1]) == there
    endpoint.clock_ms += 2 * HOUR_S * 1000
    assert await answered(world, query) == ({}, "")
    assert (await answered(world, query + "&back_scan=4"))[1]
    await repair(world, one, 2)
    assert await answered(world, query + "&back_scan=4") == ({one.hex().upper(): "2"}, "")


async def test_unreadable_rows_out_of_range_make_room_for_others() -> None:
    world, series = await unreadable("a", "b", "c")
    endpoint = LastEndpoint(world, max_unreadable=2)
    queries = [f"tsuids={one.hex()}" for one in series]
    assert [bool((await answered(world, query))[1]) for query in queries] == [True, True, False]
    endpoint.clock_ms += 3 * HOUR_S * 1000
    late = await world.series("m", host="d")
    await world.store.put("tsdb", [Put(tsuid_row(world.layout, late, HOUR + 3 * HOUR_S), BROKEN, b"\1")])
    assert (await answered(world, f"tsuids={late.hex()}"))[1]


@pytest.mark.parametrize(("cache_ms", "value"), [(None, "1"), (60_000, "2")])
async def test_rows_of_shared_tables_are_read_again(cache_ms: int | None, value: str) -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR, 1)
    endpoint = LastEndpoint(world, cache_ms)
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "1"}
    await store(world, one, HOUR + 1, 2)
    endpoint.clock_ms += 30_000
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "1"}
    endpoint.clock_ms += 31_000
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): value}


@pytest.mark.parametrize("hours", [0, 1, 30])
@pytest.mark.parametrize("left", [True, False])
async def test_point_that_another_process_deletes_is_forgotten(hours: int, left: bool) -> None:
    """Regression: it was answered until the daemon was restarted."""
    world = await make_world()
    one, at_s = await world.series("m", host="a"), HOUR - hours * HOUR_S
    endpoint = LastEndpoint(world, 60_000)
    for time_s, value in ((at_s + 1, 1), (at_s + 2, 2)):
        await store(world, one, time_s, value)
        await record(endpoint.latest, one, time_s, value)
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "2"}
    row = tsuid_row(world.layout, one, at_s)
    columns = [COLUMN + seconds_qualifier(at, 0) for at in ((2,) if left else (1, 2))]
    await world.store.delete("tsdb", {row: columns}, up_to_ms=None)
    endpoint.clock_ms += 61_000
    for _ in range(2):
        assert await endpoint.values(f"tsuids={one.hex()}") == ({one.hex().upper(): "1"} if left else {})


async def test_integer_that_another_process_replaces_with_an_equal_float_is_read_again() -> None:
    """OpenTSDB answers 1.0; here it was 1 until a newer point came."""
    world = await make_world()
    one = await world.series("m", host="a")
    endpoint = LastEndpoint(world, 60_000)
    await store(world, one, HOUR, 1)
    await record(endpoint.latest, one, HOUR, 1)
    row = tsuid_row(world.layout, one, HOUR)
    await world.store.delete("tsdb", {row: [COLUMN + seconds_qualifier(0, 0)]}, up_to_ms=None)
    await world.store.put("tsdb", [Put(row, COLUMN + seconds_qualifier(0, FLOAT | 3), b"\x3f\x80\0\0")])
    endpoint.clock_ms += 61_000
    assert await endpoint.values(f"tsuids={one.hex()}") == {one.hex().upper(): "1.0"}


@pytest.mark.parametrize("hours", [0, 1, 30])
async def test_point_that_another_process_replaces_is_read_again(hours: int) -> None:
    """Regression: the replaced value was answered until a newer point came."""
    world = await make_world()
    one, at_s = await world.series("m", host="a"), HOUR - hours * HOUR_S
    endpoint = LastEndpoint(world, 60_000)
    await store(world, one, at_s, 1)
    await record(endpoint.latest, one, at_s, 1)
    assert await endpoint.values("timeseries=m{host=a}") == {one.hex().upper(): "1"}
    await store(world, one, at_s, 2)
    endpoint.clock_ms += 61_000
    for _ in range(2):
        assert await endpoint.values(f"tsuids={one.hex()}") == {one.hex().upper(): "2"}


@pytest.mark.parametrize("cache_ms", [None, 60_000])
async def test_late_point_after_a_delete_is_not_taken_for_the_newest(cache_ms: int | None) -> None:
    """An older row than the searched ones may have a newer point."""
    world = await make_world()
    one = await world.series("m", host="a")
    endpoint = LastEndpoint(world, cache_ms)
    for time_s in (HOUR - 26 * HOUR_S, HOUR - HOUR_S):
        await store(world, one, time_s, 1)
    assert await endpoint.values(f"tsuids={one.hex()}") == {one.hex().upper(): "1"}
    row = tsuid_row(world.layout, one, HOUR - HOUR_S)
    await world.store.delete("tsdb", {row: [COLUMN + seconds_qualifier(0, 0)]}, up_to_ms=None)
    endpoint.latest.forget(world.layout, [row])
    late_s = HOUR - 50 * HOUR_S
    await store(world, one, late_s, 3)
    await record(endpoint.latest, one, late_s, 3)
    for _ in range(2):
        endpoint.clock_ms += 61_000
        assert await endpoint.values(f"tsuids={one.hex()}") == {}


@pytest.mark.parametrize("later_s", [0, 3])
@pytest.mark.parametrize("hours", [0, 30])
async def test_point_that_is_written_during_a_read_is_not_forgotten(hours: int, later_s: int) -> None:
    world = await make_world()
    one, at_s = await world.series("m", host="a"), HOUR - hours * HOUR_S
    endpoint = LastEndpoint(world, 60_000)
    await store(world, one, at_s, 1)
    await record(endpoint.latest, one, at_s, 1)
    get = world.store.get

    async def get_while_written(table: str, *args: Any, **kwargs: Any) -> dict[bytes, list[Cell]]:
        found = await get(table, *args, **kwargs)
        if table == "tsdb":
            await record(endpoint.latest, one, at_s + later_s, 3)
        return found

    endpoint.clock_ms += 61_000
    with patch.object(world.store, "get", get_while_written):
        assert await endpoint.values(f"tsuids={one.hex()}") == {one.hex().upper(): "3"}


@pytest.mark.parametrize("before", [0, 5])
async def test_held_point_that_is_stored_during_a_read_is_not_forgotten(before: int) -> None:
    """Regression: the row as it was before lacked the point, or had another value."""
    world = await make_world()
    one = await world.series("m", host="a")
    endpoint = LastEndpoint(world, 60_000)
    await store(world, one, HOUR + 10 - before, 1)
    await record(endpoint.latest, one, HOUR + 10, 3, held=True)
    get = world.store.get

    async def get_before_write(table: str, *args: Any, **kwargs: Any) -> dict[bytes, list[Cell]]:
        found = await get(table, *args, **kwargs)
        if table == "tsdb":
            await store(world, one, HOUR + 10, 3)
            await record(endpoint.latest, one, HOUR + 10, 3)
        return found

    endpoint.clock_ms += 71_000
    with patch.object(world.store, "get", get_before_write):
        assert await endpoint.values(f"tsuids={one.hex()}") == {one.hex().upper(): "3"}


class CountingStore(MemoryStore):
    """Counts the rows that are asked for."""

    rows = 0

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        self.rows += len(rows)
        return await super().get(table, rows, columns=columns)


@pytest.mark.slow
@pytest.mark.parametrize("others", [0, 30_000])
async def test_deep_back_scans_of_many_series_ask_for_few_rows(others: int) -> None:
    """Regression: one of 4,000 series without points took half a minute on Cassandra: 400,000 rows were asked for."""
    store = CountingStore(lambda: NOW_MS)
    await store.create_tables(TABLES)
    series = [(b"\0\0\1", b"\0\0\1" + number.to_bytes(3, "big")) for number in range(1500)]
    old = {series[7]: 80, series[8]: 90, series[1200]: 3, series[1300]: 0}  # hours ago
    places = [(one, hours) for one, newest in old.items() for hours in (newest, 95)]
    places += [((b"\0\0\1", b"\0\0\2" + number.to_bytes(3, "big")), 9) for number in range(others)]
    rows = [(tsuid_row(KeyLayout(), metric + pairs, HOUR - hours * HOUR_S), hours) for (metric, pairs), hours in places]
    await store.put("tsdb", [Put(row, COLUMN + seconds_qualifier(0, 0), bytes([hours])) for row, hours in rows])
    for back_h in (100, 85):
        cache = LastPointCache(0)
        reader = LastPointReader(
            DataTable(store, "tsdb", KeyLayout()), cache, lambda: NOW_MS, look_back_h=2, cache_ms=None
        )
        store.rows = 0
        found = await reader.of(series, back_h)
        values = {one: point.number for one, point in zip(series, found, strict=True) if point is not None}
        assert values == {one: hours for one, hours in old.items() if hours <= back_h}
        assert (store.rows < 5000) == (not others)  # of 150,000


async def test_resolve_adds_names_for_get_and_post() -> None:
    world = await make_world()
    one = await world.series("m", host="a")
    await store(world, one, HOUR, 1)
    LastEndpoint(world)
    body = {"queries": [{"metric": "m", "tags": {"host": "a"}}, {"tsuids": [one.hex()]}], "resolveNames": True}
    answer = await world.request("POST", "/api/query/last", body)
    wanted = {"metric": "m", "timestamp": HOUR * 1000, "value": "1", "tags": {"host": "a"}, "tsuid": one.hex().upper()}
    assert answer.body == [wanted]  # once
    assert list(answer.body[0]) == list(wanted)


@pytest.mark.parametrize(
    ("method", "query", "body", "status", "message"),
    [
        ("GET", "timeseries=m{host=a}&back_scan=-1", None, 400, "Backscan must be zero or a positive number"),
        ("GET", "timeseries=m{host=a", None, 500, "Missing '}' at the end of: m{host=a"),
        ("GET", "timeseries=m{host=*}", None, 400, "No such name for 'tagv': '*'"),
        ("GET", "tsuids=000001", None, 400, "TSUID is too short, may be missing tags"),
        ("POST", "", {"queries": [{"metric": "m", "aggregator": "sum"}]}, 400, "Unable to parse the given JSON"),
    ],
)
async def test_invalid_request_is_refused(method: str, query: str, body: object, status: int, message: str) -> None:
    world = await make_world()
    await world.series("m", host="a")
    LastEndpoint(world)
    answer = await world.request(method, f"/api/query/last?{query}", body)
    assert (answer.status, answer.body["error"]["message"]) == (status, message)


@given(anything)
def test_last_point_of_a_row_is_the_last_of_all(cells: list[StoredCell]) -> None:
    rules = MergeRules(fix_duplicates=True)
    try:
        row = merge(b"", cells, rules)
    except CorruptRow:
        return
    wanted = points(b"", cells, rules)
    assert last_of(row) == (wanted[-1] if wanted else None)


class ClearingStore(MemoryStore):
    """A store that clears a cache during reads, and gives the first slot to another series."""

    cache: LastPointCache | None = None

    async def get(
        self, table: str, rows: Collection[bytes], *, columns: Collection[bytes] | None = None
    ) -> dict[bytes, list[Cell]]:
        found = await super().get(table, rows, columns=columns)
        if self.cache is not None:
            self.cache.clear()
            self.cache.slot(METRIC, OTHER)
        return found


METRIC, ONE, OTHER = b"\0\0\1", b"\0\0\1\0\0\1", b"\0\0\1\0\0\2"


async def test_cache_cleared_during_a_read_never_mixes_series() -> None:
    memory = ClearingStore(lambda: NOW_MS)
    await memory.create_tables(TABLES)
    world = World(memory)
    await store(world, METRIC + ONE, HOUR, 111)
    memory.cache = cache = LastPointCache(0)
    reader = LastPointReader(
        DataTable(memory, "tsdb", KeyLayout()), cache, lambda: NOW_MS, look_back_h=1, cache_ms=None
    )
    assert await reader.of([(METRIC, ONE)], None) == [LastPoint(HOUR * 1000, 111)]
    memory.cache = None
    assert await reader.of([(METRIC, OTHER)], None) == [None]


async def test_lookup_lists_no_series_that_only_a_request_named() -> None:
    world = await make_world()
    latest = LastEndpoint(world)
    stored = await world.series("m", host="a")
    await world.series("other", host="b")
    await store(world, stored, HOUR, 1)
    unknown = await world.series("m", host="b")
    assert await latest.values(f"tsuids={unknown.hex()},{stored.hex()},{bytes(9).hex()}") == {stored.hex().upper(): "1"}
    world.endpoints = search.lookup_routes(world.catalog(world.finder(latest.latest)), at_once)
    answer = await world.request("GET", "/api/search/lookup?m=*&limit=1")
    assert [one["tsuid"] for one in answer.body["results"]] == [stored.hex().upper()]
    answer = await world.request("GET", "/api/search/lookup?m=m")
    assert [one["tsuid"] for one in answer.body["results"]] == [stored.hex().upper()]

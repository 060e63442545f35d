"""Which series are found: of any tags, each once, wherever they are known from; and OpenTSDB's markers."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import trio

from tests.unit.tables.endpoints import NOW_MS, World, at_once, make_world
from tsd.api import search
from tsd.codec.opentsdb.annotation import annotation_row
from tsd.codec.opentsdb.meta import TS_COUNTER, TS_META, decode_ts_meta
from tsd.codec.opentsdb.rowkey import tsuid_row
from tsd.codec.points import Columns
from tsd.codec.putline import HOUR_S, instant
from tsd.errors import StoreDown
from tsd.ingest.series import SeriesTable
from tsd.server.http.messages import Endpoint
from tsd.store import Put, Store, scan
from tsd.tables.opentsdb.last_point_cache import LastPointCache
from tsd.tables.opentsdb.series_recorder import MetaWriter
from tsd.tables.writing import SeriesKey, SeriesText

NOW_S = NOW_MS // 1000
HOUR = NOW_S // HOUR_S * HOUR_S


def lookup(world: World, meta_table: str | None = None) -> dict[str, Endpoint]:
    """The endpoint, on a catalog that finds series in the rows of the store or in its meta table."""
    finder = world.finder(LastPointCache(0), meta_table=meta_table)
    return search.lookup_routes(world.catalog(finder), at_once)


async def found(world: World, query: str) -> list[str]:
    """The tags of the series that are found, in order."""
    response = await world.request("GET", f"/api/search/lookup?{query}")
    assert response.status == 200, response
    assert response.body["totalResults"] == len(response.body["results"])
    return ["".join(sorted(one["tags"].values())) for one in response.body["results"]]


@pytest.mark.difference(
    "lookup",
    topic="metadata",
    theirs="A lookup needs the meta table. Over data rows it repeats a series for each hour",
    ours="It needs none and finds each series once, and `limit` counts series",
)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("m=m", ["a", "ac", "b"]),
        ("m=m{host=*}", ["a", "ac", "b"]),
        ("m=m{host=a}", ["a", "ac"]),
        ("m=m{host=a,cpu=*}", ["ac"]),
        ("m=m{host=a,host=b}", ["a", "ac", "b"]),
        ("m=m{cpu=}", ["ac"]),
        ("m=m{=c}", ["ac"]),
        ("m=m&limit=2", ["a", "ac"]),
        ("m=m&limit=0", ["a", "ac", "b"]),
        ("m=m&limit=-2", ["a", "ac", "b"]),  # OpenTSDB asks whether it is above 0
        ("m=other", ["a"]),
    ],
)
async def test_series_with_several_rows_is_found_once(tracked: bool, query: str, wanted: list[str]) -> None:
    world = await make_world()
    series = [await world.series("m", host=host) for host in "ab"]
    series += [await world.series("m", host="a", cpu="c"), await world.series("other", host="a")]
    for tsuid in series:
        rows = [tsuid_row(world.layout, tsuid, HOUR - hour * HOUR_S) for hour in range(3)]
        await world.store.put("tsdb", [Put(row, b"t:\0\0", b"\1") for row in rows])
        if tracked:
            await world.store.put("tsdb-meta", [Put(tsuid, TS_COUNTER, bytes(8))])
    await world.store.put("tsdb", [Put(annotation_row(world.layout, HOUR), b"t:\1\0\0", b"{}")])  # a global note
    world.endpoints = lookup(world, "tsdb-meta" if tracked else None)
    assert await found(world, query) == wanted


async def test_a_lookup_over_all_metrics() -> None:
    world = await make_world()
    for metric in ("m", "other"):
        await world.store.put("tsdb-meta", [Put(await world.series(metric, host="a"), TS_COUNTER, bytes(8))])
    world.endpoints = lookup(world, "tsdb-meta")
    response = await world.request("POST", "/api/search/lookup", {"tags": [{"key": "host", "value": "a"}], "limit": 10})
    assert [one["metric"] for one in response.body["results"]] == ["m", "other"]
    assert response.body["metric"] == "*"


def window(numbers: list[int]) -> Columns:
    size = len(numbers)
    times = np.full(size, instant(NOW_S), np.int64)
    return Columns(np.array(numbers, np.int32), times, np.zeros(size, np.uint8), np.ones(size, np.int64))


async def markers(store: Store) -> dict[bytes, dict[bytes, bytes]]:
    return {
        row.key: {cell.column: cell.value for cell in row.cells}
        async for rows in scan(store, "tsdb-meta")
        for row in rows
    }


@pytest.mark.difference(
    "tsuid-tracking",
    topic="metadata",
    theirs="With `enable_tsuid_tracking` every point writes a marker of its series",
    ours=(
        "The marker is written for a new series and once in each hour with points, so that `lastReceived` is exact "
        "to the hour"
    ),
)
async def test_series_is_marked_hourly_and_described_once() -> None:
    world = await make_world()
    clock = [NOW_S]
    received: list[bytes] = []

    async def note(tsuids: object) -> None:
        assert isinstance(tsuids, list)
        received.extend(tsuids)

    tracker = MetaWriter(world.store, "tsdb-meta", 0, lambda: clock[0], with_meta=True, on_new=note)
    table = SeriesTable()
    one = table.insert(SeriesText(b"m", b"a=b"), SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1"))
    await tracker.record(np.array([one], np.int32), table)
    await tracker.record(np.array([one], np.int32), table)
    assert tracker.marked == 1
    clock[0] += HOUR_S
    await tracker.record(np.array([one], np.int32), table)
    assert tracker.marked == 2
    tsuid = b"\0\0\1\0\0\1\0\0\1"
    [(row, cells)] = (await markers(world.store)).items()
    assert (row, cells[TS_COUNTER]) == (tsuid, (1).to_bytes(8, "big"))
    meta = decode_ts_meta(cells[TS_META])
    assert (meta.tsuid, meta.created_s, math.isnan(meta.max)) == (tsuid.hex().upper(), NOW_S, True)
    assert received == [tsuid]


async def test_failed_marker_is_written_on_retry() -> None:
    world = await make_world()
    world_store = Refusing(world.store)
    tracker = MetaWriter(world_store, "tsdb-meta", 0, lambda: NOW_S, with_meta=False)  # type: ignore[arg-type]
    table = SeriesTable()
    one = table.insert(SeriesText(b"m", b"a=b"), SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1"))
    with pytest.raises(StoreDown):
        await tracker.record(np.array([one], np.int32), table)
    world_store.refuses = False
    await tracker.record(np.array([one], np.int32), table)
    assert len(await markers(world.store)) == 1


class Refusing:
    """A store that takes nothing while it refuses."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.refuses = True

    async def put(self, table: str, cells: list[Put]) -> None:
        if self.refuses:
            raise StoreDown("as the test wants")
        await self.store.put(table, cells)


async def test_cancelled_writer_still_reports_new_series() -> None:
    """The next try finds their metadata and would report nothing."""
    world = await make_world()
    received: list[bytes] = []
    with trio.CancelScope() as scope:

        async def note(tsuids: Sequence[bytes]) -> None:
            scope.cancel()
            await trio.lowlevel.checkpoint()
            received.extend(tsuids)

        tracker = MetaWriter(world.store, "tsdb-meta", 0, lambda: NOW_S, with_meta=True, on_new=note)
        table = SeriesTable()
        one = table.insert(SeriesText(b"m", b"a=b"), SeriesKey(b"\0\0\1", b"\0\0\1\0\0\1"))
        await tracker.record(np.array([one], np.int32), table)
    assert received == [b"\0\0\1\0\0\1\0\0\1"]

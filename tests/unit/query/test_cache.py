"""The result cache: what it caches, what invalidates it, and that answers do not change."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest
import trio

from tests.unit.query.engines import DATA, START_S, QueryEnvironment, comparable, make_query
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.rowkey import KeyLayout, tsuid
from tsd.errors import BadQuery
from tsd.query.buckets import Bucketed
from tsd.query.cache import Bucketing, CachedHour, CacheKey, ResultCache
from tsd.query.engine import EngineSettings
from tsd.query.limits import Bounds, Limits
from tsd.query.model import Query
from tsd.store import Put

LAYOUTS = [KeyLayout(), KeyLayout(salt_width=1, salt_buckets=4)]
CACHES = EngineSettings(cache_bytes=1 << 20)
HOW = Bucketing(60_000, "avg", plain_percentiles=True)
LINES = [
    f"sys.cpu {START_S + at * 600 + host} {host + at * 0.5} host=web{host} dc={'lga' if host % 2 else 'sjc'}"
    for host in range(5)
    for at in range(12)
]
HOURS = 3  # that are read for two: what follows the last bucket, too, as OpenTSDB does (docs/compat/query.md §7)
M = "sum:10m-avg:sys.cpu{host=*}"


async def caching(layout: KeyLayout = LAYOUTS[0], **settings: object) -> QueryEnvironment:
    """Return an environment whose engine has a cache."""
    return await QueryEnvironment.build(LINES, layout=layout, settings=replace(CACHES, **settings))  # type: ignore[arg-type]


def counted(env: QueryEnvironment) -> tuple[int, int, int]:
    """Return the numbers of hits, misses and invalidated hours."""
    numbers = env.engine.cache.statistics()
    return numbers["hits"], numbers["misses"], numbers["invalidated"]


async def agree(env: QueryEnvironment, query: Query) -> None:
    """Check that an engine without cache has the same answer."""
    assert comparable(await env.engine.run(query)) == comparable(await env.new_engine(EngineSettings()).run(query))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_cached_hour_is_read_once(layout: KeyLayout) -> None:
    env = await caching(layout)
    await agree(env, make_query(M))
    assert counted(env) == (0, HOURS, 0)
    read = env.store.statistics()["page"]
    await env.run(M)
    assert counted(env) == (HOURS, HOURS, 0)
    assert env.store.statistics()["page"] == read
    await agree(env, make_query(M))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
@pytest.mark.parametrize(
    "m",
    [
        "sum:10m-avg:sys.cpu{dc=*}",
        "sum:10m-avg:sys.cpu{host=web1}",
        "max:10m-avg-zero:sys.cpu{host=web1|web3}",
        "none:10m-avg:sys.cpu{}{host=wildcard(*3)}",
        "sum:rate:10m-avg:sys.cpu{}{host=not_literal_or(web1)}",
    ],
)
async def test_filters_groups_and_fills_apply_to_cached_hours(m: str, layout: KeyLayout) -> None:
    env = await caching(layout)
    await env.run(M)
    await agree(env, make_query(m))
    assert counted(env) == (HOURS, HOURS, 0)


@pytest.mark.parametrize("m", ["sum:10m-avg:one", "sum:1h-sum-zero:one", "max:10m-p99:one{host=*}", "avg:5m-max:one"])
@pytest.mark.parametrize("wanted", ["*", "a", "b"])
async def test_hours_of_one_series_are_cached(m: str, wanted: str) -> None:
    """They are processed together, also next to an hour without points and one of two series."""
    rows = [(hour, "a") for hour in (0, 1, 3, 4, 5, 6)] + [(3, "b")]
    lines = [
        f"one {START_S + hour * 3600 + at * 150} {hour + at * 0.5} host={host}"
        for hour, host in rows
        for at in range(9)
    ]
    env = await QueryEnvironment.build(lines, settings=CACHES)
    query = make_query(m.partition("{")[0] + f"{{host={wanted}}}", end_ms=(START_S + 6 * 3600) * 1000 + 999_999)
    await env.engine.run(make_query(m, end_ms=query.end_ms))
    misses = counted(env)[1]
    for _ in range(2):
        await agree(env, query)
        await agree(env, make_query(m, end_ms=query.end_ms))
    assert misses >= 7
    assert counted(env) == (4 * misses, misses, 0)


async def test_bucketing_is_part_of_the_cache_key() -> None:
    env = await caching()
    for m in (M, "sum:10m-max:sys.cpu{host=*}", "sum:20m-avg:sys.cpu{host=*}", "sum:10m-p50:sys.cpu{host=*}"):
        for _ in range(2):
            await agree(env, make_query(m))
    await agree(env, make_query(M, corrected=True))
    assert counted(env) == (4 * HOURS, 5 * HOURS, 0)


@pytest.mark.parametrize("m", ["sum:sys.cpu", "sum:7m-avg:sys.cpu", "sum:0all-avg:sys.cpu", "sum:2h-avg:sys.cpu"])
async def test_buckets_across_hours_are_not_cached(m: str) -> None:
    env = await caching()
    await env.run(m)
    assert env.engine.cache.statistics()["hours"] == 0


async def test_partly_read_hours_are_not_cached() -> None:
    env = await caching()
    await env.run("sum:10m-avg:sys.cpu{host=web1}")
    assert env.engine.cache.statistics()["hours"] == 1  # the empty one


async def test_current_hour_is_not_cached() -> None:
    env = await caching()
    env.now_ms = (START_S + 7199) * 1000
    await agree(env, make_query(M))
    assert env.engine.cache.statistics()["hours"] == 1
    await agree(env, make_query(M))
    assert counted(env) == (1, 2 * HOURS - 1, 0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["plain", "salted"])
async def test_every_kind_of_write_invalidates(layout: KeyLayout) -> None:
    env = await caching(layout)
    page = await env.store.page(DATA, b"", None, limit=1)
    [row] = page.rows
    [cell] = row.cells
    writes = [
        env.put([f"sys.cpu {START_S + 7} 1000 host=web1 dc=lga"]),
        env.put([f"sys.cpu {START_S + 8} 1000 host=web9 dc=lga"]),
        env.store.delete(DATA, {row.key: [cell.column]}, up_to_ms=None),
        env.store.create(DATA, [Put(row.key, cell.column, cell.value)]),
        env.store.check_and_put(DATA, row.key, cell.column, cell.value[:-1] + b"\1", expected=cell.value),
        env.store.increment(DATA, row.key, COLUMN + b"\x01\x07", 1),
    ]
    for write in writes:
        await env.run(M)
        await write
        assert env.engine.cache.statistics()["hours"] == HOURS - 1
        await agree(env, make_query(M))


async def test_write_to_another_hour_invalidates_nothing() -> None:
    env = await caching()
    await env.run(M)
    await env.put([f"sys.cpu {START_S + 10800} 1 host=web1 dc=lga", f"sys.mem {START_S} 1 host=web1"])
    await agree(env, make_query(M))
    assert counted(env) == (HOURS, HOURS, 0)


async def test_hour_written_during_the_read_is_not_cached() -> None:
    env = await caching()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(env.run, M)
        for _ in range(40):
            await trio.lowlevel.checkpoint()
            await env.put([f"sys.cpu {START_S + 7} {trio.current_time()} host=web1 dc=lga"])
    assert env.engine.cache.statistics()["hours"] <= HOURS - 1
    await agree(env, make_query(M))


async def test_hours_with_annotations_or_duplicates_are_not_cached() -> None:
    env = await caching()
    await env.put([f"sys.cpu {START_S} 1000 host=web1 dc=lga", f"sys.cpu {START_S + 1} 1000 host=web1 dc=lga"])
    await env.put([f"sys.cpu {START_S} 1000.5 host=web1 dc=lga"])
    page = await env.store.page(DATA, b"", None, limit=100)
    series = tsuid(env.layout, page.rows[-1].key).hex().upper()
    await env.annotate(Annotation(START_S + 3700, tsuid=series, description="here"))
    for _ in range(2):
        await agree(env, make_query(M))
        await agree(env, make_query(M, no_annotations=True))
    assert env.engine.cache.statistics()["hours"] == 1  # the empty one


async def test_limits_count_cached_points() -> None:
    env = await caching(limits=Limits(Bounds(points=59), points_override=True))
    await env.run(M, override_point_limit=True)
    with pytest.raises(BadQuery, match="more than our limit of 59 data points"):
        await env.run(M)
    assert counted(env) == (HOURS, HOURS, 0)


def hour(base_s: int, size: int) -> CachedHour:
    """Return an hour of one row."""
    none = np.zeros(0, np.int64)
    buckets = Bucketed(np.array([0, size]), none.astype(np.uint32), np.zeros(size))
    return CachedHour(base_s, (b"a",), none.astype(np.int32), none, buckets, 0)


def keys(metric: bytes, bases: Iterable[int]) -> list[CacheKey]:
    """Return the keys of some hours."""
    return [CacheKey(metric + base.to_bytes(4, "big"), HOW) for base in bases]


def fill(cache: ResultCache, metric: bytes, bases: Sequence[int], size: int) -> None:
    """Cache some hours."""
    wanted = keys(metric, bases)
    with cache.reading(key.hour for key in wanted) as pending:
        cache.put(pending, zip(wanted, [hour(base, size) for base in bases], strict=True))


def test_least_recently_used_hours_are_evicted() -> None:
    cache = ResultCache(100_000)
    hours = range(0, 36_000, 3600)
    fill(cache, b"abc", hours, 1500)
    assert sorted(cache.get(keys(b"abc", hours))) == [0, 3600, 7200]  # one query fills half
    assert cache.statistics()["bytes"] <= 50_000
    for metric in (b"abd", b"abe"):
        cache.get(keys(b"abc", [0, 7200]))
        fill(cache, metric, [0, 3600], 1900)
    assert cache.statistics()["bytes"] <= 100_000
    assert list(cache.get(keys(b"abc", hours))) == [0, 7200]
    cache.invalidate(None)
    assert cache.statistics()["hours"] == cache.statistics()["bytes"] == 0

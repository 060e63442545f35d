"""Groups that are aggregated while rows are read equal those merged from the points of their series, bit by bit."""

import random
import tempfile
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.query.engines import NOW_MS, START_S, QueryEnvironment, least_memory, make_query
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Points
from tsd.query.columns import Chosen
from tsd.query.engine import EngineSettings
from tsd.query.merge import merge
from tsd.query.row_buckets import HAS_LOOP
from tsd.query.same_times import FUNCTIONS
from tsd.store.rocksdb.engine import EmbeddedStore
from tsd.tables.reading import ScanRange

SERIES = 96  # rows of an hour: enough to be read as a table
QUERIES = [f"{name}:m{tags}" for name in FUNCTIONS for tags in ("", "{dc=*}", "{host=*}", "{dc=*,cpu=0}")]
MEANS = "sum:10m-avg:m{dc=*}"
HOURS = {"end_ms": (START_S + 3 * 3600) * 1000 - 1}


def value(kind: str, chance: random.Random) -> str:
    match kind:
        case "integers":
            return str(chance.choice([0, 1, -7, 1 << 40]))
        case "longs":
            return str(chance.choice([(1 << 63) - 1, -(1 << 63), 5]))
        case "doubles":
            return chance.choice(["0.5", "-0.5", "0.1", "-3.25", "1000000.7"])
        case "wide":  # such a cell is not packed
            return repr(chance.choice([1e300, 1e-7, chance.random()]))
        case _:
            return chance.choice(["-3", "12", "0.1", "2.5"])


def lines(seed: int, kind: str, hours: Sequence[int], odd: str, least: int = 16, count: int = SERIES) -> Iterator[str]:
    """Yield points of series that have the same times, but for those that are `odd`."""
    chance = random.Random(seed)
    times = {hour: sorted(chance.sample(range(3600), least + chance.randrange(20))) for hour in hours}
    for series in range(count):
        tags = f"host=h{series // 8} cpu={series % 8} dc=d{series % 3}" + (
            " rack=r" if odd == "tags" and series % 2 else ""
        )
        kinds = chance.choice(["integers", "longs", "doubles", "mixed"]) if kind == "any" else kind
        for hour in hours:
            own = times[hour]
            if series == count - 1:  # the last one read, when the others are summed already
                match odd:
                    case "point":
                        own = own[1:]
                    case "time":
                        own = [*own[:-1], own[-1] + 1] if own[-1] < 3599 else own[1:]
                    case "hour" if hour == hours[-1]:
                        continue
            for at in own:
                yield f"m {START_S + hour * 3600 + at} {value(kinds, chance)} {tags}"


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(
    st.integers(0, 1 << 30),
    st.sampled_from(["integers", "longs", "doubles", "mixed", "any", "wide"]),
    st.sampled_from([[0], [0, 1], [0, 2], [0, 1, 2]]),
    st.sampled_from(["", "", "point", "time", "hour", "tags"]),
    st.sampled_from([0, 1]),
)
async def test_sums_of_rows(seed: int, kind: str, hours: list[int], odd: str, salt_width: int) -> None:
    layout = KeyLayout(salt_width=salt_width, salt_buckets=3)
    points = list(lines(seed, kind, hours, odd))
    with tempfile.TemporaryDirectory() as folder:
        store = await EmbeddedStore.open(folder, lambda: NOW_MS)
        try:
            packed = await QueryEnvironment.build(points, layout=layout, store=store)
            cells = await QueryEnvironment.build(points, layout=layout)
            for m in random.Random(seed).sample(QUERIES, 8):
                wanted = await merged(cells, m)
                for env in (packed, cells):
                    assert {
                        group.tags.get(tag_of(m), ""): bits(group.points) for group in await env.groups(m, **HOURS)
                    } == wanted
        finally:
            await store.aclose()


@pytest.mark.parametrize("odd", ["", "point", "time", "hour", "tags"])
async def test_sums_of_rows_that_are_not_held(odd: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Where the last ones do not fit, all are read again."""
    points = list(lines(5, "mixed", [0, 2], odd, count=200))
    store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
    try:
        env = await QueryEnvironment.build(points, store=store)
        engine = env.new_engine(EngineSettings(summed_bytes=0))
        for m in QUERIES[:4]:
            answer = await engine.run(make_query(m, **HOURS))
            assert {
                group.tags.get(tag_of(m), ""): bits(group.points) for group in answer.subs[0].groups
            } == await merged(env, m)
            assert "cpu=0" in m or answer.subs[0].stats["dpsPreFilter"] == len(points)
    finally:
        await store.aclose()


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["", "point", "hour", "tags"])
@pytest.mark.parametrize("salt_width", [0, 1])
async def test_sums_of_cached_rows_and_of_blocks(
    odd: str, salt_width: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    layout = KeyLayout(salt_width=salt_width, salt_buckets=2)
    points = list(lines(7, "mixed", [0, 2], odd, count=640))
    store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
    try:
        env = await QueryEnvironment.build(points, layout=layout, store=store)
        cells = await QueryEnvironment.build(points, layout=layout)
        questions = [*QUERIES[:4], "min:m{dc=*}", "avg:m{host=*}"]
        wanted = {m: await merged(cells, m) for m in questions}
        means = [bits(group.points) for group in await cells.groups(MEANS, **HOURS)]
        for folded in (False, True):
            for m in questions * 2:
                assert {
                    group.tags.get(tag_of(m), ""): bits(group.points) for group in await env.groups(m, **HOURS)
                } == wanted[m]
            assert [bits(group.points) for group in await env.groups(MEANS, **HOURS)] == means
            if not folded:
                assert store.statistics()["row_cache.hits"] or not HAS_LOOP
                store.column_blocks.forget()
                page = await store.page("tsdb", b"", None, limit=5000)
                for prefix in {row.key[: layout.pairs_start] for row in page.rows}:
                    await store.column_blocks.fold("tsdb", prefix)
    finally:
        await store.aclose()


def tag_of(m: str) -> str:
    """Return the tag name that a query groups by."""
    return m.partition("{")[2].partition("=")[0]


async def merged(env: QueryEnvironment, m: str) -> dict[str, object]:
    """Return the points of each group by the value of its tag, merged from those of its series."""
    aggregator, _, filters = m.partition(":")
    found = await env.engine.work(lambda job: job.stored.series(make_query(m, **HOURS)))
    points = {tuple(sorted(one.tags.items())): one.points for one in found}
    series: dict[str, list[Points]] = {}
    for one in await env.groups(f"none:{filters}", **HOURS):  # in the order of additions
        own = points[tuple(sorted(one.tags.items()))]
        series.setdefault(one.tags[tag_of(m)] if tag_of(m) else "", []).append(own)
    scan = ScanRange(START_S, START_S + 3 * 3600)
    return {value: bits(merge(Chosen.all_of(some), aggregator, scan).points) for value, some in series.items()}


def bits(points: Points) -> list[list[int]]:
    """Return times, kinds and bits of points. All NaN are the same."""
    values = np.where(points.floats & np.isnan(points.doubles()), 0, points.bits)
    return [points.times.tolist(), points.floats.tolist(), values.tolist()]


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: points are kept")
async def test_sums_do_not_keep_points(tmp_path_factory: pytest.TempPathFactory) -> None:
    needed = []
    for odd in ("", "point"):
        store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
        try:
            env = await QueryEnvironment.build(list(lines(1, "doubles", [0], odd, 300)), store=store)
            needed.append(await least_memory(env.new_engine, make_query("sum:m")))
        finally:
            await store.aclose()
    assert needed[0] < needed[1] / 2


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: points are kept")
async def test_sums_of_blocks_do_not_keep_points(tmp_path_factory: pytest.TempPathFactory) -> None:
    needed = []
    for aggregator in ("sum", "dev"):
        store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
        try:
            env = await QueryEnvironment.build(list(lines(1, "doubles", [0], "", 300)), store=store)
            page = await store.page("tsdb", b"", None, limit=1)
            assert (await store.column_blocks.fold("tsdb", page.rows[0].key[: KeyLayout().pairs_start])).cells == SERIES
            needed.append(await least_memory(env.new_engine, make_query(f"{aggregator}:m")))
        finally:
            await store.aclose()
    assert needed[0] < needed[1] / 2


@pytest.mark.slow
@pytest.mark.parametrize("late", [1, 0])
async def test_sums_of_rows_with_two_cells(late: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    """As after a restart, until they are compacted. Points of one time twice are counted: such rows are kept."""
    store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
    try:
        env = await QueryEnvironment.build([], store=store)
        cells = await QueryEnvironment.build([])
        for shift in (0, late):
            points = [
                f"m {START_S + hour + at * 4 + shift} {number % 7 + at / 4 + shift} host=h{number} dc=d{number % 3}"
                for hour in (0, 3600)
                for number in range(90)
                for at in range(150)
            ]
            for each in (env, cells):
                await each.put(points)
        for m in ("sum:m", "max:m{dc=*}", "avg:m{dc=*}"):
            found = {group.tags.get(tag_of(m), ""): bits(group.points) for group in await env.groups(m, **HOURS)}
            assert found == await merged(cells, m)
        needed = {m: await least_memory(env.new_engine, make_query(m, **HOURS)) for m in ("sum:m", "dev:m")}
        assert not (HAS_LOOP and late) or needed["sum:m"] < needed["dev:m"] / 2
    finally:
        await store.aclose()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: points are kept")
async def test_small_last_page_is_summed(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As at the end of each bucket of a salted table: here the first has 68 rows, the second one 60."""
    needed = []
    for aggregator in ("sum", "dev"):
        store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
        try:
            points = list(lines(1, "doubles", [0], "", 300, 128))
            env = await QueryEnvironment.build(points, store=store, layout=KeyLayout(salt_width=1, salt_buckets=2))
            needed.append(await least_memory(env.new_engine, make_query(f"{aggregator}:m")))
        finally:
            await store.aclose()
    assert needed[0] < needed[1] / 2


async def test_rows_of_other_series_are_not_held(tmp_path_factory: pytest.TempPathFactory) -> None:
    points = list(lines(1, "doubles", [0, 1, 2], ""))
    store = await EmbeddedStore.open(tmp_path_factory.mktemp("store"), lambda: NOW_MS)
    try:
        for each in (None, store):
            env = await QueryEnvironment.build(points, store=each)
            summed = await least_memory(env.new_engine, make_query("sum:m{host=h3}", **HOURS))
            assert summed <= await least_memory(env.new_engine, make_query("dev:m{host=h3}", **HOURS)) * 1.1
    finally:
        await store.aclose()

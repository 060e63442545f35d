"""Bounds and warnings of histograms, rollups and pre-aggregates."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import TypeVar

import pytest

from tests.unit.query.engines import DATA, NOW_MS, START_S, QueryEnvironment, least_memory, make_query, values
from tests.unit.query.test_rollups import ROLLUPS
from tsd.codec.opentsdb.cell import COLUMN, FAMILY
from tsd.codec.opentsdb.histogram import encode_histogram, histogram_qualifier, join_value
from tsd.codec.opentsdb.rollup import rollup_base, rollup_qualifier
from tsd.codec.opentsdb.rowkey import row_key
from tsd.codec.points import Bucket, Histogram
from tsd.codec.putline import HOUR_S
from tsd.errors import BadQuery
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.histograms import added
from tsd.query.limits import Bounds, Limits
from tsd.query.model import Query
from tsd.store import Family, Put, Table, scan
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadTable, SummarySources

T = TypeVar("T")

METRIC = b"\0\0\1"
CODEC = 42
SUM = 0  # its id in ROLLUPS
HOUR = ROLLUPS.config.interval("1h")
DAY_S = 86_400
SERIES = [f"m {START_S - 40 * DAY_S} 1 host={host}" for host in "ab"]  # for their names, long before
ONE = Histogram((Bucket(0.0, 1.0, 3), Bucket(1.0, 2.0, 1)))
PERCENTILES = "sum:percentiles[50,99]:m"


class SummaryEnvironment(QueryEnvironment):
    """An environment with rollups and histograms."""

    pairs: tuple[bytes, ...]

    @classmethod
    async def filled(cls, settings: EngineSettings | None = None) -> "SummaryEnvironment":
        """Return an environment with two series and irrelevant points."""
        env = await cls.build(SERIES)
        assert isinstance(env, SummaryEnvironment)
        tables = {name for one in ROLLUPS.config.intervals for name in (one.table, one.pre_aggregate_table)} - {DATA}
        await env.store.create_tables([Table(name, (Family(FAMILY),)) for name in tables])
        env.pairs = tuple(sorted(await env.index.with_tag(METRIC, b"", 9) or []))
        env.engine = env.new_summary_engine(settings or EngineSettings())
        return env

    def new_summary_engine(self, settings: EngineSettings, complete_until_s: int | None = None) -> QueryEngine:
        """Return an engine that reads rollups and histograms. `complete_until_s`: until when rollups have all points;
        None: that is not known."""
        complete = None if complete_until_s is None else lambda *_: complete_until_s
        reader = OpenTsdbReader(
            ReadTable(self.store, DATA, self.layout),
            self.uids,
            summaries=SummarySources(ROLLUPS, complete, histogram_codec=CODEC),
        )
        return QueryEngine(reader, settings=settings, flush=self._flush, now_ms=lambda: NOW_MS)

    async def histogram(self, at_s: int, value: bytes, series: int = 0) -> None:
        """Store a histogram's cell."""
        key = row_key(self.layout, METRIC, at_s // HOUR_S * HOUR_S, self.pairs[series])
        await self.store.put(DATA, [Put(key, COLUMN + histogram_qualifier(at_s), value)])

    async def sums(self, points: Mapping[int, int], series: int = 0) -> None:
        """Store the sums of hours."""
        puts = []
        for at_s, value in points.items():
            key = row_key(self.layout, METRIC, rollup_base(at_s, HOUR), self.pairs[series])
            puts.append(Put(key, COLUMN + rollup_qualifier(SUM, at_s, HOUR, 0), bytes((value,))))
        await self.store.put(HOUR.table, puts)


async def with_histograms(settings: EngineSettings | None = None, values: Iterable[bytes] = ()) -> SummaryEnvironment:
    env = await SummaryEnvironment.filled(settings)
    stored = list(values) or [join_value(CODEC, encode_histogram(ONE))] * 4
    for place, value in enumerate(stored):
        await env.histogram(START_S + place * 60, value, place % 2)
    return env


def bounded(**bounds: int) -> EngineSettings:
    return EngineSettings(Limits(Bounds(**bounds), size_override=True, points_override=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (bounded(points=3), "more than our limit of 3 data points"),
        (bounded(size=40), "more than our maximum amount of 0MB from storage"),
    ],
)
async def test_limits_apply_to_histograms(settings: EngineSettings, message: str) -> None:
    env = await with_histograms(settings)
    with pytest.raises(BadQuery, match=message) as caught:
        await env.run(PERCENTILES)
    assert caught.value.status == 413
    assert env.engine.memory.held == 0
    free = await env.run(PERCENTILES, override_byte_limit=True, override_point_limit=True)
    assert len(free.subs[0].groups) == 2


async def test_memory_of_histograms_and_buckets_is_counted() -> None:
    wide = Histogram(tuple(Bucket(float(at), at + 1.0, 1) for at in range(40)))
    few, many = await with_histograms(), await with_histograms(values=[join_value(CODEC, encode_histogram(ONE))] * 100)
    large = await with_histograms(values=[join_value(CODEC, encode_histogram(wide))] * 100)
    of_few, of_many, of_large = [
        await least_memory(env.new_summary_engine, make_query(PERCENTILES)) for env in (few, many, large)
    ]
    assert of_few < of_many / 2
    assert of_many < of_large / 2


async def test_histograms_are_added_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def watched(some: Iterable[Histogram]) -> Histogram:
        threads.add(threading.get_ident())
        return added(some)

    monkeypatch.setattr("tsd.query.histograms.added", watched)
    env = await with_histograms()
    answer = await env.run(PERCENTILES)
    assert [values(group)[60] for group in answer.subs[0].groups] == [0.5, 1.5]
    assert threads
    assert threading.get_ident() not in threads
    counts = {name: answer.subs[0].stats[name] for name in ("rowsPreFilter", "rowsPostFilter", "dpsPostFilter")}
    assert counts == {"rowsPreFilter": 2, "rowsPostFilter": 2, "dpsPostFilter": 4}


def watched_runs(env: SummaryEnvironment, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record the calls of the engine's workers."""
    runs, run = list[object](), env.engine.workers.run

    async def watched(work: Callable[[], T]) -> T:
        runs.append(work)
        return await run(work)

    monkeypatch.setattr(env.engine.workers, "run", watched)
    return runs


async def test_thread_call_handles_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: each group had three thread calls."""
    env = await with_histograms()
    runs = watched_runs(env, monkeypatch)
    taken = []
    for m, groups in ((PERCENTILES, 2), ("none:percentiles[50,99]:m", 4)):
        runs.clear()
        assert len((await env.run(m)).subs[0].groups) == groups
        taken.append(len(runs))
    assert taken == [4, 4]  # to decode, to sort out, to add up, to answer


async def test_small_slices_use_more_thread_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    env = await with_histograms(EngineSettings(histogram_slice=1))
    runs = watched_runs(env, monkeypatch)
    found = (await env.run("none:percentiles[50,99]:m")).subs[0].groups
    assert [list(group.tags.values()) for group in found] == [["a"], ["a"], ["b"], ["b"]]
    assert len(runs) == 6


async def test_few_rollups_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    env = await SummaryEnvironment.filled()
    await env.sums({START_S + hour * HOUR_S: hour for hour in range(4)})
    await env.put([f"m {START_S + at} 1 host=a" for at in range(4)])
    runs = watched_runs(env, monkeypatch)
    for m in ("sum:1h-sum:m", "max:1h-max:rollup_fallback_raw:m"):
        assert len((await env.run(m)).subs[0].groups) == 1
    assert runs == []


@pytest.mark.slow
async def test_added_histograms_may_exceed_the_bucket_limit() -> None:
    """Regression: answers were checked like histograms to store."""
    each = 20_000
    env = await with_histograms(
        values=[
            join_value(CODEC, encode_histogram(Histogram(tuple(Bucket(n, n + 1.0, 1) for n in map(float, numbers)))))
            for numbers in (range(each), range(each, 2 * each))
        ]
    )
    answer = await env.run("sum:1h-sum:percentiles[50]:m")
    assert [values(group) for group in answer.subs[0].groups] == [{0: each - 0.5}]


@pytest.mark.difference(
    "unreadable-histograms",
    topic="rollups",
    theirs="A histogram that cannot be read fails the query",
    ours="It is a warning",
)
@pytest.mark.parametrize(
    "broken",
    [b"\x2a\0\2" + bytes(6), b"\7" + bytes(9), b"\x2a", bytes.fromhex("2a000080800100")],
    ids=["cut", "codec", "short", "empty"],
)
async def test_unreadable_histogram_is_a_warning(broken: bytes) -> None:
    """Regression: the query failed with status 500."""
    env = await with_histograms(values=[join_value(CODEC, encode_histogram(ONE)), broken])
    answer = await env.run(PERCENTILES)
    assert [list(values(group)) for group in answer.subs[0].groups] == [[0], [0]]
    [warning] = answer.warnings
    assert "00000150e22700" in warning
    alone = await with_histograms(values=[broken])
    answer = await alone.run(PERCENTILES)
    assert (answer.subs[0].groups, len(answer.warnings), alone.engine.warnings) == ([], 1, 1)


@pytest.mark.parametrize(
    ("settings", "m", "message"),
    [
        (bounded(points=3), "sum:1h-sum:m", "more than our limit of 3 data points"),
        (bounded(size=10), "sum:1h-sum:m", "more than our maximum amount of 0MB from storage"),
    ],
)
async def test_limits_apply_to_rollups(settings: EngineSettings, m: str, message: str) -> None:
    env = await SummaryEnvironment.filled(settings)
    await env.sums({START_S + hour * HOUR_S: hour for hour in range(4)})
    with pytest.raises(BadQuery, match=message) as caught:
        await env.engine.run(day_query(m))
    assert caught.value.status == 413
    assert env.engine.memory.held == 0


async def test_memory_of_rollups_and_fills_is_counted() -> None:
    env = await SummaryEnvironment.filled()
    await env.sums({START_S + hour * HOUR_S: hour for hour in range(2)})
    of_two = await least_memory(env.new_summary_engine, day_query("sum:1h-sum:m"))
    filled = await least_memory(env.new_summary_engine, day_query("sum:1h-sum-zero:m"))
    await env.sums({START_S + hour * HOUR_S: hour for hour in range(24)})
    assert of_two < 0.8 * await least_memory(env.new_summary_engine, day_query("sum:1h-sum:m"))
    assert of_two < 0.8 * filled


async def test_memory_of_rollups_that_are_joined_with_points_is_counted() -> None:
    env = await SummaryEnvironment.filled()
    await env.sums({START_S + hour * HOUR_S: hour for hour in range(24)})
    await env.put([f"m {START_S + DAY_S + at} 1 host=a" for at in range(4)])
    new_engine = partial(env.new_summary_engine, complete_until_s=START_S + DAY_S)
    one_day, ten_days = (
        day_query("sum:1h-sum:m"),
        replace(day_query("sum:1h-sum:m"), end_ms=(START_S + 10 * DAY_S) * 1000),
    )
    filled = replace(day_query("sum:1h-sum-zero:m"), end_ms=ten_days.end_ms)
    few = await least_memory(new_engine, replace(one_day, end_ms=(START_S + 2 * HOUR_S) * 1000 - 1))
    assert few < 0.8 * await least_memory(new_engine, ten_days)
    assert await least_memory(new_engine, ten_days) < 0.5 * await least_memory(new_engine, filled)


def day_query(m: str) -> Query:
    """Return a query of one day."""
    return replace(make_query(m), end_ms=(START_S + DAY_S) * 1000)


async def test_limits_apply_to_pre_aggregates_and_fallbacks() -> None:
    env = await SummaryEnvironment.filled()
    await env.put([f"m {START_S + at} 1 host=a" for at in range(4)])
    async for rows in scan(env.store, DATA):
        cells = [Put(row.key, cell.column, cell.value) for row in rows for cell in row.cells]
        await env.store.put(ROLLUPS.config.default.pre_aggregate_table, cells)
    narrow = env.new_summary_engine(bounded(points=3))
    for m in ("sum:pre-agg:m", "sum:1h-sum:rollup_fallback_raw:m", "sum:1h-sum:rollup_fallback:m"):
        with pytest.raises(BadQuery, match="limit of 3 data points"):
            await narrow.run(make_query(m))
        assert len((await env.run(m)).subs[0].groups) == 1


@pytest.mark.difference("first-bucket")
async def test_corrected_bucket_longer_than_a_rollup_row_is_whole() -> None:
    """Regression: the row before the start, where a week's bucket starts, was not read."""
    start_s = START_S + 3 * DAY_S + 5 * HOUR_S
    bucket_s = start_s // (7 * DAY_S) * 7 * DAY_S
    env = await SummaryEnvironment.filled()
    await env.sums({bucket_s + day * DAY_S: 1 for day in range(21)})
    for m, weeks in (("sum:1w-sum:m", [7, 7]), ("sum:1w-sum-zero:m", [7, 7]), ("sum:7d-sum:rate:m", [0])):
        query = make_query(m, corrected=True, start_ms=start_s * 1000, end_ms=(bucket_s + 8 * DAY_S) * 1000)
        [group] = (await env.engine.run(query)).subs[0].groups
        shown = {at: value for at, value in values(group).items() if bucket_s <= at + START_S <= bucket_s + 8 * DAY_S}
        assert list(shown.values()) == weeks, m
        assert max(shown) == bucket_s + 7 * DAY_S - START_S

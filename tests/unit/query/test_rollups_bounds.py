"""Histograms, rollups and pre-aggregates keep to the bounds of raw points, and what of them cannot be read is told."""

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.unit.query.engines import DATA, NOW_MS, START_S, House, asked, values
from tests.unit.query.test_rollups_read import ROLLUPS
from tsd.codec.cell import COLUMN, FAMILY
from tsd.codec.histogram import Bucket, Histogram, encode_histogram, histogram_qualifier, join_value
from tsd.codec.rollup import rollup_base, rollup_qualifier
from tsd.codec.rowkey import row_key
from tsd.codec.times import HOUR_S
from tsd.errors import BadQuery
from tsd.query import histograms
from tsd.query.beside import Beside
from tsd.query.engine import Engine, Settings
from tsd.query.gathering import POINT_BYTES, SERIES_BYTES
from tsd.query.histograms import BUCKET_BYTES, HISTOGRAM_BYTES, HistogramReader, added
from tsd.query.limits import Bounds, Limits
from tsd.query.rollups import RollupReader
from tsd.store import Family, Put, Table, scan

T = TypeVar("T")

METRIC = b"\0\0\1"
CODEC = 42
SUM = 0  # its id in ROLLUPS
HOUR = ROLLUPS.config.interval("1h")
DAY_S = 86_400
SERIES = [f"m {START_S - 40 * DAY_S} 1 host={host}" for host in "ab"]  # for their names, long before
ONE = Histogram((Bucket(0.0, 1.0, 3), Bucket(1.0, 2.0, 1)))
PERCENTILES = "sum:percentiles[50,99]:m"


class Summed(House):
    """A house whose engine reads rollups and histograms too."""

    pairs: tuple[bytes, ...]

    @classmethod
    async def filled(cls, settings: Settings | None = None) -> "Summed":
        """One with two series, and no points that matter."""
        house = await cls.build(SERIES)
        assert isinstance(house, Summed)
        tables = {name for one in ROLLUPS.config.intervals for name in (one.table, one.pre_aggregate_table)} - {DATA}
        await house.store.create_tables([Table(name, (Family(FAMILY),)) for name in tables])
        house.pairs = tuple(sorted(await house.index.with_tag(METRIC, b"", 9) or []))
        house.engine = house.summing(settings or Settings())
        return house

    def summing(self, settings: Settings) -> Engine:
        """An engine with such settings."""
        rollups = RollupReader(self.store, DATA, self.layout, ROLLUPS)
        reader = HistogramReader(self.store, DATA, self.layout, self.uids, CODEC)
        return Engine(
            self.store,
            DATA,
            self.uids,
            self.layout,
            summaries=Beside(rollups, reader),
            settings=settings,
            flush=self._flush,
            now_ms=lambda: NOW_MS,
        )

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


async def with_histograms(settings: Settings | None = None, values: Iterable[bytes] = ()) -> Summed:
    house = await Summed.filled(settings)
    stored = list(values) or [join_value(CODEC, encode_histogram(ONE))] * 4
    for place, value in enumerate(stored):
        await house.histogram(START_S + place * 60, value, place % 2)
    return house


def bounded(**bounds: int) -> Settings:
    return Settings(Limits(Bounds(**bounds), size_override=True, points_override=True))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (bounded(points=3), "more than our limit of 3 data points"),
        (bounded(size=40), "more than our maximum amount of 0MB from storage"),
        (Settings(memory_bytes=4 * HISTOGRAM_BYTES), r"tsd\.query\.memory_limit"),
        (
            Settings(memory_bytes=4 * (HISTOGRAM_BYTES + 2 * BUCKET_BYTES) + 2 * SERIES_BYTES + 4 * POINT_BYTES),
            "memory",
        ),
    ],
)
async def test_histograms_have_the_limits_of_points(settings: Settings, message: str) -> None:
    house = await with_histograms(settings)
    with pytest.raises(BadQuery, match=message) as caught:
        await house.run(PERCENTILES)
    assert caught.value.status == 413
    assert house.engine.memory.held == 0
    if "memory" not in message:
        free = await house.run(PERCENTILES, override_byte_limit=True, override_point_limit=True)
        assert len(free.subs[0].groups) == 2


async def test_histograms_are_added_up_in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def watched(some: Iterable[Histogram]) -> Histogram:
        threads.add(threading.get_ident())
        return added(some)

    monkeypatch.setattr(histograms, "added", watched)
    house = await with_histograms()
    answer = await house.run(PERCENTILES)
    assert [values(group)[60] for group in answer.subs[0].groups] == [0.5, 1.5]
    assert threads
    assert threading.get_ident() not in threads
    counts = {name: answer.subs[0].stats[name] for name in ("rowsPreFilter", "rowsPostFilter", "dpsPostFilter")}
    assert counts == {"rowsPreFilter": 2, "rowsPostFilter": 2, "dpsPostFilter": 4}


def watched_runs(house: Summed, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What the engine's threads are given, as it comes."""
    runs, run = list[object](), house.engine.threads.run

    async def watched(work: Callable[[], T]) -> T:
        runs.append(work)
        return await run(work)

    monkeypatch.setattr(house.engine.threads, "run", watched)
    return runs


async def test_a_thread_is_for_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each had three turns, and waited for each of them."""
    house = await with_histograms()
    runs = watched_runs(house, monkeypatch)
    taken = []
    for m, groups in ((PERCENTILES, 2), ("none:percentiles[50,99]:m", 4)):
        runs.clear()
        assert len((await house.run(m)).subs[0].groups) == groups
        taken.append(len(runs))
    assert taken == [4, 4]  # to decode, to sort out, to add up, to answer
    monkeypatch.setattr(histograms, "SLICE_BUCKETS", 1)
    runs.clear()
    parted = (await house.run("none:percentiles[50,99]:m")).subs[0].groups
    assert [list(group.tags.values()) for group in parted] == [["a"], ["a"], ["b"], ["b"]]
    assert len(runs) == 6


async def test_few_rollups_need_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    house = await Summed.filled()
    await house.sums({START_S + hour * HOUR_S: hour for hour in range(4)})
    await house.put([f"m {START_S + at} 1 host=a" for at in range(4)])
    runs = watched_runs(house, monkeypatch)
    for m in ("sum:1h-sum:m", "max:1h-max:rollup_fallback_raw:m"):
        assert len((await house.run(m)).subs[0].groups) == 1
    assert runs == []


async def test_histograms_may_have_more_buckets_together_than_one_may_have() -> None:
    """It ended the query: what is answered was checked as if it were to be stored."""
    each = 20_000
    house = await with_histograms(
        values=[
            join_value(CODEC, encode_histogram(Histogram(tuple(Bucket(n, n + 1.0, 1) for n in map(float, numbers)))))
            for numbers in (range(each), range(each, 2 * each))
        ]
    )
    answer = await house.run("sum:1h-sum:percentiles[50]:m")
    assert [values(group) for group in answer.subs[0].groups] == [{0: each - 0.5}]


@pytest.mark.parametrize(
    "broken",
    [b"\x2a\0\2" + bytes(6), b"\7" + bytes(9), b"\x2a", bytes.fromhex("2a000080800100")],
    ids=["cut", "codec", "short", "empty"],
)
async def test_a_histogram_that_cannot_be_read_is_a_warning(broken: bytes) -> None:
    """It ended the query, with 500."""
    house = await with_histograms(values=[join_value(CODEC, encode_histogram(ONE)), broken])
    answer = await house.run(PERCENTILES)
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
        (Settings(memory_bytes=4 * POINT_BYTES), "sum:1h-sum:m", r"tsd\.query\.memory_limit"),
        (Settings(memory_bytes=20 * POINT_BYTES + 2 * SERIES_BYTES), "sum:1h-sum-zero:m", r"tsd\.query\.memory_limit"),
    ],
)
async def test_rollups_have_the_limits_of_points(settings: Settings, m: str, message: str) -> None:
    house = await Summed.filled(settings)
    await house.sums({START_S + hour * HOUR_S: hour for hour in range(4)})
    with pytest.raises(BadQuery, match=message) as caught:
        await house.engine.run(replace(asked(m), end_ms=(START_S + DAY_S) * 1000))
    assert caught.value.status == 413
    assert house.engine.memory.held == 0


async def test_pre_aggregates_and_what_is_fallen_back_to_have_the_limits_of_points() -> None:
    house = await Summed.filled()
    await house.put([f"m {START_S + at} 1 host=a" for at in range(4)])
    async for rows in scan(house.store, DATA):
        cells = [Put(row.key, cell.column, cell.value) for row in rows for cell in row.cells]
        await house.store.put(ROLLUPS.config.default.pre_aggregate_table, cells)
    narrow = house.summing(bounded(points=3))
    for m in ("sum:pre-agg:m", "sum:1h-sum:rollup_fallback_raw:m", "sum:1h-sum:rollup_fallback:m"):
        with pytest.raises(BadQuery, match="limit of 3 data points"):
            await narrow.run(asked(m))
        assert len((await house.run(m)).subs[0].groups) == 1


async def test_a_bucket_longer_than_a_rollup_row_is_answered_whole_when_corrected() -> None:
    """The rows were read from that of the start: a week's bucket began before it, and was left out."""
    start_s = START_S + 3 * DAY_S + 5 * HOUR_S
    bucket_s = start_s // (7 * DAY_S) * 7 * DAY_S
    house = await Summed.filled()
    await house.sums({bucket_s + day * DAY_S: 1 for day in range(21)})
    for m, weeks in (("sum:1w-sum:m", [7, 7]), ("sum:1w-sum-zero:m", [7, 7]), ("sum:7d-sum:rate:m", [0])):
        query = asked(m, corrected=True, start_ms=start_s * 1000, end_ms=(bucket_s + 8 * DAY_S) * 1000)
        [group] = (await house.engine.run(query)).subs[0].groups
        shown = {at: value for at, value in values(group).items() if bucket_s <= at + START_S <= bucket_s + 8 * DAY_S}
        assert list(shown.values()) == weeks, m
        assert max(shown) == bucket_s + 7 * DAY_S - START_S

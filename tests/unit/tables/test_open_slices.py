"""Open points of many series are read in slices: answers are those of the same points once they are stored."""

import math
import random
import threading
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.lowlevel

from tests import layouts
from tests.seeds import seeds
from tests.unit.ingest.parts import BASE, Parts, going, make_store
from tests.unit.tables.test_open_points import Readers, answers, put
from tsd.codec.points import NO_COLUMNS, POINT_BYTES, Columns, Int32
from tsd.ingest.metric_points import points_of_metric
from tsd.ingest.packed_points import _Chunk, pack
from tsd.tables.open_points import OpenPoints, OpenSlice, SeriesByHour, SlicedRows
from tsd.tables.reading import EncodedPage, PointPage, ScanRange
from tsd.tables.writing import SeriesKeys

pytestmark = layouts.on_all

QUERIES = (
    "sum:m",
    "avg:m{host=*}",
    "zimsum:m{host=literal_or(h01|h40)}",
    "max:1m-avg:m{host=*}",
    "sum:10m-count:m",
    "sum:rate:m",
)


async def take_hour(parts: Parts, rng: random.Random, hosts: list[str], *, odd: bool) -> None:
    """Send points of many series, packed in between."""
    for at in range(150):
        lines = [put(BASE + 10 * at, rng.choice([at, 0.5, 7.1, 1 << 40]), host) for host in hosts]
        if odd and at % 7 == 0:
            lines = rng.sample(lines, len(lines) // 2)
            lines += [put(BASE + 10 * rng.randrange(at + 1), -at, rng.choice(hosts)) for _ in range(3)]
            lines += [put(BASE + 3600 + at, at, rng.choice(hosts)), put(BASE + at, at, "h00", "other")]
        await parts.take(*lines)
        if at % 20 == 19:
            await parts.writer.flush_due()
    while parts.writer.held_memory >= parts.writer.held_points * POINT_BYTES:  # until some are packed
        await trio.lowlevel.checkpoint()


async def slices_of(parts: Parts) -> int:
    points = await parts.unstored.open_points(b"m")
    assert isinstance(points, OpenPoints)
    return len(points.slices)


@pytest.mark.parametrize("arrival", ["in order", "reversed", "mixed"])
@pytest.mark.parametrize("odd", [False, True])
@pytest.mark.parametrize("seed", seeds(3, fast=1))
async def test_answers_are_those_after_a_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arrival: str, odd: bool, seed: int
) -> None:
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 2000)
    monkeypatch.setattr("tsd.ingest.packed_points.CHUNK_POINTS", 500)
    rng = random.Random(seed)
    hosts = [f"h{number:02d}" for number in range(60)]
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf, memory_limit=4 << 20)
    held.now_s = BASE + 3700
    async with going(held) as parts:
        await parts.take(put(BASE, 1, "h00", "other"))
        if odd:
            await parts.take(*(put(BASE + 3000, 1, host) for host in rng.sample(hosts, 20)))
        await parts.writer.flush()
        order = {"in order": hosts, "reversed": hosts[::-1], "mixed": rng.sample(hosts, len(hosts))}[arrival]
        await take_hour(parts, rng, order, odd=odd)
        assert await slices_of(parts) > 1
        readers = Readers(parts)
        queries = [*QUERIES, "sum:other"]
        before = await answers(readers.live, queries)
        assert readers.flushed == []
        await parts.writer.flush()
        assert before == await answers(readers.stored, queries)


async def test_a_series_with_two_numbers_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After names may have changed, a series gets a new number with its next line."""
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 2000)
    monkeypatch.setattr("tsd.ingest.packed_points.CHUNK_POINTS", 500)
    rng = random.Random(1)
    hosts = [f"h{number:02d}" for number in range(60)]
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf, memory_limit=4 << 20)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        await take_hour(parts, rng, hosts, odd=False)
        parts.open_window.table.invalidate()
        await parts.take(*(put(BASE + 10 * at, -at, host) for at in range(100) for host in hosts))
        assert await slices_of(parts) > 1
        for _, _, times, values in await answers(Readers(parts).live, ["max:m", "min:m", "max:m{host=*}"]):
            assert len(times) == 150
            assert values[:100] == [-at for at in range(100)]


async def test_many_points_of_one_stored_page_are_all_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: of the open points of a stored page's series only PAGE_POINTS were read, the others were lost."""
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 2000)
    monkeypatch.setattr("tsd.ingest.packed_points.CHUNK_POINTS", 500)
    monkeypatch.setattr("tsd.tables.open_rows.PAGE_POINTS", 1000)
    hosts = [f"h{number:02d}" for number in range(60)]
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf, memory_limit=4 << 20)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        await parts.take(*(put(BASE + 3000, 1, host) for host in hosts))
        await parts.writer.flush()
        await take_hour(parts, random.Random(1), hosts, odd=False)
        assert await slices_of(parts) > 1
        readers, queries = Readers(parts), ["sum:m", "max:m{host=*}"]
        before = await answers(readers.live, queries)
        assert readers.flushed == []
        await parts.writer.flush()
        assert before == await answers(readers.stored, queries)


async def test_packed_points_are_unpacked_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: the event loop unpacked the chunks of a metric with few points, which have points of others, too."""
    found = []
    unpack = _Chunk.unpack

    def unpacked(chunk: _Chunk) -> Columns:
        found.append(threading.current_thread() is threading.main_thread())
        return unpack(chunk)

    monkeypatch.setattr(_Chunk, "unpack", unpacked)
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf, memory_limit=4 << 20)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        await take_hour(parts, random.Random(1), ["a", "b"] * 20, odd=False)
        found.clear()
        await answers(Readers(parts).live, ["sum:m"])
        assert found
        assert not any(found)


def test_no_slice_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 262_144)
    series = np.repeat(np.arange(4000, dtype=np.int32), 140)
    instants = 2000 * (BASE + np.tile(np.arange(140), 4000))
    columns = Columns(series, instants, np.zeros(len(series), np.uint8), series.astype(np.int64))
    owners = np.ones(4000, np.int32)
    found = points_of_metric(1, None, [pack(columns, owners)], owners)
    assert len(found.slices) == 2
    assert sum(one.points for one in found.slices) == len(series)
    assert min(one.points for one in found.slices) > 131_072


class Slices:
    """Ten slices of a hundred series with a point each. Counts how often points were unpacked."""

    def __init__(self, points_of_series: int = 1) -> None:
        self.count, self.made = 1000, 0
        self.series = np.arange(self.count, dtype=np.int32)
        instants = self.series + np.int64(2000 * BASE)
        self.columns = Columns(self.series, instants, np.zeros(self.count, np.uint8), self.series.astype(np.int64))
        slices = [
            OpenSlice(slice(at, at + 100), 100 * points_of_series, self._parts) for at in range(0, self.count, 100)
        ]
        every = OpenSlice(slice(0, self.count), self.count * points_of_series, self._parts)
        present = SeriesByHour(self.series, instants, self.count)
        self.points = OpenPoints(every, self.series, SeriesKeys.of([None] * self.count), present, slices)

    def _parts(self, _: int | None) -> list[Columns]:
        self.made += 1
        return [self.columns]

    def rows(self, numbers: Int32) -> SlicedRows:
        return SlicedRows(self.points, numbers, ScanRange(BASE, BASE + 3600))


def test_slices_are_not_made_for_each_stored_page() -> None:
    """Regression: if stored rows have another order than the series in memory, each page unpacked all points."""
    slices = Slices()
    series = slices.series
    rows = slices.rows(series)
    for first in range(50):
        page = series[first::100]
        found = rows.among(page).batch
        assert dict(zip(found.series.tolist(), found.bits.tolist(), strict=True)) == {at: at for at in page.tolist()}
    left = rows.without(np.concatenate([series[first::100] for first in range(50)]))
    assert left.among(series).batch.series.tolist() == [at for at in series.tolist() if at % 100 >= 50]
    assert slices.made < 100  # not ten for each page


@pytest.mark.parametrize("points_of_series", [1, 10_000])
async def test_too_many_points_are_not_put_in_order(points_of_series: int) -> None:
    """Regression: in the order of their names, but not of their numbers, all were decoded at once, however many."""
    slices = Slices(points_of_series)
    made: list[int] = []
    found: list[int] = []

    async def take(page: EncodedPage[PointPage]) -> None:
        made.append(slices.made)
        found.extend(page.decode().batch.series.tolist())

    await slices.rows(slices.series[::-1].copy()).read(take, lambda _: None)
    assert sorted(found) == slices.series.tolist()
    assert made == ([10] if points_of_series == 1 else [*range(10)])


def test_series_with_two_numbers_are_not_apart() -> None:
    no_points = OpenPoints.of(NO_COLUMNS, SeriesKeys.of(()))

    def are_apart(numbers: list[int]) -> bool:
        return SlicedRows(no_points, np.array(numbers, np.int32), ScanRange(0, 3600)).are_apart()

    assert are_apart([3, 0, 5])
    assert not are_apart([3, 0, 5, 3])
    assert are_apart([-1, 4, -1])  # series that are not wanted
    assert are_apart([])

"""Queries read points that are not stored yet from memory, as if they were stored."""

import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, patch

import pytest
import trio

from tests import layouts
from tests.flaky_store import Fault, FlakyStore
from tests.layouts.readable import ReadableReader
from tests.seeds import seeds
from tests.unit.ingest.parts import BASE, Parts, going, make_store
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, annotation_row, encode_annotation
from tsd.codec.opentsdb.cell import COLUMN, FAMILY
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.errors import BadQuery, PointsWait, StoreDown, UnknownName
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.model import Query
from tsd.query.parse.uri import read_uri
from tsd.query.serialize import write_answer
from tsd.store import Family, Put, Table
from tsd.tables.open_points import OpenPoints, split_span
from tsd.tables.opentsdb.reader import OpenTsdbReader, ReadTable
from tsd.tables.opentsdb.series_index import SeriesIndex
from tsd.tables.reading import PointReader, ScanRange

pytestmark = layouts.on_all

NOW_MS = (BASE + 9000) * 1000
QUERIES = (
    "sum:m",
    "none:m",
    "zimsum:m{host=literal_or(a|c)}",
    "max:m{host=wildcard(*)}",
    "sum:10m-avg:m",
    "avg:1h-sum:m{host=regexp([ab])}",
    "sum:0all-count:m",
)


class Readers:
    """Engines over one store: one that reads open points from memory, and one that reads the store alone."""

    def __init__(
        self, parts: Parts, index: SeriesIndex | None = None, *, flush: Callable[[bytes], Awaitable[bool]] | None = None
    ) -> None:
        """`flush` writes the points of a metric; without it `flushed` has the names of those that were asked for."""
        self.flushed: list[bytes] = []
        self._write = flush
        settings = EngineSettings(cache_bytes=1 << 20)
        self._unstored = parts.unstored
        self._reader: PointReader = OpenTsdbReader(ReadTable(parts.store, "tsdb", KeyLayout()), parts.uids, index=index)
        if layouts.is_readable():
            self._reader = ReadableReader(parts.store, parts.readable)
        self.live = self.new_live(settings)
        self.stored = QueryEngine(self._reader, settings=settings, flush=self._flush, now_ms=lambda: NOW_MS)

    def new_live(self, settings: EngineSettings) -> QueryEngine:
        """Return another engine that reads open points from memory."""
        return QueryEngine(
            self._reader, settings=settings, flush=self._flush, now_ms=lambda: NOW_MS, open_points=self._unstored
        )

    async def _flush(self, metric: bytes) -> bool:
        self.flushed.append(metric)
        return await self._write(metric) if self._write else True


Found = tuple[str, dict[str, str], list[int], list[float]]


async def answers(engine: QueryEngine, queries: Sequence[str] = QUERIES, end_s: int = BASE + 10799) -> list[Found]:
    found: list[Found] = []
    for m in queries:
        query = read_uri({"start": [str(BASE)], "end": [str(end_s)], "m": [m]}, NOW_MS)
        answer = await engine.run(query)
        for group in answer.subs[0].groups:
            points = group.points
            found.append((m, dict(group.tags), points.times.tolist(), points.doubles().tolist()))
    return found


def put(time: object, value: object, host: str, metric: str = "m") -> bytes:
    return f"put {metric} {time} {value} host={host}".encode()


def random_line(rng: random.Random) -> bytes:
    second = BASE + rng.choice((rng.randrange(10800), rng.randrange(3500, 3700)))
    time = rng.choice((second, second, second * 1000 + rng.randrange(1000)))
    value = rng.choice((rng.randrange(-99, 99), 1 << 60, rng.random(), "-0.0", "0.5", "1e300"))
    return put(time, value, rng.choice("abcd"), rng.choice(("m", "m", "m", "other")))


@pytest.mark.slow
@pytest.mark.parametrize("odd", ["", "late", "next to stored rows"])
async def test_sums_of_many_series_are_those_after_a_flush(tmp_path: Path, odd: str) -> None:
    rng = random.Random(odd)
    hosts = [f"h{number:02d}" for number in range(80)]
    queries = [f"{name}:m{tags}" for name in ("sum", "avg", "min", "count") for tags in ("", "{host=*}")]
    async with going(Parts(tmp_path, await make_store())) as parts:
        if odd == "next to stored rows":
            await parts.take(*(put(BASE + 3000, 1, host) for host in hosts[:3]))
            await parts.writer.flush()
        for at in range(64):
            await parts.take(*(put(BASE + 10 * at, rng.choice([at, 0.5, 7.1]), host) for host in hosts))
        if odd == "late":
            await parts.take(put(BASE + 5, 1, "h40"))
        readers = Readers(parts)
        before = await answers(readers.live, queries)
        await parts.writer.flush()
        assert before == await answers(readers.stored, queries)
        assert len(before) >= 4


@pytest.mark.parametrize("seed", seeds(8, fast=2))
async def test_answers_are_those_after_a_flush(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(*(put(BASE + 10 * at, at, host) for at in range(5) for host in "abcd"))
        for _ in range(3):
            await parts.take(*(random_line(rng) for _ in range(rng.randrange(1, 60))))
            if rng.random() < 0.6:
                await parts.writer.flush()
        readers = Readers(parts)
        before = await answers(readers.live)
        await parts.writer.flush()
        assert before == await answers(readers.stored)
        assert readers.flushed == [b"m"] * len(QUERIES)  # by the engine that knows no open points


async def test_answer_without_points_that_only_the_journal_has_is_an_error(tmp_path: Path) -> None:
    """Regression: the store took no points, but could be read, and the answer lacked them with status 200."""
    async with going(Parts(tmp_path, await make_store())) as parts:
        readers = Readers(parts)
        await parts.take(put(BASE, 1, "a"))
        await parts.writer.flush()
        with patch.object(parts.store, "put", AsyncMock(side_effect=StoreDown("as the test wants"))):
            await parts.take(put(BASE + 10, 2, "a"))
            parts.writer.seal()
            parts.window().drop()
            with pytest.raises(StoreDown):
                await answers(readers.live, ["sum:m"])
        await parts.writer.flush()
        assert await answers(readers.live, ["sum:m"]) == await answers(readers.stored, ["sum:m"])


@pytest.mark.parametrize("seed", seeds(4, fast=1))
async def test_answers_with_open_hours_are_those_after_a_flush(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        readers = Readers(parts)
        for _ in range(6):
            await parts.take(*(random_line(rng) for _ in range(rng.randrange(1, 60))))
            await parts.writer.flush_due()
            if rng.random() < 0.3:
                parts.now_s += 300
        assert parts.writer.held_points
        before = await answers(readers.live)
        assert parts.writer.held_points
        assert await parts.writer.flush()
        assert before == await answers(readers.stored)


SHORT = (
    "sum:m{host=a}",
    "none:m{host=literal_or(a|b|c)}",
    "sum:rate:m{host=a}",
    "sum:m{}{host=literal_or(b|c)}",
    "avg:7m-avg-nan:m{host=b}",
    "sum:rate{counter,,50}:m{host=*}",
    "p90:m{host=literal_or(c|d)}",
    "zimsum:20m-last:m{host=d}",
)
FORMS = ({}, {"ms": [""]}, {"show_tsuids": [""], "show_query": [""]}, {"corrected": [""]})


def random_query(rng: random.Random) -> Query:
    start = BASE * 1000 + rng.choice((0, 1, 3_600_000, rng.randrange(9_000_000)))
    end = start + rng.choice((1, 60_000, 3_599_000, 3_600_000, rng.randrange(1, 9_000_000)))
    asked = {"start": [str(start)], "end": [str(end)], "m": [rng.choice(SHORT)]}
    return read_uri({**asked, **rng.choice(FORMS)}, NOW_MS)


async def texts(engine: QueryEngine, queries: Sequence[Query]) -> list[tuple[bytes, int]]:
    """Return the answers as sent, and how many points were read for each."""
    found = []
    for query in queries:
        try:
            answer = await engine.run(query)
            text = b"".join(write_answer(answer))
        except BadQuery as error:
            found.append((str(error).encode(), 0))
        else:
            found.append((text, answer.subs[0].stats["dpsPreFilter"]))
    return found


@pytest.mark.parametrize("seed", seeds(12, fast=2))
async def test_short_queries_read_stored_and_open_hours_as_after_a_flush(tmp_path: Path, seed: int) -> None:
    """With an index, rows of few series are read by their keys, those of all hours at once."""
    rng = random.Random(seed)
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf)
    held.now_s = BASE + rng.choice((3500, 7000))
    await held.store.create_tables([Table("tsdb-series", (Family(FAMILY),))])
    async with going(held) as parts:
        await parts.take(*(put(BASE - 3600, 1, host) for host in "abcd"))
        assert await parts.writer.flush()
        index = SeriesIndex(parts.store, "tsdb-series", KeyLayout())
        await index.rebuild("tsdb")
        readers = Readers(parts, index)
        if rng.random() < 0.5:  # in an hour that has points in memory too
            await parts.take(*(random_line(rng) for _ in range(10)))
            assert await parts.writer.flush()
        if rng.random() < 0.5 and not layouts.is_readable():
            note = Annotation(BASE + rng.randrange(10800), tsuid="000001000001000001")
            column = COLUMN + annotation_qualifier(note.start_time)
            row = annotation_row(KeyLayout(), note.start_time, bytes.fromhex(note.tsuid))
            await parts.store.put("tsdb", [Put(row, column, encode_annotation(note))])
        for _ in range(3):
            await parts.take(*(random_line(rng) for _ in range(rng.randrange(1, 60))))
            await parts.writer.flush_due()
        assert parts.writer.held_points
        queries = [random_query(rng) for _ in range(15)]
        before = await texts(readers.live, queries)
        assert parts.writer.held_points
        assert await parts.writer.flush()
        assert before == await texts(readers.stored, queries)


EXPLICIT = (
    "sum:explicit_tags:m{host=a}",
    "none:explicit_tags:m{host=*}",
    "sum:explicit_tags:m{}{host=*}",
    "avg:explicit_tags:rate:m{}{host=literal_or(a|c)}",
    "sum:10m-avg:explicit_tags:m{host=wildcard(*)}",
    "max:1h-sum-zero:explicit_tags:m{}{host=*}",
    "sum:0all-count:explicit_tags:m{host=*}",
    "zimsum:explicit_tags:m{host=late}",
)


@layouts.opentsdb_only
@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize("seed", seeds(8, fast=2))
async def test_explicit_tags_leave_hours_open_and_read_the_hour_after_the_range(
    tmp_path: Path, seed: int, indexed: bool
) -> None:
    """The hour after the range, of stored points or open ones, has the only points of a series, and ends lines."""
    rng = random.Random(seed)
    held = Parts(tmp_path, await cacheable_store(), hold_intervals=math.inf)
    held.now_s = BASE + rng.choice((3500, 7000))
    await held.store.create_tables([Table("tsdb-series", (Family(FAMILY),))])
    async with going(held) as parts:
        # The names of the queries; an hour before them.
        await parts.take(*(put(BASE - 3600, 1, host) for host in ("a", "b", "c", "d", "late")))
        await parts.take(*(random_line(rng) for _ in range(rng.choice((0, 20)))))
        assert await parts.writer.flush()
        index = SeriesIndex(parts.store, "tsdb-series", KeyLayout()) if indexed else None
        if index is not None:
            await index.rebuild("tsdb")
        readers = Readers(parts, index)
        for _ in range(3):
            await parts.take(*(random_line(rng) for _ in range(rng.randrange(1, 60))))
            await parts.take(put(BASE + 3600, 1, "a"), put(BASE + 3601 + rng.randrange(3000), 1, "late"))
            await parts.take(b"put m %d 1 host=a more=b" % (BASE + rng.randrange(7000)))
            await parts.writer.flush_due()
        ends = (BASE + 1800, BASE + 3598, BASE + 7000)
        cells = await parts.stored()
        before = [await answers(readers.live, EXPLICIT, end_s) for end_s in (*ends, *ends)]
        assert parts.writer.held_points
        assert await parts.stored() == cells
        assert ("zimsum:explicit_tags:m{host=late}", {"host": "late"}) in [found[:2] for found in before[0]]
        assert await parts.writer.flush()
        for engine in (readers.live, readers.stored):
            assert before == [await answers(engine, EXPLICIT, end_s) for end_s in (*ends, *ends)]


HOSTS = [f"h{at:02d}" for at in range(20)]
FEW = (
    "none:m{host=h03}",
    "sum:m{host=literal_or(h03|h19)}",
    "sum:m{}{host=regexp(h0[0-2])}",
    "max:m{host=h07,rack=r1}",
    "sum:m{}{host=not_literal_or(h01),rack=wildcard(*1)}",
    "sum:m{host=literal_or(h03|h05|h06|h07|h08|h09)}",
    "sum:m{}{host=literal_or(h03),rack=wildcard(*none)}",
)


@pytest.mark.parametrize("seed", seeds(4, fast=1))
async def test_few_of_many_open_series_are_answered_as_after_a_flush(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf, memory_limit=8 << 20)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        readers = Readers(parts)
        racks = [put(BASE, 0, host).decode() + f" rack=r{at % 2}" for at, host in enumerate(HOSTS)]
        await parts.take(*map(str.encode, racks), put(BASE, 0, "h00"))
        for _ in range(4):
            await parts.take(*(put(BASE + rng.randrange(3600), at, rng.choice(HOSTS)) for at in range(3000)))
            await parts.writer.flush_due()
            assert await answers(readers.live, FEW[:1])  # whatever is packed by then
        before = await answers(readers.live, FEW)
        assert parts.writer.held_points
        assert {m for m, *_ in before} >= {*FEW[:4], FEW[5]}
        assert await parts.writer.flush()
        assert before == await answers(readers.stored, FEW)


async def test_deleting_query_deletes_points_of_open_hours(tmp_path: Path) -> None:
    held = Parts(tmp_path, await make_store(), hold_intervals=math.inf)
    held.now_s = BASE + 600
    async with going(held) as parts:
        await parts.take(put(BASE, 1, "a"), put(BASE + 1, 1, "a", "other"))
        await parts.writer.flush_due()
        request = {"start": [str(BASE)], "end": [str(BASE + 60)], "m": ["sum:m"]}
        await Readers(parts).live.run(replace(read_uri(request, NOW_MS), delete=True))
        assert await answers(Readers(parts).live, ["sum:m"]) == []
        assert parts.writer.waiting_points == 0
        assert await answers(Readers(parts).stored, ["sum:other"]) != []


async def test_no_query_makes_the_writer_write(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        readers = Readers(parts)
        await parts.take(put(BASE, 1, "a"))
        (first,) = await answers(readers.live, ["sum:m"])
        await parts.take(put(BASE + 1, 2, "a"))
        (second,) = await answers(readers.live, ["sum:m"])
        assert parts.writer.cells == 0
    assert (first, second) == (
        ("sum:m", {"host": "a"}, [BASE * 1000], [1.0]),
        ("sum:m", {"host": "a"}, [BASE * 1000, BASE * 1000 + 1000], [1.0, 2.0]),
    )


@pytest.mark.parametrize("hold_intervals", [0, math.inf])
@pytest.mark.parametrize("seed", seeds(3, fast=1))
async def test_points_of_a_span_are_all_those_of_its_hours(tmp_path: Path, seed: int, hold_intervals: float) -> None:
    rng = random.Random(seed)
    held = Parts(tmp_path, await make_store(), hold_intervals=hold_intervals)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        for _ in range(8):
            await parts.take(*(random_line(rng) for _ in range(rng.randrange(1, 20))))
            if rng.random() < 0.5:
                parts.writer.seal()
            every = await parts.unstored.open_points(b"m")
            assert every is not None
            for first, hours in ((0, 1), (1, 1), (1, 2), (3, 4), (-5, 4), (-1, 9)):
                span = ScanRange(BASE + first * 3600, BASE + (first + hours) * 3600)
                found = await parts.unstored.open_points(b"m", None, span)
                assert found is not None
                assert _within(found, span) == _within(every, span)


def _within(points: OpenPoints, span: ScanRange) -> list[tuple[int, int]]:
    times = points.columns.instants >> 1
    chosen = points.columns.at((times >= span.start_ms) & (times < span.stop_ms))
    return list(zip(chosen.instants.tolist(), chosen.bits.tolist(), strict=True))


async def test_points_read_before_are_written_once_and_in_order(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        readers = Readers(parts)
        for value in range(100):
            await parts.take(put(BASE + value % 2, value, "a"))
            await answers(readers.live, ["sum:m"])
        await parts.writer.flush()
        (found,) = await answers(readers.stored, ["sum:m"])
        assert sorted((await parts.stored()).values()) == [98, 99]
    assert found == ("sum:m", {"host": "a"}, [BASE * 1000, BASE * 1000 + 1000], [98.0, 99.0])


async def test_points_only_in_the_journal_are_written_first(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await make_store())) as parts:
        await parts.take(put(BASE, 1, "a"))
        parts.writer.seal()
        parts.window().drop()
        assert await parts.unstored.open_points(b"m") is None
        await parts.writer.flush()
        assert await parts.unstored.open_points(b"m") is not None


async def test_series_without_key_are_written_first(tmp_path: Path) -> None:
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        store.always = Fault.REFUSED
        await parts.take(put(BASE, 1, "a"))
        assert await parts.unstored.open_points(b"m") is None
        store.always = Fault.NONE
        await parts.writer.flush()


@pytest.mark.parametrize("m", ["sum:new", "sum:m{host=new}", "none:m{host=*}"])
async def test_name_that_waits_for_its_uid_is_not_called_unknown(m: str, tmp_path: Path) -> None:
    """Regression: with a full disk a query of an accepted metric said that there is none of that name."""
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        await parts.take(put(BASE, 1, "a"))
        await parts.writer.flush()
        store.always, store.reads_always = Fault.REFUSED, True
        await parts.take(put(BASE, 2, "new"), put(BASE, 2, "new", "new"))
        readers = Readers(parts, flush=parts.writer.write_metric)
        with pytest.raises(PointsWait):
            await answers(readers.live, [m])
        store.always = Fault.NONE
        await parts.writer.flush()
        found = await answers(readers.live, [m])
        assert ("host", "new") in [pair for _, tags, _, _ in found for pair in tags.items()]


@pytest.mark.parametrize(
    "m", ["sum:m{host=a}", "none:m{}{host=regexp([ab]),dc=*}", "max:m{}{host=not_literal_or(new)}"]
)
async def test_query_that_no_series_without_uids_can_match_is_answered(m: str, tmp_path: Path) -> None:
    """Regression: with a full disk one new series made all queries of its metric fail."""
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        await parts.take(put(BASE, 1, "a dc=x"), put(BASE, 5, "b"))
        await parts.writer.flush()
        store.always, store.reads_always = Fault.REFUSED, True
        await parts.take(
            put(BASE + 1, 2, "a dc=x"), put(BASE + 1, 6, "b"), *(put(BASE, 3, f"new{tag}") for tag in ("", " dc=x"))
        )
        readers = Readers(parts, flush=parts.writer.write_metric)
        with pytest.raises(PointsWait):
            await answers(readers.live, ["sum:m"])
        before = await answers(readers.live, [m])
        store.always = Fault.NONE
        await parts.writer.flush()
        assert before == await answers(readers.stored, [m])
        assert before


async def test_queries_need_no_point_of_the_journal_while_an_embedded_store_fails(tmp_path: Path) -> None:
    """Regression: windows with new series left memory once the disk was full, and all queries failed."""
    store = await make_store()
    held = Parts(tmp_path, store, hold_intervals=math.inf)
    held.now_s = BASE + 3500
    async with going(held) as parts:
        await parts.take(put(BASE, 1, "a"))
        await parts.writer.flush()
        store.always, store.reads_always = Fault.REFUSED, True
        for number in range(1, 5):
            await parts.take(put(BASE + number, number, "a"), put(BASE + number, number, f"new{number}"))
            parts.writer.seal()
            while parts.writer.trouble is None:
                await trio.lowlevel.checkpoint()
            parts.writer.regulate()
        readers = Readers(parts, flush=parts.writer.write_metric)
        before = await answers(readers.live, ["sum:m{host=a}"])
        store.always = Fault.NONE
        await parts.writer.flush()
        assert before == await answers(readers.stored, ["sum:m{host=a}"])
        assert len(before[0][2]) == 5


async def test_unknown_name_is_unknown_while_others_wait_for_uids(tmp_path: Path) -> None:
    store = await make_store()
    async with going(Parts(tmp_path, store)) as parts:
        store.always, store.reads_always = Fault.REFUSED, True
        await parts.take(put(BASE, 2, "new", "new"))
        readers = Readers(parts, flush=parts.writer.write_metric)
        with pytest.raises(UnknownName):
            await answers(readers.live, ["sum:unknown"])
        with pytest.raises(UnknownName):
            await answers(readers.live, ["sum:new{host=unknown}"])
        store.always = Fault.NONE


async def cacheable_store() -> FlakyStore:
    """A store whose hours are cached."""
    store = await make_store()
    store.change_feed = store.store.change_feed
    return store


@pytest.mark.parametrize("stored", [0, 40])
async def test_hours_after_open_ones_are_read_and_cached(tmp_path: Path, stored: int) -> None:
    """Regression: large pages of an open hour are decoded in a thread. The hours after it took them for their own."""
    hosts, queries = [f"h{number:02d}" for number in range(80)], ["sum:1m-sum:m", "max:10m-avg:m{host=*}"]
    async with going(Parts(tmp_path, await cacheable_store())) as parts:
        await parts.take(*(put(BASE + 3600, 1, host) for host in hosts[:stored]))
        await parts.writer.flush()
        await parts.take(*(put(BASE + 40 * at, at, host) for at in range(90) for host in hosts))
        readers = Readers(parts)
        first = await answers(readers.live, queries)
        assert first == await answers(readers.live, queries)
        await parts.writer.flush()
        assert first == await answers(readers.stored, queries)
        assert len(first) == 1 + len(hosts)


async def test_hours_with_open_points_are_not_cached(tmp_path: Path) -> None:
    async with going(Parts(tmp_path, await cacheable_store())) as parts:
        await parts.take(put(BASE, 1, "a"), put(BASE + 3600, 1, "a"))
        await parts.writer.flush()
        readers = Readers(parts)
        await parts.take(put(BASE, 5, "a"))
        assert (await answers(readers.live, ["sum:1h-sum:m"]))[0] == summed(5)
        await parts.writer.flush()
        assert (await answers(readers.live, ["sum:1h-sum:m"]))[0] == summed(5)


def summed(first: int) -> object:
    times = [BASE * 1000, (BASE + 3600) * 1000]
    return ("sum:1h-sum:m", {"host": "a"}, times, [float(first), 1.0])


def test_span_is_split_at_open_hours() -> None:
    parts = [(part.start_s, part.stop_s, is_open) for part, is_open in split_span(ScanRange(0, 18000), [0, 7200])]
    assert parts == [(0, 3600, True), (3600, 7200, False), (7200, 10800, True), (10800, 18000, False)]

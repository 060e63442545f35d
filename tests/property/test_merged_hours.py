"""Hours of many series whose points are partly stored and partly open: answers are those of the same points once all
are stored."""

import math
import random
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.flaky_store import FlakyStore
from tests.layouts import readable
from tests.unit.ingest.parts import BASE, Parts, going, make_store
from tests.unit.query.engines import least_memory
from tests.unit.tables.test_open_points import NOW_MS, Readers, answers, put
from tests.unit.tables.test_open_slices import slices_of, take_hour
from tsd.codec.metadata import Annotation
from tsd.codec.opentsdb.annotation import annotation_qualifier, encode_annotation
from tsd.codec.opentsdb.cell import APPEND, COLUMN, FAMILY
from tsd.codec.opentsdb.uid import ID_FAMILY, NAME_FAMILY
from tsd.codec.points import HAS_LOOP, Batch, merged_rows
from tsd.query.parse.uri import read_uri
from tsd.query.row_buckets import HAS_LOOP as HAS_QUERY_LOOP
from tsd.store import Family, Put, Table
from tsd.store.rocksdb.engine import EmbeddedStore

QUERIES = [
    "sum:m", "avg:m{host=*}", "max:m", "zimsum:m{host=literal_or(h01|h40)}", "dev:m", "sum:rate:m",
    "max:1m-avg:m{host=*}", "sum:10m-count:m", "sum:1m-p90:m",
]  # fmt: skip
HOUR = BASE + 3600  # that has open points
HOSTS = [f"h{number:02d}" for number in range(80)]
ODD = ["", "", "", "torn", "late", "again", "new series", "gap", "other seconds"]

Rows = list[dict[int, tuple[int, bool]]]  # value, and whether it is a double, by time


def batch_of(rows: Rows) -> Batch:
    """Return rows as a batch."""
    points = [(time, *row[time]) for row in rows for time in sorted(row)]
    times, bits, floats = zip(*points, strict=True) if points else ((), (), ())
    starts = np.cumsum([0, *map(len, rows)])
    series = np.arange(len(rows), dtype=np.int32)
    return Batch(series, starts, np.array(times, np.int64), np.array(bits, np.int64), np.array(floats, np.bool_))


def rows_of(batch: Batch) -> Rows:
    """Return a batch as rows. Times ascend."""
    columns = [part.tolist() for part in (batch.times, batch.bits, batch.floats)]
    bounds = batch.starts.tolist()
    rows = [[part[first:stop] for part in columns] for first, stop in pairwise(bounds)]
    assert all(times == sorted(set(times)) for times, _, _ in rows)
    return [dict(zip(times, zip(bits, floats, strict=True), strict=True)) for times, bits, floats in rows]


row = st.dictionaries(st.integers(0, 12), st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.booleans()))


@pytest.mark.parametrize(
    "compiled",
    [pytest.param(True, marks=pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed")), False],
)
@given(data=st.data())
def test_added_points_replace_those_of_their_times(compiled: bool, data: st.DataObject) -> None:
    rows, added = data.draw(st.lists(row, max_size=5)), data.draw(st.lists(row, max_size=5))
    if data.draw(st.booleans()):  # all may have the same times then
        rows, added = [one or {0: (0, False)} for one in rows[:1] * 3], added[:1] * 3
    places = data.draw(st.permutations(range(max(len(rows), len(added)))))
    added_of = [place if place < len(added) else -1 for place in places[: len(rows)]]
    used = sorted(place for place in added_of if place >= 0)
    added_of = [used.index(place) if place >= 0 else -1 for place in added_of]
    added = [added[place] for place in used]
    wanted = [one | (added[at] if at >= 0 else {}) for one, at in zip(rows, added_of, strict=True)]
    found, are_alike = merged_rows(batch_of(rows), batch_of(added), np.array(added_of, np.int64), compiled=compiled)
    assert rows_of(found) == wanted
    assert are_alike == all(one.keys() == wanted[0].keys() for one in wanted)


@asynccontextmanager
async def opened(*, embedded: bool, memory_limit: int = 64 << 20) -> AsyncIterator[Parts]:
    """Ingest on a new store, which holds points of the open hour."""
    with tempfile.TemporaryDirectory() as folder:
        store = await make_store()
        if embedded:
            store = cast("FlakyStore", await EmbeddedStore.open(Path(folder) / "store", lambda: NOW_MS))
            await store.create_tables(
                [
                    *readable.TABLES,
                    Table("tsdb", (Family(FAMILY),)),
                    Table("tsdb-uid", (Family(ID_FAMILY), Family(NAME_FAMILY))),
                ]
            )
        parts = Parts(Path(folder), store, hold_intervals=math.inf, memory_limit=memory_limit)
        parts.now_s = HOUR + 3500
        try:
            async with going(parts):
                yield parts
        finally:
            await store.aclose()


def sent(rng: random.Random, hosts: list[str], odd: str) -> Iterator[tuple[bytes, bool]]:
    """Yield points of one hour in order of arrival, each with whether all before it are stored first."""
    rounds, kinds = rng.randrange(10, 40), rng.choice([[1], [0.5, 7.25], [3, 0.5, 1 << 40]])
    cut, torn = rng.randrange(1, rounds), rng.randrange(1, len(hosts))
    step = rng.choice([1, 10, 80])
    for at in range(rounds):
        for number, host in enumerate(hosts):
            own = at + rounds if odd == "other seconds" and number == len(hosts) - 1 else at
            if odd == "gap" and (at, number) == (cut, len(hosts) - 2):
                continue
            is_first = (at, number) == (cut, torn if odd == "torn" else 0)
            yield put(HOUR + step * own, rng.choice(kinds) + at, host), is_first
    for host in rng.sample(hosts, 3):
        if odd == "late":
            yield put(HOUR + rng.randrange(3600), 5, host), False
    for host in hosts if odd == "again" else ():  # the same times as stored points
        yield put(HOUR + step * rng.choice([0, cut - 1]), -1, host), False
    if odd == "new series":
        for host in ("h0", "h405", "x"):  # before, between and after the others
            yield from ((put(HOUR + step * at, at, host), False) for at in range(rounds))


async def check_answers(seed: int, odd: str, *, embedded: bool) -> None:
    """Compare answers before and after the open points are stored."""
    rng = random.Random(seed)
    async with opened(embedded=embedded) as parts:
        arrival = rng.sample(HOSTS, len(HOSTS)) if rng.random() < 0.5 else HOSTS
        await parts.take(*(put(BASE, 1, host, "other") for host in HOSTS))  # the order of the names' UIDs
        await parts.take(*(put(BASE, 1, host) for host in arrival))
        lines: list[bytes] = []
        for line, is_first in sent(rng, arrival, odd):
            if is_first:
                await parts.take(*lines)
                assert await parts.writer.flush()
                lines = []
            lines.append(line)
        await parts.take(*lines)
        readers = Readers(parts)
        before = await answers(readers.live, QUERIES)
        assert not readers.flushed
        assert await parts.writer.flush()
        assert before == await answers(readers.stored, QUERIES)
        assert {m for m, *_ in before} == set(QUERIES)


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("odd", sorted(set(ODD)))
async def test_answers_are_those_after_a_flush(odd: str, embedded: bool) -> None:
    await check_answers(1, odd, embedded=embedded)


@pytest.mark.slow
@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1 << 30), st.sampled_from(ODD), st.booleans(), st.booleans())
async def test_any_answers_are_those_after_a_flush(seed: int, odd: str, embedded: bool, compiled: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tsd.tables.open_rows.merged_rows", partial(merged_rows, compiled=compiled and HAS_LOOP))
        patch.setattr("tsd.ingest.metric_points.SLICE_POINTS", 500 if seed % 2 else 1 << 20)
        await check_answers(seed, odd, embedded=embedded)


NOTE = encode_annotation(Annotation(HOUR + 5, description="restart"))
CELLS = {
    "annotation": (annotation_qualifier(5), NOTE),
    "append column": (APPEND, bytes.fromhex("010007 020008")),  # two points of a byte
    "stored twice": (bytes.fromhex("0000"), b"\x63"),
}


@pytest.mark.parametrize("embedded", [False, True])
@pytest.mark.parametrize("cell", CELLS)
async def test_stored_row_may_have_other_cells(cell: str, embedded: bool) -> None:
    async with opened(embedded=embedded) as parts:
        await parts.take(*(put(HOUR + 10 * at, at, host) for at in range(20) for host in HOSTS))
        assert await parts.writer.flush()
        [first] = (await parts.store.page("tsdb", b"", None, limit=1)).rows
        qualifier, value = CELLS[cell]
        await parts.store.put("tsdb", [Put(first.key, COLUMN + qualifier, value)])
        await parts.take(*(put(HOUR + 10 * at, -at, host) for at in range(15, 25) for host in HOSTS))
        readers, found = Readers(parts), []
        query = read_uri({"start": [str(HOUR)], "end": [str(HOUR + 3599)], "m": ["sum:m"]}, NOW_MS)
        for engine in (readers.live, readers.stored):
            [group] = (await engine.run(query)).subs[0].groups
            notes = [one.description for one in group.annotations or ()]
            found.append((notes, group.points.times.tolist(), group.points.doubles().tolist()))
            assert await parts.writer.flush()
        assert found[0] == found[1]
        assert found[0][0] == (["restart"] if cell == "annotation" else [])
        assert readers.flushed == [b"m"]  # by the engine that knows no open points


@pytest.mark.skipif(not HAS_QUERY_LOOP, reason="no C compiler when tsd was installed: points are kept")
@pytest.mark.parametrize("embedded", [False, True])
async def test_sums_of_merged_hours_do_not_keep_points(embedded: bool) -> None:
    """Regression: points of hours that were stored in part were kept, 40 bytes each."""
    async with opened(embedded=embedded) as parts:
        for at in range(300):
            await parts.take(*(put(HOUR + 10 * at, at, f"h{number:03d}") for number in range(150)))
            if at == 150:
                assert await parts.writer.flush()
        needed = []
        for aggregator in ("sum", "dev"):
            query = read_uri({"start": [str(HOUR)], "end": [str(HOUR + 3599)], "m": [f"{aggregator}:m"]}, NOW_MS)
            needed.append(await least_memory(Readers(parts).new_live, query))
        assert needed[0] < needed[1] / 2


@pytest.mark.parametrize("slice_points", [2000, 1 << 20])
async def test_rows_that_are_made_together_count_as_memory(monkeypatch: pytest.MonkeyPatch, slice_points: int) -> None:
    """Regression: rows that were made before the first was read were not counted: all of few points, and those of
    slices that are not in the order of the series."""
    monkeypatch.setattr("tsd.ingest.metric_points.SLICE_POINTS", slice_points)
    monkeypatch.setattr("tsd.ingest.packed_points.CHUNK_POINTS", 500)
    async with opened(embedded=False, memory_limit=4 << 20) as parts:
        parts.now_s = BASE + 3500
        await parts.take(*(put(BASE, 1, host, "other") for host in HOSTS))  # the order of the names' UIDs
        await parts.take(*(put(BASE - 3600, 1, host) for host in reversed(HOSTS)))
        assert await parts.writer.flush()
        await take_hour(parts, random.Random(1), HOSTS[::-1], odd=False)
        assert (await slices_of(parts) > 1) == (slice_points == 2000)
        query = read_uri({"start": [str(BASE - 3600)], "end": [str(BASE + 3599)], "m": ["sum:10m-count:m"]}, NOW_MS)
        needed = await least_memory(Readers(parts).new_live, query)
        assert needed > len(HOSTS) * 150 * 16  # a time and a value each

"""Hours after the end of a query: whose points change an answer that is cut there, and whose rows are read."""

from collections.abc import Sequence

import numpy as np
import pytest

from tests.flaky_store import FlakyStore
from tests.unit.query.engines import NOW_MS, START_S, QueryEnvironment, make_query
from tsd.codec.metadata import Annotation
from tsd.codec.points import Batch, Points
from tsd.query.columns import SeriesColumns
from tsd.query.engine import QueryEngine
from tsd.query.later_hours import is_settled, unsettled_series
from tsd.query.model import SubQuery
from tsd.query.parse.uri import read_uri
from tsd.query.plan import range_to_end, scan_range
from tsd.query.result import Answer
from tsd.query.serialize import written_answer
from tsd.store.memory import MemoryStore
from tsd.tables.reading import ScanRange

HOUR_MS = 3_600_000
END_MS = START_S * 1000 + HOUR_MS - 1000


def sub_query(m: str) -> SubQuery:
    [sub] = read_uri({"start": ["1"], "end": ["2"], "m": [m]}, 0).queries
    return sub


def series(*values: tuple[int, float]) -> Points:
    """Return points by seconds before the end of the hour; integers stay such."""
    times = np.array([START_S * 1000 + HOUR_MS - before * 1000 for before, _ in values], np.int64)
    floats = np.array([isinstance(value, float) for _, value in values], np.bool_)
    bits = [int(np.float64(value).view(np.int64)) if isinstance(value, float) else value for _, value in values]
    return Points(times, np.array(bits, np.int64), floats)


ENDED, LATE, LAST, WHOLE = (
    series((60, 1.0), (50, 1.5)),
    series((10, 1.5)),
    series((60, 2.0), (10, 2.5)),
    series((10, 3)),
)
NONE = series()


@pytest.mark.parametrize(
    ("end_s", "spec", "stop_s"),
    [
        (3599, "", 3600),
        (3600, "", 7200),  # no later hours
        (3599, "1m-avg:", 3600),
        (3599, "1h-avg:", 3600),
        (7199, "2h-avg:", 7200),
        (3599, "0all-sum:", 3600),
        (3599, "7m-avg:", 7200),  # a bucket would be cut
        (3599, "1dc-sum:", 24 * 3600),
        (3599, "1m-avg-scalar:", 7200),  # fails at the first empty bucket
        (3599, "1m-avg-zero:", 3600),
    ],
)
def test_hours_up_to_the_end(end_s: int, spec: str, stop_s: int) -> None:
    start_ms, end_ms, downsample = START_S * 1000, (START_S + end_s) * 1000, sub_query(f"sum:{spec}m").downsample
    scan = scan_range(start_ms, end_ms, downsample)
    found = range_to_end(end_ms, downsample, scan)
    assert found == ScanRange(scan.start_s, START_S + stop_s)


@pytest.mark.parametrize(
    ("m", "groups", "wanted"),
    [
        ("sum:m", [(LAST, LATE)], ()),
        ("count:m", [(LAST, ENDED)], (1,)),  # it counts as long as it lives
        ("none:m", [(LAST,), (ENDED,)], ()),
        ("sum:m", [(LAST, ENDED), (ENDED,)], (1,)),
        ("sum:m", [(LAST, NONE)], (1,)),
        ("sum:m", [(LAST, WHOLE)], ()),
        ("sum:m", [(WHOLE,), (LAST,)], (0,)),  # a double may follow
        ("sum:m", [(ENDED, WHOLE)], (0, 1)),
        ("sum:1s-avg:m", [(LAST, ENDED)], (1,)),
        ("sum:1s-avg:m", [(WHOLE,), (LAST, LATE)], ()),
        ("sum:1s-avg-nan:m", [(LAST, ENDED)], ()),
        ("sum:0all-sum:m", [(LAST, ENDED)], ()),
        ("sum:rate:m", [(LAST, LAST)], ()),
        ("sum:rate:m", [(LAST, LATE)], (1,)),  # its first rate follows
        ("sum:rate:m", [(LATE,), (WHOLE,)], ()),
        ("sum:rate{dropcounter}:m", [(LAST, LAST)], (0, 1)),
        ("sum:rate{dropcounter}:m", [(LAST,)], ()),
        ("sum:1s-avg-zero:rate{dropcounter}:m", [(LAST, LAST)], (0, 1)),
    ],
)
def test_series_that_need_later_points(m: str, groups: Sequence[Sequence[Points]], wanted: Sequence[int]) -> None:
    each = [points for group in groups for points in group]
    counts = np.array([len(points.times) for points in each])
    stops = np.cumsum([len(group) for group in groups])
    members = [np.arange(stop - len(group), stop) for stop, group in zip(stops.tolist(), groups, strict=True)]
    found = unsettled_series(SeriesColumns.of(each), counts, members, sub_query(m), END_MS)
    assert found.tolist() == list(wanted)


def test_a_value_after_the_end_follows_the_last_one() -> None:
    both = SeriesColumns.of([WHOLE, WHOLE])
    group = [np.arange(2)]
    assert unsettled_series(both, np.ones(2, np.int64), group, sub_query("sum:m"), END_MS).tolist() == [0, 1]
    assert not len(unsettled_series(both, np.ones(2, np.int64), group, sub_query("sum:m"), END_MS - 10_000))


@pytest.mark.parametrize(
    ("m", "points", "wanted"),
    [
        ("sum:m", LAST, True),
        ("sum:m", WHOLE, False),
        ("sum:m", NONE, False),
        ("sum:rate:m", WHOLE, True),
        ("sum:1m-avg:m", WHOLE, True),
        ("sum:1m-avg:m", NONE, False),
    ],
)
def test_an_only_series_that_needs_later_points(m: str, points: Points, wanted: bool) -> None:
    batch = Batch(np.zeros(1, np.int32), np.array([0, len(points.times)], np.int64), *points)
    assert is_settled(batch, sub_query(m), END_MS) is wanted


def lines(value: str, *, ended: int = 0) -> list[str]:
    """Return points of ten series in three hours, of which some end in the middle of the second one, and of others."""
    others = [f"m {START_S} 1 host=x{host}" for host in range(400)]
    return others + [
        f"m {START_S + at * 600} {value} host=h{host}" for host in range(10) for at in range(9 if host < ended else 18)
    ]


async def rows_read(engine: QueryEngine, m: str, *, is_cut: bool = True) -> tuple[int, bytes]:
    """Ask for three hours, and for the first two of them. Return the rows read for these, and the answer as text."""
    await engine.run(make_query(m, end_ms=(START_S + 3 * 3600) * 1000 - 1), is_cut=is_cut)
    answer = await engine.run(make_query(m), is_cut=is_cut)
    return answer.subs[0].stats["rowsPreFilter"], written_answer(answer, arrays=True)


@pytest.mark.parametrize(
    ("m", "value", "ended", "rows"),
    [
        ("sum:m{}{host=wildcard(h*)}", "1.5", 0, 20),
        ("sum:m{}{host=wildcard(h*)}", "7", 0, 30),
        ("sum:m{}{host=wildcard(h*)}", "1.5", 1, 20),  # a row that does not exist
        ("avg:10m-avg:m{host=wildcard(h*)}", "7", 0, 20),
        ("sum:m{host=h3}", "1.5", 0, 2),
        ("sum:m{host=h3}", "7", 0, 3),
        ("max:rate:m{host=h3}", "7", 0, 2),
    ],
)
async def test_rows_of_later_hours_are_read_where_they_are_needed(m: str, value: str, ended: int, rows: int) -> None:
    env = await QueryEnvironment.build(lines(value, ended=ended), indexed=True)
    found, text = await rows_read(env.repeating_engine(), m)
    assert found == rows
    assert text == (await rows_read(env.repeating_engine(), m, is_cut=False))[1]


async def test_all_rows_are_read_for_an_answer_that_is_not_cut() -> None:
    env = await QueryEnvironment.build(lines("1.5"), indexed=True)
    assert (await rows_read(env.repeating_engine(), "sum:m{}{host=wildcard(h*)}", is_cut=False))[0] == 30


async def test_only_the_later_rows_of_ended_series_are_read() -> None:
    points = [line for line in lines("1.5", ended=2) if "host=h0" not in line]
    points += [f"m {START_S + at} 2.5 host=h0" for at in (0, 3600, 7200)]  # begins and ends the second hour early
    env = await QueryEnvironment.build(points, indexed=True)
    found, text = await rows_read(env.repeating_engine(), "sum:m{}{host=wildcard(h*)}")
    assert found == 21  # one row of h0, none of h1
    assert text == (await rows_read(env.repeating_engine(), "sum:m{}{host=wildcard(h*)}", is_cut=False))[1]


@pytest.mark.parametrize("returned_s", [-600, 3599, 3600, 7200, 7300, 10_800])
async def test_one_read_finds_what_a_host_that_was_gone_has_sent(returned_s: int) -> None:
    """Its series is in the index, and had no rows in the hours of the query and the next one."""
    m, store = "sum:m{}{host=wildcard(h*)}", FlakyStore(MemoryStore(lambda: NOW_MS))
    gone = f"m {START_S - 86_400} 1.5 host=h-gone"
    env = await QueryEnvironment.build([*lines("1.5"), gone], indexed=True, store=store)
    engine = env.repeating_engine()
    await rows_read(engine, m)
    store.calls.clear()
    assert (await engine.run(make_query(m), is_cut=True)).subs[0].stats["rowsPreFilter"] == 20
    assert store.calls == ["get"]
    await env.put([f"m {START_S + returned_s} 1.5 host=h-gone"])
    again = written_answer(await engine.run(make_query(m), is_cut=True), arrays=True)
    assert again == written_answer(await env.repeating_engine().run(make_query(m)), arrays=True)


@pytest.mark.difference(
    "later-annotations",
    topic="metadata",
    theirs="An annotation in the hour after the end of a query leaves an empty list `annotations` in its answer",
    ours="The answer to a repeated query of few series, read from HBase, Cassandra or Bigtable, has no such list",
)
async def test_an_annotation_of_a_later_hour_is_not_looked_for() -> None:
    env = await QueryEnvironment.build(lines("1.5"), indexed=True)
    engine = env.repeating_engine()
    _, text = await rows_read(engine, "sum:m{host=h3}")
    [group] = await env.groups("sum:m{host=h3}", show_tsuids=True)
    await env.annotate(Annotation(START_S + 7300, tsuid=group.tsuids[0].hex(), description="later"))
    answer: Answer = await engine.run(make_query("sum:m{host=h3}"), is_cut=True)
    assert written_answer(answer, arrays=True) == text
    assert b'"annotations":[]' in written_answer(await env.run("sum:m{host=h3}"), arrays=True)

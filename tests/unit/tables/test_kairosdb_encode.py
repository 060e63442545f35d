"""Windows of points as batches of bound points, and the index rows that they need."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tables.kairosdb_keyspace import Lookup
from tsd.codec.kairosdb.keys import DOUBLE, LONG, DataRow
from tsd.codec.kairosdb.rows import DEFAULT_WIDTH_MS, RowSpec, Unit
from tsd.codec.points import Columns
from tsd.codec.text import FLOAT
from tsd.tables.kairosdb import encode
from tsd.tables.kairosdb.encode import Encoded, Moment, encode_points, sort_points
from tsd.tables.kairosdb.index import Expiries, expiry, split_key
from tsd.tables.kairosdb.points import LIMITS, Limits
from tsd.tables.writing import SeriesKey

needs_loop = pytest.mark.skipif(not encode.HAS_ENCODE_LOOP, reason="needs the compiled loop")
NOW_S, MOST_TTL_S, STAMP_MS = 1_700_000_000, 300_000_000, 1_700_000_000_000
SPECS = st.sampled_from([RowSpec(), RowSpec(Unit.LEGACY), RowSpec(Unit.SECONDS, 1_814_400)])
TTLS = st.sampled_from([0, 60, 100_000, MOST_TTL_S + 5])
KEYS = st.builds(
    lambda metric, ttl_s, tags: SeriesKey(metric, ttl_s.to_bytes(4, "big") + tags),
    st.sampled_from([b"m", b"m.long", "\N{LATIN SMALL LETTER E WITH ACUTE}".encode()]),
    TTLS,
    st.sampled_from([b"host=a:", b"host=b:", b"dc=x:host=a:"]),
)
TIMES = st.sampled_from([0, 1, 999, 1_000, DEFAULT_WIDTH_MS - 1, DEFAULT_WIDTH_MS, -5, 1_700_000_000_123])
NUMBERS = st.one_of(
    st.tuples(st.just(7), st.integers(-(1 << 63), (1 << 63) - 1)),
    st.tuples(st.just(FLOAT | 7), st.floats().map(lambda number: int(np.float64(number).view(np.int64)))),
    st.tuples(st.just(FLOAT | 3), st.floats(width=32).map(lambda number: int(np.float32(number).view(np.int32)))),
)
POINTS = st.lists(st.tuples(KEYS, TIMES, NUMBERS), min_size=1, max_size=40)


def window_of(points: Sequence[tuple[SeriesKey, int, tuple[int, int]]]) -> tuple[Columns, Lookup]:
    """A window with a number for each point's key, some of which are equal."""
    numbers = np.arange(len(points), dtype=np.int32)
    times = np.array([time_ms << 1 | 1 for _, time_ms, _ in points], np.int64)
    flags = np.array([flags for *_, (flags, _) in points], np.uint8)
    bits = np.array([bits for *_, (_, bits) in points], np.int64)
    return Columns(numbers, times, flags, bits), Lookup([key for key, *_ in points])


def both(points: Sequence[tuple[SeriesKey, int, tuple[int, int]]], spec: RowSpec, moment: Moment) -> list[Encoded]:
    """What the compiled loop and the Python code make of a window."""
    ordered = sort_points(*window_of(points), spec)
    return [encode_points(ordered, spec, STAMP_MS, moment, compiled=compiled) for compiled in (True, False)]


@needs_loop
@given(POINTS, SPECS, st.sampled_from([Limits(2, 3, 90), LIMITS, Limits(1, 1, 1)]))
def test_compiled_and_python_batches_are_equal(
    points: list[tuple[SeriesKey, int, tuple[int, int]]], spec: RowSpec, limits: Limits
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encode, "LIMITS", limits)
        loop, python = both(points, spec, Moment({}, NOW_S, MOST_TTL_S))
    assert loop == python


@needs_loop
@given(POINTS, st.dictionaries(KEYS, st.sampled_from([math.inf, NOW_S + 59, NOW_S + 60, NOW_S + 100_000, 0.0])))
def test_known_index_rows_are_left_out_unless_they_expire_before_a_point(
    points: list[tuple[SeriesKey, int, tuple[int, int]]], lives: dict[SeriesKey, float]
) -> None:
    known: dict[bytes, Expiries] = {}
    for key, until in lives.items():
        for time_ms in (0, DEFAULT_WIDTH_MS):
            for kind in (LONG, DOUBLE):
                place, series = split_key(DataRow(key.head.decode(), time_ms, kind, key.tail[4:]).encode())
                known.setdefault(place, {})[series] = until
    loop, python = both(points, RowSpec(), Moment(known, NOW_S, MOST_TTL_S))
    due = {
        (place, series): ttl_s
        for place, rows in python.wanted.items()
        for series, ttl_s in rows.items()
        if known.get(place, {}).get(series, -math.inf) < expiry(NOW_S, ttl_s)
    }
    found = {(place, series): ttl_s for place, rows in loop.wanted.items() for series, ttl_s in rows.items()}
    assert found == due
    assert loop.places == python.places == set(python.wanted)


@needs_loop
def test_points_of_many_slices_of_the_loop_are_all_encoded() -> None:
    count = 2 * encode.LOOP_POINTS + 5
    key = SeriesKey(b"m", bytes(4) + b"host=a:")
    columns = Columns(
        np.zeros(count, np.int32),
        np.arange(count, dtype=np.int64) << 1,
        np.full(count, 7, np.uint8),
        np.arange(count, dtype=np.int64),
    )
    ordered = sort_points(columns, Lookup([key]), RowSpec())
    loop, python = (
        encode_points(ordered, RowSpec(), STAMP_MS, Moment({}, NOW_S, MOST_TTL_S), compiled=compiled)
        for compiled in (True, False)
    )
    assert [one for batch in loop.batches for one in batch.points] == [
        one for batch in python.batches for one in batch.points
    ]
    assert loop.wanted == python.wanted


@pytest.mark.parametrize("compiled", [pytest.param(True, marks=needs_loop), False])
def test_equal_keys_of_two_numbers_share_rows(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    monkeypatch.setattr(encode, "HAS_ENCODE_LOOP", compiled)
    key, other = SeriesKey(b"m", bytes(4) + b"host=a:"), SeriesKey(b"m", bytes(3) + b"<host=a:")
    for second in (key, other):
        window = window_of([(key, 5, (7, 1)), (second, 5, (7, 2))])
        assert sort_points(*window, RowSpec()).bits.tolist() == [2]

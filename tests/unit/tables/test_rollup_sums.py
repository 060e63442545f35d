"""Aggregates of intervals equal those of a loop over the points; their cells are those of OpenTSDB's tables."""

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.opentsdb.rollup import Interval, decode_rollup, parse_config, rollup_time
from tsd.codec.points import Batch
from tsd.errors import BadConfig
from tsd.tables.opentsdb.rollup_sums import (
    AGGREGATORS,
    LongSums,
    RowKeys,
    Sums,
    can_build,
    coarser,
    intervals_to_build,
    rollup_matrices,
    rollup_puts,
    row_order,
    sums_of,
)

DAY_S = 1356998400
CONFIG = parse_config(
    json.dumps(
        {
            "aggregationIds": {"sum": 0, "count": 1, "min": 2, "max": 3},
            "intervals": [
                {"interval": name, "table": f"r{name}", "preAggregationTable": "p", "rowSpan": span,
                 "defaultInterval": name == "1m"}
                for name, span in (("1m", "1h"), ("10m", "6h"), ("1h", "1d"), ("1d", "1n"), ("7d", "1y"))
            ],
        }
    ).encode()
)  # fmt: skip
Rows = list[tuple[int, int, list[tuple[int, int | float]]]]  # series, hour, and offset and value of each point
Aggregates = Mapping[tuple[int, int], tuple[float, int, float, float]]


def batch_of(rows: Rows) -> Batch:
    points = [(DAY_S * 1000 + hour * 3_600_000 + ms, value) for _, hour, row in rows for ms, value in row]
    values = [value for _, value in points]
    bits = [np.float64(value).view(np.int64) if isinstance(value, float) else value for value in values]
    return Batch(
        np.array([number for number, _, _ in rows], np.int32),
        np.cumsum([0, *(len(row) for _, _, row in rows)], dtype=np.int64),
        np.array([time for time, _ in points], np.int64),
        np.array(bits, np.int64),
        np.array([isinstance(value, float) for value in values], np.bool_),
    )


def expected(rows: Rows, seconds: int) -> Aggregates:
    found = defaultdict(list)
    for series, hour, row in rows:
        for ms, value in row:
            if not math.isnan(value):
                time_s = DAY_S + hour * 3600 + ms // 1000
                found[series, time_s - time_s % seconds].append(float(value))
    return {place: (sum(v), len(v), min(v), max(v)) for place, v in found.items()}


def shown(sums: Sums) -> Aggregates:
    columns = [column.tolist() for column in sums]
    return {
        (series, time): (total, count, low, high)
        for series, time, total, count, low, high in zip(*columns, strict=True)
    }


NUMBERS = st.integers(-1000, 1000) | st.integers(-4000, 4000).map(lambda number: number / 4) | st.just(math.nan)
ROWS = st.lists(st.dictionaries(st.integers(0, 3_599_999), NUMBERS, max_size=12), max_size=12).map(
    lambda rows: [(at % 3, at // 3, sorted(row.items())) for at, row in enumerate(rows)]
)


@given(ROWS, st.sampled_from([1, 60, 600, 3600]))
def test_sums_are_those_of_a_loop(rows: Rows, seconds: int) -> None:
    assert shown(sums_of(batch_of(rows), seconds)) == expected(rows, seconds)


@given(ROWS)
def test_longer_intervals_are_sums_of_shorter_ones(rows: Rows) -> None:
    minutes = sums_of(batch_of(rows), 60)
    assert shown(coarser(minutes, 3600)) == expected(rows, 3600)


@given(ROWS, st.integers(0, 12))
def test_days_are_sums_of_hours_of_any_page(rows: Rows, cut: int) -> None:
    days = LongSums(7200)
    for part in (rows[cut:], rows[:cut]):
        days.add(sums_of(batch_of(part), 3600))
    found: dict[tuple[int, int], tuple[float, int, float, float]] = {}
    for sums in days.finish():
        found |= shown(sums)
    assert found == expected(rows, 7200)


@given(ROWS, st.sampled_from(["10m", "1h", "1d"]))
def test_cells_hold_what_was_computed(rows: Rows, name: str) -> None:
    interval = CONFIG.interval(name)
    hours = sums_of(batch_of(rows), min(interval.seconds, 3600))
    sums = coarser(hours.at(np.lexsort((hours.times_s, hours.series))), interval.seconds)
    keys = RowKeys([b"\0\0\1"] * 3, [b"a", b"b", b"c"])
    order = row_order(sums, interval, keys)
    puts = rollup_puts(order.sums, interval, CONFIG, keys)
    found: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
    for key, column, value in puts:
        cell = decode_rollup(CONFIG, column[2:])
        is_count = cell.aggregator == "count"
        assert cell.flags == (7 if is_count else 15)
        number = np.frombuffer(value, ">i8" if is_count else ">f8")[0]
        time_s = rollup_time(int.from_bytes(key[3:7], "big"), interval, cell.offset)
        found[key[7] - ord("a"), time_s][cell.aggregator] = number
    wanted = {
        place: dict(zip(("sum", "count", "min", "max"), values, strict=True)) for place, values in shown(sums).items()
    }
    assert found == wanted
    rows = [put.row for put in puts]
    assert rows == sorted(rows)
    groups = zip(order.heads, order.bases.tolist(), pairwise(order.begins.tolist()), strict=True)
    aggregators = len(AGGREGATORS)
    for head, base, (begin, end) in groups:
        assert {row[:7] for row in rows[aggregators * begin : aggregators * end]} == {head + base.to_bytes(4, "big")}
        matrices = rollup_matrices(order.sums.at(slice(begin, end)), interval, CONFIG, keys, base)
        made = [put for matrix in matrices for put in matrix.puts()]
        assert sorted(made) == sorted(puts[aggregators * begin : aggregators * end])


@pytest.mark.parametrize("hours", [24, 23], ids=["each row has all", "one row lacks one"])
def test_rows_with_all_intervals_have_the_cells_of_puts(hours: int) -> None:
    interval, keys = CONFIG.interval("1h"), RowKeys([b"\0\0\1"] * 2, [b"a", b"b"])
    rows: Rows = [(series, hour, [(0, series + hour)]) for series in (0, 1) for hour in range(24 if series else hours)]
    order = row_order(sums_of(batch_of(rows), 3600), interval, keys)
    matrices = [*rollup_matrices(order.sums, interval, CONFIG, keys, DAY_S)]
    assert [put for matrix in matrices for put in sorted(matrix.puts())] == sorted(
        rollup_puts(order.sums, interval, CONFIG, keys)
    )


@pytest.mark.parametrize(
    ("name", "is_built"), [("1m", False), ("10m", True), ("1h", True), ("1d", True), ("7d", False)]
)
def test_only_intervals_of_hours_and_days_are_built(name: str, is_built: bool) -> None:
    assert can_build(CONFIG.interval(name)) == is_built
    if is_built:
        assert intervals_to_build(CONFIG, [name]) == (CONFIG.interval(name),)
    else:
        with pytest.raises(BadConfig, match=name):
            intervals_to_build(CONFIG, [name])


def test_interval_that_crosses_hours_is_not_built() -> None:
    assert not can_build(Interval("45m", 2700, 1, "d", "r", "p"))


def test_unknown_interval_and_aggregators_are_refused() -> None:
    with pytest.raises(BadConfig, match="2h"):
        intervals_to_build(CONFIG, ["2h"])
    with pytest.raises(BadConfig, match="sum, count, min, max"):
        intervals_to_build(CONFIG._replace(ids={"avg": 4}))


def test_interval_at_the_edge_of_a_span_is_left_out() -> None:
    sums = sums_of(batch_of([(0, hour, [(0, 1)]) for hour in range(4)]), 3600)
    inside = sums.within(DAY_S + 1, DAY_S + 3 * 3600, 3600)
    assert inside.times_s.tolist() == [DAY_S + 3600, DAY_S + 7200]

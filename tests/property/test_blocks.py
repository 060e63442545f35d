"""Blocks: decoding restores every bit, chosen rows are those of the whole, and no damage gives a wrong point."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_packed import INT64, ODD_FLOATS, decimals
from tsd.codec.blocks.block import Block, BlockPoints, Rows, encode_block
from tsd.codec.blocks.compacted import cells_of, read_cell
from tsd.codec.opentsdb.cell import ms_qualifier, seconds_qualifier
from tsd.codec.text import FLOAT, encode_float, encode_integer
from tsd.errors import CorruptRow

PLACE = b"tsdb\0\0\1"

Value = tuple[int, bool]  # bits, and whether they are a double's


def as_double(number: float) -> Value:
    return int(np.float64(number).view(np.int64)), True


whole = (st.integers(0, 20) | INT64).map(lambda number: (number, False))
doubles = (ODD_FLOATS | st.floats() | st.floats(width=32)).map(as_double)
alike = st.sampled_from([whole, doubles, whole | doubles, *(decimals(places).map(as_double) for places in (0, 2, 5))])
shared_times = st.sampled_from([[0], [0, 1000], list(range(0, 600_000, 10_000))])
seconds = st.lists(st.integers(0, 3599).map(lambda at: at * 1000), min_size=1, max_size=30, unique=True).map(sorted)
millis = st.lists(st.integers(0, 3_599_999), min_size=1, max_size=30, unique=True).map(sorted)
late = st.lists(st.sampled_from([0, 0, 0, 0, 1, -1]), min_size=1, max_size=60).map(
    lambda lags: [(10 * at + lag + 1) * 1000 for at, lag in enumerate(lags)]
)
timed = st.tuples(st.just(False), shared_times | seconds | late) | st.tuples(st.just(True), shared_times | millis)


@st.composite
def blocks(draw: st.DrawFn) -> Rows:
    """Rows of one hour: some share their times, some are of one kind."""
    pair = st.binary(min_size=6, max_size=6) if draw(st.booleans()) else st.binary(max_size=20)
    series_pairs = sorted(draw(st.sets(pair, min_size=1, max_size=12)))
    in_ms, offsets, values, starts = [], [], [], [0]
    for _ in series_pairs:
        has_ms, times = draw(timed)
        in_ms.append(has_ms)
        offsets += times
        starts.append(len(offsets))
        values += draw(st.lists(draw(alike), min_size=len(times), max_size=len(times)))
    stamps = draw(st.lists(st.integers(0, 1 << 50), min_size=len(series_pairs), max_size=len(series_pairs)))
    return Rows(
        series_pairs,
        np.array(in_ms),
        np.array(stamps, np.int64),
        np.array(starts, np.int64),
        np.array(offsets, np.int64),
        np.array([bits for bits, _ in values], np.int64),
        np.array([is_float for _, is_float in values]),
    )


def listed(points: BlockPoints) -> list[tuple[int, list[tuple[int, int, bool]]]]:
    """The points of each row."""
    triples = list(zip(points.offsets.tolist(), points.bits.tolist(), points.floats.tolist(), strict=True))
    bounds = points.starts.tolist()
    return [(row, triples[at:to]) for row, at, to in zip(points.rows.tolist(), bounds[:-1], bounds[1:], strict=True)]


def whole_of(rows: Rows) -> list[tuple[int, list[tuple[int, int, bool]]]]:
    return listed(BlockPoints(np.arange(len(rows.series_pairs)), rows.starts, rows.offsets, rows.bits, rows.floats))


@given(blocks())
def test_decoding_restores_every_bit(rows: Rows) -> None:
    block = Block(encode_block(rows, PLACE), PLACE)
    assert block.series_pairs() == rows.series_pairs
    assert (block.stamps.tolist(), block.in_ms.tolist()) == (rows.stamps.tolist(), rows.in_ms.tolist())
    assert block.counts.tolist() == np.diff(rows.starts).tolist()
    assert listed(block.decode()) == whole_of(rows)


@given(blocks(), st.data())
def test_chosen_rows_are_those_of_the_whole(rows: Rows, data: st.DataObject) -> None:
    count = len(rows.series_pairs)
    wanted = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = Block(encode_block(rows, PLACE), PLACE).decode(np.array(wanted))
    assert listed(found) == [row for row, chosen in zip(whole_of(rows), wanted, strict=True) if chosen]


@given(blocks())
def test_one_row_is_that_of_the_whole(rows: Rows) -> None:
    block = Block(encode_block(rows, PLACE), PLACE)
    assert [one for row in range(block.rows) for one in listed(block.decode_row(row))] == whole_of(rows)


@given(blocks(), st.data())
def test_rows_with_the_same_times_are_a_table(rows: Rows, data: st.DataObject) -> None:
    count = len(rows.series_pairs)
    wanted = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    if not wanted.any():
        return
    block = Block(encode_block(rows, PLACE), PLACE)
    points, found = block.decode(wanted), block.decode_alike(wanted)
    times = [points.offsets[at:to].tolist() for at, to in pairwise(points.starts.tolist())]
    assert (found is not None) == all(one == times[0] for one in times)
    if found is not None:
        assert found.offsets_ms.tolist() == times[0]
        assert found.bits.reshape(-1).tolist() == points.bits.tolist()
        assert found.floats.reshape(-1).tolist() == points.floats.tolist()


@given(blocks(), st.data())
def test_damage_is_an_error_and_never_a_wrong_point(rows: Rows, data: st.DataObject) -> None:
    stored = bytearray(encode_block(rows, PLACE))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRow):
        Block(bytes(stored), PLACE).decode()


@given(blocks())
def test_damaged_chunk_leaves_rows_of_other_chunks_readable(rows: Rows) -> None:
    stored = encode_block(rows, PLACE)
    block = Block(stored[:-1] + bytes((stored[-1] ^ 1,)), PLACE)  # the last byte is of the last chunk of values
    for row, points in whole_of(rows):
        try:
            found = listed(block.decode(np.arange(block.rows) == row))
        except CorruptRow:
            continue
        assert found == [(row, points)]


@given(blocks(), st.data())
def test_truncated_block_is_an_error(rows: Rows, data: st.DataObject) -> None:
    stored = encode_block(rows, PLACE)
    with pytest.raises(CorruptRow):
        Block(stored[: data.draw(st.integers(0, len(stored) - 1))], PLACE)


@given(blocks())
def test_block_at_the_place_of_another_is_an_error(rows: Rows) -> None:
    with pytest.raises(CorruptRow):
        Block(encode_block(rows, PLACE), PLACE + b"\0")


@given(blocks())
def test_cells_of_rows_are_read_as_the_same_points(rows: Rows) -> None:
    points = Block(encode_block(rows, PLACE), PLACE).decode()
    for cell, (row, wanted) in zip(cells_of(points, rows.in_ms), whole_of(rows), strict=True):
        found = read_cell(cell.qualifier, cell.value)
        assert found is not None
        assert (cell.series, found.in_ms) == (row, rows.in_ms[row])
        assert listed(BlockPoints(np.array([row]), np.array([0, len(wanted)]), *found[1:])) == [(row, wanted)]


numbers = INT64.map(encode_integer) | st.floats(allow_nan=False).map(encode_float)
odd_numbers = st.tuples(st.integers(0, 15), st.binary(max_size=8))


@given(
    st.lists(st.tuples(st.integers(0, 3599), numbers | odd_numbers), max_size=6), st.booleans(), st.binary(max_size=1)
)
def test_other_cells_have_no_points(points: list[tuple[int, tuple[int, bytes]]], in_ms: bool, tail: bytes) -> None:
    make = ms_qualifier if in_ms else seconds_qualifier
    qualifier = b"".join(make(at, flags) for at, (flags, _) in points)
    value = b"".join(number for _, (_, number) in points) + tail
    found = read_cell(qualifier, value)
    if found is not None:
        one = BlockPoints(np.zeros(1, np.intp), np.array([0, len(points)]), *found[1:])
        [cell] = cells_of(one, np.array([found.in_ms]))
        assert (cell.qualifier, cell.value) == (qualifier, value)


@pytest.mark.parametrize(
    ("qualifier", "value"),
    [
        (seconds_qualifier(1, 1), b"\0\1"),  # an integer longer than needed
        (seconds_qualifier(1, FLOAT | 7), bytes(8)),  # a double that a single holds
        (seconds_qualifier(1, 0) + ms_qualifier(2000, 0), b"\1\2\1"),  # seconds and milliseconds
        (2 * seconds_qualifier(1, 0), b"\1\2\0"),  # a time twice
        (b"\5\0\0", b"\0\0\1"),  # appended points
        (b"\1\0\0", b"{}"),  # an annotation
        (b"", b""),
    ],
)
def test_cell_of_unusual_form_has_no_points(qualifier: bytes, value: bytes) -> None:
    assert read_cell(qualifier, value) is None

"""Points of KairosDB's rows as arrays and bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.kairosdb.keys import DOUBLE, LEGACY, LONG, DataRow
from tsd.codec.kairosdb.rows import RowSpec, Unit
from tsd.codec.kairosdb.values import encode_double, encode_long
from tsd.store.cassandra.wire import RawRows, encode_value
from tsd.tables.kairosdb.decode import StoredRow, decode_numbers, decode_plain
from tsd.tables.kairosdb.points import (
    BATCH_BYTES,
    HAS_LOOP,
    LIMITS,
    VALUE,
    RowPut,
    RowsAnswer,
    StoredPoint,
    batches,
    parse_joined,
    parse_points,
)

FIRST_MS, LAST_MS = 1_000, 3_000_000_000
NULL = b"\xff\xff\xff\xff"


def test_points_are_those_of_the_answer() -> None:
    rows = [(b"\0\0\0\1", b"value", 1_700_000_000_000, None), (b"\0\0\0\2\3", b"", 5, 60)]
    body = b"".join(
        encode_value(column) + encode_value(value) + encode_value(stamp.to_bytes(8, "big"))
        + (NULL if ttl is None else encode_value(ttl.to_bytes(4, "big")))
        for column, value, stamp, ttl in rows
    )  # fmt: skip
    points = parse_points(RawRows(2, body), timed=True)
    assert list(points) == [StoredPoint(*row) for row in rows]
    assert (points.numbers.tolist(), points.stamps.tolist()) == ([1, 2], [1_700_000_000_000, 5])
    assert (points.size, points.expiring) == (14, 1)
    assert list(points.at(slice(1, 2))) == [StoredPoint(*rows[1])]


def test_points_without_times_have_none() -> None:
    points = parse_points(RawRows(1, encode_value(b"\0\0\0\1") + encode_value(b"v")), timed=False)
    assert (points.stamps.tolist(), points.expiring) == ([0], 0)


@given(
    st.dictionaries(
        st.binary(min_size=1, max_size=3), st.lists(st.binary(max_size=5), min_size=1, max_size=9), max_size=5
    )
)
def test_points_of_several_rows_are_told_apart_by_their_keys(rows: dict[bytes, list[bytes]]) -> None:
    body = b"".join(
        encode_value(key) + encode_value(at.to_bytes(4, "big")) + encode_value(value)
        for key, values in rows.items()
        for at, value in enumerate(values)
    )
    found = parse_joined(RawRows(sum(map(len, rows.values())), body), timed=False)
    assert {key: points.bytes_of(VALUE) for key, points in found.items()} == rows
    assert all(points.numbers.tolist() == list(range(len(rows[key]))) for key, points in found.items())


VALUES = {
    LONG: st.integers(-(1 << 63), (1 << 63) - 1).map(encode_long),
    DOUBLE: st.floats(width=64).map(encode_double),
    LEGACY: st.binary(max_size=2),
}
COLUMNS = st.lists(st.integers(0, (1 << 32) - 1).map(lambda column: column.to_bytes(4, "big")), max_size=9, unique=True)


@st.composite
def answers(draw: st.DrawFn) -> tuple[RowsAnswer, bool]:
    """An answer to a request of some rows, and whether all its bytes are those of whole numbers and doubles."""
    rows: dict[bytes, DataRow] = {}
    body, count, is_plain = b"", 0, True
    for at in range(draw(st.integers(1, 4))):
        row = DataRow(
            "m", draw(st.sampled_from([0, 1_814_400_000])), draw(st.sampled_from([*VALUES])), b"host=%d:" % at
        )
        rows[row.encode()] = row
        is_plain &= row.type != LEGACY
        for column in sorted(draw(COLUMNS)):
            value = draw(VALUES[row.type])
            if draw(st.integers(0, 50)) == 0:
                column, value, is_plain = draw(st.binary(max_size=6)), draw(st.binary(max_size=9)), False
            body += encode_value(row.encode()) + encode_value(column) + encode_value(value)
            count += 1
    return RowsAnswer(rows, RawRows(count, body), keyed=True, timed=False), is_plain


@pytest.mark.skipif(not HAS_LOOP, reason="needs the compiled loop")
@given(answers(), st.sampled_from([*Unit]))
def test_plain_points_are_those_of_each_row(drawn: tuple[RowsAnswer, bool], unit: Unit) -> None:
    answer, is_plain = drawn
    spec = RowSpec(unit)
    found = decode_plain(answer, spec, FIRST_MS, LAST_MS)
    if found is None:
        assert not is_plain or unit is Unit.LEGACY
        return
    each = {
        row: [part[start:end].tolist() for part in found.points]
        for row, start, end in zip(found.rows, found.starts, found.starts[1:], strict=False)
    }
    warnings: list[str] = []
    for row, points in answer.stored.items():
        wanted = decode_numbers([StoredRow(row, points)], spec, FIRST_MS, LAST_MS, warnings.append).points
        assert each.get(row, [[], [], []]) == [part.tolist() for part in wanted]
    assert found.size == sum(points.size for points in answer.stored.values())
    assert warnings == []


@pytest.mark.skipif(not HAS_LOOP, reason="needs the compiled loop")
@pytest.mark.parametrize("cut", range(1, 20))
def test_answer_that_ends_early_is_not_plain(cut: int) -> None:
    row = DataRow("m", 0, LONG, b"host=a:")
    body = encode_value(bytes(4)) + encode_value(encode_long(1 << 60))
    assert RowsAnswer({row.encode(): row}, RawRows(1, body), keyed=False, timed=False).plain is not None
    assert RowsAnswer({row.encode(): row}, RawRows(1, body[:-cut]), keyed=False, timed=False).plain is None


@given(st.lists(st.lists(st.sampled_from([0, 1, 9, 5_000, BATCH_BYTES]), min_size=1, max_size=30), max_size=8))
def test_batches_have_each_point_once_and_are_bounded(rows: list[list[int]]) -> None:
    puts = []
    for at, sizes in enumerate(rows):
        columns, values = [bytes([0, 0, 0, n]) for n in range(len(sizes))], [bytes(size) for size in sizes]
        puts.append(RowPut(bytes([at]), columns, values, 0, [1] * len(sizes)))
    made = list(batches(puts))
    found = [values for batch in made for put in batch for values in put.encode()]
    assert sorted(found) == sorted(values for put in puts for values in put.encode())
    for batch in made:
        assert len({put.key for put in batch}) == 1 or sum(put.size for put in batch) <= 50 << 10
        assert sum(len(put.values) for put in batch) <= LIMITS.points
        assert sum(put.size for put in batch) <= BATCH_BYTES or sum(len(put.values) for put in batch) == 1

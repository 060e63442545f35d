"""Points of KairosDB's rows as arrays and bytes."""

from hypothesis import given
from hypothesis import strategies as st

from tsd.store.cassandra.wire import RawRows, encode_value
from tsd.tables.kairosdb.points import (
    BATCH_BYTES,
    BATCH_POINTS,
    VALUE,
    RowPut,
    StoredPoint,
    batches,
    parse_joined,
    parse_points,
)

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
        assert sum(len(put.values) for put in batch) <= BATCH_POINTS
        assert sum(put.size for put in batch) <= BATCH_BYTES or sum(len(put.values) for put in batch) == 1

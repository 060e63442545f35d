"""Keys of the embedded store sort as rows and columns do, and can be split again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.errors import CorruptRow
from tsd.store import Cell, Put
from tsd.store.rocksdb.keys import (
    HAS_CELL_LOOP,
    HAS_KEY_LOOP,
    decode_cell,
    encode_value,
    find_digests,
    key_column,
    row_prefix,
    split_cells,
    split_key,
    time_of,
)
from tsd.store.rules import whole_rows

tricky = st.lists(st.sampled_from([b"\0", b"\1", b"\xff", b"a"]), max_size=6).map(b"".join)
rows = tricky.filter(bool) | st.binary(min_size=1)
columns = tricky | st.binary()


@given(rows, columns)
def test_key_splits_into_its_row(row: bytes, column: bytes) -> None:
    key = row_prefix(row) + column
    assert split_key(key) == (row, row_prefix(row))
    assert key.startswith(row_prefix(row))


@given(rows, columns, rows, columns)
def test_keys_sort_by_row_and_column(row: bytes, column: bytes, other: bytes, its: bytes) -> None:
    keys = row_prefix(row) + column, row_prefix(other) + its
    assert (keys[0] < keys[1]) == ((row, column) < (other, its))
    assert (row_prefix(other) <= keys[0]) == (other <= row)


@given(st.binary() | tricky)
def test_any_bytes_split_or_are_refused(key: bytes) -> None:
    try:
        row, head = split_key(key)
    except CorruptRow:
        return
    assert key.startswith(head)
    assert head == row_prefix(row)


@pytest.mark.parametrize("key", ["", "61", "0001", "6100", "6100024100ff0001"])
def test_invalid_key_is_refused(key: str) -> None:
    with pytest.raises(CorruptRow, match=f"{key}$"):
        split_key(bytes.fromhex(key))


@given(st.integers(0, 2**63), columns, st.binary())
def test_value_decodes_to_its_cell(time_ms: int, column: bytes, content: bytes) -> None:
    value = encode_value(time_ms, content)
    assert time_of(value) == time_ms
    assert decode_cell(column, value) == Cell(column, content, time_ms)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 9)), max_size=12), st.integers(1, 9), st.integers(0, 40))
def test_batches_have_whole_rows(shape: list[tuple[int, int]], most_cells: int, most_bytes: int) -> None:
    cells = [
        Put(b"row%d" % number, b"t:%d" % at, bytes(size))
        for number, (size, count) in enumerate(shape)
        for at in range(count)
    ]
    parts = list(whole_rows(cells, most_cells=most_cells, most_bytes=most_bytes))
    assert [cell for part in parts for cell in part] == cells
    kept = [row for part in parts for row in dict.fromkeys(cell.row for cell in part)]
    assert len(kept) == len(set(kept))
    for part in parts:
        several = len({cell.row for cell in part}) > 1
        assert not several or len(part) <= most_cells
        assert not several or sum(len(cell.value) for cell in part) <= most_bytes


@pytest.mark.skipif(not HAS_CELL_LOOP, reason="no C compiler when tsd was installed: only the Python code exists")
@given(
    st.lists(
        st.tuples(
            st.one_of(
                st.lists(st.sampled_from([0, 1, 255, 97]), max_size=12).map(bytes),
                st.tuples(st.binary(max_size=6), st.binary(max_size=6)).map(lambda made: row_prefix(made[0]) + made[1]),
                st.tuples(st.sampled_from([b"", b"a", b"a\0"]), st.binary(max_size=3)).map(
                    lambda made: row_prefix(made[0]) + made[1]
                ),
            ),
            st.binary(max_size=9),
        )
    )
)
def test_compiled_and_pure_split_are_equal(part: list[tuple[bytes, bytes]]) -> None:
    plain: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    compiled: tuple[list[bytes], list[bytes], list[bytes]] = ([], [], [])
    assert split_cells(part, *plain, by_loop=False) == split_cells(part, *compiled, by_loop=True)
    assert plain == compiled


@pytest.mark.skipif(not HAS_KEY_LOOP, reason="no C compiler when tsd was installed: only the Python code exists")
@given(
    st.lists(st.one_of(st.binary(max_size=3), st.binary(min_size=34, max_size=40)).map(key_column)),
    st.integers(0, 3),
)
def test_compiled_and_pure_digests_are_equal(columns: list[bytes], since: int) -> None:
    assert find_digests(columns, since, by_loop=True) == find_digests(columns, since, by_loop=False)


def test_cells_of_a_row_share_its_key() -> None:
    keys: list[bytes] = []
    split_cells([(row_prefix(b"a\0") + column, b"") for column in (b"t:1", b"t:2")], keys, [], [])
    assert keys == [b"a\0", b"a\0"]
    assert keys[0] is keys[1] or not HAS_CELL_LOOP

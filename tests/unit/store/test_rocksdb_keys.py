"""Keys of the embedded store sort as rows and columns do, and can be split again."""

from bisect import bisect_left
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.errors import CorruptRow
from tsd.store import Cell, Put
from tsd.store.rocksdb.keys import (
    HAS_CELL_LOOP,
    HAS_KEY_LOOP,
    decode_cell,
    encode_batch,
    encode_value,
    find_digests,
    key_column,
    read_row,
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
    assert split_cells(part, *plain, compiled=False) == split_cells(part, *compiled, compiled=True)
    assert plain == compiled


@pytest.mark.skipif(not HAS_KEY_LOOP, reason="no C compiler when tsd was installed: only the Python code exists")
@given(
    st.lists(st.one_of(st.binary(max_size=3), st.binary(min_size=34, max_size=40)).map(key_column)),
    st.integers(0, 3),
)
def test_compiled_and_pure_digests_are_equal(columns: list[bytes], since: int) -> None:
    assert find_digests(columns, since, compiled=True) == find_digests(columns, since, compiled=False)


class _Cells:
    """An iterator over cells in memory."""

    def __init__(self, cells: dict[bytes, bytes]) -> None:
        self._cells = sorted(cells.items())
        self._at = len(self._cells)
        self.seeks = 0

    def seek(self, key: bytes) -> None:
        self.seeks += 1
        self._at = bisect_left(self._cells, (key, b""))

    def valid(self) -> bool:
        return self._at < len(self._cells)

    def key(self) -> bytes:
        return self._cells[self._at][0]

    def value(self) -> bytes:
        return self._cells[self._at][1]

    def next(self) -> None:
        self._at += 1


row_names = st.sampled_from([b"a", b"a\0", b"b", b"\0b"])
long_columns = st.binary(min_size=34, max_size=36).map(lambda made: b"t:" + made)


@pytest.mark.parametrize(
    "compiled", [False, pytest.param(True, marks=pytest.mark.skipif(not HAS_KEY_LOOP, reason="no compiled loop"))]
)
@given(
    puts=st.lists(st.builds(Put, row_names, columns | long_columns, st.binary(max_size=40)), max_size=12),
    wanted=st.lists(row_names, max_size=6),
    most=st.integers(1, 4),
)
def test_rows_are_read_in_any_order(compiled: bool, puts: list[Put], wanted: list[bytes], most: int) -> None:
    stored: dict[bytes, bytes] = {}
    encode_batch(stored.__setitem__, puts, 7, compiled=compiled)
    rows: dict[bytes, dict[bytes, bytes]] = defaultdict(dict)
    for row, column, value in puts:
        rows[row][column] = value
    at, is_after_row = _Cells(stored), False
    for row in wanted:
        found = read_row(at, row, most, is_after_row=is_after_row, compiled=compiled)
        is_after_row = found is not None
        assert is_after_row == (len(rows[row]) <= most)
        if found is not None:
            assert sorted(found.cells) == sorted((column, value, 7) for column, value in rows[row].items())
            assert found.keys == [key for key, _ in sorted(stored.items()) if key.startswith(row_prefix(row))]


def test_neighbouring_rows_are_read_without_a_search() -> None:
    stored: dict[bytes, bytes] = {}
    encode_batch(stored.__setitem__, [Put(bytes([97 + row]), b"t:q", b"") for row in range(9)], 7)
    at = _Cells(stored)
    for row in range(9):
        assert read_row(at, bytes([97 + row]), 1, is_after_row=row > 0) is not None
    assert at.seeks == 1


def test_cells_of_a_row_share_its_key() -> None:
    keys: list[bytes] = []
    split_cells([(row_prefix(b"a\0") + column, b"") for column in (b"t:1", b"t:2")], keys, [], [])
    assert keys == [b"a\0", b"a\0"]
    assert keys[0] is keys[1] or not HAS_CELL_LOOP

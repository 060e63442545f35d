"""Keys and values for RocksDB are the same with the compiled loop and without it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.opentsdb.rowkey import LONGEST_HBASE_KEY
from tsd.errors import InvalidCell
from tsd.store import Put
from tsd.store.rocksdb.keys import HAS_KEY_LOOP, encode_batch, encode_keys, key_column, row_prefix

pytestmark = pytest.mark.skipif(
    not HAS_KEY_LOOP, reason="no C compiler when tsd was installed: only the Python code exists"
)

rows = st.lists(st.sampled_from([0, 1, 255, 97]), min_size=1, max_size=12).map(bytes)
columns = st.one_of(
    st.binary(max_size=16),
    st.binary(min_size=14, max_size=14).map(lambda start: start + b"\xff"),  # looks like a digest
    st.integers(30, 70).map(bytes),
)
cells = st.lists(st.builds(Put, rows, columns, st.binary(max_size=9)), max_size=9)


def encoded(cells: list[Put], *, compiled: bool) -> list[tuple[bytes, bytes]]:
    done: list[tuple[bytes, bytes]] = []
    encode_batch(lambda key, value: done.append((key, value)), cells, 1356998400000, compiled=compiled)
    return done


@given(cells)
def test_compiled_and_pure_batches_are_equal(cells: list[Put]) -> None:
    found = encoded(cells, compiled=True)
    assert found == encoded(cells, compiled=False)
    assert [key for key, _ in found] == [row_prefix(cell.row) + key_column(cell.column) for cell in cells]


@given(cells)
def test_compiled_and_pure_keys_are_equal(cells: list[Put]) -> None:
    places = [(cell.row, cell.column) for cell in cells]
    compiled_keys = encode_keys(places, compiled=True)
    assert compiled_keys == encode_keys(places, compiled=False)
    assert compiled_keys.keys == [row_prefix(row) + key_column(column) for row, column in places]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("size", [0, LONGEST_HBASE_KEY + 1])
@pytest.mark.parametrize("column", [b"t:", bytes(40)])
def test_invalid_row_key_is_refused_after_earlier_cells(compiled: bool, size: int, column: bytes) -> None:
    filled: list[bytes] = []
    cells = [Put(b"a", b"t:", b""), Put(bytes(size), column, b"")]
    with pytest.raises(InvalidCell):
        encode_batch(lambda key, _: filled.append(key), cells, 1, compiled=compiled)
    assert filled == [row_prefix(b"a") + b"t:"]


def test_non_cell_is_refused() -> None:
    for wrong in ([b"row"], [("a", b"t:", b"")], [(b"a", b"t:")]):
        with pytest.raises((TypeError, ValueError)):
            encode_batch(lambda *_: None, wrong, 1, compiled=True)  # type: ignore[arg-type]

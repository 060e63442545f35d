"""What RocksDB is given for cells is the same by the compiled loop and without it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.rowkey import LONGEST_KEY
from tsd.errors import StoreError
from tsd.store import Put
from tsd.store.filling import HAS_LOOP, fill, keys_of
from tsd.store.keyvalue import row_head
from tsd.store.packing import stands_as

pytestmark = pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")

rows = st.lists(st.sampled_from([0, 1, 255, 97]), min_size=1, max_size=12).map(bytes)
columns = st.one_of(
    st.binary(max_size=16),
    st.binary(min_size=14, max_size=14).map(lambda start: start + b"\xff"),  # looks like a name
    st.integers(30, 70).map(bytes),
)
cells = st.lists(st.builds(Put, rows, columns, st.binary(max_size=9)), max_size=9)


def _filled(cells: list[Put], *, older: bool, by_loop: bool) -> list[tuple[bytes, bytes | None]]:
    done: list[tuple[bytes, bytes | None]] = []
    fill(
        lambda key, value: done.append((key, value)),
        (lambda key: done.append((key, None))) if older else None,
        cells,
        1356998400000,
        by_loop=by_loop,
    )
    return done


@given(cells, st.booleans())
def test_both_ways_fill_a_batch_alike(cells: list[Put], older: bool) -> None:
    filled = _filled(cells, older=older, by_loop=True)
    assert filled == _filled(cells, older=older, by_loop=False)
    puts = [key for key, value in filled if value is not None]
    assert puts == [row_head(cell.row) + stands_as(cell.column) for cell in cells]


@given(cells)
def test_both_ways_ask_for_the_same_keys(cells: list[Put]) -> None:
    places = [(cell.row, cell.column) for cell in cells]
    asked = keys_of(places, by_loop=True)
    assert asked == keys_of(places, by_loop=False)
    assert asked.keys == [row_head(row) + stands_as(column) for row, column in places]


@pytest.mark.parametrize("by_loop", [True, False])
@pytest.mark.parametrize("size", [0, LONGEST_KEY + 1])
@pytest.mark.parametrize("column", [b"t:", bytes(40)])
def test_a_row_that_is_none_is_refused_at_its_place(by_loop: bool, size: int, column: bytes) -> None:
    filled: list[bytes] = []
    cells = [Put(b"a", b"t:", b""), Put(bytes(size), column, b"")]
    with pytest.raises(StoreError, match="a row key has 1 to"):
        fill(lambda key, _: filled.append(key), None, cells, 1, by_loop=by_loop)
    assert filled == [row_head(b"a") + b"t:"]


def test_what_is_no_cell_is_refused() -> None:
    for wrong in ([b"row"], [("a", b"t:", b"")], [(b"a", b"t:")]):
        with pytest.raises((TypeError, ValueError)):
            fill(lambda *_: None, None, wrong, 1, by_loop=True)  # type: ignore[arg-type]

"""Blocks: every cell comes back, chosen rows are those of the whole, and damage is an error."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_packed import cells
from tests.unit.codec.block_rows import PLACE, packed_cell
from tsd.codec.blocks.block import HAS_LOOP, Block, Rows, encode_block
from tsd.codec.packing.cell import CHECKSUM_BYTES, pack, with_checksum
from tsd.errors import CorruptRow

TWINS = [False, True] if HAS_LOOP else [False]
USUAL = st.lists(st.integers(-1000, 1000), min_size=1, max_size=20) | st.lists(st.floats(), min_size=1, max_size=20)
SAME_TIMES = USUAL.map(lambda values: packed_cell(range(0, 10 * len(values), 10), values))


def packed(cell: tuple[bytes, bytes]) -> bytes | None:
    """The packed form of a cell without its checksum; None for a cell that has none."""
    found = pack(*cell)
    return None if found is None else found[:-CHECKSUM_BYTES]


@st.composite
def blocks(draw: st.DrawFn) -> Rows:
    """Rows of one hour, some with the same times."""
    stored = draw(st.lists(SAME_TIMES | cells().map(packed), min_size=1, max_size=12))
    chosen = [cell for cell in stored if cell is not None] or [packed_cell([0], [42])]
    pair = st.binary(min_size=6, max_size=6) if draw(st.booleans()) else st.binary(max_size=20)
    names = sorted(draw(st.sets(pair, min_size=len(chosen), max_size=len(chosen))))
    stamps = draw(st.lists(st.integers(0, 1 << 50), min_size=len(chosen), max_size=len(chosen)))
    return Rows(names, np.array(stamps, np.int64), chosen)


@pytest.mark.parametrize("compiled", TWINS)
@given(rows=blocks(), data=st.data())
def test_every_cell_comes_back(rows: Rows, data: st.DataObject, compiled: bool) -> None:
    block = Block(encode_block(rows, PLACE), PLACE, compiled=compiled)
    count = len(rows.cells)
    assert block.series_pairs() == rows.series_pairs
    assert block.stamps.tolist() == rows.stamps.tolist()
    assert block.sizes.tolist() == list(map(len, rows.cells))
    assert [block.cell(row) for row in range(count)] == rows.cells
    some = data.draw(st.lists(st.integers(0, count - 1)))
    stamps = [int(rows.stamps[row]).to_bytes(8, "big") for row in some]
    wanted = [stamp + with_checksum(rows.cells[row]) for stamp, row in zip(stamps, some, strict=True)]
    assert block.stored_cells(np.array(some, np.int64)) == wanted


@pytest.mark.parametrize("compiled", TWINS)
@given(rows=blocks(), data=st.data())
def test_rows_are_found(rows: Rows, data: st.DataObject, compiled: bool) -> None:
    block = Block(encode_block(rows, PLACE), PLACE, compiled=compiled)
    wanted = [*data.draw(st.lists(st.sampled_from(rows.series_pairs))), *data.draw(st.lists(st.binary(max_size=8)))]
    places = {name: row for row, name in enumerate(rows.series_pairs)}
    assert block.find(wanted).tolist() == [places.get(name, -1) for name in wanted]


@given(blocks(), st.data())
def test_damage_is_an_error(rows: Rows, data: st.DataObject) -> None:
    stored = bytearray(encode_block(rows, PLACE))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(CorruptRow):
        Block(bytes(stored), PLACE)


@given(blocks(), st.data())
def test_truncated_block_is_an_error(rows: Rows, data: st.DataObject) -> None:
    stored = encode_block(rows, PLACE)
    with pytest.raises(CorruptRow):
        Block(stored[: data.draw(st.integers(0, len(stored) - 1))], PLACE)


@given(blocks())
def test_block_at_the_place_of_another_is_an_error(rows: Rows) -> None:
    with pytest.raises(CorruptRow):
        Block(encode_block(rows, PLACE), PLACE + b"\0")

"""Blocks: every cell comes back, chosen rows are those of the whole, and damage is an error."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.property.test_packed import cells
from tests.unit.codec.block_rows import PLACE, packed_cell
from tsd.codec.blocks.block import HAS_LOOP, Block, Rows, encode_block
from tsd.codec.packing.cell import CHECKSUM_BYTES, pack, with_checksum
from tsd.errors import CorruptRow

ROWS_LIMIT = 65_536  # FORMATS.md, like the head
HEAD = struct.Struct("<BHIqII")
WIDTH, ROWS, FIRST_STAMP, SIZE = 1, 2, 3, 4  # places in it
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
    assert block.cells(np.arange(count)) == rows.cells
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


@st.composite
def forged(draw: st.DrawFn) -> bytes:
    """Blocks whose checksum is right and whose other bytes are not: any bytes, or a block with some numbers of its
    head and bytes of its directory replaced."""
    rows = draw(blocks())
    stored = encode_block(rows, PLACE)
    fields = list(HEAD.unpack_from(stored))
    columns = bytearray(zlib.decompress(stored[HEAD.size : HEAD.size + fields[SIZE]]))
    rests = stored[HEAD.size + fields[SIZE] :]
    for at, numbers in {WIDTH: (0, 1, 5, 65535), ROWS: (0, 1, 2, 65536, 65537, 2**32 - 1)}.items():
        if draw(st.integers(0, 3)) == 0:
            fields[at] = draw(st.sampled_from(numbers))
    if draw(st.integers(0, 3)) == 0:
        fields[FIRST_STAMP] = draw(st.sampled_from([-1, -(2**63), 2**63 - 1]))
    for _ in range(draw(st.integers(0, 3))):
        columns[draw(st.integers(0, len(columns) - 1))] = draw(st.integers(0, 255))
    columns = columns[: draw(st.integers(0, len(columns)))] if draw(st.integers(0, 5)) == 0 else columns
    directory = zlib.compress(bytes(columns) + draw(st.just(b"") | st.binary(max_size=3)))
    if draw(st.integers(0, 4)) == 0:
        directory = draw(st.binary(max_size=40) | st.just(directory[:-1]) | st.just(directory + b"x"))
    fields[SIZE] = len(directory) if draw(st.integers(0, 4)) else draw(st.sampled_from([0, 7, 2**32 - 1]))
    return with_right_checksum(fields, directory + rests)


def with_right_checksum(fields: list[int], rest: bytes) -> bytes:
    """Return a block of these fields of the head and the bytes after it."""
    crc = zlib.crc32(rest, zlib.crc32(HEAD.pack(*fields[:-1], 0), zlib.crc32(PLACE)))
    return HEAD.pack(*fields[:-1], crc) + rest


@given(forged())
def test_forged_block_is_an_error_or_consistent_and_twins_agree(stored: bytes) -> None:
    """Regression: zlib.error, ValueError, OverflowError, and IndexError."""
    read = [shown(stored, compiled) for compiled in TWINS]
    assert all(one == read[0] for one in read)


def shown(stored: bytes, compiled: bool) -> Rows | None:
    """Return all that a block has; None for damage. Assert that its rows are found."""
    try:
        block = Block(stored, PLACE, compiled=compiled)
    except CorruptRow:
        return None
    pairs, rows = block.series_pairs(), range(block.rows)
    assert 0 < len(pairs) == block.rows <= ROWS_LIMIT
    assert block.find(pairs).tolist() == [block.find([one])[0] for one in pairs] == list(rows)
    cells = block.cells(np.array(rows, np.intp))
    assert [len(cell) for cell in cells] == block.sizes.tolist()
    wanted = [
        stamp.to_bytes(8, "big") + with_checksum(cell) for stamp, cell in zip(block.stamps.tolist(), cells, strict=True)
    ]
    assert block.stored_cells(np.arange(block.rows)) == wanted
    return Rows(pairs, block.stamps.tolist(), cells)


@pytest.mark.parametrize("compiled", TWINS)
@pytest.mark.parametrize("width", [0, 1, 65535])
def test_small_block_with_a_huge_directory_takes_little_memory(compiled: bool, width: int) -> None:
    """Regression: all of the directory was decompressed."""
    packer = zlib.compressobj(9)
    directory = b"".join(packer.compress(bytes(1 << 20)) for _ in range(100)) + packer.flush()
    stored = with_right_checksum([3, width, ROWS_LIMIT, 0, len(directory), 0], directory)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptRow):
            Block(stored, PLACE, compiled=compiled)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()

"""Blocks of many rows: their size, and the errors of blocks that cannot be read."""

import zlib

import numpy as np
import pytest

from tests.unit.codec.block_rows import PLACE, rows_of
from tsd.codec.blocks.block import Block, Rows, encode_block
from tsd.errors import CorruptRow

SERIES, POINTS = 100, 60
TEN_S = range(0, 10 * POINTS, 10)


def walks(scale: int = 100) -> Rows:
    """Rows of counters that share their times."""
    steps = np.random.default_rng(2).integers(0, scale, (SERIES, POINTS))
    return rows_of([(list(TEN_S), row) for row in np.cumsum(steps, axis=1).tolist()])


def test_cells_of_every_row_come_back() -> None:
    rows = walks()
    block = Block(encode_block(rows, PLACE), PLACE)
    assert block.cells(np.arange(block.rows)) == list(rows.cells)


def test_rows_take_fewer_bytes_than_their_cells() -> None:
    rows = walks()
    alone = sum(map(len, rows.cells)) + sum(map(len, rows.series_pairs))
    assert len(encode_block(rows, PLACE)) < 0.9 * alone


def test_rows_that_never_change_take_next_to_nothing() -> None:
    rows = rows_of([(list(TEN_S), [number * 1000] * POINTS) for number in range(SERIES)])
    assert len(encode_block(rows, PLACE)) < 0.1 * SERIES * POINTS


def test_unknown_format_is_an_error() -> None:
    stored = encode_block(walks(), PLACE)
    with pytest.raises(CorruptRow, match="format 2"):
        Block(b"\2" + stored[1:], PLACE)


@pytest.mark.parametrize("compiled", [False, True])
def test_directory_that_does_not_fit_is_an_error(compiled: bool) -> None:
    """Whose checksum is right."""
    rows = walks()
    stored = encode_block(rows, PLACE)
    size = int.from_bytes(stored[15:19], "little")
    directory = zlib.decompress(stored[23 : 23 + size])
    for other in (directory[:-1], directory[:50], bytes(len(directory)), b"\xff" * len(directory)):
        packed = zlib.compress(other)
        head = stored[:15] + len(packed).to_bytes(4, "little") + bytes(4)
        rest = packed + stored[23 + size :]
        crc = zlib.crc32(rest, zlib.crc32(head, zlib.crc32(PLACE)))
        with pytest.raises(CorruptRow):
            Block(head[:19] + crc.to_bytes(4, "little") + rest, PLACE, compiled=compiled)

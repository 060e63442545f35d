"""Blocks of many chunks, the forms and the size of their rows, and the errors of blocks that cannot be read."""

import random
import struct

import numpy as np
import pytest

from tsd.codec.blocks.block import Block, Rows, encode_block
from tsd.codec.blocks.numbers import HAS_LOOP, choose_forms
from tsd.codec.points import Int64
from tsd.errors import CorruptRow

PLACE = b"place"
SERIES, POINTS = 100, 360


def rows_of(bits: Int64) -> Rows:
    """Rows of a table of values, one every ten seconds."""
    series, points = bits.shape
    return Rows(
        [b"%06d" % number for number in range(series)],
        np.zeros(series, np.bool_),
        np.full(series, 10**12),
        np.arange(series + 1) * points,
        np.tile(np.arange(points) * 10_000, series),
        bits.ravel(),
        np.zeros(series * points, np.bool_),
    )


def bytes_a_point(rows: Rows) -> float:
    """Size of a block of some rows."""
    return len(encode_block(rows, PLACE)) / len(rows.bits)


def many_rows() -> Rows:
    """Rows of gauges, counters and small integers of many scales in turn, for many chunks; every fifth one has times of
    its own."""
    series, points = 300, 200
    rng = np.random.default_rng(7)
    scale = 10 ** (np.arange(series)[:, None] % 7 // 2)
    gauges = np.round(np.cumsum(rng.normal(0, scale, (series, points)), axis=1), 2)
    bits = np.cumsum(rng.integers(0, 50 * scale, (series, points)), axis=1)
    bits[::3] = gauges.view(np.int64)[::3]
    bits[1::3] = rng.integers(0, 9, (series, points))[1::3]
    offsets = np.tile(np.arange(points) * 10_000, (series, 1))
    offsets[::5] += rng.integers(0, 9000, (series, points))[::5]
    return Rows(
        [b"%06d" % number for number in range(series)],
        np.arange(series) % 5 == 0,
        np.arange(series) + 10**12,
        np.arange(series + 1) * points,
        offsets.ravel(),
        bits.ravel(),
        np.repeat(np.arange(series) % 3 == 0, points),
    )


def test_every_row_of_many_chunks_is_decoded_alone() -> None:
    rows = many_rows()
    block = Block(encode_block(rows, PLACE), PLACE)
    every = block.decode()
    assert (every.bits == rows.bits).all()
    assert (every.offsets == rows.offsets).all()
    assert (every.floats == rows.floats).all()
    for row in range(0, block.rows, 7):
        part = slice(*rows.starts[row : row + 2].tolist())
        for found in (block.decode(np.arange(block.rows) == row), block.decode_row(row)):
            assert (found.bits == rows.bits[part]).all()
            assert (found.offsets == rows.offsets[part]).all()


@pytest.mark.parametrize("share", [0.02, 0.3, 0.95])
def test_some_rows_of_many_chunks_are_those_of_the_whole(share: float) -> None:
    rows = many_rows()
    block = Block(encode_block(rows, PLACE), PLACE)
    wanted = np.random.default_rng(3).random(block.rows) < share
    chosen, found = np.repeat(wanted, np.diff(rows.starts)), block.decode(wanted)
    assert (found.bits == rows.bits[chosen]).all()
    assert (found.offsets == rows.offsets[chosen]).all()
    assert (found.floats == rows.floats[chosen]).all()


def test_rows_of_two_scales_take_hardly_more_than_each_scale_alone() -> None:
    rng = np.random.default_rng(2)
    scale = np.where(np.arange(SERIES) % 2, 4, 4000)[:, None]
    walks = np.cumsum(np.rint(rng.normal(0, scale, (SERIES, POINTS))), axis=1)
    whole = walks.astype(np.int64)
    apart = (bytes_a_point(rows_of(whole[::2])) + bytes_a_point(rows_of(whole[1::2]))) / 2
    assert bytes_a_point(rows_of(whole)) < 1.05 * apart


def test_rows_that_stay_near_numbers_of_their_own_take_hardly_more_than_rows_near_one() -> None:
    rng = np.random.default_rng(2)
    noise = np.rint(rng.normal(0, 100, (SERIES, POINTS))).astype(np.int64)
    own = noise + rng.integers(0, 10**6, (SERIES, 1))
    assert bytes_a_point(rows_of(own)) < 1.2 * bytes_a_point(rows_of(noise))


def test_rows_that_never_change_take_next_to_nothing() -> None:
    constants = np.repeat(np.random.default_rng(2).integers(0, 10**9, (SERIES, 1)), POINTS, axis=1)
    assert bytes_a_point(rows_of(constants)) < 0.1


def test_multiples_of_a_number_take_hardly_more_than_their_quotients() -> None:
    pages = np.cumsum(np.random.default_rng(2).integers(-50, 51, (SERIES, POINTS)), axis=1)
    assert bytes_a_point(rows_of(4096 * pages)) < 1.1 * bytes_a_point(rows_of(pages))


def test_no_wanted_row_gives_no_points() -> None:
    block = Block(encode_block(many_rows(), PLACE), PLACE)
    found = block.decode(np.zeros(block.rows, np.bool_))
    assert (len(found.rows), len(found.offsets), found.starts.tolist()) == (0, 0, [0])


def test_unknown_format_is_an_error() -> None:
    stored = encode_block(many_rows(), PLACE)
    with pytest.raises(CorruptRow, match="format 2"):
        Block(b"\2" + stored[1:], PLACE)


def one_value(dice: random.Random, kind: str) -> tuple[int, bool]:
    """Return the bits of a value, and whether it is a double."""
    if kind == "integer" or (kind == "mixed" and dice.random() < 0.5):
        return dice.choice([0, -1, dice.randrange(-100, 100), dice.randrange(-(1 << 63), 1 << 63)]), False
    number = dice.choice([dice.random(), dice.randrange(-500, 500) / 10 ** dice.randrange(8), float(1 << 52)])
    if kind == "decimal":
        number = round(dice.uniform(-50, 50), dice.choice([0, 2, 6]))
    elif dice.random() < 0.3:
        number = dice.choice([float("nan"), float("inf"), -0.0, 1e300, 5e-324, float((1 << 52) - 1), -(2.0**52)])
    return struct.unpack("q", struct.pack("d", number))[0], True


@pytest.mark.skipif(not HAS_LOOP, reason="no compiled loops")
@pytest.mark.parametrize("seed", range(40))
def test_compiled_loop_chooses_the_forms_that_numpy_does(seed: int) -> None:
    dice = random.Random(seed)
    counts = [dice.choice([1, 1, 2, 5, dice.randrange(1, 400)]) for _ in range(dice.choice([1, 30, 200]))]
    kinds = [kind for count in counts for kind in [dice.choice(["integer", "double", "decimal", "mixed"])] * count]
    bits, floats = zip(*[one_value(dice, kind) for kind in kinds], strict=True)
    columns = np.array(bits, np.int64), np.array(floats, np.bool_), np.cumsum([0, *counts])
    found, wanted = choose_forms(*columns, compiled=True), choose_forms(*columns, compiled=False)
    assert np.allclose(found.scale, wanted.scale, rtol=1e-12)  # numpy adds in another order
    for one, other in zip(found._replace(scale=wanted.scale), wanted, strict=True):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()

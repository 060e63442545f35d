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
FORMAT_1 = """
0101000400000003000000030000000010a5d4e80000004500000009991a28789c4b4c4a4e616060646266c00318991899200c06266471
666684b6ff0c20362710eb0271a2fdf2270c60c56c402c0fd2ea30e13923134c441588af64552402008995092c70636f21030043020401
0408000000100000000000000000007c0000008813c4090080af4219a18c10a410270070636f2103008201040104050000001000080000
000000000024001062860070636f2103008201040104050000001000c80000000000000064001900007d907ed0d78400
"""


def rows_of(bits: Int64, *, floats: bool = False, offsets: Int64 | None = None, in_ms: bool = False) -> Rows:
    """Rows of a table of values; of a table of times too, if these are not every ten seconds."""
    series, points = bits.shape
    every = np.tile(np.arange(points) * 10_000, series) if offsets is None else offsets.ravel()
    return Rows(
        [b"%06d" % number for number in range(series)],
        np.full(series, in_ms),
        np.full(series, 10**12),
        np.arange(series + 1) * points,
        every,
        bits.ravel(),
        np.full(series * points, floats),
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


@pytest.mark.parametrize("in_ms", [False, True])
def test_points_that_are_late_or_early_take_little_more_than_the_least(in_ms: bool) -> None:
    rng = np.random.default_rng(2)
    even, zeros = np.arange(POINTS) * 10_000 + 2000, np.zeros((SERIES, POINTS), np.int64)
    chances = {-1: 0.025, 0: 0.95, 1: 0.025}
    late = 1000 * rng.choice(list(chances), (SERIES, POINTS), p=list(chances.values()))
    least = -sum(chance * np.log2(chance) for chance in chances.values()) / 8
    added = bytes_a_point(rows_of(zeros, offsets=even + late, in_ms=in_ms)) - bytes_a_point(rows_of(zeros))
    assert added < 1.8 * least


def uneven_times(rng: np.random.Generator) -> list[Int64]:
    """Times of rows: near even steps of several lengths, with gaps, after pauses of random length, of few points."""
    even = np.arange(300) * 10_000
    return [
        even + 1000 * rng.integers(0, 2, 300),
        np.cumsum(rng.integers(9000, 11_000, 300)),
        even[rng.random(300) < 0.8],
        np.arange(3600) * 1000 + rng.integers(0, 100, 3600),
        even + rng.integers(0, 1000, 300),
        even + 7,
        rng.integers(0, 3_600_000, 1),
        np.array([0, 3_599_999]),
    ]


def test_times_of_every_kind_come_back() -> None:
    rng = np.random.default_rng(4)
    times = [one for _ in range(12) for one in uneven_times(rng)]
    starts = np.cumsum([0, *map(len, times)])
    offsets = np.concatenate(times)
    names = [b"%06d" % number for number in range(len(times))]
    stamps, in_ms = np.zeros(len(times), np.int64), np.arange(len(times)) % 3 > 0
    rows = Rows(names, in_ms, stamps, starts, offsets, np.arange(len(offsets)), np.zeros(len(offsets), np.bool_))
    block = Block(encode_block(rows, PLACE), PLACE)
    assert (block.decode().offsets == offsets).all()
    for row, wanted in enumerate(times):
        assert (block.decode_row(row).offsets == wanted).all()
    some = np.arange(block.rows) % 5 < 2
    assert (block.decode(some).offsets == np.concatenate([times[row] for row in np.flatnonzero(some)])).all()


def test_block_of_the_first_format_is_read() -> None:
    found = Block(bytes.fromhex(FORMAT_1), PLACE).decode()
    times = [[0, 10, 20], [0, 11, 20], [0, 10, 20], [9, 30, 40]]
    assert (found.offsets.reshape(4, 3) // 1000).tolist() == times
    assert found.bits.reshape(4, 3)[::2].tolist() == [[1, 2, 3], [7, 7, 9]]
    assert found.bits.view(np.float64).reshape(4, 3)[1::2].tolist() == [[0.5, 0.25, 1.5], [20.5, 20.25, 21.5]]


def test_no_wanted_row_gives_no_points() -> None:
    block = Block(encode_block(many_rows(), PLACE), PLACE)
    found = block.decode(np.zeros(block.rows, np.bool_))
    assert (len(found.rows), len(found.offsets), found.starts.tolist()) == (0, 0, [0])


def test_unknown_format_is_an_error() -> None:
    stored = encode_block(many_rows(), PLACE)
    with pytest.raises(CorruptRow, match="format 3"):
        Block(b"\3" + stored[1:], PLACE)


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

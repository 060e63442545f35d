"""Packed cells: decoding restores every bit, both implementations make the same bytes, and other bytes are refused."""

import struct
from itertools import accumulate
from zlib import crc32

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.peers.needs import need_compiled_loops
from tsd.codec.opentsdb.cell import ms_qualifier, seconds_qualifier
from tsd.codec.packing.cell import CHECKSUM_BYTES, HAS_PACKING_LOOP, LEAST_POINTS, pack, unpack
from tsd.codec.packing.points import (
    CellBuckets,
    continued_buckets,
    count_points,
    downsample_joined,
    downsample_points,
    join_cells,
    unpack_alike,
    unpack_joined,
    unpack_joined_alike,
    unpack_points,
)
from tsd.codec.points import Batch
from tsd.codec.text import FLOAT, encode_float, encode_integer
from tsd.errors import CorruptRow
from tsd.query.row_buckets import FUNCTIONS, buckets_of_batch, buckets_of_cells
from tsd.tables.opentsdb.decode import read_cells

TWINS = [False, True] if HAS_PACKING_LOOP else [False]

Number = tuple[int, bytes]  # flags and bytes
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
ODD_FLOATS = st.sampled_from((0.0, -0.0, 1e300, float("inf"), float("-inf"), float("nan"), 2.0**53, 0.1, 1e-9, 5e-324))


def single(number: float) -> Number:
    """As a float of 4 bytes, whatever that loses."""
    try:
        return FLOAT | 3, struct.pack(">f", number)
    except OverflowError:
        return FLOAT | 3, struct.pack(">f", float("inf"))


def double(number: float) -> Number:
    return FLOAT | 7, struct.pack(">d", number)


def long(number: int) -> Number:
    return 7, struct.pack(">q", number)


def integer_or_float(number: float) -> Number:
    """As a sender does who leaves out a decimal point that nothing follows."""
    return encode_integer(int(number)) if number == int(number) else encode_float(number)


def decimals(places: int) -> st.SearchStrategy[float]:
    return st.integers(-(10**7), 10**7).map(lambda whole: whole / 10**places)


def walk(steps: list[int]) -> list[int]:
    """What steps lead to, from far away on."""
    found, at = [], 1 << 40
    for step in steps:
        at += step
        found.append(at)
    return found


def lists(of: st.SearchStrategy[Number]) -> st.SearchStrategy[list[Number]]:
    return st.lists(of, min_size=LEAST_POINTS - 1, max_size=60)


SERIES = st.one_of(
    lists(INT64.map(encode_integer)),
    lists(INT64.map(long)),
    st.lists(st.integers(-300, 300), min_size=4, max_size=60).map(lambda found: list(map(encode_integer, walk(found)))),
    st.lists(st.sampled_from((0, 0, 0, 0, 0, 0, 7, 1 << 30)), min_size=4, max_size=60).map(
        lambda found: list(map(encode_integer, walk(found)))
    ),
    *(lists(decimals(places).map(way)) for places in (0, 1, 2, 5) for way in (encode_float, single, double)),
    lists(decimals(1).map(integer_or_float)),
    lists(st.floats(-1, 1).map(encode_float)),
    lists(st.floats().map(double)),
    lists(st.floats(width=32).map(single)),
    lists(ODD_FLOATS.map(double)),
    lists(st.one_of(ODD_FLOATS, st.integers(-(1 << 54), 1 << 54).map(float)).map(encode_float)),
    lists(st.one_of(decimals(2).map(encode_float), INT64.map(encode_integer), decimals(2).map(single))),
)
STEPS = st.one_of(st.just(10), st.sampled_from((10, 10, 10, 10, 9, 11, 60)), st.integers(0, 59))


@st.composite
def cells(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A qualifier and a value: as they are stored, but for times that may go beyond the hour and need not ascend."""
    numbers = draw(SERIES)
    in_ms = draw(st.booleans())
    offset, qualifiers = draw(st.integers(0, 50)), []
    step = draw(STEPS)
    for flags, _ in numbers:
        qualifiers.append(ms_qualifier(offset * 999, flags) if in_ms else seconds_qualifier(offset, flags))
        offset = (offset + draw(st.one_of(st.just(step), STEPS))) % 3600
    tail = draw(st.sampled_from((b"\0", b"\0", b"\1", b"", b"\2", b"\0\0")))
    return b"".join(qualifiers), b"".join(value for _, value in numbers) + tail


@pytest.mark.parametrize("compiled", TWINS)
def test_numbers_that_fall_take_as_few_bytes_as_numbers_that_rise(compiled: bool) -> None:
    steps = [[0, 0, 2, 0, 0, 0, -1, 0, 1, 0][at % 10] for at in range(360)]

    def packed(factor: int) -> int:
        numbers = [encode_integer(100 + factor * step) for step in accumulate(steps)]
        qualifier = b"".join(seconds_qualifier(10 * at, flags) for at, (flags, _) in enumerate(numbers))
        found = pack(qualifier, b"".join(value for _, value in numbers) + b"\0", compiled=compiled)
        assert found is not None
        return len(found)

    assert packed(-1) <= packed(1) + 4


def test_compiled_loop_is_built() -> None:
    need_compiled_loops()
    assert HAS_PACKING_LOOP


@given(cells())
@example((bytes.fromhex("0007001000200030"), bytes(8) + b"\1\2\3\0"))
def test_packing_is_exact_and_equal_in_both_codecs(cell: tuple[bytes, bytes]) -> None:
    forms = [pack(*cell, compiled=compiled) for compiled in TWINS]
    assert len(set(forms)) == 1
    if forms[0] is None:
        return
    for compiled in TWINS:
        assert unpack(b"12345678" + forms[0], 8, b"t:", compiled=compiled) == (b"t:" + cell[0], b"12345678" + cell[1])


@given(st.binary(max_size=64), st.binary(max_size=80))
def test_any_bytes_survive_or_are_not_packed(qualifier: bytes, value: bytes) -> None:
    forms = [pack(qualifier, value, compiled=compiled) for compiled in TWINS]
    assert len(set(forms)) == 1
    if forms[0] is not None:
        assert {unpack(forms[0], 0, b"", compiled=compiled) for compiled in TWINS} == {(qualifier, value)}


@given(st.lists(cells(), min_size=1, max_size=5))
def test_points_are_those_of_the_unpacked_cells(some: list[tuple[bytes, bytes]]) -> None:
    stored = [b"12345678" + packed for cell in some if (packed := pack(*cell)) is not None]
    if not HAS_PACKING_LOOP or not stored:
        return
    points = count_points(stored, 0, 8)
    bases_s = np.arange(len(stored)) * 3600
    found = unpack_points(stored, 8, bases_s, points)
    columns, values = zip(*(unpack(one, 8, b"t:") for one in stored), strict=True)
    rows = np.arange(len(stored))
    wanted = read_cells([*columns], [*values], 8, rows, bases_s * 1000, np.zeros(len(stored), bool))
    if found is None:
        assert wanted.slow.any()
        return
    assert not wanted.slow.any()
    assert found.counts.tolist() == wanted.counts.tolist()
    assert found.times.tolist() == wanted.times.tolist()
    assert found.bits.tolist() == wanted.bits.tolist()
    assert found.floats.tolist() == wanted.floats.tolist()


@given(st.lists(cells(), min_size=1, max_size=3), st.integers(1, 3))
def test_cells_with_the_same_times_are_a_table(some: list[tuple[bytes, bytes]], times: int) -> None:
    stored = [b"12345678" + packed for cell in some * times if (packed := pack(*cell)) is not None]
    if not HAS_PACKING_LOOP or not stored:
        return
    found = unpack_alike(stored, 8)
    points = unpack_points(stored, 8, np.zeros(len(stored), np.int64), count_points(stored, 0, 8))
    if (
        points is None
        or len(set(points.counts.tolist())) > 1
        or (points.times.reshape(len(stored), -1) != points.times[: points.counts[0]]).any()
    ):
        assert found is None
        return
    assert found is not None
    assert found.offsets_ms.tolist() == points.times[: points.counts[0]].tolist()
    assert found.bits.ravel().tolist() == points.bits.tolist()
    assert found.floats.ravel().tolist() == points.floats.tolist()
    damaged = bytearray(stored[-1])
    damaged[-1] ^= 1
    assert unpack_alike([*stored[:-1], bytes(damaged)], 8) is None


@given(
    st.lists(cells(), min_size=1, max_size=3),
    st.integers(1, 2),
    st.sampled_from((1_000, 60_000, 300_000, 3_600_000)),
    st.sampled_from(sorted(FUNCTIONS)),
    st.booleans(),
)
def test_buckets_are_those_of_the_points(
    some: list[tuple[bytes, bytes]], times: int, interval_ms: int, function: str, same_hour: bool
) -> None:
    stored = [b"12345678" + packed for cell in some * times if (packed := pack(*cell)) is not None]
    if not HAS_PACKING_LOOP or not stored:
        return
    bases_s = np.arange(len(stored)) * (0 if same_hour else 3600)
    found = downsample_points(stored, 8, bases_s, interval_ms, FUNCTIONS[function])
    points = unpack_points(stored, 8, bases_s, count_points(stored, 0, 8))
    assert (found is None) == (points is None)
    if found is None or points is None:
        return
    assert found.points.tolist() == points.counts.tolist()
    starts = np.append(0, np.cumsum(points.counts))
    batch = Batch(np.zeros(len(stored), np.int32), starts, points.times, points.bits, points.floats)
    buckets, wanted = buckets_of_cells(found, function), buckets_of_batch(batch, interval_ms, function)
    assert buckets.starts.tolist() == wanted.starts.tolist()
    assert buckets.stamps.tolist() == wanted.stamps.tolist()
    assert list(map(repr, buckets.values.tolist())) == list(map(repr, wanted.values.tolist()))
    damaged = bytearray(stored[-1])
    damaged[-1] ^= 1
    assert downsample_points([*stored[:-1], bytes(damaged)], 8, bases_s, interval_ms, FUNCTIONS[function]) is None


@given(st.lists(cells(), min_size=1, max_size=4), st.data())
def test_joined_cells_have_the_points_of_each(some: list[tuple[bytes, bytes]], data: st.DataObject) -> None:
    stored = [packed for cell in some for _ in range(2) if (packed := pack(*cell)) is not None]
    if not HAS_PACKING_LOOP or not stored:
        return
    cut = data.draw(st.integers(0, len(stored)))
    texts, ends = [b"".join(stored[:cut]), b"".join(stored[cut:])], np.cumsum([0, *map(len, stored)], dtype=np.int32)
    joined = join_cells(texts, ends)
    each = [unpack_points([one], 0, np.zeros(1, np.int64), count_points([one], 0, 0)) for one in stored]
    if any(points is None for points in each):
        assert joined is None
        return
    assert joined is not None
    rows = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(stored), max_size=len(stored))))
    chosen = [points for row in rows.tolist() if (points := each[row]) is not None]
    found = unpack_joined(joined, rows)
    assert joined.counts[rows].tolist() == found.counts.tolist() == [len(points.times) for points in chosen]
    assert found.times.tolist() == [time for points in chosen for time in points.times.tolist()]
    assert found.bits.tolist() == [bits for points in chosen for bits in points.bits.tolist()]
    assert found.floats.tolist() == [is_float for points in chosen for is_float in points.floats.tolist()]
    if len(rows):
        table, wanted = unpack_joined_alike(joined, rows), unpack_alike([stored[row] for row in rows.tolist()], 0)
        assert (table is None) == (wanted is None)
        if table is not None and wanted is not None:
            assert [part.tolist() for part in table] == [part.tolist() for part in wanted]
    at = data.draw(st.integers(0, int(ends[-1]) - 1))
    text = b"".join(stored)
    damaged = text[:at] + bytes((text[at] ^ data.draw(st.integers(1, 255)),)) + text[at + 1 :]
    assert join_cells([damaged], ends) is None


@given(
    st.lists(cells(), min_size=1, max_size=3),
    st.integers(1, 3),
    st.sampled_from((1_000, 300_000, 3_600_000)),
    st.sampled_from(sorted(FUNCTIONS)),
    st.data(),
)
def test_joined_cells_have_the_buckets_of_each(
    some: list[tuple[bytes, bytes]], times: int, interval_ms: int, function: str, data: st.DataObject
) -> None:
    stored = [packed for cell in some * times if (packed := pack(*cell)) is not None]
    joined = join_cells(stored, np.cumsum([0, *map(len, stored)], dtype=np.int32)) if stored else None
    if joined is None:
        return
    rows = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(stored), max_size=len(stored))))
    found = downsample_joined(joined, rows, 3600, interval_ms, FUNCTIONS[function])
    chosen = [stored[row] for row in rows.tolist()]
    wanted = downsample_points(chosen, 0, np.full(len(rows), 3600), interval_ms, FUNCTIONS[function])
    assert found is not None
    assert wanted is not None
    assert found.is_even == wanted.is_even
    for one, other in zip(found[:-1], wanted[:-1], strict=True):
        assert list(map(repr, one.tolist())) == list(map(repr, other.tolist()))


def test_short_texts_are_no_joined_cells() -> None:
    for size in (0, 1, 8):
        assert join_cells([bytes(size)], np.array([0, size], np.int32)) is None


@given(cells(), st.data())
def test_changed_bytes_decode_to_one_cell_or_raise(cell: tuple[bytes, bytes], data: st.DataObject) -> None:
    packed = pack(*cell)
    if packed is None:
        return
    body = bytearray(packed[:-CHECKSUM_BYTES])
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, min(len(body) - 1, 40)))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))]
    forged = bytes(body) + crc32(body).to_bytes(CHECKSUM_BYTES, "little")
    found = set()
    for compiled in TWINS:
        try:
            found.add(unpack(forged, 0, b"", compiled=compiled))
        except CorruptRow:
            found.add((b"", b""))
    assert len(found) == 1
    points, base_s = count_points([forged], 0, 0), np.zeros(1, np.int64)
    if points >= 0 and unpack_points([forged], 0, base_s, points) is not None:
        assert found != {(b"", b"")}
    elif HAS_PACKING_LOOP:
        assert downsample_points([forged], 0, base_s, data.draw(st.sampled_from((1_000, 3_600_000))), 0) is None


@given(cells(), st.data())
def test_damaged_cell_is_refused(cell: tuple[bytes, bytes], data: st.DataObject) -> None:
    packed = pack(*cell)
    if packed is None:
        return
    at = data.draw(st.integers(0, len(packed) - 1))
    damaged = packed[:at] + bytes((packed[at] ^ data.draw(st.integers(1, 255)),)) + packed[at + 1 :]
    for compiled in TWINS:
        for text in (damaged, packed[:at]):
            with pytest.raises(CorruptRow):
                unpack(text, 0, b"", compiled=compiled)


ROW = st.dictionaries(st.integers(0, 50), st.tuples(st.integers(-5, 5), st.one_of(st.none(), ODD_FLOATS, st.floats())))


def rows_of(rows: list[dict[int, tuple[int, float | None]]]) -> Batch:
    """Return rows of values by second."""
    points = [(at, *row[at]) for row in rows for at in sorted(row)]
    bits = [integer if number is None else int(np.float64(number).view(np.int64)) for _, integer, number in points]
    return Batch(
        np.arange(len(rows), dtype=np.int32),
        np.cumsum([0, *map(len, rows)]),
        np.array([at * 1000 for at, *_ in points], np.int64),
        np.array(bits, np.int64),
        np.array([number is not None for *_, number in points], np.bool_),
    )


def no_buckets(cells: int) -> CellBuckets:
    zeros, none = np.zeros(cells, np.int64), np.empty(0, np.int64)
    return CellBuckets(zeros, zeros - 1, np.zeros(cells + 1, np.int64), none, none, np.empty(0), is_even=False)


@pytest.mark.skipif(not HAS_PACKING_LOOP, reason="no C compiler when tsd was installed: rows are merged instead")
@given(
    st.lists(st.tuples(ROW, st.integers(0, 50)), min_size=1, max_size=4),
    st.integers(1, 3),
    st.sampled_from((1_000, 10_000, 3_600_000)),
    st.sampled_from(sorted(FUNCTIONS)),
    st.data(),
)
def test_buckets_go_on_with_added_points(
    drawn: list[tuple[dict[int, tuple[int, float | None]], int]],
    times: int,
    interval_ms: int,
    function: str,
    data: st.DataObject,
) -> None:
    drawn *= times
    rows = [row for row, _ in drawn]
    stored = rows_of([{at: row[at] for at in row if at < cut} for row, cut in drawn])
    later = [{at: row[at] for at in row if at >= cut} for row, cut in drawn]
    added_of = np.array(data.draw(st.permutations(range(len(rows)))))
    added = rows_of([later[row] for row in np.argsort(added_of).tolist()])
    kind = FUNCTIONS[function]
    first = continued_buckets(no_buckets(len(rows)), stored, np.arange(len(rows)), interval_ms, kind)
    assert first is not None
    found = continued_buckets(first, added, added_of, interval_ms, kind)
    assert found is not None
    assert found.points.tolist() == list(map(len, rows))
    assert found.lasts.tolist() == [max(row, default=-0.001) * 1000 for row in rows]
    with np.errstate(all="ignore"):
        buckets, wanted = buckets_of_cells(found, function), buckets_of_batch(rows_of(rows), interval_ms, function)
    assert buckets.starts.tolist() == wanted.starts.tolist()
    assert buckets.flat_stamps().tolist() == wanted.flat_stamps().tolist()
    assert buckets.is_even == wanted.is_even
    assert list(map(repr, buckets.values.tolist())) == list(map(repr, wanted.values.tolist()))
    if any(row and at <= max(row) for row, new in zip(rows, later, strict=True) for at in new):
        again = continued_buckets(found, added, added_of, interval_ms, kind)
        assert again is None  # a point is not after all of its row

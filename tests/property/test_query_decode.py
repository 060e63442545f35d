"""Numpy, the compiled loop and the row decoder read pages alike."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tsd.codec.names import Widths
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.merge import MergeRules, StoredCell, merge
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.points import Batch
from tsd.codec.text import FLOAT
from tsd.errors import CorruptRow
from tsd.query.downsample import Downsampler
from tsd.query.model import Downsample
from tsd.query.row_buckets import FUNCTIONS, buckets_of_batch
from tsd.query.row_buckets import HAS_LOOP as HAS_QUERY_LOOP
from tsd.store import CellPage
from tsd.store.memory import MemoryStore
from tsd.tables.opentsdb.column_pages import NumberedPages
from tsd.tables.opentsdb.decode import HAS_LOOP, Decoded, NumberedRows, decode, number_rows, number_series
from tsd.tables.opentsdb.selection import Condition, ResolvedRequest, SeriesMatcher
from tsd.tables.opentsdb.uids import Uids
from tsd.tables.reading import UNWANTED, ScanRange

BASE = 1356998400
GOOD_FLAGS = [0, 1, 3, 7, 11, 15]

offsets = st.integers(0, 40)
points = st.tuples(offsets, st.sampled_from([*GOOD_FLAGS, *GOOD_FLAGS, 2, 9]), st.binary(min_size=8, max_size=8))


@st.composite
def cells(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A cell of a few points, most often as it should be: in order, its value as long as its flags say."""
    chosen = draw(st.lists(points, min_size=1, max_size=5, unique_by=lambda point: point[0]))
    chosen = sorted(chosen) if draw(st.booleans()) or draw(st.booleans()) else chosen
    in_ms = draw(st.sampled_from([False, False, True]))
    qualifier = b"".join(
        (0xF0000000 | at * 1000 << 6 | flags).to_bytes(4, "big") if in_ms else (at << 4 | flags).to_bytes(2, "big")
        for at, flags, _ in chosen
    )
    value = b"".join(raw[: (flags & 7) + 1] for _, flags, raw in chosen)
    value += b"\0" if len(chosen) > 1 else b""
    match draw(st.integers(0, 19)):
        case 0:
            value = value[:-1]
        case 1:
            value += b"\0"
        case 2:
            qualifier += b"\0"
        case 3:
            qualifier = b"\5\0\0"
        case 4:
            qualifier = draw(st.binary(min_size=1, max_size=6))
    return qualifier, value


rows = st.lists(
    st.lists(cells(), min_size=1, max_size=4, unique_by=lambda cell: cell[0]).map(sorted), min_size=1, max_size=6
)


def page_of(drawn: list[list[tuple[bytes, bytes]]], ahead: int) -> CellPage:
    flat = [
        (b"\0\0\1" + BASE.to_bytes(4, "big") + bytes([number]), COLUMN + qualifier, value, 5 + at)
        for number, row in enumerate(drawn)
        for at, (qualifier, value) in enumerate(row)
    ]
    keys, columns, values, times = map(list, zip(*flat, strict=True))
    if ahead:
        values = [time.to_bytes(ahead, "big") + value for time, value in zip(times, values, strict=True)]
    return CellPage(keys, columns, values, ahead, [] if ahead else times, None)


def numbers_of(page: CellPage, number_of: Callable[[bytes], int]) -> NumberedRows:
    keys = page.keys
    numbers = np.array([number_of(key[7:]) for key in keys], np.int32)
    fresh = np.array([not at or key != keys[at - 1] for at, key in enumerate(keys)], np.bool_)
    return NumberedRows(numbers, np.full(len(keys), BASE), fresh, [])


def shown(decoded: Decoded) -> tuple[object, ...]:
    batch = decoded.batch
    arrays = [column.tolist() for column in (*batch, decoded.row_of, decoded.plain, decoded.bases_ms)]
    return (
        *arrays,
        list(decoded.keys),
        decoded.rows,
        decoded.size,
        decoded.notes,
        decoded.warnings,
        decoded.duplicates,
    )


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only numpy's way is there")
@settings(deadline=None)
@given(rows, st.sampled_from([0, 8]), st.sets(st.integers(0, 5)))
def test_loop_and_numpy_decode_alike(drawn: list[list[tuple[bytes, bytes]]], ahead: int, unwanted: set[int]) -> None:
    page = page_of(drawn, ahead)

    numbered = numbers_of(page, lambda pairs: -1 if pairs[0] in unwanted else pairs[0])
    plain = decode(page, numbered, compiled=False)
    assert shown(decode(page, numbered, compiled=True)) == shown(plain)


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only numpy's way is there")
@settings(deadline=None)
@given(cells(), st.sampled_from([0, 8]), st.sampled_from([-1, 0, 7]))
def test_page_of_one_cell_is_decoded_alike(cell: tuple[bytes, bytes], ahead: int, number: int) -> None:
    page = page_of([[cell]], ahead)
    numbered = numbers_of(page, lambda _: number)
    plain = decode(page, numbered, compiled=False)
    assert shown(decode(page, numbered, compiled=True)) == shown(plain)


@settings(deadline=None)
@given(rows, st.booleans())
@example(drawn=[[(b"\0\0\0\x10", b"\0\0"), (b"\0\x0b\0\x10", b"\x7f\x80\0\1\0")]], compiled=False)
def test_page_decodes_like_its_rows_one_by_one(drawn: list[list[tuple[bytes, bytes]]], compiled: bool) -> None:
    page = page_of(drawn, 0)
    batch = decode(page, numbers_of(page, lambda pairs: pairs[0]), compiled=compiled and HAS_LOOP).batch
    assert batch.series.tolist() == list(range(len(drawn)))
    for number, row in enumerate(drawn):
        part = slice(int(batch.starts[number]), int(batch.starts[number + 1]))
        try:
            stored = [StoredCell(qualifier, value, 5 + at) for at, (qualifier, value) in enumerate(row)]
            wanted = [
                (p.offset_ms, p.flags, p.value) for p in merge(b"", stored, MergeRules(fix_duplicates=True)).points
            ]
        except CorruptRow:
            wanted = []
        assert (batch.times[part] - BASE * 1000).tolist() == [offset for offset, _, _ in wanted]
        assert batch.floats[part].tolist() == [bool(flags & FLOAT) for _, flags, _ in wanted]
        assert batch.bits[part].tolist() == [_bits(flags, value) for _, flags, value in wanted]


def _bits(flags: int, value: bytes) -> int:
    if flags == FLOAT | 3:
        with np.errstate(invalid="ignore"):  # of a NaN that signals
            return int(np.array(np.frombuffer(value, ">f4"), np.float64).view(np.int64)[0])
    return int.from_bytes(value, "big", signed=True)


HEADS = st.sampled_from([b"", b"\0\0\7", b"\0\0\7\0\0\x0e\x10", b"\0\0\7\0\0\0\0"])
KEY_PARTS = st.lists(st.sampled_from([b"\0\0\1", b"\0\0\2", b"\0\0\3", b"\0"]), max_size=5).map(b"".join)


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@given(
    st.lists(st.tuples(HEADS, KEY_PARTS), max_size=8),
    st.sampled_from(["", "sum:m", "sum:m{k1=*}", "sum:m{k1=*,k2=*}", "sum:m{}{k1=v1}"]),
)
def test_loop_and_python_number_rows_alike(parts: list[tuple[bytes, bytes]], which: str) -> None:
    keys = [head + tail for head, tail in parts]
    found = []
    for compiled in (True, False):
        series = matcher(which)
        rows_ = number_rows(keys, 7, series, compiled=compiled)
        known = (list(series.numbers.items()), series.series_pairs)
        found.append(
            (rows_.numbers.tolist(), rows_.bases_s.tolist(), rows_.fresh.tolist(), set(rows_.unnumbered), known)
        )
    assert found[0] == found[1]


@pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only Python's way is there")
@given(st.lists(KEY_PARTS, max_size=8), st.sampled_from(["", "sum:m", "sum:m{k1=*}", "sum:m{}{k1=v1}"]))
def test_loop_and_python_number_series_alike(series_pairs: list[bytes], which: str) -> None:
    found = []
    for compiled in (True, False):
        series = matcher(which)
        numbered = number_series(series_pairs, series, compiled=compiled)
        known = (list(series.numbers.items()), list(series.series_pairs))
        found.append((numbered.numbers.tolist(), set(numbered.unnumbered), known))
    assert found[0] == found[1]


@given(st.lists(st.lists(KEY_PARTS, max_size=4), min_size=1, max_size=3), st.data())
def test_lists_of_series_may_come_several_times(lists: list[list[bytes]], data: st.DataObject) -> None:
    series = matcher("sum:m{k1=*}")
    pages = NumberedPages(series)
    for _ in range(6):
        series_pairs = data.draw(st.sampled_from(lists))
        found, wanted = pages.number(series_pairs), number_series(series_pairs, series)
        assert found.numbers.tolist() == wanted.numbers.tolist()
        assert found.unnumbered == wanted.unnumbered
        if found.unnumbered and data.draw(st.booleans()):  # they get their numbers between two pages
            for one in found.unnumbered:
                series.numbers[one] = UNWANTED


def matcher(which: str) -> SeriesMatcher:
    """Return what matches series of a metric with some filters, by their UIDs."""
    ones = {"k1": b"\0\0\1", "k2": b"\0\0\2"}
    conditions = tuple(
        Condition(uid, literals=frozenset([b"\0\0\1"]) if f"{name}=v1" in which else None)
        for name, uid in ones.items()
        if f"{name}=" in which
    )
    resolved = ResolvedRequest(b"\0\0\7" if which else None, "m", conditions)
    return SeriesMatcher(resolved, KeyLayout(), Uids(MemoryStore(lambda: 0), "tsdb-uid", Widths()))


numbers = st.one_of(
    st.floats(width=64), st.sampled_from([0.0, -0.0, np.nan, np.inf, -np.inf]), st.integers(-(2**63), 2**63 - 1)
)


@pytest.mark.skipif(not HAS_QUERY_LOOP, reason="no C compiler when tsd was installed: only numpy's way is there")
@settings(deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, 3_599_999), numbers), max_size=12, unique_by=lambda p: p[0]), max_size=5
    ),
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from([1, 250, 1000, 10_000, 60_000, 600_000, 3_600_000]),
)
def test_loop_and_numpy_downsample_alike(drawn: list[list[tuple[int, float]]], function: str, interval_ms: int) -> None:
    flat = [(BASE * 1000 + at, value) for row in drawn for at, value in sorted(row, key=lambda point: point[0])]
    floats = np.array([isinstance(value, float) for _, value in flat], np.bool_)
    bits = np.array([np.float64(v).view(np.int64) if isinstance(v, float) else v for _, v in flat], np.int64)
    starts = np.cumsum([0, *map(len, drawn)])
    batch = Batch(np.arange(len(drawn), dtype=np.int32), starts, np.array([t for t, _ in flat], np.int64), bits, floats)
    scan = ScanRange(BASE, BASE + 3600)
    spec = Downsample(f"{interval_ms}ms-{function}", interval_ms, function)
    plain = Downsampler(spec, BASE * 1000, (BASE + 3600) * 1000, scan, compiled=False)
    plain.feed(batch)
    buckets = buckets_of_batch(batch, interval_ms, function)
    for number, points_ in enumerate(plain.finish(len(drawn))):
        mine = slice(int(buckets.starts[number]), int(buckets.starts[number + 1]))
        assert buckets.flat_stamps()[mine].tolist() == points_.times.tolist()
        assert np.array_equal(buckets.values[mine], points_.doubles(), equal_nan=True)
        signs = np.signbit(buckets.values[mine]) == np.signbit(points_.doubles())
        assert (signs | np.isnan(points_.doubles())).all()

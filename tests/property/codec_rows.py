"""Rows of the data table, as hypothesis draws them: tidy, untidy, and of any bytes."""

from hypothesis import strategies as st

from tsd.codec.opentsdb.cell import APPEND, Point, join, join_append, ms_qualifier, seconds_qualifier
from tsd.codec.opentsdb.merge import MergeRules, StoredCell
from tsd.codec.text import FLOAT, encode_float, encode_integer

KEY = bytes.fromhex("00000150e22700000001000001")

integers = st.one_of(st.integers(-3, 3), st.integers(-(1 << 63), (1 << 63) - 1)).map(encode_integer)
floats = st.floats(allow_nan=False, allow_infinity=False).map(encode_float)
wide = st.integers(-300, 300).map(lambda n: (7, n.to_bytes(8, "big", signed=True)))  # more bytes than it needs
numbers = st.one_of(integers, integers, floats, wide)
# Few different times, so that cells do meet; both forms, so that some are equal in different columns.
seconds = st.one_of(st.integers(0, 5), st.integers(0, 3599))
millis = st.one_of(st.sampled_from([0, 1, 500, 1000, 2000, 5000]), st.integers(0, 3599999))


@st.composite
def points(draw: st.DrawFn) -> Point:
    flags, value = draw(numbers)
    if draw(st.booleans()):
        return Point(seconds_qualifier(draw(seconds), flags), value)
    return Point(ms_qualifier(draw(millis), flags), value)


def by_time(found: list[Point]) -> list[Point]:
    """In time order, the last of each time."""
    return [point for _, point in sorted({point.offset_ms: point for point in found}.items())]


@st.composite
def points_in_seconds(draw: st.DrawFn) -> Point:
    flags, value = draw(numbers)
    return Point(seconds_qualifier(draw(st.integers(0, 3599)), flags), value)


ordered = st.lists(points(), min_size=1, max_size=8).map(by_time)
joined = ordered.map(join)
untidy = st.one_of(
    st.lists(points(), min_size=2, max_size=6).map(join),  # out of order, times given twice
    joined.map(lambda cell: cell if len(cell.qualifier) < 6 else Point(cell.qualifier, cell.value[:-1])),
    joined.map(lambda cell: cell if len(cell.qualifier) < 6 else Point(cell.qualifier, cell.value[:-1] + b"\x02")),
    st.sampled_from(
        [
            Point(b"\0\x0b", bytes.fromhex("0000000042280000")),
            Point(b"\0\x1f", bytes.fromhex("42280000")),
            Point(b"\0\7", b"\x2a"),
            Point(b"\0\x20", bytes(7) + b"\x2a"),
            Point(b"\xe1\x00", b"\x2a"),  # beyond the hour
            Point(bytes.fromhex("f0007d30"), b"\x2a"),  # unused bits set
        ]
    ),
)
objects = st.sampled_from(
    [
        Point(b"\1\0\0", b"{}"),
        Point(b"\6\0\0", bytes(9)),
        Point(b"\x09\0\0", b"*"),
        Point(b"", b""),
        Point(b"\x09", b""),
    ]
)
appends = st.lists(points(), min_size=1, max_size=6).map(lambda found: Point(APPEND, join_append(found)))
broken = st.sampled_from(
    [
        Point(b"\0\0", b""),
        Point(b"\0\x02", b"\1\2\3"),
        Point(b"\0\x08", b"\x2a"),
        Point(b"\xff\xf0", b"\x2a"),
        Point(bytes.fromhex("00070017"), b"\x2a\0"),
        Point(bytes.fromhex("00020010"), bytes(5)),
        Point(b"\0\x0b", bytes.fromhex("ffffffff42280000")),
        Point(b"\0\x0b", bytes.fromhex("0000000142280000")),
        Point(bytes.fromhex("f0007d07"), b"\x2a"),
        Point(b"\0\x1b", bytes.fromhex("7f800000")),
        Point(bytes.fromhex("000b0010"), bytes.fromhex("ff8000002a00")),
        Point(b"\1\0\1", b"no JSON"),
        Point(APPEND, b"\0\7\0\x2a"),
        Point(APPEND, b""),
        Point(b"\5\0\0\0\0", b""),
    ]
)


@st.composite
def rows(draw: st.DrawFn, *kinds: st.SearchStrategy[Point], times: int = 4) -> list[StoredCell]:
    """Cells of some kinds, each column once, in order of their columns, written at few different times."""
    found = draw(st.lists(st.one_of(kinds), max_size=7))
    unique = {cell.qualifier: cell.value for cell in found}
    return [StoredCell(name, unique[name], draw(st.integers(1, times))) for name in sorted(unique)]


readable = rows(joined, joined, points(), untidy, objects)
with_appends = rows(joined, points(), untidy, appends, objects)
anything = rows(joined, points(), untidy, appends, objects, broken)
tidy = rows(joined, points())
in_seconds = rows(st.lists(points_in_seconds(), min_size=1, max_size=8).map(by_time).map(join), points_in_seconds())
any_cells = st.builds(StoredCell, st.binary(max_size=12), st.binary(max_size=20), st.integers(0, 3))
any_bytes = st.lists(any_cells, max_size=5, unique_by=lambda cell: cell.qualifier)

deciding = st.one_of(
    st.builds(MergeRules, fix_duplicates=st.just(True), cell_points=st.sampled_from([1, 2, 3, 4096])),
    st.builds(
        MergeRules,
        use_otsdb_timestamp=st.just(True),
        use_max_value=st.booleans(),
        cell_points=st.sampled_from([2, 4096]),
    ),
)  # rules under which no two points contradict each other
all_rules = st.one_of(deciding, st.just(MergeRules()))
any_flags = st.sampled_from([0, 1, 3, 7, FLOAT | 3, FLOAT | 7])

"""Laws of every format: what was encoded is decoded again, and bytes of any sort give an answer or the one error."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.codec_rows import any_flags, by_time, ordered, points
from tsd.codec.names import Widths, parse_uid, show_uid
from tsd.codec.opentsdb.annotation import (
    annotation_offset_ms,
    annotation_qualifier,
    annotation_row,
)
from tsd.codec.opentsdb.cell import (
    MS_MARK,
    Point,
    join,
    join_append,
    ms_qualifier,
    offset_ms,
    qualifier_of,
    repair_encoding,
    seconds_qualifier,
    split,
    split_append,
    split_qualifier,
)
from tsd.codec.opentsdb.check import narrow
from tsd.codec.opentsdb.histogram import (
    histogram_offset_ms,
    histogram_qualifier,
    single,
)
from tsd.codec.opentsdb.rollup import (
    END_OFFSET,
    Interval,
    RollupConfig,
    decode_rollup,
    rollup_base,
    rollup_qualifier,
    rollup_time,
)
from tsd.codec.opentsdb.rowkey import (
    KeyLayout,
    Series,
    join_pairs,
    row_key,
    split_key,
    split_tsuid,
    tsuid,
    tsuid_row,
)
from tsd.codec.opentsdb.uid import Uid, decode_uid, encode_uid
from tsd.codec.putline import (
    FIRST_MS,
    LAST_BASE_MS,
    NameRules,
    PutLine,
    base_time,
    instant,
    parse_put,
    parse_time,
    timestamp,
)
from tsd.codec.text import (
    FLOAT,
    decode_number,
    encode_float,
    encode_integer,
    encode_name,
    illegal_character,
    java_map_order,
    parse_double,
    parse_long,
)
from tsd.errors import BadLine

law = settings(deadline=None)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
times = st.one_of(st.integers(1, FIRST_MS - 1), st.integers(FIRST_MS, LAST_BASE_MS))
doubles = st.floats(allow_nan=False)
widths = st.builds(Widths, *[st.integers(1, 8)] * 3)
layouts = st.builds(KeyLayout, widths, st.integers(0, 8), st.integers(1, 255))


# Numbers, names and times


@law
@given(longs)
def test_integer_survives_encoding(number: int) -> None:
    flags, value = encode_integer(number)
    assert decode_number(flags, value) == number
    assert flags == len(value) - 1
    assert narrow(Point(bytes((0, 7)), number.to_bytes(8, "big", signed=True))) == Point(bytes((0, flags)), value)
    assert parse_long(b"%d" % number) == number


@law
@given(doubles)
def test_float_survives_encoding(number: float) -> None:
    flags, value = encode_float(number)
    found = decode_number(flags, value)
    assert (found, math.copysign(1, found), isinstance(found, float)) == (number, math.copysign(1, number), True)
    assert flags == FLOAT | len(value) - 1
    assert (len(value) == 4) == (single(number) == number)
    if math.isfinite(number):
        assert parse_double(repr(number).encode()) == number


@law
@given(st.binary(max_size=24))
def test_number_words_of_any_bytes(word: bytes) -> None:
    for parse in (parse_long, parse_double, parse_time):
        try:
            assert isinstance(parse(word), int | float)
        except BadLine:
            assert word != b"1"


@law
@given(st.text(max_size=8))
def test_name(name: str) -> None:
    try:
        stored = encode_name(name)
    except BadLine:
        assert max(name) > "\xff"
    else:
        assert stored.decode("latin-1") == name
        letters = [c for c in name if not (c.isalpha() or (c.isascii() and c.isalnum()) or c in "-_./")]
        assert illegal_character(stored) == (letters[0] if letters else None)


@law
@given(st.sets(st.text(max_size=6), max_size=40), st.randoms())
def test_map_order_is_one_of_the_set(names: set[str], random: object) -> None:
    listed = java_map_order(sorted(names))
    assert sorted(listed) == sorted(names)
    assert java_map_order(listed) == listed


@law
@given(times)
def test_time(sent: int) -> None:
    moment = instant(sent)
    assert timestamp(moment) == sent
    qualifier = qualifier_of(moment, 0)
    assert base_time(sent) % 3600 == 0
    assert base_time(sent) * 1000 + offset_ms(qualifier) == moment >> 1
    assert len(qualifier) == (4 if sent >= FIRST_MS else 2)


# Put lines

words = st.lists(
    st.sampled_from([b"put", b"m", b"1356998400", b"1", b"-1.5", b"a=1", b"b=2", b"", b"x:y", b"=", b"\xe9"])
)


@law
@given(st.one_of(st.binary(max_size=60), words.map(b" ".join)))
def test_put_line_of_any_bytes(line: bytes) -> None:
    rules = NameRules()
    try:
        found = parse_put(line, rules)
    except BadLine:
        return
    assert isinstance(found, PutLine)
    assert 1 <= len(dict(found.tags)) == len(found.tags) <= rules.max_tags
    assert not any(map(illegal_character, (found.metric, *(word for tag in found.tags for word in tag))))
    assert found.time > 0
    assert len(found.value) == (found.flags & 7) + 1


# UIDs and row keys


@law
@given(st.integers(1, 8), st.data())
def test_uid(width: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, (1 << 8 * width) - 1))
    uid = encode_uid(number, width)
    assert (len(uid), decode_uid(uid), parse_uid(show_uid(uid), width)) == (width, number, uid)


@st.composite
def series_of(draw: st.DrawFn, layout: KeyLayout) -> Series:
    def uid(width: int) -> Uid:
        return Uid(draw(st.binary(min_size=width, max_size=width)))

    w = layout.widths
    pairs = draw(st.lists(st.builds(lambda: (uid(w.tagk), uid(w.tagv))), min_size=1, max_size=8))
    return Series(uid(w.metric), tuple(sorted(pairs, key=b"".join)))


@law
@given(layouts, st.integers(0, (1 << 32) - 1), st.data())
def test_row_key(layout: KeyLayout, base: int, data: st.DataObject) -> None:
    series = data.draw(series_of(layout))
    key = row_key(layout, series.metric, base, join_pairs(series.pairs))
    salt, found, found_base = split_key(layout, key)
    assert (len(salt), found, found_base) == (layout.salt_width, series, base)
    text = series.metric + join_pairs(series.pairs)
    assert tsuid(layout, key) == text
    assert split_tsuid(layout.widths, text) == series
    assert tsuid_row(layout, text, base) == key
    assert annotation_row(layout, max(1, base), text) == row_key(
        layout, series.metric, base_time(max(1, base)), join_pairs(series.pairs)
    )


# Cells


@law
@given(ordered)
def test_joined_cell(found: list[Point]) -> None:
    cell = join(found)
    assert split(*cell) == found
    assert split_qualifier(cell.qualifier) == [point.qualifier for point in found]
    assert split_append(join_append(found)) == found


@law
@given(points())
def test_qualifier(point: Point) -> None:
    build = ms_qualifier if point.in_ms else seconds_qualifier
    assert build(point.offset_ms if point.in_ms else point.offset_ms // 1000, point.flags) == point.qualifier
    assert (point.qualifier[0] >= MS_MARK) == point.in_ms
    assert repair_encoding(*point) == point
    assert by_time([point]) == [point]


# Notes, histograms and rollups by time


@law
@given(times)
def test_annotation_column(start: int) -> None:
    qualifier = annotation_qualifier(start)
    found = annotation_offset_ms(qualifier)
    assert 0 <= found < 3600000
    if start >= FIRST_MS or start % 1000:  # others are divided, and only the value knows the time
        time_ms = start if start >= FIRST_MS else start * 1000
        if start // 1000 < FIRST_MS or start % 1000:
            assert found == time_ms - base_time(start) * 1000


@law
@given(times)
def test_histogram_column(time: int) -> None:
    time_ms = time if time >= FIRST_MS else time * 1000
    assert histogram_offset_ms(histogram_qualifier(time)) == time_ms - base_time(time) * 1000


INTERVALS = [
    Interval("1s", 1, 1, "h", "r", "p"),
    Interval("1m", 60, 1, "h", "r", "p"),
    Interval("10m", 600, 6, "h", "r", "p"),
    Interval("1h", 3600, 1, "d", "r", "p"),
    Interval("10m", 600, 1, "n", "r", "p"),
    Interval("1d", 86400, 1, "n", "r", "p"),
    Interval("7d", 7 * 86400, 1, "y", "r", "p"),
]


@law
@given(st.sampled_from(INTERVALS), st.integers(1, FIRST_MS - 1), any_flags, st.integers(0, 127))
def test_rollup_column(interval: Interval, time: int, flags: int, number: int) -> None:
    base = rollup_base(time, interval)
    assert 0 <= time - base < interval.per_row * interval.seconds + 86400
    try:
        qualifier = rollup_qualifier(number, time, interval, flags)
    except BadLine:
        assert (time - base) // interval.seconds >= min(interval.per_row, END_OFFSET)
        return
    found = decode_rollup(RollupConfig({"sum": number}, INTERVALS[:1]), qualifier)  # type: ignore[arg-type]
    assert (found.aggregator, found.flags) == ("sum", flags)
    assert 0 <= time - rollup_time(base, interval, found.offset) < interval.seconds
    assert rollup_base(base, interval) == base

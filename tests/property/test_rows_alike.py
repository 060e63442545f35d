"""The compiled way in and the plain one say the same of every byte string, and know the same series."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property.put_lines import LINES, NUMBERS, PLAIN, TIMES
from tsd.codec.opentsdb.columns import CELL_POINTS
from tsd.codec.points import (
    Columns,
    columns_of_series,
    rows_of_parts,
    series_ends,
    series_slices,
    sort_columns,
    sorted_parts,
    wide_values,
)
from tsd.codec.putline import NameRules, parse_put
from tsd.errors import BadLine
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.series import HAS_LOOP, SeriesTable
from tsd.store import Put
from tsd.tables.opentsdb.encode import encode, encode_of
from tsd.tables.writing import SeriesKey, SeriesText

pytestmark = pytest.mark.skipif(not HAS_LOOP, reason="no C compiler when tsd was installed: only one way is there")

RULES = NameRules()
DIGITS = st.text("0123456789", max_size=24)
FLOATS = st.builds(
    lambda *parts: "".join(parts).encode(),
    st.sampled_from(["", "-", "+"]),
    DIGITS,
    st.sampled_from(["", ".", "."]),
    DIGITS,
    st.one_of(
        st.just(""), st.integers(-345, 345).map(lambda e: f"e{e}"), st.sampled_from(["E+5", "e", "e-", "e0000001"])
    ),
)
TIME_WORDS = st.one_of(TIMES, st.from_regex(rb"\A[0-9]{0,14}\.?[0-9]{0,6}\Z"))


@st.composite
def altered_lines(draw: st.DrawFn) -> bytes:
    """A good line with a byte or two of it changed, gone or doubled."""
    line = draw(PLAIN)
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(line)))
        byte = draw(st.one_of(st.sampled_from(b" .-+e\t=:0\0"), st.integers(0, 255)))
        put_in = b"" if byte == ord("\n") else bytes([byte])
        line = line[:at] + put_in + line[at + draw(st.integers(0, 1)) :]
    return line


def everything(open_window: OpenWindow, lines: list[bytes]) -> tuple[object, ...]:
    """What becomes of lines, every third unknown series left to the journal; and all points in order."""
    verdicts: dict[SeriesText, BadLine | None] = {}
    rejects: list[tuple[int, str, str]] = []
    rest, kept, done = b"".join(line + b"\n" for line in lines), b"", 0
    while rest:
        absorbed = open_window.absorb(rest, verdicts)
        if absorbed.unknown:
            for text in absorbed.unknown:
                judge(open_window.table, text, verdicts)
            continue
        if absorbed.rest == rest:
            break
        kept += absorbed.kept
        rejects += [(done + at, error.reason, str(error)) for at, error in absorbed.rejects]
        done += absorbed.accepted + len(absorbed.rejects)
        rest = absorbed.rest
    state = open_window.points, open_window.complete, open_window.has_metric(b"m"), open_window.has_metric(b"sys.cpu")
    points = [
        (open_window.table.text(number), open_window.table.key_of(number), *point)
        for number, *point in zip(*(column.tolist() for column in open_window.take()), strict=True)
    ]
    return kept, rejects, rest, state, points


def judge(table: SeriesTable, text: SeriesText, verdicts: dict[SeriesText, BadLine | None]) -> None:
    try:
        tags = parse_put(b"put " + text.metric + b" 1 1 " + text.tags, RULES).tags
    except BadLine as error:
        verdicts[text] = error
        return
    if len(text.tags) % 3 == 2:
        verdicts[text] = None
    else:
        table.insert(text, SeriesKey(text.metric, b" ".join(sorted(b"=".join(pair) for pair in tags))))


def check(*blocks: list[bytes]) -> None:
    plain, looped = (OpenWindow(SeriesTable(compiled=compiled), RULES) for compiled in (False, True))
    for lines in blocks:
        assert everything(plain, lines) == everything(looped, lines)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(LINES, st.lists(altered_lines(), max_size=40))
def test_parsers_agree_on_lines_of_every_kind(lines: list[bytes], odd: list[bytes]) -> None:
    check(lines, odd, lines + odd)


@settings(deadline=None)
@given(st.lists(st.one_of(FLOATS, NUMBERS, st.floats().map(lambda x: f"{x:.17g}".encode())), max_size=30))
def test_parsers_agree_on_numbers(words: list[bytes]) -> None:
    check([b"put m 1356998400 " + word + b" a=1" for word in words])


@settings(deadline=None)
@given(st.lists(TIME_WORDS, max_size=30))
def test_parsers_agree_on_times(words: list[bytes]) -> None:
    check([b"put m " + word + b" 1 a=1" for word in words])


# Doubles that lie halfway between two, or all but: read with an operation too many, they come out one too low or high.
HARD = """
    9007199254740993 9007199254740993.0 9007199254740991.5 4503599627370497.5 9007199254740992e22
    9007199254740993e-22 1e22 1e23 8.5e22 6929495644600919.5 3.4028234663852886e38 3.4028235677973366e38
    3.4028235677973362e38 5e-324 2.4e-324 2.5e-324 2.2250738585072011e-308 1.7976931348623157e308
    1.7976931348623158e308 1.7976931348623159e308 0e999999 -0e-9 7.2057594037927933e16
    10000000000000000000000.0 0.00000000000000000000000001 123456789012345678901234567890.5
    1.00000000000000011102230246251565 1.00000000000000011102230246251566 1448997445238699 6.8e-23 16777217.0
""".split()


def test_parsers_agree_on_numbers_hard_to_round() -> None:
    check([b"put m 1356998400 " + word.encode() + b" a=1" for word in HARD])


POINTS = st.tuples(
    st.integers(0, 2),
    st.one_of(st.integers(0, 7_300_000), st.integers(3_599_990, 3_600_010)),
    st.booleans(),
    st.sampled_from([0, 1, 3, 7, 0xB, 0xF]),
    st.integers(-(1 << 63), (1 << 63) - 1),
)


@settings(deadline=None)
@given(st.lists(POINTS, max_size=80), st.booleans())
def test_encoders_make_equal_cells(points: list[tuple[int, int, bool, int, int]], join: bool) -> None:
    base_ms = 1356998400000
    rows = [
        (number, (base_ms + offset) << 1 | 1 if in_ms else (base_ms + offset) // 1000 * 2000, flags, bits)
        for number, offset, in_ms, flags, bits in points
    ]
    series, instants, flags, bits = np.array(rows, np.int64).reshape(-1, 4).T.copy()
    columns = Columns(series.astype(np.int32), instants, flags.astype(np.uint8), bits)
    plain, looped = SeriesTable(compiled=False), SeriesTable(compiled=True)
    for table in (plain, looped):
        for number in range(3):
            text = SeriesText(b"m", b"a=%d" % number)
            table.insert(text, SeriesKey(b"salted metric"[: number * 5], b"\0\0\1" * (number or 2)))
    parts, others = (
        [
            part
            for index in series_slices(columns, compiled=compiled)
            for part in sorted_parts(columns, index, join=join, compiled=compiled)
        ]
        for compiled in (True, False)
    )
    assert [[c.tolist() for c in part] for part in parts] == [[c.tolist() for c in part] for part in others]
    assert sum(len(part.series) for part in parts) <= len(points)
    for part in parts:
        keys = [table.keys(part.series[series_ends(part)]) for table in (plain, looped)]
        assert list(keys[0]) == list(keys[1])
        by_table = [
            encode(part, one, join=join, compiled=compiled) for one, compiled in zip(keys, (False, True), strict=True)
        ]
        assert sorted(by_table[0]) == sorted(by_table[1])
        for puts in by_table:
            assert all(type(put) is Put for put in puts)
            assert [row for row, _ in groupby(put.row for put in puts)] == list(dict.fromkeys(put.row for put in puts))


@given(
    st.lists(st.lists(POINTS, max_size=30), max_size=3),
    st.lists(st.integers(-1, 3), min_size=1, max_size=3),
    st.integers(0, 10) | st.just(1 << 60),
    st.booleans(),
)
def test_rows_of_parts_are_the_same(
    each: list[list[tuple[int, int, bool, int, int]]], row_of: list[int], stop: int, is_sorted: bool
) -> None:
    parts = []
    for points in each:
        series, instants, _, flags, bits = np.array(points, np.int64).reshape(-1, 5).T.copy()
        if is_sorted and len(points):
            instants = (np.arange(len(points)) + 50 * len(parts)) * 2
        parts.append(Columns(series.astype(np.int32), instants, flags.astype(np.uint8), bits))
    found = []
    for compiled in (True, False):
        batch, sizes = rows_of_parts(parts, np.array(row_of, np.int32), 4, (0, stop), compiled=compiled)
        found.append([column.tolist() for column in (*batch, sizes)])
    assert found[0] == found[1]


@given(st.lists(POINTS, max_size=80), st.lists(st.booleans(), max_size=4))
def test_points_of_series_are_the_same(points: list[tuple[int, int, bool, int, int]], wanted: list[bool]) -> None:
    series, instants, _, flags, bits = np.array(points, np.int64).reshape(-1, 5).T.copy()
    columns = Columns(series.astype(np.int32), instants, flags.astype(np.uint8), bits)
    found = [columns_of_series(columns, np.array(wanted, np.bool_), compiled=compiled) for compiled in (True, False)]
    assert [column.tolist() for column in found[0]] == [column.tolist() for column in found[1]]


@given(st.lists(POINTS, max_size=80), st.booleans())
@example([(0, 0, False, 11, 0xFFBF_FFFF - (1 << 32))], False)  # a signaling NaN
def test_columns_are_the_same(points: list[tuple[int, int, bool, int, int]], join: bool) -> None:
    series, instants, _, flags, bits = np.array(points, np.int64).reshape(-1, 5).T.copy()
    columns = Columns(series.astype(np.int32), instants, flags.astype(np.uint8), bits)
    found = []
    for compiled in (True, False):
        values = wide_values(columns, compiled=compiled)
        ordered = sort_columns(columns, join=join, compiled=compiled)
        found.append([column.tolist() for column in (*values, *ordered)])
    assert found[0] == found[1]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_are_sorted_by_metric_and_hour(compiled: bool) -> None:
    table = SeriesTable(compiled=compiled)
    for number in range(4):
        parts = SeriesKey(b"\0\0" + bytes([number % 2]), bytes([number]))
        table.insert(SeriesText(b"m", b"a=%d" % number), parts)
    series, hours = np.divmod(np.arange(8), 2)
    instants = (1356998400000 + hours * 3600_000) << 1
    columns = Columns(series.astype(np.int32), instants, np.zeros(8, np.uint8), np.arange(8))
    rows = [put.row for put in encode_of(columns, table, join=True)]
    assert rows == sorted(rows)


@pytest.mark.parametrize("compiled", [False, True])
def test_cells_are_sorted_by_row(compiled: bool) -> None:
    table = SeriesTable(compiled=compiled)
    for number in range(4):
        table.insert(SeriesText(b"m", b"a=%d" % number), SeriesKey(b"salt", b"tagk" + bytes([9 - number]) + b"tagk"))
    columns = Columns(np.arange(4, dtype=np.int32), np.full(4, 1356998400000 << 1), np.zeros(4, np.uint8), np.arange(4))
    rows = [put.row for put in encode_of(columns, table, join=True)]
    assert rows == sorted(rows)


@pytest.mark.parametrize("count", [1, 1025, 70_000])
def test_taken_points_do_not_change_later(count: int) -> None:
    open_window = OpenWindow(SeriesTable(compiled=True), RULES)
    number = open_window.table.insert(SeriesText(b"m", b"a=b"), SeriesKey(b"m", b"ab"))
    block = b"".join(b"put m %d %d a=b\n" % (1356998400 + at, at) for at in range(count))
    assert open_window.absorb(block, {}).accepted == count
    series, instants, _, bits = open_window.take()
    assert (series == number).all()
    assert (instants == (1356998400 + np.arange(count)) * 2000).all()
    assert (bits == np.arange(count)).all()


def test_slices_have_more_series_than_points() -> None:
    series = np.array([900_000, 3, 900_000, 70_000, 3], np.int32)
    columns = Columns(series, np.arange(5) * 2000, np.zeros(5, np.uint8), np.arange(5))
    for compiled in (True, False):
        [places] = series_slices(columns, compiled=compiled)
        assert places.tolist() == [1, 4, 3, 0, 2]


def test_encoders_split_long_rows_alike() -> None:
    instants = (1356998400000 + np.arange(CELL_POINTS * 2 + 7)) << 1 | 1
    count = len(instants)
    columns = Columns(np.zeros(count, np.int32), instants, np.zeros(count, np.uint8), np.arange(count) % 100)
    tables = [SeriesTable(compiled=compiled) for compiled in (False, True)]
    for table in tables:
        table.insert(SeriesText(b"m", b"a=1"), SeriesKey(b"m", b"a1"))
    plain, looped = (encode_of(columns, table, join=True) for table in tables)
    assert len(plain) == 3
    assert plain == looped


SPELLED = st.builds(
    SeriesText, st.sampled_from([b"m", b"n"]), st.sampled_from([b"a=1", b"a=1 b=2", b"b=2 a=1", b" a=1", b"a=2"])
)
STEPS = st.one_of(
    st.tuples(st.just("enter"), SPELLED, st.booleans()),
    st.tuples(st.just("settle"), SPELLED, st.just(0)),
    st.tuples(st.just("refuse"), SPELLED, st.just(0)),
    st.tuples(st.just("touch"), SPELLED, st.integers(1, 9)),
    st.tuples(st.just("forget"), st.integers(1, 9), st.integers(1, 9)),
    st.tuples(st.just("forget texts"), st.just(0), st.just(0)),
)


def step(table: SeriesTable, what: str, one: object, other: int) -> int | None:
    if what == "forget":
        assert isinstance(one, int)
        return table.evict(one, held_since_s=other)
    if what == "forget texts":
        table.invalidate()
        return None
    assert isinstance(one, SeriesText)
    if what == "enter":
        return table.insert(one, SeriesKey(b"U", one.tags) if other else None)
    number = table.find(one)
    if number is not None:
        if what == "touch":
            table.mark_seen(np.array([number], np.int32), other)
        elif number in table.unresolved and what == "settle":
            table.set_key(number, SeriesKey(b"S", one.tags))
        elif number in table.unresolved:
            table.refuse(number)
    return number


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60))
def test_tables_hold_equal_series(steps: list[tuple[str, object, int]]) -> None:
    plain, looped = SeriesTable(compiled=False), SeriesTable(compiled=True)
    texts = [SeriesText(m, t) for m in (b"m", b"n") for t in (b"a=1", b"a=1 b=2", b"b=2 a=1", b" a=1", b"a=2")]
    for one in steps:
        assert step(plain, *one) == step(looped, *one)
        assert list(map(plain.find, texts)) == list(map(looped.find, texts))
        for metric in (b"m", b"n"):
            unresolved = {number for number, text in plain.unresolved.items() if text.metric == metric}
            assert set(plain.unresolved_of(metric)) == set(looped.unresolved_of(metric)) == unresolved
        assert len(plain) == len(looped)
        for number in plain.texts.numbers():
            assert plain.text(number) == looped.text(number)
            assert plain.key_of(number) == looped.key_of(number)
        assert plain.texts.numbers() == looped.texts.numbers()


def test_large_table_finds_its_series_despite_changes() -> None:
    tables = [SeriesTable(compiled=True), SeriesTable(compiled=False)]
    for table in tables:
        for generation in range(4):
            numbers = []
            for at in range(3000):
                text = SeriesText(b"metric.%d" % (at % 7), b"id=%d host=%d" % (at + generation * 1000, at))
                numbers.append(table.insert(text, SeriesKey(b"%d" % at, b"x" * 400)))
            table.mark_seen(np.array(numbers[::2], np.int32), 10 + generation)
            table.evict(before_s=10 + generation, held_since_s=1000)
    looped, plain = tables
    assert looped.texts.numbers() == plain.texts.numbers()
    assert len(plain) == len(looped) == 1500
    for number in plain.texts.numbers():
        known = plain.text(number)
        assert known is not None
        assert looped.text(number) == known
        assert looped.find(known) == number == plain.find(known)
        assert looped.key_of(number) == plain.key_of(number)

"""The fast way in says of every block what the reference says of its lines, one by one."""

from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.property.put_lines import GOOD, LINES, NUMBERS, PLAIN
from tsd.codec.opentsdb.cell import Point, join, qualifier_of
from tsd.codec.opentsdb.columns import encode_cells
from tsd.codec.points import Columns, layers, number_columns, sort_columns
from tsd.codec.putline import NameRules, base_time, instant, parse_put, parse_value
from tsd.errors import BadLine
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.parser import FEW
from tsd.ingest.put_lines import is_put
from tsd.ingest.series import HAS_LOOP, SeriesTable
from tsd.tables.writing import SeriesKey, SeriesText

RULES = NameRules()
BOTH_WAYS = pytest.mark.parametrize(
    "compiled", [False, True] if HAS_LOOP else [False], ids=["plain", "compiled"][: 1 + HAS_LOOP]
)

OTHER = st.sampled_from([b"version", b"", b"puts m 1 1 a=1", b"putm 1 1 a=1"])


def packets(*lines: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A packet of some lines."""
    return st.lists(st.one_of(*lines).map(lambda line: line + b"\n"), min_size=1, max_size=4).map(b"".join)


class Verdict(NamedTuple):
    """What the reference says of lines."""

    kept: list[bytes]
    rejects: list[tuple[int, str, str]]
    rows: dict[tuple[bytes, bytes, int], dict[int, tuple[bytes, bytes]]]  # series and base → time → qualifier, value


def reference(lines: Iterable[bytes]) -> Verdict:
    verdict = Verdict([], [], {})
    for at, line in enumerate(lines):
        try:
            read = parse_put(line, RULES)
        except BadLine as error:
            verdict.rejects.append((at, error.reason, str(error)))
            continue
        verdict.kept.append(line)
        tags = b" ".join(sorted(k + b"=" + v for k, v in read.tags))
        when = instant(read.time)
        row = verdict.rows.setdefault((read.metric, tags, base_time(read.time)), {})
        row[when >> 1] = (qualifier_of(when, read.flags), read.value)
    return verdict


def absorb_all(open_window: OpenWindow, block: bytes) -> tuple[bytes, list[tuple[int, str, str]], bytes]:
    """Absorb a block up to its first line that is no put line, step by step. Unknown series are inserted if their names
    are valid."""
    kept, rejects, rest = absorb_step(open_window, block)
    if rest == block or not is_put(rest):
        return kept, rejects, rest
    before = block.count(b"\n") - rest.count(b"\n")
    more, refused, rest = absorb_all(open_window, rest)
    return kept + more, rejects + [(at + before, reason, text) for at, reason, text in refused], rest


def absorb_step(open_window: OpenWindow, block: bytes) -> tuple[bytes, list[tuple[int, str, str]], bytes]:
    """Absorb a block as far as one step goes: many lines that are not plain take several."""
    verdicts: dict[SeriesText, BadLine] = {}
    absorbed = open_window.absorb(block, verdicts)
    while absorbed.unknown:
        for text in absorbed.unknown:
            try:
                read = parse_put(b"put " + text.metric + b" 1 1 " + text.tags, RULES)
            except BadLine as error:
                verdicts[text] = error
            else:
                tags = b" ".join(sorted(k + b"=" + v for k, v in read.tags))
                open_window.table.insert(text, SeriesKey(text.metric, tags))
        absorbed = open_window.absorb(block, verdicts)
    return absorbed.kept, [(at, error.reason, str(error)) for at, error in absorbed.rejects], absorbed.rest


def cells_of(open_window: OpenWindow) -> dict[tuple[bytes, bytes, int], Point]:
    found: dict[tuple[bytes, bytes, int], Point] = {}
    for number, base, qualifier, value in encode_cells(sort_columns(open_window.take(), join=True), join=True):
        parts = open_window.table.key_of(number)
        assert parts is not None
        assert (*parts, base) not in found
        found[(*parts, base)] = Point(qualifier, value)
    return found


@BOTH_WAYS
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    st.lists(packets(PLAIN), max_size=6),
    st.lists(packets(PLAIN, PLAIN, GOOD, OTHER), min_size=1, max_size=6),
    st.data(),
)
def test_packets_are_absorbed_up_to_the_first_odd_one(
    compiled: bool, others: list[bytes], batch: list[bytes], data: st.DataObject
) -> None:
    open_window = OpenWindow(SeriesTable(compiled=compiled), RULES)
    for packet in [*others, *batch]:
        if data.draw(st.booleans()):
            absorb_all(open_window, packet)
    open_window.take()
    bounds = [0, *accumulate(map(len, batch))]
    first = data.draw(st.integers(0, len(batch) - 1))
    stop, accepted = open_window.absorb_packets(b"".join(batch), bounds, first)
    assert first <= stop <= len(batch)
    assert open_window.points == accepted
    points = [column.tolist() for column in open_window.take()]
    block = b"".join(batch[first:stop])
    assert open_window.absorb(block, {}) == (accepted, block, [], [], b"", 0)
    assert points == [column.tolist() for column in open_window.take()]
    if stop < len(batch):
        assert open_window.absorb_packets(batch[stop], [0, len(batch[stop])], 0) == (0, 0)
        assert open_window.points == 0


@BOTH_WAYS
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(LINES, LINES, st.booleans())
@example([], [b"put m 1 0 a=1", b"put"] * 100, False)
def test_block_gives_the_results_of_its_lines(
    compiled: bool, first: list[bytes], second: list[bytes], known: bool
) -> None:
    open_window = OpenWindow(SeriesTable(compiled=compiled), RULES)
    if known:  # most blocks have known series only: insert them first
        absorb_all(open_window, b"".join(line + b"\n" for line in reversed(first + second)))
        open_window.take()
    wanted = reference(first + second)
    kept: list[bytes] = []
    rejects: list[tuple[int, str, str]] = []
    for lines, before in ((first, 0), (second, len(first))):
        text, refused, rest = absorb_all(open_window, b"".join(line + b"\n" for line in lines))
        assert rest == b""
        kept += text.split(b"\n")[:-1]
        rejects += [(at + before, reason, words) for at, reason, words in refused]
    assert kept == wanted.kept
    assert rejects == wanted.rejects
    assert open_window.points == len(wanted.kept)
    cells = {key: join(Point(*row[when]) for when in sorted(row)) for key, row in wanted.rows.items()}
    assert cells_of(open_window) == cells


@BOTH_WAYS
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(PLAIN, min_size=FEW + 1, max_size=FEW * 3), OTHER)
def test_plain_lines_before_a_command_take_the_fast_path(compiled: bool, lines: list[bytes], other: bytes) -> None:
    open_window = OpenWindow(SeriesTable(compiled=compiled), RULES)
    block = b"".join(line + b"\n" for line in lines)
    kept, rejects, rest = absorb_all(open_window, block + other + b"\n")
    assert (kept, rejects, rest) == (block, [], other + b"\n")
    assert open_window.slow_lines == 0


@BOTH_WAYS
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(PLAIN, min_size=FEW + 1, max_size=FEW * 3), st.lists(PLAIN, max_size=FEW - 1))
def test_plain_blocks_take_the_fast_path_and_agree(compiled: bool, many: list[bytes], few: list[bytes]) -> None:
    open_window = OpenWindow(SeriesTable(compiled=compiled), RULES)
    lines = many + few + many
    wanted = reference(lines)
    for part in (many, few, many):
        kept, rejects, rest = absorb_all(open_window, b"".join(line + b"\n" for line in part))
        assert (kept.split(b"\n")[:-1], rejects, rest) == (part, [], b"")
    assert open_window.slow_lines <= (0 if compiled else 2 * len(few))
    cells = {key: join(Point(*row[when]) for when in sorted(row)) for key, row in wanted.rows.items()}
    assert cells_of(open_window) == cells


@given(st.lists(NUMBERS.filter(lambda word: b" " not in word), min_size=1, max_size=40))
def test_numbers_by_column_equal_those_one_by_one(words: list[bytes]) -> None:
    columns = number_columns(words)
    one_by_one = []
    for word in words:
        try:
            one_by_one.append(parse_value(word, b"m", 1) if word else None)
        except BadLine:
            one_by_one.append(None)
    if columns is None:
        return  # it may always decline: then lines are read one by one
    flags, bits = columns
    sizes = [(flag & 7) + 1 for flag in flags.tolist()]
    values = [(bit & (1 << 64) - 1).to_bytes(8, "big")[-size:] for bit, size in zip(bits.tolist(), sizes, strict=True)]
    assert list(zip(flags.tolist(), values, strict=True)) == one_by_one


@pytest.mark.parametrize(
    "word", [b"1", b"-1", b"127", b"128", b"-128", b"-129", b"32768", b"2147483648", b"1.5", b"0.1"]
)
def test_plain_numbers_take_the_fast_path(word: bytes) -> None:
    assert number_columns([word] * 3) is not None
    assert number_columns([word, b"7", b"2.5"]) is not None


@BOTH_WAYS
@given(LINES, OTHER, LINES)
def test_block_ends_before_the_first_other_line(
    compiled: bool, before: list[bytes], other: bytes, after: list[bytes]
) -> None:
    open_window = OpenWindow(SeriesTable(compiled=compiled), RULES)
    tail = b"".join(line + b"\n" for line in [other, *after])
    _, rejects, rest = absorb_all(open_window, b"".join(line + b"\n" for line in before) + tail)
    assert rest == tail
    assert rejects == reference(before).rejects
    assert open_window.points == len(reference(before).kept)


@given(
    st.lists(
        st.tuples(st.integers(0, 70_000), st.integers(0, 7_200_000), st.booleans(), st.integers(-200, 200)), max_size=60
    ),
    st.integers(1, 5),
)
def test_separate_cells_keep_the_last_of_each_column(
    points: list[tuple[int, int, bool, int]], cell_points: int
) -> None:
    base = 1356998400000
    wanted: dict[tuple[int, int, bytes], bytes] = {}
    joined: dict[tuple[int, int], dict[int, tuple[bytes, bytes]]] = {}
    arrived: list[tuple[int, int, int, int]] = []
    for number, offset, in_ms, value in points:
        when = (base + offset) << 1 | 1 if in_ms else (base + offset) // 1000 * 2000
        flags = 0 if -128 <= value < 128 else 1
        stored = value.to_bytes(flags + 1, "big", signed=True)
        hour = (when >> 1) // 3_600_000 * 3600
        wanted[number, hour, qualifier_of(when, flags)] = stored
        joined.setdefault((number, hour), {})[when >> 1] = (qualifier_of(when, flags), stored)
        arrived.append((number, when, flags, value))
    series, instants, flag_bits, bits = np.array(arrived, np.int64).reshape(-1, 4).T
    columns = Columns(series.astype(np.int32), instants, flag_bits.astype(np.uint8), bits)
    single = list(encode_cells(sort_columns(columns, join=False), join=False))
    assert {(n, b, q): v for n, b, q, v in single} == wanted
    assert len(single) == len(wanted)
    last: dict[tuple[int, int], tuple[int, int]] = {}  # unit and flags of what is written last, by series and time
    for part in layers(sort_columns(columns, join=False)):
        instants_ms = list(zip(part.series.tolist(), (part.instants >> 1).tolist(), strict=True))
        assert len(set(instants_ms)) == len(instants_ms)
        last.update(zip(instants_ms, zip(part.instants.tolist(), part.flags.tolist(), strict=True), strict=True))
    assert last == {(number, when >> 1): (when, flags) for number, when, flags, _ in arrived}
    cut: dict[tuple[int, int], list[Point]] = {}
    for n, b, q, v in encode_cells(sort_columns(columns, join=True), join=True, cell_points=cell_points):
        cut.setdefault((n, b), []).append(Point(q, v))
    for key, row in joined.items():
        ordered = [Point(*row[when]) for when in sorted(row)]
        assert cut[key] == [join(ordered[at : at + cell_points]) for at in range(0, len(ordered), cell_points)]

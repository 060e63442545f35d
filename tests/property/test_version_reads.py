"""Compiled loops that read versions and write entities answer as the Python code does, also for damaged bytes."""

import struct
from collections.abc import Callable, Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from thriftpy2.protocol import TBinaryProtocol
from thriftpy2.thrift import TMessageType
from thriftpy2.transport import TMemoryBuffer

from tests.unit.store.thrift_results import pieces
from tsd.api import entity_json
from tsd.errors import CorruptRow
from tsd.store.cells import Cell
from tsd.store.hbase import results
from tsd.store.hbase.pool import NoAnswer
from tsd.store.hbase.thrift2 import api
from tsd.store.hbase.thrift_codec import OtherAnswer
from tsd.store.rocksdb import version_reads
from tsd.store.rocksdb.version_chunks import Versions, encode_chunk
from tsd.store.rocksdb.version_reads import column_prefix, time_suffix
from tsd.store.versions import (
    VersionColumns,
    Wanted,
    columns_of,
    concatenate,
    first_rows,
    gather,
    merged,
    rows_of,
    select,
)
from tsd.tables import entity_decode as decode

LOOPS = version_reads.HAS_LOOP and results.HAS_RESULT_LOOP and decode.HAS_LOOP and entity_json.HAS_LOOP
pytestmark = pytest.mark.skipif(not LOOPS, reason="no C compiler when tsd was installed")

times = st.integers(0, 20)
names = st.sampled_from([b"a", b"a\0", b"a\0\xff", b"\0\1", b"\xff", b"web01"])
columns = st.sampled_from([b"t:", b"t:a", b"t:a\0", b"t:a\0\xff", b"t:a\xff", b"m:rack", b"t:sys.cpu dc=eu"])
values = st.sampled_from([b"", b"\0*", b"\1\0\5", b"\x0b\x42\x2a\0\0", b"\x0f" + bytes(8), b"\x03\xff\xff\xff\xfe"])
stored = st.dictionaries(names, st.dictionaries(columns, st.dictionaries(times, values, min_size=1), min_size=1))
Stored = dict[bytes, dict[bytes, dict[int, bytes]]]
damages = st.none() | st.tuples(st.integers(0, 400), st.integers(0, 255)) | st.integers(0, 400)


def ordered(rows: Stored) -> list[tuple[bytes, list[Cell]]]:
    return [
        (row, [Cell(name, cells[name][at], at) for name in sorted(cells) for at in sorted(cells[name], reverse=True)])
        for row, cells in sorted(rows.items())
    ]


def alike(one: VersionColumns, other: VersionColumns) -> bool:
    same = all(np.array_equal(one[at], other[at]) for at in (1, 2, 3))
    return same and (list(one.places), one.values) == (list(other.places), other.values)


def damaged(data: bytes, damage: tuple[int, int] | int | None) -> bytes:
    match damage:
        case None:
            return data
        case int():
            return data[: damage % (len(data) + 1)]
        case at, byte:
            assume(data)
            at %= len(data)
            return data[:at] + bytes([byte]) + data[at + 1 :]


def outcome(call: Callable[[], object]) -> object:
    try:
        return call()
    except CorruptRow:  # of several errors, either code may find another one first
        return CorruptRow


@given(
    st.dictionaries(st.integers(0, 50), st.binary(max_size=4), max_size=6),
    st.integers(-5, 60),
    st.integers(-5, 60),
    st.integers(0, 7),
    damages,
)
def test_parts_of_chunks(
    versions: dict[int, bytes], since: int, until: int, most: int, damage: tuple[int, int] | int | None
) -> None:
    at = sorted(versions)
    lengths = np.array([len(versions[time]) for time in at], np.int64)
    whole = Versions(np.array(at, np.int64) + 1000, lengths, b"".join(versions[time] for time in at))
    wanted = Wanted(1000 + since, 1000 + until)
    chunk = damaged(encode_chunk(1000, whole), damage)
    offsets = np.frombuffer(chunk[4 : 4 + 4 * int.from_bytes(chunk[:4], "little")][: len(chunk) // 4 * 4 - 4], "<u4")
    assume(damage is None or (np.diff(offsets.astype(np.int64)) >= 0).all())  # the times of a chunk ascend
    found = [
        outcome(lambda c=c: version_reads.chunk_part(1000, chunk, wanted, most, compiled=c)) for c in (True, False)
    ]
    assert found[0] == found[1]
    if damage is None:
        chosen = [time for time in at if since <= time < until]
        assert isinstance(found[0], tuple)
        assert found[0][0] == min(len(chosen), most)


@given(stored, st.integers(0, 4), st.none() | st.integers(0, 50))
def test_entries_of_newest_values(rows: Stored, most: int, cut: int | None) -> None:
    entries = [
        (column_prefix(row, cell.column) + time_suffix(cell.time_ms), cell.value)
        for row, cells in ordered({row: {name: dict([*held.items()][:1]) for name, held in cells.items()}
                                   for row, cells in rows.items()})
        for cell in cells
    ]  # fmt: skip
    if cut is not None and entries:
        key, value = entries[cut % len(entries)]
        entries[cut % len(entries)] = key[: cut % len(key)], value
    found = []
    for compiled in (True, False):
        places: list[tuple[bytes, bytes]] = [(b"before", b"t:")]
        some = outcome(
            lambda c=compiled, p=places: version_reads.split_newest(entries, b"", b"\0\1", most, p, compiled=c)
        )
        found.append((some, places if isinstance(some, version_reads.NewestEntries) else None))
    assert found[0] == found[1]


@given(stored)
def test_entities_of_rows(rows: Stored) -> None:
    held = columns_of(ordered(rows))
    assert outcome(lambda: decode.decode_rows(held)) == outcome(lambda: decode.decode_rows(held, compiled=False))


numbers = st.integers(-(2**63), 2**63 - 1) | st.floats() | st.floats(width=32)


def value_of(number: int | float) -> bytes:
    return b"\x0f" + struct.pack(">d", number) if isinstance(number, float) else b"\7" + struct.pack(">q", number)


def points_of(series: Sequence[dict[int, int | float]]) -> VersionColumns:
    cells = [
        [Cell(b"t:%03d" % number, value_of(points[at]), at) for at in sorted(points, reverse=True)]
        for number, points in enumerate(series)
    ]
    return columns_of([(b"h", [cell for of_one in cells for cell in of_one])])


@given(st.lists(st.dictionaries(st.integers(0, 2**62), numbers, min_size=1), min_size=1, max_size=4), st.integers(0, 3))
def test_json_of_points(series: list[dict[int, int | float]], first: int) -> None:
    first %= len(series)
    columns, heads = points_of(series), [b'%b{"n":1' % (b"," if at else b"") for at in range(len(series) - first)]
    text = entity_json.points_json(heads, columns, first)
    assert text == entity_json.points_json(heads, columns, first, compiled=False)
    found = msgspec.json.decode(b"[%b]" % text)
    assert [list(one["dps"]) for one in found] == [[str(at) for at in sorted(one)] for one in series[first:]]


@given(st.lists(st.tuples(st.integers(0, 2**62), numbers), min_size=1, max_size=4), st.integers(0, 3))
def test_json_of_newest_values(newest: list[tuple[int, int | float]], first: int) -> None:
    first %= len(newest)
    columns = points_of([dict([one]) for one in newest])
    heads = [b'%b{"n":1' % (b"," if at else b"") for at in range(len(newest) - first)]
    text = entity_json.newest_json(heads, columns, first)
    assert text == entity_json.newest_json(heads, columns, first, compiled=False)
    assert [one["timestamp"] for one in msgspec.json.decode(b"[%b]" % text)] == [at for at, _ in newest[first:]]


@given(st.lists(values, max_size=4))
def test_numbers_of_values(some: list[bytes]) -> None:
    ends = np.cumsum(np.array([len(value) for value in some], np.int64))
    found = [outcome(lambda c=c: decode.numbers_of(ends, b"".join(some), compiled=c)) for c in (True, False)]
    assert found[0] == found[1]


@given(stored, stored)
def test_merged_versions(old: Stored, new: Stored) -> None:
    both = {
        row: {name: old.get(row, {}).get(name, {}) | new.get(row, {}).get(name, {}) for name in of_row}
        for row in {*old, *new}
        for of_row in [{*old.get(row, {}), *new.get(row, {})}]
    }
    assert alike(merged(columns_of(ordered(old)), columns_of(ordered(new))), columns_of(ordered(both)))


@given(stored, st.integers(0, 4), st.none() | names)
def test_first_rows(rows: Stored, limit: int, end: bytes | None) -> None:
    page = first_rows(columns_of(ordered(rows)), limit, end)
    chosen = [row for row in sorted(rows) if end is None or row < end]
    assert alike(page.columns, columns_of(ordered({row: rows[row] for row in chosen[:limit]})))
    assert page.next_start == (chosen[limit] if len(chosen) > limit else end)


@given(stored, st.integers(0, 21), st.none() | st.integers(1, 3))
def test_selected_versions(rows: Stored, until: int, versions: int | None) -> None:
    chosen = select(columns_of(ordered(rows)), until, versions)
    expected: list[tuple[bytes, list[Cell]]] = []
    for row, cells in rows.items():
        kept = {
            name: dict(sorted((item for item in held.items() if item[0] < until), reverse=True)[:versions])
            for name, held in cells.items()
        }
        expected += ordered({row: {name: held for name, held in kept.items() if held}})
    assert alike(chosen, columns_of(sorted(pair for pair in expected if pair[1])))


@pytest.mark.slow
@given(st.lists(stored, max_size=3))
def test_joined_arrays(parts: list[Stored]) -> None:
    some = [columns_of((b"%d" % at + row, cells) for row, cells in ordered(part)) for at, part in enumerate(parts)]
    whole = columns_of((row.key, row.cells) for part in some for row in rows_of(part))
    assert alike(concatenate(some), whole)
    assert alike(gather([(place, part, at) for part in some for at, place in enumerate(part.places)]), whole)


CALL, NUMBER = "getMultiple", 7


def answer_of(rows: Sequence[tuple[bytes | None, list[Cell]]]) -> bytes:
    found = [
        api.TResult(
            row=row,
            columnValues=[api.TColumnValue(*cell.column.split(b":", 1), cell.value, cell.time_ms) for cell in cells],
        )
        for row, cells in rows
    ]
    buffer = TMemoryBuffer()
    protocol = TBinaryProtocol(buffer, decode_response=False)
    protocol.write_message_begin(CALL, TMessageType.REPLY, NUMBER)
    api.THBaseService.getMultiple_result(success=found).write(protocol)
    protocol.write_message_end()
    return bytes(buffer.getvalue())


def read(data: bytes, size: int) -> results.Results:
    return results.ResultReader(pieces(data, size)).read_results(CALL.encode(), NUMBER)


@given(stored, st.booleans(), st.sampled_from([1, 7, 1 << 20]))
def test_rows_of_thrift_2_from_pieces(rows: Stored, empty: bool, size: int) -> None:
    given_rows: list[tuple[bytes | None, list[Cell]]] = [*ordered(rows), *([(None, [])] if empty else [])]
    found = read(answer_of(given_rows), size)
    assert found.rows == [row for row, _ in given_rows]
    assert alike(found.columns, columns_of(ordered(rows)))


def test_a_long_row_is_read_once_although_it_comes_in_pieces() -> None:
    row = (b"row", [Cell(b"t:a", bytes(5), at) for at in range(100_000, 0, -1)])
    assert alike(read(answer_of([row]), 4096).columns, columns_of([row]))


def test_other_fields_are_skipped() -> None:
    """HBase adds whether a result is partial, and the type of a cell."""
    text = struct.Struct(">BhI")
    cell = b"".join(text.pack(11, at, len(word)) + word for at, word in enumerate((b"t", b"a", b"\0*"), 1))
    cell += struct.pack(">Bhq", 10, 4, 5) + struct.pack(">Bhb", 3, 6, 4) + text.pack(11, 5, 1) + b"x\0"
    result = (
        text.pack(11, 1, 1) + b"r" + struct.pack(">BhBI", 15, 2, 12, 1) + cell + struct.pack(">BhB", 2, 4, 0) + b"\0"
    )
    empty = answer_of([])
    at = empty.index(struct.pack(">BI", 12, 0))
    data = empty[:at] + struct.pack(">BI", 12, 1) + result + empty[at + 5 :]
    assert alike(read(data, 3).columns, columns_of([(b"r", [Cell(b"t:a", b"\0*", 5)])]))


@pytest.mark.parametrize(
    "cells",
    [
        [Cell(b"t:a", b"v", 1), Cell(b"t:a", b"v", 2)],
        [Cell(b"t:a", b"v", 1), Cell(b"t:a", b"w", 1)],
    ],
    ids=["oldest first", "a time twice"],
)
def test_versions_out_of_order_are_refused(cells: list[Cell]) -> None:
    with pytest.raises(NoAnswer):
        read(answer_of([(b"row", cells)]), 1 << 20)


@given(stored, damages, st.sampled_from([5, 1 << 20]))
def test_damaged_answers_raise(rows: Stored, damage: tuple[int, int] | int | None, size: int) -> None:
    data = damaged(answer_of(list(ordered(rows))), damage)
    try:
        found = read(data, size)
    except (NoAnswer, OtherAnswer, EOFError):
        return
    assert len(found.columns.places) + 1 == len(found.columns.bounds)
    assert int(found.columns.bounds[-1]) == len(found.columns.times_ms) == len(found.columns.ends)

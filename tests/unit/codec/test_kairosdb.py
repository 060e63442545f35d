"""KairosDB's bytes are those of a real KairosDB, both ways."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.cases import all_of
from tests.unit.codec.kairosdb_vectors import STORAGE, Vector, points_of, spec_of
from tsd.codec.kairosdb.index import METRIC_NAMES, PRESENT, TABLE_NAME, tag_hash, tag_pair
from tsd.codec.kairosdb.keys import DOUBLE, LONG, DataRow, encode_tags, parse_row_key, parse_tags
from tsd.codec.kairosdb.rows import RowSpec, Unit, number_of
from tsd.codec.kairosdb.values import (
    HAS_VALUES_LOOP,
    decode_doubles,
    decode_long,
    decode_longs,
    decode_longs_at,
    decode_text,
    encode_double,
    encode_doubles,
    encode_long,
    encode_longs,
    encode_text,
)
from tsd.errors import CorruptRow

TELNET = [vector for vector in STORAGE if "lines" in vector]
Cells = dict[tuple[bytes, bytes], list[Any]]


def named(vector: Vector) -> str:
    return f"{vector.get('mode', 'ms')} {vector['name']}"[:60]


@all_of(STORAGE, named)
def test_stored_rows_decode_and_encode(vector: Vector) -> None:
    spec = spec_of(vector)
    rows, times, metrics = [], [], set()
    for key_hex, column_hex, value_hex, *_ in vector["data_points"]:
        key = parse_row_key(bytes.fromhex(key_hex))
        column = bytes.fromhex(column_hex)
        number = number_of(column)
        assert number is not None
        time_ms = spec.time(number, key.row_ms)
        assert key.encode().hex() == key_hex
        assert encode_tags(parse_tags(key.tags)) == key.tags
        assert spec.columns(np.array([time_ms]), key.row_ms) == [column]
        assert spec.row_time(time_ms) == key.row_ms or spec.unit is Unit.SECONDS
        assert encoded_again(key.type, bytes.fromhex(value_hex)).hex() == value_hex
        rows.append([key.metric, TABLE_NAME, key.row_ms, key.type, parse_tags(key.tags)])
        times.append([key.metric, TABLE_NAME, key.row_ms])
        metrics.add(key.metric)
    if not rows:
        return  # refused, or lost with its time to live
    assert once(rows) == once([row[:5] for row in vector["row_keys"]])
    assert once(times) == once(vector["row_key_time_index"])
    assert once(vector["string_index"]) == once([[METRIC_NAMES.hex(), metric, PRESENT.hex()] for metric in metrics])
    if vector.get("mode") == "tag_indexed":
        pairs = [[*row[:3], tag_pair(*tag), tag_hash(row[4]), *row[3:]] for row in rows for tag in row[4].items()]
        assert once(pairs) == once([row[:7] for row in vector["tag_indexed_row_keys"]])


@all_of(TELNET, named)
def test_lines_become_the_stored_cells(vector: Vector) -> None:
    spec = spec_of(vector)
    cells: Cells = {}
    for point in points_of(vector):
        key = DataRow(point.metric, spec.row_time(point.time_ms), point.type, encode_tags(point.tags)).encode()
        [column] = spec.columns(np.array([point.time_ms]), spec.row_time(point.time_ms))
        if len(key) < 1 << 16:
            value = encoded(point.type, point.value)
            if vector.get("alone") or spec.unit is Unit.SECONDS:  # of two in one batch Cassandra keeps the larger
                value = max(value, cells.get((key, column), [b""])[0])
            cells[key, column] = [value, *([point.ttl_s] if point.ttl_s else [])]
    got = [[key.hex(), column.hex(), value.hex(), *ttl] for (key, column), (value, *ttl) in cells.items()]
    assert once(got) == once(vector["data_points"])


def once(rows: list[Any]) -> list[Any]:
    return sorted({repr(row): row for row in rows}.values(), key=repr)


def encoded(kind: str, value: Any) -> bytes:
    if kind == LONG:
        return encode_long(value)
    return encode_double(value) if kind == DOUBLE else encode_text(value)


def encoded_again(kind: str, value: bytes) -> bytes:
    if kind == LONG:
        return encode_long(decode_long(value))
    if kind == DOUBLE:
        [again] = encode_doubles(decode_doubles([value]))
        return again
    return encode_text(decode_text(value))


@given(st.lists(st.integers(-(1 << 63), (1 << 63) - 1)))
def test_many_whole_numbers_equal_one_by_one(numbers: list[int]) -> None:
    values = encode_longs(np.array(numbers, np.int64))
    assert values == [encode_long(number) for number in numbers]
    assert decode_longs(values).tolist() == numbers
    assert decode_longs([value + b"\1" for value in values]).tolist() == numbers


@given(st.lists(st.binary(max_size=12)))
def test_whole_numbers_within_a_body_equal_one_by_one(values: list[bytes]) -> None:
    """Too long, too short and unended numbers too."""
    body = b"".join(values)
    lengths = np.array([len(value) for value in values], np.int64)
    starts = np.cumsum(lengths) - lengths
    found: list[list[int] | str] = []
    for compiled in (HAS_VALUES_LOOP, False):
        try:
            found.append(decode_longs_at(body, starts, lengths, compiled=compiled).tolist())
        except CorruptRow as error:
            found.append(str(error))
    try:
        wanted: list[int] | str = [decode_long(value) for value in values]
    except CorruptRow as error:
        wanted = str(error)
    assert found == [wanted, wanted]


@given(st.text())
def test_texts_come_back(text: str) -> None:
    assert decode_text(encode_text(text)) == text


@given(st.dictionaries(st.text(min_size=1), st.text(min_size=1)))
def test_tags_come_back(tags: dict[str, str]) -> None:
    assert parse_tags(encode_tags(tags)) == tags


@given(st.sampled_from([RowSpec(), RowSpec(Unit.LEGACY)]), st.integers(-(1 << 60), 1 << 60))
def test_times_come_back(spec: RowSpec, time_ms: int) -> None:
    row_ms = spec.row_time(time_ms)
    number = spec.column(time_ms, row_ms)
    assert spec.time(number, row_ms) == time_ms
    assert spec.first_row(time_ms) <= row_ms
    bounds = spec.bounds(time_ms, time_ms, row_ms)
    assert bounds is not None
    assert bounds[0] <= number <= bounds[1]

"""Stored points of KairosDB's rows → columns of points, and texts. Pure but for warnings, which are collected."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.kairosdb.keys import DOUBLE, LEGACY, LONG, STRING, DataRow
from tsd.codec.kairosdb.rows import COLUMN_BYTES, RowSpec, number_of
from tsd.codec.kairosdb.values import DOUBLE_BYTES, decode_doubles, decode_legacy, decode_longs_at, decode_text
from tsd.codec.points import NO_POINTS, Bool, Int64, Points, starts_of
from tsd.errors import CorruptRow
from tsd.store.cassandra.wire import fixed_values
from tsd.tables.kairosdb.points import COLUMN, VALUE, RowsAnswer, StoredPoints

NUMBERS = frozenset({LONG, DOUBLE, LEGACY})
KNOWN = NUMBERS | {STRING}
WARNINGS = 20  # of a page


class StoredRow(NamedTuple):
    """A part of a row, as stored."""

    row: DataRow
    points: StoredPoints


class Decoded(NamedTuple):
    """Points of one series, in order."""

    points: Points
    duplicates: int  # dropped in favour of others with the same time


class DecodedRows(NamedTuple):
    """Points of several rows, row after row."""

    rows: Sequence[DataRow]
    starts: Int64  # (rows + 1,): index of each row's first point, then their number
    points: Points
    size: int  # stored bytes of columns and values


def decode_plain(answer: RowsAnswer, spec: RowSpec, first_ms: int, last_ms: int) -> DecodedRows | None:
    """Return the numbers of rows of different series at some times, both ends included, in order; None if they need
    `decode_numbers`."""
    plain = answer.plain
    if plain is None:
        return None
    rows = [answer.rows[key] for key in plain.keys]
    starts, lengths = plain.starts, np.diff(plain.starts)
    times = spec.times(plain.columns, np.repeat(np.array([row.row_ms for row in rows], np.int64), lengths))
    ascends = np.ones(len(times) + 1, np.bool_)
    ascends[1:-1] = times[1:] > times[:-1]
    ascends[starts] = True
    if not ascends.all():
        return None
    floats = np.repeat(np.array([row.type == DOUBLE for row in rows], np.bool_), lengths)
    points = Points(times, plain.bits, floats)
    kept = (times >= first_ms) & (times <= last_ms)
    if not kept.all():
        points, starts = points.at(kept), starts_of(kept)[starts]
    return DecodedRows(rows, starts, points, plain.size)


def decode_numbers(
    rows: Sequence[StoredRow], spec: RowSpec, first_ms: int, last_ms: int, warn: Callable[[str], None]
) -> Decoded:
    """Return the numbers of a series' rows at some times, both ends included, in order. Of several points at one time
    the one written last is kept. `warn` gets a sentence for each value that cannot be read."""
    parts = [part for row in rows if len(row.points) and (part := _numbers(row, spec, warn)) is not None]
    if not parts:
        return Decoded(NO_POINTS, 0)
    times, bits, floats, stamps = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if len(parts) > 1 or (times[1:] <= times[:-1]).any():
        order = np.lexsort((stamps, times))
        times, bits, floats = times[order], bits[order], floats[order]
    kept = (times >= first_ms) & (times <= last_ms)
    last = np.ones(len(times), np.bool_)
    last[:-1] = times[1:] != times[:-1]
    found = Points(times, bits, floats).at(kept & last)
    return Decoded(found, int(kept.sum()) - len(found.times))


def _numbers(row: StoredRow, spec: RowSpec, warn: Callable[[str], None]) -> tuple[Int64, Int64, Bool, Int64] | None:
    """Return times, bits, whether they are doubles, and write timestamps."""
    points = row.points
    whole = points.lengths[:, COLUMN] == COLUMN_BYTES
    if not whole.all():
        warn(f"{shown(row.row)}: {int((~whole).sum())} columns do not have {COLUMN_BYTES} bytes")
        points = points.at(whole)
    try:
        bits, floats = _bits(row.row.type, points)
    except CorruptRow:
        readable = [_is_readable(row.row, points.at(slice(at, at + 1)), warn) for at in range(len(points))]
        points = points.at(np.array(readable, np.bool_))
        bits, floats = _bits(row.row.type, points)
    return spec.times(points.numbers, row.row.row_ms), bits, floats, points.stamps


def _bits(kind: str, points: StoredPoints) -> tuple[Int64, Bool]:
    """Return the values of points. Raise CorruptRow."""
    starts, lengths = points.starts[:, VALUE], points.lengths[:, VALUE]
    if kind == DOUBLE and (lengths >= DOUBLE_BYTES).all():
        doubles = np.frombuffer(fixed_values(points.body, starts, DOUBLE_BYTES), ">i8")
        return doubles.astype(np.int64), np.ones(len(points), np.bool_)
    if kind == LONG:
        return decode_longs_at(points.body, starts, lengths), np.zeros(len(points), np.bool_)
    values = points.bytes_of(VALUE)
    if kind == DOUBLE:
        return decode_doubles(values), np.ones(len(values), np.bool_)
    columns = points.numbers.tolist()
    numbers = [decode_legacy(column, value) for column, value in zip(columns, values, strict=True)]
    floats = np.array([isinstance(number, float) for number in numbers], np.bool_)
    integers = np.array([0 if isinstance(number, float) else _signed(number) for number in numbers], np.int64)
    legacy = np.array([float(number) for number in numbers], np.float64)
    return np.where(floats, legacy.view(np.int64), integers), floats


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 == 1 else number


def _is_readable(row: DataRow, point: StoredPoints, warn: Callable[[str], None]) -> bool:
    try:
        _bits(row.type, point)
    except CorruptRow as exc:
        warn(f"{shown(row)}: {exc}")
        return False
    return True


def decode_texts(row: StoredRow, spec: RowSpec, warn: Callable[[str], None]) -> Iterator[tuple[int, str]]:
    """Yield time and text of each point of a row of texts."""
    for point in row.points:
        number = number_of(point.column)
        try:
            if number is None:
                raise CorruptRow(f"column: got {point.column.hex()}, wanted 4 bytes")
            text = decode_text(point.value)
        except CorruptRow as exc:
            warn(f"{shown(row.row)}: {exc}")
            continue
        yield spec.time(number, row.row.row_ms), text


def shown(row: DataRow) -> str:
    """Return a row for messages."""
    tags = row.tags.decode("utf-8", "replace")
    return f"metric {row.metric}, row {row.row_ms}, type {row.type}, tags {tags}"


def unknown_types(rows: Sequence[DataRow]) -> list[str]:
    """Return a warning for each row of a type that cannot be read."""
    return [f"{shown(row)}: the type is unknown; the row was skipped" for row in rows if row.type not in KNOWN]


def by_series(rows: Sequence[StoredRow]) -> Mapping[bytes, list[StoredRow]]:
    """Return rows by the tags of their series, in order."""
    found: dict[bytes, list[StoredRow]] = {}
    for row in rows:
        found.setdefault(row.row.tags, []).append(row)
    return found

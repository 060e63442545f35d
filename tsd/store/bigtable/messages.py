"""Messages of Bigtable's data and administration calls, as far as the engine needs them.

A column is `family:qualifier`. Times are in microseconds since 1970, in whole milliseconds.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from struct import Struct
from typing import NamedTuple

from tsd.store.bigtable.rate_limit import RateLimitInfo
from tsd.store.bigtable.wire import chunk, fields, number, signed, varint
from tsd.store.cells import Cell, Family, Put
from tsd.store.versions import VersionPut

MS = 1000  # microseconds of a millisecond
NEWEST = number(12, 1)  # filter: one cell per column

_DOUBLE = Struct("<d")
_SET_FAMILY, _SET_QUALIFIER, _SET_TIME, _SET_VALUE = b"\x0a", b"\x12", b"\x18", b"\x22"


# ---- Requests


def mutate_rows(table: str, profile: str, entries: Iterable[bytes]) -> bytes:
    """Return a MutateRowsRequest."""
    parts = [chunk(1, table.encode()), chunk(3, profile.encode())]
    for entry in entries:
        parts += (b"\x12", varint(len(entry)), entry)
    return b"".join(parts)


def put_entries(cells: Sequence[Put], time_ms: int, *, replace: bool = False) -> list[bytes]:
    """Return an entry for each row; the cells of one row follow each other. `replace`: in place of all versions."""
    stamp = _SET_TIME + varint(time_ms * MS) + _SET_VALUE
    entries: list[bytes] = []
    last: bytes | None = None
    parts: list[bytes] = []
    heads: dict[bytes, bytes] = {}
    deletions: dict[bytes, bytes] = {}
    for row, column, value in cells:
        if row != last:
            if parts:
                entries.append(b"".join(parts))
            parts = [b"\x0a", varint(len(row)), row]
            last = row
        head = heads.get(column)
        if head is None:
            head = heads[column] = _head(column, stamp)
        length = varint(len(value))
        size = len(head) + len(length) + len(value)
        prefix = varint(size)
        if replace:
            if column not in deletions:
                deletions[column] = chunk(2, chunk(2, _column(column)))
            parts.append(deletions[column])
        parts += (b"\x12", varint(size + 1 + len(prefix)), b"\x0a", prefix, head, length, value)
    if parts:
        entries.append(b"".join(parts))
    return entries


def _head(column: bytes, stamp: bytes) -> bytes:
    """Return what a SetCell has before the length of its value."""
    family, _, qualifier = column.partition(b":")
    return b"".join(
        (_SET_FAMILY, varint(len(family)), family, _SET_QUALIFIER, varint(len(qualifier)), qualifier, stamp)
    )


def _set_cell(column: bytes, value: bytes, stamp: bytes) -> bytes:
    """Return a mutation."""
    return chunk(1, _head(column, stamp) + varint(len(value)) + value)


def version_entries(cells: Sequence[VersionPut]) -> list[bytes]:
    """Return an entry for each row; the cells of one row follow each other."""
    return [
        chunk(1, row)
        + b"".join(
            chunk(2, _set_cell(cell.column, cell.value, _SET_TIME + varint(cell.time_ms * MS) + _SET_VALUE))
            for cell in of_row
        )
        for row, of_row in groupby(cells, attrgetter("row"))
    ]


def delete_entry(row: bytes, columns: Iterable[bytes], up_to_ms: int, since_ms: int = 0) -> bytes:
    """Return an entry that deletes the versions from one time up to another. A range of a last time alone would bring
    an older version back."""
    span = chunk(3, number(1, since_ms * MS) + number(2, (up_to_ms + 1) * MS))
    return chunk(1, row) + b"".join(chunk(2, chunk(2, _column(name) + span)) for name in columns)


def _column(column: bytes) -> bytes:
    """Return fields 1 and 2, family and qualifier."""
    family, _, qualifier = column.partition(b":")
    return chunk(1, family) + chunk(2, qualifier)


def check_and_mutate(table: str, profile: str, cell: Put, expected: bytes | None, time_ms: int) -> bytes:
    """Return a CheckAndMutateRowRequest: replace the cell if its value is `expected`. An empty one counts as absent.

    All versions are deleted first: otherwise a stored cell with a later time would hide the new one.
    """
    row, column, value = cell
    wanted = chunk(1, expected) + chunk(3, expected) if expected else chunk(2, b"")  # or any that is not empty
    stamp = _SET_TIME + varint(time_ms * MS) + _SET_VALUE
    replace = chunk(2, _column(column)), _set_cell(column, value, stamp)
    branch = 4 if expected else 5
    return b"".join(
        [
            chunk(1, table.encode()),
            chunk(7, profile.encode()),
            chunk(2, row),
            chunk(6, _chain([_one_column(column), NEWEST, chunk(15, wanted)])),
            *(chunk(branch, mutation) for mutation in replace),
        ]
    )


def probe(table: str, profile: str, family: bytes) -> bytes:
    """Return a CheckAndMutateRowRequest that changes nothing: it deletes a column that no row has."""
    absent = chunk(2, chunk(1, family) + chunk(2, b"tsd-probe"))
    return b"".join(
        [
            chunk(1, table.encode()),
            chunk(7, profile.encode()),
            chunk(2, b"\0tsd-probe"),
            chunk(6, _one_column(family + b":tsd-probe")),
            chunk(5, absent),
            chunk(4, absent),
        ]
    )


def increment(table: str, profile: str, row: bytes, column: bytes, by: int) -> bytes:
    """Return a ReadModifyWriteRowRequest."""
    rule = _column(column) + number(4, by)
    return chunk(1, table.encode()) + chunk(4, profile.encode()) + chunk(2, row) + chunk(3, rule)


def _one_column(column: bytes) -> bytes:
    """Return a filter for one column, as a range: there is nothing to quote."""
    family, _, qualifier = column.partition(b":")
    return chunk(7, chunk(1, family) + chunk(2, qualifier) + chunk(4, qualifier))


def _chain(filters: Sequence[bytes]) -> bytes:
    return chunk(1, b"".join(chunk(1, one) for one in filters))


KEYS = _chain([number(11, 1), number(13, 1)])  # filter: one cell of a row, without its value


def newest_of(columns: Collection[bytes] | None) -> bytes:
    """Return a filter for the newest cells of some columns, None: of all."""
    if columns is None:
        return NEWEST
    return _chain([either([_one_column(column) for column in sorted(columns)]), NEWEST])


def either(filters: Sequence[bytes]) -> bytes:
    """Return a filter for what one of some filters leaves; no cell passes two of them."""
    return filters[0] if len(filters) == 1 else chunk(2, b"".join(chunk(1, one) for one in filters))


def versions_of(
    columns: Sequence[bytes] | None,
    family: bytes,
    newest: int | None,
    span_ms: tuple[int, int] | None,
    versions: int | None,
) -> bytes:
    """Return a filter for versions of columns of a family (None: of all its columns).

    It keeps the `newest` versions of each column, of these the ones with a time in `span_ms`, and of these the newest
    `versions` of each column. `span_ms` is the first ms, and the ms after the last. None does not restrict."""
    named = [chunk(7, chunk(1, family))] if columns is None else [_one_column(column) for column in columns]
    parts = [either(named)]
    if newest is not None:
        parts.append(number(12, newest))
    if span_ms is not None:
        parts.append(chunk(8, number(1, span_ms[0] * MS) + number(2, span_ms[1] * MS)))
    if versions is not None:
        parts.append(number(12, versions))
    return parts[0] if len(parts) == 1 else _chain(parts)


def newest_between(first: bytes, last: bytes) -> bytes:
    """Return a filter for the newest cells from one column of a family to another, both included."""
    family, _, start = first.partition(b":")
    end = last.partition(b":")[2]
    return _chain([chunk(7, chunk(1, family) + chunk(2, start) + chunk(4, end)), NEWEST])


def read_keys(table: str, profile: str, rows: Iterable[bytes], filter_: bytes) -> bytes:
    """Return a ReadRowsRequest for single rows, at least one."""
    keys = b"".join(chunk(1, row) for row in rows)
    return chunk(1, table.encode()) + chunk(5, profile.encode()) + chunk(2, keys) + chunk(3, filter_)


def read_range(table: str, profile: str, start: bytes, stop: bytes | None, filter_: bytes, limit: int) -> bytes:
    """Return a ReadRowsRequest for a range that is not empty. `limit` 0: all rows."""
    span = (chunk(1, start) if start else b"") + (chunk(3, stop) if stop is not None else b"")
    return b"".join(
        [
            chunk(1, table.encode()),
            chunk(5, profile.encode()),
            chunk(2, chunk(2, span)),
            chunk(3, filter_),
            number(4, limit) if limit else b"",
        ]
    )


def create_table(instance: str, name: str, families: Sequence[Family]) -> bytes:
    """Return a CreateTableRequest."""
    made = b"".join(
        chunk(3, chunk(1, family.name) + chunk(2, chunk(1, number(1, family.versions)))) for family in families
    )
    return chunk(1, instance.encode()) + chunk(2, name.encode()) + chunk(3, made)


def list_tables(instance: str, page: bytes) -> bytes:
    """Return a ListTablesRequest."""
    return chunk(1, instance.encode()) + (chunk(3, page) if page else b"")


def by_name(name: str) -> bytes:
    """Return a GetTableRequest or a DeleteTableRequest."""
    return chunk(1, name.encode())


# ---- Answers


class Status(NamedTuple):
    """Verdict on one entry."""

    entry: int
    code: int  # of gRPC
    message: str


def statuses(answer: bytes) -> Iterator[Status]:
    """Yield the verdicts of a MutateRowsResponse."""
    for field, _, entry in fields(answer):
        if field != 1:
            continue
        index, code, message = 0, 0, ""
        for of, value, data in fields(entry):
            if of == 1:
                index = value
            elif of == 2:
                code, message = _code_and_message(data)
        yield Status(index, code, message)


def _code_and_message(status: bytes) -> tuple[int, str]:
    """Return the code and the message of a google.rpc.Status."""
    code, message = 0, ""
    for field, value, data in fields(status):
        if field == 1:
            code = value
        elif field == 2:
            message = data.decode(errors="replace")
    return code, message


def rate_limit_of(answer: bytes) -> RateLimitInfo | None:
    """Return what a MutateRowsResponse asks for, None: nothing."""
    info = _only(answer, 3)
    if not info:
        return None
    factor = 1.0
    for field, value, _ in fields(info):
        if field == 2:
            (factor,) = _DOUBLE.unpack(value.to_bytes(_DOUBLE.size, "little"))
    period = {field: value for field, value, _ in fields(_only(info, 1))}  # seconds and nanoseconds
    return RateLimitInfo(period.get(1, 0) + period.get(2, 0) / 1e9, factor)


def is_matched(answer: bytes) -> bool:
    """Return the verdict of a CheckAndMutateRowResponse."""
    return any(value for field, value, _ in fields(answer) if field == 1)


def counter_of(answer: bytes) -> Cell:
    """Return the first cell of a ReadModifyWriteRowResponse."""
    row = _only(answer, 1)
    family = _only(row, 2)
    column = _only(family, 2)
    cell = _only(column, 2)
    stamp = next((value for field, value, _ in fields(cell) if field == 1), 0)
    return Cell(_only(family, 1) + b":" + _only(column, 1), _only(cell, 2), signed(stamp) // MS)


def _only(message: bytes, wanted: int) -> bytes:
    return next((data for field, _, data in fields(message) if field == wanted), b"")


def table_names(answer: bytes) -> tuple[list[str], bytes]:
    """Return the last parts of the names in a ListTablesResponse, and the next page's token."""
    names = [_only(table, 1).decode().rpartition("/")[2] for field, _, table in fields(answer) if field == 1]
    return names, _only(answer, 2)


def family_versions(answer: bytes) -> dict[bytes, int]:
    """Return the families of a Table, with the number of versions each keeps; 0: all, or by another rule."""
    found: dict[bytes, int] = {}
    for field, _, family in fields(answer):
        if field == 3:
            rule = _only(_only(family, 2), 1)
            found[_only(family, 1)] = next((value for of, value, _ in fields(rule) if of == 1), 0)
    return found

"""Reads of rows: parts of the rows of some prefixes, in order of time, and their points."""

from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from tsd.codec.points import NO_POINTS, Points
from tsd.codec.tall.fields import COLUMN, parse_day_column
from tsd.codec.tall.rules import TableRule
from tsd.codec.tall.template import RowTime
from tsd.codec.tall.times import DAY_MS
from tsd.codec.tall.values import parse_numbers
from tsd.errors import CorruptRow
from tsd.store import Cell, Row
from tsd.store.retry import run_bounded
from tsd.tables.interned import in_thread
from tsd.tables.tall.tables import TallTables

PREFIXES = 64  # that are scanned side by side
CONCURRENT = 16  # calls
PART_CELLS = 20_000  # read at once, roughly
FIRST_ROWS, MOST_ROWS = 16, 1000  # of one call
GROWTH = 4
MOST_COLUMNS = 100  # that a call names
MOST_DAYS = 8  # that are read by key
LAST_EVENT_MS = 10**13 - 1

T = TypeVar("T")
Wanted = Mapping[bytes, Mapping[bytes, T]]  # what is asked for: by prefix and field


class StoredCell(NamedTuple):
    """A cell of a point, whose value is not read yet."""

    row: bytes
    cell: Cell
    time_ms: int


class Part(NamedTuple, Generic[T]):
    """Parts of the rows of some prefixes."""

    cells: Sequence[tuple[T, StoredCell]]  # those of one series in order of time
    rows: int
    wrong: Sequence[str]  # a sentence for each key and column that cannot be read


class Reading(Generic[T]):
    """What is read of one table: points of some series from one time to another, both included."""

    def __init__(self, tables: TallTables, rule: TableRule, wanted: Wanted[T], first_ms: int, last_ms: int) -> None:
        self._tables = tables
        self._rule = rule
        self._wanted = wanted
        self._first_ms = max(first_ms, 0)
        self._last_ms = min(last_ms, LAST_EVENT_MS)
        self._limit = FIRST_ROWS

    async def parts(self) -> AsyncGenerator[Part[T], None]:
        """Yield the points in order of time; no part is empty. Raise StoreError."""
        if self._first_ms > self._last_ms:
            return
        template = self._rule.template
        first, last = template.row_time(self._first_ms), template.row_time(self._last_ms)
        if template.time is RowTime.DAY and (last - first) // DAY_MS < MOST_DAYS:
            keys = [
                prefix + template.time_text(day) for day in range(first, last + 1, DAY_MS) for prefix in self._wanted
            ]
            at = 0
            while at < len(keys):
                some = keys[at : at + self._limit]
                at += len(some)
                found = await self._tables.store.get(self._rule.table, some)
                rows = [Row(key, found.pop(key)) for key in some if key in found]
                if part := await in_thread(_cells_in(rows), partial(self._part, rows)):
                    yield part
            return
        prefixes = list(self._wanted)
        for start in range(0, len(prefixes), PREFIXES):
            async with aclosing(self._scan(prefixes[start : start + PREFIXES], first, last)) as parts:
                async for part in parts:
                    yield part

    async def _scan(self, prefixes: Sequence[bytes], first: int, last: int) -> AsyncGenerator[Part[T], None]:
        """Yield the points of some prefixes, whose rows are scanned side by side."""
        text = self._rule.template.time_text
        starts = {prefix: prefix + text(first) for prefix in prefixes}
        while starts:
            found: dict[bytes, list[Row]] = {}
            following: dict[bytes, bytes] = {}

            async def read(
                prefix: bytes,
                found: dict[bytes, list[Row]] = found,
                following: dict[bytes, bytes] = following,
                starts: Mapping[bytes, bytes] = starts,
            ) -> None:
                page = await self._tables.store.page(
                    self._rule.table,
                    starts[prefix],
                    prefix + text(last) + b"\0",
                    limit=self._limit,
                    columns=self._columns(prefix),
                )
                found[prefix] = page.rows
                if page.next_start is not None:
                    following[prefix] = page.next_start

            await run_bounded(starts, read, limit=CONCURRENT)
            rows = [row for prefix in starts for row in found[prefix]]
            if part := await in_thread(_cells_in(rows), partial(self._part, rows)):
                yield part
            starts = {prefix: following[prefix] for prefix in starts if prefix in following}

    def _columns(self, prefix: bytes) -> list[bytes] | None:
        """Return the columns to read of rows of events, None for all."""
        wanted = self._wanted[prefix]
        if self._rule.template.time is RowTime.DAY or len(wanted) > MOST_COLUMNS:
            return None
        return [COLUMN + field for field in wanted]

    def _part(self, rows: Sequence[Row]) -> Part[T] | None:
        """Return the points of rows, None if there are none."""
        cells: list[tuple[T, StoredCell]] = []
        wrong: list[str] = []
        for row in rows:
            try:
                cells += self._cells(row, wrong)
            except CorruptRow as exc:
                wrong.append(f"row {row.key!r}: {exc}")
        count = _cells_in(rows)
        if count * GROWTH < PART_CELLS:
            self._limit = min(self._limit * GROWTH, MOST_ROWS)
        elif count > PART_CELLS:
            self._limit = max(self._limit // GROWTH, 1)
        return Part(cells, len(rows), wrong) if cells or wrong else None

    def _cells(self, row: Row, wrong: list[str]) -> Iterator[tuple[T, StoredCell]]:
        """Yield the cells of a row that are asked for. Raise CorruptRow."""
        prefix, row_ms = self._rule.template.parse_key(row.key)
        wanted = self._wanted[prefix]
        if self._rule.template.time is RowTime.EVENT:
            for cell in row.cells:
                name = cell.column.removeprefix(COLUMN)
                if name in wanted:
                    yield wanted[name], StoredCell(row.key, cell, row_ms)
            return
        labels = [COLUMN + label for label in self._rule.labels]
        for cell in row.cells:
            if cell.column in labels:
                continue
            try:
                name, offset_ms = parse_day_column(cell.column)
            except CorruptRow as exc:
                wrong.append(f"row {row.key!r}: {exc}")
                continue
            if name in wanted and self._first_ms <= row_ms + offset_ms <= self._last_ms:
                yield wanted[name], StoredCell(row.key, cell, row_ms + offset_ms)


def _cells_in(rows: Sequence[Row]) -> int:
    return sum(len(row.cells) for row in rows)


class Decoded(NamedTuple):
    """Points of one series."""

    points: Points
    wrong: Sequence[str]  # a sentence for each value that cannot be read


def decode(cells: Sequence[StoredCell]) -> Decoded:
    """Return the points of a series' cells in order of time."""
    if not cells:
        return Decoded(NO_POINTS, ())
    wrong: list[str] = []
    try:
        bits, floats = parse_numbers([one.cell.value for one in cells])
    except CorruptRow:
        kept = []
        for one in cells:
            try:
                parse_numbers([one.cell.value])
                kept.append(one)
            except CorruptRow as exc:
                wrong.append(f"row {one.row!r}, column {one.cell.column!r}: {exc}")
        cells = kept
        bits, floats = parse_numbers([one.cell.value for one in cells])
    return Decoded(Points(np.array([one.time_ms for one in cells], np.int64), bits, floats), wrong)

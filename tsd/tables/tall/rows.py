"""Reads of rows: parts of the rows of some prefixes, in order of time, and their points."""

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
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
from tsd.store import CellPage, CellReader, Cursor, Row, cells_of_rows
from tsd.store.retry import run_bounded
from tsd.tables.interned import in_thread
from tsd.tables.tall.tables import TallTables

PREFIXES = 64  # that are scanned concurrently
CONCURRENT = 16  # calls
PART_CELLS = 20_000  # read at once, roughly
PART_BYTES, LEAST_BYTES = 1 << 20, 1 << 14  # of row keys, columns and values: of all prefixes, and of one
FIRST_ROWS, MOST_ROWS = 16, 1000  # of one call
GROWTH = 4
MOST_COLUMNS = 100  # that a call names
MOST_DAYS = 8  # that are read by key
LAST_EVENT_MS = 10**13 - 1

T = TypeVar("T")
U = TypeVar("U")
Wanted = Mapping[bytes, Mapping[bytes, T]]  # what is asked for: by prefix and field


class SeriesCells(NamedTuple, Generic[T]):
    """Cells of one series in order of time, whose values are not read yet."""

    owner: T
    page: CellPage
    places: list[int]  # in the page
    times_ms: list[int]  # of the points

    def rows(self) -> list[bytes]:
        """Return the row key of each cell."""
        return [self.page.keys[place] for place in self.places]

    def columns(self) -> list[bytes]:
        """Return the column of each cell."""
        return [self.page.columns[place] for place in self.places]

    def values(self) -> list[bytes]:
        """Return the value of each cell."""
        ahead, values = self.page.ahead, self.page.values
        return [values[place][ahead:] for place in self.places]

    def by_row(self) -> Iterator[tuple[bytes, "SeriesCells[T]"]]:
        """Yield each row key with the cells of the row."""
        found: dict[bytes, SeriesCells[T]] = {}
        for row, place, time_ms in zip(self.rows(), self.places, self.times_ms, strict=True):
            one = found.setdefault(row, self._replace(places=[], times_ms=[]))
            one.places.append(place)
            one.times_ms.append(time_ms)
        yield from found.items()


class Part(NamedTuple, Generic[T]):
    """Parts of the rows of some prefixes."""

    series: Sequence[SeriesCells[T]]
    wrong: Sequence[str]  # a sentence for each key and column that cannot be read


Rows = CellPage | list[Row]  # parts of the rows of one prefix, or a few rows of several


class Reading(Generic[T]):
    """What is read of one table: points of some series from one time to another, both included."""

    def __init__(self, tables: TallTables, rule: TableRule, wanted: Wanted[T], first_ms: int, last_ms: int) -> None:
        self._store = tables.store
        self._rule = rule
        self._wanted = wanted
        self._first_ms = max(first_ms, 0)
        self._last_ms = min(last_ms, LAST_EVENT_MS)
        self._labels = {COLUMN + label for label in rule.labels}
        self._limit = FIRST_ROWS

    def parts(self) -> AsyncGenerator[Part[T], None]:
        """Yield the points in order of time; no part is empty. Raise StoreError."""
        return self.used(lambda part: part)

    async def used(self, use: Callable[[Part[T]], U]) -> AsyncGenerator[U, None]:
        """Yield what `use` returns for each part. It is called in a thread if the part is large. Raise StoreError."""
        if self._first_ms > self._last_ms:
            return
        template = self._rule.template
        first, last = template.row_time(self._first_ms), template.row_time(self._last_ms)
        if template.time is RowTime.DAY and (last - first) // DAY_MS < MOST_DAYS:
            pages = self._days(first, last)
        else:
            pages = self._scans(first, last)
        async with aclosing(pages):
            async for some in pages:
                found = await in_thread(sum(map(_cells_in, some)), partial(self._used, some, use))
                if found is not None:
                    yield found

    def _used(self, some: list[Rows], use: Callable[[Part[T]], U]) -> U | None:
        """Return what `use` returns for the points of some rows, None if there are none. Empty `some`: freeing cells
        takes long."""
        part = self._part(some)
        some.clear()
        return use(part) if part.series or part.wrong else None

    async def _days(self, first: int, last: int) -> AsyncGenerator[list[Rows], None]:
        """Yield the rows of a few days, which are read by their keys."""
        text = self._rule.template.time_text
        keys = [prefix + text(day) for day in range(first, last + 1, DAY_MS) for prefix in self._wanted]
        at = 0
        while at < len(keys):
            some = keys[at : at + self._limit]
            at += len(some)
            found = await self._store.get(self._rule.table, some)
            rows = [Row(key, found.pop(key)) for key in some if key in found]
            self._adapt(_cells_in(rows))
            yield [rows]

    async def _scans(self, first: int, last: int) -> AsyncGenerator[list[Rows], None]:
        """Yield the rows of all prefixes, some of which are scanned concurrently."""
        # An engine on other machines sends the named columns only, which takes less than all.
        reader = None if self._store.capabilities.shared else self._store.cell_reader
        prefixes = list(self._wanted)
        for start in range(0, len(prefixes), PREFIXES):
            some = prefixes[start : start + PREFIXES]
            scan = self._scan(some, first, last) if reader is None else self._scan_cells(reader, some, first, last)
            async with aclosing(scan) as pages:
                async for found in pages:
                    yield found

    async def _scan(self, prefixes: Sequence[bytes], first: int, last: int) -> AsyncGenerator[list[Rows], None]:
        """Yield the rows of some prefixes."""
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
                page = await self._store.page(
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
            some: list[Rows] = [found.pop(prefix) for prefix in starts]
            self._adapt(sum(map(_cells_in, some)))
            starts = {prefix: following[prefix] for prefix in starts if prefix in following}
            yield some

    async def _scan_cells(
        self, reader: CellReader, prefixes: Sequence[bytes], first: int, last: int
    ) -> AsyncGenerator[list[Rows], None]:
        """Yield the rows of some prefixes from an engine in this process, with all columns."""
        table, text = self._rule.table, self._rule.template.time_text
        limit_bytes = max(PART_BYTES // len(prefixes), LEAST_BYTES)
        starts = {prefix: prefix + text(first) for prefix in prefixes}
        cursors = {prefix: Cursor() for prefix in prefixes}
        while starts:
            some: list[Rows] = []
            for prefix, start in list(starts.items()):
                stop, cursor = prefix + text(last) + b"\0", cursors[prefix]
                page = await reader.read_cells(table, start, stop, limit_bytes=limit_bytes, cursor=cursor)
                some.append(page)
                if page.next_start is None:
                    del starts[prefix], cursors[prefix]
                else:
                    starts[prefix] = page.next_start
                del page  # its cells are freed in the thread that uses them
            yield some

    def _columns(self, prefix: bytes) -> list[bytes] | None:
        """Return the columns to read of rows of events, None for all."""
        wanted = self._wanted[prefix]
        if self._rule.template.time is RowTime.DAY or len(wanted) > MOST_COLUMNS:
            return None
        return [COLUMN + field for field in wanted]

    def _adapt(self, cells: int) -> None:
        """Read more rows with the next calls, or fewer."""
        if cells * GROWTH < PART_CELLS:
            self._limit = min(self._limit * GROWTH, MOST_ROWS)
        elif cells > PART_CELLS:
            self._limit = max(self._limit // GROWTH, 1)

    def _part(self, some: Sequence[Rows]) -> Part[T]:
        """Return the points of some rows. All those of a prefix are in one element."""
        found: list[SeriesCells[T]] = []
        wrong: list[str] = []
        is_event = self._rule.template.time is RowTime.EVENT
        for rows in some:
            page = rows if isinstance(rows, CellPage) else cells_of_rows(rows)
            series: dict[bytes, dict[bytes, SeriesCells[T]]] = {}  # by prefix and column, or field in rows of days
            before, row_ms = b"", 0
            of_row: Mapping[bytes, SeriesCells[T]] = {}
            for place, (key, column) in enumerate(zip(page.keys, page.columns, strict=True)):
                if key != before:
                    before = key
                    try:
                        prefix, row_ms = self._rule.template.parse_key(key)
                    except CorruptRow as exc:
                        wrong.append(f"row {key!r}: {exc}")
                        of_row = {}
                        continue
                    if prefix not in series:
                        series[prefix] = self._series(prefix, page)
                    of_row = series[prefix]
                if is_event:
                    one = of_row.get(column)
                    if one is not None:
                        one.places.append(place)
                        one.times_ms.append(row_ms)
                elif of_row and column not in self._labels:
                    self._add_of_day(of_row, key, column, place, row_ms, wrong)
            found += (one for each in series.values() for one in each.values() if one.places)
        return Part(found, wrong)

    def _series(self, prefix: bytes, page: CellPage) -> dict[bytes, SeriesCells[T]]:
        """Return the series of a prefix without cells: by column, or by field in rows of days. A scan may meet rows of
        prefixes that are not asked for."""
        head, wanted = COLUMN if self._rule.template.time is RowTime.EVENT else b"", self._wanted.get(prefix, {})
        return {head + field: SeriesCells(owner, page, [], []) for field, owner in wanted.items()}

    def _add_of_day(
        self,
        series: Mapping[bytes, SeriesCells[T]],
        key: bytes,
        column: bytes,
        place: int,
        day_ms: int,
        wrong: list[str],
    ) -> None:
        """Add a point of a day's row."""
        try:
            name, offset_ms = parse_day_column(column)
        except CorruptRow as exc:
            wrong.append(f"row {key!r}: {exc}")
            return
        if name in series and self._first_ms <= day_ms + offset_ms <= self._last_ms:
            series[name].places.append(place)
            series[name].times_ms.append(day_ms + offset_ms)


def _cells_in(rows: Rows) -> int:
    return len(rows.keys) if isinstance(rows, CellPage) else sum(len(row.cells) for row in rows)


class Decoded(NamedTuple):
    """Points of one series."""

    points: Points
    wrong: Sequence[str]  # a sentence for each value that cannot be read


NOTHING = Decoded(NO_POINTS, ())


def decode(cells: SeriesCells[T]) -> Decoded:
    """Return the points of a series' cells in order of time."""
    values, times_ms = cells.values(), cells.times_ms
    wrong: list[str] = []
    try:
        bits, floats = parse_numbers(values)
    except CorruptRow:
        kept: list[tuple[bytes, int]] = []
        for row, column, value, time_ms in zip(cells.rows(), cells.columns(), values, times_ms, strict=True):
            try:
                parse_numbers([value])
                kept.append((value, time_ms))
            except CorruptRow as exc:
                wrong.append(f"row {row!r}, column {column!r}: {exc}")
        values, times_ms = [value for value, _ in kept], [time_ms for _, time_ms in kept]
        bits, floats = parse_numbers(values)
    return Decoded(Points(np.array(times_ms, np.int64), bits, floats), wrong)

"""Fills the tables of entities from stored points, and compares the two. Any layout has the points.

Points are written as by ingest, so building again changes nothing. What other programs deleted from the layout's tables
stays in those of entities. The comparison finds it where it lies between stored points, or if no point of its series is
stored.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.entity.records import YEARS_MS, parse_series_column, point_values, split_point_value
from tsd.codec.points import Columns
from tsd.codec.text import decode_number
from tsd.errors import CorruptRow
from tsd.store import Cell, VersionedCells
from tsd.store.versions import Wanted
from tsd.tables.entity.newest import CheckName, EntityColumn, NewestValues, any_name
from tsd.tables.entity.tables import ENTITIES, NEWEST
from tsd.tables.entity.writer import EntityWriter
from tsd.tables.reading import PointReader
from tsd.tables.stored_windows import TextLookup, TimeRange, read_metric
from tsd.tables.writing import Hours, PointWriter, SeriesLookup, SummaryWriter

COMPARED_ROWS = 100  # entities per call of the store
Number = int | float
Series = Mapping[EntityColumn, Mapping[int, Number]]  # numbers by place and time in ms


class StoredAlready(PointWriter):
    """Writes nothing: the layout's tables have the points."""

    cells = 0
    summaries: SummaryWriter | None = None

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        """See PointWriter."""

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        """See PointWriter."""

    async def sync(self) -> None:
        """See PointWriter."""


class EntityBuilder:
    """Writes stored points to the tables of entities."""

    def __init__(
        self,
        reader: PointReader,
        cells: VersionedCells,
        tag: bytes,
        on_points: Callable[[int], None],
        on_warning: Callable[[str], None],
        check_name: CheckName = any_name,
    ) -> None:
        """`tag` names the entity. `on_points` gets numbers of points that were handled. `check_name` raises BadLine for
        an entity whose series are left out, as ingest leaves them out."""
        self._reader = reader
        self._cells = cells
        self._tag = tag
        self._on_points = on_points
        self._on_warning = on_warning
        self._check_name = check_name

    async def run(self, metric: str, span: TimeRange) -> None:
        """Write the points of one metric. Raise StoreError."""
        newest = NewestValues(self._tag, self._check_name)
        writer = EntityWriter(StoredAlready(), self._cells, newest, on_skipped=lambda _: None)

        async def write(points: Columns, lookup: TextLookup) -> None:
            await writer.write(points, lookup)
            self._on_points(len(points.series))

        await read_metric(self._reader, metric, span, write, self._on_warning)


class Difference(NamedTuple):
    """What is wrong with a point in the tables of entities."""

    kind: str  # missing, different, extra; newest: in tsdb-current
    place: EntityColumn
    time_ms: int

    @property
    def same_as(self) -> tuple[EntityColumn, int | None]:
        """What two reads of the same damage have in common: points may come between them."""
        return self.place, None if self.kind == "newest" else self.time_ms

    def __str__(self) -> str:
        column = self.place.column.partition(b":")[2].decode("latin-1")
        return f"{self.kind}: entity {self.place.entity.decode('latin-1')}, {column}, time {self.time_ms} ms"


class EntityChecker:
    """Compares the tables of entities with stored points."""

    def __init__(
        self,
        reader: PointReader,
        cells: VersionedCells,
        tag: bytes,
        settle: Callable[[], Awaitable[object]],
        on_points: Callable[[int], None],
        on_warning: Callable[[str], None],
        check_name: CheckName = any_name,
        kept_from_ms: Callable[[bytes], int] = lambda _: 0,
    ) -> None:
        """`settle` has a daemon finish what it writes: points are in the layout's tables first. `check_name`: see
        EntityBuilder. `kept_from_ms` returns the time before which points of a metric have expired: some tables may
        still have them."""
        self._reader = reader
        self._cells = cells
        self._tag = tag
        self._settle = settle
        self._on_points = on_points
        self._on_warning = on_warning
        self._check_name = check_name
        self._kept_from_ms = kept_from_ms
        # By metric: the time of a point of each series in the tables.
        self._kept: dict[str, dict[EntityColumn, int]] = {}

    async def begin(self, span: TimeRange) -> None:
        """Read which series the tables of entities have, before `run` reads those of the layout."""
        for table in (NEWEST.name, ENTITIES.name):
            at: bytes | None = b""
            while at is not None:
                wanted = Wanted(span.since_ms, min(span.until_ms, YEARS_MS), versions=1)
                page = await self._cells.page_columns(table, at, None, limit=COMPARED_ROWS, wanted=wanted)
                for place, time_ms in zip(page.columns.places, page.columns.times_ms.tolist(), strict=True):
                    metric = parse_series_column(place[1]).metric.decode("latin-1")
                    self._kept.setdefault(metric, {})[EntityColumn(*place)] = time_ms
                at = page.next_start

    def unknown(self, metrics: Collection[str]) -> list[Difference]:
        """Return the series in the tables of entities whose metrics are not among some."""
        left = [metric for metric in self._kept if metric not in metrics]
        return [Difference("extra", *item) for metric in left for item in self._unexpired(metric)]

    def _unexpired(self, metric: str) -> list[tuple[EntityColumn, int]]:
        """Return the series of a metric in the tables of entities, with the time of a point that has not expired."""
        since_ms = self._kept_from_ms(metric.encode("latin-1", "replace"))
        return [(place, at) for place, at in self._kept.get(metric, {}).items() if at >= since_ms]

    async def run(self, metric: str, span: TimeRange) -> list[Difference]:
        """Return what is wrong with the points of one metric. Raise StoreError, CorruptRow.

        Where something seems wrong, all is read again: a daemon may have stored points between two reads. What differs
        both times is wrong.
        """
        found = await self._differences(metric, span, self._on_points, self._on_warning)
        if not found:
            return []
        await self._settle()
        before = {one.same_as for one in found}
        again = await self._differences(metric, span, lambda _: None, lambda _: None)
        return [one for one in again if one.same_as in before]

    async def _differences(
        self, metric: str, span: TimeRange, on_points: Callable[[int], None], on_warning: Callable[[str], None]
    ) -> list[Difference]:
        newest = NewestValues(self._tag, self._check_name)
        span = span._replace(since_ms=max(span.since_ms, self._kept_from_ms(metric.encode("latin-1", "replace"))))
        if span.since_ms >= span.until_ms:
            return []
        found: list[Difference] = []

        async def compare(points: Columns, lookup: TextLookup) -> None:
            marked = await trio.to_thread.run_sync(newest.find, points, lookup)
            newest.add(marked)
            places = newest.places(marked.numbers.tolist())
            stored = await trio.to_thread.run_sync(_by_place, points, places)
            found.extend(await self._compare(ENTITIES.name, stored))
            on_points(len(points.series))

        await read_metric(self._reader, metric, span, compare, on_warning)
        numbers = newest.numbers()
        places = newest.places(numbers.tolist())
        found += await self._compare(NEWEST.name, _by_place(newest.points(numbers), places))
        known = set(places.values())
        return found + [Difference("extra", place, at) for place, at in self._unexpired(metric) if place not in known]

    async def _compare(self, table: str, stored: Series) -> list[Difference]:
        entities: dict[bytes, list[EntityColumn]] = {}
        for place in stored:
            entities.setdefault(place.entity, []).append(place)
        names = list(entities)
        found: list[Difference] = []
        for at in range(0, len(names), COMPARED_ROWS):
            part = names[at : at + COMPARED_ROWS]
            places = [place for name in part for place in entities[name]]
            times = [time for place in places for time in (min(stored[place]), max(stored[place]))]
            until = {"until_ms": max(times) + 1} if table == ENTITIES.name else {}
            wanted = Wanted(min(times), columns={place.column for place in places}, **until)
            rows = await self._cells.get(table, part, wanted)
            kept = await trio.to_thread.run_sync(_numbers_of, rows)
            differ = _differences if table == ENTITIES.name else _stale
            for place in places:
                found += differ(place, stored[place], kept.get(place, {}))
            await trio.lowlevel.checkpoint()
        return found


def _by_place(points: Columns, places: Mapping[int, EntityColumn]) -> Series:
    """Return the numbers of points by place and time. Of equal times the last one counts."""
    found: dict[EntityColumn, dict[int, Number]] = {place: {} for place in places.values()}
    values = point_values(points.flags, points.bits)
    for number, time_ms, value in zip(points.series.tolist(), (points.instants >> 1).tolist(), values, strict=True):
        if number in places:
            found[places[number]][time_ms] = decode_number(*split_point_value(value))
    return {place: numbers for place, numbers in found.items() if numbers}


def _numbers_of(rows: Mapping[bytes, Iterable[Cell]]) -> Series:
    """Return the numbers in the cells of rows. An unreadable one is not equal to any."""
    found: dict[EntityColumn, dict[int, Number]] = {}
    for row, cells in rows.items():
        for column, value, time_ms in cells:
            try:
                number = decode_number(*split_point_value(value))
            except CorruptRow:
                number = np.nan
            found.setdefault(EntityColumn(row, column), {})[time_ms] = number
    return found


def _differences(place: EntityColumn, stored: Mapping[int, Number], kept: Mapping[int, Number]) -> list[Difference]:
    """Compare the points of one series."""
    first, last = min(stored), max(stored)
    found = [
        Difference("different" if time_ms in kept else "missing", place, time_ms)
        for time_ms, number in stored.items()
        if kept.get(time_ms) != number
    ]
    return found + [Difference("extra", place, at) for at in kept if first < at < last and at not in stored]


def _stale(place: EntityColumn, stored: Mapping[int, Number], kept: Mapping[int, Number]) -> list[Difference]:
    """Compare the newest point of one series. One that is newer than the stored points is right: it may be new."""
    [(time_ms, number)] = stored.items()
    if any(at > time_ms for at in kept) or kept.get(time_ms) == number:
        return []
    return [Difference("newest", place, time_ms)]

"""Deletes points from the tables of entities: those of some series in a range of times.

Newest values are corrected first, and what deletes points of a layout deletes those of entities before. So a deletion
that was interrupted is completed by the same one again.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

import numpy as np

from tsd.codec.entity.records import YEARS_MS, EntitySeries, parse_series_column
from tsd.errors import CorruptRow
from tsd.store import Cell, VersionedCells
from tsd.store.retry import run_bounded
from tsd.store.versions import VersionColumns, VersionPut, Wanted
from tsd.tables.entity.newest import EntityColumn, NewestValues
from tsd.tables.entity.tables import ENTITIES, NEWEST
from tsd.tables.retention_task import Amount
from tsd.tables.stored_windows import TimeRange

PAGE_ROWS = 50  # entities that are searched per call of the store
IN_FLIGHT = 4  # entities that are deleted at the same time
STEP_COLUMNS = 10  # of an entity that are read and deleted together
STEP_VERSIONS = 250  # of each: a step of the embedded store takes a few milliseconds
ALWAYS = TimeRange(0, YEARS_MS)


class RowPart(NamedTuple):
    """Versions of some columns of a row."""

    table: str
    row: bytes
    columns: Sequence[bytes]
    span: TimeRange


async def measure(cells: VersionedCells, part: RowPart) -> tuple[Amount, list[int]]:
    """Return what a part has, and the ends of steps that it can be deleted in, the newest first."""
    left, until_ms = list(part.columns), part.span.until_ms
    steps, points, size = [until_ms], 0, 0
    while left:
        wanted = Wanted(part.span.since_ms, until_ms, STEP_VERSIONS, frozenset(left))
        found = await cells.get_columns(part.table, [part.row], wanted)
        left, until_ms = _unfinished(found)
        is_counted = np.ones(len(found.times_ms), np.bool_)
        if left:  # what is before the next step is read again
            is_left = np.repeat([column in left for _, column in found.places], np.diff(found.bounds))
            is_counted = ~is_left | (found.times_ms >= until_ms)
            steps.append(until_ms)
        points += int(is_counted.sum())
        size += int((np.diff(found.ends, prepend=0) + 8)[is_counted].sum())
    return Amount(1 if points else 0, points, size), steps


async def remove_part(cells: VersionedCells, part: RowPart) -> Amount:
    """Delete the oldest versions of a part first, so that a call that fails leaves no gap. Return what it had."""
    amount, steps = await measure(cells, part)
    for until_ms in reversed(steps):
        await cells.delete(part.table, part.row, part.columns, since_ms=part.span.since_ms, until_ms=until_ms)
    return amount


def _unfinished(found: VersionColumns) -> tuple[list[bytes], int]:
    """Return the columns that may have more versions than were read, and the time before which these are."""
    counts = np.diff(found.bounds)
    full = np.flatnonzero(counts >= STEP_VERSIONS)
    if not len(full):
        return [], 0
    return [found.places[at][1] for at in full.tolist()], int(found.times_ms[found.bounds[full]].max())


class Choice(NamedTuple):
    """Which series to delete points of."""

    entity: bytes | None  # None: of any
    passes: Callable[[bytes, EntitySeries], bool]  # by entity and series


class EntityRemoval:
    """Deletes points of entities. Calls raise StoreError, and may be repeated after an error."""

    def __init__(self, cells: VersionedCells, newest: NewestValues | None = None) -> None:
        """`newest`: newest values in memory, to be corrected, too."""
        self._cells = cells
        self._newest = newest

    async def remove_chosen(self, choice: Choice, span: TimeRange) -> int:
        """Delete the points of the chosen series. Return how many there were."""
        points = 0
        for table in (ENTITIES.name, NEWEST.name):  # a series may be in the second one only
            async with aclosing(self._find(table, choice, span)) as pages:
                async for page in pages:
                    points += await self.remove((place, span) for place in page)
        return points

    async def count_chosen(self, choice: Choice, span: TimeRange) -> int:
        """Return how many points `remove_chosen` would delete."""
        points = 0
        async with aclosing(self._find(ENTITIES.name, choice, span)) as pages:
            async for page in pages:
                for part in _parts((place, span) for place in page):
                    points += (await measure(self._cells, part))[0].points
        return points

    async def _find(self, table: str, choice: Choice, span: TimeRange) -> AsyncGenerator[list[EntityColumn], None]:
        """Yield the chosen series that have points, page by page. All columns of the entities are looked at."""
        at: bytes | None = b"" if choice.entity is None else choice.entity
        stop = None if choice.entity is None else choice.entity + b"\0"
        wanted = Wanted(span.since_ms, span.until_ms, versions=1)
        while at is not None:
            page = await self._cells.page_columns(table, at, stop, limit=PAGE_ROWS, wanted=wanted)
            at = page.next_start
            yield [EntityColumn(*place) for place in page.columns.places if _is_chosen(choice, *place)]

    async def remove(self, series: Iterable[tuple[EntityColumn, TimeRange]]) -> int:
        """Delete the points of series within ranges of times. Return how many there were."""
        points = 0

        async def remove(part: RowPart) -> None:
            nonlocal points
            removed = await self._remove(part)
            points += removed

        await run_bounded(_parts(series), remove, limit=IN_FLIGHT)
        return points

    async def _remove(self, part: RowPart) -> int:
        await self._correct_newest(part)
        amount = await remove_part(self._cells, part)
        if self._newest is not None:
            self._newest.remove(part.row, frozenset(part.columns), *part.span)
        return amount.points

    async def _correct_newest(self, part: RowPart) -> None:
        """Replace newest values within the range by those that will be left, if there are any."""
        since_ms, until_ms = part.span
        stored = await self._cells.get(NEWEST.name, [part.row], Wanted(columns=frozenset(part.columns)))
        right = {cell.column for cell in stored.get(part.row, []) if not since_ms <= cell.time_ms < until_ms}
        wrong = [column for column in part.columns if column not in right]
        left = await self._newest_left(part._replace(columns=wrong)) if wrong else {}
        by_start: dict[int, list[bytes]] = {}
        for column in wrong:  # what superseded values the store may still have between the two must not show
            start_ms = min(left[column].time_ms + 1 if column in left else 1, since_ms)  # 0 hides later writes on HBase
            by_start.setdefault(start_ms, []).append(column)
        for start_ms, columns in by_start.items():
            await self._cells.delete(NEWEST.name, part.row, columns, since_ms=start_ms, until_ms=until_ms)
        puts = [VersionPut(part.row, column, cell.value, cell.time_ms) for column, cell in left.items()]
        if puts:
            await self._cells.put(NEWEST.name, puts)

    async def _newest_left(self, part: RowPart) -> Mapping[bytes, Cell]:
        """Return the newest points of columns that are not within the range."""
        found: dict[bytes, Cell] = {}
        for span in (TimeRange(part.span.until_ms, YEARS_MS), TimeRange(0, part.span.since_ms)):
            columns = frozenset(part.columns) - found.keys()
            if columns and span.since_ms < span.until_ms:
                wanted = Wanted(*span, versions=1, columns=columns)
                rows = await self._cells.get(ENTITIES.name, [part.row], wanted)
                found.update((cell.column, cell) for cell in rows.get(part.row, []))
        return found


def _parts(series: Iterable[tuple[EntityColumn, TimeRange]]) -> list[RowPart]:
    """Return parts of rows for series of entities, those of one row and range together."""
    columns: dict[tuple[bytes, TimeRange], dict[bytes, None]] = {}
    for place, span in series:
        columns.setdefault((place.entity, span), {})[place.column] = None
    return [
        RowPart(ENTITIES.name, row, names[at : at + STEP_COLUMNS], span)
        for (row, span), names in ((key, list(found)) for key, found in columns.items())
        for at in range(0, len(names), STEP_COLUMNS)
    ]


def _is_chosen(choice: Choice, row: bytes, column: bytes) -> bool:
    try:
        return choice.passes(row, parse_series_column(column))
    except CorruptRow:  # `tsd entity NAME` reports it
        return False


def with_tags(metric: bytes, tags: Iterable[tuple[bytes, bytes]], tag: bytes) -> Choice:
    """Return the series of a metric that have some tags. `tag` names the entity."""
    wanted = frozenset(tags)
    return Choice(dict(wanted).get(tag), partial(_has_tags, metric, wanted, tag))


def _has_tags(
    metric: bytes, wanted: frozenset[tuple[bytes, bytes]], tag: bytes, entity: bytes, series: EntitySeries
) -> bool:
    return series.metric == metric and wanted <= {*series.tags, (tag, entity)}

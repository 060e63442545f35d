"""Writes and reads the entity tables (FORMATS.md in tsd/codec/entity).

They need a store whose cells keep versions. Every write may be repeated and may come in any order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.entity.records import (
    METADATA,
    SERIES,
    YEARS_MS,
    EntitySeries,
    is_metadata,
    metadata_column,
    metadata_time,
    metadata_value,
    parse_series_column,
    point_value,
    point_values,
    series_column,
    split_point_value,
)
from tsd.codec.text import decode_number
from tsd.store import Cell, Family, Table, VersionedCells
from tsd.store.versions import UNBOUNDED, VersionPut, Wanted
from tsd.tables.entities import Entities, Entity, EntityPage
from tsd.tables.entity.newest import NewestValues

ENTITIES = Table("tsdb-entity", (Family(SERIES, UNBOUNDED), Family(METADATA)))
NEWEST = Table("tsdb-current", (Family(SERIES),))
LOOP_CELLS = 1000  # of a row that are read in the event loop: about 2 ms


class EntityPoint(NamedTuple):
    """One point of an entity, with its number as stored."""

    entity: bytes
    series: EntitySeries
    time_ms: int
    flags: int
    value: bytes


class EntityTables(Entities):
    """The two tables of entities. Calls raise StoreError, and CorruptRow for damaged cells."""

    def __init__(self, cells: VersionedCells, newest: NewestValues | None = None) -> None:
        """`newest`: newest values that may not be stored yet."""
        self._cells = cells
        self._newest = newest

    async def create(self) -> list[str]:
        """Create the missing tables and return their names."""
        return await self._cells.create_tables([ENTITIES, NEWEST])

    async def write(self, points: Iterable[EntityPoint]) -> None:
        """Write points to both tables. If the call fails, one of them may have more points: repeat it."""
        puts: list[VersionPut] = []
        newest: dict[tuple[bytes, bytes], VersionPut] = {}
        for entity, series, time_ms, flags, value in points:
            put = VersionPut(entity, series_column(series), point_value(flags, value), time_ms)
            puts.append(put)
            place = entity, put.column
            if place not in newest or newest[place].time_ms <= time_ms:
                newest[place] = put
        await self._cells.put(ENTITIES.name, puts)
        await self._cells.put(NEWEST.name, list(newest.values()))

    async def put_metadata(self, entity: bytes, values: Mapping[bytes, str], written_ms: int) -> None:
        """Write metadata. Values with other keys stay. Raise BadLine for an illegal key or a long value."""
        time_ms = metadata_time(written_ms)
        puts = [VersionPut(entity, metadata_column(key), metadata_value(text), time_ms) for key, text in values.items()]
        await self._cells.put(ENTITIES.name, puts)

    async def metadata(self, name: bytes) -> Mapping[str, str]:
        """See Entities."""
        return (await _entity(name, await self._get(name, Wanted(YEARS_MS)))).metadata

    async def delete_metadata(self, entity: bytes, keys: Collection[bytes]) -> None:
        """Delete metadata."""
        await self._cells.delete(ENTITIES.name, entity, [metadata_column(key) for key in keys])

    async def read(
        self, name: bytes, start_ms: int, end_ms: int | None = None, *, versions: int | None = None
    ) -> Entity | None:
        """Return the points of an entity from `start_ms` to before `end_ms`, of each series the newest `versions`
        (None: all), and its metadata. None if it has neither. Without an end this is one call of the store."""
        if end_ms is None:
            cells = await self._get(name, Wanted(start_ms, versions=versions))
            return await _entity(name, cells) if cells else None
        found: dict[str, list[Cell]] = {}

        async def get(part: str, wanted: Wanted) -> None:
            found[part] = await self._get(name, wanted)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(get, "points", Wanted(start_ms, min(end_ms, YEARS_MS), versions)))
            nursery.start_soon(partial(get, "metadata", Wanted(YEARS_MS)))
        cells = found["metadata"] + found["points"]
        return await _entity(name, cells) if cells else None

    async def _get(self, name: bytes, wanted: Wanted) -> list[Cell]:
        return (await self._cells.get(ENTITIES.name, [name], wanted)).get(name, [])

    async def scan(self, start: bytes, stop: bytes | None, start_ms: int, end_ms: int, *, limit: int) -> EntityPage:
        """See Entities."""
        wanted = Wanted(start_ms, min(end_ms, YEARS_MS))
        page = await self._cells.page(ENTITIES.name, start, stop, limit=limit, wanted=wanted)
        return EntityPage([await _entity(row.key, row.cells) for row in page.rows], page.next_start)

    async def newest(self, start: bytes, stop: bytes | None, *, limit: int) -> EntityPage:
        """Return the newest value of each series of up to `limit` entities, from the name `start` to before `stop`."""
        page = await self._cells.page(NEWEST.name, start, stop, limit=limit)
        rows = {row.key: row.cells for row in page.rows}
        names, next_start = list(rows), page.next_start
        if self._newest is not None:
            end = stop if next_start is None else next_start
            merged = sorted({*names, *islice(self._newest.names(start, end), limit + 1)})
            names, more = merged[:limit], merged[limit:]
            next_start = more[0] if more else next_start
        return EntityPage([await self._newest_of(name, rows.get(name, [])) for name in names], next_start)

    async def _newest_of(self, name: bytes, cells: list[Cell]) -> Entity:
        """Return the newest values of an entity: those stored, and later ones in memory."""
        numbers = self._newest.of_entity(name) if self._newest is not None else {}
        if self._newest is None or not numbers:
            return await _entity(name, cells)
        points = self._newest.points(np.fromiter(numbers.values(), np.int32, len(numbers)))
        found = {cell.column: cell for cell in cells}
        times_ms = (points.instants >> 1).tolist()
        for column, time_ms, value in zip(numbers, times_ms, point_values(points.flags, points.bits), strict=True):
            if column not in found or found[column].time_ms <= time_ms:
                found[column] = Cell(column, value, time_ms)
        return await _entity(name, [found[column] for column in sorted(found)])


async def _entity(name: bytes, cells: Sequence[Cell]) -> Entity:
    """Return what the cells of a row say. Those of a long row are read in a thread."""
    if len(cells) > LOOP_CELLS:
        return await trio.to_thread.run_sync(_decoded, name, cells)
    await trio.lowlevel.cancel_shielded_checkpoint()
    return _decoded(name, cells)


def _decoded(name: bytes, cells: Iterable[Cell]) -> Entity:
    metadata: dict[str, str] = {}
    columns: dict[bytes, list[tuple[int, int | float]]] = {}
    for column, value, time_ms in cells:
        if is_metadata(column):
            metadata[column.partition(b":")[2].decode("latin-1")] = value.decode("utf-8", "replace")
        else:
            columns.setdefault(column, []).append((time_ms, decode_number(*split_point_value(value))))
    return Entity(name, metadata, {_series_of(column): points[::-1] for column, points in columns.items()})


@lru_cache(100_000)
def _series_of(column: bytes) -> EntitySeries:
    """Return the series of a column; many entities have the same."""
    return parse_series_column(column)

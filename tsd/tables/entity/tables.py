"""Writes and reads the entity tables (FORMATS.md in tsd/codec/entity).

They need a store whose cells keep versions. Every write may be repeated and may come in any order.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import partial
from typing import NamedTuple

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
    series_column,
    split_point_value,
)
from tsd.codec.text import decode_number
from tsd.store import Cell, Family, Table, VersionedCells
from tsd.store.versions import UNBOUNDED, VersionPut, Wanted

ENTITIES = Table("tsdb-entity", (Family(SERIES, UNBOUNDED), Family(METADATA)))
NEWEST = Table("tsdb-current", (Family(SERIES),))


class EntityPoint(NamedTuple):
    """One point of an entity, with its number as stored."""

    entity: bytes
    series: EntitySeries
    time_ms: int
    flags: int
    value: bytes


class Entity(NamedTuple):
    """What one row says. Points are pairs of a time in Unix milliseconds and a number, in order of their times."""

    name: bytes
    metadata: Mapping[str, str]
    series: Mapping[EntitySeries, list[tuple[int, int | float]]]


class EntityPage(NamedTuple):
    """A part of all entities, and the name that starts the next part, None after the last one."""

    entities: list[Entity]
    next_start: bytes | None


class EntityTables:
    """The two tables of entities. Calls raise StoreError, and CorruptRow for damaged cells."""

    def __init__(self, cells: VersionedCells) -> None:
        self._cells = cells

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
            return _entity(name, cells) if cells else None
        found: dict[str, list[Cell]] = {}

        async def get(part: str, wanted: Wanted) -> None:
            found[part] = await self._get(name, wanted)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(get, "points", Wanted(start_ms, min(end_ms, YEARS_MS), versions)))
            nursery.start_soon(partial(get, "metadata", Wanted(YEARS_MS)))
        cells = found["metadata"] + found["points"]
        return _entity(name, cells) if cells else None

    async def _get(self, name: bytes, wanted: Wanted) -> list[Cell]:
        return (await self._cells.get(ENTITIES.name, [name], wanted)).get(name, [])

    async def newest(self, start: bytes, stop: bytes | None, *, limit: int) -> EntityPage:
        """Return the newest value of each series of up to `limit` entities, from the name `start` to before `stop`."""
        page = await self._cells.page(NEWEST.name, start, stop, limit=limit)
        return EntityPage([_entity(row.key, row.cells) for row in page.rows], page.next_start)


def _entity(name: bytes, cells: Iterable[Cell]) -> Entity:
    """Return what the cells of a row say."""
    metadata: dict[str, str] = {}
    columns: dict[bytes, list[tuple[int, int | float]]] = {}
    for column, value, time_ms in cells:
        if is_metadata(column):
            metadata[column.partition(b":")[2].decode("latin-1")] = value.decode("utf-8", "replace")
        else:
            columns.setdefault(column, []).append((time_ms, decode_number(*split_point_value(value))))
    return Entity(name, metadata, {parse_series_column(column): points[::-1] for column, points in columns.items()})

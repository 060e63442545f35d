"""Writes and reads the entity tables (FORMATS.md in tsd/codec/entity).

They need a store whose cells keep versions. Every write may be repeated and may come in any order.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.entity.records import (
    METADATA,
    SERIES,
    YEARS_MS,
    EntitySeries,
    join_values,
    metadata_column,
    metadata_time,
    metadata_value,
    point_value,
    series_column,
    split_values,
)
from tsd.errors import WrongTable
from tsd.store import Family, Table, VersionedCells
from tsd.store.versions import UNBOUNDED, VersionColumns, VersionPut, Wanted
from tsd.tables.entities import Entities, Entity, EntityPage, OpenSeriesSource
from tsd.tables.entity.decode import decode_rows, series_of
from tsd.tables.entity.encode import encode
from tsd.tables.entity.newest import CheckName, EntityColumn, NewestValues, any_name

ENTITIES = Table("tsdb-entity", (Family(SERIES, UNBOUNDED), Family(METADATA)))
NEWEST = Table("tsdb-current", (Family(SERIES),))
LOOP_CELLS, LOOP_COLUMNS = 10_000, 1000  # that are read in the event loop: about 2 ms
LOOP_SERIES = 1000  # whose newest values are taken from memory between two checkpoints


async def check_tables(cells: VersionedCells) -> None:
    """Raise NoTable for a missing table, WrongTable for one that keeps another number of versions."""
    for table in (ENTITIES, NEWEST):
        stored = await cells.families(table.name)
        for name, versions, _ in table.families:
            if stored.get(name) != versions:
                got = f"VERSIONS => {stored[name]}" if name in stored else "no such family"
                wanted = f"wanted VERSIONS => {versions}: alter the table in the store's own shell"
                raise WrongTable(f"table {table.name}, family {name.decode()}: got {got}, {wanted}")


class EntityPoint(NamedTuple):
    """One point of an entity, with its number as stored."""

    entity: bytes
    series: EntitySeries
    time_ms: int
    flags: int
    value: bytes


class EntityTables(Entities):
    """The two tables of entities. Calls raise StoreError, and CorruptRow for damaged cells."""

    def __init__(
        self,
        cells: VersionedCells,
        newest: NewestValues | None = None,
        is_kept: Callable[[bytes, int], bool] | None = None,
        check_name: CheckName = any_name,
    ) -> None:
        """`newest`: newest values that may not be stored yet. `is_kept`: whether a point of a metric at a time in
        ms has not expired. None: all are kept. `check_name` raises BadLine for the name of an entity."""
        self._cells = cells
        self._newest = newest
        self._is_kept = is_kept
        self._check_name = check_name
        self._open: OpenSeriesSource | None = None

    async def create(self) -> list[str]:
        """Create the missing tables and return their names."""
        return await self._cells.create_tables([ENTITIES, NEWEST])

    async def check(self) -> None:
        """See Entities."""
        await check_tables(self._cells)

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
        self._check_name(entity)
        time_ms = metadata_time(written_ms)
        puts = [VersionPut(entity, metadata_column(key), metadata_value(text), time_ms) for key, text in values.items()]
        await self._cells.put(ENTITIES.name, puts)

    async def metadata(self, name: bytes) -> Mapping[str, str]:
        """See Entities."""
        found = await _entities(await self._cells.get_columns(ENTITIES.name, [name], Wanted(YEARS_MS)))
        return found[0].metadata if found else {}

    async def delete_metadata(self, entity: bytes, keys: Collection[bytes]) -> None:
        """Delete metadata."""
        await self._cells.delete(ENTITIES.name, entity, [metadata_column(key) for key in keys])

    async def read(
        self,
        name: bytes,
        start_ms: int,
        end_ms: int | None = None,
        *,
        versions: int | None = None,
        limit_bytes: int | None = None,
    ) -> Entity | None:
        """See Entities. Open points are taken before the store is read: they may be written in between."""
        opened = (await self._open_points([name], start_ms, end_ms)).get(name)
        stored = await self._stored(name, start_ms, end_ms, versions, limit_bytes)
        if stored is None:
            stored = None if opened is None else Entity(name, {}, {})
        if stored is None or opened is None:
            return stored
        return await trio.to_thread.run_sync(_with_open, stored, opened, versions)

    async def _stored(
        self, name: bytes, start_ms: int, end_ms: int | None, versions: int | None, limit_bytes: int | None
    ) -> Entity | None:
        """Return the stored points and the metadata of an entity."""
        if end_ms is None:
            return await self._read(name, Wanted(start_ms, versions=versions, limit_bytes=limit_bytes))
        found: dict[str, Entity | None] = {}

        async def read(part: str, wanted: Wanted) -> None:
            found[part] = await self._read(name, wanted._replace(limit_bytes=limit_bytes))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(read, "points", Wanted(start_ms, min(end_ms, YEARS_MS), versions)))
            nursery.start_soon(partial(read, "metadata", Wanted(YEARS_MS)))
        points, metadata = found["points"], found["metadata"]
        if points is None or metadata is None:
            return points or metadata
        return points._replace(metadata=metadata.metadata)

    async def _read(self, name: bytes, wanted: Wanted) -> Entity | None:
        found = await _entities(await self._cells.get_columns(ENTITIES.name, [name], wanted))
        return found[0] if found else None

    async def scan(
        self,
        start: bytes,
        stop: bytes | None,
        start_ms: int,
        end_ms: int,
        *,
        limit: int,
        limit_bytes: int | None = None,
    ) -> EntityPage:
        """See Entities."""
        names = [] if self._newest is None else list(islice(self._newest.names(start, stop), limit + 1))
        opened = await self._open_points(names, start_ms, end_ms)
        wanted = Wanted(start_ms, min(end_ms, YEARS_MS), limit_bytes=limit_bytes)
        page = await self._cells.page_columns(ENTITIES.name, start, stop, limit=limit, wanted=wanted)
        stored = {entity.name: entity for entity in await _entities(page.columns)}
        ends = [name for name in (page.next_start, *names[limit:]) if name is not None]
        end = min(ends, default=None)
        merged = sorted({*stored, *opened})
        whole = [name for name in merged if end is None or name < end]
        if len(whole) > limit:
            end = whole[limit]
        none = Entity(b"", {}, {})

        def join() -> list[Entity]:
            chosen = [(name, stored.get(name, none._replace(name=name))) for name in whole[:limit]]
            return [_with_open(entity, opened.get(name), None) for name, entity in chosen]

        return EntityPage(await trio.to_thread.run_sync(join), end)

    def include_open_points(self, source: OpenSeriesSource) -> None:
        """See Entities."""
        self._open = source

    async def _open_points(self, names: Sequence[bytes], start_ms: int, end_ms: int | None) -> dict[bytes, Entity]:
        """Return the points of entities that are not stored, of those entities that have any in the range."""
        if self._open is None or self._newest is None:
            return {}
        places = {
            number: EntityColumn(name, column)
            for name in names
            for number, column in self._newest.of_entity(name).items()
        }
        columns = await self._open.open_series(np.fromiter(places, np.int32, len(places)))
        times = columns.instants >> 1
        columns = columns.at((times >= start_ms) & (times < (YEARS_MS if end_ms is None else end_ms)))
        if not len(columns.series):
            return {}
        found = await trio.to_thread.run_sync(lambda: decode_rows(encode(columns, places)))
        return {entity.name: entity for entity in found}

    async def newest(self, start: bytes, stop: bytes | None, *, limit: int) -> EntityPage:
        """Return the newest value of each series of up to `limit` entities, from the name `start` to before `stop`."""
        page = await self._cells.page_columns(NEWEST.name, start, stop, limit=limit)
        stored = {entity.name: entity for entity in await _entities(page.columns)}
        if self._newest is None:
            return EntityPage(self._unexpired(stored.values()), page.next_start)
        end = stop if page.next_start is None else page.next_start
        merged = sorted({*stored, *islice(self._newest.names(start, end), limit + 1)})
        names, more = merged[:limit], merged[limit:]
        newer = await self._in_memory(names)
        entities = [_later(stored.get(name), newer.get(name)) for name in names if name in stored or name in newer]
        return EntityPage(self._unexpired(entities), more[0] if more else page.next_start)

    def _unexpired(self, entities: Iterable[Entity]) -> list[Entity]:
        """Return the entities with newest values that have not expired: those in memory outlive their points."""
        is_kept = self._is_kept
        if is_kept is None:
            return list(entities)
        found: list[Entity] = []
        for entity in entities:
            gone = [one for one, points in entity.series.items() if not is_kept(one.metric, points[-1][0])]
            if not gone:
                found.append(entity)
            elif len(gone) < len(entity.series):
                kept = {one: points for one, points in entity.series.items() if one not in gone}
                found.append(entity._replace(series=kept))
        return found

    async def newest_of(
        self, places: Collection[tuple[bytes, EntitySeries]]
    ) -> dict[tuple[bytes, EntitySeries], tuple[int, int | float]]:
        """Return the newest points of series of entities, of those that have any."""
        if not places:
            return {}
        names = sorted({name for name, _ in places})
        wanted = Wanted(columns={series_column(series) for _, series in places})
        columns = await self._cells.get_columns(NEWEST.name, names, wanted)
        stored = {entity.name: entity for entity in await _entities(columns)}
        newer = {} if self._newest is None else await self._in_memory(names, wanted.columns)
        merged = self._unexpired(_later(stored.get(name), newer.get(name)) for name in {*stored, *newer})
        points = {(entity.name, one): found[-1] for entity in merged for one, found in entity.series.items()}
        return {place: points[place] for place in places if place in points}

    async def _in_memory(self, names: Sequence[bytes], columns: Collection[bytes] | None = None) -> dict[bytes, Entity]:
        """Return the newest values of entities in memory, those of some columns or of all."""
        assert self._newest is not None
        found: dict[bytes, Entity] = {}
        places: list[tuple[bytes, Mapping[int, bytes]]] = []
        seen = 0
        for name in names:
            numbers = self._newest.unstored_of(name)
            seen += 1 + len(self._newest.of_entity(name))
            if columns is not None:
                numbers = {number: column for number, column in numbers.items() if column in columns}
            if numbers:
                places.append((name, numbers))
            if seen >= LOOP_SERIES:
                found.update(self._points_in_memory(places))
                await trio.lowlevel.checkpoint()
                places, seen = [], 0
        found.update(self._points_in_memory(places))
        await trio.lowlevel.cancel_shielded_checkpoint()
        return found

    def _points_in_memory(self, places: Sequence[tuple[bytes, Mapping[int, bytes]]]) -> dict[bytes, Entity]:
        """Return the newest values of entities, whose columns by the numbers of their series are given."""
        assert self._newest is not None
        chosen = [number for _, numbers in places for number in numbers]
        if not chosen:
            return {}
        points = self._newest.points(np.array(chosen, np.int32))
        lengths, values = join_values(points.flags, points.bits)
        pairs = iter(zip((points.instants >> 1).tolist(), split_values(np.cumsum(lengths), values), strict=True))
        return {name: Entity(name, {}, _newest_series(numbers, pairs)) for name, numbers in places}


def _newest_series(
    columns: Mapping[int, bytes], pairs: Iterator[tuple[int, int | float]]
) -> dict[EntitySeries, list[tuple[int, int | float]]]:
    """Return the next newest points by series. Two numbers may be the same series."""
    found: dict[EntitySeries, list[tuple[int, int | float]]] = {}
    for column in columns.values():
        pair, series = next(pairs), series_of(column)
        if series not in found or found[series][0][0] <= pair[0]:
            found[series] = [pair]
    return found


def _with_open(stored: Entity, opened: Entity | None, versions: int | None) -> Entity:
    """Return an entity with its open points. Of two points of one time the open one counts."""
    if opened is None:
        return stored
    series = dict(stored.series)
    for one, points in opened.series.items():
        before = series.get(one, [])
        if before and points and before[-1][0] >= points[0][0]:
            merged = sorted(dict([*before, *points]).items())
        else:
            merged = before + points
        series[one] = merged if versions is None else merged[-versions:]
    return stored._replace(series=series)


def _later(stored: Entity | None, newer: Entity | None) -> Entity:
    """Return the newest values of an entity from those stored and those in memory."""
    if stored is None or newer is None:
        found = stored or newer
        assert found is not None
        return found
    series = dict(stored.series)
    for one, points in newer.series.items():
        if one not in series or series[one][-1][0] <= points[-1][0]:
            series[one] = points
    return stored._replace(series=series)


async def _entities(columns: VersionColumns) -> list[Entity]:
    """Return what rows say. Long ones are read in a thread."""
    if len(columns.times_ms) > LOOP_CELLS or len(columns.places) > LOOP_COLUMNS:
        return await trio.to_thread.run_sync(decode_rows, columns)
    await trio.lowlevel.cancel_shielded_checkpoint()
    return decode_rows(columns)

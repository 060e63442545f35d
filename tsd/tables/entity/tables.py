"""Reads the entity tables, and writes their metadata (FORMATS.md in tsd/codec/entity).

They need a store whose cells keep versions. Every write may be repeated and may come in any order.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import itemgetter
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
    series_column,
)
from tsd.codec.points import Columns, joined_columns
from tsd.errors import WrongTable
from tsd.store import Family, Table, VersionedCells
from tsd.store.versions import (
    END_MS,
    UNBOUNDED,
    VersionColumns,
    VersionPage,
    VersionPut,
    Wanted,
    columns_of,
    concatenate,
    first_rows,
    merged,
    select,
    take,
)
from tsd.tables.entities import Entities, Entity, OpenSeriesSource
from tsd.tables.entity.encode import encode
from tsd.tables.entity.newest import CheckName, EntityColumn, NewestValues, any_name
from tsd.tables.entity_decode import decode_rows, series_of

ENTITIES = Table("tsdb-entity", (Family(SERIES, UNBOUNDED), Family(METADATA)))
NEWEST = Table("tsdb-current", (Family(SERIES),))
LOOP_SERIES = 1000  # whose newest values are taken from memory between two checkpoints
NO_VERSIONS = columns_of([])


async def check_tables(cells: VersionedCells) -> None:
    """Raise NoTable for a missing table, WrongTable for one that keeps another number of versions."""
    for table in (ENTITIES, NEWEST):
        stored = await cells.families(table.name)
        for name, versions, _ in table.families:
            if stored.get(name) != versions:
                got = f"VERSIONS => {stored[name]}" if name in stored else "no such family"
                wanted = f"wanted VERSIONS => {versions}: alter the table in the store's own shell"
                raise WrongTable(f"table {table.name}, family {name.decode()}: got {got}, {wanted}")


class EntityPage(NamedTuple):
    """A part of all entities in order of their names, and the name that starts the next part, None after the last."""

    entities: list[Entity]
    next_start: bytes | None


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

    async def put_metadata(self, entity: bytes, values: Mapping[bytes, str], written_ms: int) -> None:
        """Write metadata. Values with other keys stay. Raise BadLine for an illegal key or a long value."""
        self._check_name(entity)
        time_ms = metadata_time(written_ms)
        puts = [VersionPut(entity, metadata_column(key), metadata_value(text), time_ms) for key, text in values.items()]
        await self._cells.put(ENTITIES.name, puts)

    async def metadata(self, name: bytes) -> Mapping[str, str]:
        """See Entities."""
        columns = await self._cells.get_columns(ENTITIES.name, [name], Wanted(YEARS_MS))
        found = await trio.to_thread.run_sync(decode_rows, columns)
        return found[0].metadata if found else {}

    async def delete_metadata(self, entity: bytes, keys: Collection[bytes]) -> None:
        """Delete metadata."""
        await self._cells.delete(ENTITIES.name, entity, [metadata_column(key) for key in keys])

    async def read(
        self, name: bytes, start_ms: int, end_ms: int | None = None, *, versions: int | None = None
    ) -> Entity | None:
        """Return what `read_columns` returns, decoded; None if that is nothing."""
        columns = await self.read_columns(name, start_ms, end_ms, versions=versions)
        found = await trio.to_thread.run_sync(decode_rows, columns)
        return found[0] if found else None

    async def read_columns(
        self,
        name: bytes,
        start_ms: int,
        end_ms: int | None = None,
        *,
        versions: int | None = None,
        limit_bytes: int | None = None,
    ) -> VersionColumns:
        """See Entities. Open points are taken before the store is read: they may be written in between."""
        opened = await self._open_points([name], start_ms, end_ms)
        stored = await self._stored(name, start_ms, end_ms, versions, limit_bytes)
        if not opened.places:
            return stored
        return await trio.to_thread.run_sync(lambda: select(merged(stored, opened), END_MS, versions))

    async def _stored(
        self, name: bytes, start_ms: int, end_ms: int | None, versions: int | None, limit_bytes: int | None
    ) -> VersionColumns:
        """Return the metadata and the stored points of an entity."""
        if end_ms is None:
            wanted = Wanted(start_ms, versions=versions, limit_bytes=limit_bytes)
            return await self._cells.get_columns(ENTITIES.name, [name], wanted)
        found: dict[str, VersionColumns] = {}

        async def read(part: str, wanted: Wanted) -> None:
            found[part] = await self._cells.get_columns(ENTITIES.name, [name], wanted._replace(limit_bytes=limit_bytes))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(read, "points", Wanted(start_ms, min(end_ms, YEARS_MS), versions)))
            nursery.start_soon(partial(read, "metadata", Wanted(YEARS_MS)))
        return concatenate([found["metadata"], found["points"]])

    async def scan(
        self,
        start: bytes,
        stop: bytes | None,
        start_ms: int,
        end_ms: int,
        *,
        limit: int,
        limit_bytes: int | None = None,
    ) -> VersionPage:
        """See Entities."""
        names = [] if self._newest is None else list(islice(self._newest.names(start, stop), limit + 1))
        opened = await self._open_points(names, start_ms, end_ms)
        wanted = Wanted(start_ms, min(end_ms, YEARS_MS), limit_bytes=limit_bytes)
        page = await self._cells.page_columns(ENTITIES.name, start, stop, limit=limit, wanted=wanted)
        end = min((name for name in (page.next_start, *names[limit:]) if name is not None), default=None)

        def join() -> VersionPage:
            return first_rows(merged(page.columns, opened) if opened.places else page.columns, limit, end)

        return await trio.to_thread.run_sync(join)

    def include_open_points(self, source: OpenSeriesSource) -> None:
        """See Entities."""
        self._open = source

    async def _open_points(self, names: Sequence[bytes], start_ms: int, end_ms: int | None) -> VersionColumns:
        """Return the points of entities that are not stored, in no order of places."""
        if self._open is None or self._newest is None:
            return NO_VERSIONS
        places = {
            number: EntityColumn(name, column)
            for name in names
            for number, column in self._newest.of_entity(name).items()
        }
        numbers = np.fromiter(places, np.int32, len(places))
        columns = await self._open.open_series(numbers, self._newest.generations(numbers))
        if not len(columns.series):
            return NO_VERSIONS
        times = columns.instants >> 1
        columns = columns.at((times >= start_ms) & (times < (YEARS_MS if end_ms is None else end_ms)))
        if not len(columns.series):
            return NO_VERSIONS
        return await trio.to_thread.run_sync(encode, columns, places)

    async def newest(self, start: bytes, stop: bytes | None, *, limit: int) -> EntityPage:
        """Return what `newest_columns` returns, decoded."""
        page = await self.newest_columns(start, stop, limit=limit)
        return EntityPage(await trio.to_thread.run_sync(decode_rows, page.columns), page.next_start)

    async def newest_columns(self, start: bytes, stop: bytes | None, *, limit: int) -> VersionPage:
        """See Entities: the newest value of each series."""
        page = await self._cells.page_columns(NEWEST.name, start, stop, limit=limit)
        if self._newest is None:
            return page._replace(columns=await self._unexpired(page.columns))
        end = stop if page.next_start is None else page.next_start
        names = list(islice(self._newest.names(start, end), limit + 1))
        both = [page.columns, await self._in_memory(names)]
        if both[1].places:
            end = min((name for name in (page.next_start, *names[limit:]) if name is not None), default=None)
            page = page._replace(columns=NO_VERSIONS)  # its many objects are freed in the thread
            page = await trio.to_thread.run_sync(lambda: first_rows(_latest(both.pop(0), both.pop(0)), limit, end))
        return page._replace(columns=await self._unexpired(page.columns))

    async def _unexpired(self, columns: VersionColumns) -> VersionColumns:
        """Return the newest values that have not expired: those in memory outlive their points."""
        is_kept = self._is_kept
        if is_kept is None:
            return columns

        def choose() -> VersionColumns:
            pairs = zip(columns.places, columns.times_ms.tolist(), strict=True)
            kept = np.array([is_kept(series_of(column).metric, time_ms) for (_, column), time_ms in pairs], np.bool_)
            return columns if kept.all() else take(columns, np.flatnonzero(kept))

        return await trio.to_thread.run_sync(choose)

    async def newest_of(
        self, places: Collection[tuple[bytes, EntitySeries]]
    ) -> dict[tuple[bytes, EntitySeries], tuple[int, int | float]]:
        """Return the newest points of series of entities, of those that have any."""
        if not places:
            return {}
        names = sorted({name for name, _ in places})
        wanted = Wanted(columns={series_column(series) for _, series in places})
        columns = await self._cells.get_columns(NEWEST.name, names, wanted)
        newer = NO_VERSIONS if self._newest is None else await self._in_memory(names, wanted.columns)
        columns = await self._unexpired(await trio.to_thread.run_sync(_latest, columns, newer))
        found = await trio.to_thread.run_sync(decode_rows, columns)
        points = {(entity.name, one): held[-1] for entity in found for one, held in entity.series.items()}
        return {place: points[place] for place in places if place in points}

    async def _in_memory(self, names: Sequence[bytes], columns: Collection[bytes] | None = None) -> VersionColumns:
        """Return the newest values in memory of entities, of some columns or of all, that are not in the table."""
        assert self._newest is not None
        places: list[tuple[bytes, bytes]] = []
        numbers: list[int] = []
        parts: list[Columns] = []
        seen = 0
        for name in names:
            found = self._newest.unstored_of(name)
            seen += 1 + len(self._newest.of_entity(name))
            if columns is not None:
                found = {number: column for number, column in found.items() if column in columns}
            for number, column in sorted(found.items(), key=itemgetter(1)):
                places.append((name, column))
                numbers.append(number)
            if seen >= LOOP_SERIES:
                parts.append(self._newest.points(np.array(numbers, np.int32)))
                await trio.lowlevel.checkpoint()
                numbers, seen = [], 0
        if not places:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return NO_VERSIONS
        parts.append(self._newest.points(np.array(numbers, np.int32)))
        return await trio.to_thread.run_sync(_encoded, places, joined_columns(parts))


def _encoded(places: list[tuple[bytes, bytes]], points: Columns) -> VersionColumns:
    """Return columns with one version each. A place may occur twice."""
    lengths, values = join_values(points.flags, points.bits)
    return VersionColumns(places, np.arange(len(places) + 1), points.instants >> 1, np.cumsum(lengths), values)


def _latest(stored: VersionColumns, newer: VersionColumns) -> VersionColumns:
    """Return the latest version of each place; of equal times the one of `newer`."""
    if not newer.places:
        return stored
    if stored.places == newer.places and (newer.times_ms >= stored.times_ms).all():
        return newer
    return select(merged(stored, newer), END_MS, 1)

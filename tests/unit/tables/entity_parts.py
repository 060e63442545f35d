"""A layout's writer and resolver, around which the tables of entities are tested, and points written without them."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from tsd.codec.entity.records import EntitySeries, point_value, series_column
from tsd.codec.points import Columns, Int32, Int64
from tsd.store.versions import VersionedCells, VersionPut
from tsd.tables.entity.tables import ENTITIES, NEWEST, EntityTables
from tsd.tables.writing import Hours, PointWriter, SeriesKey, SeriesKeys, SeriesLookup, SeriesText, SummaryWriter

TEXTS = [SeriesText(b"sys.cpu", b"host=a"), SeriesText(b"sys.cpu", b"dc=eu"), SeriesText(b"sys.cpu", b"host=b")]


class Inner(PointWriter):
    """Keeps the points."""

    def __init__(self) -> None:
        self.written: list[Columns] = []

    @property
    def cells(self) -> int:
        return len(self.written)

    @property
    def summaries(self) -> SummaryWriter | None:
        return None

    async def write(self, points: Columns, series: SeriesLookup, *, hours: Hours = Hours.OPEN) -> None:
        self.written.append(points)

    async def record(self, points: Columns, series: SeriesLookup) -> None:
        pass

    async def sync(self) -> None:
        pass


class Lookup:
    """Series by their numbers; `generation` changes when numbers are reused."""

    def __init__(self, texts: Sequence[SeriesText] = TEXTS, generation: int = 1) -> None:
        self._texts = texts
        self._generation = generation

    def keys(self, numbers: Int32) -> SeriesKeys:
        return SeriesKeys.of(SeriesKey(b"k", b"") for _ in numbers)

    def text(self, number: int) -> SeriesText | None:
        return self._texts[number]

    def generations(self, numbers: Int32) -> Int64:
        return np.full(len(numbers), self._generation, np.int64)


def points(*given: tuple[int, int, int]) -> Columns:
    """Return points of (series, time in seconds, value)."""
    series, times, values = map(np.array, zip(*given, strict=True))
    return Columns(series.astype(np.int32), times * 2000, np.zeros(len(series), np.uint8), values)


class EntityPoint(NamedTuple):
    """One point of an entity, with its number as stored."""

    entity: bytes
    series: EntitySeries
    time_ms: int
    flags: int
    value: bytes


class FilledTables(EntityTables):
    """The tables of entities, to which a test writes points that are in no window."""

    def __init__(self, cells: VersionedCells) -> None:
        super().__init__(cells)
        self._filled = cells

    async def write(self, points: Iterable[EntityPoint]) -> None:
        """Write points to both tables."""
        puts: list[VersionPut] = []
        newest: dict[tuple[bytes, bytes], VersionPut] = {}
        for entity, series, time_ms, flags, value in points:
            put = VersionPut(entity, series_column(series), point_value(flags, value), time_ms)
            puts.append(put)
            place = entity, put.column
            if place not in newest or newest[place].time_ms <= time_ms:
                newest[place] = put
        await self._filled.put(ENTITIES.name, puts)
        await self._filled.put(NEWEST.name, list(newest.values()))

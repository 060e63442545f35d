"""The newest points of series in memory, as arrays by the numbers of series.

They include points of open hours, which are not stored yet.
"""

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from tsd.codec.entity.records import entity_series, series_column
from tsd.codec.kept_arrays import grown
from tsd.codec.points import Columns, Int32, Int64
from tsd.codec.putline import split_tags
from tsd.errors import BadLine
from tsd.tables.writing import SeriesLookup, SeriesText

INITIAL_ROOM = 1024  # series
CheckName = Callable[[bytes], None]


def any_name(_name: bytes) -> None:
    """Take any name of an entity."""


class EntityColumn(NamedTuple):
    """Row and column of a series."""

    entity: bytes
    column: bytes


class Newest(NamedTuple):
    """The newest points of the series of a window: of equal times the one that arrived last."""

    numbers: Int32  # of series, ascending
    generations: Int64
    points: Columns
    places: dict[int, EntityColumn]  # by number: of series that were not known yet and have an entity
    skipped: int  # new series of entities whose names the tables cannot have

    def at(self, part: slice) -> "Newest":
        """Return a part of the series."""
        return self._replace(
            numbers=self.numbers[part], generations=self.generations[part], points=self.points.at(part)
        )


class NewestValues:
    """The newest points, by series and by entity."""

    def __init__(
        self,
        tag: bytes,
        check_name: CheckName = any_name,
        text_of: Callable[[SeriesText], SeriesText] = lambda text: text,
    ) -> None:
        """`tag`: of the entity. `check_name` raises BadLine for a name that no row can have. `text_of`: see Tables."""
        self._tag = tag
        self._text_of = text_of
        self.check_name = check_name
        self._generations = np.zeros(INITIAL_ROOM, np.int64)
        self._points = Columns(
            np.arange(INITIAL_ROOM, dtype=np.int32),
            np.full(INITIAL_ROOM, -1, np.int64),
            np.zeros(INITIAL_ROOM, np.uint8),
            np.zeros(INITIAL_ROOM, np.int64),
        )
        self._unstored = bytearray(INITIAL_ROOM)  # 1 for series whose newest point is not in the table yet
        self._places: dict[int, EntityColumn] = {}
        self._entities: dict[bytes, dict[int, bytes]] = {}  # columns by entity and number; some may be the same
        self._names: list[bytes] | None = None  # of the entities, sorted; None: not sorted yet

    def find(self, columns: Columns, series: SeriesLookup) -> Newest:
        """Return the newest points of a window. Safe to call in a thread: changes nothing."""
        order = np.argsort(columns.instants >> 1, kind="stable")  # a time in s and in ms is one
        at = np.full(int(columns.series.max()) + 1, -1, np.int64)
        at[columns.series[order]] = order  # of equal indexes the last one counts
        numbers = np.flatnonzero(at >= 0).astype(np.int32)
        generations = series.generations(numbers)
        known = np.zeros(len(numbers), np.int64)
        inside = numbers < len(self._generations)
        known[inside] = self._generations[numbers[inside]]
        places: dict[int, EntityColumn] = {}
        skipped = 0
        for number in numbers[known != generations].tolist():
            try:
                place = self._place(number, series)
            except BadLine:
                skipped += 1
                continue
            if place is not None:
                places[number] = place
        return Newest(numbers, generations, columns.at(at[numbers]), places, skipped)

    def _place(self, number: int, series: SeriesLookup) -> EntityColumn | None:
        """Return the place of a series, None if it has no entity. Raise BadLine for names without a column."""
        text = series.text(number)
        if text is None:
            return None
        text = self._text_of(text)
        found = entity_series(text.metric, split_tags(text.tags), self._tag)
        if found is None:
            return None
        self.check_name(found[0])
        return EntityColumn(found[0], series_column(found[1]))

    def add(self, newest: Newest) -> None:
        """Take the points that are not older than the known ones. Of these, points in the table do not count: another
        process may have deleted them there, and what is read from the table is joined with what is known."""
        numbers = newest.numbers
        self._make_room(int(numbers[-1]) + 1)
        fresh = self._generations[numbers] != newest.generations
        for number in numbers[fresh].tolist():
            self._forget(number)
            if (place := newest.places.get(number)) is not None:
                self._add_place(number, place)
        self._generations[numbers] = newest.generations
        points = self._points
        points.instants[numbers[fresh]] = -1
        unstored = np.frombuffer(self._unstored, np.uint8)
        newer = newest.points.instants >> 1 >= points.instants[numbers] >> 1
        newer |= unstored[numbers] == 0
        chosen = numbers[newer]
        points.instants[chosen] = newest.points.instants[newer]
        points.flags[chosen] = newest.points.flags[newer]
        points.bits[chosen] = newest.points.bits[newer]
        unstored[chosen] = 1

    def mark_stored(self, points: Columns) -> None:
        """Note that newest points are in the table, unless newer ones came meanwhile."""
        same = self._points.instants[points.series] == points.instants
        same &= self._points.bits[points.series] == points.bits
        np.frombuffer(self._unstored, np.uint8)[points.series[same]] = 0

    def remove(self, entity: bytes, columns: Collection[bytes], since_ms: int, until_ms: int) -> None:
        """Forget the newest points of some series that are from one time to before another."""
        numbers = np.array([at for at, column in self.of_entity(entity).items() if column in columns], np.int32)
        times = self._points.instants[numbers] >> 1
        gone = numbers[(times >= since_ms) & (times < until_ms)]
        self._points.instants[gone] = -1
        np.frombuffer(self._unstored, np.uint8)[gone] = 0

    def _add_place(self, number: int, place: EntityColumn) -> None:
        self._places[number] = place
        columns = self._entities.get(place.entity)
        if columns is None:
            columns = self._entities[place.entity] = {}
            self._names = None
        columns[number] = place.column

    def _forget(self, number: int) -> None:
        """Forget the series that had a number before; its points are stored."""
        place = self._places.pop(number, None)
        if place is None:
            return
        columns = self._entities[place.entity]
        del columns[number]
        if not columns:
            del self._entities[place.entity]
            self._names = None

    def _make_room(self, size: int) -> None:
        old = len(self._generations)
        if size <= old:
            return
        self._generations = grown(self._generations, size)
        room = len(self._generations)
        self._unstored = self._unstored + bytes(room - old)
        instants = grown(self._points.instants, room)
        instants[old:] = -1
        flags, bits = grown(self._points.flags, room), grown(self._points.bits, room)
        self._points = Columns(np.arange(room, dtype=np.int32), instants, flags, bits)

    def places(self, numbers: Iterable[int]) -> dict[int, EntityColumn]:
        """Return the places of those series that have an entity."""
        found = {number: self._places.get(number) for number in numbers}
        return {number: place for number, place in found.items() if place is not None}

    def numbers(self) -> Int32:
        """Return the numbers of all series that have an entity."""
        return np.array(sorted(self._places), np.int32)

    def generations(self, numbers: Int32) -> Int64:
        """Return the generations of numbers whose series have places here."""
        return self._generations[numbers]

    def points(self, numbers: Int32) -> Columns:
        """Return the newest points of series."""
        return self._points.at(numbers)

    def of_entity(self, name: bytes) -> dict[int, bytes]:
        """Return the columns of an entity's series by their numbers."""
        return self._entities.get(name, {})

    def unstored_of(self, name: bytes) -> dict[int, bytes]:
        """Return the columns of those series of an entity whose newest points are not in the table yet."""
        unstored = self._unstored
        return {number: column for number, column in self.of_entity(name).items() if unstored[number]}

    def names(self, start: bytes, stop: bytes | None) -> Iterator[bytes]:
        """Yield the names of entities from `start` to before `stop`."""
        if self._names is None:
            self._names = sorted(self._entities)
        end = len(self._names) if stop is None else bisect_left(self._names, stop)
        yield from self._names[bisect_left(self._names, start) : end]

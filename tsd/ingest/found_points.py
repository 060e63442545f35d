"""Cache of the points in memory of few series, so that a repeated query does not search the same points again."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import numpy as np
import trio

from tsd.codec.points import NO_COLUMNS, Columns, Int32, joined_columns
from tsd.ingest.open_hours import are_few, points_of_series
from tsd.ingest.packed_points import PackedPoints, Place

MOST_TOGETHER = 256  # series that are searched together and kept
MOST_ENTRIES = 500  # that are kept: one series, or several together
MOST_KEPT = 500_000  # points of all entries
MOST_POINTS = 1000  # of each series of an entry, on average

Part: TypeAlias = Columns | PackedPoints


class _Found(NamedTuple):
    """What was found of some series."""

    parts: list[ReferenceType[Int32 | PackedPoints]]  # what identifies each part that was searched
    chosen: list[Columns]  # points of the series in each: parts of `joined`
    joined: Columns  # all of them, with indexes of the series' numbers as series


class FoundPoints:
    """The points of the series that were asked for last. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._found: dict[bytes, _Found] = {}  # by numbers; the least recently found one comes first
        self._kept = 0  # points

    def of_series(self, metric: int, numbers: Int32, parts: Sequence[Part]) -> Columns | None:
        """Return the points of few series of a metric in order of arrival, with the indexes of their `numbers`, which
        ascend, as series. It is the same object as before if there are no other parts; None if it takes too long in
        the event loop."""
        if not len(numbers):
            return NO_COLUMNS
        key = numbers.tobytes()
        last = self._found.get(key)
        if last is not None and _are_same(last.parts, parts):
            return last.joined
        known = _known(last)
        return self._keep(key, parts, _search(metric, numbers, parts, known)) if _are_few(parts, known) else None

    async def find(self, metric: int, numbers: Int32, parts: Sequence[Part]) -> Columns:
        """Return the points of series as `of_series` does, with a wait for a thread if they are many."""
        key = numbers.tobytes()
        known = _known(self._found.get(key))
        search = partial(_search, metric, numbers, parts, known)
        found = search() if _are_few(parts, known) else await trio.to_thread.run_sync(search)
        return self._keep(key, parts, found)

    def _keep(self, key: bytes, parts: Sequence[Part], chosen: list[Columns]) -> Columns:
        """Keep what was found in each part. Return all of it."""
        joined = joined_columns([NO_COLUMNS, *chosen])  # a copy: a slice of earlier points would keep all of them
        self._forget(key)
        points = len(joined.series)
        if points <= MOST_POINTS * (len(key) // joined.series.itemsize):
            ends = np.cumsum([len(columns.series) for columns in chosen]).tolist()
            slices = [joined.at(slice(end - len(one.series), end)) for one, end in zip(chosen, ends, strict=True)]
            self._found[key] = _Found([ref(_identity(part)) for part in parts], slices, joined)
            self._kept += points
            while self._kept > MOST_KEPT or len(self._found) > MOST_ENTRIES:
                self._forget(next(iter(self._found)))
        return joined

    def _forget(self, key: bytes) -> None:
        """Forget what was found, if it is kept."""
        if (last := self._found.pop(key, None)) is not None:
            self._kept -= len(last.joined.series)


def _known(last: _Found | None) -> Mapping[int, Columns]:
    """Return what was found in each part, by the id of what identifies the part."""
    if last is None:
        return {}
    searched = ((one(), columns) for one, columns in zip(last.parts, last.chosen, strict=True))
    return {id(part): columns for part, columns in searched if part is not None}


def _are_few(parts: Sequence[Part], known: Mapping[int, Columns]) -> bool:
    """Return whether the parts that were not searched before are searched in the event loop."""
    return are_few([part for part in parts if id(_identity(part)) not in known], chosen=True)


def _search(metric: int, numbers: Int32, parts: Sequence[Part], known: Mapping[int, Columns]) -> list[Columns]:
    """Return the points of series in each part, with indexes of their numbers. Parts never change."""
    found = []
    for part in parts:
        if (columns := known.get(id(_identity(part)))) is None:
            columns = _of_part(metric, numbers, part)
        found.append(columns)
    return found


def _of_part(metric: int, numbers: Int32, part: Part) -> Columns:
    """Return the points of series in a part, with indexes of their numbers."""
    if len(numbers) > 1:
        columns = points_of_series(numbers, [part], metric)
        return columns._replace(series=np.searchsorted(numbers, columns.series).astype(np.int32))
    place = Place(metric, int(numbers[0]))
    if isinstance(part, PackedPoints):
        columns = part.of_place(place)
    else:
        columns = part.at((part.series == place.series).nonzero()[0])
    return columns._replace(series=np.zeros(len(columns.series), np.int32))


def _identity(part: Part) -> Int32 | PackedPoints:
    """Return an object that only this part has."""
    return part if isinstance(part, PackedPoints) else part.series


def _are_same(searched: Sequence[ReferenceType[Int32 | PackedPoints]], parts: Sequence[Part]) -> bool:
    """Return whether parts are those that were searched."""
    if len(searched) != len(parts):
        return False
    for one, part in zip(searched, parts, strict=True):  # noqa: SIM110 - a generator takes as long as the rest
        if one() is not _identity(part):
            return False
    return True

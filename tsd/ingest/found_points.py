"""Cache of the points in memory of single series, so that a repeated query does not search the same points again."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias
from weakref import ReferenceType, ref

import numpy as np
import trio

from tsd.codec.points import Columns, Int32, joined_columns, no_columns
from tsd.ingest.open_hours import are_few
from tsd.ingest.packed_points import PackedPoints, Place

MOST_SERIES = 500  # that are kept
MOST_POINTS = 1000  # of each

Part: TypeAlias = Columns | PackedPoints


class _Found(NamedTuple):
    """What was found of a series."""

    parts: list[ReferenceType[Int32 | PackedPoints]]  # what identifies each part that was searched
    chosen: list[Columns]  # points of the series in each
    joined: Columns  # all of them, with 0 as series


class FoundPoints:
    """The points of the series that were asked for last. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}  # by number; the least recently found one comes first

    def of_series(self, metric: int, numbers: Int32, parts: Sequence[Part]) -> Columns | None:
        """Return the points of the first of `numbers`, if there is one, in order of arrival, with 0 as its number. It
        is the same object as before if there are no other parts; None if it takes too long in the event loop."""
        if not len(numbers):
            return no_columns()
        number = int(numbers[0])
        last = self._found.get(number)
        if last is not None and _are_same(last.parts, parts):
            return last.joined
        place = Place(metric, number)
        known = self._known(place)
        return self._keep(place, parts, _search(place, parts, known)) if _are_few(parts, known) else None

    async def find(self, metric: int, number: int, parts: Sequence[Part]) -> Columns:
        """Return the points of a series as `of_series` does, with a wait for a thread if they are many."""
        place = Place(metric, number)
        known = self._known(place)
        search = partial(_search, place, parts, known)
        found = search() if _are_few(parts, known) else await trio.to_thread.run_sync(search)
        return self._keep(place, parts, found)

    def _keep(self, place: Place, parts: Sequence[Part], chosen: list[Columns]) -> Columns:
        """Keep what was found in each part. Return all of it."""
        joined = joined_columns(chosen)
        joined = joined._replace(series=np.zeros(len(joined.series), np.int32))
        self._found.pop(place.series, None)
        if len(joined.series) <= MOST_POINTS:
            self._found[place.series] = _Found([ref(_identity(part)) for part in parts], chosen, joined)
            if len(self._found) > MOST_SERIES:
                del self._found[next(iter(self._found))]
        return joined

    def _known(self, place: Place) -> Mapping[int, Columns]:
        """Return what was found of a series, by the id of what identifies the part."""
        if (last := self._found.get(place.series)) is None:
            return {}
        searched = ((one(), columns) for one, columns in zip(last.parts, last.chosen, strict=True))
        return {id(part): columns for part, columns in searched if part is not None}


def _are_few(parts: Sequence[Part], known: Mapping[int, Columns]) -> bool:
    """Return whether the parts that were not searched before are searched in the event loop."""
    return are_few([part for part in parts if id(_identity(part)) not in known], chosen=True)


def _search(place: Place, parts: Sequence[Part], known: Mapping[int, Columns]) -> list[Columns]:
    """Return the points of a series in each part. Parts never change."""
    found = []
    for part in parts:
        if (columns := known.get(id(_identity(part)))) is None:
            if isinstance(part, PackedPoints):
                columns = part.of_place(place)
            else:
                columns = part.at((part.series == place.series).nonzero()[0])
        found.append(columns)
    return found


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

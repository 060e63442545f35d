"""Points of single series that queries have found among those in memory: each part of memory is searched once."""

from collections.abc import Sequence
from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from tsd.codec.points import Columns, Int32, joined_columns, no_columns
from tsd.ingest.open_hours import are_few
from tsd.ingest.packed_points import PackedPoints

MOST_SERIES = 500  # that are kept
MOST_POINTS = 1000  # of each


class _Found(NamedTuple):
    """What was found of a series."""

    parts: list[ReferenceType[Int32]]  # the series of the points of each part that was searched
    chosen: list[Columns]  # points of the series in each
    joined: Columns  # all of them, with 0 as series


class FoundPoints:
    """The points of the series that were asked for last. Not thread-safe: only the event loop uses it."""

    def __init__(self) -> None:
        self._found: dict[int, _Found] = {}  # by number; the least recently found one comes first

    def of_series(self, numbers: Int32, parts: Sequence[Columns | PackedPoints]) -> Columns | None:
        """Return the points of the series with a number, if there is one, in order of arrival, with 0 as its number:
        the same object as before if there are no other parts. None if they are too many to search in the event loop."""
        if not len(numbers):
            return no_columns()
        return self._of_series(int(numbers[0]), plain) if (plain := _searched(parts)) is not None else None

    def _of_series(self, number: int, parts: Sequence[Columns]) -> Columns:
        """Do the same. Parts never change."""
        last = self._found.get(number)
        if last is not None and _are_same(last.parts, parts):
            return last.joined
        known: dict[int, Columns] = {}
        if last is not None:
            searched = ((one(), columns) for one, columns in zip(last.parts, last.chosen, strict=True))
            known = {id(series): columns for series, columns in searched if series is not None}
        chosen = [known.get(id(part.series)) or part.at((part.series == number).nonzero()[0]) for part in parts]
        joined = joined_columns(chosen)
        joined = joined._replace(series=np.zeros(len(joined.series), np.int32))
        self._found.pop(number, None)
        if len(joined.series) <= MOST_POINTS:
            self._found[number] = _Found([ref(part.series) for part in parts], chosen, joined)
            if len(self._found) > MOST_SERIES:
                del self._found[next(iter(self._found))]
        return joined


def _searched(parts: Sequence[Columns | PackedPoints]) -> list[Columns] | None:
    """Return parts if they are searched in the event loop."""
    plain = [part for part in parts if isinstance(part, Columns)]
    return plain if len(plain) == len(parts) and are_few(parts, chosen=True) else None


def _are_same(searched: Sequence[ReferenceType[Int32]], parts: Sequence[Columns]) -> bool:
    """Return whether parts are those that were searched."""
    return len(searched) == len(parts) and all(one() is part.series for one, part in zip(searched, parts, strict=True))

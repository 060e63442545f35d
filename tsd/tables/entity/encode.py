"""Points of a window or of an open hour become columns of the table of entities."""

import numpy as np

from tsd.codec.entity.records import join_values
from tsd.codec.points import Columns, sort_columns
from tsd.store.versions import VersionColumns
from tsd.tables.entity.newest import EntityColumn


def encode(points: Columns, places: dict[int, EntityColumn]) -> VersionColumns:
    """Return the cells of those points that have a place. Of points with one place and time the last to arrive is
    kept."""
    highest = max(places)
    number_of = np.full(max(int(points.series.max()), highest) + 1, -1, np.int32)
    first: dict[EntityColumn, int] = {}  # several series may have one place: their tags are in another order
    numbers = np.fromiter((first.setdefault(place, number) for number, place in places.items()), np.int32, len(places))
    number_of[np.fromiter(places, np.int32, len(places))] = numbers
    numbers = number_of[points.series]
    if len(first) < len(places) or (numbers < 0).any():
        points = points._replace(series=numbers).at(numbers >= 0)
    ordered = sort_columns(points, join=True)
    lengths, values = join_values(ordered.flags, ordered.bits)
    starts = np.flatnonzero(np.diff(ordered.series, prepend=-1))
    return VersionColumns(
        [places[number] for number in ordered.series[starts].tolist()],
        np.append(starts, len(ordered.series)),
        ordered.instants >> 1,
        np.cumsum(lengths),
        values,
    )

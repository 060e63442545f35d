"""The series of a query in memory, and their open points.

They are looked for once. While the metric has no new series in memory, the same ones are read again.
"""

from typing import NamedTuple
from weakref import ReferenceType, ref

import numpy as np

from tsd.codec.points import Columns, Int32
from tsd.codec.putline import HOUR_MS, HOUR_S
from tsd.tables.open_points import OPEN_HOURS, OpenPointSource
from tsd.tables.open_rows import OpenRowsOfHour, rows_of
from tsd.tables.reading import UNWANTED, PointPage, ScanRange, Selection
from tsd.tables.writing import KnownSeries

MOST_LISTED = 256  # series of a metric that are looked at one by one
FEW_POINTS = 1000  # that are kept by hour
OTHER = -2  # in place of a number: the selection had no points of the series, which may match


class HourPoints(NamedTuple):
    """The open points of an hour."""

    base_s: int
    has_others: bool  # whether some are of series that the selection had no points of
    rows: OpenRowsOfHour
    page: PointPage  # of these


class OpenSeries:
    """The series of a selection in memory."""

    def __init__(self, listed: KnownSeries, numbers: Int32, own: Int32) -> None:
        """`numbers`: those of the `listed` series that match or may match, ascending. `own`: the number of each in the
        selection; OTHER if it had no points when the query was answered."""
        self._listed = ref(listed)  # many queries must not keep old lists
        self._numbers = numbers
        self._own = own
        # Few points of the last span.
        self._last: tuple[ReferenceType[Int32], ScanRange, list[HourPoints]] | None = None

    def points_now(self, source: OpenPointSource, metric: bytes, span: ScanRange) -> Columns | None:
        """Return the open points of the series as `OpenPointSource.points_now` does."""
        return source.points_now(metric, span, self._listed(), self._numbers)

    async def points_soon(self, source: OpenPointSource, metric: bytes, span: ScanRange) -> Columns | None:
        """Return the same, also if it takes long. None: the series are not known any more."""
        listed = self._listed()
        return None if listed is None else await source.points_soon(metric, span, listed, self._numbers)

    def hours(self, columns: Columns, span: ScanRange) -> list[HourPoints] | None:
        """Return the points in the hours of a span, in order. `columns`: what `points_now` or `points_soon` returned.
        None: a series that may match has some, too, or they are of too many hours. May be called in a thread."""
        if not len(columns.series):
            return []
        last = self._last
        if last is not None and last[0]() is columns.series and last[1] == span:
            found = last[2]
        else:
            hours = _by_hour(columns._replace(series=self._own[columns.series]), span)
            if hours is None:
                return None
            found = hours
            self._last = (ref(columns.series), span, found) if len(columns.series) <= FEW_POINTS else None
        return None if any(hour.has_others for hour in found) else found


async def open_series_of(selection: Selection, listed: KnownSeries, *, numbers_all: bool = False) -> OpenSeries | None:
    """Return the series of a selection that are among the `listed` ones of its metric. None: they are too many to look
    at each. `numbers_all`: number those that match. Raise BadQuery, StoreError."""
    places = await selection.find_known(listed)
    if len(listed if places is None else places) > MOST_LISTED:
        return None
    some = range(len(listed)) if places is None else sorted(places.tolist())
    series_pairs = selection.pairs_of(listed.keys.at(some))
    if numbers_all:
        await selection.series.match([one for one in series_pairs if one is not None])
    number_of = selection.series.numbers.get
    every = [
        (place, number_of(one, OTHER))
        for place, one in zip(some, series_pairs, strict=True)
        if one is not None and number_of(one) != UNWANTED
    ]
    own = np.array([number for _, number in every], np.int32)  # after names have changed, a series may be listed twice
    return OpenSeries(listed, listed.numbers[[place for place, _ in every]], own)


def _by_hour(columns: Columns, span: ScanRange) -> list[HourPoints] | None:
    """Return the points of each hour of a span, in order; None if they are of too many hours."""
    hours = columns.instants // (2 * HOUR_MS)
    first, last = int(hours.min()), int(hours.max())
    if first == last:
        return [_hour_points(first, columns)] if span.start_s <= first * HOUR_S < span.stop_s else []
    bases_s = hours * HOUR_S
    inside = hours[(bases_s >= span.start_s) & (bases_s < span.stop_s)]
    distinct = np.unique(inside).tolist()
    if len(distinct) > OPEN_HOURS:
        return None
    return [_hour_points(hour, columns.at(np.flatnonzero(hours == hour))) for hour in distinct]


def _hour_points(hour: int, columns: Columns) -> HourPoints:
    known = columns.series != OTHER
    has_others = not known.all()
    rows = rows_of(columns.at(known) if has_others else columns)
    return HourPoints(hour * HOUR_S, has_others, rows, rows.decode())

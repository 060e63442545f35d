"""The points of one metric in memory. Many are found in slices of series: few of them are unpacked at once."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from tsd.codec.points import Bool, Columns, Int32, Int64, count_series, counted_order, joined_columns, picked
from tsd.codec.putline import HOUR_S
from tsd.ingest.open_hours import hours_of
from tsd.ingest.packed_points import PackedPoints
from tsd.tables.open_points import OpenPoints, OpenSlice, SeriesByHour
from tsd.tables.writing import SeriesKeys

SLICE_POINTS = 1 << 18  # of a slice, about: the next one is unpacked while its points are aggregated
SPARSE = 16  # a part with more series of the metric than this for each of its points gets no mask of them
LAST = int(np.iinfo(np.int32).max)  # above all numbers of series

Part: TypeAlias = Columns | PackedPoints  # of points in order of arrival


class MetricPoints(NamedTuple):
    """Points of one metric."""

    numbers: Int32  # of their series, ascending
    every: OpenSlice
    slices: Sequence[OpenSlice]
    present: SeriesByHour

    def open_points(self, keys: SeriesKeys) -> OpenPoints:
        """Return the points; `keys` are those of the numbers."""
        return OpenPoints(self.every, self.numbers, keys, self.present, self.slices)


def points_of_metric(metric: int, wanted: Int32 | None, parts: Sequence[Part], metric_of: Int32) -> MetricPoints:
    """Find the points of some series of a metric; None: of all. `metric_of` has the metric of each series. May be
    called in a thread while no series is evicted. What it returns may be used after that."""
    own = np.flatnonzero(metric_of == metric).astype(np.int32) if wanted is None else np.sort(wanted)
    place_of = np.full(len(metric_of), -1, np.int32)
    place_of[own] = np.arange(len(own), dtype=np.int32)
    masks, counts = _packed_series(metric, place_of, len(own), parts)
    series, instants, _, _ = joined_columns(_not_counted(place_of, counts, masks, parts))
    places = place_of[series]
    chosen = np.flatnonzero(places >= 0)
    places, instants = places[chosen], instants[chosen]
    counts += np.bincount(places, minlength=len(own))
    has_points = counts > 0
    numbers, counts = own[has_points], counts[has_points]
    index_of = np.cumsum(has_points, dtype=np.int32) - 1  # by place
    masks = {base_s: mask[has_points] for base_s, mask in masks.items() if mask.any()}
    points = int(counts.sum())
    every = OpenSlice(slice(0, len(numbers)), points, partial(_unpacked, metric, parts))
    slices = _slices(metric, numbers, counts, parts) if points > 2 * SLICE_POINTS else []
    return MetricPoints(numbers, every, slices, SeriesByHour(index_of[places], instants, len(numbers), masks))


def few_points_of_metric(metric: int, wanted: Int32 | None, parts: Sequence[Part], metric_of: Int32) -> Columns:
    """Return the points of some series of a metric in order of arrival; None: of all. No part is packed. Takes as long
    in a table of a million series as in a small one."""
    columns = joined_columns([part for part in parts if not isinstance(part, PackedPoints)])
    if wanted is None:
        return columns.at(np.flatnonzero(metric_of[columns.series] == metric))
    own = np.zeros(len(metric_of), np.bool_)
    own[wanted] = True
    return columns.at(np.flatnonzero(own[columns.series]))


def _packed_series(metric: int, place_of: Int32, count: int, parts: Sequence[Part]) -> tuple[dict[int, Bool], Int64]:
    """Return which of `count` series have packed points in each hour, and how many each has. `place_of` has the place
    of each series by its number, -1 for others."""
    counts = np.zeros(count, np.int64)
    masks: dict[int, Bool] = {}
    for part in parts:
        if isinstance(part, PackedPoints):
            mask = masks.setdefault(part.base_s, np.zeros(count, np.bool_))
            for _, series, points in part.counts_of(metric):
                places = place_of[series]
                found = places >= 0
                mask[places[found]] = True
                counts[places[found]] += points[found]
    return masks, counts


def _not_counted(place_of: Int32, counts: Int64, masks: dict[int, Bool], parts: Sequence[Part]) -> list[Columns]:
    """Count the points of parts that are not packed, and mark their series, see `_packed_series`. Return the parts that
    have points of several hours, or few points, whose masks would take more memory than they."""
    left = []
    for part in parts:
        if isinstance(part, PackedPoints):
            continue
        hours = hours_of(part)
        if len(hours) > 1 or len(part.series) * SPARSE < len(counts):
            left.append(part)
        elif hours:
            mask = masks.setdefault(hours.start * HOUR_S, np.zeros(len(counts), np.bool_))
            count_series(part.series, place_of, counts, mask)
    return left


def _unpacked(metric: int, parts: Sequence[Part], base_s: int | None) -> list[Columns]:
    """Return all points that a metric has in an hour (None: in all hours), and some others."""
    found: list[Columns] = []
    for part in parts:
        if not isinstance(part, PackedPoints):
            found.append(part)
        elif base_s in {None, part.base_s}:
            found += part.near(metric, -1, LAST)
    return found


def _slices(metric: int, numbers: Int32, counts: Int64, parts: Sequence[Part]) -> list[OpenSlice]:
    """Return slices of about SLICE_POINTS points each, cut where packed points are. None is much smaller: its rows
    would be made in the event loop."""
    ends = [
        last.series
        for part in parts
        if isinstance(part, PackedPoints)
        for last, _, _ in part.counts_of(metric)
        if last.metric == metric
    ]
    points = np.concatenate(([0], np.cumsum(counts)))
    places = np.unique(np.searchsorted(numbers, np.unique(ends), side="right"))
    inner = [0]
    for place in places.tolist():
        left = points[-1] - points[place]
        if points[place] - points[inner[-1]] >= SLICE_POINTS and left >= SLICE_POINTS // 2:
            inner.append(place)
    if len(inner) == 1:
        return []
    sorted_parts = [part if isinstance(part, PackedPoints) else _by_series(part, numbers) for part in parts]
    found = []
    for first, stop in zip(inner, [*inner[1:], len(numbers)], strict=True):
        after, last = int(numbers[first]) - 1, int(numbers[stop - 1])
        parts_of = partial(_between, metric, sorted_parts, after, last)
        found.append(OpenSlice(slice(first, stop), int(points[stop] - points[first]), parts_of))
    return found


def _by_series(part: Columns, numbers: Int32) -> Columns:
    """Return the points of some series, sorted by series, those of a series in order of arrival."""
    own = np.zeros(int(max(numbers[-1], part.series.max(initial=0))) + 1, np.bool_)
    own[numbers] = True
    chosen = part.at(np.flatnonzero(own[part.series]))
    return picked(Columns(*map(np.ascontiguousarray, chosen)), counted_order(chosen.series))


def _between(metric: int, parts: Sequence[Part], after: int, last: int, base_s: int | None) -> list[Columns]:
    """Return the points that series with numbers above `after` up to `last` have in an hour (None: in all hours), and
    some others. Points that are not packed are sorted by series."""
    found: list[Columns] = []
    for part in parts:
        if not isinstance(part, PackedPoints):
            first, stop = np.searchsorted(part.series, (after + 1, last + 1)).tolist()
            found.append(part.at(slice(first, stop)))
        elif base_s in {None, part.base_s}:
            found += part.near(metric, after, last)
    return found

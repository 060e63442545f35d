"""The open hours: points that stay in memory until their hour is over, so that each row is written once, whole.

The journal keeps them safe meanwhile. An hour is open until shortly after its end. Late points that arrive within the
next hour are held until its end and then written together. Points of other hours are due at once. When points of an
hour are due, the writer first queues those that it holds of this hour. So the later of two values is written last.

Many points of an hour are packed in the background (`tsd.ingest.packed_points`); the newest ones are not.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import trio

from tsd.codec.points import POINT_BYTES, Bool, Columns, Int32, columns_of_series, joined_columns
from tsd.codec.putline import HOUR, HOUR_S
from tsd.ingest.packed_points import PackedPoints, Place, between, merge, pack
from tsd.ingest.series import SeriesTable
from tsd.ingest.windows import HourWindow, PendingSegment
from tsd.tables.open_points import ChooseSeries
from tsd.tables.reading import ScanRange
from tsd.tables.writing import AHEAD_S

LATE_S = 120  # after the end of an hour: points that arrive until then still belong to it
TAIL_S = 5  # after the end of an hour, for its last points to arrive
TAIL_SHARE = 20  # the last points of an hour wait for up to 1/20 of an interval longer than others
FEW = 4  # series that are searched one by one, at most
SMALL = 20_000  # points that are searched in the event loop
SMALL_CHOSEN = 500_000  # the same for the points of chosen series, if none is packed
MERGED = 16  # packed points that are packed again at once
FEW_A_SERIES = 1.5  # packed points of a series: fewer are packed again


class Interval(NamedTuple):
    """For how long points are held: infinitely where no other process waits for them."""

    length_s: float
    window_s: float  # it ends with a window

    def end(self, since: float) -> float:
        """Return the end of an interval, by trio's clock."""
        end = since + self.length_s
        return end if math.isinf(end) else end // self.window_s * self.window_s

    def due(self, base_s: int, since: float, now_s: int) -> float:
        """Return when points of an hour that came since `since` are due, by trio's clock. `now_s` is the wall clock.

        The first interval begins with the hour, so that an hour has as few as possible. The last one waits for the last
        points of the hour, which would else be another cell of their rows."""
        start = trio.current_time() + base_s - now_s
        due = self.end(max(since, start))
        tail = start + HOUR_S + TAIL_S
        return tail if due < tail <= due + self.length_s / TAIL_SHARE else due


class Split(NamedTuple):
    """The points of a window."""

    due: Columns
    held: dict[int, Columns]  # by base time of their hour


class OpenHour:
    """The points of one hour, in order of arrival."""

    def __init__(self, base_s: int, until_s: int, due: float, sealed_s: int) -> None:
        """The points are held until `until_s` by the wall clock, or `due` by trio's if that is earlier. `sealed_s`:
        when its first window was sealed, by the monotonic clock."""
        self.base_s = base_s
        self.until_s = until_s
        self.due = due
        self.sealed_s = sealed_s
        self.points = 0
        self.packed: list[PackedPoints] = []  # older than the parts
        self.parts: list[Columns] = []
        self.segments: list[PendingSegment] = []
        self.memory = 0  # bytes
        self.unpacked = 0  # points
        self._packing = 0  # parts that are being packed
        self._bounds: list[Place] = []  # at which points are cut when they are packed

    def add(self, columns: Columns, segment: PendingSegment) -> None:
        """Add the points that a window has of the hour."""
        self.points += len(columns.series)
        self.unpacked += len(columns.series)
        self.memory += len(columns.series) * POINT_BYTES
        segment.users += 1
        self.segments.append(segment)
        self.parts.append(columns)
        while len(self.parts) > self._packing + 1 and len(self.parts[-2].series) <= len(self.parts[-1].series):
            self.parts[-2:] = [joined_columns(self.parts[-2:])]  # few parts, and each point is copied seldom

    def is_over(self, now_s: int) -> bool:
        """Return whether the hour is not open any more."""
        return now_s >= self.until_s or not is_held(self.base_s, now_s)

    def window(self, since_s: int, last_whole_s: int) -> HourWindow:
        """Return a window of the points. `since_s`: when they became due, by the wall clock. Hours up to `last_whole_s`
        may have been written whole: if the clock was set back, their points are held again."""
        is_over = since_s >= self.until_s
        is_whole = is_over and self.until_s == end_s(self.base_s) and self.base_s > last_whole_s
        return HourWindow(
            self.segments, self.parts.copy(), self.points, self.sealed_s, since_s, self.memory,
            packed=self.packed.copy(), is_over=is_over, is_whole=is_whole,
        )  # fmt: skip

    async def pack(self, table: SeriesTable) -> None:
        """Pack the parts, in a thread. They stay in place until that is done; others may be added meanwhile."""
        self.parts = [joined_columns(self.parts)]
        self._packing = 1
        try:
            packed = await trio.to_thread.run_sync(pack, self.parts[0], table.metric_numbers(), self._bounds)
        finally:
            self._packing = 0
        del self.parts[0]
        self._bounds = sorted({*self._bounds, *packed.bounds})
        self.packed.append(packed)
        self.unpacked -= packed.points
        self.memory += packed.size - packed.points * POINT_BYTES
        while newest := self._to_merge():
            bounds = next((one.bounds for one in self.packed if one.merges > newest[0].merges), ())
            merged = await trio.to_thread.run_sync(merge, newest, table.metric_numbers(), bounds)
            self.packed[-MERGED:] = [merged]
            self.memory += merged.size - sum(one.size for one in newest)

    def _to_merge(self) -> list[PackedPoints]:
        """Return the newest packed points if they are to be packed again, else none."""
        newest = self.packed[-MERGED:]
        few = [one for one in newest if one.points < FEW_A_SERIES * one.series and one.merges == newest[0].merges]
        return newest if len(few) == MERGED else []


class OpenHours:
    """The points of open hours, by hour."""

    def __init__(self, interval: Interval) -> None:
        self._interval = interval
        self._hours: dict[int, OpenHour] = {}
        self.points = 0

    def __iter__(self) -> Iterator[OpenHour]:
        return iter(self._hours.values())

    @property
    def memory(self) -> int:
        """Bytes of all points."""
        return sum(hour.memory for hour in self)

    @property
    def oldest_s(self) -> int | None:
        """When the oldest window with held points was sealed, by the monotonic clock."""
        return min((hour.sealed_s for hour in self), default=None)

    def add(self, split: Split, segment: PendingSegment, now_s: int, sealed_s: int, since: float) -> None:
        """Hold the held points of a window, which came since `since` by trio's clock. `now_s` is that of `split`."""
        for base_s, columns in split.held.items():
            hour = self._hours.get(base_s)
            if hour is None:
                hour = self._hours[base_s] = self._new_hour(base_s, now_s, sealed_s, since)
            hour.add(columns, segment)
            self.points += len(columns.series)

    def _new_hour(self, base_s: int, now_s: int, sealed_s: int, since: float) -> OpenHour:
        due = self._interval.due(base_s, since, now_s)
        if math.isinf(due):
            return OpenHour(base_s, held_until_s(base_s, now_s), due, sealed_s)
        if now_s >= base_s + HOUR_S:  # few points: they are written with others
            return OpenHour(base_s, end_s(base_s) + HOUR_S, min(due, self.due), sealed_s)
        return OpenHour(base_s, end_s(base_s), due, sealed_s)

    @property
    def due(self) -> float:
        """When the points of an hour are due at the latest, by trio's clock; infinity without any."""
        return min((hour.due for hour in self), default=math.inf)

    def ends_s(self) -> float:
        """Return when the first hour is not open any more, by the wall clock; infinity without any."""
        return min((hour.until_s for hour in self), default=math.inf)

    def is_over(self, now_s: int) -> bool:
        """Return whether an hour is not open any more."""
        return any(hour.is_over(now_s) for hour in self)

    def take(self, now_s: int | None = None) -> list[OpenHour]:
        """Remove and return the hours that are not open any more, or all if no time is given; the oldest first."""
        return self._take([hour for hour in self if now_s is None or hour.is_over(now_s)])

    def take_due(self) -> list[OpenHour]:
        """Remove and return the hours whose points are due, the oldest first."""
        now = trio.current_time()
        return self._take([hour for hour in self if hour.due <= now])

    def _take(self, hours: Sequence[OpenHour]) -> list[OpenHour]:
        taken = [self._hours.pop(base_s) for base_s in sorted(hour.base_s for hour in hours)]
        self.points -= sum(hour.points for hour in taken)
        return taken


def is_held(base_s: int, now_s: int) -> bool:
    """Return whether points of an hour are held.

    >>> [is_held(3600, now_s) for now_s in (3500, 3540, 7200, 10919, 10920)]
    [False, True, True, True, False]
    """
    return base_s - AHEAD_S <= now_s < base_s + 2 * HOUR_S + LATE_S


def end_s(base_s: int) -> int:
    """Return from when on points of an hour are late."""
    return base_s + HOUR_S + LATE_S


def held_until_s(base_s: int, now_s: int) -> int:
    """Return until when points of an hour are held.

    >>> [held_until_s(3600, now_s) for now_s in (3600, 7319, 7320)]
    [7320, 7320, 10920]
    """
    over_s = end_s(base_s)
    return over_s if now_s < over_s else over_s + HOUR_S


def split(columns: Columns, now_s: int, excluded: Sequence[Bool] = ()) -> Split:
    """Split the points of a window. Points that a mask of `excluded` selects are due."""
    if not len(columns.series):
        return Split(columns, {})
    hours = columns.instants // HOUR
    low, high = int(hours.min()), int(hours.max())
    this = now_s // HOUR_S
    found = [hour for hour in range(this - 2, this + 2) if low <= hour <= high and is_held(hour * HOUR_S, now_s)]
    kept = np.ones(len(hours), np.bool_)
    for mask in excluded:
        kept &= ~mask
    if low == high and found and kept.all():
        return Split(columns.at(slice(0, 0)), {low * HOUR_S: columns})
    held = {}
    due = np.ones(len(hours), np.bool_)
    for hour in found:
        chosen = kept & (hours == hour)
        if chosen.any():
            held[hour * HOUR_S] = columns.at(chosen)
            due &= ~chosen
    return Split(columns.at(due) if held else columns, held)


def has_hours_of(part: Columns, span: ScanRange | None) -> bool:
    """Return whether points may be of the hours of a span; None: of any."""
    if span is None or not len(part.instants):
        return span is None
    for instant in (part.instants[0], part.instants[-1]):  # most queries are about the hours of most points
        if span.start_s <= int(instant) // HOUR * HOUR_S < span.stop_s:
            return True
    return may_have(hours_of(part), span)


def hours_of(part: Columns) -> range:
    """Return the hours of points, as numbers since the epoch, from the first to the last one."""
    if not len(part.instants):
        return range(0)
    low, high = int(part.instants.min()), int(part.instants.max())
    return range(low // HOUR, high // HOUR + 1)


def may_have(hours: range, span: ScanRange) -> bool:
    """Return whether a span may have points of some hours.

    >>> [may_have(range(1, 3), ScanRange(at, at + 3600)) for at in (0, 3600, 7200, 10800)]
    [False, True, True, False]
    """
    return hours.start * HOUR_S < span.stop_s and span.start_s < hours.stop * HOUR_S


def are_few(parts: Sequence[Columns | PackedPoints], *, chosen: bool) -> bool:
    """Return whether points are searched in the event loop: for a metric, or for `chosen` series of it."""
    points = 0
    for part in parts:
        if isinstance(part, PackedPoints):
            return False
        points += len(part.series)
    return points < (SMALL_CHOSEN if chosen else SMALL)


async def choose_series(table: SeriesTable, metric: bytes, choose: ChooseSeries | None) -> Int32 | None:
    """Return the numbers of the series that `choose` chooses; None: all."""
    if choose is None or table.unresolved or table.refused:  # a layout cannot choose series without keys
        return None
    known = table.known_series(metric)
    places = None if known is None else await choose(known)
    return None if known is None or places is None else known.numbers[places]


def indexed(columns: Columns) -> tuple[Columns, Int32]:
    """Replace the numbers of series by indexes of those that are present. Return these numbers, too."""
    if not len(columns.series):
        return columns, columns.series
    index_of = np.zeros(int(columns.series.max()) + 1, np.int32)
    index_of[columns.series] = 1
    numbers = np.flatnonzero(index_of).astype(np.int32)
    index_of[numbers] = np.arange(len(numbers), dtype=np.int32)
    return columns._replace(series=index_of[columns.series]), numbers


def points_of_series(numbers: Int32, parts: Sequence[Columns | PackedPoints], metric: int | None = None) -> Columns:
    """Return the points of series, those of each in order of arrival. With `metric` all of them are of this one. Safe
    to call in a thread while no series is evicted."""
    highest = max([int(numbers.max()), *(part.highest_series for part in parts if isinstance(part, PackedPoints))])
    wanted = np.zeros(highest + 1, np.bool_)
    wanted[numbers] = True
    found = []
    for part in parts:
        if isinstance(part, PackedPoints):
            found.append(part.of_series(wanted, metric))
        else:
            found.append(columns_of_series(part, wanted))
    return joined_columns(found)


def points_between(
    packed: Sequence[PackedPoints],
    parts: Sequence[Columns],
    table: SeriesTable,
    after: Place | None,
    last: Place | None,
) -> Columns:
    """Return the points of the series after `after` up to `last`, those of a series in order of arrival. None: without
    a bound. Safe to call in a thread while no series is evicted."""
    metric_of = table.metric_numbers()
    found = [part for one in packed for part in one.between(after, last, metric_of)]
    return joined_columns([*found, *(between(part, after, last, metric_of) for part in parts)])

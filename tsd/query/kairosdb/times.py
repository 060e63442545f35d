"""Time ranges of KairosDB's queries: units, time zones, and the starts of buckets.

Units of days and up follow the calendar of a time zone; shorter units have a fixed length.
"""

import re
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

from tsd.codec.points import Int64
from tsd.query.kairosdb.model import UNITS_MS, BadRequest, Sampling

_EPOCH = datetime(1970, 1, 1)  # wall-clock time
_MS = timedelta(milliseconds=1)
_FIRST_MS, _LAST_MS = -62_135_596_800_000 + 2 * 86_400_000, 253_402_300_799_000 - 2 * 86_400_000  # years 1 to 9999
_OFFSET = re.compile(r"([-+])([0-9]{2}):?([0-9]{2})")
DAY_MS = UNITS_MS["DAYS"]
_YEAR_MS = 31_556_952_000  # 365.2425 days
_MEAN_MS = {"DAYS": DAY_MS, "WEEKS": 7 * DAY_MS, "MONTHS": _YEAR_MS // 12, "YEARS": _YEAR_MS}
_SLACK_MS = 8 * DAY_MS  # a number of units is at most this much longer than as many mean ones


def find_zone(name: str) -> tzinfo:
    """Return the zone of a name of the tz database, or of an offset such as +05:30. Raise BadRequest."""
    if name in ("", "UTC"):
        return UTC
    if found := _OFFSET.fullmatch(name):
        offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
        if offset < timedelta(days=1):
            return timezone(-offset if found[1] == "-" else offset)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise BadRequest(f"query.{name} is not a valid time zone, wanted a name of the tz database") from error


def _offset_ms(time_ms: int, zone: tzinfo) -> int:
    """Return how far the wall clock is ahead of UTC."""
    if zone is UTC:
        return 0
    moment = datetime.fromtimestamp(min(max(time_ms, _FIRST_MS), _LAST_MS) // 1000, UTC).astimezone(zone)
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _MS


def _moment(wall_ms: int, zone: tzinfo, near_ms: int) -> int:
    """Return the moment of a wall-clock time: with the offset of another moment if that fits, else the offset before a
    gap of the wall clock."""
    for offset in (_offset_ms(near_ms, zone), _offset_ms(wall_ms - _offset_ms(wall_ms, zone), zone)):
        if _offset_ms(wall_ms - offset, zone) == offset:
            return wall_ms - offset
    return wall_ms - min(_offset_ms(wall_ms - DAY_MS, zone), _offset_ms(wall_ms + DAY_MS, zone))


def plus(time_ms: int, number: int, unit: str, zone: tzinfo) -> int:
    """Return the time `number` units later. Raise BadRequest beyond the calendar."""
    if unit not in ("DAYS", "WEEKS", "MONTHS", "YEARS"):
        return time_ms + number * UNITS_MS[unit]
    wall = time_ms + _offset_ms(time_ms, zone)
    if unit in ("DAYS", "WEEKS"):
        wall += number * UNITS_MS[unit]
    else:
        wall = _plus_months(wall, number * (12 if unit == "YEARS" else 1))
    return _moment(wall, zone, time_ms)


def _plus_months(wall_ms: int, number: int) -> int:
    """Return the same day and time of another month, or its last day."""
    try:
        wall = _EPOCH + wall_ms * _MS
        year, month = divmod(wall.year * 12 + wall.month - 1 + number, 12)
        for day in (wall.day, 30, 29, 28):
            try:
                return (wall.replace(year=year, month=month + 1, day=day) - _EPOCH) // _MS
            except ValueError:
                if not 1 <= year <= 9999:
                    raise
    except (ValueError, OverflowError) as error:
        raise BadRequest(f"got a time {number} months from {wall_ms} ms, wanted one in the years 1 to 9999") from error
    raise AssertionError("every month has 28 days")


def aligned(start_ms: int, unit: str, zone: tzinfo) -> int:
    """Return the start of the first bucket: midnight of its day, or for longer units of the first day of its week,
    month or year; for ms the full second. Raise BadRequest beyond the calendar."""
    if unit == "MILLISECONDS":
        return start_ms - start_ms % 1000
    wall_ms = start_ms + _offset_ms(start_ms, zone)
    wall_ms -= wall_ms % DAY_MS
    if unit in ("WEEKS", "MONTHS", "YEARS"):
        try:
            day = _EPOCH + wall_ms * _MS
            if unit == "WEEKS":
                day -= timedelta(days=day.weekday())
            else:
                day = day.replace(day=1, month=1 if unit == "YEARS" else day.month)
        except OverflowError as error:
            raise BadRequest(f"got a start of {start_ms} ms, wanted one in the years 1 to 9999") from error
        wall_ms = (day - _EPOCH) // _MS
    return _moment(wall_ms, zone, start_ms)


class Buckets:
    """Consecutive buckets from `start_ms` on, and before it."""

    def __init__(self, start_ms: int, sampling: Sampling, zone: tzinfo) -> None:
        """Raise BadRequest for a sampling of no length."""
        if sampling.value < 1:
            raise BadRequest(f"sampling.value must be greater than 0, got {sampling.value}")
        self.start_ms = start_ms
        self._sampling = sampling
        self._zone = zone

    @property
    def _mean_ms(self) -> int:
        """The mean length of a calendar bucket."""
        return self._sampling.value * _MEAN_MS[self._sampling.unit]

    def edge(self, number: int) -> int:
        """Return the start of a bucket; that of `start_ms` has the number 0."""
        return plus(self.start_ms, number * self._sampling.value, self._sampling.unit, self._zone)

    def number(self, time_ms: int) -> int:
        """Return the bucket of a time. One less than a bucket's length before the start is in the first."""
        if not self._sampling.is_calendar:
            past = time_ms - self.start_ms
            return past // self._sampling.nominal_ms if past >= 0 else -(-past // self._sampling.nominal_ms)
        if time_ms >= self.start_ms:
            number = max(0, (time_ms - self.start_ms - _SLACK_MS) // self._mean_ms)
            while self.edge(number + 1) <= time_ms:
                number += 1
            return number
        number = 0
        while self.edge(number - 1) >= time_ms:
            number -= 1
        return number

    def numbers(self, times: Int64) -> Int64:
        """Return the buckets of times that are not before the start."""
        if not self._sampling.is_calendar:
            return (times - self.start_ms) // self._sampling.nominal_ms
        if not len(times):
            return np.empty(0, np.int64)
        first_ms, last_ms = int(times.min()), int(times.max())
        if last_ms - first_ms > len(times) * (_SLACK_MS + 2 * self._mean_ms):  # more buckets than edges in `number`
            return np.fromiter(map(self.number, times.tolist()), np.int64, len(times))
        first = self.number(first_ms)
        edges = [self.edge(first)]
        while edges[-1] <= last_ms:
            edges.append(self.edge(first + len(edges)))
        return first + np.searchsorted(np.array(edges, np.int64), times, "right").astype(np.int64) - 1

    def edges(self, numbers: Int64) -> Int64:
        """Return the starts of buckets from 0 on."""
        if not self._sampling.is_calendar:
            return self.start_ms + numbers * self._sampling.nominal_ms
        found = {number: self.edge(number) for number in np.unique(numbers).tolist()}
        return np.fromiter((found[number] for number in numbers.tolist()), np.int64, len(numbers))

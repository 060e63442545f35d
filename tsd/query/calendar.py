"""Buckets by wall clock: where they begin in a time zone of the tz database, summer time and all.

The stepping is Java's, which OpenTSDB's answers show (query.md §9.2): fields are lenient, a wall-clock time that does
not exist lies after the gap, one that exists twice is the later.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from tsd.errors import BadQuery
from tsd.query.dates import UNITS_MS
from tsd.query.model import Calendar

EXACT = ("ms", "s", "m", "h")  # steps of these units are durations; those of others keep the wall clock
DAY_MS = UNITS_MS["d"]
_EPOCH = datetime(1970, 1, 1)  # on a wall
_MS = timedelta(milliseconds=1)
_CONTAINERS = {"ms": 1000, "s": 60, "m": 60, "h": 24}  # how many of a unit the next one holds
_HALVES = {"ms": ("s", "m"), "s": ("m", "h"), "m": ("h", "d"), "h": ("d", "n")}  # anchors: it divides, it does not


def find_zone(name: str) -> ZoneInfo:
    """The zone of a name; raises BadQuery."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
        raise BadQuery("The timezone specification could not be found") from exc


@lru_cache(4096)
def base(time_ms: int, calendar: Calendar) -> int:
    """The start of the bucket that holds a time: from the anchor in steps until past it, and one step back.

    What that step leads to is Java's: where the bucket after ends a gap in the wall clock, this one begins as late in
    the day as that, be it later than the time itself.

    >>> base(1362800000000, Calendar(1, "d", "UTC")) == 1362787200000
    True
    """
    zone = find_zone(calendar.zone)
    start = _anchor(time_ms, calendar.number, calendar.unit, zone)
    if start == time_ms:
        return start
    if calendar.unit == "w":
        calendar = calendar._replace(number=1)  # whatever the number, weeks are stepped one by one
    if calendar.unit in EXACT:
        step = calendar.number * UNITS_MS[calendar.unit]
        return start + max((time_ms - start) // step, -1) * step
    while start <= time_ms:
        start = _stepped(start, calendar, 1)
    return _stepped(start, calendar, -1)


@lru_cache(4096)
def after(start_ms: int, calendar: Calendar) -> int:
    """The start of the bucket after the one that starts at `start_ms`."""
    return _stepped(start_ms, calendar, 1)


def _stepped(start_ms: int, calendar: Calendar, sign: int) -> int:
    """A bucket's length later, or (-1) earlier."""
    number = calendar.number * sign
    if calendar.unit in EXACT:
        return start_ms + number * UNITS_MS[calendar.unit]
    zone = find_zone(calendar.zone)
    if calendar.unit in ("d", "w"):
        return _plus_days(start_ms, number * (7 if calendar.unit == "w" else 1), zone)
    wall = _wall(start_ms, zone)
    year, month = divmod(wall.year * 12 + wall.month - 1 + number * (12 if calendar.unit == "y" else 1), 12)
    return _instant(_on(wall, year, month + 1), zone)


def _on(wall: datetime, year: int, month: int) -> datetime:
    """The same day and time of another month; its last day where it is shorter."""
    for day in (wall.day, 30, 29, 28):
        try:
            return wall.replace(year=year, month=month, day=day)
        except ValueError:
            continue
    raise BadQuery(f"Invalid timestamp: year {year}")


def _anchor(time_ms: int, number: int, unit: str, zone: ZoneInfo) -> int:
    """Where stepping starts: query.md §9.2's table."""
    if unit in _HALVES:
        fits = _CONTAINERS[unit] % number == 0
        return _start_of(_HALVES[unit][0 if fits else 1], time_ms, zone)
    if unit == "d":
        return _start_of("n" if number == 1 else "y", time_ms, zone)
    if unit == "w":
        return _start_of("w", time_ms, zone) if number <= 2 else _january_week(time_ms, zone)
    return _start_of("y", time_ms, zone)


def _start_of(unit: str, time_ms: int, zone: ZoneInfo) -> int:
    """The first moment of the second, minute, hour, day, week, month or year that holds a time."""
    wall = _wall(time_ms, zone)
    if unit in ("s", "m", "h"):
        part = timedelta(milliseconds=UNITS_MS[unit])
        return _instant(_EPOCH + (wall - _EPOCH) // part * part, zone)
    day = wall.replace(hour=0, minute=0, second=0, microsecond=0)
    if unit == "w":
        day = _week_of(day)
    elif unit == "n":
        day = day.replace(day=1)
    elif unit == "y":
        day = day.replace(month=1, day=1)
    return _instant(day, zone)


def _january_week(time_ms: int, zone: ZoneInfo) -> int:
    """The week that is as far into January as a time's week is into its month: Java keeps the number of that week.

    Where only Sundays are midnights of a bucket, this changes nothing; a midnight that a gap in the wall clock has
    moved since January stays moved.
    """
    wall = _wall(time_ms, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    first = _week_of(wall.replace(day=1))
    return _instant(_week_of(wall.replace(month=1, day=1)) + (_week_of(wall) - first), zone)


def _week_of(day: datetime) -> datetime:
    """The Sunday on or before."""
    return day - timedelta(days=(day.weekday() + 1) % 7)


def _plus_days(start_ms: int, days: int, zone: ZoneInfo) -> int:
    """So many days later at the same time of day. Where that does not exist, or changes the date, as Java has it."""
    wall = _wall(start_ms, zone) + timedelta(days=days)
    before = _offset_ms(start_ms, zone)
    moved = (wall - _EPOCH) // _MS - before
    change = before - _offset_ms(moved, zone)
    if change and _wall(moved + change, zone).date() == wall.date():
        return moved + change
    return moved


def _wall(time_ms: int, zone: ZoneInfo) -> datetime:
    """The wall clock at a time."""
    return _EPOCH + (time_ms + _offset_ms(time_ms, zone)) * _MS


def _offset_ms(time_ms: int, zone: ZoneInfo) -> int:
    """How far the wall clock is ahead of UTC."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone)
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _MS


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """When the wall clock shows this: after the gap if never, the later time if twice."""
    early, late = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    gap = early.utcoffset() < late.utcoffset()  # type: ignore[operator]
    offset = (early if gap else late).utcoffset()
    assert offset is not None
    return (wall - _EPOCH - offset) // _MS

"""Calendar buckets: where they start in a time zone of the tz database.

Steps are computed as in Java, because OpenTSDB's answers depend on it (docs/compat/query.md §9.2). Fields are lenient.
A wall-clock time that does not exist moves past the gap; of one that exists twice the later is used.
"""

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from tsd.codec.dates import UNITS_MS, find_zone
from tsd.errors import BadQuery
from tsd.query.model import Calendar

EXACT = ("ms", "s", "m", "h")  # steps of these units are durations; other steps keep the time of day
DAY_MS = UNITS_MS["d"]
_EPOCH = datetime(1970, 1, 1)  # wall-clock time
_MS = timedelta(milliseconds=1)
_CONTAINERS = {"ms": 1000, "s": 60, "m": 60, "h": 24}  # how many of a unit the next one holds
_ANCHORS = {
    "ms": ("s", "m"),
    "s": ("m", "h"),
    "m": ("h", "d"),
    "h": ("d", "n"),
}  # anchor if the number divides the container, and if it does not


def _zone_of(calendar: Calendar) -> ZoneInfo:
    """Return the zone of a calendar. Raise BadQuery."""
    zone = find_zone(calendar.zone)
    if zone is None:
        raise BadQuery("The timezone specification could not be found")
    return zone


@lru_cache(4096)
def base(time_ms: int, calendar: Calendar) -> int:
    """Return the start of the bucket that holds a time: step from the anchor until past it, then one step back.

    The next bucket may start at the end of a gap in the wall clock. As in Java, this one then starts at the same time
    of day, even if that is after the time itself.

    >>> base(1362800000000, Calendar(1, "d", "UTC")) == 1362787200000
    True
    """
    zone = _zone_of(calendar)
    start = _anchor(time_ms, calendar.number, calendar.unit, zone)
    if start == time_ms:
        return start
    if calendar.unit == "w":
        calendar = calendar._replace(number=1)  # weeks are stepped one by one
    if calendar.unit in EXACT:
        step = calendar.number * UNITS_MS[calendar.unit]
        return start + max((time_ms - start) // step, -1) * step
    while start <= time_ms:
        start = _stepped(start, calendar, 1)
    return _stepped(start, calendar, -1)


@lru_cache(4096)
def after(start_ms: int, calendar: Calendar) -> int:
    """Return the start of the bucket after the one that starts at `start_ms`."""
    return _stepped(start_ms, calendar, 1)


def is_midnight(time_ms: int, calendar: Calendar) -> bool:
    """Return whether a day of the calendar's zone begins at a time. Where clocks change at midnight, some buckets begin
    at another one.

    >>> is_midnight(1362783600000, Calendar(1, "d", "Europe/Berlin"))
    True
    """
    return _start_of("d", time_ms, _zone_of(calendar)) == time_ms


def _stepped(start_ms: int, calendar: Calendar, sign: int) -> int:
    """Return the time one bucket later, or earlier with sign -1."""
    number = calendar.number * sign
    if calendar.unit in EXACT:
        return start_ms + number * UNITS_MS[calendar.unit]
    zone = _zone_of(calendar)
    if calendar.unit in ("d", "w"):
        return _plus_days(start_ms, number * (7 if calendar.unit == "w" else 1), zone)
    wall = _wall(start_ms, zone)
    year, month = divmod(wall.year * 12 + wall.month - 1 + number * (12 if calendar.unit == "y" else 1), 12)
    return _instant(_on(wall, year, month + 1), zone)


def _on(wall: datetime, year: int, month: int) -> datetime:
    """Return the same day and time of another month, or its last day."""
    for day in (wall.day, 30, 29, 28):
        try:
            return wall.replace(year=year, month=month, day=day)
        except ValueError:
            continue
    raise BadQuery(f"Invalid timestamp: year {year}")


def _anchor(time_ms: int, number: int, unit: str, zone: ZoneInfo) -> int:
    """Return where stepping starts: docs/compat/query.md §9.2's table."""
    if unit in _ANCHORS:
        fits = _CONTAINERS[unit] % number == 0
        return _start_of(_ANCHORS[unit][0 if fits else 1], time_ms, zone)
    if unit == "d":
        return _start_of("n" if number == 1 else "y", time_ms, zone)
    if unit == "w":
        return _start_of("w", time_ms, zone) if number <= 2 else _january_week(time_ms, zone)
    return _start_of("y", time_ms, zone)


def _start_of(unit: str, time_ms: int, zone: ZoneInfo) -> int:
    """Return the first moment of the second, minute, hour, day, week, month or year that holds a time."""
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
    """Return the week of January with the same number that a time's week has in its month, as Java does.

    This matters only if a gap in the wall clock has moved midnight since January.
    """
    wall = _wall(time_ms, zone).replace(hour=0, minute=0, second=0, microsecond=0)
    first = _week_of(wall.replace(day=1))
    return _instant(_week_of(wall.replace(month=1, day=1)) + (_week_of(wall) - first), zone)


def _week_of(day: datetime) -> datetime:
    """Return the Sunday on or before a day."""
    return day - timedelta(days=(day.weekday() + 1) % 7)


def _plus_days(start_ms: int, days: int, zone: ZoneInfo) -> int:
    """Return the same time of day `days` later; as Java does if that time does not exist or changes the date."""
    wall = _wall(start_ms, zone) + timedelta(days=days)
    before = _offset_ms(start_ms, zone)
    moved = (wall - _EPOCH) // _MS - before
    change = before - _offset_ms(moved, zone)
    if change and _wall(moved + change, zone).date() == wall.date():
        return moved + change
    return moved


def _wall(time_ms: int, zone: ZoneInfo) -> datetime:
    """Return the wall-clock time."""
    return _EPOCH + (time_ms + _offset_ms(time_ms, zone)) * _MS


def _offset_ms(time_ms: int, zone: ZoneInfo) -> int:
    """Return how far the wall clock is ahead of UTC."""
    moment = datetime.fromtimestamp(time_ms // 1000, UTC).astimezone(zone)
    offset = moment.utcoffset()
    assert offset is not None
    return offset // _MS


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """Return the moment of a wall-clock time: after the gap if it does not exist, the later if it exists twice."""
    early, late = (wall.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    gap = early.utcoffset() < late.utcoffset()  # type: ignore[operator]
    offset = (early if gap else late).utcoffset()
    assert offset is not None
    return (wall - _EPOCH - offset) // _MS

"""The times that requests name: text to milliseconds since the epoch (query.md §2.1, §2.3)."""

import re
from calendar import timegm
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from tsd.codec.words import parse_long
from tsd.errors import BadLine, BadQuery
from tsd.query.durations import read_duration

LAST_MS = 9_999_999_999_999
SECONDS_DIGITS = 10  # a longer number is of milliseconds
_MS = re.compile(r"[0-9]+ms")
_NUMBER = r"\s*(-?[0-9]+)"
_DAY = rf"{_NUMBER}/{_NUMBER}/{_NUMBER}"
_FORMS = {
    10: (re.compile(_DAY),),
    16: (re.compile(rf"{_DAY}-{_NUMBER}:{_NUMBER}"), re.compile(rf"{_DAY} {_NUMBER}:{_NUMBER}")),
    19: (
        re.compile(rf"{_DAY}-{_NUMBER}:{_NUMBER}:{_NUMBER}"),
        re.compile(rf"{_DAY} {_NUMBER}:{_NUMBER}:{_NUMBER}"),
    ),
}


@lru_cache(64)
def find_zone(name: str) -> ZoneInfo | None:
    """A time zone of the tz database, or None.

    >>> find_zone("Europe/Berlin"), find_zone("Nope/Zone")
    (zoneinfo.ZoneInfo(key='Europe/Berlin'), None)
    """
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def read_time(text: str, now_ms: int, zone: str = "", *, local: tzinfo | None = None, corrected: bool = False) -> int:
    """Milliseconds of a time that is not empty; dates are those of `zone`, or `local` (None: the machine's) without
    one. Raises BadQuery.

    >>> read_time("1356998400", 0), read_time("1356998400500", 0), read_time("1H-ago", 3_600_000)
    (1356998400000, 1356998400500, 0)
    >>> read_time("2013/01/00-24:00", 0, "UTC"), read_time("1356998400.5", 0, corrected=True)
    (1356998400000, 1356998400500)
    """
    if text.isascii() and text.isdigit() and len(text) <= SECONDS_DIGITS:
        return int(text) * 1000
    word = text.lower()
    if word == "now":
        return now_ms
    if _MS.fullmatch(text):
        return _integer(text[:-2], "")
    if word.endswith("-ago"):
        return now_ms - read_duration(text[:-4], corrected=corrected)
    if "/" in text or ":" in text:
        return _read_date(text, zone, local)
    if "." in text:
        return _read_decimal(text, corrected=corrected)
    number = _integer(text, f"Invalid time: {text}. ")
    if number < 0:
        raise BadQuery(f"Invalid time: {text}. Negative timestamps are not supported.")
    return number * 1000 if len(text) <= SECONDS_DIGITS else number


def _integer(text: str, wrong: str) -> int:
    try:
        return parse_long(text.encode("latin-1", "replace"))
    except BadLine as exc:
        raise BadQuery(wrong + str(exc).removeprefix("invalid value: ")) from exc


def _read_decimal(text: str, *, corrected: bool) -> int:
    """Seconds with decimals. OpenTSDB runs the digits together, and so is right with three of them only."""
    seconds, _, decimals = text.partition(".")
    both = seconds + decimals
    if len(seconds) != SECONDS_DIGITS or not 1 <= len(decimals) <= 3 or not (both.isascii() and both.isdigit()):
        raise BadQuery(
            f"Invalid time: {text}. Millisecond timestamps must be in the format <seconds>.<ms> where the milliseconds "
            "are limited to 3 digits"
        )
    return int(seconds + decimals.ljust(3, "0")) if corrected else int(both)


def _read_date(text: str, zone: str, local: tzinfo | None) -> int:
    """A date and time on the clock of a zone. What is beyond a field's range rolls over into the next."""
    forms = _FORMS.get(len(text))
    if forms is None:
        raise BadQuery(f"Invalid absolute date: {text}")
    clock = find_zone(zone) if zone else local
    if zone and clock is None:
        raise BadQuery(f"Invalid timezone name: {zone}")
    match = next((found for form in forms if (found := form.match(text))), None)
    if match is None:
        raise BadQuery(f'Invalid date: {text}. Unparseable date: "{text}"')
    year, month, day, *time = map(int, match.groups())
    hour, minute, second = (*time, 0, 0, 0)[:3]
    year, month = year + (month - 1) // 12, (month - 1) % 12 + 1
    if not 1 <= year < 10_000:
        raise BadQuery(f"Invalid absolute date: {text}")
    try:
        wall = datetime(year, month, 1) + timedelta(days=day - 1, hours=hour, minutes=minute, seconds=second)
        return (timegm(wall.timetuple()) - _offset_s(wall, clock)) * 1000
    except OverflowError as exc:
        raise BadQuery(f"Invalid absolute date: {text}") from exc


def _offset_s(wall: datetime, clock: tzinfo | None) -> int:
    """Seconds that a clock is ahead of UTC. In the hour that comes twice it is the second, and one that is left out is
    counted on from the hour before it: both times the smaller offset."""
    if clock is UTC:
        return 0
    return min(_shift_s(wall.replace(fold=fold), clock) for fold in (0, 1))


def _shift_s(wall: datetime, clock: tzinfo | None) -> int:
    there = wall.astimezone() if clock is None else wall.replace(tzinfo=clock)
    shift = there.utcoffset()
    assert shift is not None
    return int(shift.total_seconds())

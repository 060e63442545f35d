"""Parses times and durations to milliseconds, and downsamplers (docs/compat/query.md §2, §9)."""

import re
from calendar import timegm
from datetime import UTC, datetime, timedelta, tzinfo

from tsd.codec.dates import UNITS_MS, find_zone
from tsd.codec.text import parse_long
from tsd.errors import BadLine, BadQuery
from tsd.query.model import AGGREGATORS, NONE, Calendar, Downsample, Fill
from tsd.tables.quirks import OPENTSDB, Quirks

LONGEST_MS = (1 << 63) - 1
MOST_OF_UNIT = (1 << 31) - 1  # longest step of OpenTSDB's calendar
LONGEST_CALENDAR_MS = 1000 * UNITS_MS["y"]  # of a step: all points are within 136 years
MOST_DIGITS = 4000  # Python refuses longer integers (sys.set_int_max_str_digits)
_COUNT = re.compile(r"[0-9]*")
_DECIMAL = re.compile(r"([0-9]+\.[0-9]+)(ms|[smhdwny])", re.IGNORECASE)
_FUNCTIONS = frozenset(AGGREGATORS)
_FILLS = {fill.value: fill for fill in Fill}


def read_duration(text: str, *, quirks: Quirks = OPENTSDB) -> int:
    """Return milliseconds of a duration. Raise BadQuery.

    OpenTSDB ignores text between the leading digits and the unit at the end, so that `1.5h` is an hour.

    >>> from tsd.tables.quirks import CORRECTED
    >>> read_duration("90s"), read_duration("1N"), read_duration("1.5h"), read_duration("1.5h", quirks=CORRECTED)
    (90000, 2592000000, 3600000, 5400000)
    """
    if not quirks.durations_skip_text and (decimal := _DECIMAL.fullmatch(text)):
        length_ms = float(decimal[1]) * UNITS_MS[decimal[2].lower()]
        if length_ms.is_integer() and 0 < length_ms <= LONGEST_MS:
            return int(length_ms)
        raise BadQuery(f"Invalid duration, wanted whole milliseconds: {text}")
    number, unit = split_duration(text)
    length = number * UNITS_MS[unit]
    if length > LONGEST_MS:
        raise BadQuery(f"Duration must be < Long.MAX_VALUE ms: {text}")
    return length


def split_duration(text: str) -> tuple[int, str]:
    """Return number and unit. Raise BadQuery.

    >>> split_duration("12h"), split_duration("5MS")
    ((12, 'h'), (5, 'ms'))
    """
    digits = _COUNT.match(text)
    assert digits
    if digits.end() == len(text):
        raise BadQuery(f"Invalid duration, must have an integer and unit: {text}")
    if not digits[0] or len(digits[0]) > MOST_DIGITS or int(digits[0]) > LONGEST_MS:
        raise BadQuery(f"Invalid duration (number): {text}")
    number = int(digits[0])
    if number == 0:
        raise BadQuery(f"Zero or negative duration: {text}")
    word = text.lower()
    unit = "ms" if word.endswith("ms") else word[-1]
    if unit not in UNITS_MS:
        raise BadQuery(f"Invalid duration (suffix): {text}")
    return number, unit


def read_downsample(
    text: str, *, zone: str = "UTC", use_calendar: bool = False, quirks: Quirks = OPENTSDB
) -> Downsample:
    """Parse `interval-function[-fill]`; `zone` applies to calendar buckets. Raise BadQuery.

    >>> read_downsample("1dc-sum-zero").calendar, read_downsample("0all-max").is_all
    (Calendar(number=1, unit='d', zone='UTC'), True)
    """
    parts = text.rstrip("-").split("-")  # like Java's split, without empty texts at the end
    wrong = f"Invalid downsampling specifier '{text}': must "
    if len(parts) < 2:
        raise BadQuery(f"{wrong}provide at least interval and function")
    if len(parts) > 3:
        raise BadQuery(f"{wrong}consist of interval, function, and optional fill policy")
    span, function, fill = (*parts, Fill.NONE.value)[:3]
    is_all = "all" in span
    by_calendar = span.endswith("c") and not is_all
    span = span[:-1] if by_calendar else span
    interval_ms = 0 if is_all else read_duration(span, quirks=quirks)
    if function == NONE:
        raise BadQuery("cannot use the NONE aggregator for downsampling")
    if function not in _FUNCTIONS:
        raise BadQuery(f"No such downsampling function: {function}")
    if fill.lower() not in _FILLS:
        raise BadQuery(f"Unrecognized fill policy: {fill}")
    calendar = _calendar(span, zone) if (by_calendar or use_calendar) and not is_all else None
    if calendar:
        interval_ms = min(interval_ms, LONGEST_CALENDAR_MS)
    return Downsample(text, interval_ms, function, _FILLS[fill.lower()], calendar)


def _calendar(span: str, zone: str) -> Calendar:
    """Return calendar buckets, limited to LONGEST_CALENDAR_MS. Raise BadQuery."""
    number, unit = split_duration(span)
    if number > MOST_OF_UNIT:
        raise BadQuery(f"Invalid duration (number): {span}")
    return Calendar(min(number, LONGEST_CALENDAR_MS // UNITS_MS[unit]), unit, zone)


LAST_MS = 9_999_999_999_999
SECONDS_DIGITS = 10  # longer numbers are milliseconds
USUAL_DIGITS = 18  # of a number that fits into 64 bits
_MS = re.compile(r"[0-9]+ms")
_NUMBER = r"\s*(-?[0-9]+)"
_DAY = rf"{_NUMBER}/{_NUMBER}/{_NUMBER}"
_TIME_FORMS = {
    10: (re.compile(_DAY),),
    16: (re.compile(rf"{_DAY}-{_NUMBER}:{_NUMBER}"), re.compile(rf"{_DAY} {_NUMBER}:{_NUMBER}")),
    19: (
        re.compile(rf"{_DAY}-{_NUMBER}:{_NUMBER}:{_NUMBER}"),
        re.compile(rf"{_DAY} {_NUMBER}:{_NUMBER}:{_NUMBER}"),
    ),
}


def read_time(text: str, now_ms: int, zone: str = "", *, local: tzinfo | None = None, quirks: Quirks = OPENTSDB) -> int:
    """Return milliseconds of a time, not empty; dates are in `zone`, or without one in `local` (None: the machine's).
    Raise BadQuery.

    >>> read_time("1356998400", 0), read_time("1356998400500", 0), read_time("1H-ago", 3_600_000)
    (1356998400000, 1356998400500, 0)
    >>> from tsd.tables.quirks import CORRECTED
    >>> read_time("2013/01/00-24:00", 0, "UTC"), read_time("1356998400.5", 0, quirks=CORRECTED)
    (1356998400000, 1356998400500)
    """
    if text.isascii() and text.isdigit() and len(text) <= USUAL_DIGITS:
        return int(text) * 1000 if len(text) <= SECONDS_DIGITS else int(text)
    word = text.lower()
    if word == "now":
        return now_ms
    if _MS.fullmatch(text):
        return _integer(text[:-2], "")
    if word.endswith("-ago"):
        return now_ms - read_duration(text[:-4], quirks=quirks)
    if "/" in text or ":" in text:
        return _read_date(text, zone, local)
    if "." in text:
        return _read_decimal(text, quirks=quirks)
    number = _integer(text, f"Invalid time: {text}. ")
    if number < 0:
        raise BadQuery(f"Invalid time: {text}. Negative timestamps are not supported.")
    return number * 1000 if len(text) <= SECONDS_DIGITS else number


def _integer(text: str, wrong: str) -> int:
    try:
        return parse_long(text.encode("latin-1", "replace"))
    except BadLine as exc:
        raise BadQuery(wrong + str(exc).removeprefix("invalid value: ")) from exc


def _read_decimal(text: str, *, quirks: Quirks) -> int:
    """Parse seconds with decimals. OpenTSDB appends the digits, which is right only for three."""
    seconds, _, decimals = text.partition(".")
    both = seconds + decimals
    if len(seconds) != SECONDS_DIGITS or not 1 <= len(decimals) <= 3 or not (both.isascii() and both.isdigit()):
        raise BadQuery(
            f"Invalid time: {text}. Millisecond timestamps must be in the format <seconds>.<ms> where the milliseconds "
            "are limited to 3 digits"
        )
    return int(both) if quirks.decimals_run_together else int(seconds + decimals.ljust(3, "0"))


def _read_date(text: str, zone: str, local: tzinfo | None) -> int:
    """Parse a date and time in a zone. Fields out of range roll over into the next."""
    forms = _TIME_FORMS.get(len(text))
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
    except (ValueError, OverflowError) as exc:  # ValueError: in the machine's zone, for the years 1 and 9999
        raise BadQuery(f"Invalid absolute date: {text}") from exc


def _offset_s(wall: datetime, clock: tzinfo | None) -> int:
    """Return how many seconds a clock is ahead of UTC: in a repeated or skipped hour the smaller offset."""
    if clock is UTC:
        return 0
    return min(_shift_s(wall.replace(fold=fold), clock) for fold in (0, 1))


def _shift_s(wall: datetime, clock: tzinfo | None) -> int:
    there = wall.astimezone() if clock is None else wall.replace(tzinfo=clock)
    shift = there.utcoffset()
    assert shift is not None
    return int(shift.total_seconds())

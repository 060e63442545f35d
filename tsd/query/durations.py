"""How long a text says, and the downsampler that a text asks for (query.md §2.2, §9)."""

import re

from tsd.errors import BadQuery
from tsd.query.dates import UNITS_MS
from tsd.query.model import Calendar, Downsample, Fill
from tsd.query.names import AGGREGATORS, NONE

LONGEST_MS = (1 << 63) - 1
MOST_OF_UNIT = (1 << 31) - 1  # that OpenTSDB's calendar steps by
LONGEST_CALENDAR_MS = 1000 * UNITS_MS["y"]  # of a step: all points are within 136 years, and a longer one ends nowhere
MOST_DIGITS = 4000  # Python reads no more as a number
_COUNT = re.compile(r"[0-9]*")
_DECIMAL = re.compile(r"([0-9]+\.[0-9]+)(ms|[smhdwny])", re.IGNORECASE)
_FUNCTIONS = frozenset(AGGREGATORS)
_FILLS = {fill.value: fill for fill in Fill}


def read_duration(text: str, *, corrected: bool = False) -> int:
    """Milliseconds of a duration; raises BadQuery.

    What stands between the leading digits and the unit at the end is passed over, so that `1.5h` is an hour, unless
    `corrected`.

    >>> read_duration("90s"), read_duration("1N"), read_duration("1.5h"), read_duration("1.5h", corrected=True)
    (90000, 2592000000, 3600000, 5400000)
    """
    if corrected and (decimal := _DECIMAL.fullmatch(text)):
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
    """How many of which unit; raises BadQuery.

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


def read_downsample(text: str, *, zone: str = "UTC", use_calendar: bool = False, corrected: bool = False) -> Downsample:
    """The downsampler of `interval-function[-fill]`; `zone` counts for calendar buckets. Raises BadQuery.

    >>> read_downsample("1dc-sum-zero").calendar, read_downsample("0all-max").is_all
    (Calendar(number=1, unit='d', zone='UTC'), True)
    """
    parts = text.rstrip("-").split("-")  # as Java splits: without what is empty at the end
    wrong = f"Invalid downsampling specifier '{text}': must "
    if len(parts) < 2:
        raise BadQuery(f"{wrong}provide at least interval and function")
    if len(parts) > 3:
        raise BadQuery(f"{wrong}consist of interval, function, and optional fill policy")
    span, function, fill = (*parts, Fill.NONE.value)[:3]
    is_all = "all" in span
    by_calendar = span.endswith("c") and not is_all
    span = span[:-1] if by_calendar else span
    interval_ms = 0 if is_all else read_duration(span, corrected=corrected)
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
    """Buckets by the calendar; raises BadQuery. Of those that no second one follows it does not matter how long they
    are."""
    number, unit = split_duration(span)
    if number > MOST_OF_UNIT:
        raise BadQuery(f"Invalid duration (number): {span}")
    return Calendar(min(number, LONGEST_CALENDAR_MS // UNITS_MS[unit]), unit, zone)

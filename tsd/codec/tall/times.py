"""Times as texts in row keys and columns: the order of the texts is that of the times (FORMATS.md in this folder)."""

import re
from datetime import UTC, datetime
from functools import lru_cache

from tsd.codec.putline import LAST_BASE_MS

EVENT_BYTES, DAY_BYTES = 13, 8
DAY_MS = 86_400_000
_CLOCK = re.compile(rb"([01][0-9]|2[0-3])([0-5][0-9])(?:([0-5][0-9])([0-9]{3})?)?")


def event_text(time_ms: int) -> bytes:
    """Return the time of an event in Unix milliseconds.

    >>> event_text(1_000)
    b'0000000001000'
    """
    return b"%013d" % time_ms


def parse_event(text: bytes) -> int:
    """Return the milliseconds of the time of an event. Raise ValueError."""
    if len(text) != EVENT_BYTES or not text.isdigit() or (time_ms := int(text)) > LAST_BASE_MS:
        raise ValueError(f"got {text!r}, wanted a time in {EVENT_BYTES} digits")
    return time_ms


@lru_cache(4096)
def day_text(time_ms: int) -> bytes:
    """Return the day of a time, in UTC.

    >>> day_text(1_389_398_399_999)
    b'20140110'
    """
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y%m%d").encode()


def parse_day(text: bytes) -> int:
    """Return the milliseconds of the start of a day. Raise ValueError."""
    if len(text) != DAY_BYTES or not text.isdigit() or int(text[:4]) < 1970:
        raise ValueError(f"got {text.decode(errors='replace')}, wanted a day as YYYYMMDD")
    return int(datetime.strptime(text.decode() + "+0000", "%Y%m%d%z").timestamp()) * 1000


@lru_cache(1 << 17)
def clock_text(offset_ms: int) -> bytes:
    """Return the time of the day of a point: HHMM, with SS unless it is 0, and with milliseconds unless they are 0.

    >>> clock_text(900_000), clock_text(930_000), clock_text(85_530_250)
    (b'0015', b'001530', b'234530250')
    """
    seconds, ms = divmod(offset_ms, 1000)
    text = b"%02d%02d" % (seconds // 3600, seconds // 60 % 60)
    if seconds % 60 or ms:
        text += b"%02d" % (seconds % 60)
    return text + b"%03d" % ms if ms else text


@lru_cache(1 << 17)
def parse_clock(text: bytes) -> int:
    """Return the milliseconds since the start of the day. Raise ValueError."""
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError(f"got {text!r}, wanted HHMM, HHMMSS or HHMMSS and milliseconds")
    hours, minutes, seconds, ms = (int(part or 0) for part in found.groups())
    offset_ms = ((hours * 60 + minutes) * 60 + seconds) * 1000 + ms
    if clock_text(offset_ms) != text:
        raise ValueError(f"got {text!r}, wanted {clock_text(offset_ms)!r}: no zeros that say nothing")
    return offset_ms

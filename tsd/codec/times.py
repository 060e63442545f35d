"""Timestamps, base times and offsets (FORMATS.md §3).

A timestamp is what a sender wrote: Unix seconds below 2^32, milliseconds from there up. Inside the daemon a time is
one integer, its *instant*: milliseconds shifted left by one, with the low bit set where the sender wrote milliseconds.
So instants sort in time order, and the bit picks the qualifier's width.
"""

from typing import NewType

from tsd.codec.words import parse_long
from tsd.errors import ILLEGAL_ARGUMENT, BadLine

BaseTime = NewType("BaseTime", int)  # Unix seconds, a multiple of 3600
Timestamp = NewType("Timestamp", int)  # as sent: seconds below 2**32, milliseconds from there up
Instant = NewType("Instant", int)  # milliseconds << 1 | sent in milliseconds

HOUR_S = 3600
FIRST_MS = 1 << 32  # the smallest timestamp that means milliseconds
LAST_MS = 9999999999999  # the largest one OpenTSDB takes
LAST_BASE_MS = ((1 << 32) // HOUR_S * HOUR_S + HOUR_S) * 1000 - 1  # beyond it a base time leaves its 32 bits
HOUR = HOUR_S * 1000 << 1  # an hour, as a difference of instants


def instant(timestamp: int) -> Instant:
    """The instant of a timestamp.

    >>> instant(1356998400), instant(1356998400000)
    (2713996800000, 2713996800001)
    """
    return Instant(timestamp << 1 | 1 if timestamp >= FIRST_MS else timestamp * 2000)


def timestamp(moment: int) -> Timestamp:
    """The timestamp that an instant was made from.

    >>> timestamp(instant(1356998400)), timestamp(instant(1356998400500))
    (1356998400, 1356998400500)
    """
    return Timestamp(moment >> 1 if moment & 1 else moment // 2000)


def base_time(timestamp: int) -> BaseTime:
    """Start of the hour that holds `timestamp`, in seconds.

    >>> base_time(1356998403), base_time(1357001999999)
    (1356998400, 1356998400)
    """
    seconds = timestamp // 1000 if timestamp >= FIRST_MS else timestamp
    return BaseTime(seconds - seconds % HOUR_S)


def parse_time(word: bytes) -> Timestamp:
    """The timestamp a telnet word stands for; the range above 2^32 is `parse_put`'s business.

    OpenTSDB takes every dot out of the word first, so that 1500000000.5 becomes a millisecond of 1970. Where its
    reading is a millisecond and the word has one dot, this one is decimal seconds, cut to milliseconds; every
    other dotted word is read as OpenTSDB reads it. Raises BadLine.

    >>> parse_time(b"1356998400.501"), parse_time(b"1356998400.5"), parse_time(b"1356998400.")
    (1356998400501, 1356998400500, 1356998400)
    """
    number = parse_long(word.replace(b".", b"") if b"." in word else word)
    if number <= 0:
        raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {number}")
    if b"." in word and FIRST_MS <= number <= LAST_MS:
        seconds, _, decimals = word.partition(b".")
        if b"." in decimals:
            shown = word.decode("latin-1")
            raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {shown}: one dot at most")
        number = parse_long(seconds or b"0") * 1000 + int(decimals[:3].ljust(3, b"0") or b"0")
        if number < FIRST_MS:  # too early to be written in milliseconds without being taken for seconds
            shown = word.decode("latin-1")
            raise BadLine(ILLEGAL_ARGUMENT, f"illegal argument: invalid timestamp: {shown}: before {FIRST_MS} ms")
    return Timestamp(number)


def storable(timestamp: int) -> bool:
    """Whether a row key can hold the time. OpenTSDB takes up to 9999999999999 ms and wraps the base time (to 2014
    for that one); from 2106 on we refuse instead.

    >>> storable(1356998400), storable(LAST_BASE_MS), storable(9999999999999)
    (True, True, False)
    """
    return timestamp <= LAST_BASE_MS

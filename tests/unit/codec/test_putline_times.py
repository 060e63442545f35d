"""Timestamps, as words and as base times and offsets."""

import pytest

from tsd.codec.opentsdb.cell import ms_qualifier, offset_ms, qualifier_of, seconds_qualifier
from tsd.codec.opentsdb.rowkey import KeyLayout, row_key
from tsd.codec.putline import FIRST_MS, HOUR_S, LAST_BASE_MS, base_time, instant, parse_time, storable, timestamp
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine


@pytest.mark.parametrize(
    ("word", "time"),
    [
        (b"1", 1),
        (b"+1356998400", 1356998400),
        (b"4294967295", 4294967295),
        (b"4294967296", 4294967296),
        (b"1356998400.", 1356998400),
        (b"13569984.00", 1356998400),
        (b"1.3.5.6998400", 1356998400),
        (b"1.5", 15),
        (b"1356998400.501", 1356998400501),
        (b"1356998400.5", 1356998400500),
        (b"1356998400.50", 1356998400500),
        (b"+1356998400.5", 1356998400500),
        (b"4294967.2960", 4294967296),
        (b"1356998400.5019", 13569984005019),  # as OpenTSDB reads it; parse_put refuses it for its size
    ],
)
def test_valid_times_are_parsed(word: bytes, time: int) -> None:
    assert parse_time(word) == time


@pytest.mark.parametrize(
    ("word", "reason", "message"),
    [
        (b"0", ILLEGAL_ARGUMENT, "illegal argument: invalid timestamp: 0"),
        (b"-1356998400.5", ILLEGAL_ARGUMENT, "illegal argument: invalid timestamp: -13569984005"),
        (b".", INVALID_VALUE, "invalid value: Empty string"),
        (b"1356998400.x", INVALID_VALUE, "invalid value: Invalid character 'x' in 1356998400x"),
        (b"1356.998400.5", ILLEGAL_ARGUMENT, "illegal argument: invalid timestamp: 1356.998400.5: one dot at most"),
        (b"4294967.2950", ILLEGAL_ARGUMENT, "illegal argument: invalid timestamp: 4294967.2950: before 4294967296 ms"),
        (
            b".1356998400500",
            ILLEGAL_ARGUMENT,
            "illegal argument: invalid timestamp: .1356998400500: before 4294967296 ms",
        ),
    ],
)
def test_invalid_times_are_refused(word: bytes, reason: str, message: str) -> None:
    with pytest.raises(BadLine) as refused:
        parse_time(word)
    assert (refused.value.reason, str(refused.value)) == (reason, message)


@pytest.mark.difference(
    "base-time-overflow",
    topic="points",
    theirs="A time in ms with an hour beyond 32 bits (from 4294969200000 on) is stored decades away",
    ours="It is refused as a bad timestamp",
)
def test_last_storable_time_is_before_base_times_wrap() -> None:
    assert storable(LAST_BASE_MS)
    assert not storable(LAST_BASE_MS + 1)
    assert base_time(LAST_BASE_MS) < 1 << 32 <= base_time(LAST_BASE_MS + 1)
    key = row_key(KeyLayout(), b"\0\0\1", base_time(LAST_BASE_MS), b"")
    assert int.from_bytes(key[3:7], "big") == base_time(LAST_BASE_MS)


def test_seconds_and_milliseconds_of_an_instant_are_both_kept() -> None:
    assert instant(1356998401) + 1 == instant(1356998401000)
    assert timestamp(instant(1356998401)) == 1356998401
    assert timestamp(instant(1356998401000)) == 1356998401000
    assert instant(1356998400999) < instant(1356998401) < instant(1356998401000) < instant(1356998401001)


def test_qualifier_width_follows_the_unit() -> None:
    assert qualifier_of(instant(1357001999), 0) == seconds_qualifier(HOUR_S - 1, 0)
    assert qualifier_of(instant(1357001999999), 0) == ms_qualifier(HOUR_S * 1000 - 1, 0)
    assert offset_ms(qualifier_of(instant(FIRST_MS), 0)) == FIRST_MS - base_time(FIRST_MS) * 1000

"""Parsing of times. tests/conformance compares them with OpenTSDB's own classes."""

from datetime import UTC

import pytest

from tsd.codec.dates import find_zone
from tsd.errors import BadQuery
from tsd.query.calendar import base
from tsd.query.model import Calendar, Fill
from tsd.query.parse.times import read_downsample, read_duration, read_time

NOW_MS = 1_356_998_400_000


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("now", NOW_MS),
        ("NOW", NOW_MS),
        ("1h-ago", NOW_MS - 3_600_000),
        ("1500ms-AGO", NOW_MS - 1500),
        ("1n-ago", NOW_MS - 30 * 86_400_000),
        ("1356998400", NOW_MS),
        ("1356998400000", NOW_MS),
        ("1356998400.123", NOW_MS + 123),
        ("5ms", 5),
        ("+5", 5000),
        ("00000000005", 5),
        ("2013/01/01", NOW_MS),
        ("2013/01/01 00:00", NOW_MS),
        ("2012/13/01-00:00:01", NOW_MS + 1000),
        ("2013/01/00-24:00", NOW_MS),
    ],
)
def test_times_are_parsed(text: str, wanted: int) -> None:
    assert read_time(text, NOW_MS, local=UTC) == wanted


@pytest.mark.parametrize(
    ("zone", "text", "wanted_s"),
    [
        ("America/New_York", "2013/03/10-02:30", 1362900600),  # left out: an hour later
        ("America/New_York", "2013/11/03-01:30", 1383460200),  # twice: the second
        ("Asia/Kolkata", "2013/01/01", 1356978600),
        ("IST", "2013/01/01", 1356978600),  # a short name of Java
    ],
)
def test_date_is_in_its_zone(zone: str, text: str, wanted_s: int) -> None:
    assert read_time(text, NOW_MS, zone) == wanted_s * 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1x-ago", "Invalid duration (suffix): 1x"),
        ("-5", "Invalid time: -5. Negative timestamps are not supported."),
        ("abc", "Invalid time: abc. Invalid character 'a' in abc"),
        ("2013/1/1", "Invalid absolute date: 2013/1/1"),
        ("2013/01/xx", 'Invalid date: 2013/01/xx. Unparseable date: "2013/01/xx"'),
        ("9" * 25, f"Invalid time: {'9' * 25}. Value too long: {'9' * 25}"),
        ("€", "Invalid time: €. Invalid character '?' in ?"),
    ],
)
def test_invalid_time_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadQuery) as refused:
        read_time(text, NOW_MS, local=UTC)
    assert refused.value.message == message


@pytest.mark.parametrize("text", ["0001/01/01", "9999/12/31-23:59:59", "0000/01/01"])
def test_date_that_no_clock_shows_is_refused(text: str) -> None:
    """Regression: the first and the last year were internal errors in the machine's zone."""
    with pytest.raises(BadQuery):
        read_time(text, NOW_MS)


@pytest.mark.parametrize("span", ["99999999999hc", "2147483648dc", "9223372036854775807msc"])
def test_calendar_step_of_more_than_32_bits_is_refused(span: str) -> None:
    with pytest.raises(BadQuery, match=rf"Invalid duration \(number\): {span[:-1]}$"):
        read_downsample(f"{span}-sum")
    assert read_downsample("2147483647dc-sum").calendar is not None


def test_zone_must_be_in_the_tz_database() -> None:
    assert find_zone("Europe/Berlin") is not None
    assert all(find_zone(name) is None for name in ("Nope", "", "Europe", "/etc/passwd", "../zoneinfo/UTC", "a\0b"))


@pytest.mark.parametrize(
    ("text", "wanted_ms"), [("1ms", 1), ("2S", 2000), ("10mm", 600_000), ("1.5h", 3_600_000), ("1y", 365 * 86_400_000)]
)
def test_durations_are_parsed(text: str, wanted_ms: int) -> None:
    assert read_duration(text) == wanted_ms


def test_downsampler_of_all_has_no_calendar() -> None:
    found = read_downsample("0all-sum-zero", use_calendar=True)
    assert found.is_all
    assert found.calendar is None
    assert found.fill is Fill.ZERO


def test_calendar_knows_javas_short_names() -> None:
    assert base(NOW_MS, Calendar(1, "d", "PST")) == base(NOW_MS, Calendar(1, "d", "America/Los_Angeles"))


def test_calendar_buckets_are_those_of_the_zone() -> None:
    assert read_downsample("2nc-max", zone="Asia/Kabul").calendar == (2, "n", "Asia/Kabul")
    assert read_downsample("1d-max", zone="Asia/Kabul", use_calendar=True).calendar == (1, "d", "Asia/Kabul")
    assert read_downsample("1d-max", zone="Asia/Kabul").calendar is None


def test_day_before_a_midnight_gap_starts_after_it() -> None:
    """As OpenTSDB's: it steps until past the time, which ends in the gap, and back by a day. In São Paulo clocks went
    from midnight to 1:00 on 2014-10-19."""
    saturday_ms, hour_ms = 1413601200000, 3_600_000
    day = Calendar(1, "d", "America/Sao_Paulo")
    assert base(saturday_ms + 1, day) == saturday_ms + hour_ms
    assert base(saturday_ms, day) == saturday_ms + hour_ms
    assert base(saturday_ms - 1, day) == saturday_ms - 24 * hour_ms

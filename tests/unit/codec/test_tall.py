"""Rows under keys of tags and times: the schema guide's four tables, and laws of keys, columns and values."""

import math
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.codec.putline import LAST_BASE_MS
from tsd.codec.tall.fields import (
    day_column,
    encode_field,
    parse_day_column,
    parse_field,
)
from tsd.codec.tall.rules import Place, parse_rules, rule_of
from tsd.codec.tall.template import parse_template
from tsd.codec.tall.times import DAY_MS, clock_text, day_text, event_text, parse_clock, parse_day, parse_event
from tsd.codec.tall.values import number_texts, parse_numbers
from tsd.errors import CorruptRow

GUIDE = (
    "QUOTE {exchange:6}#{symbol:5}#{ts} QUOTE.*; TRADE {exchange:6}#{symbol:5}#{ts} TRADE.*; "
    "SENSOR {meter:010=ID}#{day} meter.kwh; METRIC {host}#{ts} *"
)
RULES = parse_rules(GUIDE)
TICK = {"exchange": "NASDAQ", "symbol": "ZXZZT"}
TICK_MS = 1_426_535_612_045
NAMES = st.text("abcXYZ019-_./", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("metric", "tags", "time_ms", "table", "key", "column"),
    [
        ("CPU/CPU1_USR", {"host": "server0001.bbb.com"}, TICK_MS, "METRIC", "server0001.bbb.com#1426535612045",
         "CPU/CPU1_USR"),
        ("QUOTE.BID", TICK, TICK_MS, "QUOTE", "NASDAQ#ZXZZT#1426535612045", "BID"),
        ("TRADE.LASTSIZE", {"exchange": "NYSE", "symbol": "IBM"}, TICK_MS, "TRADE", "NYSE  #IBM  #1426535612045",
         "LASTSIZE"),
        ("meter.kwh", {"meter": "987654321"}, 1_389_397_500_000, "SENSOR", "0987654321#20140110", "2345"),
        ("meter.kwh", {"meter": "0987654321"}, 1_389_312_000_000, "SENSOR", "0987654321#20140110", "0000"),
    ],
)  # fmt: skip
def test_tables_of_the_guide(
    metric: str, tags: dict[str, str], time_ms: int, table: str, key: str, column: str
) -> None:
    rule = rule_of(RULES, metric)
    assert rule is not None
    assert rule.table == table
    template, place = rule.template, rule.place(metric, tags)
    row_ms = template.row_time(time_ms)
    assert (place.prefix + template.time_text(row_ms)).decode() == key
    assert template.parse_key(key.encode()) == (place.prefix, row_ms)
    found = place.field.decode() or clock_text(time_ms - row_ms).decode()
    assert found == column
    assert rule.names(place) == (metric, {name: value.lstrip("0") for name, value in tags.items()})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "got nothing"),
        ("METRIC {host}#{ts}", "TABLE TEMPLATE METRICS"),
        ("METRIC {ts}#{host} *", "METRIC: .* at the end"),
        ("METRIC {host}#{ts}{day} *", "at the end"),
        ("METRIC {host}{dc}#{ts} *", "width or a text after {host}"),
        ("METRIC {host}{ts} *", "width or a text after {host}"),
        ("METRIC {host:x}#{ts} *", "{TAG:WIDTH}"),
        ("METRIC {host#{ts} *", "{TAG:WIDTH}"),
        ("METRIC #{ts} *", "one tag or more"),
        ("METRIC {host}#{host}#{ts} *", "each once"),
        ("METRIC {host}#{ts} *cpu", "start of names"),
        ("METRIC {host}#{ts} a*; METRIC {host}#{ts} *", "each table once"),
        ("a/b {host}#{ts} *", "the table 'a/b'"),
        ("M {a=ID}#{b=ID}#{ts} *", "each once"),
    ],
)
def test_bad_rules_are_named(text: str, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        parse_rules(text)


@pytest.mark.parametrize(
    ("metric", "tags", "wanted"),
    [
        ("cpu", {"dc": "lga"}, "no tag host"),
        ("cpu", {"host": "a#b"}, "got host=a#b"),
        ("cpu", {"host": "h" * 4090}, "up to 4096"),
        ("cpu", {"host": "a", "b": "c d"}, "without blanks"),
        ("QUOTE.BID", {"exchange": "TOOLONG", "symbol": "A"}, "up to 6 bytes"),
        ("meter.kwh", {"meter": "12a"}, "wanted digits"),
        ("meter.kwh", {"meter": "12345678901"}, "up to 10 bytes"),
    ],
)
def test_series_without_a_place_are_named(metric: str, tags: dict[str, str], wanted: str) -> None:
    rule = rule_of(RULES, metric)
    assert rule is not None
    with pytest.raises(ValueError, match=wanted):
        rule.place(metric, tags)


def test_numbers_are_in_the_order_of_their_texts() -> None:
    template = parse_template("{meter:010}#{day}")
    prefixes = [template.prefix({"meter": str(number)}) for number in (9, 10, 99, 100, 9_999_999_999)]
    assert prefixes == sorted(prefixes)


@given(NAMES, st.dictionaries(NAMES, NAMES, max_size=3), NAMES, NAMES, st.integers(0, 10**10 - 1))
def test_places_come_back(field: str, others: dict[str, str], exchange: str, symbol: str, meter: int) -> None:
    tags = {**others, "exchange": exchange[:6], "symbol": symbol[:5]}
    rule = RULES[0]
    assert rule.names(rule.place(f"QUOTE.{field}", tags)) == (f"QUOTE.{field}", tags)
    tags = {**others, "meter": str(meter)}
    assert RULES[2].names(RULES[2].place("meter.kwh", tags)) == ("meter.kwh", tags)


@given(st.integers(0, LAST_BASE_MS), st.integers(0, LAST_BASE_MS))
def test_times_come_back_and_keep_their_order(one: int, two: int) -> None:
    assert parse_event(event_text(one)) == one
    assert parse_day(day_text(one)) == one // DAY_MS * DAY_MS
    assert parse_clock(clock_text(one % DAY_MS)) == one % DAY_MS
    for text in (event_text, lambda ms: day_text(ms) + clock_text(ms % DAY_MS)):
        assert (text(one) < text(two)) == (one < two)


@given(st.lists(st.one_of(st.integers(-(1 << 63), (1 << 63) - 1), st.floats())))
def test_values_come_back(values: list[int | float]) -> None:
    floats = np.array([isinstance(value, float) for value in values], np.bool_)
    bits = np.array([np.float64(v).view(np.int64) if isinstance(v, float) else v for v in values], np.int64)
    found, kinds = parse_numbers(number_texts(bits, floats))
    assert kinds.tolist() == floats.tolist()
    for value, number, double in zip(values, found.tolist(), found.view(np.float64).tolist(), strict=True):
        if isinstance(value, float):
            assert double == value or (math.isnan(double) and math.isnan(value))
            assert math.copysign(1, double) == math.copysign(1, value) or math.isnan(value)
        else:
            assert number == value


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_corrupt(data: bytes) -> None:
    for rule in RULES:
        with suppress(CorruptRow):
            rule.template.parse_key(data)
        with suppress(CorruptRow):
            rule.names(Place(data, b"x"))
        with suppress(CorruptRow):
            rule.names(Place(b"a#", data))
    for read in (parse_field, lambda one: parse_day_column(b"t:" + one), lambda one: parse_numbers([one])):
        with suppress(CorruptRow):
            read(data)


@given(NAMES, st.dictionaries(NAMES, NAMES, max_size=3), st.integers(0, DAY_MS - 1))
def test_columns_come_back(field: str, tags: dict[str, str], offset_ms: int) -> None:
    encoded = encode_field(field, tags)
    assert parse_field(encoded) == (field, tags)
    assert parse_day_column(day_column(encoded, offset_ms)) == (encoded, offset_ms)

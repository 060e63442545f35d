"""JSON in cells, notes, histograms, rollups and TSUIDs: what vectors do not show."""

import json
import math

import pytest

from tsd.codec.metadata import Annotation, Branch, TsMeta
from tsd.codec.names import Widths, parse_uid
from tsd.codec.opentsdb.annotation import annotation_row, decode_annotation, encode_annotation
from tsd.codec.opentsdb.histogram import (
    decode_histogram,
    decode_varint,
    encode_histogram,
    encode_varint,
    make_histogram,
    parse_bounds,
    parse_histogram,
    parse_payload,
    single,
)
from tsd.codec.opentsdb.meta import decode_ts_meta, decode_uid_meta, encode_ts_meta
from tsd.codec.opentsdb.rollup import (
    Interval,
    RollupConfig,
    parse_config,
    parse_duration,
    rollup_base,
    rollup_qualifier,
)
from tsd.codec.opentsdb.rowkey import KeyLayout, split_tsuid
from tsd.codec.opentsdb.tree import (
    collision_row,
    decode_branch,
    decode_rule,
    encode_branch,
    not_matched_row,
    tree_row,
)
from tsd.codec.points import Bucket, Histogram
from tsd.codec.text import decode_object, encode_object, hashed_custom, show_double, sorted_custom
from tsd.errors import BadConfig, BadLine, CorruptRow


def test_strings_are_escaped_as_jackson_does() -> None:
    assert encode_object({"a": '\0\x1f\x7f\b\t\n\f\r"\\/\u2028😀\ud800'}).decode() == (
        '{"a":"\\u0000\\u001F\x7f\\b\\t\\n\\f\\r\\"\\\\/\u2028\\uD83D\\uDE00\\uD800"}'
    )


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.0, "0.0"), (-0.0, "-0.0"), (1.0, "1.0"), (0.001, "0.001"), (0.0001, "1.0E-4"), (9999999.0, "9999999.0"),
        (1e7, "1.0E7"), (123456789.125, "1.23456789125E8"), (-2.5e-10, "-2.5E-10"), (1e300, "1.0E300"),
        (math.inf, '"Infinity"'), (-math.inf, '"-Infinity"'), (math.nan, '"NaN"'),
    ],
)  # fmt: skip
def test_doubles_are_java_text(number: float, text: str) -> None:
    assert show_double(number) == text


def test_custom_fields_are_sorted_in_notes_hashed_in_metadata() -> None:
    custom = {"Y": "1", "中b": "2", "a": "3", "\U00010000": "4", "\uffee": None}
    assert list(sorted_custom(custom) or ()) == ["Y", "a", "中b", "\U00010000", "\uffee"]  # by UTF-16 units
    assert list(hashed_custom({"Y": "1", "中b": "2"}) or ()) == ["中b", "Y"]
    assert (sorted_custom(None), hashed_custom(None)) == (None, None)
    assert (sorted_custom({}), hashed_custom({})) == ({}, {})


@pytest.mark.parametrize(
    "value",
    [b"", b"{", b"[]", b"1", b"null", b'{"a":NaN}', b'{"a":"\xff"}', b"[" * 99999, b'{"a":' + b"1" * 5000 + b"}"],
)
def test_input_without_json_object_is_refused(value: bytes) -> None:
    with pytest.raises(CorruptRow):
        decode_object(value)


@pytest.mark.parametrize(
    ("decode", "members"),
    [
        (decode_annotation, {"startTime": "1"}),
        (decode_annotation, {"startTime": True}),
        (decode_annotation, {"startTime": 1 << 63}),
        (decode_annotation, {"startTime": 1, "notes": 1}),
        (decode_annotation, {"startTime": 1, "custom": []}),
        (decode_annotation, {"startTime": 1, "custom": {"a": 1}}),
        (decode_uid_meta, {}),
        (decode_uid_meta, {"type": "metrics"}),
        (decode_ts_meta, {"max": "12"}),
        (decode_ts_meta, {"max": True}),
        (decode_ts_meta, {"max": 10**400}),
        (decode_rule, {"type": "LEAF"}),
        (decode_branch, {"path": {}, "displayName": ""}),
        (decode_branch, {"path": {"0": "ROOT", "2": "sys"}, "displayName": "sys"}),
        (decode_branch, {"path": {"0": "ROOT"}, "displayName": "sys"}),
    ],
)
def test_member_of_wrong_type_is_refused(decode: object, members: dict[str, object]) -> None:
    assert callable(decode)
    with pytest.raises(CorruptRow):
        decode(json.dumps(members).encode())


def test_absent_null_and_unknown_members_are_accepted() -> None:
    note = decode_annotation(b'{"startTime":1,"notes":null,"tsuid":null,"custom":{"a":null},"colour":"red"}')
    assert note == Annotation(1, custom={"a": None})
    assert encode_annotation(note) == b'{"startTime":1,"endTime":0,"description":"","notes":"","custom":{"a":null}}'


def test_series_limits_are_numbers_or_absent() -> None:
    stored = encode_ts_meta(TsMeta("0A", max=5.0))
    assert b'"max":5.0,"min":"NaN"' in stored
    assert decode_ts_meta(b'{"max":5}').max == 5.0


def test_path_of_over_ten_branches_stays_in_order() -> None:
    long = Branch(tuple(f"b{depth}" for depth in range(12)))
    assert encode_branch(long).index(b'"9":"b9"') < encode_branch(long).index(b'"10":"b10"')
    assert decode_branch(encode_branch(long)) == long


def test_annotation_of_a_salted_series() -> None:
    tsuid = bytes.fromhex("000003000001000004")
    assert annotation_row(KeyLayout(salt_width=1), 1356998400, tsuid).hex() == "0300000350e22700000001000004"


# Histograms


@pytest.mark.parametrize("number", [0, 127, 128, 300, 1 << 40, (1 << 63) - 1, -1, -(1 << 63), 1 << 56, (1 << 56) - 1])
def test_varints_round_trip(number: int) -> None:
    stored = encode_varint(number)
    assert decode_varint(b"\0" + stored + b"\0", 1) == (number, 1 + len(stored))
    assert len(stored) == min(9, max(1, -(-(number & (1 << 64) - 1).bit_length() // 7)))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "foo",
        "0,1=x",
        "0,1,2=1",
        "0=1",
        "0,1",
        "u=1",
        "U=1:O=2",
        "0,1=1:u=x",
        "0,x=1",
        ",=1",
        f"0,1={1 << 63}",
    ],
)
def test_invalid_histogram_bytes_are_refused(text: str) -> None:
    with pytest.raises(BadLine):
        parse_histogram(text.encode())


def test_buckets_are_sorted_and_the_last_equal_one_counts() -> None:
    found = parse_histogram(b"20,30=1:0,10=2:0,5=3:0,10=4:O=5:U=6")
    assert found == Histogram((Bucket(0, 5, 3), Bucket(0, 10, 4), Bucket(20, 30, 1)), underflow=6, overflow=5)


def test_zero_has_two_signs() -> None:
    found = make_histogram([Bucket(0.0, 1.0, 1), Bucket(-0.0, 1.0, 2)])
    assert encode_histogram(found).hex() == "0002800000003f80000002000000003f800000010000"


def test_bucket_bounds_are_single_precision() -> None:
    assert parse_bounds(b"0.1,1e39") == (single(0.1), math.inf)
    assert single(-1e39) == -math.inf
    with pytest.raises(BadLine, match="Unable to parse bucket bounds: 1"):
        parse_bounds(b"1")


def test_too_many_buckets_are_refused() -> None:
    """The format counts them in a signed 2-byte integer."""
    buckets = [Bucket(float(n), float(n + 1), 1) for n in range(1 << 15)]
    assert len(make_histogram(buckets[1:]).buckets) == 32767
    with pytest.raises(BadLine, match=r"\b32768\b"):
        make_histogram(buckets)


@pytest.mark.parametrize("payload", ["", "00", "0001", "0001000000003f800000", "ffff0000", "00000000ff", "0000000000"])
def test_invalid_histogram_payload_is_refused(payload: str) -> None:
    with pytest.raises(CorruptRow):
        decode_histogram(bytes.fromhex(payload))


def test_invalid_base64_is_refused() -> None:
    for word in (b"AAE", b"AA*A", b"A"):
        with pytest.raises(BadLine, match="wanted base64"):
            parse_payload(word)


# Rollups

GOOD = {"interval": "1h", "rowSpan": "1d", "table": "t", "preAggregationTable": "p", "defaultInterval": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interval": "1"}, "got '1', wanted a count"),
        ({"interval": "0h"}, "got '0h', wanted a count"),
        ({"interval": None}, "got '', wanted a count"),
        ({"rowSpan": "3h"}, "rowSpan: got '3h'"),
        ({"rowSpan": "2d"}, "rowSpan: got '2d'"),
        ({"rowSpan": "1w"}, "rowSpan: got '1w'"),
        ({"rowSpan": "0h"}, "rowSpan: got '0h'"),
        ({"rowSpan": "6h"}, "has 6 intervals, wanted 12 to 7774"),
        ({"interval": "5m", "rowSpan": "1n"}, "has 9216 intervals, wanted 12 to 7774"),
        ({"table": ""}, "table and preAggregationTable must be named"),
        ({"preAggregationTable": 7}, "table and preAggregationTable must be named"),
        ({"defaultInterval": False}, "exactly one must have defaultInterval true"),
    ],
)
def test_invalid_intervals_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(BadConfig, match=f"^tsd.rollups.config: intervals: .*{message}"):
        parse_config(json.dumps({"aggregationIds": {"sum": 0}, "intervals": [GOOD | change]}).encode())


@pytest.mark.parametrize(
    "ids",
    [{}, [], None, {"sum": 128}, {"sum": -1}, {"sum": "0"}, {"sum": True}, {"sum": 0, "SUM": 1}, {"sum": 0, "max": 0}],
)
def test_invalid_aggregation_ids_are_refused(ids: object) -> None:
    with pytest.raises(BadConfig, match=r"^tsd\.rollups\.config: aggregationIds"):
        parse_config(json.dumps({"aggregationIds": ids, "intervals": [GOOD]}).encode())


@pytest.mark.parametrize("text", ["/etc/tsd/rollups", "[]", "{"])
def test_text_that_is_no_object_is_shown(text: str) -> None:
    """Regression: it was shown in hex."""
    with pytest.raises(BadConfig) as refused:
        parse_config(text.encode())
    assert text in str(refused.value)


def test_all_config_errors_are_reported_at_once() -> None:
    with pytest.raises(BadConfig) as refused:
        parse_config(json.dumps({"aggregationIds": {"sum": 200}, "intervals": [GOOD, GOOD, 7]}).encode())
    assert len(refused.value.problems) == 3
    with pytest.raises(BadConfig):
        parse_config(b"not JSON")


def test_unconfigured_names_are_refused() -> None:
    config = RollupConfig({"sum": 0}, ())
    with pytest.raises(BadLine, match=r"^No rollups configured for the interval: 5m$"):
        config.interval("5m")
    with pytest.raises(BadLine, match=r"^No ID found mapping to aggregator: zimsum$"):
        config.id_of("zimsum")


@pytest.mark.parametrize(
    ("span", "time", "base"),
    [
        ("6h", 1357019999, 1356998400),
        ("1d", 1357084799, 1356998400),
        ("1n", 1362095999, 1359676800),  # the last second of February 2013
        ("1n", 1456790399, 1454284800),  # 29 February 2016
        ("1y", 1388534399, 1356998400),
        ("1y", 1388534400, 1388534400),
        ("1y", 0, 0),
        ("1n", (1 << 32) - 1, 4294425600),
    ],
)
def test_rows_start_with_their_span(span: str, time: int, base: int) -> None:
    assert rollup_base(time, Interval("1h", 3600, int(span[:-1]), span[-1], "t", "p")) == base


def test_last_day_of_a_year_has_no_column_for_weeks() -> None:
    weeks = Interval("7d", parse_duration("7d"), 1, "y", "t", "p")
    assert rollup_qualifier(0, 1388447999, weeks, 0).hex() == "000330"
    with pytest.raises(BadLine, match=r"^Offset of 52 was greater than the configured intervals 52$"):
        rollup_qualifier(0, 1388448000, weeks, 0)


def test_last_offset_that_differs_from_milliseconds() -> None:
    minutes = Interval("10m", 600, 1, "n", "t", "p")
    assert rollup_qualifier(0, 1385856000 + 3840 * 600 - 1, minutes, 0).hex() == "00eff0"
    with pytest.raises(BadLine, match=r"^Offset of 3840 does not fit, the highest is 3839$"):
        rollup_qualifier(0, 1385856000 + 3840 * 600, minutes, 0)


def test_failure_rows_of_a_tree() -> None:
    assert (tree_row(258).hex(), collision_row(258).hex(), not_matched_row(258).hex()) == ("0102", "010201", "010202")


# TSUIDs


def test_invalid_tsuids_are_refused() -> None:
    with pytest.raises(BadLine, match=r"^TSUID is too short, may be missing tags"):
        split_tsuid(Widths(), bytes(3))
    with pytest.raises(BadLine, match=r"^The TSUID appears to be malformed, improper tag width"):
        split_tsuid(Widths(), bytes(10))


@pytest.mark.parametrize("text", ["", " ", "0g", "0x1", "00 01", "١"])
def test_invalid_uid_is_refused(text: str) -> None:
    with pytest.raises(BadLine):
        parse_uid(text)

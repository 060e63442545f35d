"""Parsing of JSON queries, beyond the recorded vectors."""

import json
from typing import Any

import msgspec
import pytest

from tsd.errors import BadQuery
from tsd.query.model import Query, RateOptions, SubQuery
from tsd.query.parse.body import LARGEST, MISSING, NULL, UNPARSABLE, read_body
from tsd.query.result import SubAnswer, echo
from tsd.tables.filters import Filter
from tsd.tables.quirks import CORRECTED, OPENTSDB, quirks_for

NOW_MS = 1_700_000_000_000


def read(sub: dict[str, Any] | None = None, *, corrected: bool = False, **top: Any) -> Query:
    queries = [{"aggregator": "sum", "metric": "m"} | (sub or {})]
    return read_body(json.dumps({"start": 1, "queries": queries} | top).encode(), NOW_MS, quirks=quirks_for(corrected))


def read_sub(**sub: Any) -> SubQuery:
    return read(sub).queries[0]


def test_all_fields_are_parsed() -> None:
    query = read(
        {
            "downsample": "1d-sum",
            "rate": True,
            "rateOptions": {"counter": True, "counterMax": 100, "resetValue": 5, "dropResets": True},
            "explicitTags": True,
            "percentiles": [],
            "preAggregate": True,
            "rollupUsage": "rollup_raw",
            "useFuzzyFilter": False,
            "useMultiGets": False,
        },
        end=2_000_000,
        timezone="Europe/Berlin",
        useCalendar=True,
        msResolution=True,
        delete=True,
        overrideByteLimit=True,
        overrideDataPointLimit=True,
    )
    sub = query.queries[0]
    assert (query.start_ms, query.end_ms, query.zone) == (1000, 2_000_000_000, "Europe/Berlin")
    assert query.ms_resolution
    assert query.delete
    assert query.override_byte_limit
    assert query.override_point_limit
    assert sub.downsample is not None
    assert sub.downsample.calendar == (1, "d", "Europe/Berlin")
    assert sub.rate_options == RateOptions(True, 100, 5, True)
    assert (sub.explicit_tags, sub.pre_aggregate, sub.rollup_usage) == (True, True, "ROLLUP_RAW")
    assert (sub.use_fuzzy_filter, sub.use_multi_gets) == (False, False)


def test_number_as_text_is_a_plain_text() -> None:
    """Regression: the list of queries could not be encoded as JSON while one with such a text was in it."""
    query = read({"metric": 5, "tags": {"host": 1.5}, "aggregator": "sum"}, timezone="UTC")
    encoded = msgspec.json.encode(echo(SubAnswer(query.queries[0], [])))
    assert b'"metric":"5"' in encoded
    assert b'"filter":"1.5"' in encoded


@pytest.mark.parametrize(
    ("value", "wanted"),
    [("true", True), (" True ", True), ("", False), (1, True), (-3, True), (0, False), (None, False)],
)
def test_values_that_count_as_booleans(value: Any, wanted: bool) -> None:
    assert read_sub(rate=value).rate is wanted


@pytest.mark.parametrize(("digits", "wanted"), [(b"0", False), (b"-0", False), (b"10", True), (b"1" * 5000, True)])
def test_number_of_any_length_counts_as_boolean(digits: bytes, wanted: bool) -> None:
    body = b'{"start":1,"end":2,"msResolution":%b,"queries":[{"aggregator":"sum","metric":"m"}]}' % digits
    assert read_body(body, NOW_MS).ms_resolution is wanted


@pytest.mark.parametrize("value", ["TRUE", "yes", 1.5, [True], {}])
def test_other_values_are_no_booleans(value: Any) -> None:
    with pytest.raises(BadQuery, match=UNPARSABLE):
        read_sub(rate=value)


def test_numbers_keep_their_digits() -> None:
    body = b'{"start":1356998400.123,"end":"now","queries":[{"aggregator":"sum","metric":1.50}]}'
    query = read_body(body, NOW_MS)
    assert (query.start_ms, query.queries[0].metric) == (1356998400123, "1.50")


@pytest.mark.parametrize(("value", "wanted"), [("5", 5), (2.7, 2), (None, 0), ("", 0), (1e3, 1000)])
def test_values_that_count_as_integers(value: Any, wanted: int) -> None:
    assert read_sub(rateOptions={"counterMax": value}).rate_options.counter_max == wanted


@pytest.mark.parametrize("value", ["x", True, 1 << 63, [], "2.7"])
def test_values_that_are_no_integers(value: Any) -> None:
    with pytest.raises(BadQuery, match=UNPARSABLE):
        read_sub(rateOptions={"counterMax": value})


TAGS = {"host": "web*"}
FILTERS = [{"type": "literal_or", "tagk": "dc", "filter": "lga"}]
TAGS_READ = (Filter("host", "wildcard", "web*", True, True),)
FILTERS_READ = (Filter("dc", "literal_or", "lga"),)


@pytest.mark.difference(
    "tags-and-filters",
    topic="corrected",
    theirs="Of `tags` and `filters` in a body, the first key is lost",
    ours="both count",
)
def test_later_of_tags_and_filters_counts_unless_corrected() -> None:
    one: dict[str, Any] = {"tags": TAGS, "filters": FILTERS}
    other: dict[str, Any] = {"filters": FILTERS, "tags": TAGS}
    assert read_sub(**one).filters == FILTERS_READ
    assert read_sub(**other).filters == TAGS_READ
    assert read(one, corrected=True).queries[0].filters == TAGS_READ + FILTERS_READ


def test_tags_keep_their_order() -> None:
    found = read_sub(tags={"b": "1", "a": 2, "host": "*", "dc": "not_literal_or(x)"}).filters
    assert [(f.tagk, f.type, f.expression, f.group_by) for f in found] == [
        ("b", "literal_or", "1", True),
        ("a", "literal_or", "2", True),
        ("host", "wildcard", "*", True),
        ("dc", "not_literal_or", "x", True),
    ]


def test_last_of_equal_keys_counts() -> None:
    body = b'{"start":5,"start":1,"queries":[{"aggregator":"sum","metric":"a","metric":"b","tags":{"k":"1","k":"2"}}]}'
    query = read_body(body, NOW_MS)
    assert (query.start_ms, query.queries[0].metric) == (1000, "b")
    assert [f.expression for f in query.queries[0].filters] == ["2"]


def test_both_spellings_of_group_by_count() -> None:
    for name in ("groupBy", "group_by"):
        each = {"type": "wildcard", "tagk": "h", "filter": "*", name: "true"}
        assert read_sub(filters=[each]).filters == (Filter("h", "wildcard", "*", True),)


@pytest.mark.parametrize("body", [b'{"start":1}', b'{"start":1,"queries":null}', b"null"])
def test_null_pointer_errors_of_opentsdb(body: bytes) -> None:
    with pytest.raises(BadQuery) as refused:
        read_body(body, NOW_MS)
    assert (refused.value.status, refused.value.message) == (500, NULL)


NO_OBJECT, NO_NUMBER = "queries: got null, wanted an object", "percentiles: got null, wanted a number"


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(
    ("queries", "message"),
    [
        ("[null]", NO_OBJECT),
        ('[{"aggregator":"sum","metric":"m"},null]', NO_OBJECT),
        ("[null,{}]", NO_OBJECT),
        ("[{},null]", "Missing the aggregation function"),
        ('[{"aggregator":"none","metric":"m","percentiles":[null]}]', NO_NUMBER),
    ],
)
def test_null_in_a_list_is_the_mistake_of_a_client(queries: str, message: str, corrected: bool) -> None:
    """OpenTSDB answers 400, too, with a message of Java."""
    quirks = quirks_for(corrected)
    with pytest.raises(BadQuery) as refused:
        read_body(b'{"start":1,"queries":%s}' % queries.encode(), NOW_MS, quirks=quirks)
    assert (refused.value.status, refused.value.message) == (400, message)
    with pytest.raises(BadQuery, match="Missing start time") as refused:
        read_body(b'{"queries":[null]}', NOW_MS, quirks=quirks)
    assert refused.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        b" ",
        b"x",
        b"[]",
        b"5",
        b'{"start":1,}',
        b"{'start':1}",
        b'{"start":01}',
        b'{"start":"a\nb"}',
        b"\xff",
        b'{"queries":{}}',
        b'{"queries":[[]]}',
        b'{"options":[]}',
        b'{"options":{"a":"b"}}',
        b"[" * 100_000,
        b'{"queries":' * 50_000,
    ],
    ids=lambda body: ascii(body[:30]),
)
def test_invalid_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadQuery, match=UNPARSABLE) as refused:
        read_body(body, NOW_MS)
    assert refused.value.details


def test_missing_body_is_refused() -> None:
    with pytest.raises(BadQuery, match=MISSING):
        read_body(b"", NOW_MS)


@pytest.mark.difference(
    "query-body-limit",
    topic="limits",
    theirs="The body of a query may be as large as any other",
    ours="It may have 1 MiB; 413 beyond",
)
def test_body_size_is_bounded() -> None:
    body = b'{"start":1,"queries":[{"aggregator":"sum","metric":"m"}]}'
    assert read_body(body.ljust(LARGEST), NOW_MS).start_ms == 1000
    with pytest.raises(BadQuery, match="wanted at most 1048576") as refused:
        read_body(body.ljust(LARGEST + 1), NOW_MS)
    assert refused.value.status == 413


@pytest.mark.difference("text-after-json")
def test_text_after_the_object_is_ignored() -> None:
    assert read_body(b' {"start":1,"queries":[{"aggregator":"sum","metric":"m"}]} x', NOW_MS).start_ms == 1000


def test_body_parameter_or_default_chooses_corrected() -> None:
    assert read().quirks == OPENTSDB
    assert read(corrected=True).quirks == CORRECTED
    body = b'{"start":1,"corrected":"false","queries":[{"aggregator":"sum","metric":"m"}]}'
    assert read_body(body, NOW_MS, quirks=CORRECTED).quirks == OPENTSDB
    body = b'{"start":1,"queries":[{"aggregator":"sum","metric":"m"}]}'
    assert read_body(body, NOW_MS, params={"corrected": ["true"]}).quirks == CORRECTED


def test_invalid_filter_has_details() -> None:
    with pytest.raises(BadQuery) as refused:
        read_sub(filters=[{"type": "regexp", "tagk": "h", "filter": "(a+)+$"}])
    assert refused.value.message == UNPARSABLE
    assert refused.value.details == "may take exponential time: (a+)+$"


TIMES = (1, "1"), (1_356_998_400, 1_356_998_460), (1_356_998_400_000, 1_356_998_460_000), (5, 4), (4, 4), (9, 10**13)
SUB = '"queries":[{"aggregator":"sum","metric":"m"%s}]'
RESTS = (
    SUB % "",
    SUB % ',"downsample":"1h-avg-zero","rate":true,"filters":[{"type":"wildcard","tagk":"a","filter":"*"}]',
    SUB % "" + ',"msResolution":true,"timezone":"Europe/Berlin","useCalendar":true',
    SUB % ',"downsample":"1d-sum"' + ',"timezone":"Europe/Berlin","useCalendar":true,"delete":true',
    SUB % "" + ',"start":77',
    SUB % "" + ', "end" : "88"',
    SUB % "" + ',"\\u0073tart":77',
    SUB % "" + ',"corrected":true',
    SUB % ',"downsample":"nope"',
    SUB % ',"tags":{"start":"a"}',
    '"queries":[]',
    '"queries":[null]',
    '"nothing":1',
    SUB % "" + "} more",
)


@pytest.mark.parametrize("rest", RESTS)
@pytest.mark.parametrize("corrected", [False, True])
def test_queries_that_differ_in_their_times(rest: str, corrected: bool) -> None:
    """They are read as if they came alone, errors included: a member that is ignored makes them another form."""

    def outcome(body: str) -> object:
        try:
            query = read_body(body.encode(), NOW_MS, quirks=quirks_for(corrected))
        except BadQuery as exc:
            return exc.status, exc.message, exc.details
        return query

    for start, end in TIMES:
        for form in ('{"start":%s,"end":%s,%s}', ' { "start": %s , "end": %s , %s }', '{"start":"%s","end":%s,%s}'):
            body = form % (start, json.dumps(end), rest)
            alone = body.replace("{", '{"ignored":1,', 1)
            assert outcome(body) == outcome(body) == outcome(alone), body

"""Queries as URIs spell them: what the vectors do not show."""

import pytest

from tsd.errors import BadQuery
from tsd.query.model import NO_COUNTER_MAX, Calendar, Fill, Filter, Query, RateOptions
from tsd.query.uri import read_drafts, read_m, read_metric, read_sub_query, read_tsuid, read_uri

NOW_MS = 1_700_000_000_000


def read(*m: str, corrected: bool = False, **params: str) -> Query:
    given = {"start": ["1600000000"], "m": list(m)} | {name: [value] for name, value in params.items()}
    return read_uri(given, NOW_MS, corrected=corrected)


def test_a_whole_sub_query() -> None:
    sub = read_sub_query("sum:rate{counter,100,5}:1dc-avg-NaN:explicit_tags:sys.cpu{host=w*}{dc=lga}")
    assert (sub.aggregator, sub.metric, sub.rate, sub.explicit_tags) == ("sum", "sys.cpu", True, True)
    assert sub.rate_options == RateOptions(counter=True, counter_max=100, reset_value=5)
    assert sub.downsample is not None
    assert sub.downsample.fill is Fill.NAN
    assert sub.downsample.calendar == Calendar(1, "d", "UTC")
    assert sub.filters == (
        Filter("dc", "literal_or", "lga"),
        Filter("host", "wildcard", "w*", group_by=True, ignore_case=True),
    )


def test_flags_count_by_being_there() -> None:
    query = read("sum:m", ms="false", show_tsuids="", arrays="", no_annotations="0", unknown="1")
    assert query.ms_resolution
    assert query.show_tsuids
    assert query.no_annotations
    assert (query.show_query, query.global_annotations, query.show_stats, query.show_summary) == (False,) * 4


def test_the_last_of_a_repeated_parameter_counts() -> None:
    query = read_uri({"start": ["5", "6"], "end": ["1", "9"], "m": ["sum:m", "avg:m"]}, NOW_MS)
    assert (query.start_ms, query.end_ms, query.start_text) == (6000, 9000, "6")
    assert [sub.aggregator for sub in query.queries] == ["sum", "avg"]


def test_without_an_end_it_is_now() -> None:
    assert read("sum:m").end_ms == NOW_MS
    assert read("sum:m", end="").end_ms == NOW_MS


def test_tsuids_come_first() -> None:
    query = read_uri({"start": ["5"], "m": ["sum:m"], "tsuid": ["max:0102,0304,"]}, NOW_MS)
    assert [sub.tsuids for sub in query.queries] == [("0102", "0304"), ()]
    assert query.queries[0].metric is None


def test_a_tsuid_knows_neither_explicit_tags_nor_rollups() -> None:
    sub = read_tsuid("sum:explicit_tags:pre-agg:rollup_raw:0102").sub
    assert (sub.explicit_tags, sub.pre_aggregate, sub.has_rollup_usage) == (False,) * 3


def test_equal_sub_queries_are_one() -> None:
    assert [sub.aggregator for sub in read("sum:m", "avg:m", "sum:m").queries] == ["sum", "avg"]
    assert [sub.index for sub in read("sum:m", "sum:m", "avg:m").queries] == [0, 1]


def test_sub_queries_that_differ_in_grouping_are_merged_unless_corrected() -> None:
    two = ("sum:m{host=*}", "sum:m{}{host=*}")
    assert len(read(*two).queries) == 1
    assert len(read(*two, corrected=True).queries) == 2
    assert len(read("sum:m", "sum:m", corrected=True).queries) == 1


def test_wildcards_that_differ_only_at_their_ends_are_merged_unless_corrected() -> None:
    assert len(read("sum:m{host=w*}", "sum:m{host=*w}").queries) == 1
    assert len(read("sum:m{host=w*}", "sum:m{host=*w}", corrected=True).queries) == 2


def test_a_filter_of_both_lists_is_one_that_groups() -> None:
    assert read_metric("m{host=*}{host=*}") == ("m", (Filter("host", "wildcard", "*", True, True),))


def test_decimals_of_a_second_are_digits_of_milliseconds_unless_corrected() -> None:
    assert read("sum:m", end="1600000001.5", start="1").end_ms == 16000000015
    assert read("sum:m", end="1600000001.5", corrected=True).end_ms == 1600000001500
    assert read("sum:m", end="1600000001.25", corrected=True).end_ms == 1600000001250


def test_an_hour_and_a_half_is_an_hour_unless_corrected() -> None:
    plain, right = (read("sum:1.5h-avg:m", corrected=corrected).queries[0].downsample for corrected in (False, True))
    assert plain is not None
    assert right is not None
    assert (plain.interval_ms, right.interval_ms) == (3_600_000, 5_400_000)


@pytest.mark.parametrize(
    ("value", "default", "wanted"),
    [("", False, True), ("true", False, True), ("false", True, False), ("0", True, False), (None, True, True)],
)
def test_who_asks_may_want_it_corrected_or_not(value: str | None, default: bool, wanted: bool) -> None:
    params = {"start": ["5"], "m": ["sum:m"]} | ({} if value is None else {"corrected": [value]})
    assert read_uri(params, NOW_MS, corrected=default).corrected is wanted


def test_not_key_is_known_when_corrected() -> None:
    with pytest.raises(BadQuery, match="Could not find a tag value filter of the type: not_key"):
        read("sum:m{}{host=not_key()}")
    assert read("sum:m{}{host=not_key()}", corrected=True).queries[0].filters == (Filter("host", "not_key", ""),)


def test_drafts_keep_what_is_equal_and_come_unchecked() -> None:
    drafts = read_drafts({"m": ["nope:m", "nope:m"]})
    assert [draft.sub.aggregator for draft in drafts] == ["nope", "nope"]


def test_metric_queries_of_expressions_are_sub_queries_too() -> None:
    query = read_uri({"start": ["5"]}, NOW_MS, extra=[read_m("sum:m")])
    assert [sub.metric for sub in query.queries] == ["m"]


def test_details_tell_the_query() -> None:
    with pytest.raises(BadQuery) as refused:
        read("nope:m")
    assert refused.value.details == "Query(start=1600000000, end=None, queries=[nope:m])"


def test_percentiles_are_32_bit_numbers_with_their_shortest_digits() -> None:
    assert read_sub_query("sum:percentiles[99.9,50, 75.25]:m").percentiles == (50.0, 75.25, 99.9)
    assert read_sub_query("sum:percentiles[99.900000001]:m").percentiles == (99.9,)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("rate{}", RateOptions()),
        ("rate{,7}", RateOptions(counter_max=7)),
        ("rate{counter,,5}", RateOptions(True, NO_COUNTER_MAX, 5)),
        ("rate{dropcounter,+5,}", RateOptions(True, 5, 0, True)),
        ("rate{counter", RateOptions()),
    ],
)
def test_rate_options(text: str, wanted: RateOptions) -> None:
    sub = read_sub_query(f"sum:{text}:m")
    assert sub.has_rate_options
    assert sub.rate_options == wanted


@pytest.mark.parametrize("start", ["9223372036854775807y-ago", "10000000000000", "253402300800000"])
def test_times_beyond_the_last_are_refused(start: str) -> None:
    with pytest.raises(BadQuery):
        read("sum:m", start=start, end="99999999999999")

"""Parsing of queries in URIs, beyond the recorded vectors."""

from dataclasses import replace

import pytest

from tsd.errors import BadQuery
from tsd.query.model import NO_COUNTER_MAX, Calendar, Fill, Query, RateOptions
from tsd.query.parse.uri import read_drafts, read_m, read_metric, read_tsuid, read_uri
from tsd.query.parse.validate import MAX_FILTERS
from tsd.tables.filters import Filter
from tsd.tables.quirks import quirks_for

NOW_MS = 1_700_000_000_000


def read(*m: str, corrected: bool = False, **params: str) -> Query:
    given = {"start": ["1600000000"], "m": list(m)} | {name: [value] for name, value in params.items()}
    return read_uri(given, NOW_MS, quirks=quirks_for(corrected))


@pytest.mark.difference(
    "filter-limit",
    topic="queries",
    theirs="A sub query may have any number of filters",
    ours="It may have 1,000; 413 beyond",
)
def test_number_of_filters_is_bounded() -> None:
    names = [f"k{n}" for n in range(MAX_FILTERS)]
    assert len(read_metric("m{" + ",".join(f"{name}=v" for name in names) + "}")[1]) == MAX_FILTERS
    for text in ("m{%s}", "m{}{%s}"):
        with pytest.raises(BadQuery, match=f"wanted at most {MAX_FILTERS}"):
            read_metric(text % ",".join(f"{name}=v" for name in [*names, "more"]))


def test_whole_sub_query_is_parsed() -> None:
    [sub] = read("sum:rate{counter,100,5}:1dc-avg-NaN:explicit_tags:sys.cpu{host=w*}{dc=lga}").queries
    assert (sub.aggregator, sub.metric, sub.rate, sub.explicit_tags) == ("sum", "sys.cpu", True, True)
    assert sub.rate_options == RateOptions(counter=True, counter_max=100, reset_value=5)
    assert sub.downsample is not None
    assert sub.downsample.fill is Fill.NAN
    assert sub.downsample.calendar == Calendar(1, "d", "UTC")
    assert sub.filters == (
        Filter("dc", "literal_or", "lga"),
        Filter("host", "wildcard", "w*", group_by=True, ignore_case=True),
    )


def test_flag_counts_without_value() -> None:
    query = read("sum:m", ms="false", show_tsuids="", arrays="", no_annotations="0", unknown="1")
    assert query.ms_resolution
    assert query.show_tsuids
    assert query.no_annotations
    assert (query.show_query, query.global_annotations, query.show_stats, query.show_summary) == (False,) * 4


@pytest.mark.difference(
    "times-out-of-range",
    topic="queries",
    theirs="A start before 1970, such as `100y-ago`, and times after the year 2286 are answered with 500",
    ours="The start is 1970, before which there are no points. Later times are answered with 400",
)
def test_start_before_1970_is_1970() -> None:
    for start in ("100y-ago", "1969/12/31", "9223372036854775807ms-ago"):
        assert read("sum:m", start=start) == replace(read("sum:m", start="0"), start_text=start)
    early = read_uri({"start": ["1h-ago"], "m": ["sum:m"]}, 60_000)  # the clock is wrong
    assert (early.start_ms, early.end_ms) == (0, 60_000)


@pytest.mark.difference("times-out-of-range")
@pytest.mark.parametrize("times", [{"end": "1969/12/31", "start": "0"}, {"end": "10000000000000"}, {"end": "9" * 18}])
def test_range_without_storable_times_is_refused(times: dict[str, str]) -> None:
    with pytest.raises(BadQuery) as refused:
        read("sum:m", **times)
    assert refused.value.status == 400


def test_last_of_repeated_parameters_counts() -> None:
    query = read_uri({"start": ["5", "6"], "end": ["1", "9"], "m": ["sum:m", "avg:m"]}, NOW_MS)
    assert (query.start_ms, query.end_ms, query.start_text) == (6000, 9000, "6")
    assert [sub.aggregator for sub in query.queries] == ["sum", "avg"]


def test_missing_end_is_now() -> None:
    assert read("sum:m").end_ms == NOW_MS
    assert read("sum:m", end="").end_ms == NOW_MS


def test_tsuids_precede_metrics() -> None:
    query = read_uri({"start": ["5"], "m": ["sum:m"], "tsuid": ["max:0102,0304,"]}, NOW_MS)
    assert [sub.tsuids for sub in query.queries] == [("0102", "0304"), ()]
    assert query.queries[0].metric is None


def test_tsuid_ignores_explicit_tags_and_rollups() -> None:
    sub = read_tsuid("sum:explicit_tags:pre-agg:rollup_raw:0102").sub
    assert (sub.explicit_tags, sub.pre_aggregate, sub.has_rollup_usage) == (False,) * 3


def test_equal_sub_queries_are_joined() -> None:
    assert [sub.aggregator for sub in read("sum:m", "avg:m", "sum:m").queries] == ["sum", "avg"]
    assert [sub.index for sub in read("sum:m", "sum:m", "avg:m").queries] == [0, 1]


@pytest.mark.difference(
    "merged-sub-queries",
    topic="corrected",
    theirs=(
        "`m=sum:x{host=*}&m=sum:x{}{host=*}`: sub queries that differ only in grouping, or at the end of a "
        "wildcard, are answered once"
    ),
    ours="each is answered",
)
def test_sub_queries_with_other_groups_are_one_unless_corrected() -> None:
    two = ("sum:m{host=*}", "sum:m{}{host=*}")
    assert len(read(*two).queries) == 1
    assert len(read(*two, corrected=True).queries) == 2
    assert len(read("sum:m", "sum:m", corrected=True).queries) == 1


@pytest.mark.parametrize(("word", "expected"), [("", 2), ("TRUE", 2), ("yes", 2), ("1", 2), ("false", 1), ("off", 1)])
def test_corrected_queries_are_chosen_by_a_word(word: str, expected: int) -> None:
    assert len(read("sum:m{host=*}", "sum:m{}{host=*}", **{"tsd.query.corrected": word}).queries) == expected


@pytest.mark.parametrize("word", ["maybe", "2", "nope"])
def test_other_words_choose_neither(word: str) -> None:
    with pytest.raises(BadQuery, match="wanted true or false"):
        read("sum:m", **{"tsd.query.corrected": word})


@pytest.mark.difference("merged-sub-queries")
def test_wildcards_with_other_ends_are_one_unless_corrected() -> None:
    assert len(read("sum:m{host=w*}", "sum:m{host=*w}").queries) == 1
    assert len(read("sum:m{host=w*}", "sum:m{host=*w}", corrected=True).queries) == 2


def test_filter_in_both_lists_groups() -> None:
    assert read_metric("m{host=*}{host=*}") == ("m", (Filter("host", "wildcard", "*", True, True),))


@pytest.mark.difference(
    "decimal-times",
    topic="corrected",
    theirs="`end=1600000001.5` is in 1970; `1.5h` is an hour",
    ours="decimals are those of a second, or of a unit",
)
def test_decimals_of_seconds_are_appended_unless_corrected() -> None:
    assert read("sum:m", end="1600000001.5", start="1").end_ms == 16000000015
    assert read("sum:m", end="1600000001.5", corrected=True).end_ms == 1600000001500
    assert read("sum:m", end="1600000001.25", corrected=True).end_ms == 1600000001250


@pytest.mark.difference("decimal-times")
def test_duration_with_decimals_is_cut_unless_corrected() -> None:
    plain, right = (read("sum:1.5h-avg:m", corrected=corrected).queries[0].downsample for corrected in (False, True))
    assert plain is not None
    assert right is not None
    assert (plain.interval_ms, right.interval_ms) == (3_600_000, 5_400_000)


@pytest.mark.parametrize(
    ("value", "default", "wanted"),
    [("", False, True), ("true", False, True), ("false", True, False), ("0", True, False), (None, True, True)],
)
def test_parameter_chooses_corrected(value: str | None, default: bool, wanted: bool) -> None:
    params = {"start": ["5"], "m": ["sum:m"]} | ({} if value is None else {"corrected": [value]})
    assert read_uri(params, NOW_MS, quirks=quirks_for(default)).quirks == quirks_for(wanted)


@pytest.mark.difference(
    "not-key",
    topic="corrected",
    theirs="`not_key()` is documented but unknown",
    ours="it passes series without the tag name",
)
def test_not_key_is_accepted_if_corrected() -> None:
    with pytest.raises(BadQuery, match="Could not find a tag value filter of the type: not_key"):
        read("sum:m{}{host=not_key()}")
    assert read("sum:m{}{host=not_key()}", corrected=True).queries[0].filters == (Filter("host", "not_key", ""),)


def test_drafts_are_unchecked_with_duplicates() -> None:
    drafts = read_drafts({"m": ["nope:m", "nope:m"]})
    assert [draft.sub.aggregator for draft in drafts] == ["nope", "nope"]


def test_metric_queries_of_expressions_are_sub_queries() -> None:
    query = read_uri({"start": ["5"]}, NOW_MS, extra=[read_m("sum:m")])
    assert [sub.metric for sub in query.queries] == ["m"]


def test_error_details_describe_the_query() -> None:
    with pytest.raises(BadQuery) as refused:
        read("nope:m")
    assert refused.value.details == "Query(start=1600000000, end=None, queries=[nope:m])"


def test_percentile_has_the_shortest_digits_of_32_bits() -> None:
    query = read("sum:percentiles[99.9,50, 75.25]:m", "sum:percentiles[99.900000001]:m")
    assert [sub.percentiles for sub in query.queries] == [(50.0, 75.25, 99.9), (99.9,)]


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
def test_rate_options_are_parsed(text: str, wanted: RateOptions) -> None:
    [sub] = read(f"sum:{text}:m").queries
    assert sub.has_rate_options
    assert sub.rate_options == wanted


@pytest.mark.parametrize("start", ["9223372036854775807y-ago", "10000000000000", "253402300800000"])
def test_time_out_of_range_is_refused(start: str) -> None:
    with pytest.raises(BadQuery):
        read("sum:m", start=start, end="99999999999999")

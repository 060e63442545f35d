"""Random valid and invalid requests as text."""

from hypothesis import strategies as st

from tsd.query.model import AGGREGATORS


def one_of(*words: str) -> st.SearchStrategy[str]:
    return st.sampled_from(words)


def joined(word: st.SearchStrategy[str], form: str, most: int) -> st.SearchStrategy[str]:
    """Join some of the words with commas and insert them into a format."""
    return st.lists(word, min_size=1, max_size=most).map(",".join).map(form.format)


names = one_of("host", "dc", "a", "", " b", "k.1")
values = st.one_of(
    one_of("*", "web01", "a|b", "b|a", "w*", "*w*x", "regexp(^w)", "literal_or(a|b|)", "ILITERAL_OR(A)"),
    one_of("not_literal_or(|)", "wildcard(a)", "iwildcard(*)", "foo(a)", "(a)", "a(", "a)", "|", "", "not_key()"),
    st.text("ab*|()", max_size=6),
)
pairs = st.one_of(
    st.builds("{}={}".format, names, values), one_of("", "a", "a=b=c", "=b", "a=", "host=*", "host=a", "a=b}")
)
braces = st.lists(pairs, max_size=3).map(",".join).map("{{{}}}".format)
metrics = st.one_of(
    st.builds("{}{}{}".format, one_of("m", "sys.cpu", ""), braces, one_of("", "", "{}", "x", "}")),
    st.builds("m{}{}".format, braces, braces),
    st.text("m{}=,*a", max_size=10),
    st.just("m"),
)
units = one_of("ms", "s", "m", "h", "d", "w", "n", "y", "H", "q", "", "c")
durations = st.one_of(
    st.builds("{}{}{}".format, st.integers(0, 99), units, one_of("", "", "c")),
    one_of("1.5h", "0all", "5call", "9223372036854775807y", "99999999999999999999m", "0x", "10mm", "1mmsc"),
)
functions = one_of("avg", "sum", "max", "none", "nope", "", "ep99r7")
fills = one_of("", "-nan", "-NULL", "-zero", "-none", "-scalar", "-x", "-", "-nan-", "-nan-x")
downsamples = st.builds("{}-{}{}".format, durations, functions, fills)
rates = st.one_of(
    one_of("rate", "RATE", "ratex", "rate{", "rate{}", "rate{counter", "rate{dropcounter}", "rate{counter,a}"),
    joined(one_of("counter", "", "5", "-1", "+7", "x", " 6", str(1 << 63), "dropcounter"), "rate{{{}}}", 4),
)
histograms = st.one_of(
    one_of("percentiles", "percentiles[]", "percentiles[99", "show-histogram-buckets"),
    joined(one_of("99", "99.9", " 50 ", "-1", "101", "0", "x", "", "1e1", "99.90001f"), "percentiles[{}]", 3),
)
parts = st.one_of(
    downsamples,
    rates,
    histograms,
    one_of("", "foo", "explicit_tags", "EXPLICIT_TAGSx", "pre-agg", "pre-aggx", "rollup_raw", "rollup_x", "m-avg"),
)
aggregators = st.one_of(one_of(*AGGREGATORS), one_of("sum", "none", "SUM", "", "nope"))
sub_queries = st.builds(
    "sum:{}m{}".format, one_of("", "rate:", "rate{}:", "1m-avg:", "rollup_raw:", "pre-agg:"), braces
)

times = st.one_of(
    st.text("0123456789./:- agomsh", max_size=19),
    st.from_regex(r"\A[0-9]{1,21}(ms|\.[0-9x]{0,4})?\Z").filter(str.isascii),
    st.from_regex(r"\A[0-9]{4}/[0-9]{2}/[0-9]{2}([- :][0-9]{2}:[0-9]{2}(:[0-9]{2})?)?\Z").filter(str.isascii),
    st.datetimes().map(lambda t: t.strftime("%Y/%m/%d-%H:%M:%S").rjust(19, "0")),
    one_of("-5", "+5", "-", "2013/1/001", "2013/ 1/ 1", "2013/-1/01", "1h-ago"),
)
zones = one_of("", "", "UTC", "PST", "IST", "America/New_York", "Australia/Lord_Howe", "Nope/Zone")

scalars = st.sampled_from([None, True, False, 0, 1, 2, -3, 1.5, "", "true", "True", "TRUE", "x", "5", " 7 ", "0"])
json_filters = st.one_of(
    st.just({"type": "wildcard", "tagk": "h", "filter": "*", "groupBy": True}),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["wildcard", "literal_or", "regexp", "Wildcard", "nope", None]),
            "tagk": st.sampled_from(["h", "", 5]),
        },
        optional={
            "filter": st.sampled_from(["*", "a|b", "", 5, "|", None]),
            "groupBy": scalars,
            "group_by": scalars,
            "x": scalars,
        },
    ),
)
rate_fields = one_of("counter", "isCounter", "counterMax", "resetValue", "dropResets", "x")
json_subs = st.fixed_dictionaries(
    {
        "aggregator": st.sampled_from(["sum", "sum", "none", "nope", None]),
        "metric": st.sampled_from(["m", "m", 5, None, "", 1.5]),
    },
    optional={
        "downsample": st.one_of(st.sampled_from(["1m-avg", "1dc-sum-nan", "all-sum", "", 5, None]), downsamples),
        "rate": scalars,
        "rateOptions": st.one_of(st.none(), st.dictionaries(rate_fields, scalars, max_size=3)),
        "filters": st.one_of(st.none(), st.lists(json_filters, max_size=2)),
        "tags": st.dictionaries(one_of("a", "b", ""), st.sampled_from(["*", "x", "w*", 5, "foo(x)"]), max_size=2),
        "explicitTags": scalars,
        "percentiles": st.one_of(st.none(), st.lists(st.sampled_from([99, 99.9, "50", "x", 101]), max_size=2)),
        "showHistogramBuckets": scalars,
        "preAggregate": scalars,
        "rollupUsage": st.sampled_from(["ROLLUP_RAW", "rollup_fallback", "x", None]),
        "useFuzzyFilter": scalars,
        "index": scalars,
        "tsuids": st.one_of(st.none(), st.lists(st.sampled_from(["00", 1, None]), max_size=2)),
        "unknown": scalars,
    },
)
bodies = st.fixed_dictionaries(
    {"start": st.sampled_from([1, "2", "2013/01/01", 1356998400.5, 5.0]), "queries": st.lists(json_subs, max_size=2)},
    optional={
        "end": st.sampled_from([1500000000, "1500000001", "", None, 3]),
        "timezone": st.sampled_from(["Europe/Berlin", "JST", "", None, "Nope/Zone"]),
        "useCalendar": scalars,
        "msResolution": scalars,
        "showTSUIDs": scalars,
        "noAnnotations": scalars,
        "delete": scalars,
        "overrideByteLimit": scalars,
        "padding": scalars,
        "options": st.sampled_from([None, {}, {"a": ["b"]}, {"a": "b"}]),
    },
)

filter_types = one_of("literal_or", "iliteral_or", "not_literal_or", "not_iliteral_or", "wildcard", "iwildcard")
expressions = st.text("aAbB*|.", min_size=1, max_size=7)
atoms = st.one_of(
    one_of(
        "a", "b", "A", ".", "\\d", "\\w", "\\S", "[ab]", "[^a]", "[a-z&&[^b]]", "[a-c[0-3]]", "\\p{Alpha}", "\\P{L}"
    ),
    one_of("\\pL", "\\x61", "\\Qa.b\\E", "(?:ab)", "(a|b)", "(?<n>a)", "\\h", "^", "$", "(?i)a", "(?i:b)", "\\.", "-"),
    one_of("(?=a)", "(?!b)", "(?<=a)", "\\p{Punct}", "\\u0062", "[\\w.-]", "[]a]", "[a&&b]", "[^\\d&&\\w]", "|"),
)
patterns = st.lists(st.tuples(atoms, one_of("", "", "", "*", "+", "?", "{2}", "++", "*?")), min_size=1, max_size=4).map(
    lambda pieces: "".join(atom + times for atom, times in pieces)
)
doubles = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.floats(1e-6, 1e-2),
    st.floats(1e6, 1e18),
    st.integers(-(1 << 60), 1 << 60).map(float),
    st.floats(0, 1e12).map(lambda number: round(number, 2)),
)

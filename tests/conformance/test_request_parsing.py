"""Compare the parsing of random requests with OpenTSDB's own classes in a Java process: the same query, or the same
status and message."""

import json
import math
import re
import struct
from collections.abc import Iterator
from datetime import UTC
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.conformance.java_process import JavaProcess
from tests.conformance.random_requests import (
    aggregators,
    bodies,
    doubles,
    expressions,
    filter_types,
    metrics,
    parts,
    patterns,
    sub_queries,
    times,
    zones,
)
from tests.peers.needs import need_peer
from tsd.codec.regex import BadPattern, compile_pattern
from tsd.errors import BadQuery
from tsd.query.model import Fill, Query, SubQuery
from tsd.query.parse.body import NULL, UNPARSABLE, read_body
from tsd.query.parse.times import read_time
from tsd.query.parse.uri import read_m, read_tsuid
from tsd.query.parse.validate import Draft, check_sub, deduplicated
from tsd.query.result import SubAnswer, echo
from tsd.query.serialize import double_texts
from tsd.tables.filters import make_filter, matcher_of

pytestmark = pytest.mark.opentsdb
law = settings(deadline=None, max_examples=200)
FILLS = {Fill.NONE: "NONE", Fill.NAN: "NOT_A_NUMBER", Fill.NULL: "NULL", Fill.ZERO: "ZERO", Fill.SCALAR: "SCALAR"}
NOT_SHOWN = ("index", "filterTagKs", "rollupTable", "histogramQuery")


@pytest.fixture(scope="module")
def java() -> Iterator[JavaProcess]:
    need_peer("opentsdb")
    process = JavaProcess("OpentsdbRequests.java", "-Duser.timezone=UTC", "-Duser.language=en")
    yield process
    process.close()


def shown(sub: SubQuery) -> dict[str, Any]:
    """Format a sub query as the Java process does."""
    found = {name: value for name, value in echo(SubAnswer(sub, [])).items() if name not in NOT_SHOWN}
    if sub.downsample:
        found["interval"] = sub.downsample.interval_ms
        found["function"] = sub.downsample.function
        found["fill"] = FILLS[sub.downsample.fill]
        found["calendar"] = sub.downsample.calendar.zone if sub.downsample.calendar else None
    return found


def same(sub: dict[str, Any]) -> dict[str, Any]:
    """Normalise equivalent values: empty and absent; a calendar with one bucket over everything, which has none."""
    found = {name: value for name, value in sub.items() if value not in (None, "", [])}
    if found.get("interval") == 0:
        found.pop("calendar", None)
    if "tsuids" in found:
        found["tsuids"] = [tsuid or "" for tsuid in found["tsuids"]]
    return found


def verdict(error: BadQuery) -> str:
    return f"! {error.status} {error.message}"


def read(text: str, java: JavaProcess, question: str) -> None:
    """Compare the parsing of one `m` or `tsuid`."""
    there = java.call(question, text)
    try:
        draft = read_m(text) if question == "m" else read_tsuid(text)
        here = same(shown(check_sub(draft, Query(0, 0, ()))))
    except BadQuery as exc:
        assert_same_refusal(verdict(exc), there)
        return
    assert there.startswith("= "), (there, here)
    assert here == same(json.loads(there[2:]))


def assert_same_refusal(here: str, there: str) -> None:
    if "regexp(" in there or "regexp(" in here:
        assert here[:6] == there[:6]  # Java has its own messages for bad patterns
    else:
        assert here == there


@law
@given(aggregators, st.lists(parts, max_size=3), metrics)
@example("sum", ["1m-avg", "rate", "explicit_tags", "foo"], "m")
@example("sum", [], "")
@example("sum", ["1m--nan"], "m")
def test_m_parsed_as_by_opentsdb(java: JavaProcess, aggregator: str, middle: list[str], metric: str) -> None:
    read(":".join([aggregator, *middle, metric]), java, "m")


@law
@given(aggregators, st.lists(parts, max_size=2), st.text("01,aF g", max_size=12))
def test_tsuid_parsed_as_by_opentsdb(java: JavaProcess, aggregator: str, middle: list[str], tsuids: str) -> None:
    read(":".join([aggregator, *middle, tsuids]), java, "tsuid")


@pytest.mark.parametrize("text", ["", "sum", "sum:", ":", "a:b:c:d:e:f", "sum::m"])
def test_split_pieces_are_those_of_opentsdb(java: JavaProcess, text: str) -> None:
    read(text, java, "m")
    read(text, java, "tsuid")


@law
@given(sub_queries, sub_queries)
@example("sum:m{h=a|b}", "sum:m{h=b|a|}")
@example("sum:m{h=a*}", "sum:m{h=iwildcard(*A)}")
@example("sum:m{h=wildcard(a*)}", "sum:m{h=a*}")
@example("sum:m{h=regexp(a)}", "sum:m{}{h=regexp(a)}")
def test_sub_queries_equal_as_in_opentsdb(java: JavaProcess, one: str, other: str) -> None:
    there = java.call("equal", one, other)
    try:
        drafts: list[Draft] = [read_m(one), read_m(other)]
    except BadQuery:
        assert there.startswith("!")
        return
    assert there == f"= {len(deduplicated(drafts)) == 1}".replace("True", "true").replace("False", "false")


@law
@given(times, zones)
@example("2013/03/10-02:30", "America/New_York")
@example("2013/11/03-01:30", "America/New_York")
@example("2013/04/07-01:45", "Australia/Lord_Howe")
def test_time_parsed_as_by_opentsdb(java: JavaProcess, text: str, zone: str) -> None:
    if not text or text.lower() == "now" or text.lower().endswith("-ago"):
        return
    there = java.call("time", text, zone)
    try:
        here = f"= {read_time(text, 0, zone, local=UTC)}"
    except BadQuery as exc:
        here = verdict(exc)
    if re.match(r"\s*-?0*[0-9]{0,3}/|\s*1[0-8]", text) or re.match(r"[0-9]{5,}/|99[0-9]{2}/", text) or "/-" in text:
        return  # the Julian calendar, local mean times, and years beyond Python's range
    assert here == there


@law
@given(bodies)
def test_body_parsed_as_by_opentsdb(java: JavaProcess, body: dict[str, Any]) -> None:
    text = json.dumps(body)
    there = java.call("body", text)
    try:
        query = read_body(text.encode(), 1_600_000_000_000, local=UTC)
    except BadQuery as exc:
        words = {UNPARSABLE: "= unable to parse", NULL: "! 400 NPE"}
        here = words.get(exc.message, verdict(exc))
        query = None
    if query is None:
        assert here == there
        return
    assert there.startswith("= {"), there
    theirs = json.loads(there[2:])
    assert query.start_ms == theirs["start"]
    assert theirs["end"] in (None, query.end_ms)
    assert query.zone == (theirs["timezone"] or "UTC")
    assert theirs["flags"] == [
        *(query.ms_resolution, query.show_tsuids, query.show_query, query.show_stats, query.show_summary),
        *(query.no_annotations, query.global_annotations, query.delete),
        *(query.override_byte_limit, query.override_point_limit),
    ]
    assert [same(shown(sub)) for sub in query.queries] == [same(sub) for sub in theirs["queries"]]


@law
@given(filter_types, expressions, st.text("abAB.*x", max_size=6))
@example("wildcard", "a*b", "xaby")
@example("wildcard", "b*a", "ab")
def test_filter_matches_as_in_opentsdb(java: JavaProcess, kind: str, expression: str, value: str) -> None:
    try:
        here = f"= {matcher_of(make_filter('k', kind, expression)).matches(value)}".lower()
    except BadQuery as exc:
        here = f"! 500 {exc.message}"
    assert here == java.call("filter", kind, expression, value)


@law
@given(patterns, st.text("abAB01.-_ é", max_size=7))
@example("a(?i)b|c", "C")
@example("x*", "")
def test_pattern_matches_as_in_java(java: JavaProcess, pattern: str, value: str) -> None:
    there = java.call("regex", pattern, value)
    try:
        here = f"= {compile_pattern(pattern).search(value)}".lower()
    except BadPattern as exc:
        here = f"! {exc}"
    known = there.startswith("!") or re.search("exponential|look-behind|multiple repeat|nothing to|redefinition", here)
    assert known or here == there, pattern  # each accepts some patterns that the other refuses


@pytest.mark.difference(
    "double-digits",
    topic="queries",
    theirs="Doubles are printed as by Java; before Java 19 some have a digit too many",
    ours="They have the fewest digits that read back to the same double",
)
@law
@given(doubles)
def test_double_formatted_as_by_opentsdb(java: JavaProcess, number: float) -> None:
    here = double_texts(np.array([number]))[0].decode()
    there = java.call("number", struct.unpack("<q", struct.pack("<d", number))[0])[2:]
    assert math.copysign(1, float(there)) == math.copysign(1, float(here))
    assert float(there) == float(here) == number
    assert re.sub("[0-9]+", "9", there) == re.sub("[0-9]+", "9", here)
    assert len(here) <= len(there)  # Java before 19 may print an unnecessary digit
